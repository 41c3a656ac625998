"""Event times of values: int microseconds, from user code or from a named column.

Lives here: stamping and conversion.  Never here: watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, TypeAlias

from typing_extensions import TypeVar

from millwheel.model import MAX_TIME, MIN_TIME, whole_time

T = TypeVar("T", default=Any)

EventTime: TypeAlias = Callable[[T], int]
"""Event time of a value, int microseconds; whatever it raises makes the row malformed."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def to_us(value: Any) -> int:
    """Int microseconds of an int (already that), a datetime, a date (its midnight) or ISO 8601 text; naive
    means UTC.

    >>> to_us("1970-01-01T00:00:01.5Z")
    1500000
    """
    if type(value) is int:
        return value
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        raise TypeError(f"{value!r} is not a time: int microseconds, datetime, date or ISO 8601 text")
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    since: timedelta = value - EPOCH
    return since // MICROSECOND


def column_time(name: str) -> EventTime:
    """The event time that stands in column `name` of a dict or struct."""

    def event_time(value: Any) -> int:
        return to_us(value[name] if isinstance(value, dict) else getattr(value, name))

    return event_time


def stamp(values: Sequence[Any], event_time: EventTime) -> tuple[list[int], dict[int, str]]:
    """Event times of `values`; and by index, why a value has none (its time is then 0)."""
    try:
        times = list(map(event_time, values))
        if set(map(type, times)) <= {int} and in_range(times):
            return times, {}
    except Exception:  # user code, run again below one by one
        pass
    times = []
    bad: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            times.append(checked_time(event_time(value)))
        except Exception as error:
            times.append(0)
            bad[index] = f"event time: {type(error).__name__}: {error}"
    return times, bad


def in_range(times: Sequence[int]) -> bool:
    """True when every time is one that a record may carry."""
    return not times or (min(times) > MIN_TIME and max(times) < MAX_TIME)


def checked_time(time: Any) -> int:
    """`time`, when it is int microseconds in range."""
    whole = whole_time(time, "event")
    if not in_range([whole]):
        raise ValueError(f"{whole} us is out of range")
    return whole
