"""Aggregation up to each record: a result for every one, in order of event time.

Lives here: that operator, what SQL writes as `OVER (PARTITION BY key ORDER BY time)`.  Invariant: the results do not depend
on the order of arrival within the lateness; a record has its result when no older one can come any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import Coder, MsgpackCoder
from millwheel.errors import WiringError
from millwheel.library.aggregations import Aggregation
from millwheel.library.matches import FieldsCoder, Kept, KeptCoder
from millwheel.library.waiting import BufferingOperator, buffers
from millwheel.library.windows import GLOBAL
from millwheel.library.wiring import Operation, Wiring, meant
from millwheel.model import Record, Timer

T = TypeVar("T")
R = TypeVar("R")


class Running(msgspec.Struct, Generic[T, R], frozen=True, array_like=True):
    """One value of a key, and the aggregate of it and of those before it."""

    key: str
    value: T
    result: R


class RunningAggregate(BufferingOperator[Running[Any, Any]]):
    """Records wait in buckets of one microsecond.

    Timers: `r`, records of a time have their turn; `z`, the end of the input.
    """

    side0: MapCell[Kept]
    accumulator: ValueCell[Any]
    """Of all records that had their turn."""
    recent: ValueCell[list[bytes]]
    """The last ones, if only these count."""

    def __init__(
        self, wiring: Wiring[Running[Any, Any]], lateness: int, aggregation: Aggregation[Any, Any, Any], last: int | None,
        order: Callable[[Any], Any], coder: Coder[Kept], dropped: Stream[Any] | None,
    ) -> None:  # fmt: skip
        super().__init__(wiring, lateness, 1)
        self._aggregation = aggregation
        self._last = last
        self._order = order
        self._coder = coder
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Let it wait for its turn."""
        time = record.timestamp
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            if context.watermark >= self.sure(time):
                if self._dropped is not None:
                    context.produce(self._dropped, value)
                continue
            count = self.count(0, time)
            self.keep(0, time, Kept(time, False, value), count)
            if not count:
                context.set_timer(f"r{time}", time)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """All that is older has come, or nothing comes any more."""
        if timer.tag == "z":
            self.accumulator.clear()
            self.recent.clear()
            return
        time = int(timer.tag[1:])
        if not self.due(context, timer, time):
            return
        # Older records whose timer had to be set again have their turn first, though that timer is still to come.
        for older in self.waits_before(time):
            self._turn(context, older)
            context.cancel_timer(f"r{older}")
            self.no_longer(context, f"r{older}")
        self._turn(context, time)
        context.set_timer("z", GLOBAL.end)

    def _turn(self, context: Context, time: int) -> None:
        """Results for the records of `time`."""
        for kept in sorted(self.kept(0, time).values(), key=lambda kept: self._order(kept.value)):
            result = self._aggregation.result(self._with(kept))
            self.emit(context, Running(context.key, kept.value, result), time)
        self.forget(0, time)

    def _with(self, kept: Kept) -> Any:
        """The accumulator with one more record."""
        if self._last is None:
            before = self.accumulator.get()
            accumulator = self._aggregation.add_at(
                self._aggregation.zero() if before is None else before, kept.value, kept.time
            )
            self.accumulator.set(accumulator)
            return accumulator
        recent = [*self.recent.get(), self._coder.encode(kept)][-self._last :]
        self.recent.set(recent)
        accumulator = self._aggregation.zero()
        for each in map(self._coder.decode, recent):
            accumulator = self._aggregation.add_at(accumulator, each.value, each.time)
        return accumulator


def running(
    aggregation: Aggregation[Any, Any, Any], last: int | None, order: Callable[[Any], Any] | None, lateness: int,
    coder: Coder[Any], dropped: Stream[Any] | None,
) -> Operation[Running[Any, Any]]:  # fmt: skip
    """The operation of `KeyedChain.running`."""
    if last is not None and last < 1:
        raise WiringError(f"running(last={last}): a result is of at least one record")
    meaning = f"running {aggregation.name}" + ("" if last is None else f" of {last}")
    kept = KeptCoder(coder)
    declared: dict[str, Any] = {
        **buffers([coder], meaning),
        "accumulator": ValueCell(meant(aggregation.accumulator, meaning), default=None),
        "recent": ValueCell(meant(MsgpackCoder(list[bytes]), f"{meaning}, {kept.fingerprint}"), default=[]),
    }
    made: Any = type("RunningAggregate", (RunningAggregate,), declared)

    def make(wiring: Wiring[Running[Any, Any]]) -> RunningAggregate:
        operator: RunningAggregate = made(wiring, lateness, aggregation, last, order or coder.encode, kept, dropped)
        return operator

    return Operation(
        kind="running",
        make=make,
        output=FieldsCoder(Running, {"value": coder, "result": MsgpackCoder(aggregation.results)}),
        side_outputs=() if dropped is None else (dropped,),
        waits=True,
    )
