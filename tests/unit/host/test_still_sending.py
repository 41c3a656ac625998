"""Who may still send, as the store says: bundles wait for its answer, and ids are forgotten after it."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.cluster import Senders
from millwheel.host import alphabet as he
from millwheel.host.messages import Led, MapChanged, Receipt, RunEnded
from millwheel.host.requests import ReadSenders
from millwheel.ids import ProducerId, SequenceNumber, Sequencer
from millwheel.testing.world.calls import run
from tests.unit.host.cluster_hand import ONE, SENDER, ClusterHand


@pytest.fixture
def hand() -> ClusterHand:
    made = ClusterHand()
    made.give(he.Started())
    return made


@pytest.mark.parametrize("sends", [True, False])
def test_what_an_unknown_producer_sends_waits_until_the_store_says_who_it_is(hand: ClusterHand, sends: bool) -> None:
    hand.place(ONE, owner=hand.mine)
    producer = hand.worker.actors.all[ONE].sequencer - 1
    (number,) = hand.worker.routes.subscriptions.values()
    hand.held = ReadSenders
    for sequence in range(3):
        hand.deliver(producer, f"w{hand.other}", sequence)
    assert hand.ran == []
    assert not hand.of(Receipt)
    if sends:  # it was given out before, and was not seen when this core has asked
        rows = {SequenceNumber(0): ("k", b"v", 1)}
        hand.store.folded.productions[SENDER] = {(number, ProducerId(producer)): rows}
    (ask,) = hand.waiting
    hand.answer(ask)
    for _ in range(3):
        hand.give(he.TurnEnded())
    hand.now += limits.RECEIPT_REST_US
    hand.give(he.TurnEnded())
    assert {*hand.ran} == ({ONE} if sends else set())
    expected = (number, ProducerId(producer)) in hand.worker.routes.live
    assert expected == sends, "the next core here would take copies of one that has ended for new records"
    first = (producer << 32) + 1
    acked = [first, first + 1, first + 2] if sends else []  # nobody waits for the others but who was superseded
    assert [receipt.number for receipt in hand.of(Receipt)] == acked, "those behind it, too"


def heard(hand: ClusterHand) -> set[int]:
    """Producers whose ids the interval keeps."""
    ((_, core),) = hand.worker.actors.intervals()
    return {producer for _, producer in core.heard()}


def from_a_sender(hand: ClusterHand) -> ProducerId:
    """A producer that the store knows has sent something to the interval."""
    hand.place(ONE, owner=hand.mine)
    producer = ProducerId(hand.worker.actors.all[ONE].sequencer + 1)
    (number,) = hand.worker.routes.subscriptions.values()
    rows = {SequenceNumber(0): ("k", b"v", 1)}
    hand.store.folded.productions[SENDER] = {(number, producer): rows}
    hand.deliver(producer, f"w{hand.other}")
    hand.give(he.TurnEnded())
    assert heard(hand) == {producer}
    return producer


def look(hand: ClusterHand) -> None:
    """The map has changed, in nothing that is this worker's."""
    owner = None if run(hand.store.cluster_map()).intervals[1].owner else hand.other
    hand.place(run(hand.store.cluster_map()).intervals[1].id, owner=owner)
    hand.give(he.TurnEnded())


def test_ids_of_a_producer_are_kept_while_the_store_knows_it_and_forgotten_after_that(hand: ClusterHand) -> None:
    producer = from_a_sender(hand)
    look(hand)
    assert heard(hand) == {producer}
    hand.store.folded.productions.clear()
    look(hand)
    assert heard(hand) == set()


def test_what_came_after_the_question_is_not_judged_by_its_answer(hand: ClusterHand) -> None:
    producer = from_a_sender(hand)
    hand.store.folded.productions.clear()
    hand.held = ReadSenders
    look(hand)
    later = ProducerId(producer + 1)
    hand.deliver(later, f"w{hand.other}")
    answers, hand.held = [*hand.waiting], None
    for ask in answers:
        hand.answer(ask)
    hand.give(he.TurnEnded())
    assert later in heard(hand)
    assert producer not in heard(hand)


