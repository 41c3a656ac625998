"""Aggregation over sliding windows at one update per record, however many windows overlap.

Lives here: accumulators of slices, the spans in which no window begins or ends.  A window is the merge of its slices,
which is made when the watermark has passed its end.  With triggers that count the records of each window, sliding
windows are treated as any other, at one update per window.  Invariant: a slice is kept until the last window that holds
it is over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Generic, TypeVar

from millwheel.api.context import Context
from millwheel.api.state import MapCell, ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import JsonCoder
from millwheel.library.aggregate import NOTHING, WindowedAggregate
from millwheel.library.aggregations import Aggregation
from millwheel.library.firing import Firing
from millwheel.library.panes import Pane
from millwheel.library.windows import Sliding, Window
from millwheel.library.wiring import Wiring
from millwheel.model import MAX_TIME, Timer
from millwheel.shape import HANDED_BACK

R = TypeVar("R")

_NONE: Final = MAX_TIME
"""No window waits for its end."""


class SlicedAggregate(WindowedAggregate[R], Generic[R]):
    """`accumulators` are those of slices, `given` the number of panes of a window that may have more, by its end.

    One timer waits for the end of the next window that has a record: tag `e`, at `due`.  If the aggregation can subtract,
    `running` keeps, under the end of the last window, what the next one has of it, and `held` of how many slices that is.
    Then the cost of a window does not grow with the number of its slices.  `stacks` does the same for aggregations that
    cannot subtract and whose accumulators are small.
    """

    due = ValueCell(JsonCoder(int), default=_NONE)
    given: MapCell[int] = MapCell(JsonCoder(int))
    running: MapCell[Any]
    held: MapCell[int] = MapCell(JsonCoder(int))
    windows: Sliding

    def __init__(
        self, wiring: Wiring[Pane[R]], firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None,
        windows: Sliding,
    ) -> None:  # fmt: skip
        super().__init__(wiring, firing, aggregation, dropped)
        self.windows = windows
        self._subtracts = aggregation.subtracts
        self._slice = windows.slice_us
        self._shift = windows.offset % self._slice

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Add one value to its slice, and give a pane of each of its windows that had its end already."""
        start = timestamp - (timestamp - self._shift) % self._slice
        entry = str(start)
        accumulator = self.accumulators.get(entry, NOTHING)
        # As long as the slice itself lasts, no window that holds it has had its end.
        if accumulator is not NOTHING and context.watermark < start + self._slice:
            plus = self.plus
            more = plus(accumulator, value) if plus is not None else self.added(accumulator, value, timestamp)
            self.accumulators.set(entry, more)
            return
        if context.watermark >= self.firing.over_at(self._last_end(start)):
            if self.aggregation.of_parts:
                for window in self.windows.of(start):
                    self.overdue(context, window, value, timestamp)
            self.drop(context, value)
            return
        self.accumulators.set(entry, self.added(accumulator, value, timestamp))
        if context.watermark >= start + self._slice:
            self.changed()
        self._wait(context, start, accumulator is NOTHING)
        if context.watermark >= self._first_end(start):
            self._late(context, start, value, timestamp)

    def _first_end(self, start: int) -> int:
        """End of the first window that holds the slice at `start`."""
        return self.windows.end(self.windows.starts(start)[0])

    def _last_end(self, start: int) -> int:
        """End of the last one."""
        return self.windows.end(self.windows.starts(start)[-1])

    def _wait(self, context: Context, start: int, new: bool) -> None:
        """Have a timer at the first end of a window of this slice that is still to come."""
        end = self._first_end(start)
        if end <= context.watermark:
            end += ((context.watermark - end) // self.windows.every + 1) * self.windows.every
        due = self.due.get()
        # Behind the end of time there is no timer: such a record is refused, as by other windows.
        if (end < due or due == _NONE) and end <= self._last_end(start):
            self._set(context, end)
        if new and self._last_end(start) <= context.watermark:
            self._until_over(context, str(start), self._last_end(start))

    def _until_over(self, context: Context, entry: str, end: int) -> None:
        """The last window of a slice has had its `end`: have a timer for when it is over."""
        context.set_timer("o" + entry, self.firing.over_at(end))

    def _set(self, context: Context, due: int) -> None:
        self.due.set(due)
        context.set_timer("e", due - 1)

    def _late(self, context: Context, start: int, value: Any, timestamp: int) -> None:
        """A pane for each window of a late record that is past its end, and not over.

        A window from `due` on has its first pane still to come, with this record: its timer is due, and did not fire yet.
        """
        due = self.due.get()
        for begin in self.windows.starts(start):
            window = Window(begin, self.windows.end(begin))
            if due <= window.end <= context.watermark:
                continue
            if window.end <= context.watermark < self.firing.over_at(window.end):
                if self.firing.accumulates:
                    accumulator = self.merged(self.slices(window).values())
                else:
                    accumulator = self.added(NOTHING, value, timestamp)
                self._give(context, window, accumulator, "late")
            elif window.end <= context.watermark:
                self.overdue(context, window, value, timestamp)

    def slices(self, window: Window) -> dict[str, Any]:
        """Accumulators of the slices of a window that have a record, in order."""
        return self.accumulators.get_many(map(str, range(window.start, window.end, self._slice)))

    def merged(self, found: Iterable[Any]) -> Any:
        """All of them together; `NOTHING` when there is none."""
        parts = list(found)
        return self.aggregation.merge_all(parts) if parts else NOTHING

    def _give(self, context: Context, window: Window, accumulator: Any, timing: Any) -> None:
        number = self.given.get(str(window.end), 0)
        last = self.firing.lateness == 0
        value = self.aggregation.result(accumulator)
        pane = Pane(context.key, window.start, window.end, value, number, timing, number, last)
        self.emit(context, pane, window.last)
        if not last:
            self.given.set(str(window.end), number + 1)
            self._until_over(context, str(window.start), window.end)

    def window(self, entry: str) -> Window:
        """Timer `e` is for the window that ends at `due`, timer `o` for a slice."""
        if not entry:
            return Window(self.due.get() - self.windows.size, self.due.get())
        return Window(int(entry), int(entry) + self._slice)

    def ends(self, context: Context, timer: Timer, window: Window) -> None:
        """The next window has its end; the one after that is waited for now."""
        if context.watermark < window.end:
            context.hold(window.last)
            context.set_timer(timer.tag, window.end)
            return
        accumulator, number = self.whole(window)
        if number:
            self._give(context, window, accumulator, "on time")
        if timer.timestamp > window.last:
            context.release_hold()
        self._next(context, window, accumulator, number)

    def changed(self) -> None:
        """A slice that may have been merged has got one more record: merge anew."""
        before = str(self.due.get() - self.windows.every)
        if self.held.get(before):
            self._forget_running(before)

    def whole(self, window: Window) -> tuple[Any, int]:
        """The accumulator of a window, and how many of its slices have a record."""
        before = str(window.end - self.windows.every)
        number = self.held.get(before)
        if number is None:
            found = self.slices(window)
            return self.merged(found.values()), len(found)
        fresh = self.slices(Window(window.end - self.windows.every, window.end))
        accumulator = self.merged([self.running.get(before), *fresh.values()])
        self._forget_running(before)
        return accumulator, number + len(fresh)

    def _next(self, context: Context, window: Window, accumulator: Any, number: int) -> None:
        """Wait for the next window that has a record, and forget the slices that only this one and older ones have."""
        after = window.start + self.windows.every
        old = self.slices(Window(window.start, after))
        for entry in old:
            if self.firing.lateness:
                self._until_over(context, entry, window.end)
            else:
                self.accumulators.delete(entry)
        if number > len(old):
            self._set(context, window.end + self.windows.every)
            self.goes_on(window, accumulator, old, number)
            return
        self.ended()
        # Of this window nothing is left: what there is began behind its end, or is kept for late records only.
        # What a combiner has handed back is no slice yet.
        starts = [int(entry) for entry, _ in self.accumulators.items() if HANDED_BACK not in entry]
        ends = [self._first_end(start) for start in starts if start >= after]
        if ends:
            self._set(context, min(ends))
        else:
            self.due.clear()

    def goes_on(self, window: Window, accumulator: Any, old: dict[str, Any], number: int) -> None:
        """The next window has all of this one but the slices `old`."""
        if self._subtracts:
            rest = self.aggregation.subtract(accumulator, self.merged(old.values())) if old else accumulator
            if rest is not None:
                self.running.set(str(window.end), rest)
                self.held.set(str(window.end), number - len(old))

    def ended(self) -> None:
        """The next window has nothing of this one."""

    def _forget_running(self, entry: str) -> None:
        self.running.delete(entry)
        self.held.delete(entry)

    def over(self, context: Context, timer: Timer, window: Window) -> None:
        """No window of this slice takes a record any more, unless an earlier version had a shorter lateness."""
        end = self._last_end(window.start)
        if self.firing.over_at(end) > timer.timestamp:
            self._until_over(context, str(window.start), end)
            return
        self.accumulators.delete(str(window.start))
        for entry, _ in self.given.items():
            if self.firing.over_at(int(entry)) <= timer.timestamp:
                self.given.delete(entry)
