"""What one invocation changes: applied to the soft state of its interval, and written down as a checkpoint (§6.1.2).

Lives here: the image of a checkpoint, and timers and holds as a hook leaves them.  Never here: productions (`outbox`),
when a checkpoint is committed (`inflight`).  Invariants:

* the image holds exactly what was applied: a recovered interval has the state, timers, holds and quarantine of the one
  that died;
* a timer that fired is removed by the checkpoint that contains its effects.
"""

from __future__ import annotations

import msgspec

from millwheel.bundles import CHECKPOINT_FORMAT, Checkpoint, HoldWrites, StateWrites, TimerWrites
from millwheel.core.faults.quarantine import Quarantine, quarantine_hold
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.interval.schedule import ScheduledWork
from millwheel.core.keys.cache import StateCache
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.holds import Holds
from millwheel.core.keys.timers import TimerQueue
from millwheel.ids import Seq
from millwheel.model import MAX_TIME
from millwheel.work import InvocationOutcome, Work


class Checkpointer:
    """Writes the checkpoints of one interval, whose computation has this `shape`."""

    def __init__(
        self,
        *,
        shape: str,
        cache: StateCache,
        arrivals: Arrivals,
        timers: TimerQueue,
        holds: Holds,
        expiry: Expiry,
        quarantine: Quarantine,
    ) -> None:
        self._shape = shape
        self._cache = cache
        self._arrivals = arrivals
        self._timers = timers
        self._holds = holds
        self._expiry = expiry
        self._quarantine = quarantine

    def image(self, seq: Seq, scheduled: ScheduledWork, outcome: InvocationOutcome, watermark: int) -> Checkpoint:
        """Apply what an invocation did as checkpoint `seq`; `watermark` is the input's by now."""
        work, timers, holds = scheduled.work, TimerWrites(), HoldWrites()
        expired = self._expiry.drop(scheduled.expiring, seq, watermark, timers)
        quarantined = outcome.quarantined + self._quarantine.take_diverted()
        self._apply_timers(work, outcome, timers)
        self._cache.mark([*(timer.key for timer in work.timers), *outcome.timers], seq)
        self._apply_holds(outcome, holds)
        state = StateWrites(self._cache.write_all(outcome, seq))
        self._expiry.renew(state, work, watermark, timers)
        redriven = self._quarantine.redriven(seq, work, outcome)
        released = self._quarantine.take_released(seq, holds)
        # After the releases: a key may fail again in the same checkpoint.
        self._quarantine.put(quarantined, seq, work, holds)
        ids, outside = self._arrivals.checkpointed(scheduled.items, work.wall_time)
        return Checkpoint(
            CHECKPOINT_FORMAT, self._shape, 0, ids, [], [], state, timers, holds,
            outcome.sinks, quarantined, expired, redriven, released, outside,
        )  # fmt: skip

    def records(self, seq: Seq, watermark: int, now: int) -> Checkpoint:
        """Checkpoint `seq` of an interval in which nothing runs: frontiers, and outside ids that have expired."""
        image = self.image(seq, ScheduledWork(Work([], [], {}, {}, {}, watermark, now)), InvocationOutcome(), watermark)
        ids, outside = self._arrivals.checkpointed([], now, idle=True)
        return msgspec.structs.replace(image, ids=ids, outside=outside)

    def oldest_undone(self, work: Work, outcome: InvocationOutcome) -> int:
        """The oldest time of the timers and holds that `outcome` moves, ends or puts to sleep.

        Call it before `outcome` is applied.  A crash before the commit brings them back, so they count until then.
        """
        oldest = MAX_TIME
        stopped = self._quarantine.stopping(outcome.quarantined)
        quarantines = map(quarantine_hold, (*self._quarantine.released, *(entry.key for entry in work.redrive)))
        for key in (*outcome.holds, *quarantines, *stopped):
            oldest = min(oldest, self._holds.counting(key))
        for key in stopped:
            oldest = min([oldest, *(at for (kind, _), at in self._timers.of(key) if kind == "watermark")])
        for key, changes in outcome.timers.items():
            for (kind, tag), at in self._timers.of(key):
                if kind == "watermark" and (kind, tag) in changes:
                    oldest = min(oldest, at)
        return oldest

    # --- timers and holds -------------------------------------------------------------------------------------

    def _apply_timers(self, work: Work, outcome: InvocationOutcome, writes: TimerWrites) -> None:
        for timer in work.timers:
            if (timer.kind, timer.tag) not in outcome.timers.get(timer.key, ()):
                writes.add(timer.key, timer.tag, timer.kind, None)
        stalls = self._timers.stalls
        for key, changes in outcome.timers.items():
            for (kind, tag), at in changes.items():
                if stalls:
                    stalls.pop((key, kind, tag), None)
                if at is None:
                    self._timers.remove(key, kind, tag)
                else:
                    self._timers.set(key, kind, tag, at)
                writes.add(key, tag, kind, at)
        stalls.update(outcome.stalls)

    def _apply_holds(self, outcome: InvocationOutcome, writes: HoldWrites) -> None:
        for key, at in outcome.holds.items():
            if at is None:
                self._holds.remove(key)
            else:
                self._holds.set(key, at)
            writes.add(key, at)
