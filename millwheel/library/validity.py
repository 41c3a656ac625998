"""Aggregation over validity: a record's window lasts until the next record of its key.

Lives here: which windows are open.  A window splits when a record comes between its ends.  Invariant: a window has its pane
when the watermark has passed its end, because no record can split it any more.  The last one of a key lasts to the end of
time.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any, Generic, TypeVar

from millwheel.api.context import Context
from millwheel.api.state import ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import MsgpackCoder
from millwheel.errors import WiringError
from millwheel.library.aggregate import NOTHING, WindowedAggregate
from millwheel.library.aggregations import Aggregation
from millwheel.library.firing import Firing
from millwheel.library.panes import Pane
from millwheel.library.windows import GLOBAL, Validity, Window
from millwheel.library.wiring import Wiring

R = TypeVar("R")


class ValidityAggregate(WindowedAggregate[R], Generic[R]):
    """`begun` are the starts of the open windows, ascending; each ends where the next one starts."""

    begun = ValueCell[list[int]](MsgpackCoder(list[int]), default=[])

    def __init__(
        self, wiring: Wiring[Pane[R]], firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None,
        windows: Validity,
    ) -> None:  # fmt: skip
        super().__init__(wiring, firing, aggregation, dropped)
        if not firing.one_by_one or firing.lateness:
            raise WiringError("windows of validity give one pane each, at the watermark: no other trigger, no lateness")

    def window(self, entry: str) -> Window | None:
        """From its start to the next."""
        start, begun = int(entry), self.begun.get()
        return self._at(begun, begun.index(start)) if start in begun else None

    def _at(self, begun: list[int], place: int) -> Window:
        return Window(begun[place], begun[place + 1] if place + 1 < len(begun) else GLOBAL.end)

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Begin a window at the record's time, which ends the one that was open there; equal times share one."""
        begun = [*self.begun.get()]
        place = bisect_left(begun, timestamp)
        if place == len(begun) or begun[place] != timestamp:
            begun.insert(place, timestamp)
        window = self._at(begun, place)
        if context.watermark >= window.end:
            self.drop(context, value)
            return
        entry = str(timestamp)
        accumulator = self.accumulators.get(entry, NOTHING)
        if accumulator is NOTHING:
            self.begun.set(begun)
            self.opened(context, window, late=False)
            if place:
                self.opened(context, self._at(begun, place - 1), late=False)
        self.accumulators.set(entry, self.added(accumulator, value, timestamp))

    def forget(self, context: Context, entry: str) -> None:
        """Its start goes as well."""
        super().forget(context, entry)
        begun = [start for start in self.begun.get() if start != int(entry)]
        if begun:
            self.begun.set(begun)
        else:
            self.begun.clear()
