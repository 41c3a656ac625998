"""The pipelines that are measured, and their sources.

Lives here: the two-stage keyed count of the throughput, restart and latency benchmarks.  Rules: one production per
input record at stage one, no combining, one hook call per record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from millwheel import (
    BytesCoder,
    Checkpoints,
    Computation,
    Context,
    MsgpackCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    ValueCell,
    subscribe,
)
from millwheel.api.snapshots import Forgotten
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.runtime.exact_timers import ExactTimer, exact_timer
from millwheel.source import Batch, Source, SourcePartition

KEY_BYTES: Final = 9
VALUE_BYTES: Final = 64
ID_AT: Final = 25

ENTERED: Final = Stream("entered", BytesCoder())
COUNTED: Final = Stream("counted", BytesCoder())
SEEN: Final = Table("seen", {"number": "bigint", "count": "bigint"}, ("number",))

Row = tuple[bytes, int]
"""(value, event time in us)."""


def value_of(key: int, number: int = 0) -> bytes:
    """64 bytes: the key, then a number."""
    return b"%09d%016d" % (key, number) + b"." * (VALUE_BYTES - KEY_BYTES - 16)


def with_id(value: bytes, number: int) -> bytes:
    """The value with an id in it, 32 hexadecimal digits, where it had dots."""
    return value[:ID_AT] + b"%032x" % number + value[ID_AT + 32 :]


def id_of(value: bytes) -> bytes:
    """The id in a value."""
    return value[ID_AT : ID_AT + 32]


def key_of(value: bytes) -> str:
    """The key extractor of both stages."""
    return value[:KEY_BYTES].decode()


def number_of(value: bytes) -> int:
    """The number in a value."""
    return int(value[KEY_BYTES : KEY_BYTES + 16])


def spread(number: int, keys: int) -> int:
    """A key for record `number`: every key in turn, in an order without locality."""
    return number * 7_919 % keys


class First(Computation[bytes]):
    """Counts and passes on."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.count.set(self.count.get() + 1)
        context.produce(COUNTED, record.value)


class Second(Computation[bytes]):
    """Counts."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        self.count.set(self.count.get() + 1)


class Shown(Computation[bytes]):
    """Counts, and writes one sink row per record: what an outside consumer sees."""

    count = ValueCell(MsgpackCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        count = self.count.get() + 1
        self.count.set(count)
        context.upsert(SEEN, {"number": number_of(record.value), "count": count})


def two_stages(
    name: str,
    source: Source,
    *,
    shown: bool = False,
    durability: Checkpoints | Snapshots | Forgotten | None = None,
    **settings: Any,
) -> Pipeline:
    """The keyed count in two stages; `shown` adds the sink rows."""
    pipeline = Pipeline(name, durability=durability)
    pipeline.inject(source, into=ENTERED)
    if shown:
        pipeline.sink(SEEN)
    pipeline.add(First, [subscribe(ENTERED, key=key_of)], [COUNTED], name="first", **settings)
    pipeline.add(Shown if shown else Second, [subscribe(COUNTED, key=key_of)], name="second", **settings)
    return pipeline


class Rows(Source):
    """A source with one partition whose row `number` is `row(number)`, for `count` rows; resumes anywhere at no cost.

    The event times never fall.  With `due`, row `number` can be read from `due(number)` on, on the monotonic clock,
    s: a live source.  With `ended`, the source is open until it answers true.  With `announces`, it says when a row has
    become due, as one does to which rows are brought.
    """

    def __init__(
        self,
        name: str,
        row: Callable[[int], Row],
        count: int,
        due: Callable[[int], float] | None = None,
        ended: Callable[[], bool] | None = None,
        announces: bool = False,
    ) -> None:
        self.name = name
        self.announces = announces
        self.row = row
        self.count = count
        self.due = due
        self.ended = ended
        self._discovered = False

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        self._discovered = True
        return [] if "rows" in set(known) else [_Partition(self)]

    def complete(self) -> bool:
        return self._discovered

    def pending_watermark(self) -> int:
        return MAX_TIME if self._discovered else MIN_TIME


class _Partition:
    name = "rows"

    def __init__(self, source: Rows) -> None:
        self._source = source
        self._next = 0
        self._newest = MIN_TIME
        self._timer: ExactTimer | None = None
        """Stands for whoever would bring the rows."""

    def announce_to(self, wake: Callable[[], None]) -> None:
        self._timer = exact_timer(asyncio.get_running_loop(), wake)
        self._arm()

    def _arm(self) -> None:
        source = self._source
        if self._timer is not None and source.due is not None and self._next < source.count:
            self._timer.set(max(1e-6, source.due(self._next) - time.monotonic()))

    def fingerprint(self) -> bytes:
        return b""

    def resume(self, position: int, state: bytes) -> None:
        self._next = position
        self._newest = self._source.row(position - 1)[1] if position else MIN_TIME

    def read(self, limit: int) -> Batch | None:
        source, first = self._source, self._next
        end = min(first + limit, source.count)
        if source.due is not None:
            now = time.monotonic()
            end = _due_before(source.due, first, end, now)
        if end <= first:
            self._arm()
            return None
        rows = [source.row(number) for number in range(first, end)]
        self._next, self._newest = end, rows[-1][1]
        self._arm()
        return Batch(list(range(first, end)), [row[0] for row in rows], [row[1] for row in rows], end, b"")

    def finished(self) -> bool:
        return self._next >= self._source.count and (self._source.ended is None or self._source.ended())

    def watermark(self) -> int:
        return MAX_TIME if self.finished() else self._newest

    def close(self) -> None:
        if self._timer is not None:
            self._timer.close()


def _due_before(due: Callable[[int], float], first: int, end: int, now: float) -> int:
    """The first row from `first` on that is not due yet: a search, for the schedule ascends; mostly it is near."""
    step = 1
    while first + step < end:
        if due(first + step) > now:
            end = first + step
            break
        first, step = first + step, 2 * step
    while first < end:
        middle = (first + end) // 2
        if due(middle) <= now:
            first = middle + 1
        else:
            end = middle
    return end


class Ready(Rows):
    """Rows that are in memory already, as (value, event time); `record_id` may give ids that clients chose."""

    record_id: Callable[[bytes], bytes] | None = None

    def __init__(self, name: str, rows: list[Row]) -> None:
        super().__init__(name, rows.__getitem__, len(rows))


def batches(items: list[Any], size: int) -> Iterator[list[Any]]:
    """Consecutive slices."""
    for first in range(0, len(items), size):
        yield items[first : first + size]
