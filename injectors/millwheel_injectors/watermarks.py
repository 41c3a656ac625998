"""What a source promises about event time (§4.5, §5.2, figure 10).

Lives here: the watermark policies, and the gauge of one partition.  Never here: files, rows, clocks.
Invariant: what a gauge answers never goes back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import Never, Protocol, TypeAlias

import msgspec

from millwheel.model import MAX_TIME, MIN_TIME
from millwheel_injectors.arguments import check_length_us


class BoundedDisorder(msgspec.Struct, frozen=True):
    """Rows of one file come at most `bound_us` behind the newest event time read from it before.

    >>> BoundedDisorder(5_000_000).bound_us
    5000000
    """

    bound_us: int = 0

    def __post_init__(self) -> None:
        check_length_us(f"BoundedDisorder(bound_us={self.bound_us!r})", self.bound_us)


class Exact:
    """The smallest event time among the rows not read yet; costs one more pass over the time column of each
    file.

    Only for files that are complete: a tailing source refuses it.
    """

    __slots__ = ()

    def __init__(self, *given: Never, **named: Never) -> None:
        if given or named:
            shown = ", ".join([*map(repr, given), *named])
            raise ValueError(f"Exact takes no arguments, got {shown:.80}: write Exact()")

    def __repr__(self) -> str:
        return "Exact()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact)

    def __hash__(self) -> int:
        return hash(Exact)


class FileCreation(msgspec.Struct, frozen=True):
    """For logs written live: no unfinished file holds an event older than its creation minus `slack_us`
    (figure 10).

    `created` gives the creation time, us, of a file from its path (often it stands in the name).  Without it,
    it is the file system's birth time where Python knows it (macOS), elsewhere the event time of the file's
    first row.
    """

    slack_us: int = 0
    created: Callable[[Path], int] | None = None

    def __post_init__(self) -> None:
        check_length_us(f"FileCreation(slack_us={self.slack_us!r})", self.slack_us)
        if self.created is not None and not callable(self.created):
            raise ValueError(f"FileCreation(created={self.created!r:.80}): give a function of a path")


class Percentile(msgspec.Struct, frozen=True):
    """Of the rows of one file, a `share` is expected to come no further behind the newest one than the promise (§7.2).

    How far rows come behind is learnt from the last `window` rows or some more.  Rows that come further behind are late, and
    are counted.  Nothing is promised before there are so many rows that one of them may be late.

    >>> Percentile(0.99).least_rows
    100
    """

    share: float
    window: int = 10_000

    def __post_init__(self) -> None:
        if not isinstance(self.share, float) or not 0.5 <= self.share < 1:
            raise ValueError(f"Percentile({self.share!r}): give a share of at least 0.5 and below 1, for example 0.99")
        if type(self.window) is not int:
            raise ValueError(f"Percentile: window={self.window!r:.80}: give a number of rows")
        if self.window < self.least_rows:
            raise ValueError(f"Percentile: a window of {self.window} rows is too short, take {self.least_rows} or more")

    @property
    def least_rows(self) -> int:
        """With fewer rows, none of them is a part as small as may be late."""
        return ceil(Fraction(1) / (1 - Fraction(str(self.share))))


Policy: TypeAlias = BoundedDisorder | Exact | FileCreation | Percentile


def checked_policy(source: str, given: Policy | None) -> Policy:
    """The policy of a source, `BoundedDisorder()` when none is given; `ValueError` for what is none."""
    policy = BoundedDisorder() if given is None else given
    if not isinstance(policy, BoundedDisorder | Exact | FileCreation | Percentile):
        raise ValueError(f"source {source}: watermark={given!r}: give a policy, for example BoundedDisorder(5_000_000)")
    return policy


class Delays:
    """How far rows came behind the newest one before them: counts by size, of the last rows.

    Sizes are known to an eighth, and are rounded up.

    >>> delays = Delays(1_000)
    >>> delays.saw([100, 200, 150, 300])
    >>> delays.at(0.75), delays.at(1.0)
    (0, 51)
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._counts: Counter[int] = Counter()
        """By size."""
        self.rows = 0
        """Rows that are counted, those that have faded by their part."""
        self._since_faded = 0

    def saw(self, timestamps: Iterable[int], newest: int | None = None) -> None:
        """Rows were read, in this order; `newest` is the newest event time before them, us."""
        times = [*timestamps]
        if not times:
            return
        before = accumulate(times, max, initial=times[0] if newest is None else newest)
        late = [most - time for most, time in zip(before, times, strict=False) if most > time]
        self._counts[0] += len(times) - len(late)
        self._counts.update(map(_size, late))
        self._since_faded += len(times)
        if self._since_faded >= self._window:
            self._fade()
        self.rows = self._counts.total()

    def _fade(self) -> None:
        """What was long ago counts for half."""
        self._counts = Counter({size: count // 2 for size, count in self._counts.items() if count > 1})
        self._since_faded = 0

    def at(self, share: float) -> int:
        """Such a share of the rows came no further behind, us."""
        left = ceil(share * self.rows)
        for size in sorted(self._counts):
            left -= self._counts[size]
            if left <= 0:
                return size
        return 0


def _size(delay: int) -> int:
    """The delay, or a little more: its four leading binary digits count.

    >>> [_size(delay) for delay in (1, 15, 16, 17, 1_000)]
    [1, 15, 17, 17, 1023]
    """
    shift = max(0, delay.bit_length() - 4)
    return (delay >> shift << shift) | ((1 << shift) - 1)


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
        self._delays = Delays(policy.window) if isinstance(policy, Percentile) else None

    def saw(self, timestamps: Iterable[int]) -> None:
        """Note the event times of rows that were read."""
        if self._delays is not None:
            timestamps = [*timestamps]
            self._delays.saw(timestamps, self.seen)
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
        self._learn()
        if self.minima is not None:
            self.raise_to(self.minima.after(row))
        return self._value

    def _learn(self) -> None:
        """Promise what the rows that were read have shown."""
        policy, delays = self.policy, self._delays
        if isinstance(policy, Percentile) and delays is not None and self.seen is not None:
            enough = delays.rows >= policy.least_rows
            self.raise_to(self.seen - delays.at(policy.share) if enough else MIN_TIME)


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
