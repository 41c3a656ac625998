"""Timers that hooks of one invocation have set and that are due already.

Lives here: which of them fires next, which may not fire in this invocation, and which never get further.  Never here: calls
of hooks (`executor`), other pending timers (`core.keys.timers`).  Invariants:

* the timers of a key and kind fire in (timestamp, tag) order, however far the watermark jumped.  A timer that a hook sets
  fires before later ones in that order.  When it may not fire now, no later one of its key does;
* a timer that does not fire here is among the settings of the outcome, so it is pending again.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Final

from millwheel import limits
from millwheel.bundles import QuarantineEntry, TimerPlace
from millwheel.errors import InvariantError
from millwheel.model import MAX_TIME, MIN_TIME, Timer, TimerKind
from millwheel.work import InvocationOutcome, Stall, TimerId, Work

RANK: Final[Mapping[str, int]] = {"watermark": 0, "wall": 1}
KINDS: Final[tuple[TimerKind, ...]] = ("watermark", "wall")

Due = tuple[int, int, str, str]
"""(rank of its kind, timestamp, key, tag): the order of an invocation."""


class TimerChain:
    """The timers that hooks of the invocation `work` set.

    The executor says which timer fires.  It asks what fires before the `listed` timers, those that the invocation was given.
    """

    def __init__(self, listed: list[Timer], work: Work, outcome: InvocationOutcome) -> None:
        self._work = work
        self._outcome = outcome
        self._stalled = 0
        """Timers that have fired here and did not get further."""
        self.cause: Timer | None = None
        """The timer whose hook runs."""
        self.stall: Stall | None = None
        """The cause's."""
        self.closed = {entry.key for entry in outcome.quarantined}
        """Keys of which nothing more fires in this invocation."""
        self.stopped: list[tuple[str, RuntimeError]] = []
        """Keys whose timers were a loop, and what is said of it."""
        last = listed[-1] if listed else None
        one_kind = last is not None and listed[0].kind == last.kind
        self._last = last.timestamp if last is not None and one_kind else MAX_TIME
        self._quick_rank = RANK[last.kind] if last is not None and one_kind else -1
        self._due: list[Due] = []
        """A heap.  Entries of timers that were moved, cancelled or fired since are stale."""
        for key, changes in outcome.timers.items():  # the invocation goes on
            for (kind, tag), at in changes.items():
                if at is not None and at <= self._until(kind):
                    heappush(self._due, (RANK[kind], at, key, tag))

    def _until(self, kind: str) -> int:
        return self._work.watermark if kind == "watermark" else self._work.wall_time

    # --- what fires -------------------------------------------------------------------------------------------

    def precedes(self, listed: Timer) -> bool:
        """Whether anything may have to fire before `listed`."""
        if not self._due:
            return False
        first = self._due[0]
        return first[1] <= listed.timestamp or first[0] != self._quick_rank

    def next(self, listed: Timer | None) -> Timer | None:
        """The timer that fires before `listed`, or after all listed ones if that is None.  None if nothing does."""
        before = None if listed is None else (RANK[listed.kind], listed.timestamp, listed.key, listed.tag)
        while self._due and (before is None or self._due[0] < before):
            rank, at, key, tag = heappop(self._due)
            kind = KINDS[rank]
            name = (key, kind, tag)
            settings = self._outcome.timers[key]
            if settings.get((kind, tag)) != at or key in self.closed:
                continue
            stall = self._outcome.stalls.get(name)
            if not self._may_fire(kind, (at, (key, tag)), stall):
                self.closed.add(key)
                continue
            settings[kind, tag] = None
            self._outcome.chained += 1
            if stall is not None:
                del self._outcome.stalls[name]
            self.cause, self.stall = Timer(key, tag, at, kind), stall
            return self.cause
        return None

    def _may_fire(self, kind: TimerKind, place: TimerPlace, stall: Stall | None) -> bool:
        reach = self._work.reach.get(kind)
        if reach is None or place >= reach or self._outcome.chained >= self._work.chain:
            return False
        if stall is not None and stall.firings:
            self._stalled += 1
        return self._stalled <= limits.TIMER_STALLED_CHAIN

    def stays(self, timer: Timer) -> None:
        """A timer that was listed, or taken from here, does not fire now, so it is pending again."""
        self._outcome.timers.setdefault(timer.key, {})[timer.kind, timer.tag] = timer.timestamp
        self._outcome.chained -= 1
        name = (timer.key, timer.kind, timer.tag)
        stall = self.stall if timer is self.cause else self._work.stalls.get(name)
        if stall is not None:
            self._outcome.stalls[name] = stall

    # --- what hooks set ---------------------------------------------------------------------------------------

    def add(self, key: str, timers: Mapping[tuple[str, str], int | None]) -> None:
        """The hook that ran has set, moved or cancelled `timers` of `key`."""
        cause, stalls, work = self.cause, self._outcome.stalls, self._work
        if cause is None:
            raise InvariantError("a hook runs")
        for (kind, tag), at in timers.items():
            if stalls:
                stalls.pop((key, kind, tag), None)
            if at is None or at > (work.watermark if kind == "watermark" else work.wall_time):
                continue
            if (self.stall is not None or kind != cause.kind or at <= cause.timestamp) and self._loops(
                (key, kind, tag), at
            ):
                continue
            if at <= self._last or work.reach:
                heappush(self._due, (RANK[kind], at, key, tag))

    def _loops(self, name: TimerId, at: int) -> bool:
        """Note a timer that does not get further.  Returns true when there were so many that it must not be set."""
        key, kind, tag = name
        stall = self._stall(kind, at)
        if stall.firings <= limits.TIMER_REARM_LIMIT:
            self._outcome.stalls[name] = stall
            return False
        error = (
            f"timer {tag!r}: timers of this key have set each other {limits.TIMER_REARM_LIMIT} times, and none of them "
            f"to a later time than they had reached: a loop. Set it to a time after {kind} time {at}"
        )
        self._outcome.timers[key][kind, tag] = None
        looping = Timer(key, tag, at, "wall" if kind == "wall" else "watermark")
        self._outcome.quarantined.append(QuarantineEntry.of_timer(looping, error))
        self.closed.add(key)
        self.stopped.append((key, RuntimeError(error)))
        return True

    def _stall(self, kind: str, at: int) -> Stall:
        """How a timer that is set to `at` stands to those whose firing has led to it."""
        cause, before = self.cause, self.stall
        if cause is None:
            raise InvariantError("a hook runs")
        if before is None:
            event, wall = (cause.timestamp, MIN_TIME) if cause.kind == "watermark" else (MIN_TIME, cause.timestamp)
            before = Stall(0, event, wall)
        event, wall = before.watermark, before.wall
        if at <= (event if kind == "watermark" else wall):
            return Stall(before.firings + 1, event, wall)
        return Stall(0, at, wall) if kind == "watermark" else Stall(0, event, at)
