"""An interval becomes durable by epochs: one image for all that it did between two barriers (Carbone et al. 2015).

Lives here: the way of an epoch from what was put to the tables, as one part (`durability`).  Never here: barriers at the door
(`alignment`), or when an epoch is complete, which the controller says.  docs/adr/0032-snapshots-at-barriers.md has the
reasons.  Invariants:

* bundles leave at once, and what they bring is acked when it has run: both are in memory only, like the state that they
  belong to;
* an image holds what changed since the last one, and neither productions nor ids.  Acks of productions of earlier owners,
  which are in the tables, are in it;
* an ack that was given behind a barrier which this interval has not passed is of the next epoch, like what it acks;
* at the head of a loop, the log of back edges (`loop_log`) is one more row of the epoch;
* nothing of an epoch is folded before it is declared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from millwheel import limits
from millwheel.bundles import (
    Checkpoint,
    LogWrite,
    QuarantineEntry,
    encode_checkpoint,
)
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.core.durability.inflight import Uncommitted, is_empty
from millwheel.core.durability.log import Records
from millwheel.core.durability.loop_log import CLOSED, LoopLog
from millwheel.core.durability.unfolded import CommittedLog
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals, Item
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, ProducerId, Seq, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.work import Cause

NO_ROW: Final = Seq(0)


class WrittenRow(msgspec.Struct, gc=False):
    """One log row of an image."""

    seq: Seq
    size_bytes: int
    image: Checkpoint


class EpochPart(msgspec.Struct, gc=False):
    """What this interval did in one epoch, beside the overlay of its images."""

    counts: ev.Counters
    causes: list[tuple[Cause, bool]] = []
    """Of each sink row, and whether a redrive wrote it."""
    quarantined: list[QuarantineEntry] = []
    epoch: int = 0
    rows: list[WrittenRow] = []
    waits: set[Seq] = set()
    """Seqs of rows that are not written yet."""
    sinks: Seq = NO_ROW
    """Seq of the row with the sink rows; 0 when there are none."""


def _part() -> EpochPart:
    return EpochPart(ev.Counters(), [], [])


class DurableEpochs:
    """A `Durability`: one image an epoch."""

    def __init__(
        self,
        *,
        interval: IntervalId,
        sequencer: Sequencer,
        outbox: Outbox,
        arrivals: Arrivals,
        keyed: KeyedState,
        refused: RefusedRows,
        counters: ev.Counters,
        records: Records,
        label: int = 0,
    ) -> None:
        outbox.epoch = label
        """The label: the last barrier that was passed."""
        self.seq = NO_ROW
        self.last_declared = label
        """The last declared epoch that this interval knows."""
        self._interval = interval
        self._sequencer = sequencer
        self._outbox = outbox
        self._arrivals = arrivals
        self._keyed = keyed
        self._refused = refused
        self._counters = counters
        self._records = records
        self._overlay = EpochImage()
        self._open = _part()
        """Of the epoch that runs."""
        self._written: EpochPart | None = None
        """Of the epoch that is not declared yet."""
        self._loop_log = LoopLog(ProducerId(sequencer))
        self._early: list[int] = []
        """Bundles of earlier owners that were acked behind a barrier which this interval has not passed."""
        self._committed = CommittedLog(self._loop_log.frontier)
        self._folding = False
        self._fold_goal = NO_ROW
        self._idle_since: int | None = None

    @property
    def epoch(self) -> int:
        """The label: the last barrier that was passed."""
        return self._outbox.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._outbox.epoch = epoch

    # --- what runs ------------------------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """See `Durability`.  How much an epoch changes does not count, or its barrier would not come through."""
        return not self._outbox.full() and not self._committed.full()

    def commits_less_than(self, records: int) -> bool:
        """See `Durability`: nothing waits for a commit of its own."""
        return False

    def next_seq(self) -> Seq:
        """See `Durability`."""
        self.seq = Seq(self.seq + 1)
        return self.seq

    def put(self, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        """See `Durability`."""
        image, part = entry.image, self._open
        self._overlay.add(msgspec.structs.replace(image, produced=[]))
        part.causes += [(cause, entry.redrive) for cause in entry.causes]
        part.quarantined += image.quarantined
        part.counts.add(entry.counts)
        self._release(entry, effects)

    def _release(self, entry: Uncommitted, effects: list[ev.Effect]) -> None:
        for bundle in entry.sends:
            effects.append(ev.Send(self._outbox.sendable(bundle)))
        effects += [ev.Ack(sender, number, self.epoch) for sender, number in entry.acks]

    def submit(self, effects: list[ev.Effect], now: int) -> None:
        """See `Durability`.  Nothing is submitted but whole epochs."""

    # --- an epoch -------------------------------------------------------------------------------------------------

    def cut(
        self, epoch: int, receivers: Iterable[IntervalId], effects: list[ev.Effect], now: int, *, logs: bool = False
    ) -> None:
        """All barriers of `epoch` are here, and nothing runs: what was put until now is its part of it.

        The barrier goes on to `receivers`.  With `logs`, a log of back edges begins, which `logged` ends.
        """
        if self._written is not None:
            raise InvariantError(f"epoch {epoch} is cut while {self._written.epoch} is not declared")
        if self._arrivals.recordable(now):
            image, counts = self._records(self.next_seq(), now)
            self._overlay.add(image)
            self._open.counts.add(counts)
        ran = self._overlay.images > 0
        overlay, part = self._overlay, self._open
        self._overlay, self._open, self._written = EpochImage(), _part(), part
        part.epoch = epoch
        acked = self._outbox.record_acks(Seq(epoch)) + self._loop_log.drop()
        image = msgspec.structs.replace(overlay.image(epoch), acked=acked, sinks=[])
        image.state.cells.extend(self._keyed.cut(self.seq))  # if there are any, something ran
        sinks = overlay.sinks
        part.rows = []
        if not is_empty(image) or image.acked or image.outside:
            # The last invocation of the epoch has this seq: what it wrote is clean when the image is folded.
            part.rows.append(self._row(image, self.seq if ran else self.next_seq()))
        if sinks:
            keys = [cause.key for cause, _ in part.causes]
            rows = msgspec.structs.replace(EpochImage().image(epoch), sinks=sinks, sink_keys=keys)
            part.rows.append(self._row(rows, self.next_seq()))
            part.sinks = self.seq
        part.waits = {row.seq for row in part.rows}
        for row in part.rows:
            self._write(epoch, row, effects)
        if logs:  # invocations of the next epoch have higher seqs
            self._loop_log.begin(self.next_seq())
            part.waits.add(self._loop_log.seq)
        effects += map(ev.Send, self._outbox.barriers(epoch, receivers))
        self._outbox.epoch = epoch
        early, self._early = self._early, []
        for number in early:
            self._outbox.ack(number)
        self._tell_written(part, effects)

    def log(self, item: Item) -> None:
        """Records come in that were sent before the barrier of the last cut, on a back edge.

        Those of earlier owners are in the tables until the receiver's ack is, so they need no log.  Without ids, copies of
        what has run before the cut come in, too, on any edge and at any time.
        """
        is_copy = not self._arrivals.exactly_once and self._loop_log.seq == CLOSED
        if item.part is not None and not item.inherited and not is_copy:
            self._loop_log.add(item.part, item.size_bytes)

    def logged(self, effects: list[ev.Effect]) -> None:
        """The barrier has come round on all back edges: the log is complete."""
        part, seq = self._written, self._loop_log.seq
        if part is None or seq not in part.waits:
            return
        produced = self._loop_log.end()
        if produced:
            row = self._row(msgspec.structs.replace(EpochImage().image(part.epoch), produced=produced), seq)
            part.rows.append(row)
            self._write(part.epoch, row, effects)
        else:
            part.waits.discard(seq)
            self._tell_written(part, effects)

    def _write(self, epoch: int, row: WrittenRow, effects: list[ev.Effect]) -> None:
        write = LogWrite(self._interval, self._sequencer, row.seq, epoch, encode_checkpoint(row.image))
        row.size_bytes = len(write.payload)
        effects.append(ev.Commit(write))

    def _row(self, image: Checkpoint, seq: Seq) -> WrittenRow:
        return WrittenRow(seq, 0, image)

    def _tell_written(self, part: EpochPart, effects: list[ev.Effect]) -> None:
        if not part.waits:
            effects.append(ev.PartWritten(part.epoch, part.sinks))

    def committed(self, seq: Seq, effects: list[ev.Effect]) -> None:
        """See `Durability`."""
        part = self._written
        if part is not None and seq in part.waits:
            part.waits.discard(seq)
            self._tell_written(part, effects)

    def declared(self, epoch: int) -> None:
        """The epoch is complete."""
        part = self._written
        if part is None or part.epoch != epoch:
            return
        if part.waits:
            raise InvariantError(f"epoch {epoch} is declared, and not all of it is written")
        self._written, self.last_declared = None, epoch
        self._counters.add(part.counts)
        self._counters.checkpoints += len(part.rows)
        self._refused.settled(part.quarantined)
        self._outbox.recorded(Seq(epoch))
        self._loop_log.declared()
        for row in part.rows:
            self._committed.add(row.seq, row.size_bytes, row.image)

    def refused(self, seq: Seq, effects: list[ev.Effect]) -> list[tuple[Cause, bool]]:
        """See `Durability`.  The epoch is not declared."""
        if self._written is None or self._written.sinks != seq:
            raise InvariantError("sink rows of an epoch were refused that is not under way")
        return self._written.causes

    def acked(self, number: int, now: int, epoch: int = 0) -> None:
        """A receiver has run a bundle.  Of an earlier owner's, which is in the tables, the ack is recorded."""
        bundle = self._outbox.unacked.get(number)
        if bundle is not None and bundle.inherited and epoch > self.epoch:
            self._early.append(number)
            return
        if self._outbox.ack(number) and bundle is not None and not bundle.inherited:
            self._outbox.forget(number)

    def folded(self, upto: Seq) -> list[Checkpoint]:
        """See `Durability`."""
        self._folding = False
        return self._committed.folded(upto)

    # --- what is left ---------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        """False: acks wait for nothing."""
        return False

    def pending(self) -> bool:
        """Whether there is anything for the next epoch, or for the one that is not declared."""
        held = self._outbox.has_unrecorded() or self._early or self._loop_log
        return bool(self._written or self._overlay.images or held)

    def settled(self, acked: bool) -> bool:
        """See `Durability`."""
        if acked and self._outbox.unacked:
            return False
        return not (self.pending() or self._committed or self._folding)

    def pressed(self) -> bool:
        """True when so much has changed in the epoch that runs that nothing more should come in."""
        return (
            self._overlay.writes() + self._keyed.changed >= limits.EPOCH_LIMIT_WRITES
            or self._loop_log.size_bytes >= limits.LOOP_LOG_LIMIT_BYTES
        )

    def quiet(self) -> bool:
        """See `Durability`."""
        return not (
            self.pending() or self._outbox.unacked or self._committed or self._folding or self._outbox.frontier_moved
        )

    def oldest(self) -> int:
        """See `Durability`.  Nothing waits: watermarks are told when they are reached."""
        return MAX_TIME

    def kept_back(self) -> list[int]:
        """See `Durability`."""
        return []

    # --- what is wanted -------------------------------------------------------------------------------------------

    def want(self) -> None:
        """See `Durability`."""
        self._fold_goal = self.seq

    def end(self) -> None:
        """See `Durability`."""
        self.want()
        self._idle_since = MIN_TIME

    def rest(self, busy: bool, effects: list[ev.Effect], now: int) -> None:
        """Tell frontiers, and fold, by age."""
        foldable = bool(self._committed) and not self._folding
        if busy or not (foldable or self._outbox.frontier_moved):
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if now >= self._idle_since + limits.IDLE_RECORD_DELAY_US:
            self._idle_since = None
            if self._outbox.frontier_moved:
                effects += [ev.Send(note) for note in self._outbox.frontier_notes()]
            self.want()

    def fold(self, effects: list[ev.Effect]) -> None:
        """See `Durability`."""
        if self._folding:
            return
        goal = self.seq if self._keyed.unfolded >= limits.UNFOLDED_LIMIT_KEYS else self._fold_goal
        # No fold crosses an epoch, so nothing is saved by waiting for more changes.
        if self._committed.due(goal, hurry=True):
            self._folding = True
            upto, images, later = self._committed.prefix(goal)
            effects.append(ev.Fold(upto, images, later, self._keyed.take_absent(upto), images[0].epoch))

    def alarm(self) -> int:
        """See `Durability`."""
        return MAX_TIME if self._idle_since is None else self._idle_since + limits.IDLE_RECORD_DELAY_US
