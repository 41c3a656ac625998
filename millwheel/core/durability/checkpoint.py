"""What one invocation changes: applied to the soft state of its interval, and written down as a checkpoint (§6.1.2).

Lives here: the image of a checkpoint, and timers and holds as a hook leaves them.  Never here: productions (`outbox`),
when a checkpoint is committed (`inflight`).  Invariants:

* the image holds exactly what was applied: a recovered interval has the state, timers, holds and quarantine of the one
  that died;
* a timer that fired is removed by the checkpoint that contains its effects.
"""

from __future__ import annotations

import msgspec

from millwheel.bundles import CHECKPOINT_FORMAT, Checkpoint, HoldWrites, TimerWrites
from millwheel.core.faults.quarantine import Quarantine, quarantine_hold
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.interval.schedule import ScheduledWork
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import Seq
from millwheel.model import MAX_TIME
from millwheel.work import InvocationOutcome, Work


class Checkpointer:
    """Writes the checkpoints of one interval, whose computation has this `shape`."""

    def __init__(
        self,
        *,
        shape: str,
        keyed: KeyedState,
        arrivals: Arrivals,
        expiry: Expiry,
        quarantine: Quarantine,
    ) -> None:
        self._shape = shape
        self._keyed = keyed
        self._arrivals = arrivals
        self._expiry = expiry
        self._quarantine = quarantine

    def image(self, seq: Seq, scheduled: ScheduledWork, outcome: InvocationOutcome, watermark: int) -> Checkpoint:
        """Apply what an invocation did as checkpoint `seq`; `watermark` is the input's by now."""
        work, timers, holds = scheduled.work, TimerWrites(), HoldWrites()
        expired = self._expiry.drop(scheduled.expiring, seq, watermark, timers)
        quarantined = outcome.quarantined + self._quarantine.take_diverted()
        state = self._keyed.apply(work, outcome, seq, timers, holds)
        self._expiry.renew(state, work, watermark, timers)
        redriven = self._quarantine.redriven(seq, work, outcome)
        released = self._quarantine.take_released(seq, holds)
        # After the releases: a key may fail again in the same checkpoint.
        self._quarantine.put(quarantined, seq, work, holds)
        self._keyed.check_written(timers, holds)
        ids, outside = self._arrivals.checkpointed(scheduled.items, work.wall_time)
        return Checkpoint(
            CHECKPOINT_FORMAT, self._shape, 0, ids, [], [], state, timers, holds,
            outcome.sinks, quarantined, expired, redriven, released, outside,
        )  # fmt: skip

    def records(self, seq: Seq, watermark: int, now: int) -> Checkpoint:
        """Checkpoint `seq` of an interval in which nothing runs: frontiers, and outside ids that have expired."""
        image = self.image(seq, ScheduledWork(Work([], [], {}, {}, {}, watermark, now)), InvocationOutcome(), watermark)
        ids, outside = self._arrivals.checkpointed([], now, idle=True)
        # Under snapshots the first image has taken the frontiers already.
        return msgspec.structs.replace(image, ids=[*image.ids, *ids], outside=[*image.outside, *outside])

    def oldest_undone(self, work: Work, outcome: InvocationOutcome) -> int:
        """The oldest time of the timers and holds that `outcome` moves, ends or puts to sleep.

        Call it before `outcome` is applied.  A crash before the commit brings them back, so they count until then.
        """
        oldest = MAX_TIME
        stopped = self._quarantine.stopping(outcome.quarantined)
        quarantines = map(quarantine_hold, (*self._quarantine.released, *(entry.key for entry in work.redrive)))
        for key in (*outcome.holds, *quarantines, *stopped):
            oldest = min(oldest, self._keyed.holds.counting(key))
        for key in stopped:
            oldest = min([oldest, *(at for (kind, _), at in self._keyed.timers.of(key) if kind == "watermark")])
        for key, changes in outcome.timers.items():
            for (kind, tag), at in self._keyed.timers.of(key):
                if kind == "watermark" and (kind, tag) in changes:
                    oldest = min(oldest, at)
        return oldest
