"""Daily work on the records of one key: no record twice, not too many, only what has changed.

Lives here: the operators, each a page of code.  Invariant: an operator forgets what it remembers of a key when the watermark,
and its lateness if it has one, say that nothing can need it any more.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, Generic, TypeVar

import msgspec

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import Coder, JsonCoder, schema_of
from millwheel.errors import WiringError
from millwheel.library.forgetting import ForgettingOperator, forgetting
from millwheel.library.windows import Fixed
from millwheel.library.wiring import Operation, Operator, Wiring, meant
from millwheel.limits import DAILY_ID_LIMIT_BYTES
from millwheel.model import Record, Timer

T = TypeVar("T")


class Addressed(msgspec.Struct, Generic[T], frozen=True, array_like=True):
    """A value under one of the keys that it was sent to."""

    key: str
    value: T


class Deduplicate(Operator[T]):
    """Records of an id none of which is less than `within` apart from another one."""

    seen = MapCell[int](JsonCoder(int))
    """The newest of each id that was let through."""
    older = MapCell[int](JsonCoder(int))
    """The others of it, until the watermark is `within` beyond them.  A span of `within` has one of an id at most, so only
    three of them are looked at."""

    def __init__(self, wiring: Wiring[T], id_of: Callable[[T], str], within: int) -> None:
        super().__init__(wiring)
        self._id_of = id_of
        self._within = within

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Let it through unless its id was there so short a time before, or after."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            entry, time = _entry(self._id_of(value)), record.timestamp
            last = self.seen.get(entry)
            if last is not None:
                if self._is_near(entry, time, last):
                    continue
                self._keep(context, entry, min(time, last))
            if last is None or time > last:
                self.seen.set(entry, time)
                context.set_timer(entry, time + self._within)
            self.emit(context, value, None)

    def _is_near(self, entry: str, time: int, last: int) -> bool:
        """Whether one that was let through is less than `within` away."""
        if abs(time - last) < self._within:
            return True
        span = time // self._within
        near = self.older.get_many([f"{span + step}{entry}" for step in (-1, 0, 1)])
        return any(abs(time - other) < self._within for other in near.values())

    def _keep(self, context: Context, entry: str, time: int) -> None:
        """One that is not the newest of its id is compared with records for as long as they may be near it."""
        if time + self._within > context.watermark:
            place = f"{time // self._within}{entry}"
            self.older.set(place, time)
            context.set_timer(place, time + self._within)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """A record of this id that is not late is a new one now."""
        (self.seen if timer.tag[0] in _IDS else self.older).delete(timer.tag)


_IDS: Final = ("=", "#")
"""What an entry begins with: an id as it is, or its digest."""


def _entry(name: str) -> str:
    """An id as an entry of state and the tag of a timer."""
    data = name.encode()
    if data and len(data) <= DAILY_ID_LIMIT_BYTES and b"\0" not in data:
        return _IDS[0] + name
    return _IDS[1] + blake2b(data, digest_size=20).hexdigest()


class Throttle(Operator[T]):
    """The first `records` of each window to arrive."""

    counts = MapCell[int](JsonCoder(int))

    def __init__(self, wiring: Wiring[T], records: int, windows: Fixed, dropped: Stream[T] | None) -> None:
        super().__init__(wiring)
        self._records = records
        self._windows = windows
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Let it through while its window has had fewer; never when the window is over, for its count has gone."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            (window,) = self._windows.of(record.timestamp)
            entry = str(window.start)
            count = self.counts.get(entry, 0)
            if context.watermark < window.end and count < self._records:
                if not count:
                    context.set_timer(entry, window.end)
                self.counts.set(entry, count + 1)
                self.emit(context, value, None)
            elif self._dropped is not None:
                context.produce(self._dropped, value)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The window is over."""
        self.counts.delete(timer.tag)


class DistinctUntilChanged(ForgettingOperator[T]):
    """Records whose `aspect` is another one than that of the record of their key which arrived before them."""

    before: ValueCell[Any]

    def __init__(self, wiring: Wiring[T], aspect: Callable[[T], Any], forget_after: int | None) -> None:
        super().__init__(wiring, forget_after)
        self._aspect = aspect

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Compare, and remember."""
        self.renew(record.timestamp)
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            now, before = self._aspect(value), self.before.get()
            if before is None or now != before[0]:
                self.before.set((now,))
                self.emit(context, value, None)


class _One:
    """A value of another coder in a tuple, so that None is a value as well."""

    def __init__(self, inner: Coder[Any]) -> None:
        self._inner = inner
        self.fingerprint = f"one/1:{inner.fingerprint}"
        self.schema = schema_of(inner)

    def encode(self, value: tuple[Any], /) -> bytes:
        """Its own bytes."""
        return self._inner.encode(value[0])

    def decode(self, data: bytes, /) -> tuple[Any]:
        """In its tuple."""
        return (self._inner.decode(data),)


def deduplicate(id_of: Callable[[T], str], within: int, output: Coder[T] | None) -> Operation[T]:
    """The operation of `KeyedChain.deduplicate`."""
    if within < 1:
        raise WiringError(f"deduplicate(within={within}): give the time within which an id comes again, us")
    return Operation(kind="deduplicate", make=lambda wiring: Deduplicate(wiring, id_of, within), output=output)


def throttle(records: int, windows: Fixed, dropped: Stream[T] | None, output: Coder[T] | None) -> Operation[T]:
    """The operation of `KeyedChain.throttle`."""
    if records < 1:
        raise WiringError(f"throttle({records}): let at least one record through, or filter")
    made: Any = type("Throttle", (Throttle,), {"counts": MapCell(meant(JsonCoder(int), f"throttle {windows.meaning}"))})
    return Operation(
        kind="throttle",
        make=lambda wiring: made(wiring, records, windows, dropped),
        output=output,
        side_outputs=() if dropped is None else (dropped,),
    )


def distinct_until_changed(
    aspect: Callable[[T], Any], coder: Coder[Any], forget_after: int | None, output: Coder[T] | None
) -> Operation[T]:
    """The operation of `KeyedChain.distinct_until_changed`."""
    cell: ValueCell[Any] = ValueCell(meant(_One(coder), "the last of a key"), default=None)
    made: Any = type("DistinctUntilChanged", (DistinctUntilChanged,), {"before": cell})
    return Operation(
        kind="distinct",
        make=lambda wiring: made(wiring, aspect, forget_after),
        output=output,
        settings=forgetting(forget_after),
    )
