"""The way of an epoch in one interval: what is put, cut, written, declared and folded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Bundle,
    Checkpoint,
    HoldWrites,
    LogWrite,
    OutsideBucket,
    OutsideIdWrites,
    QuarantineEntry,
    SinkRow,
    StateWrites,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals, Item
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME
from millwheel.work import BundlePart, Columns, RecordCause

ME, OWNER, TARGET, SUB = IntervalId(10), Sequencer(77), IntervalId(20), SubscriptionId(4)


class Part:
    """The durability of one interval, with what it needs."""

    def __init__(self, kind: type[DurableEpochs] = DurableEpochs, outside: Sequence[OutsideBucket] = ()) -> None:
        """`outside` are ids of outside clients that an earlier owner has taken."""
        self.counters, self.refused = ev.Counters(), RefusedRows(renumbered=True)
        self.outbox = Outbox(ME, ProducerId(OWNER), {SUB: Ranges([("", TARGET)])})
        self.arrivals = Arrivals(self.counters, True, dict.fromkeys([SUB], 100), outside, durable_ids=False)
        self.epochs = kind(
            interval=ME, sequencer=OWNER, outbox=self.outbox,
            arrivals=self.arrivals,
            keyed=KeyedState(10**9), refused=self.refused, counters=self.counters,
            records=self.records, label=3,
        )  # fmt: skip
        self.effects: list[ev.Effect] = []
        self.receivers: list[IntervalId] = []

    def records(self, seq: Seq, now: int) -> tuple[Checkpoint, ev.Counters]:
        image = checkpoint()
        image.outside.extend(self.arrivals.checkpointed([], now, idle=True)[1])
        return image, ev.Counters()

    def put(self, key: str = "a", value: bytes = b"1", sinks: int = 0) -> Bundle:
        """One invocation, which writes a key, sends one record, and took bundle 5 of interval 9."""
        seq = self.epochs.next_seq()
        image = checkpoint((key, "sum", "", value))
        image.sinks.extend(SinkRow("t", b"%d" % n) for n in range(sinks))
        produced, (bundle,) = self.outbox.number(SUB, Columns([key], [b"x"], [1]))
        image.produced.append(produced)
        causes = [RecordCause(key, SUB, ProducerId(1), SequenceNumber(n)) for n in range(sinks)]
        entry = Uncommitted(seq, image, [(IntervalId(9), 5)], [bundle], 1, ev.Counters(records=1), [*causes])
        self.epochs.put(entry, self.effects, 0)
        return bundle

    def cut(self, epoch: int) -> list[LogWrite]:
        self.effects.clear()
        self.epochs.cut(epoch, self.receivers, self.effects, 0)
        return [effect.write for effect in self.effects if isinstance(effect, ev.Commit)]

    def done(self, epoch: int) -> None:
        """The epoch is cut, written and declared."""
        for write in self.cut(epoch):
            self.epochs.committed(write.seq, self.effects)
        self.epochs.declared(epoch)


def checkpoint(*rows: tuple[str, str, str, bytes | None]) -> Checkpoint:
    return Checkpoint(
        CHECKPOINT_FORMAT, "1", 0, [], [], [], StateWrites.of(rows), TimerWrites(), HoldWrites(), [], []
    )  # fmt: skip


def with_a_log() -> Part:
    """Epoch 4 is declared, and its log of a loop has one record."""
    part = Part()
    part.epochs.cut(4, [], part.effects, 0, logs=True)
    came = BundlePart(SUB, ProducerId(5), SequenceNumber(0), sequence_numbers([9]), ["k"], [b"v"], [1])
    part.epochs.log(Item(came, ME, 6, 1, 9))
    part.epochs.logged(part.effects)
    part.epochs.committed(part.epochs.seq, part.effects)
    part.epochs.declared(4)
    return part


def test_bundles_and_acks_leave_at_once_under_the_label() -> None:
    part = Part()
    bundle = part.put()
    assert part.effects == [ev.Send(bundle), ev.Ack(IntervalId(9), 5, 3)]
    assert (bundle.epoch, part.epochs.oldest(), bool(part.epochs)) == (3, MAX_TIME, False)
    assert part.epochs.pending()


def test_an_epoch_is_one_row_of_what_changed_without_productions() -> None:
    part = Part()
    for value in (b"1", b"2"):
        part.put(value=value)
    (write,) = part.cut(4)
    image = decode_checkpoint(write.payload)
    assert (write.seq, write.epoch, write.sinks, image.epoch, image.produced) == (2, 4, (), 4, [])
    assert [*image.state.rows()] == [("a", "sum", "", b"2")]
    assert part.effects == [ev.Commit(write)]
    part.epochs.committed(write.seq, part.effects)
    assert part.effects[1:] == [ev.PartWritten(4, Seq(0))]
    assert part.epochs.epoch == 4


def test_sink_rows_are_a_row_of_their_own_behind_the_changes() -> None:
    part = Part()
    part.put(sinks=2)
    changes, sinks = part.cut(4)
    image = decode_checkpoint(sinks.payload)
    assert (changes.seq, sinks.seq, len(image.sinks), image.sink_keys) == (1, 2, 2, ["a", "a"])
    assert decode_checkpoint(changes.payload).sinks == []
    part.epochs.committed(changes.seq, part.effects)
    assert not any(isinstance(effect, ev.PartWritten) for effect in part.effects)
    part.epochs.committed(sinks.seq, part.effects)
    assert part.effects[-1] == ev.PartWritten(4, Seq(2))
    assert [cause.key for cause, _ in part.epochs.refused(Seq(2), [])] == ["a", "a"]
    with pytest.raises(InvariantError, match="not under way"):
        part.epochs.refused(Seq(1), [])
    part.put()
    assert part.epochs.seq == 3


def test_an_interval_without_changes_has_written_its_part_at_once() -> None:
    part = Part()
    assert part.cut(4) == []
    assert part.effects == [ev.PartWritten(4, Seq(0))]


def test_nothing_counts_or_is_folded_before_it_is_declared() -> None:
    part = Part()
    bundle = part.put()
    part.epochs.acked(bundle.number, 0)
    (write,) = part.cut(4)
    part.epochs.want()
    part.epochs.committed(write.seq, part.effects)
    part.epochs.fold(part.effects)
    assert part.counters.records == 0
    assert not any(isinstance(effect, ev.Fold) for effect in part.effects)
    part.epochs.declared(3)
    assert (part.counters.records, part.epochs.last_declared) == (0, 3), "that was another epoch"
    part.epochs.declared(4)
    part.epochs.fold(part.effects)
    assert (part.counters.records, part.counters.checkpoints) == (1, 1)
    (fold,) = [effect for effect in part.effects if isinstance(effect, ev.Fold)]
    assert (fold.upto, [*fold.images[0].state.rows()], fold.epoch) == (1, [("a", "sum", "", b"1")], 4)
    assert part.epochs.folded(fold.upto) == fold.images


def test_what_is_declared_is_folded_at_once_however_little_it_is() -> None:
    part = Part()
    for epoch in (4, 5):
        part.put(value=b"%d" % epoch)
        part.done(epoch)
    for _ in range(2):
        part.effects.clear()
        part.epochs.fold(part.effects)
        part.epochs.fold(part.effects)
        (fold,) = [effect for effect in part.effects if isinstance(effect, ev.Fold)]
        assert len(fold.images) == 1, "no fold crosses an epoch"
        part.epochs.folded(fold.upto)
    assert part.epochs.settled(acked=False)


def test_the_barrier_goes_on_behind_what_was_sent_before_it() -> None:
    part = Part()
    part.receivers.append(TARGET)
    before = part.put()
    part.cut(4)
    (barrier,) = [effect.bundle for effect in part.effects if isinstance(effect, ev.Send)]
    assert (barrier.barrier, barrier.epoch, barrier.target, barrier.sequences) == (4, 3, TARGET, [])
    after = part.put()
    assert (before.epoch, after.epoch) == (3, 4)
    assert part.outbox.resend(TARGET, []) == [before, barrier, after]
    part.epochs.acked(barrier.number, 0)
    assert part.outbox.resend(TARGET, []) == [before, after]
    assert part.outbox.oldest() == 1


def test_one_epoch_is_cut_at_a_time() -> None:
    part = Part()
    part.put()
    part.cut(4)
    with pytest.raises(InvariantError, match="epoch 5 is cut while 4"):
        part.cut(5)
    with pytest.raises(InvariantError, match="not all of it is written"):
        part.epochs.declared(4)


def test_acks_of_an_earlier_owners_productions_are_in_the_image() -> None:
    part = Part()
    columns = (sequence_numbers([8]), ["a"], [b"x"], [1])
    earlier = Bundle(SUB, IntervalId(0), 0, IntervalId(0), ProducerId(50), SequenceNumber(0), *columns)
    (adopted,) = part.outbox.adopt(earlier)
    assert adopted.inherited
    own = part.put()
    for bundle in (adopted, own):
        part.epochs.acked(bundle.number, 0)
    assert part.outbox.frontier(SUB, ProducerId(50)) == 8
    (write,) = part.cut(4)
    (acked,) = decode_checkpoint(write.payload).acked
    assert (acked.producer, acked.sequences) == (50, [8])
    assert part.outbox.frontier(SUB, ProducerId(50)) == 8
    part.epochs.committed(write.seq, part.effects)
    part.epochs.declared(4)
    assert part.outbox.frontier(SUB, ProducerId(50)) == MAX_TIME


def test_acks_alone_are_worth_a_row_with_a_number_of_its_own() -> None:
    part = Part()
    earlier = Bundle(
        SUB, IntervalId(0), 0, IntervalId(0), ProducerId(50), SequenceNumber(0),
        sequence_numbers([8]), ["a"], [b"x"], [1],
    )  # fmt: skip
    (adopted,) = part.outbox.adopt(earlier)
    part.put()
    part.done(4)
    part.epochs.acked(adopted.number, 0)
    (write,) = part.cut(5)
    assert write.seq == 2


def test_an_ack_from_behind_a_barrier_that_this_interval_has_not_passed_is_of_the_next_epoch() -> None:
    # The receiver has run it in its next epoch: after a recovery to this one it needs it again.
    part = Part()
    earlier = Bundle(SUB, ME, 1, TARGET, ProducerId(5), SequenceNumber(0), sequence_numbers([7]), ["k"], [b"v"], [1])
    (adopted,) = part.outbox.adopt(earlier)
    part.put()
    part.epochs.acked(adopted.number, 0, 4)
    (write,) = part.cut(4)
    assert decode_checkpoint(write.payload).acked == []
    part.epochs.committed(write.seq, part.effects)
    part.epochs.declared(4)
    (write,) = part.cut(5)
    assert [[*acked.sequences] for acked in decode_checkpoint(write.payload).acked] == [[7]]


def test_an_ack_from_this_side_of_the_barrier_is_of_the_epoch_that_runs() -> None:
    part = Part()
    earlier = Bundle(SUB, ME, 1, TARGET, ProducerId(5), SequenceNumber(0), sequence_numbers([7]), ["k"], [b"v"], [1])
    (adopted,) = part.outbox.adopt(earlier)
    part.epochs.acked(adopted.number, 0, part.epochs.epoch)
    (write,) = part.cut(4)
    assert [[*acked.sequences] for acked in decode_checkpoint(write.payload).acked] == [[7]]


def test_each_rest_is_as_long_as_the_one_before() -> None:
    part, delay = Part(), limits.IDLE_RECORD_DELAY_US
    for begin in (0, 10 * delay):
        part.outbox.frontier_moved = True
        part.epochs.rest(False, part.effects, begin)
        part.epochs.rest(False, part.effects, begin + delay - 1)
        assert part.outbox.frontier_moved
        part.epochs.rest(False, part.effects, begin + delay)
        assert not part.outbox.frontier_moved


def test_too_many_changes_of_one_epoch_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EPOCH_LIMIT_WRITES", 3)
    part = Part()
    part.put("a")
    part.put("a")
    assert not part.epochs.pressed()
    part.put("b", sinks=1)
    assert part.epochs.pressed()
    assert part.epochs.has_room()  # or its barrier would not come through
    part.cut(4)
    assert not part.epochs.pressed()


def test_the_log_of_a_loop_is_a_row_of_its_epoch_and_numbered_before_what_runs_next() -> None:
    part = Part()
    part.put()
    part.epochs.cut(4, [], part.effects, 0, logs=True)
    assert not [e for e in part.effects if isinstance(e, ev.PartWritten)]
    log = part.epochs.seq
    part.put("b")
    came = BundlePart(SUB, ProducerId(5), SequenceNumber(0), sequence_numbers([9]), ["k"], [b"v"], [1])
    part.epochs.log(Item(came, IntervalId(9), 6, 1, 10))
    stored = msgspec.structs.replace(came, producer=ProducerId(4), keys=["in the tables"])
    part.epochs.log(Item(stored, IntervalId(9), 7, 1, 10, inherited=True))
    part.epochs.logged(part.effects)
    writes = [e.write for e in part.effects if isinstance(e, ev.Commit)]
    assert [(write.seq, write.epoch) for write in writes] == [(Seq(1), 4), (log, 4)]
    assert decode_checkpoint(writes[1].payload).produced[0].keys == ["k"]
    for write in writes:
        part.epochs.committed(write.seq, part.effects)
    assert [e for e in part.effects if isinstance(e, ev.PartWritten)] == [ev.PartWritten(4, Seq(0))]


def test_a_log_waits_for_the_next_cut_which_drops_it() -> None:
    part = Part()
    part.epochs.cut(4, [], part.effects, 0, logs=True)
    part.epochs.log(
        Item(BundlePart(SUB, ProducerId(5), SequenceNumber(0), sequence_numbers([9]), ["k"], [b"v"], [1]), ME, 6, 1, 9)
    )
    part.epochs.logged(part.effects)
    (log,) = [e.write for e in part.effects if isinstance(e, ev.Commit)]
    part.epochs.committed(log.seq, part.effects)
    part.epochs.declared(4)
    assert part.epochs.pending()
    (write,) = part.cut(5)
    assert [[*acked.sequences] for acked in decode_checkpoint(write.payload).acked] == [[0]]
    part.epochs.committed(write.seq, part.effects)
    part.epochs.declared(5)
    assert not part.epochs.pending()


def test_the_log_of_a_loop_is_folded_when_the_next_epoch_has_dropped_it_or_when_all_is_wanted_in_the_tables() -> None:
    for wanted in (True, False):
        part = with_a_log()
        part.epochs.fold(part.effects)
        assert not [effect for effect in part.effects if isinstance(effect, ev.Fold)], (
            "a fold would store what it holds"
        )
        if wanted:
            part.epochs.want()
        else:
            part.done(5)
        part.epochs.fold(part.effects)
        assert [effect.epoch for effect in part.effects if isinstance(effect, ev.Fold)] == [4]


def test_an_interval_is_settled_when_all_that_it_did_is_declared_and_in_the_tables() -> None:
    part, found = Part(), []
    bundle = part.put()
    found.append(part.epochs.settled(acked=False))
    (write,) = part.cut(4)
    found.append(part.epochs.settled(acked=False))
    part.epochs.committed(write.seq, part.effects)
    found.append(part.epochs.settled(acked=False))
    part.epochs.declared(4)
    found.append(part.epochs.settled(acked=False))
    part.epochs.want()
    part.epochs.fold(part.effects)
    found.append(part.epochs.settled(acked=False))
    assert found == [False] * 5
    part.epochs.folded(write.seq)
    assert part.epochs.settled(acked=False)
    assert not part.epochs.settled(acked=True)
    part.epochs.acked(bundle.number, 0)
    assert part.epochs.settled(acked=True)


def test_an_ack_of_the_next_epoch_is_still_to_be_recorded() -> None:
    part = Part()
    earlier = Bundle(SUB, ME, 1, TARGET, ProducerId(5), SequenceNumber(0), sequence_numbers([7]), ["k"], [b"v"], [1])
    (adopted,) = part.outbox.adopt(earlier)
    assert not part.epochs.pending()
    part.epochs.acked(adopted.number, 0, 4)
    assert part.epochs.pending()


def test_ids_of_outside_clients_that_have_expired_are_worth_a_row() -> None:
    # Nobody else says that they may be deleted, and an interval that is idle has nothing more to write.
    part = Part(outside=[OutsideBucket(SUB, -1, 3)])
    (write,) = part.cut(4)
    image = decode_checkpoint(write.payload)
    assert image.outside == [OutsideIdWrites(SUB, 0, [])]
    assert not part.arrivals.recordable(0)


def test_a_culprit_is_forgotten_when_the_epoch_with_its_quarantine_is_declared() -> None:
    # Else the next record of its key, which ids cannot tell from it after a restart, would go to quarantine as well.
    part = Part()
    cause = RecordCause("a", SUB, ProducerId(1), SequenceNumber(0))
    part.refused.add(cause, "the table says no")
    seq = part.epochs.next_seq()
    image = checkpoint()
    image.quarantined.append(QuarantineEntry("a", SUB, ProducerId(1), SequenceNumber(0), b"v", 1, error="no"))
    part.epochs.put(Uncommitted(seq, image, [], [], 1, ev.Counters(), []), part.effects, 0)
    (write,) = part.cut(4)
    part.epochs.committed(write.seq, part.effects)
    assert part.refused.answer(cause) is not None
    part.epochs.declared(4)
    assert part.refused.answer(cause) is None


def test_an_interval_is_quiet_when_all_receivers_know_its_frontier() -> None:
    part = Part()
    bundle = part.put()
    part.epochs.acked(bundle.number, 0)
    part.done(4)
    part.epochs.want()
    part.epochs.fold(part.effects)
    part.epochs.folded(part.epochs.seq)
    assert not part.epochs.quiet()
    part.effects.clear()
    for now in (0, limits.IDLE_RECORD_DELAY_US):
        part.epochs.rest(False, part.effects, now)
    assert [effect.bundle.frontier for effect in part.effects if isinstance(effect, ev.Send)] == [1]
    assert part.epochs.quiet()


def test_a_fold_is_due_when_many_keys_wait_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNFOLDED_LIMIT_KEYS", 0)
    part = Part()
    part.put()
    part.done(4)
    part.epochs.fold(part.effects)
    assert [effect.upto for effect in part.effects if isinstance(effect, ev.Fold)] == [part.epochs.seq]


def test_a_long_log_of_a_loop_lets_nothing_more_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOP_LOG_LIMIT_BYTES", 10)
    part = Part()
    part.epochs.cut(4, [], part.effects, 0, logs=True)
    came = BundlePart(SUB, ProducerId(5), SequenceNumber(0), sequence_numbers([9]), ["k"], [b"v"], [1])
    part.epochs.log(Item(came, IntervalId(9), 6, 1, 9))
    assert not part.epochs.pressed()
    part.epochs.log(Item(came, IntervalId(9), 7, 1, 1))
    assert part.epochs.pressed()


def test_the_log_of_a_loop_is_folded_when_its_interval_has_rested() -> None:
    """No other epoch may come that drops it."""
    part, delay = with_a_log(), limits.IDLE_RECORD_DELAY_US
    part.epochs.rest(False, part.effects, 0)
    assert part.epochs.alarm() == delay
    part.epochs.rest(False, part.effects, delay)
    assert part.epochs.alarm() == MAX_TIME
    part.epochs.fold(part.effects)
    assert [effect.epoch for effect in part.effects if isinstance(effect, ev.Fold)] == [4]


def test_a_part_is_told_once_whatever_the_store_says_again() -> None:
    part = Part()
    part.put()
    (write,) = part.cut(4)
    part.epochs.committed(Seq(write.seq + 1), part.effects)
    assert not any(isinstance(effect, ev.PartWritten) for effect in part.effects)
    for _ in range(2):
        part.epochs.committed(write.seq, part.effects)
    assert [effect for effect in part.effects if isinstance(effect, ev.PartWritten)] == [ev.PartWritten(4, Seq(0))]
    part.epochs.declared(4)
    part.effects.clear()
    part.epochs.committed(write.seq, part.effects)
    assert part.effects == []


def test_nothing_runs_while_the_log_waits_for_a_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_LIMIT_CHECKPOINTS", 1)
    part = Part()
    for epoch in range(4, 4 + limits.LOG_FULL_FACTOR):
        assert part.epochs.has_room()
        part.put()
        part.done(epoch)
    assert not part.epochs.has_room()
    part.epochs.fold(part.effects)
    (fold,) = [effect for effect in part.effects if isinstance(effect, ev.Fold)]
    part.epochs.folded(fold.upto)
    assert part.epochs.has_room()


def test_an_ack_of_a_production_in_the_tables_is_something_for_the_next_epoch() -> None:
    part = Part()
    earlier = Bundle(SUB, ME, 1, TARGET, ProducerId(5), SequenceNumber(0), sequence_numbers([7]), ["k"], [b"v"], [1])
    (adopted,) = part.outbox.adopt(earlier)
    assert not part.epochs.pending()
    part.epochs.acked(adopted.number, 0, part.epochs.epoch)
    assert part.epochs.pending()
    assert not part.epochs.settled(acked=False)
    part.done(4)
    assert not part.epochs.pending()


def test_keys_with_timers_of_an_epoch_count_as_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EPOCH_LIMIT_WRITES", 3)
    part = Part()
    part.put("a")
    for key in ("k", "l"):
        assert not part.epochs.pressed()
        image = checkpoint()
        image.timers.add(key, "t", "watermark", 5)
        part.epochs.put(Uncommitted(part.epochs.next_seq(), image, [], [], 1, ev.Counters(), []), part.effects, 0)
    assert part.epochs.pressed()


def test_records_never_gather_for_the_commit_of_an_epoch() -> None:
    """Nothing of an epoch commits before its barrier, and that waits for the records."""
    part = Part()
    part.put()
    assert not part.epochs.commits_less_than(1_000)
    part.cut(4)
    assert not part.epochs.commits_less_than(1_000)


def test_an_interval_is_not_quiet_before_what_is_declared_is_in_the_tables() -> None:
    part = Part()
    bundle = part.put()
    part.epochs.acked(bundle.number, 0)
    part.outbox.frontier_notes()
    assert not part.epochs.quiet(), "nothing of it is in an image"
    part.done(4)
    assert not part.epochs.quiet()
    part.epochs.fold(part.effects)
    assert not part.epochs.quiet(), "the fold is on its way"
    part.epochs.folded(part.epochs.seq)
    assert part.epochs.quiet()


def test_what_hooks_have_set_counts_with_the_other_changes_of_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EPOCH_LIMIT_WRITES", 3)
    part = Part()
    keyed = part.epochs._keyed = KeyedState(10**9, by_epochs=True)
    part.put("a")
    assert keyed._cache.changes is not None
    keyed._cache.changes["c"] = {"b": b"1"}
    assert not part.epochs.pressed()
    keyed._cache.changes["d"] = {"b": b"1"}
    assert part.epochs.pressed()


def test_who_had_nothing_to_tell_meanwhile_rests_again_from_the_beginning() -> None:
    part, delay = Part(), limits.IDLE_RECORD_DELAY_US
    for moved, busy, now in (
        (True, False, 0),
        (False, False, 1),
        (True, False, 2),
        (True, True, 3),
        (True, False, delay),
    ):
        part.outbox.frontier_moved = moved
        part.epochs.rest(busy, part.effects, now)
    assert (part.outbox.frontier_moved, part.epochs.alarm()) == (True, 2 * delay)
    part.outbox.frontier_moved = False
    part.epochs.rest(False, part.effects, delay + 1)
    assert part.epochs.alarm() == MAX_TIME


def test_what_hooks_have_set_is_in_the_image_of_their_epoch_and_in_no_other() -> None:
    part = Part()
    keyed = part.epochs._keyed = KeyedState(10**9, by_epochs=True)
    for epoch in (4, 5):
        part.put("a", value=b"%d" % epoch)
        assert keyed._cache.changes is not None
        keyed._cache.changes["c"] = {f"k{epoch}": b"1"}
        (write,) = part.cut(epoch)
        rows = [*decode_checkpoint(write.payload).state.rows()]
        assert rows == [("a", "sum", "", b"%d" % epoch), (f"k{epoch}", "c", "", b"1")]
        part.epochs.committed(write.seq, part.effects)
        part.epochs.declared(epoch)


def test_a_refusal_before_any_cut_is_a_bug() -> None:
    with pytest.raises(InvariantError, match="not under way"):
        Part().epochs.refused(Seq(1), [])


def test_without_ids_the_log_of_a_loop_has_what_comes_while_it_is_open_and_no_copies_that_come_later() -> None:
    part = Part()
    part.arrivals.exactly_once = False
    came = BundlePart(SUB, ProducerId(5), SequenceNumber(0), sequence_numbers([9]), ["k"], [b"v"], [1])
    part.epochs.cut(4, [], part.effects, 0, logs=True)
    part.epochs.log(Item(came, IntervalId(9), 6, 1, 10))
    part.epochs.logged(part.effects)
    part.epochs.log(Item(came, IntervalId(9), 6, 1, 10))
    (write,) = [effect.write for effect in part.effects if isinstance(effect, ev.Commit)]
    assert [run.keys for run in decode_checkpoint(write.payload).produced] == [["k"]]
