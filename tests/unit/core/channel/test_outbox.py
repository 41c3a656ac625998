"""The sender's side: dense ids, routing, acks, and a frontier that waits for durable acks."""

from __future__ import annotations

import random

import pytest

from millwheel import limits
from millwheel.bundles import Acked, Bundle
from millwheel.core.channel.outbox import Outbox
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME
from millwheel.work import Columns

SUB, SENDER, PRODUCER = SubscriptionId(4), IntervalId(10), ProducerId(77)
BACK = SubscriptionId(5)


def outbox(*lows: str) -> Outbox:
    return Outbox(
        SENDER,
        PRODUCER,
        {SUB: Ranges([("", IntervalId(1)), *((low, IntervalId(i + 2)) for i, low in enumerate(lows))])},
    )


def columns(*keys: str, first: int = 0) -> Columns:
    return Columns([*keys], [key.encode() for key in keys], [first + i for i in range(len(keys))])


def test_ids_are_dense_over_checkpoints_and_receivers() -> None:
    box = outbox("m")
    produced, bundles = box.number(SUB, columns("a", "z", "b"))
    assert (produced.producer, produced.first, produced.keys) == (PRODUCER, 0, ["a", "z", "b"])
    assert {b.target: (b.sequences, b.keys) for b in bundles} == {1: ([0, 2], ["a", "b"]), 2: ([1], ["z"])}
    produced, bundles = box.number(SUB, columns("c"))
    assert (produced.first, bundles[0].sequences) == (3, [3])
    assert len({b.number for b in box.unacked.values()}) == 3


def test_a_bundle_stays_byte_identical_until_acked() -> None:
    box = outbox()
    _, (bundle,) = box.number(SUB, columns("a", first=5))
    assert box.sendable(bundle) is bundle
    assert box.unacked == {bundle.number: bundle}
    assert box.oldest() == 5
    assert box.ack(bundle.number)
    assert not box.ack(bundle.number)
    assert not box.ack(12_345)
    assert (box.unacked, box.oldest()) == ({}, MAX_TIME)


def test_what_is_unacked_on_back_edges_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTBOX_LIMIT_BUNDLES", 2)
    ranges = Ranges([("", IntervalId(1))])
    box = Outbox(SENDER, PRODUCER, {SUB: ranges, BACK: ranges}, [BACK])
    for _ in range(5):
        box.number(BACK, columns("a"))
    assert (box.full(), box.unacked_bytes) == (False, 0)
    _, (bundle,) = box.number(SUB, columns("a"))
    assert not box.full()
    box.number(SUB, columns("b"))
    assert box.full()
    for other in [*box.unacked.values()]:
        if other.subscription == BACK:
            box.ack(other.number)
    assert box.full()
    box.ack(bundle.number)
    assert not box.full()


def test_a_receiver_whose_room_is_shared_stops_its_senders_at_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = Ranges([("", IntervalId(1)), ("m", IntervalId(2))])
    box = Outbox(SENDER, PRODUCER, {SUB: ranges, BACK: ranges}, crowds={SUB: 3})
    _, (bundle,) = box.number(SUB, columns("a"))
    monkeypatch.setattr(limits, "UNACKED_LIMIT_BYTES", 9 * bundle.size())
    box.number(BACK, columns(*"abc"))  # of which nobody says that room is shared
    box.number(SUB, columns("b"))
    box.number(SUB, columns(*"xy"))  # for another receiver
    assert not box.full()
    box.number(SUB, columns("c"))
    assert box.unacked_bytes < limits.UNACKED_LIMIT_BYTES
    assert box.full()
    box.ack(bundle.number)
    assert not box.full()


def test_the_frontier_waits_until_the_ack_is_durable() -> None:
    box = outbox()
    _, (first,) = box.number(SUB, columns("a", "b"))
    _, (second,) = box.number(SUB, columns("c"))
    box.ack(second.number)
    assert box.record_acks(Seq(1)) == [Acked(SUB, PRODUCER, sequence_numbers([2]))]
    box.recorded(Seq(1))
    assert box.frontier(SUB, PRODUCER) == 0  # the first bundle is still out
    box.ack(first.number)
    assert box.frontier(SUB, PRODUCER) == 0
    box.record_acks(Seq(2))
    assert box.frontier(SUB, PRODUCER) == 0
    assert not box.has_unrecorded()
    box.frontier_moved = False
    box.recorded(Seq(2))
    assert box.frontier(SUB, PRODUCER) == 3
    assert box.frontier_moved
    assert [(n.producer, n.frontier, n.sequences) for n in box.frontier_notes()] == [(PRODUCER, 3, [])]
    assert not box.frontier_moved


