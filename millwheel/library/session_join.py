"""Join of two or more streams in sessions: values of one key meet when they lie in the same burst.

Lives here: that operator.  Invariants: sessions of a key do not overlap, and values of all inputs extend them.  Rows come
when their session is over, because until then its end is not known and another session may become one with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, TypeVar

from millwheel.api.context import Context
from millwheel.api.state import ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import MsgpackCoder
from millwheel.library.matches import Kept, RowOf
from millwheel.library.waiting import BufferingOperator
from millwheel.library.windows import Sessions, Window
from millwheel.library.wiring import Wiring
from millwheel.model import Record, Timer

R = TypeVar("R")

Bursts = list[tuple[int, int, list[int]]]
"""Start and end of each session, and its buckets: a session that was made of several has those of all."""


class SessionJoin(BufferingOperator[R]):
    """The timer of a session is named by its first bucket, and is set again when the session has grown."""

    bursts = ValueCell[Bursts](MsgpackCoder(Bursts), default=[])

    def __init__(
        self, wiring: Wiring[R], lateness: int, sessions: Sessions, needed: frozenset[int], row: RowOf[R],
        dropped: Sequence[Stream[Any] | None],
    ) -> None:  # fmt: skip
        super().__init__(wiring, lateness, len(dropped))
        self._gap = sessions.gap
        self._needed = needed
        self._row = row
        self._dropped = dropped

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Keep the value in the session that its own window [time, time + gap) overlaps."""
        window = Window(record.timestamp, record.timestamp + self._gap(record.key))
        for side, value in self.inputs.take(context.stream, record.key, record.value):
            if context.watermark < self.sure(window.last):
                bucket = self._bucket(context, window)
                self.keep(side, bucket, Kept(record.timestamp, False, value), self.count(side, bucket))
            elif (dropped := self._dropped[side]) is not None:
                context.produce(dropped, value)

    def _bucket(self, context: Context, window: Window) -> int:
        """The first bucket of the session that `window` is in from now on."""
        bursts = self.bursts.get()
        touched = [burst for burst in bursts if burst[0] < window.end and burst[1] > window.start]
        if not touched:
            self.bursts.set(sorted([*bursts, (window.start, window.end, [window.start])]))
            context.set_timer(str(window.start), window.last)
            return window.start
        start, end = min(window.start, touched[0][0]), max(window.end, touched[-1][1])
        buckets = [bucket for burst in touched for bucket in burst[2]]
        if touched != [(start, end, buckets)]:
            rest = [burst for burst in bursts if burst not in touched]
            self.bursts.set(sorted([*rest, (start, end, buckets)]))
        for _, _, others in touched[1:]:
            context.cancel_timer(str(others[0]))
            self.no_longer(context, str(others[0]))
        return buckets[0]

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The session is over, unless it has grown since the timer was set."""
        bursts = self.bursts.get()
        mine = next(burst for burst in bursts if burst[2][0] == int(timer.tag))
        start, end, buckets = mine
        if self.due(context, timer, end - 1):
            self._give(context, Window(start, end), buckets)
            rest = [burst for burst in bursts if burst != mine]
            if rest:
                self.bursts.set(rest)
            else:
                self.bursts.clear()

    def _give(self, context: Context, window: Window, buckets: list[int]) -> None:
        """Every row of a session; nothing of it is left."""
        sides = [[kept.value for bucket in buckets for kept in self.kept(side, bucket).values()] for side in self.sides]
        if all(values or side not in self._needed for side, values in enumerate(sides)):
            for row in product(*(values or [None] for values in sides)):
                self.emit(context, self._row(context.key, row, window), window.last)
        for side in self.sides:
            for bucket in buckets:
                if self.count(side, bucket):
                    self.forget(side, bucket)
