"""An interval becomes durable by its log: a row for each invocation, which folds turn into tables (§6.1.2).

Lives here: the way of a checkpoint from the invocation to the tables, as one part (`durability`).  It puts together the
checkpoints that are under way (`inflight`) and those that are committed and not folded (`unfolded`).  Invariants:

* one fold at a time, and none crosses an epoch;
* an idle interval records its acks and frontiers, and folds, so that ids are collected and logs become empty.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millwheel import limits
from millwheel.bundles import Checkpoint
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.inflight import Inflight, Uncommitted
from millwheel.core.durability.unfolded import CommittedLog
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.work import Cause

Records = Callable[[Seq, int], tuple[Checkpoint, ev.Counters]]
"""Of a seq and the wall time, us: the checkpoint of an interval in which nothing runs, and what it counts."""


class DurableLog:
    """A `Durability`: one row a checkpoint.  `weak` is how the interval's productions leave.

    An interval that sends to nobody is not weak, whatever its settings say: nothing of it leaves early.
    """

    def __init__(
        self,
        *,
        interval: IntervalId,
        sequencer: Sequencer,
        weak: bool,
        outbox: Outbox,
        arrivals: Arrivals,
        keyed: KeyedState,
        refused: RefusedRows,
        counters: ev.Counters,
        records: Records,
    ) -> None:
        self._outbox = outbox
        self._arrivals = arrivals
        self._keyed = keyed
        self._records = records
        self._committed = CommittedLog(outbox.frontier)
        self._inflight = Inflight(
            interval=interval, sequencer=sequencer, weak=weak,
            outbox=outbox, committed=self._committed, refused=refused, counters=counters,
        )  # fmt: skip
        self.seq = Seq(0)
        """Of the newest checkpoint."""
        self._folding = False
        self._fold_goal = Seq(0)
        """Everything up to this seq is wanted in the tables, however little it is."""
        self._stirred = False
        """Since `fold` looked last, something was put, folded or wanted."""
        self._idle_since: int | None = None

    @property
    def epoch(self) -> int:
        """See `Durability`.  The outbox has it, because bundles are made with it."""
        return self._outbox.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._outbox.epoch = epoch

    # --- what runs ------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """See `Durability`."""
        return (
            not self._inflight.full()
            and not self._outbox.full()
            and not self._committed.full()
            and self._keyed.unfolded < limits.UNFOLDED_LIMIT_KEYS
        )

    def commits_less_than(self, records: int) -> bool:
        """See `Durability`."""
        return self._inflight.commits_less_than(records)

    def next_seq(self) -> Seq:
        """See `Durability`."""
        self.seq = Seq(self.seq + 1)
        return self.seq

    def put(self, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        """See `Durability`."""
        self._stirred = True
        self._inflight.put(self._dated(entry), effects, now)

    def _dated(self, entry: Uncommitted) -> Uncommitted:
        if entry.image.epoch != self.epoch:
            entry.image = msgspec.structs.replace(entry.image, epoch=self.epoch)
        return entry

    def submit(self, effects: list[ev.Effect], now: int) -> None:
        """See `Durability`."""
        self._inflight.submit(effects, now)

    # --- what is heard --------------------------------------------------------------------------------------------

    def acked(self, number: int, now: int, epoch: int = 0) -> None:
        """See `Durability`."""
        self._inflight.acked(number, now)

    def committed(self, seq: Seq, effects: list[ev.Effect]) -> None:
        """See `Durability`."""
        self._inflight.committed(seq, effects)

    def refused(self, seq: Seq, effects: list[ev.Effect]) -> list[tuple[Cause, bool]]:
        """See `Durability`."""
        return self._inflight.refused(seq, effects)

    def folded(self, upto: Seq) -> list[Checkpoint]:
        """See `Durability`."""
        self._stirred, self._folding = True, False
        return self._committed.folded(upto)

    # --- what is left ---------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self._inflight)

    def settled(self, acked: bool) -> bool:
        """See `Durability`."""
        if acked and (self._outbox.unacked or self._outbox.has_unrecorded()):
            return False
        return not (self._inflight or self._committed or self._folding)

    def quiet(self) -> bool:
        """See `Durability`."""
        return not (
            self._inflight or self._outbox.unacked or self._committed or self._folding
            or self._outbox.has_unrecorded() or self._outbox.frontier_moved
        )  # fmt: skip

    def oldest(self) -> int:
        """See `Durability`."""
        return self._inflight.oldest()

    def kept_back(self) -> list[int]:
        """See `Durability`."""
        return self._inflight.kept_back()

    # --- what is wanted -------------------------------------------------------------------------------------------

    def want(self) -> None:
        """See `Durability`."""
        self._stirred, self._fold_goal = True, self.seq

    def end(self) -> None:
        """See `Durability`."""
        self.want()
        self._idle_since = MIN_TIME

    def rest(self, busy: bool, effects: list[ev.Effect], now: int) -> None:
        """Record acks and frontiers, and fold, by age."""
        if busy or self._inflight:
            self._idle_since = None
            return
        recordable = self._outbox.has_unrecorded() or self._arrivals.recordable(now)
        foldable = bool(self._committed) and not self._folding
        if not (recordable or foldable or self._outbox.frontier_moved):
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if now < self._idle_since + limits.IDLE_RECORD_DELAY_US:
            return
        self._idle_since = None
        if recordable:
            seq = self.next_seq()
            image, counts = self._records(seq, now)
            self._inflight.put_records(self._dated(Uncommitted(seq, image, [], [], MAX_TIME, counts)), effects)
        elif self._outbox.frontier_moved:
            effects += [ev.Send(note) for note in self._outbox.frontier_notes()]
        self.want()

    def fold(self, effects: list[ev.Effect]) -> None:
        """See `Durability`."""
        if self._folding:
            return
        hurry = self._keyed.over_limit()
        if not (self._stirred or self._inflight.moved or hurry):
            return  # as after most events: neither the log has changed, nor what is durable of acks
        self._stirred = self._inflight.moved = False
        if not self._committed:
            return
        # What is wanted is folded together, when the last of it is durable: the acks that it may carry spare rows.
        goal = Seq(0) if self._inflight.reaches_back(self._fold_goal) else self._fold_goal
        unfolded = self._keyed.unfolded
        if unfolded >= limits.UNFOLDED_LIMIT_KEYS:
            goal = self.seq  # user code waits for it
        if self._committed.due(goal, hurry, unfolded):
            self._folding = True
            upto, images, later = self._committed.prefix(goal)
            effects.append(ev.Fold(upto, images, later, self._keyed.take_absent(upto), images[0].epoch))

    def alarm(self) -> int:
        """See `Durability`."""
        deadline = self._inflight.next_deadline()
        return deadline if self._idle_since is None else min(deadline, self._idle_since + limits.IDLE_RECORD_DELAY_US)
