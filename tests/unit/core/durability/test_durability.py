"""What both ways to become durable promise, by the log and by epochs: the same script, and the same answers."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.bundles import Bundle, SinkRow, decode_checkpoint
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.durability import Durability
from millwheel.core.durability.durable_epochs import DurableEpochs
from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.durability.log import DurableLog
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME
from millwheel.work import Columns, RecordCause
from tests.unit.core.durability.test_durable_epochs import checkpoint

ME, OWNER, TARGET, SUB = IntervalId(10), Sequencer(77), IntervalId(20), SubscriptionId(4)


class Way:
    """One interval that becomes durable in one of the two ways."""

    def __init__(self, name: str) -> None:
        self.counters = ev.Counters()
        self.outbox = Outbox(ME, ProducerId(OWNER), {SUB: Ranges([("", TARGET)])})
        self.effects: list[ev.Effect] = []
        self.epoch = 0
        arrivals = Arrivals(self.counters, True, {}, [], durable_ids=name == "log")
        self.durability: Durability
        self.epochs: DurableEpochs | None = None
        if name == "log":
            self.durability = DurableLog(
                interval=ME, sequencer=OWNER, weak=False, outbox=self.outbox, arrivals=arrivals,
                keyed=KeyedState(10**9), refused=RefusedRows(), counters=self.counters,
                records=lambda seq, now: (checkpoint(), ev.Counters()),
            )  # fmt: skip
        else:
            self.durability = self.epochs = DurableEpochs(
                interval=ME, sequencer=OWNER, outbox=self.outbox, arrivals=arrivals, keyed=KeyedState(10**9),
                refused=RefusedRows(), counters=self.counters,
                records=lambda seq, now: (checkpoint(), ev.Counters()), label=0,
            )  # fmt: skip

    def put(self, oldest: int, sinks: int = 0) -> Bundle:
        """One invocation, of records as old as `oldest`: it writes a key, and sends one record."""
        seq = self.durability.next_seq()
        image = checkpoint((f"k{seq}", "sum", "", b"%d" % seq))
        image.sinks.extend(SinkRow("t", b"%d" % n) for n in range(sinks))
        produced, (bundle,) = self.outbox.number(SUB, Columns(["k"], [b"x"], [oldest]))
        image.produced.append(produced)
        causes = [RecordCause(f"k{n % 3}", SUB, ProducerId(1), SequenceNumber(n)) for n in range(sinks)]
        entry = Uncommitted(
            seq, image, [(IntervalId(9), int(seq))], [bundle], oldest, ev.Counters(records=1), [*causes]
        )
        self.durability.put(entry, self.effects, 0)
        return bundle

    def hand_over(self) -> list[Seq]:
        """Have the store told of all that was put; the seqs that it is asked to keep."""
        self.durability.submit(self.effects, 0)
        if self.epochs is not None:
            self.epoch += 1
            self.epochs.cut(self.epoch, [], self.effects, 0)
        return [effect.write.seq for effect in self.effects if isinstance(effect, ev.Commit)]

    def kept(self, seq: Seq) -> None:
        self.durability.committed(seq, self.effects)

    def declare(self) -> None:
        """What is kept becomes visible: at once in the log, with its epoch otherwise."""
        if self.epochs is not None:
            self.epochs.declared(self.epoch)

    def acks(self) -> list[int]:
        return [effect.number for effect in self.effects if isinstance(effect, ev.Ack)]


@pytest.fixture(params=["log", "epochs"])
def way(request: pytest.FixtureRequest) -> Way:
    return Way(request.param)


def test_what_was_put_is_not_durable_until_the_store_has_all_of_it(way: Way) -> None:
    assert not way.durability
    assert way.durability.oldest() == MAX_TIME
    way.put(50)
    way.put(40)
    assert not way.durability.settled(False)
    seqs = way.hand_over()
    assert seqs == sorted(seqs)
    for seq in seqs:
        assert not way.durability.settled(False)
        way.kept(seq)
    way.declare()
    assert not way.durability
    assert way.durability.oldest() == MAX_TIME


def test_the_oldest_time_that_waits_counts_wherever_in_the_queue_it_is() -> None:
    way = Way("log")
    for oldest in (50, 30, 40):
        way.put(oldest)
    assert way.durability.oldest() == 30
    first, second, _ = way.hand_over()
    way.kept(first)
    assert way.durability.oldest() == 30
    way.kept(second)
    assert way.durability.oldest() == 40


def test_checkpoints_are_numbered_without_gaps(way: Way) -> None:
    assert [way.durability.next_seq() for _ in range(3)] == [1, 2, 3]
    assert way.durability.seq == 3


def test_acks_come_once_and_in_the_order_of_putting(way: Way) -> None:
    for oldest in (3, 2, 1):
        way.put(oldest)
    for seq in way.hand_over():
        way.kept(seq)
    way.declare()
    assert way.acks() == [1, 2, 3]


def test_nothing_is_kept_back_that_has_left(way: Way) -> None:
    numbers = [way.put(oldest).number for oldest in (1, 2)]
    sent = {effect.bundle.number for effect in way.effects if isinstance(effect, ev.Send)}
    assert {*way.durability.kept_back()} == {*numbers} - sent
    for seq in way.hand_over():
        way.kept(seq)
    way.declare()
    assert way.durability.kept_back() == []
    assert {effect.bundle.number for effect in way.effects if isinstance(effect, ev.Send)} == {*numbers}


def test_rows_that_are_refused_are_named_by_what_wrote_them() -> None:
    way = Way("log")
    way.put(1)
    way.put(2, sinks=2)
    _, seq = way.hand_over()
    causes = way.durability.refused(seq, way.effects)
    assert [(cause.key, redrive) for cause, redrive in causes] == [("k0", False), ("k1", False)]


@pytest.mark.parametrize("sinks", range(9))
def test_each_row_that_the_store_gets_has_the_key_that_wrote_it(way: Way, sinks: int) -> None:
    """The store looks for rows at fault by their keys, in the order of the rows."""
    for rows in (sinks, 0, 2):
        way.put(1, sinks=rows)
    way.hand_over()
    found = []
    for effect in way.effects:
        if isinstance(effect, ev.Commit):
            image = decode_checkpoint(effect.write.payload)
            rows_of, keys = (
                (effect.write.sinks, effect.write.keys) if way.epochs is None else (image.sinks, image.sink_keys)
            )
            found += [(row.values, key) for row, key in zip(rows_of, keys, strict=True)]
    assert found == [(b"%d" % n, f"k{n % 3}") for rows in (sinks, 2) for n in range(rows)]


def test_all_is_settled_when_it_is_durable_and_in_the_tables(way: Way) -> None:
    assert way.durability.settled(True)
    number = way.put(1).number
    assert not way.durability.settled(False)
    for seq in way.hand_over():
        way.kept(seq)
    way.declare()
    way.durability.want()
    way.durability.fold(way.effects)
    folds = [effect for effect in way.effects if isinstance(effect, ev.Fold)]
    assert not way.durability.settled(False), "it is not in the tables"
    for fold in folds:
        way.durability.folded(fold.upto)
    assert way.durability.settled(False)
    assert not way.durability.settled(True), "nobody has acked the production"
    assert not way.durability.quiet()
    way.durability.acked(number, 0)
    assert way.outbox.unacked == {}


def test_one_fold_at_a_time_and_each_image_in_one_of_them(way: Way) -> None:
    for oldest in range(3):
        way.put(oldest)
    for seq in way.hand_over():
        way.kept(seq)
    way.declare()
    way.durability.want()
    folded: list[Seq] = []
    for _ in range(5):
        way.effects.clear()
        way.durability.fold(way.effects)
        way.durability.fold(way.effects)
        folds = [effect for effect in way.effects if isinstance(effect, ev.Fold)]
        if not folds:
            break
        (fold,) = folds
        assert fold.upto > max(folded, default=Seq(0))
        folded.append(fold.upto)
        assert way.durability.folded(fold.upto) == fold.images
    assert folded
    assert way.durability.settled(False)


def test_no_user_code_runs_while_too_much_is_not_acked(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTBOX_LIMIT_BUNDLES", 2)
    way.put(1)
    assert way.durability.has_room()
    number = way.put(2).number
    assert not way.durability.has_room()
    for seq in way.hand_over():
        way.kept(seq)
    way.durability.acked(number, 0)
    assert way.durability.has_room()
