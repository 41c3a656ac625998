"""Another core for an interval: what it begins with, and who hears of it."""

from __future__ import annotations

import pytest

from millwheel import Pipeline, Stream, TextCoder, subscribe
from millwheel.bundles import Bundle, LogWrite
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import Fenced
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import Claimed, Delivery, Expected, Hello, WatermarksRaised
from millwheel.host.requests import CommitGroup, Reacquire, Recover
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, sequence_numbers
from millwheel.testing.world.calls import run
from millwheel.work import InvocationOutcome
from millwheel_injectors import IterableSource
from tests.unit.host.test_void_cores import asked
from tests.unit.host.test_worker import Hand, Keep, words

kept = Stream("kept", TextCoder())


class Busy(Hand):
    """What is posted arrives, and hooks run without an effect; the sources are left out."""

    def __init__(self) -> None:
        super().__init__()
        pipeline = Pipeline("hand")
        pipeline.inject(IterableSource("text", []), into=words)
        pipeline.add(Keep, [subscribe(words, lambda word: word)], [kept], name="first")
        pipeline.add(Keep, [subscribe(kept, lambda word: word)], name="second")
        self.worker = WorkerHost(graph=pipeline.graph())
        self.ran: list[int] = []
        """Intervals."""

    def give(self, event: he.HostEvent) -> list[he.HostEffect]:
        effects = super().give(event)
        for effect in effects:
            match effect:
                case he.Post(posted):
                    self.give(posted)
                case he.RunHooks(_, interval, sequencer, _):
                    self.ran.append(interval)
                    self.give(he.Returned(interval, sequencer, InvocationOutcome(), 0))
                case _:
                    pass
        return effects

    def deliver(self, target: Actor, producer: ProducerId) -> None:
        (number,) = [n for name, n in self.worker.routes.subscriptions.items() if name.startswith(target.owner)]
        records = Bundle(
            number,
            IntervalId(producer),
            1,
            target.interval,
            producer,
            SequenceNumber(0),
            sequence_numbers([0]),
            ["k"],
            [b"v"],
            [1],
        )
        self.give(he.Received("worker", Delivery(records, target.sequencer, True)))

    def refuse(self, actor: Actor) -> None:
        """The database has something against the first checkpoint of an interval, which starts anew."""
        self.deliver(actor, ProducerId(99))
        self.give(he.Told(actor.interval, actor.sequencer, ev.Refused(Seq(1), ())))

    def recover(self, ask: he.Ask) -> None:
        self.waiting.remove(ask)
        assert isinstance(ask.wish, Recover)
        self.give(he.Answered(ask.token, run(ask.wish.call(self.store))))


def test_the_next_core_is_claimed_under_its_own_sequencer_and_hears_how_far_its_inputs_are() -> None:
    hand, actor, _ = asked(ev.Load(["k"]))
    hand.give(he.Received("controller", WatermarksRaised({}, {"Keep": 9})))
    hand.give(he.Received("controller", WatermarksRaised({}, {"Keep": 5})))  # a copy of an old one
    hand.told.clear()
    hand.replace(actor)
    following = hand.worker.actors.all[actor.interval]
    assert hand.of(Claimed) == [Claimed((("Keep", actor.interval, following.sequencer),))]
    assert isinstance(following.core, IntervalCore)
    assert following.core.blame()[0] == ("input watermark", 9, "")


def test_every_sender_sends_again_to_an_interval_that_has_another_core() -> None:
    hand, actor, _ = asked(ev.Load(["k"]))
    hand.replace(actor)
    hand.watch(hand.worker.actors.all[actor.interval])
    (hello,) = [message for message in hand.of(Hello) if message.sequencer > actor.sequencer]
    hand.give(he.Received("worker", hello))
    assert hand.given == [ev.Resend(actor.interval)]


def test_an_interval_that_is_dropped_while_it_restarts_gets_no_core() -> None:
    hand, actor, _ = asked(ev.Load(["k"]))
    hand._later = Recover
    hand.replace(actor)
    (recover,) = [ask for ask in hand.waiting if isinstance(ask.wish, Recover)]
    hand.worker.drop(actor)
    hand._later = None
    assert isinstance(recover.wish, Recover)
    with pytest.raises(Fenced):  # an embedded worker ends when it has lost an interval
        hand.give(he.Answered(recover.token, run(recover.wish.call(hand.store))))
    assert actor.interval not in hand.worker.actors.all


def test_a_receiver_that_starts_anew_beside_its_sender_takes_what_the_next_owner_of_that_sends() -> None:
    # Its own sequencer was the newer one, and its start the earlier one: it took the sender's for retired, and acked
    # records that it had never run.
    hand = Busy()
    hand.give(he.Started())
    first, second = (actor for actor, _ in hand.worker.actors.intervals())
    hand._later = Recover
    for actor in (first, second):
        hand.refuse(actor)
    for ask in hand.waiting[-1:-3:-1]:  # the later one is the first to start
        hand.recover(ask)
    sender, receiver = (actor for actor, _ in hand.worker.actors.intervals())
    assert first.sequencer < second.sequencer < sender.sequencer < receiver.sequencer
    for message in [*hand.told]:
        if isinstance(message, Expected):
            hand.give(he.Received("worker", message))
    hand.ran.clear()
    hand.deliver(receiver, ProducerId(sender.sequencer))
    assert hand.ran == [receiver.interval]


def test_an_interval_restarts_until_its_next_core_serves() -> None:
    hand, actor, _ = asked(ev.Load(["k"]))
    hand._later = Recover
    hand.replace(actor)
    assert hand.worker.restarts.under_way == {actor.interval}
    (recover,) = [ask for ask in hand.waiting if isinstance(ask.wish, Recover)]
    assert isinstance(recover.wish, Recover)
    hand.give(he.Answered(recover.token, run(recover.wish.call(hand.store))))
    assert hand.worker.restarts.under_way == set()


def test_what_waits_of_a_core_that_is_given_up_is_not_committed() -> None:
    hand, actor, question = asked(ev.Commit)
    later = LogWrite(actor.interval, actor.sequencer, Seq(2), 0, b"y")
    hand.do(actor, lambda: ev.Commit(later))
    before = len(hand.waiting)
    hand.worker.restarts.give_up(actor)
    for ask in [effect for effect in hand.worker._out if isinstance(effect, he.Ask)]:
        assert isinstance(ask.wish, Reacquire)
        hand.give(he.Answered(ask.token, run(ask.wish.call(hand.store))))
    hand.give(he.Answered(question.token, {(actor.interval, Seq(1))}))
    hand.give(he.TurnEnded())
    assert hand.worker.actors.all[actor.interval].sequencer > actor.sequencer
    assert [ask for ask in hand.waiting[before:] if isinstance(ask.wish, CommitGroup)] == []
