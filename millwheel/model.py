"""The values a user meets: records, timers, timestamps.

Lives here: frozen, slotted values and the time constants.  Never here: behaviour, I/O, clocks.
All timestamps are int microseconds since the Unix epoch (UTC), event time unless a name says otherwise.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from operator import index
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from millwheel.errors import TimestampError
from millwheel.ids import ProducerId, SequenceNumber

V = TypeVar("V")

MIN_TIME: Final = -(2**62)
"""The watermark of something that has promised nothing yet."""

MAX_TIME: Final = 2**62
"""The end of time: the watermark of an input that is finished.  No record may carry it."""

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

Time: TypeAlias = int | datetime | str
"""An event time as sources may give it: int microseconds since 1970, a datetime with a zone, or ISO 8601 text with one."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

LARGEST_SECONDS: Final = 10**11
"""A float up to here may be seconds since 1970, until the year 5138; beyond it is something else."""

TimerKind = Literal["watermark", "wall"]

EXPIRY_KIND: Final = "expire"
EXPIRY_TAG: Final = "\0expire"
"""A key's expiry is stored as a timer of this kind, under a tag that no user can give."""

TIMER_KINDS: Final = ("watermark", "wall", EXPIRY_KIND)
"""Every kind that is stored."""


class RecordId(NamedTuple):
    """Identity of a delivery: the producer's sequencer and a number dense per subscription (§6.1.1)."""

    producer: ProducerId
    sequence: SequenceNumber


class Record(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """One (key, value, timestamp) triple delivered to `ProcessRecord` (§4.2).

    `timestamp` is int microseconds; `late` is true when it is behind the computation's input low watermark.
    """

    key: str
    value: V
    timestamp: int
    late: bool
    producer: ProducerId
    sequence: SequenceNumber

    @property
    def id(self) -> RecordId:
        """The id by which this delivery is deduplicated."""
        return RecordId(self.producer, self.sequence)


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A timer that fires: `ProcessTimer` gets it under `key` (§4.6).

    `timestamp` is the time it was set for: event time for kind "watermark", wall time for kind "wall".
    """

    key: str
    tag: str
    timestamp: int
    kind: TimerKind = "watermark"


def whole_time(timestamp: Any, what: str) -> int:
    """`timestamp` as an int: the integers of other libraries are fine, all else raises `TimestampError`.

    What is not an int would be found when it is read from the store again: too late.

    >>> whole_time(1.5, "hold")
    Traceback (most recent call last):
    millwheel.errors.TimestampError: hold at 1.5 (float): a time is an int of microseconds; of seconds that is \
int(seconds * 1_000_000)
    """
    try:
        if type(timestamp) is bool:
            raise TypeError
        return index(timestamp)
    except TypeError:
        message = (
            f"{what} at {timestamp!r:.40} ({type(timestamp).__name__}): a time is an int of microseconds; of seconds that is "
            "int(seconds * 1_000_000)"
        )
        raise TimestampError(message) from None


def to_us(value: Any) -> int:
    """Int microseconds of a time: an int (already that), a datetime with a zone, or ISO 8601 text with one.

    A date, and a text that is one, is its midnight in UTC, as Spark has dates.  Raises `TimestampError` for anything else,
    also where only a zone is missing.

    >>> to_us("1970-01-01T00:00:01.5Z"), to_us("1970-01-01T02:00+02:00"), to_us(7)
    (1500000, 0, 7)
    >>> to_us(1785542400.5)
    Traceback (most recent call last):
    millwheel.errors.TimestampError: 1785542400.5 is a float; an event time is an int of microseconds since 1970: for \
seconds (2026-08-01T00:00:00.500000+00:00) give int(seconds * 1_000_000)
    """
    if type(value) is int:
        return value
    if isinstance(value, str):
        value = _parsed(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TimestampError(
                f"{value!r} has no zone; give it the one that it was written in: value.replace(tzinfo=datetime.UTC)"
            )
        since: timedelta = value - EPOCH
        return since // timedelta(microseconds=1)
    return _whole(value)


def _whole(value: Any) -> int:
    """Integers of other libraries; all else is refused, with what to write instead."""
    if isinstance(value, float):
        raise TimestampError(
            f"{value!r} is a float; an event time is an int of microseconds since 1970{_advice(value)}"
        )
    try:
        if type(value) is bool:
            raise TypeError
        return index(value)
    except TypeError:
        raise TimestampError(
            f"{value!r:.80} ({type(value).__name__}) is no event time: give an int of microseconds since 1970, a datetime "
            "with a zone, or ISO 8601 text with one"
        ) from None


def _advice(seconds: float) -> str:
    if not abs(seconds) < LARGEST_SECONDS:  # not a number, for one
        return ""
    return f": for seconds ({format_time(int(seconds * SECOND))}) give int(seconds * 1_000_000)"


def _parsed(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise TimestampError(f"{text!r:.80} is not ISO 8601, as 2026-08-01T12:00:00Z is") from None
    if found.tzinfo is None and re.fullmatch(r"\d{4}-?\d\d-?\d\d", text):
        return found.replace(tzinfo=UTC)
    if found.tzinfo is None:
        raise TimestampError(f"{text!r} has no zone; write {text}Z if it is UTC, or give a datetime with its zone")
    return found


def format_time(timestamp: int) -> str:
    """ISO 8601 in UTC, or a word at either end of time, for messages and reports."""
    if timestamp <= MIN_TIME:
        return "the beginning of time"
    if timestamp >= MAX_TIME:
        return "the end of time"
    seconds, micros = divmod(timestamp, SECOND)
    try:
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{timestamp} us"
