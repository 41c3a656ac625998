"""Temporal join: each record meets the version of a table-like stream that held at the record's time.

Lives here: that operator.  Invariant: a record gets its version when no older version and no record of its time can come any
more.  Versions that no later record can need are deleted, so a key keeps one until the end of the input.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import Coder, MsgpackCoder
from millwheel.errors import WiringError
from millwheel.library.matches import How, Kept, Match, match_coder
from millwheel.library.waiting import BufferingOperator, buffers
from millwheel.library.windows import GLOBAL
from millwheel.library.wiring import Operation, Wiring
from millwheel.model import Record, Timer


class TemporalJoin(BufferingOperator[Match[Any, Any]]):
    """Records wait in buckets of one microsecond; versions lie in side 1, under their times.

    Timers: `r`, records of a time can have their version; `v`, what is older than a version can go; `z`, the end.
    """

    side0: MapCell[Kept]
    side1: MapCell[Kept]
    times = ValueCell[list[int]](MsgpackCoder(list[int]), default=[])
    """Times of the versions, ascending."""

    def __init__(
        self, wiring: Wiring[Match[Any, Any]], lateness: int, alone: bool, dropped: Stream[Any] | None
    ) -> None:
        super().__init__(wiring, lateness, 2)
        self._alone = alone
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Let a record wait; keep a version."""
        for side, value in self.inputs.take(context.stream, record.key, record.value):
            if side:
                self._version(context, record.timestamp, value)
            elif context.watermark < self.sure(record.timestamp):
                self._record(context, record.timestamp, value)
            elif self._dropped is not None:
                context.produce(self._dropped, value)

    def _record(self, context: Context, time: int, value: Any) -> None:
        count = self.count(0, time)
        self.keep(0, time, Kept(time, False, value), count)
        if not count:
            context.set_timer(f"r{time}", time)

    def _version(self, context: Context, time: int, value: Any) -> None:
        """A late one counts for records that are to come, unless a newer one does already."""
        times = self.times.get()
        place = bisect_left(times, time)
        if place < len(times) and context.watermark >= self.sure(times[place]) and times[place] != time:
            return
        if not times:
            context.set_timer("z", GLOBAL.end)
        if place == len(times) or times[place] != time:
            times.insert(place, time)
            self.times.set(times)
            context.set_timer(f"v{time}", self.sure(time))
        self.side1.set(str(time), Kept(time, False, value))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """Records get their version, or versions go."""
        if timer.tag == "z":
            self._outdated(len(self.times.get()))
        elif timer.tag[0] == "v":
            self._outdated(bisect_left(self.times.get(), int(timer.tag[1:])))
        elif self.due(context, timer, int(timer.tag[1:])):
            self._meet(context, int(timer.tag[1:]))

    def _meet(self, context: Context, time: int) -> None:
        """All records of `time`."""
        times = self.times.get()
        place = bisect_right(times, time)
        version = self.side1.get(str(times[place - 1])) if place else None
        if version is not None or self._alone:
            for kept in self.kept(0, time).values():
                self.emit(context, Match(context.key, kept.value, version and version.value), time)
        self.forget(0, time)

    def _outdated(self, number: int) -> None:
        """The first so many versions go."""
        times = self.times.get()
        for time in times[:number]:
            self.side1.delete(str(time))
        if number == len(times):
            self.times.clear()
        elif number:
            self.times.set(times[number:])


def join_as_of(
    how: How, lateness: int, coders: list[Coder[Any]], dropped: Stream[Any] | None
) -> Operation[Match[Any, Any]]:
    """The operation that gives each record of input 0 the version of input 1."""
    if how not in ("inner", "left"):
        raise WiringError(f"how={how!r}: a temporal join is 'inner' or 'left', for a version alone is no row")
    alone = how == "left"
    made: Any = type("TemporalJoin", (TemporalJoin,), dict(buffers(coders, "temporal join")))

    def make(wiring: Wiring[Match[Any, Any]]) -> TemporalJoin:
        operator: TemporalJoin = made(wiring, lateness, alone, dropped)
        return operator

    return Operation(
        kind="join",
        make=make,
        output=match_coder(*coders),
        side_outputs=() if dropped is None else (dropped,),
        waits=True,
    )
