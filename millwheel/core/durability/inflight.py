"""Checkpoints between their invocation and their commit (§6.1.2).

Lives here: their order, what goes out before a commit and what waits for it, strong and weak.  Never here: what is in a
checkpoint (`checkpoint`), what is committed (`unfolded`).  Invariants:

* checkpoints commit strictly in seq order; acks and strong sends wait for the whole prefix;
* a checkpoint that holds an input's id holds every production of that input that is not acked yet;
* at its deadline, a weak checkpoint stores the productions that are not acked.  The deadline moves close when a later
  checkpoint has all its acks and waits for nothing else.
"""

from __future__ import annotations

from collections import deque

import msgspec

from millwheel import limits
from millwheel.bundles import Bundle, Checkpoint, LogWrite, Produced, encode_checkpoint
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.unfolded import CommittedLog
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.limits import WEAK_INFLIGHT_CHECKPOINTS
from millwheel.model import MAX_TIME
from millwheel.work import Cause


class Uncommitted(msgspec.Struct, gc=False):
    """One checkpoint, and what goes out when it is durable."""

    seq: Seq
    image: Checkpoint
    acks: list[tuple[IntervalId, int]]
    """(sender, number) of the bundles that it consumes."""
    sends: list[Bundle]
    oldest: int
    """The smallest event time that its commit settles."""
    counts: ev.Counters
    causes: list[Cause] = []
    """Of each of its sink rows."""
    redrive: bool = False
    deadline: int = 0
    """Weak: wall time until which it waits for acks."""
    waits: set[int] = set()
    """Weak: numbers of its bundles whose acks the checkpoint waits for."""
    write: LogWrite | None = None
    """Its log row, once it is handed over.  A checkpoint with nothing left to write has none."""
    submitted: bool = False
    done: bool = False


