"""Aggregation over windows of wall time: a record lies in the window in which it is taken.

Lives here: that computation.  Invariant: each record is in one pane, whatever crashes; in which window it is, only the
clock says, so a run that is repeated has other panes.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from millwheel.api.context import Context
from millwheel.api.stream import Stream
from millwheel.errors import WiringError
from millwheel.library.aggregate import NOTHING, WindowedAggregate
from millwheel.library.aggregations import Aggregation
from millwheel.library.firing import Firing
from millwheel.library.panes import Pane
from millwheel.library.windows import GLOBAL, Wall, Window
from millwheel.library.wiring import Wiring
from millwheel.model import Timer

R = TypeVar("R")

THE_END: Final = "z"


class WallAggregate(WindowedAggregate[R], Generic[R]):
    """A timer of wall time, `w`, ends a window, or the end of the input does, `z`."""

    def __init__(
        self, wiring: Wiring[Pane[R]], firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None,
        windows: Wall,
    ) -> None:  # fmt: skip
        super().__init__(wiring, firing, aggregation, dropped)
        if not firing.one_by_one or firing.lateness:
            raise WiringError("windows of wall time give one pane each, at their end: no other trigger, no lateness")
        self._windows = windows

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Add one value to the window that the clock is in."""
        start = self._windows.start(context.wall_time)
        accumulator = self.accumulators.get(str(start), NOTHING)
        if accumulator is NOTHING:
            context.set_timer(f"w{start}", start + self._windows.size, "wall")
            context.set_timer(THE_END, GLOBAL.end)
        self.accumulators.set(str(start), self.added(accumulator, value, timestamp))

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """Give the window that has ended; at the end of the input, all of them."""
        entries = [entry for entry, _ in self.accumulators.items()] if timer.tag == THE_END else [timer.tag[1:]]
        for entry in entries:
            accumulator = self.accumulators.get(entry, NOTHING)
            if accumulator is not NOTHING:
                window = Window(int(entry), int(entry) + self._windows.size)
                self.emit(context, Pane(context.key, *window, self.aggregation.result(accumulator)), None)
                self.accumulators.delete(entry)
                context.cancel_timer(f"w{entry}", "wall")
        if not len(self.accumulators):
            context.cancel_timer(THE_END)
