"""Event times of values: as user code or a named field gives them, made int microseconds.

Lives here: stamping and conversion.  Never here: watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from typing_extensions import TypeVar

from millwheel.model import MAX_TIME, MIN_TIME, Time, to_us
from millwheel_injectors.row_columns import is_struct

T = TypeVar("T", default=Any)

EventTime: TypeAlias = Callable[[T], Time]
"""Event time of a value; whatever it raises makes the row malformed."""


def typed_us(value: Any) -> int:
    """As `to_us`, of a column of a file that says its type: a timestamp without a zone is meant in UTC there."""
    if isinstance(value, datetime) and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return to_us(value)


def field_time(name: str) -> EventTime:
    """The event time that stands in field `name` of a dict or struct."""

    def event_time(value: Any) -> int:
        return to_us(value[name] if isinstance(value, dict) else getattr(value, name))

    return event_time


def named_time(source: str, event_time: str | EventTime[Any] | None, type_: Any) -> EventTime[Any] | None:
    """`event_time`, of a field if it is a text; `ValueError` when values of `type_` have no such field."""
    if not isinstance(event_time, str):
        if event_time is not None:
            check_event_time(source, event_time)
        return event_time
    known = _fields(type_)
    if type_ in (str, list) or (known is not None and event_time not in known):
        there = f"; there are {', '.join(known)}" if known else ""
        raise ValueError(f"source {source}: values have no field {event_time!r} for event_time{there}")
    return field_time(event_time)


def check_event_time(source: str, event_time: object) -> None:
    """`ValueError` for what is neither the name of a field nor a function."""
    if not isinstance(event_time, str) and not callable(event_time):
        raise ValueError(
            f"source {source}: event_time={event_time!r:.80}: give the name of a field or a function of a value"
        )


def _fields(type_: Any) -> list[str] | None:
    """The attributes of a struct or dataclass; None for types whose values may have any."""
    if is_struct(type_):
        return [*type_.__struct_fields__]
    return [field.name for field in fields(type_)] if is_dataclass(type_) else None


def stamp(values: Sequence[Any], event_time: EventTime) -> tuple[list[int], dict[int, str]]:
    """Event times of `values`; and by index, why a value has none (its time is then 0)."""
    try:
        found: list[Any] = list(map(event_time, values))
        times: list[int] = found if {*map(type, found)} <= {int} else list(map(to_us, found))
        if in_range(times):
            return times, {}
    except Exception:  # user code, run again below one by one
        pass
    times = []
    bad: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            times.append(checked_time(event_time(value)))
        except Exception as error:
            times.append(0)
            bad[place] = f"event time: {type(error).__name__}: {error}"
    return times, bad


def in_range(times: Sequence[int]) -> bool:
    """True when every time is one that a record may carry."""
    return not times or (min(times) > MIN_TIME and max(times) < MAX_TIME)


def checked_time(time: Any) -> int:
    """`time` as int microseconds, when it is in range."""
    whole = to_us(time)
    if not in_range([whole]):
        raise ValueError(f"{whole} us is out of range")
    return whole
