"""Channels of a worker by hand: hellos, credit, receipts, and words of workers that are not known yet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import Bundle
from millwheel.core.interval import events as ev
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import Credit, Delivery, Expected, Hello, Message, Receipt
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import MAX_TIME
from millwheel.testing.world.calls import run
from tests.unit.host.cluster_hand import LEASE_US, ONE, SENDER, TWO, ClusterHand
from tests.unit.host.test_worker import Hand, started

SUB = SubscriptionId(0)


@pytest.fixture
def hand() -> ClusterHand:
    made = ClusterHand()
    made.give(he.Started())
    return made


def test_an_interval_that_starts_says_hello_and_gives_credit() -> None:
    hand, hello = started()
    (credit,) = hand.of(Credit)
    assert (credit.interval, credit.sequencer, credit.round) == (hello.interval, hello.sequencer, hello.round)


def test_a_hello_that_comes_again_takes_no_credit_back() -> None:
    hand, hello = started()
    (credit,) = hand.of(Credit)
    for message in (hello, credit, hello):
        hand.give(he.Received("worker", message))
    assert hand.worker.partitions._accounts[hello.interval].left()


def test_who_is_new_and_who_is_back_after_a_cut_hear_at_once_what_they_may_send() -> None:
    """Nothing else need happen at an interval for its sources to go on."""
    hand, _ = started()
    for greet in (partial(hand.worker.links.meet, "new"), partial(hand.worker.links.reopened, "worker")):
        words = said(hand, greet)
        hellos, credits = ([word for _, word in words if type(word) is kind] for kind in (Hello, Credit))
        assert [(it.interval, it.round) for it in hellos] == [(it.interval, it.round) for it in credits]
        assert credits


def test_after_a_cut_every_interval_says_hello_anew_and_senders_wait_for_it() -> None:
    hand, hello = started()
    hand.give(he.Received("worker", hello))
    hand.give(he.ChannelOpened("worker"))
    (again,) = hand.of(Hello)
    assert (again.interval, again.sequencer) == (hello.interval, hello.sequencer)
    assert again.round == hello.round + 1
    assert hand.worker.links.receivers.unreached == {hello.interval}
    hand.give(he.Received("worker", hello))
    assert hand.worker.links.receivers.unreached == {hello.interval}, "that one was said before the cut"
    hand.give(he.Received("worker", again))
    assert hand.worker.links.receivers.unreached == set()


def test_words_of_a_worker_that_is_not_known_yet_are_kept_until_the_map_names_it(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    newest = run(hand.store.join("third", "worker", "here:4", LEASE_US, b"4")).incarnation
    hand.give(he.Received(f"w{newest}", Hello(TWO, Sequencer(7), 0, "m", None)))
    assert hand.worker.links.receivers.place(hand.worker.routes.rows[TWO]) == (f"w{newest}", 7)


def test_a_stranger_is_forgotten_after_a_while_and_not_at_once(hand: ClusterHand) -> None:
    hand.worker.links.strangers.forget()
    hand.give(he.Received("w77", Hello(TWO, Sequencer(7), 0, "m", None)))
    hand.worker.links.strangers.forget()
    assert "w77" in hand.worker.links.strangers._words, "the map may have been read before it joined"
    hand.worker.links.strangers.forget()
    assert hand.worker.links.strangers._words == {}


def said(hand: ClusterHand | Hand, say: Callable[[], object]) -> list[tuple[str, Message]]:
    """What is told to whom by something that a part of the worker does."""
    hand.worker._out.clear()
    say()
    return [(effect.peer, effect.message) for effect in hand.worker._out if isinstance(effect, he.Tell)]


def test_a_receipt_goes_to_the_worker_that_has_sent_and_to_nobody_when_that_is_gone(hand: ClusterHand) -> None:
    actor, other = heard_from(hand, f"w{hand.other}")
    acked(hand, actor, 7)
    rested(hand)
    assert hand.told == [(other, Receipt(ONE, SENDER, 7, 0))]
    hand.told.clear()
    acked(hand, actor, 8)
    hand.worker.part(other)
    acked(hand, actor, 9)
    rested(hand)
    assert hand.of(Receipt) == []


def test_receipts_for_another_process_wait_for_each_other_and_not_for_long(hand: ClusterHand) -> None:
    actor, _ = heard_from(hand, f"w{hand.other}")
    acked(hand, actor, 7)
    hand.give(he.TurnEnded())
    assert hand.of(Receipt) == []
    assert hand.now + limits.RECEIPT_REST_US in hand.wakes
    rested(hand)
    assert [receipt.number for receipt in hand.of(Receipt)] == [7]
    numbers = [*range(20, 20 + limits.RECEIPTS_TOGETHER)]
    for number in numbers:
        acked(hand, actor, number)
    hand.give(he.TurnEnded())
    assert [receipt.number for receipt in hand.of(Receipt)] == numbers


def test_receipts_within_a_process_do_not_wait(hand: ClusterHand) -> None:
    actor, me = heard_from(hand, hand.worker.name)
    acks = partial(hand.worker.perform, actor, [ev.Ack(SENDER, 7, 0)])
    assert said(hand, acks) == [(me, Receipt(ONE, SENDER, 7, 0))]


def test_after_a_cut_receipts_are_told_before_the_hello_that_asks_for_what_is_not_acked(hand: ClusterHand) -> None:
    actor, other = heard_from(hand, f"w{hand.other}")
    acked(hand, actor, 7)
    kinds = [type(word) for _, word in said(hand, partial(hand.worker.links.reopened, other))]
    assert kinds.index(Receipt) < kinds.index(Hello)


def test_receipts_that_wait_are_told_when_their_interval_goes(hand: ClusterHand) -> None:
    """Else its senders would send again to the next owner what is durable, and without deduplication it would count twice."""
    actor, other = heard_from(hand, f"w{hand.other}")
    acked(hand, actor, 7)
    assert said(hand, partial(hand.worker.links.drop, ONE)) == [(other, Receipt(ONE, SENDER, 7, 0))]


def heard_from(hand: ClusterHand, peer: str) -> tuple[Actor, str]:
    """An interval that has heard of its sender at `peer`, and has no receipts that wait."""
    hand.place(ONE, owner=hand.mine)
    actor = hand.worker.actors.all[ONE]
    hand.deliver(actor.sequencer + 1, peer)
    hand.give(he.TurnEnded())
    rested(hand)
    hand.told.clear()
    hand.wakes.clear()
    return actor, peer


def acked(hand: ClusterHand, actor: Actor, number: int) -> None:
    """A bundle is durable at an interval."""
    hand.worker.perform(actor, [ev.Ack(SENDER, number, 0)])


def rested(hand: ClusterHand) -> None:
    """Receipts have waited as long as they may."""
    hand.now += limits.RECEIPT_REST_US
    hand.give(he.TurnEnded())


def test_what_a_worker_sends_counts_against_its_own_promise(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    actor, other = hand.worker.actors.all[ONE], f"w{hand.other}"
    promised = {peer: message.upto_bytes for peer, message in hand.told if isinstance(message, Credit)}
    assert len({*promised.values()}) == 1
    assert len(promised) == 2
    end = Bundle(SUB, SENDER, 1, ONE, ProducerId(1), SequenceNumber(0), [], ["k"], [b"v" * promised[other]], [1])
    assert said(hand, partial(hand.worker.links.grant, actor)) == []
    hand.worker.links.came(other, Delivery(end, actor.sequencer, metered=False))
    assert said(hand, partial(hand.worker.links.grant, actor)) == [], "it is no source's"
    hand.worker.links.came(other, Delivery(end, actor.sequencer, metered=True))
    ((peer, credit),) = said(hand, partial(hand.worker.links.grant, actor))
    assert isinstance(credit, Credit)
    assert (peer, credit.upto_bytes) == (other, promised[other] + end.size())


def test_an_interval_that_is_not_served_any_more_promises_nothing(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    actor, other = hand.worker.actors.all[ONE], f"w{hand.other}"
    (promised,) = [word.upto_bytes for peer, word in hand.told if peer == other and isinstance(word, Credit)]
    end = Bundle(SUB, SENDER, 1, ONE, ProducerId(1), SequenceNumber(0), [], ["k"], [b"v" * promised], [1])
    hand.worker.links.came(other, Delivery(end, actor.sequencer, metered=True))
    hand.place(ONE, owner=hand.other)
    assert said(hand, partial(hand.worker.links.grant, actor)) == [], "its sender has used up what it may send"
    assert hand.worker.links._grants._windows == {}


def test_nothing_is_sent_to_an_interval_that_has_not_said_hello_or_is_gone(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    actor, other = hand.worker.actors.all[ONE], f"w{hand.other}"
    end = Bundle(SUB, ONE, 1, TWO, ProducerId(1), SequenceNumber(MAX_TIME), [], [], [], [])
    sends = partial(hand.worker.perform, actor, [ev.Send(end)])
    delivered = [(other, Delivery(end, Sequencer(7), metered=False))]
    assert said(hand, sends) == []
    hand.give(he.Received(other, Hello(TWO, Sequencer(7), 0, "m", None)))
    assert said(hand, sends) == delivered
    hand.worker.links.reopened(other)
    assert said(hand, sends) == []
    hand.give(he.Received(other, Hello(TWO, Sequencer(7), 1, "m", None)))
    assert said(hand, sends) == delivered
    stranger = msgspec.structs.replace(end, target=IntervalId(77))
    assert said(hand, partial(hand.worker.perform, actor, [ev.Send(stranger)])) == [], "the map knows no such interval"
    hand.worker.part(other)
    assert said(hand, sends) == []


def test_after_a_cut_a_worker_hears_who_may_still_send_before_it_hears_hello(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.worker.routes.live |= {(SUB, ProducerId(5))}
    first, *others = said(hand, partial(hand.worker.links.reopened, f"w{hand.other}"))
    assert first == (f"w{hand.other}", Expected((*sorted(hand.worker.routes.live),)))
    assert {message.interval for _, message in others if isinstance(message, Hello)} == {ONE, TWO}


def test_a_worker_that_is_new_hears_hello_of_all_that_is_served_and_of_nothing_that_is_void(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.worker.actors.all[TWO].core.halted = True
    heard = said(hand, partial(hand.worker.meet, "w77"))
    assert [(peer, message.interval) for peer, message in heard if isinstance(message, Hello)] == [("w77", ONE)]
