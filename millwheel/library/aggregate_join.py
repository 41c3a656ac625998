"""Join and aggregation in one: for each value, the aggregate of its partners in another stream.

Lives here: that operator.  Invariants: a row comes when no partner of its value can come any more; a partner is kept no
longer than until no value can come that it is a partner of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import Coder, JsonCoder, MsgpackCoder
from millwheel.errors import WiringError
from millwheel.library.aggregations import Aggregation
from millwheel.library.durations import Duration, length
from millwheel.library.interval_join import Interval
from millwheel.library.matches import FieldsCoder, Kept, Match
from millwheel.library.waiting import BufferingOperator, buffers
from millwheel.library.wiring import Operation, Wiring, meant
from millwheel.limits import JOIN_BUCKET_US
from millwheel.model import Record, Timer

Within = Interval | Callable[[Any], Duration]


class AggregateJoin(BufferingOperator[Match[Any, Any]]):
    """Values of input 0 lie in side 0, each in a bucket of its own, and partners in side 1, by time.

    Timers: `v`, a value has all its partners; `g`, a bucket of partners can go.
    """

    accumulators: MapCell[Any]
    """Under the number of a value."""
    numbers = ValueCell[int](JsonCoder(int), default=0)
    """How many values there have been since there was none."""

    def __init__(
        self, wiring: Wiring[Match[Any, Any]], lateness: int, within: Within, aggregation: Aggregation[Any, Any, Any],
        alone: bool, single: bool, dropped: tuple[Stream[Any] | None, Stream[Any] | None],
    ) -> None:  # fmt: skip
        super().__init__(wiring, lateness, 2)
        self._within = within
        self._before = within.before if isinstance(within, Interval) else 0
        self._aggregation = aggregation
        self._alone = alone
        self._single = single
        self._dropped = dropped
        self._width = max(self._before + lateness, JOIN_BUCKET_US)

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """A value meets the partners that are there; a partner is added to the values that are there."""
        for side, value in self.inputs.take(context.stream, record.key, record.value):
            if context.watermark >= self.sure(record.timestamp):
                if (dropped := self._dropped[side]) is not None:
                    context.produce(dropped, value)
            elif side:
                self._partner(context, record.timestamp, value)
            else:
                self._value(context, record.timestamp, value)

    def _span(self, kept: Kept) -> tuple[int, int]:
        """The first and the last time of partners of a value."""
        if isinstance(self._within, Interval):
            return self._within.partners(0, kept.time)
        return kept.time, kept.time + length(self._within(kept.value), "how much newer a partner may be")

    def _value(self, context: Context, time: int, value: Any) -> None:
        number = self.numbers.get()
        self.numbers.set(number + 1)
        kept = Kept(time, False, value)
        first, last = self._span(kept)
        self.side0.set(str(number), kept)  # type: ignore[attr-defined]
        context.set_timer(f"v{number}", last)
        for bucket in [int(entry.partition(".")[2]) for entry, _ in self.counts.items()]:
            for partner in self.kept(1, bucket).values():
                if first <= partner.time <= last:
                    self._add(number, partner.time, partner.value)

    def _partner(self, context: Context, time: int, value: Any) -> None:
        found = False
        for entry, kept in self.side0.items():  # type: ignore[attr-defined]
            found = True
            first, last = self._span(kept)
            if first <= time <= last:
                self._add(int(entry), time, value)
        if found and self._single:
            return
        bucket = time // self._width
        count = self.count(1, bucket)
        if not count:
            context.set_timer(f"g{bucket}", self.sure((bucket + 1) * self._width - 1 + self._before))
        self.keep(1, bucket, Kept(time, False, value), count)

    def _add(self, number: int, time: int, value: Any) -> None:
        entry = str(number)
        before = self.accumulators.get(entry)
        accumulator = self._aggregation.zero() if before is None else before
        self.accumulators.set(entry, self._aggregation.add_at(accumulator, value, time))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """A value has all its partners, or partners can go."""
        rest = timer.tag[1:]
        if timer.tag[0] == "g":
            self.forget(1, int(rest))
            return
        kept = self.side0.get(rest)  # type: ignore[attr-defined]
        first, last = self._span(kept)
        if not self.due(context, timer, last):
            return
        accumulator = self.accumulators.get(rest)
        if accumulator is not None or self._alone:
            result = self._aggregation.result(self._aggregation.zero() if accumulator is None else accumulator)
            self.emit(context, Match(context.key, kept.value, result, first, last + 1), last)
        self.accumulators.delete(rest)
        self.side0.delete(rest)  # type: ignore[attr-defined]
        if not any(True for _ in self.side0.items()):  # type: ignore[attr-defined]
            self.numbers.clear()


def join_aggregate(
    within: Within, aggregation: Aggregation[Any, Any, Any], how: Literal["inner", "left"], single: bool, lateness: int,
    coders: list[Coder[Any]], dropped: tuple[Stream[Any] | None, Stream[Any] | None],
) -> Operation[Match[Any, Any]]:  # fmt: skip
    """The operation of `KeyedChain.join_aggregate`."""
    if how not in ("inner", "left"):
        raise WiringError(f"how={how!r}: each row has a value of the left chain, so use 'inner' or 'left'")
    meaning = f"{aggregation.name} in {within.meaning if isinstance(within, Interval) else 'a span of each'}"
    declared = {**buffers(coders, meaning), "accumulators": MapCell(meant(aggregation.accumulator, meaning))}
    made: Any = type("AggregateJoin", (AggregateJoin,), declared)

    def make(wiring: Wiring[Match[Any, Any]]) -> AggregateJoin:
        operator: AggregateJoin = made(wiring, lateness, within, aggregation, how == "left", single, dropped)
        return operator

    return Operation(
        kind="join",
        make=make,
        output=FieldsCoder(Match, {"left": coders[0], "right": MsgpackCoder(aggregation.results)}),
        side_outputs=tuple(dict.fromkeys(stream for stream in dropped if stream is not None)),
        waits=True,
    )
