"""Windows of the calendar: days, weeks, months and years as the clocks of one place show them.

Lives here: the boundaries of such windows.  Invariant: windows of one calendar follow each other without a gap and
without overlap, whatever the zone does to its clocks: a day may have 23 or 25 hours, and one that was skipped has none.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from millwheel.errors import TimestampError, WiringError
from millwheel.library.windows import Aligned
from millwheel.model import SECOND

Unit = Literal["day", "week", "month", "year"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _next_month(first: date) -> date:
    return first.replace(day=1, month=first.month % 12 + 1, year=first.year + first.month // 12)


_FIRST: Final[dict[Unit, Callable[[date], date]]] = {
    "day": lambda day: day,
    "week": lambda day: day - timedelta(days=day.weekday()),
    "month": lambda day: day.replace(day=1),
    "year": lambda day: day.replace(day=1, month=1),
}
_NEXT: Final[dict[Unit, Callable[[date], date]]] = {
    "day": lambda day: day + timedelta(days=1),
    "week": lambda day: day + timedelta(days=7),
    "month": _next_month,
    "year": lambda day: day.replace(year=day.year + 1),
}


class Calendar(Aligned):
    """One window per day, week (from Monday), month or year in a time zone, daylight saving included.

    >>> from millwheel import HOUR
    >>> spring = Calendar("day", "Europe/Berlin").of(1_774_742_400_000_000)[0]  # 29 March 2026
    >>> (spring.end - spring.start) // HOUR
    23
    """

    def __init__(self, unit: Unit, zone: str = "UTC") -> None:
        if unit not in _FIRST:
            raise WiringError(f"calendar unit {unit!r}: use one of {[*_FIRST]}")
        if not isinstance(zone, str):
            raise WiringError(f"time zone {zone!r:.80}: give its name, such as 'Europe/Berlin'")
        try:
            self._zone = ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise WiringError(f"time zone {zone!r}: {error}; without a system's zones, install tzdata") from None
        self._unit: Unit = unit
        self.meaning = f"calendar {unit} {zone}"
        self._known = self._around(0)

    def starts(self, timestamp: int) -> tuple[int]:
        """One; raises `TimestampError` for a time that no calendar has."""
        start, end = self._known
        if not start <= timestamp < end:
            start, end = self._known = self._around(timestamp)
        return (start,)

    def end(self, start: int) -> int:
        """The start of the next one."""
        if self._known[0] == start:
            return self._known[1]
        return self._around(start)[1]

    def _around(self, timestamp: int) -> tuple[int, int]:
        try:
            local = (_EPOCH + timedelta(microseconds=timestamp)).astimezone(self._zone).date()
            first = _FIRST[self._unit](local)
            # Where clocks went back over midnight, the date of an instant may be the one before its window's.
            while self._instant(after := _NEXT[self._unit](first)) <= timestamp:
                first = after
            return self._instant(first), self._instant(after)
        except (OverflowError, ValueError) as error:
            raise TimestampError(f"{timestamp} us is beyond the calendar: {error}") from None

    def _instant(self, day: date) -> int:
        """When `day` begins: its first midnight, or the end of the gap that swallowed it."""
        midnight = datetime(day.year, day.month, day.day, tzinfo=self._zone)
        since = midnight.astimezone(UTC) - _EPOCH
        return (since.days * 86_400 + since.seconds) * SECOND
