"""The clock of a replay: when the rows of old files are due, so that they come in the rhythm in which they happened.

Lives here: when a paced partition may be read, and up to which event time.  Never here: reading, or the clock.  Invariants:

* a row is due when the clock of the replay has reached the newest event time of all rows up to it in its file;
* that clock begins once the first row of every partition that is read is known.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil

from millwheel import limits
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Ahead


class Pace:
    """One source, `rate` us of event time in each us of wall time.

    >>> pace = Pace(60)
    >>> pace.open(1)
    >>> pace.looked(1, Ahead(5_000, 5_000, False), 0, True)
    >>> pace.gathered()
    >>> pace.begin(1_000)
    True
    >>> pace.reached(1_000), pace.reached(1_010)
    (5000, 5600)
    """

    def __init__(self, rate: float) -> None:
        self._rate = Fraction(rate)
        self._awaited: set[IntervalId] = set()
        """Partitions whose first row is not known yet, while the clock waits for it."""
        self._ahead: dict[IntervalId, Ahead] = {}
        self._late_since: dict[IntervalId, int] = {}
        """Since when a partition's next row, which is late, waits for the watermark, us."""
        self._gathering = True
        """The first search for partitions is not over."""
        self._first = MAX_TIME
        self._began: int | None = None

    def open(self, interval: IntervalId) -> None:
        """A partition is read from now on."""
        if self._began is None:
            self._awaited.add(interval)

    def gathered(self) -> None:
        """Every partition that was there at the start is open."""
        self._gathering = False

    def looked(self, interval: IntervalId, ahead: Ahead | None, now: int, nothing_more: bool) -> None:
        """A read has shown what stands next in a partition; `nothing_more`: there was no row that was due."""
        known = self._ahead.pop(interval, None)
        if ahead is not None:
            self._ahead[interval] = ahead
        if self._began is None and (ahead is not None or nothing_more):
            self._awaited.discard(interval)
            self._first = min(self._first, ahead.due if ahead is not None else MAX_TIME)
        if ahead is None or not ahead.late:
            self._late_since.pop(interval, None)
        elif ahead != known or interval not in self._late_since:
            self._late_since[interval] = now

    def begin(self, now: int) -> bool:
        """Begin the clock if the first rows are known; true when it began just now."""
        begins = self._began is None and not (self._gathering or self._awaited) and self._first < MAX_TIME
        if begins:
            self._began = now
        return begins

    def reached(self, now: int) -> int:
        """The newest event time that is due, us."""
        if self._began is None:
            return MIN_TIME
        return min(MAX_TIME, self._first + int((now - self._began) * self._rate))

    def wait(self, interval: IntervalId, now: int, overtaken: Callable[[], bool]) -> int | None:
        """How long a partition must not be read, us; None means until the clock begins.

        A row that is behind its partition's promise waits until the watermark has passed it too.  `overtaken` says that this
        has happened, or that it will not.
        """
        ahead = self._ahead.get(interval)
        if ahead is None:
            return 0
        if self._began is None:
            return None
        due = self._began + ceil((ahead.due - self._first) / self._rate)
        if due > now:
            return max(limits.PACE_STEP_US, due - now)
        since = self._late_since.get(interval)
        if since is not None and now - since < limits.PACE_LATE_US and not overtaken():
            return limits.PACE_STEP_US
        return 0

    def next_time(self, interval: IntervalId) -> int:
        """Event time of the row that stands next, as far as it is known, us."""
        return self._ahead[interval].time if interval in self._ahead else MAX_TIME

    def waits(self) -> bool:
        """Whether a row is known that was not given."""
        return bool(self._ahead)

    def forget(self, interval: IntervalId) -> None:
        """A partition is read to its end."""
        self._awaited.discard(interval)
        self._ahead.pop(interval, None)
        self._late_since.pop(interval, None)
