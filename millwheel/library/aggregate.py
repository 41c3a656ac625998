"""Aggregation per key and window: an accumulator for each open window, and a pane when the trigger says so.

Lives here: `WindowedAggregate`, what all of them share, and `AlignedAggregate`, whose windows are known from a record's
time; `sessions` and `slices` have the others.  Invariants: a window that is over leaves nothing; a pane's event time lies
in its window, so that windows of its receiver hold it as well.

Another version may have another `Firing`, also while a window is open.  What an earlier one has left there, such as the time
of a pane or records that no pane has had, is judged by that of now.

Three timers of a window, named by a letter and its start:

* `e`, at its last instant.  The window has ended when the watermark is beyond that instant.  A timer that fires *at* the
  instant is set again behind a hold, because a record of that very instant may still come.
* `o`, when it is over: end and allowed lateness.
* `w`, of wall time, when a trigger of wall time is due.

A store sets another one when a combiner goes (`handed_back`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Final, Generic, TypeVar

from millwheel.api.context import Context
from millwheel.api.frame import Frame
from millwheel.api.state import MapCell
from millwheel.api.stream import Stream
from millwheel.coders import MsgpackCoder
from millwheel.library.aggregations import Aggregation
from millwheel.library.firing import Firing, Progress
from millwheel.library.handed_back import of_accumulators, take_back
from millwheel.library.panes import Pane, Timing
from millwheel.library.triggers import EveryRecords, EveryWall
from millwheel.library.windows import Aligned, Window
from millwheel.library.wiring import Operator, Wiring, meant
from millwheel.model import Record, Timer
from millwheel.shape import HANDED_BACK

R = TypeVar("R")

NOTHING: Final[Any] = object()
"""No accumulator: a window without records since it last gave them away."""


class WindowedAggregate(Operator[Pane[R]], Generic[R]):
    """Base of the three; a subclass says which windows a record is in, and has the cells."""

    accumulators: MapCell[Any]
    progress: MapCell[Progress]
    windows: Any
    """Which they are; of those that may have a combiner, `Aligned`."""

    def __init__(
        self,
        wiring: Wiring[Pane[R]],
        firing: Firing,
        aggregation: Aggregation[Any, Any, R],
        dropped: Stream[Any] | None,
    ) -> None:
        super().__init__(wiring)
        self.firing = firing
        self.aggregation = aggregation
        self.timed = type(aggregation).add_at is not Aggregation.add_at
        self.plus: Callable[[Any, Any], Any] | None = None if self.timed else aggregation.add
        """One more value, if its time does not count."""
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Add the record to its windows."""
        if self.inputs.plain:
            self.add(context, record.timestamp, record.value)
        else:
            for _, value in self.inputs.take(context.stream, record.key, record.value):
                self.add(context, record.timestamp, value)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The end of a window, its being over, or a trigger of wall time; or a combiner has gone."""
        if timer.tag == HANDED_BACK:
            take_back(self, self.windows, context, timer)
            return
        window = self.window(timer.tag[1:])
        if window is None:
            return
        if timer.tag[0] == "e":
            self.ends(context, timer, window)
        elif timer.tag[0] == "o":
            self.over(context, timer, window)
        else:
            self.rings(context, window)

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Add one value to its windows."""
        raise NotImplementedError

    def window(self, entry: str) -> Window | None:
        """The window of an entry, if there is one."""
        raise NotImplementedError

    def of_accumulators(self) -> WindowedAggregate[R]:
        """This operator, on the same state, for values that are accumulators."""
        found = copy(self)
        found.aggregation, found.timed = of_accumulators(self.aggregation), False
        found.plus = self.aggregation.merge
        return found

    # --- one record and one window ----------------------------------------------------------------------------

    def added(self, accumulator: Any, value: Any, timestamp: int) -> Any:
        """The accumulator, or that of no record, with one more value."""
        if accumulator is NOTHING:
            accumulator = self.aggregation.zero()
        if self.timed:
            return self.aggregation.add_at(accumulator, value, timestamp)
        return self.aggregation.add(accumulator, value)

    def into(self, context: Context, window: Window, value: Any, timestamp: int) -> bool:
        """Add a value to one window, and give the pane that is due by it; False when the window takes it no more.

        This slow way handles every trigger.
        """
        late = context.watermark >= window.end
        if late and context.watermark >= self.firing.over_at(window.end):
            return False
        entry = str(window.start)
        progress = self.progress.get(entry)
        if progress is not None and progress.closed and self.firing.once:
            return False
        accumulator = self.accumulators.get(entry, NOTHING)
        if progress is None:
            progress = Progress()
            if accumulator is NOTHING:
                self.opened(context, window, late)
                progress.ended = late
        elif late and not self.firing.accumulates and progress.punctual and not progress.new:
            accumulator = NOTHING  # an earlier version accumulated
        before, progress.closed = progress.stamp, False
        accumulator = self.added(accumulator, value, timestamp)
        self.accumulators.set(entry, accumulator)
        progress.new += 1
        self.firing.stamp(progress, timestamp, context.watermark)
        every = self.firing.late if late else self.firing.early
        if late and self.firing.to_come(progress):
            pass  # the pane that is due has this record as well
        elif isinstance(every, EveryRecords) and progress.new >= every.records:
            if late or not self.waits(window, value):
                self.give(context, window, progress, accumulator, "late" if late else "early")
        elif isinstance(every, EveryWall) and progress.due is None:
            self.wait(context, window, progress, every)
        self.keep(context, window, progress, before)
        return True

    def waits(self, window: Window, value: Any) -> bool:
        """A shard gives what it has at the end of the window, which is for the pane there and for no early one."""
        return self.aggregation.of_parts and getattr(value, "timing", "") == "on time" and window.end == value.end

    def simply(self, context: Context, window: Window, value: Any, timestamp: int) -> None:
        """The same for a window that is open, when nothing depends on the number of its records."""
        entry = str(window.start)
        accumulator = self.accumulators.get(entry, NOTHING)
        if accumulator is NOTHING:
            context.set_timer("e" + entry, window.last)
        self.accumulators.set(entry, self.added(accumulator, value, timestamp))

    def opened(self, context: Context, window: Window, late: bool) -> None:
        """The first record of a window has come."""
        if late:
            context.set_timer(f"o{window.start}", self.firing.over_at(window.end))
        else:
            context.set_timer(f"e{window.start}", window.last)

    def wait(self, context: Context, window: Window, progress: Progress, every: EveryWall) -> None:
        """Wait for the wall time at which a pane is due, because there are records that no pane has had."""
        if progress.due is None:
            progress.due = every.due(context.wall_time)
        context.set_timer(f"w{window.start}", progress.due, "wall")

    def drop(self, context: Context, value: Any) -> None:
        """A record came when all its windows were over, or closed."""
        if self._dropped is not None and not self.aggregation.of_parts:
            context.produce(self._dropped, value)

    def overdue(self, context: Context, window: Window, value: Any, timestamp: int) -> None:
        """A shard gives what it had in time for a window that is over: its key was in quarantine.  It is a pane of its own.

        What is late for a window, and in time for a later one, is not for this one.
        """
        if self.aggregation.of_parts and (
            getattr(value, "timing", "") != "late" or window.start == self.windows.starts(timestamp)[-1]
        ):
            result = self.aggregation.result(self.added(NOTHING, value, timestamp))
            self.emit(context, Pane(context.key, *window, result, 0, "late", 0, True), window.last)

    # --- timers -----------------------------------------------------------------------------------------------

    def ends(self, context: Context, timer: Timer, window: Window) -> None:
        """The watermark is at the window's last instant, or beyond it."""
        entry = str(window.start)
        found, accumulator = self.progress.get(entry), self.accumulators.get(entry, NOTHING)
        # Without progress, nothing has counted the records of the window, and no pane has had them.
        progress = Progress(new=int(accumulator is not NOTHING)) if found is None else found
        if context.watermark < window.end:
            self.stays(context, window, progress)
            return
        last, before, progress.ended = self.firing.lateness == 0, progress.stamp, True
        on_time = self.firing.on_time and not (progress.closed and accumulator is NOTHING)
        if on_time or (last and progress.new):
            self.give(context, window, progress, accumulator, "on time", last)
        if last:
            self.forget(context, entry)
        else:
            if not progress.new and isinstance(self.firing.early, EveryWall):
                context.cancel_timer("w" + entry, "wall")
            progress.stamp = progress.stamp if self.firing.holds and progress.new else None
            self.progress.set(entry, progress)
            context.set_timer("o" + entry, self.firing.over_at(window.end))
        if self.firing.holds or before is not None:
            self.hold(context)

    def stays(self, context: Context, window: Window, progress: Progress) -> None:
        """The watermark is exactly at the last instant of a window: wait on, without letting it pass that."""
        if progress.stamp is None:
            progress.stamp = window.last
        self.progress.set(str(window.start), progress)
        context.set_timer(f"e{window.start}", window.end)
        self.hold(context)

    def over(self, context: Context, timer: Timer, window: Window) -> None:
        """No record can come any more, unless an earlier version had a shorter lateness."""
        entry, over_at = str(window.start), self.firing.over_at(window.end)
        if over_at > timer.timestamp:
            context.set_timer(timer.tag, over_at)
            return
        progress = self.progress.get(entry) or Progress()
        before = progress.stamp
        if progress.new:
            self.give(context, window, progress, self.accumulators.get(entry, NOTHING), "late", True)
        self.forget(context, entry)
        if self.firing.holds or before is not None:
            self.hold(context)

    def rings(self, context: Context, window: Window) -> None:
        """The wall time of a trigger has come: give a pane of the records that no pane has had."""
        entry = str(window.start)
        progress = self.progress.get(entry)
        if progress is None:
            return
        before, progress.due = progress.stamp, None
        timing: Timing = "late" if context.watermark >= window.end else "early"
        every = self.firing.late if timing == "late" else self.firing.early
        if progress.new and isinstance(every, EveryWall):
            self.give(context, window, progress, self.accumulators.get(entry, NOTHING), timing)
        self.keep(context, window, progress, before)

    def keep(self, context: Context, window: Window, progress: Progress, before: int | None) -> None:
        """Write down what a window remembers.  If its panes have the time of its end, it holds the watermark only when it did
        so before: the watermark is at its last instant, or an earlier version gave panes another time."""
        if not self.firing.holds:
            progress.stamp = None if before is None or progress.ended else window.last
        elif progress.stamp is None and context.watermark == window.last:
            progress.stamp = window.last  # it has `stays` to do, or has done it
        self.progress.set(str(window.start), progress)
        if self.firing.holds or progress.stamp != before:
            self.hold(context)

    # --- panes ------------------------------------------------------------------------------------------------

    def give(
        self, context: Context, window: Window, progress: Progress, accumulator: Any, timing: Timing, last: bool = False
    ) -> None:
        """Produce a pane, and keep its records only if they are for the next one too."""
        entry = str(window.start)
        value = self.aggregation.result(self.aggregation.zero() if accumulator is NOTHING else accumulator)
        punctual = progress.punctual - (timing == "early")
        pane = Pane(
            context.key, window.start, window.end, value, progress.number, timing, punctual, last or self.firing.once
        )
        if timing == "late" and not self.firing.backdates:
            frame: Frame = self.__dict__["_frame"]
            frame.cause = min(frame.cause, window.last)  # an earlier version had gathered late records
        self.emit(context, pane, window.last if progress.stamp is None or not self.firing.holds else progress.stamp)
        self.firing.fired(progress, timing)
        if progress.closed or not self.firing.accumulates:
            self.accumulators.delete(entry)

    def forget(self, context: Context, entry: str) -> None:
        """Nothing is left of a window."""
        self.accumulators.delete(entry)
        if self.progress.get(entry) is not None:
            self.progress.delete(entry)
        if isinstance(self.firing.early, EveryWall) or isinstance(self.firing.late, EveryWall):
            context.cancel_timer("w" + entry, "wall")

    def hold(self, context: Context) -> None:
        """Keep the watermark at the oldest of the panes that are to come and have a time of their own."""
        stamps = [progress.stamp for _, progress in self.progress.items() if progress.stamp is not None]
        if stamps:
            context.hold(min(stamps))
        else:
            context.release_hold()