class Inflight:
    """A queue, oldest first.  It sends from the outbox of its interval and adds to its log what is committed."""

    def __init__(
        self,
        *,
        interval: IntervalId,
        sequencer: Sequencer,
        weak: bool,
        outbox: Outbox,
        committed: CommittedLog,
        refused: RefusedRows,
        counters: ev.Counters,
    ) -> None:
        self._interval = interval
        self._sequencer = sequencer
        self._weak = weak
        self._outbox = outbox
        self._committed = committed
        self._refused = refused
        self._counters = counters
        self._entries: deque[Uncommitted] = deque()
        self._work = 0
        """Records and timers of all of them."""
        self.moved = False
        """Since somebody has set this back, something has become durable, or a frontier has come further."""

    def __bool__(self) -> bool:
        return bool(self._entries)

    def full(self) -> bool:
        """True when no user code may run until one is committed."""
        limit = WEAK_INFLIGHT_CHECKPOINTS if self._weak else limits.INFLIGHT_LIMIT_CHECKPOINTS
        return len(self._entries) >= limit

    def commits_less_than(self, records: int) -> bool:
        """True while something strong waits for its commit, and all that waits is of fewer records and timers."""
        return bool(self._entries) and not self._weak and self._work < records

    def reaches_back(self, seq: Seq) -> bool:
        """True when checkpoint `seq`, or one before it, is not durable yet."""
        return bool(self._entries) and self._entries[0].seq <= seq

    def oldest(self) -> int:
        """The smallest event time that waits for a commit, or MAX_TIME."""
        return min((entry.oldest for entry in self._entries), default=MAX_TIME)

    def next_deadline(self) -> int:
        """When the next weak checkpoint stops waiting for acks, or MAX_TIME."""
        if not self._weak:
            return MAX_TIME
        for entry in self._entries:
            if entry.waits and not entry.submitted:
                return entry.deadline
        return MAX_TIME

    def kept_back(self) -> list[int]:
        """Numbers of the bundles that are not sent before their checkpoint is durable."""
        return [bundle.number for entry in self._entries for bundle in entry.sends]

    # --- to the commit ----------------------------------------------------------------------------------------

    def put(self, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        """The next checkpoint.  Weak productions leave at once, and it waits for their acks."""
        self._append(entry)
        if self._weak:
            bundles, entry.sends = entry.sends, []
            entry.waits = {bundle.number for bundle in bundles}
            effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in bundles]
            if not bundles:
                self._hurry(entry, now)

    def _append(self, entry: Uncommitted) -> None:
        self._entries.append(entry)
        self._work += entry.counts.records + entry.counts.timers

    def _hurry(self, ready: Uncommitted, now: int) -> None:
        """`ready` waits for no ack any more, so earlier checkpoints must not keep it waiting long (§6.1.3, figure 11)."""
        for entry in self._entries:
            if entry is ready:
                return
            entry.deadline = min(entry.deadline, now + limits.STRAGGLER_PATIENCE_US)

    def put_records(self, entry: Uncommitted, effects: list[ev.Effect]) -> None:
        """Add a checkpoint of acks and frontiers, which an idle interval writes.  It waits for nothing."""
        self._append(entry)
        self._hand_over(entry, effects)

    def submit(self, effects: list[ev.Effect], now: int) -> None:
        """Hand over checkpoints in seq order.  A weak one waits for its acks, at most for the straggler delay."""
        entries = self._entries
        if not entries or (entries[-1].submitted and not entries[0].done):
            return  # as after most events: all that is here is with the store
        for entry in entries:
            if entry.submitted:
                continue
            if entry.waits and now < entry.deadline:
                break
            if self._weak:
                entry.image = msgspec.structs.replace(entry.image, produced=self._still_unacked(entry))
                entry.waits = set()
            if is_empty(entry.image):
                entry.submitted = entry.done = True
            else:
                self._hand_over(entry, effects)
        self._pop_done(effects)

    def _hand_over(self, entry: Uncommitted, effects: list[ev.Effect]) -> None:
        entry.submitted = True
        acked = self._outbox.record_acks(entry.seq)
        image = entry.image = msgspec.structs.replace(entry.image, acked=acked) if acked else entry.image
        entry.write = LogWrite(
            self._interval, self._sequencer, entry.seq, image.epoch,
            encode_checkpoint(image), tuple(image.sinks), tuple(cause.key for cause in entry.causes),
        )  # fmt: skip
        effects.append(ev.Commit(entry.write))

    def _still_unacked(self, entry: Uncommitted) -> list[Produced]:
        produced = []
        for number in sorted(entry.waits):
            produced += _runs(self._outbox.unacked[number])
        return produced

    def acked(self, number: int, now: int) -> None:
        """A receiver has made a bundle durable."""
        for entry in self._entries:
            if number in entry.waits:
                # This production is weak and in no checkpoint.  Nothing durable knows its id, so the ack is not recorded.
                entry.waits.discard(number)
                self._outbox.ack(number)
                self._outbox.forget(number)
                self.moved = True
                if not entry.waits:
                    self._hurry(entry, now)
                return
        self._outbox.ack(number)

    # --- after it ---------------------------------------------------------------------------------------------

    def committed(self, seq: Seq, effects: list[ev.Effect]) -> None:
        """Checkpoint `seq` is durable."""
        for entry in self._entries:
            if entry.seq == seq:
                entry.done = True
        self._pop_done(effects)

    def refused(self, seq: Seq, effects: list[ev.Effect]) -> list[tuple[Cause, bool]]:
        """Checkpoint `seq` was refused: it and all later ones are void, all earlier ones are durable.

        Returns what wrote each of its sink rows, and whether that was a redrive.
        """
        for entry in self._entries:
            entry.done = entry.done or entry.seq < seq
        self._pop_done(effects)
        if not self._entries or self._entries[0].seq != seq:
            raise InvariantError("a checkpoint was refused that is not under way")
        entry = self._entries[0]
        return [(cause, entry.redrive) for cause in entry.causes]

    def _pop_done(self, effects: list[ev.Effect]) -> None:
        while self._entries and self._entries[0].done:
            entry = self._entries.popleft()
            self._work -= entry.counts.records + entry.counts.timers
            self.moved = True
            self._counters.add(entry.counts)
            if entry.write is not None:
                self._refused.settled(entry.image.quarantined)
                self._outbox.recorded(entry.seq)
                self._committed.add(entry.seq, len(entry.write.payload), entry.image)
                self._counters.checkpoints += 1
            effects += [ev.Ack(sender, number, entry.image.epoch) for sender, number in entry.acks]
            effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in entry.sends]


def is_empty(image: Checkpoint) -> bool:
    """Whether a checkpoint changes nothing."""
    return not (
        image.ids or image.produced or image.state.cells or image.timers.keys or image.holds.keys or image.sinks
        or image.quarantined or image.forgotten or image.redriven or image.released
    )  # fmt: skip


def _runs(bundle: Bundle) -> list[Produced]:
    """A bundle's productions as runs of dense sequences, the form a checkpoint stores."""
    runs: list[Produced] = []
    for i, sequence in enumerate(bundle.sequences):
        last = runs[-1] if runs else None
        if last is None or sequence != last.first + len(last.keys):
            last = Produced(bundle.subscription, bundle.producer, sequence, [], [], [])
            runs.append(last)
        last.keys.append(bundle.keys[i])
        last.values.append(bundle.values[i])
        last.timestamps.append(bundle.timestamps[i])
    return runs