def test_what_is_expected_since_the_question_stays_expected(hand: ClusterHand) -> None:
    producer = from_a_sender(hand)
    hand.store.folded.productions.clear()
    (number,) = hand.worker.routes.subscriptions.values()
    before, meanwhile = (number, producer), (number, ProducerId(producer + 7))
    hand.worker.routes.live |= {before}
    hand.held = ReadSenders
    look(hand)
    hand.worker.routes.live |= {meanwhile}
    answers, hand.held = [*hand.waiting], None
    for ask in answers:
        hand.answer(ask)
    assert meanwhile in hand.worker.routes.live
    assert before not in hand.worker.routes.live


def test_an_interval_that_is_handed_over_takes_in_nothing_not_even_an_end(hand: ClusterHand) -> None:
    producer = from_a_sender(hand)
    hand.store.folded.productions.clear()
    hand.held = ReadSenders
    look(hand)
    hand.worker.closed.add(ONE)
    answers, hand.held = [*hand.waiting], None
    for ask in answers:
        hand.answer(ask)
    assert heard(hand) == {producer}


def test_one_question_is_under_way_at_a_time_and_the_newest_map_is_asked_about_in_the_end(hand: ClusterHand) -> None:
    producer = from_a_sender(hand)
    look(hand)
    hand.held = ReadSenders
    look(hand)
    look(hand)
    (first,), hand.held, hand.waiting = hand.waiting, None, []
    hand.store.folded.productions.clear()
    hand.asked.clear()
    hand.answer(first)
    assert heard(hand) == set(), "the answer is of now"
    look(hand)
    assert [ask for ask in hand.asked if isinstance(ask, ReadSenders)]
    assert producer not in heard(hand)


@pytest.mark.parametrize("rested", [False, True])
def test_a_worker_that_leaves_a_finished_run_leaves_no_ids_behind(hand: ClusterHand, rested: bool) -> None:
    """Nobody sends again, and the frontier that says so may be lost in a channel that is cut."""
    from_a_sender(hand)
    if rested:  # all else is folded by then
        ((_, core),) = hand.worker.actors.intervals()
        hand.now += limits.IDLE_RECORD_DELAY_US
        hand.give(he.Tick())
        assert core.settled()
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.give(he.Received(hand.leader, RunEnded()))
    for _ in range(20):
        hand.pass_time()
    assert hand.owned() == set()
    assert [row for row in hand.store.tables()["delivered"] if row] == []


def test_it_is_asked_again_while_the_log_of_an_earlier_owner_is_not_folded(
    hand: ClusterHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What that one has sent may be in the log only: nobody is done before it is known."""
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, MapChanged(98)))
    assert hand.worker.ownership.served()
    answers = [((ONE, Sequencer(1)), (ONE, Sequencer(2))), ((ONE, Sequencer(2)),)]

    async def senders() -> Senders:
        return Senders(answers[0], ())

    monkeypatch.setattr(hand.store, "senders", senders)
    look(hand)
    assert not hand.worker.ownership.served()
    del answers[0]
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.worker.ownership.served()


def test_what_waits_for_an_answer_is_dropped_when_its_receiver_is_another_workers_by_then(hand: ClusterHand) -> None:
    """Its sender keeps it for the next owner.  The worker died of it."""
    hand.place(ONE, owner=hand.mine)
    hand.held = ReadSenders
    hand.deliver(hand.worker.actors.all[ONE].sequencer - 1, f"w{hand.other}")
    (ask,), hand.held, hand.waiting = hand.waiting, None, []
    hand.place(ONE, owner=hand.other)
    hand.answer(ask)
    assert (hand.ran, hand.of(Receipt)) == ([], [])
