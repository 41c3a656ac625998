"""Aggregation over sessions: windows of one key that grow, and merge when a record comes between them.

Lives here: which sessions are open, and how two become one.  Panes and triggers work as for all windows.
Invariant: sessions of a key do not overlap, and are the same whatever the order in which the records came.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from millwheel.api.context import Context
from millwheel.api.state import ValueCell
from millwheel.api.stream import Stream
from millwheel.coders import MsgpackCoder
from millwheel.library.aggregate import NOTHING, WindowedAggregate
from millwheel.library.aggregations import Aggregation
from millwheel.library.firing import Firing, Progress
from millwheel.library.panes import Pane
from millwheel.library.triggers import EveryWall
from millwheel.library.windows import Sessions, Window
from millwheel.library.wiring import Wiring
from millwheel.model import Timer

R = TypeVar("R")

Spans = list[tuple[int, int]]


class SessionAggregate(WindowedAggregate[R], Generic[R]):
    """Accumulators and progress are stored under the session's start; its end is in `spans` alone.

    The timer of a session that grows is not moved.  When it fires, it finds that the end is later, and is set again.
    """

    spans = ValueCell[Spans](MsgpackCoder(Spans), default=[])

    def __init__(
        self, wiring: Wiring[Pane[R]], firing: Firing, aggregation: Aggregation[Any, Any, R], dropped: Stream[Any] | None,
        sessions: Sessions,
    ) -> None:  # fmt: skip
        super().__init__(wiring, firing, aggregation, dropped)
        self._gap = sessions.gap

    def window(self, entry: str) -> Window | None:
        """The session that starts there."""
        start = int(entry)
        return next((Window(*span) for span in self.spans.get() if span[0] == start), None)

    def add(self, context: Context, timestamp: int, value: Any) -> None:
        """Add one value to the session that its own window [time, time + gap) overlaps, if need be merged from several."""
        watermark, end = context.watermark, timestamp + self._gap(context.key)
        if watermark >= end and watermark >= self.firing.over_at(end):
            self.drop(context, value)
            return
        spans = self.spans.get()
        touched = [span for span in spans if span[0] < end and span[1] > timestamp]
        window = Window(timestamp, end)
        if touched:
            window = Window(min(timestamp, touched[0][0]), max(end, touched[-1][1]))
        plain = self._plain(window, touched, watermark)
        if touched != [window]:
            rest = [span for span in spans if span not in touched]
            self.spans.set(sorted([*rest, (window.start, window.end)]))
            if touched and not plain:
                self._merge(context, [Window(*span) for span in touched], window)
        if plain:
            self.simply(context, window, value, timestamp)
        elif not self.into(context, window, value, timestamp):
            self.drop(context, value)

    def _plain(self, window: Window, touched: Spans, watermark: int) -> bool:
        """Whether all there is to do is to add: to a new session, or to one that is open and keeps its start."""
        if self.firing.tracks or watermark >= window.end or len(touched) > 1:
            return False
        if not touched:
            return True
        start = touched[0][0]
        return start == window.start and self.progress.get(str(start)) is None  # one that is late has progress

    def _merge(self, context: Context, touched: list[Window], window: Window) -> None:
        """What the sessions `touched` have gathered is now that of `window`, which has had no pane yet."""
        accumulator, progress = NOTHING, None
        # If one of them has its pane at the watermark still to come, so has all of it, though its end may have passed.
        ended = context.watermark >= window.end and not any(map(self._to_come, touched))
        for old in touched:
            entry = str(old.start)
            theirs, mine = self.progress.get(entry), self.accumulators.get(entry, NOTHING)
            if theirs is not None:
                progress = theirs if progress is None else progress.joined(theirs, self.firing)
            if mine is not NOTHING:
                accumulator = mine if accumulator is NOTHING else self.aggregation.merge(accumulator, mine)
            if old.start != window.start:
                self.forget(context, entry)
                context.cancel_timer("e" + entry)
                context.cancel_timer("o" + entry)
        if accumulator is not NOTHING:
            self.accumulators.set(str(window.start), accumulator)
        if touched[0].start != window.start or any(old.end <= context.watermark for old in touched):
            self.opened(context, window, ended)
        if progress is None and ended:
            progress = Progress(new=1)
        if progress is not None:
            progress.ended = ended
            self._go_on(context, window, progress, len(touched) == 1)

    def _to_come(self, session: Window) -> bool:
        progress = self.progress.get(str(session.start))
        return progress is None or self.firing.to_come(progress)

    def _go_on(self, context: Context, window: Window, progress: Progress, alone: bool) -> None:
        """The panes of a session that has grown count from 0 again."""
        waited = progress.stamp is not None and not self.firing.holds  # with `stays`: the end is another one now
        if waited:
            progress.stamp = None
        grown = Progress(
            progress.new, closed=progress.closed and alone, stamp=progress.stamp, due=progress.due,
            ended=progress.ended,
        )  # fmt: skip
        every = self.firing.late if context.watermark >= window.end else self.firing.early
        if grown.new and isinstance(every, EveryWall):
            self.wait(context, window, grown, every)
        self.progress.set(str(window.start), grown)
        if waited:
            self.hold(context)

    def ends(self, context: Context, timer: Timer, window: Window) -> None:
        """The timer may be that of an earlier, shorter form of the session."""
        if timer.timestamp < window.last:
            context.set_timer(timer.tag, window.last)
            return
        super().ends(context, timer, window)

    def over(self, context: Context, timer: Timer, window: Window) -> None:
        """As `ends`."""
        if self.firing.over_at(window.end) > timer.timestamp:
            if context.watermark >= window.end:
                context.set_timer(timer.tag, self.firing.over_at(window.end))
            return
        super().over(context, timer, window)

    def forget(self, context: Context, entry: str) -> None:
        """Its span goes as well; that of a session which lives on under another start has gone already."""
        super().forget(context, entry)
        start = int(entry)
        spans = self.spans.get()
        kept = [span for span in spans if span[0] != start]
        if len(kept) < len(spans):
            self._keep(kept)

    def _keep(self, spans: Spans) -> None:
        if spans:
            self.spans.set(spans)
        else:
            self.spans.clear()
