"""Aggregation over sliding windows at one update per record, however many windows overlap.

Lives here: accumulators of slices, the spans in which no window begins or ends.  A window is the merge of its slices,
made when the watermark has passed its end.  For triggers that count the records of each window, sliding windows are
treated as any other, at one update per window.  Invariant: a slice is there until the last window that holds it is over.
"""

from __future__ import annotations

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

R = TypeVar("R")

_NONE: Final = MAX_TIME
"""No window waits for its end."""


class SlicedAggregate(WindowedAggregate[R], Generic[R]):
    """`accumulators` are those of slices, `given` the number of panes of a window that may have more, by its end.

    One timer waits for the end of the next window that has a record: tag `e`, at `due`.
    """

    due = ValueCell(JsonCoder(int), default=_NONE)
    given: MapCell[int] = MapCell(JsonCoder(int))

    def __init__(
        self, wiring: Wiring[Pane[R]], firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None,
        windows: Sliding,
    ) -> None:  # fmt: skip
        super().__init__(wiring, firing, aggregation, dropped)
        self.windows = windows
        self._slice = windows.slice_us
        self._shift = windows.offset % self._slice

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Add one value to its slice, and give a pane of each of its windows that had its end already."""
        start = timestamp - (timestamp - self._shift) % self._slice
        entry = str(start)
        accumulator = self.accumulators.get(entry, NOTHING)
        if accumulator is NOTHING or context.watermark >= self._first_end(start):
            if context.watermark >= self.firing.over_at(self._last_end(start)):
                self.drop(context, value)
                return
            self.accumulators.set(entry, self.added(accumulator, value, timestamp))
            self._wait(context, start, accumulator is NOTHING)
            self._late(context, start, value, timestamp)
        else:
            self.accumulators.set(entry, self.added(accumulator, value, timestamp))

    def _first_end(self, start: int) -> int:
        """End of the first window that holds the slice at `start`."""
        return self.windows.end(self.windows.starts(start)[0])

    def _last_end(self, start: int) -> int:
        """End of the last one."""
        return self.windows.end(self.windows.starts(start)[-1])

    def _wait(self, context: Context, start: int, new: bool) -> None:
        """Have a timer at the first end of a window of this slice that is still to come."""
        ends = [end for end in map(self.windows.end, self.windows.starts(start)) if end > context.watermark]
        if ends and ends[0] < self.due.get():
            self._set(context, ends[0])
        if new and self.firing.lateness:
            context.set_timer(f"o{start}", self.firing.over_at(self._last_end(start)))

    def _set(self, context: Context, due: int) -> None:
        self.due.set(due)
        context.set_timer("e", due - 1)

    def _late(self, context: Context, start: int, value: Any, timestamp: int) -> None:
        """A pane for each window of a late record that is past its end, and not over."""
        for begin in self.windows.starts(start):
            window = Window(begin, self.windows.end(begin))
            if window.end <= context.watermark < self.firing.over_at(window.end):
                if self.firing.accumulates:
                    accumulator = self._merged(window)
                else:
                    accumulator = self.added(NOTHING, value, timestamp)
                self._give(context, window, accumulator, "late")

    def _merged(self, window: Window) -> Any:
        """The accumulator of a window; `NOTHING` when no slice of it has a record."""
        names = [str(start) for start in range(window.start, window.end, self._slice)]
        found = self.accumulators.get_many(names)
        merged = NOTHING
        for name in names:
            if name in found:
                merged = found[name] if merged is NOTHING else self.aggregation.merge(merged, found[name])
        return merged

    def _give(self, context: Context, window: Window, accumulator: Any, timing: Any) -> None:
        number = self.given.get(str(window.end), 0)
        last = self.firing.lateness == 0
        value = self.aggregation.result(accumulator)
        pane = Pane(context.key, window.start, window.end, value, number, timing, number, last)
        self.emit(context, pane, window.last)
        if not last:
            self.given.set(str(window.end), number + 1)

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
        accumulator = self._merged(window)
        if accumulator is not NOTHING:
            self._give(context, window, accumulator, "on time")
        if timer.timestamp > window.last:
            context.release_hold()
        waiting = []
        for entry, _ in self.accumulators.items():
            if self._last_end(int(entry)) > window.end:
                waiting.append(max(self._first_end(int(entry)), window.end + self.windows.every))
            elif not self.firing.lateness:
                self.accumulators.delete(entry)
        if waiting:
            self._set(context, min(waiting))
        else:
            self.due.clear()

    def over(self, context: Context, timer: Timer, window: Window) -> None:
        """No window of this slice takes a record any more."""
        self.accumulators.delete(str(window.start))
        for entry, _ in self.given.items():
            if self.firing.over_at(int(entry)) <= timer.timestamp:
                self.given.delete(entry)
