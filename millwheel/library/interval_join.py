"""Join of two streams: a right value meets the left ones of its key whose time is near its own.

Lives here: `Interval` and that operator.  Invariant: a value is kept until no partner of it can come, and at most the
width of a bucket longer.  A bucket is as wide as the interval, so that at most three of them are searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millwheel.api.context import Context
from millwheel.api.stream import Stream
from millwheel.coders import Coder
from millwheel.library.durations import Duration, duration
from millwheel.library.matches import How, Kept, Match, match_coder, required
from millwheel.library.waiting import BufferingOperator, buffers
from millwheel.library.wiring import Operation, Wiring
from millwheel.model import Record, Timer


class Interval:
    """A right value is a partner of a left one if it is at most `before` older and at most `after` newer than that.

    ```text
                 left
    |-- before --|-- after --|
         right                    (both ends belong to it)
    ```
    """

    def __init__(self, *, before: Duration = 0, after: Duration = 0) -> None:
        self.before = duration(before, "how much older a partner may be")
        self.after = duration(after, "how much newer a partner may be")
        self.meaning = f"interval -{self.before}+{self.after}"
        self.width = self.before + self.after + 1
        """Of a bucket, us."""

    def reach(self, side: int) -> int:
        """How much newer a partner of a value of this side may be."""
        return self.before if side else self.after

    def partners(self, side: int, time: int) -> tuple[int, int]:
        """The first and the last time of partners of a value of this side."""
        return time - self.reach(1 - side), time + self.reach(side)


class IntervalJoin(BufferingOperator[Match[Any, Any]]):
    """Timers: `u`, a value that has no partner yet can find none any more; `g`, a bucket can go."""

    def __init__(
        self, wiring: Wiring[Match[Any, Any]], lateness: int, interval: Interval, needed: frozenset[int],
        dropped: Sequence[Stream[Any] | None],
    ) -> None:  # fmt: skip
        super().__init__(wiring, lateness, 2)
        self._interval = interval
        self._alone = [1 - side not in needed for side in self.sides]
        """Whether a value of this side makes a row without a partner."""
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Meet what is there, and wait for what is to come."""
        for side, value in self.inputs.take(context.stream, record.key, record.value):
            if context.watermark < self.sure(record.timestamp):
                self._add(context, side, record.timestamp, value)
            elif (dropped := self._dropped[side]) is not None:
                context.produce(dropped, value)

    def _add(self, context: Context, side: int, time: int, value: Any) -> None:
        partners = self._partners(side, time)
        for bucket, entry, kept in partners:
            pair = (kept.value, value) if side else (value, kept.value)
            self.emit(context, Match(context.key, *pair), max(time, kept.time))
            if self._alone[1 - side] and not kept.matched:
                self._met(context, 1 - side, bucket, entry, kept)
        bucket = time // self._interval.width
        count = self.count(side, bucket)
        if not count:
            context.set_timer(f"g{side}{bucket}", self._gone(side, bucket))
        entry = self.keep(side, bucket, Kept(time, bool(partners), value), count)
        if self._alone[side] and not partners:
            context.set_timer(f"u{side}{entry}", time + self._interval.reach(side))

    def _partners(self, side: int, time: int) -> list[tuple[int, str, Kept]]:
        """Bucket, entry and value of each partner that is there."""
        first, last = self._interval.partners(side, time)
        width = self._interval.width
        return [
            (bucket, entry, kept)
            for bucket in range(first // width, last // width + 1)
            for entry, kept in self.kept(1 - side, bucket).items()
            if first <= kept.time <= last
        ]

    def _met(self, context: Context, side: int, bucket: int, entry: str, kept: Kept) -> None:
        """A value has its first partner."""
        getattr(self, f"side{side}").set(entry, kept._replace(matched=True))
        tag = f"u{side}{entry}"
        context.cancel_timer(tag)
        self.no_longer(context, tag)

    def _gone(self, side: int, bucket: int) -> int:
        """After the last `u` of the bucket."""
        return self.sure((bucket + 1) * self._interval.width - 1 + self._interval.reach(side)) + 1

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """A value stays alone, or a bucket can go."""
        side, rest = int(timer.tag[1]), timer.tag[2:]
        if timer.tag[0] == "g":
            self.forget(side, int(rest))
            return
        kept = getattr(self, f"side{side}").get(rest)
        last = kept.time + self._interval.reach(side)
        if self.due(context, timer, last):
            pair = (None, kept.value) if side else (kept.value, None)
            self.emit(context, Match(context.key, *pair), last)


def join_in_interval(
    interval: Interval, how: How, lateness: int, coders: list[Coder[Any]], dropped: Sequence[Stream[Any] | None]
) -> Operation[Match[Any, Any]]:
    """The operation that joins two inputs by the distance of their times."""
    needed = required(how)
    made: Any = type("IntervalJoin", (IntervalJoin,), dict(buffers(coders, f"join in {interval.meaning}")))

    def make(wiring: Wiring[Match[Any, Any]]) -> IntervalJoin:
        operator: IntervalJoin = made(wiring, lateness, interval, needed, dropped)
        return operator

    return Operation(
        kind="join",
        make=make,
        output=match_coder(*coders),
        side_outputs=tuple(dict.fromkeys(stream for stream in dropped if stream is not None)),
        waits=how != "inner",
    )