def test_an_ack_that_no_checkpoint_needs_moves_the_frontier_at_once() -> None:
    box = outbox()
    _, (bundle,) = box.number(SUB, columns("a"))
    box.ack(bundle.number)
    box.forget(bundle.number)
    assert box.frontier(SUB, PRODUCER) == 1
    assert not box.has_unrecorded()


def test_an_earlier_owners_productions_keep_their_ids_and_are_routed_anew() -> None:
    box = outbox("m")
    old = Bundle(
        SUB,
        IntervalId(0),
        0,
        IntervalId(0),
        ProducerId(5),
        SequenceNumber(0),
        sequence_numbers([8, 9]),
        ["a", "z"],
        [b"1", b"2"],
        [3, 4],
    )
    adopted = box.adopt(old)
    assert [(b.producer, b.sequences, b.target, b.values) for b in adopted] == [
        (5, [8], 1, [b"1"]),
        (5, [9], 2, [b"2"]),
    ]
    assert box.frontier(SUB, ProducerId(5)) == 8
    for bundle in adopted:
        box.ack(bundle.number)
    box.record_acks(Seq(1))
    box.recorded(Seq(1))
    assert box.frontier(SUB, ProducerId(5)) == MAX_TIME  # its owner is gone: nothing of it comes any more
    assert box.frontier(SUB, PRODUCER) == 0


def test_the_frontier_never_passes_what_is_not_durably_acked() -> None:
    dice = random.Random(3)
    box, out, durable, recording, count = outbox("h", "p"), list[Bundle](), set[int](), dict[int, list[int]](), 0
    for seq in range(300):
        keys = [dice.choice("abhipz") for _ in range(dice.randrange(1, 5))]
        out += box.number(SUB, columns(*keys))[1]
        count += len(keys)
        for bundle in [b for b in out if dice.random() < 0.4]:
            out.remove(bundle)
            box.ack(bundle.number)
        recording[seq] = [s for acked in box.record_acks(Seq(seq)) for s in acked.sequences]
        if dice.random() < 0.5:
            for done in sorted(recording):
                box.recorded(Seq(done))
                durable.update(recording.pop(done))
        frontier = box.frontier(SUB, PRODUCER)
        assert set(range(frontier)) <= durable
        assert frontier == count or frontier not in durable


@pytest.mark.parametrize("seed", range(30))
def test_whoever_has_not_told_a_frontier_knows_it(seed: int) -> None:
    """A frontier moves when acks are durable, when an earlier owner's productions are done, and when it has none left."""
    dice = random.Random(seed)
    box = outbox("m")
    told = {(SUB, PRODUCER): box.frontier(SUB, PRODUCER)}
    for sequence in range(dice.randrange(4)):  # as at a start: these come first
        producer = ProducerId(dice.randrange(5, 8))
        box.adopt(
            Bundle(SUB, SENDER, 0, SENDER, producer, SequenceNumber(0), sequence_numbers([sequence]), ["a"], [b""], [3])
        )
        told[SUB, producer] = box.frontier(SUB, producer)
    box.retire([(SUB, ProducerId(earlier)) for earlier in range(5, 12) if dice.random() < 0.3])
    recording: list[int] = []
    for step in range(60):
        untold = [channel for channel in box.channels() if told.get(channel) != box.frontier(*channel)]
        assert box.frontier_moved or not untold
        match dice.randrange(6):
            case 0 | 1:
                box.number(SUB, columns(dice.choice("az")))
            case 2:
                for number in dice.sample([*box.unacked], dice.randrange(len(box.unacked) + 1)):
                    box.ack(number)
                    if dice.random() < 0.2:
                        box.forget(number)
            case 3:
                box.record_acks(Seq(step))
                recording.append(step)
            case 4:
                for seq in recording:
                    box.recorded(Seq(seq))
                recording.clear()
            case _:
                notes = box.frontier_notes()
                told |= {(note.subscription, note.producer): note.frontier for note in notes}
                assert {note.target for note in notes} == ({1, 2} if notes else set()), "every receiver hears it"


