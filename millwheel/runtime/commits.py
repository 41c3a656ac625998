"""Group commit: whatever is ready goes into one transaction.

Lives here: who commits with whom, and in which order.  Never here: what a checkpoint is.  Invariant: an interval's
checkpoints are handed to the store in the order of submission, the next group only when the last one is durable.

Intervals with sink rows commit in a lane of their own, so that a slow or locked table of a user delays nobody else.
Nothing declares who writes sink rows: an interval changes lanes with its first one, and never back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from millwheel.bundles import LogWrite

Commit = Callable[[list[LogWrite]], Awaitable[set[tuple[int, int]]]]
"""Makes a group durable; the (interval, seq) pairs that were not fenced."""


class Lane:
    """Checkpoints that wait, and the intervals of the group that is being committed."""

    def __init__(self) -> None:
        self.waiting: list[LogWrite] = []
        self.ready = asyncio.Event()
        self.open: set[int] = set()
        self.closed = asyncio.Event()
        """Set whenever a group is done."""


class GroupCommit:
    """Two lanes: the shared group, and the intervals that write sink rows."""

    def __init__(self, commit: Commit, done: Callable[[LogWrite, bool], None]) -> None:
        self._commit = commit
        self._done = done
        self._shared = Lane()
        self._sinks = Lane()
        self._with_sinks: set[int] = set()

    def submit(self, write: LogWrite) -> None:
        """Commit `write` after everything of its interval that was submitted before."""
        if write.sinks and write.interval not in self._with_sinks:
            self._change_lanes(write.interval)
        lane = self._sinks if write.interval in self._with_sinks else self._shared
        lane.waiting.append(write)
        lane.ready.set()

    def _change_lanes(self, interval: int) -> None:
        self._with_sinks.add(interval)
        self._sinks.waiting += [write for write in self._shared.waiting if write.interval == interval]
        self._shared.waiting = [write for write in self._shared.waiting if write.interval != interval]

    def drop(self, interval: int) -> None:
        """Forget what waits of an interval: its core is void, and the next one must not find it durable."""
        for lane in (self._shared, self._sinks):
            lane.waiting = [write for write in lane.waiting if write.interval != interval]

    def idle(self) -> bool:
        """True when nothing waits or is under way."""
        return not (self._shared.waiting or self._sinks.waiting or self._shared.open or self._sinks.open)

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """One endless service per lane."""
        return self._serve(self._shared, None), self._serve(self._sinks, self._shared)

    async def _serve(self, lane: Lane, before: Lane | None) -> None:
        while True:
            await lane.ready.wait()
            lane.ready.clear()
            while lane.waiting:
                group, lane.waiting = lane.waiting, []
                lane.open = {write.interval for write in group}
                while before is not None and not lane.open.isdisjoint(before.open):
                    before.closed.clear()
                    await before.closed.wait()
                durable = await self._commit(group)
                lane.open = set()
                lane.closed.set()
                for write in group:
                    self._done(write, (write.interval, write.seq) in durable)
