"""The values a user meets: records, timers, timestamps.

Lives here: frozen, slotted values and the time constants.  Never here: behaviour, I/O, clocks.
All timestamps are int microseconds since the Unix epoch (UTC), event time unless a name says otherwise.
"""

from __future__ import annotations

from datetime import UTC, datetime
from operator import index
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

import msgspec

from millwheel.errors import TimestampError

V = TypeVar("V")

MIN_TIME: Final = -(2**62)
"""The watermark of something that has promised nothing yet."""

MAX_TIME: Final = 2**62
"""The end of time: the watermark of an input that is finished.  No record may carry it."""

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

TimerKind = Literal["watermark", "wall"]

EXPIRY_KIND: Final = "expire"
EXPIRY_TAG: Final = "\0expire"
"""A key's expiry is stored as a timer of this kind, under a tag that no user can give."""

TIMER_KINDS: Final = ("watermark", "wall", EXPIRY_KIND)
"""Every kind that is stored."""


class RecordId(NamedTuple):
    """Identity of a delivery: the producer's sequencer and a number dense per subscription (§6.1.1)."""

    producer: int
    sequence: int


class Record(msgspec.Struct, Generic[V], frozen=True, gc=False):
    """One (key, value, timestamp) triple delivered to `ProcessRecord` (§4.2).

    `timestamp` is int microseconds; `late` is true when it is behind the computation's input low watermark.
    """

    key: str
    value: V
    timestamp: int
    late: bool
    producer: int
    sequence: int

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
    millwheel.errors.TimestampError: hold at 1.5 (float): a time is a whole number of us; write int(...)
    """
    try:
        if type(timestamp) is bool:
            raise TypeError
        return index(timestamp)
    except TypeError:
        message = (
            f"{what} at {timestamp!r:.40} ({type(timestamp).__name__}): a time is a whole number of us; write int(...)"
        )
        raise TimestampError(message) from None


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