def test_what_is_sent_again_is_all_that_one_receiver_has_not_acked_with_the_newest_frontier() -> None:
    box = outbox("m")
    _, (first,) = box.number(SUB, Columns(["a", "b"], [b"", b""], [5, 3]))
    _, (second, other) = box.number(SUB, columns("c", "z"))
    _, (kept,) = box.number(SUB, columns("d"))
    assert {bundle.number >> 32 for bundle in box.unacked.values()} == {PRODUCER}, "no number of an earlier owner"
    assert box.oldest() == 0
    for bundle in (second, other, kept):
        box.ack(bundle.number)
    assert box.oldest() == 3
    _, (later,) = box.number(SUB, columns("e"))
    _, (unsent,) = box.number(SUB, columns("f"))
    box.frontier_moved = False
    assert box.resend(IntervalId(1), [unsent.number]) == [first, later]
    assert box.frontier_moved, "a receiver that restarts does not know it"
    box.ack(first.number)
    box.record_acks(Seq(1))
    box.recorded(Seq(1))
    assert [bundle.frontier for bundle in box.resend(IntervalId(1), [])] == [5, 5]
    assert box.resend(IntervalId(2), []) == []


def test_productions_that_nobody_subscribes_to_any_more_are_recorded_as_acked() -> None:
    box = outbox()
    gone = Bundle(SUB, SENDER, 0, SENDER, ProducerId(5), SequenceNumber(0), sequence_numbers([8]), ["a"], [b""], [3])
    box.abandon(gone)
    assert box.has_unrecorded()
    assert box.record_acks(Seq(1)) == [Acked(SUB, ProducerId(5), sequence_numbers([8]))]
    assert not box.has_unrecorded()
    (adopted,) = box.adopt(gone)
    _, (own,) = box.number(SUB, columns("b"))
    assert (adopted.inherited, own.inherited) == (True, False)


def test_that_a_producer_has_ended_is_told_again_to_receivers_that_start_later() -> None:
    box = outbox()
    box.retire([(SUB, ProducerId(5))])
    for _ in range(2):
        assert [(note.producer, note.frontier) for note in box.frontier_notes()] == [(5, MAX_TIME)]


def test_a_frontier_is_the_lowest_of_what_is_not_recorded_in_whatever_order_it_was_taken_over() -> None:
    box, earlier = outbox(), ProducerId(50)
    for sequence in (8, 3):
        columns_ = (sequence_numbers([sequence]), ["a"], [b"x"], [1])
        box.adopt(Bundle(SUB, SENDER, 0, IntervalId(1), earlier, SequenceNumber(0), *columns_))
    assert box.frontier(SUB, earlier) == 3


def test_of_earlier_owners_that_have_ended_the_newest_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.core.channel.outbox.RETIRED_LIMIT_CHANNELS", 1)
    box = outbox()
    box.retire([(SUB, ProducerId(50)), (SUB, ProducerId(51))])
    assert [note.producer for note in box.frontier_notes()] == [50, 51]
    assert [note.producer for note in box.frontier_notes()] == [51]


def test_what_may_still_be_acked_is_never_forgotten_however_many_channels_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That its productions are acked would not be recorded, and its own frontier would be told to nobody who starts later."""
    monkeypatch.setattr("millwheel.core.channel.outbox.RETIRED_LIMIT_CHANNELS", 1)
    box = outbox()
    _, (own,) = box.number(SUB, columns("a"))
    columns_ = (sequence_numbers([8]), ["a"], [b"x"], [1])
    (adopted,) = box.adopt(Bundle(SUB, SENDER, 0, IntervalId(1), ProducerId(50), SequenceNumber(0), *columns_))
    box.ack(own.number)
    box.record_acks(Seq(1))
    box.recorded(Seq(1))
    box.retire([(SUB, ProducerId(51)), (SUB, ProducerId(52))])
    for _ in range(2):
        told = [(note.producer, note.frontier) for note in box.frontier_notes()]
    assert told == [(PRODUCER, 1), (50, 8), (52, MAX_TIME)]
    box.ack(adopted.number)
    box.record_acks(Seq(2))
    box.recorded(Seq(2))
    assert box.frontier(SUB, ProducerId(50)) == MAX_TIME
