"""What a source promises about event time (§4.5, §5.2, figure 10).

Lives here: the three watermark policies and the gauge of one partition.  Never here: files, rows, clocks.
Invariant: what a gauge answers never goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from millwheel.model import MAX_TIME, MIN_TIME


class BoundedDisorder(msgspec.Struct, frozen=True):
    """Rows of one file come at most `bound_us` behind the newest event time read from it before.

    >>> BoundedDisorder(5_000_000).bound_us
    5000000
    """

    bound_us: int = 0


class Exact(msgspec.Struct, frozen=True):
    """The smallest event time among the rows not read yet; costs one more pass over the time column of each
    file.

    Only for files that are complete: a tailing source refuses it.
    """


class FileCreation(msgspec.Struct, frozen=True):
    """For logs written live: no unfinished file holds an event older than its creation minus `slack_us`
    (figure 10).

    `created` gives the creation time, us, of a file from its path (often it stands in the name).  Without it,
    it is the file system's birth time where Python knows it (macOS), elsewhere the event time of the file's
    first row.
    """

    slack_us: int = 0
    created: Callable[[Path], int] | None = None


Policy: TypeAlias = BoundedDisorder | Exact | FileCreation


class Minima:
    """Smallest event time from a row on, for blocks of rows: `starts` are their first rows, `minima` their
    minima.

    >>> rest = Minima([0, 10, 20], [5, 3, 9])
    >>> rest.after(0), rest.after(12), rest.after(20)
    (3, 3, 9)
    """

    def __init__(self, starts: list[int], minima: list[int]) -> None:
        self._starts = starts
        self._suffix = list(minima)
        for index in range(len(minima) - 2, -1, -1):
            self._suffix[index] = min(minima[index], self._suffix[index + 1])

    def after(self, row: int) -> int:
        """A lower bound for every row >= `row`; `MAX_TIME` when there is none at all."""
        if not self._starts:
            return MAX_TIME
        return self._suffix[max(0, bisect_right(self._starts, row) - 1)]


class Gauge:
    """The watermark of one partition under one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.seen: int | None = None
        """The newest event time read so far, us; part of a partition's state."""
        self.minima: Minima | None = None
        self._value = MIN_TIME

    def saw(self, timestamps: Iterable[int]) -> None:
        """Note the event times of rows that were read."""
        newest = max(timestamps, default=None)
        if newest is not None:
            self.seen = newest if self.seen is None else max(self.seen, newest)

    def raise_to(self, bound: int) -> None:
        """Note a promise from elsewhere: statistics, a creation time."""
        self._value = max(self._value, bound)

    def value(self, row: int) -> int:
        """The watermark when `row` is the next to be read, us."""
        if isinstance(self.policy, BoundedDisorder) and self.seen is not None:
            self.raise_to(self.seen - self.policy.bound_us)
        if self.minima is not None:
            self.raise_to(self.minima.after(row))
        return self._value


class Bounded(Protocol):
    """A partition that says how far it has come."""

    def finished(self) -> bool:
        """True when it was read to its end."""
        ...

    def bound(self) -> int:
        """Its watermark; when finished, the last one before."""
        ...


class Frontier:
    """How far an ordered source has come: the newest bound among the partitions it gave out."""

    def __init__(self) -> None:
        self._running: dict[str, Bounded] = {}
        self._value = MIN_TIME

    def add(self, name: str, partition: Bounded) -> None:
        """Follow a partition until it is finished."""
        self._running[name] = partition

    def value(self) -> int:
        """The newest bound so far, us."""
        for name, partition in list(self._running.items()):
            self._value = max(self._value, partition.bound())
            if partition.finished():
                del self._running[name]
        return self._value