class AlignedAggregate(WindowedAggregate[R]):
    """Windows that are the same for all keys: fixed, sliding, of the calendar, global."""

    def __init__(
        self, wiring: Wiring[Pane[R]], firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None,
        windows: Aligned,
    ) -> None:  # fmt: skip
        super().__init__(wiring, firing, aggregation, dropped)
        self.windows = windows
        self._starts, self._end = windows.starts, windows.end

    def window(self, entry: str) -> Window:
        """Its start is its name."""
        start = int(entry)
        return Window(start, self.windows.end(start))

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Add one value to the windows of its time: a look-up and a write each, if nothing depends on the count."""
        watermark, plus, taken = context.watermark, self.plus, False
        for start in self._starts(timestamp):
            end = self._end(start)
            if watermark >= end or self.firing.tracks:
                if self.into(context, Window(start, end), value, timestamp):
                    taken = True
                else:
                    self.overdue(context, Window(start, end), value, timestamp)
                continue
            taken = True
            entry = str(start)
            accumulator = self.accumulators.get(entry, NOTHING)
            if accumulator is NOTHING or plus is None:
                self.simply(context, Window(start, end), value, timestamp)
            else:
                self.accumulators.set(entry, plus(accumulator, value))
        if not taken:
            self.drop(context, value)


def cells(aggregation: Aggregation[Any, Any, Any], meaning: str) -> dict[str, MapCell[Any]]:
    """The cells of a windowed aggregate: their coders say what is aggregated, over which windows."""
    coder = meant(aggregation.accumulator, f"{aggregation.name} of {meaning}")
    return {
        "accumulators": MapCell(coder),
        "progress": MapCell(meant(MsgpackCoder[Progress](Progress), meaning)),
    }
