"""A worker by hand: events in, effects out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.bundles import Bundle
from millwheel.core.interval import events as ev
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import (
    Claimed,
    Credit,
    Delivery,
    Expected,
    Hello,
    Message,
    RoundAnswered,
    RoundAsked,
    WatermarksRaised,
)
from millwheel.host.requests import ListRedrives, Recover, StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME
from millwheel.testing.world.calls import run
from millwheel.work import InvocationOutcome
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore

words = Stream("words", TextCoder())
kept = Stream("kept", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Hand:
    """Performs what a worker asks of the store; messages and the rest are kept, and so is what is asked of `later`."""

    def __init__(self, later: type[StoreCall] | None = None, outputs: Sequence[Stream[str]] = ()) -> None:
        self._later = later
        pipeline = Pipeline("hand")
        pipeline.inject(IterableSource("text", []), into=words)
        pipeline.add(Keep, [subscribe(words, lambda word: word)], outputs)
        self.store = MemoryStore()
        self.worker = WorkerHost(graph=pipeline.graph())
        self.told: list[Message] = []
        self.waiting: list[he.Ask] = []

    def give(self, event: he.HostEvent) -> list[he.HostEffect]:
        effects = self.worker.handle(event, 1_000)
        for effect in effects:
            match effect:
                case he.Tell(_, message):
                    self.told.append(message)
                case he.Ask(token, StoreCall() as request) if self._later is None or not isinstance(
                    request, self._later
                ):
                    self.give(he.Answered(token, run(request.call(self.store))))
                case he.Ask(token, he.Prepare()):
                    self.give(he.Answered(token, None))
                case he.Ask():
                    self.waiting.append(effect)
                case _:
                    pass
        return effects

    def of(self, kind: type[Any]) -> list[Any]:
        found = [message for message in self.told if isinstance(message, kind)]
        self.told = [message for message in self.told if not isinstance(message, kind)]
        return found


def started() -> tuple[Hand, Hello]:
    hand = Hand()
    hand.give(he.Started())
    (hello,) = hand.of(Hello)
    return hand, hello


def bundle(target: IntervalId) -> Bundle:
    return Bundle(
        SubscriptionId(0),
        IntervalId(99),
        1,
        target,
        ProducerId(99),
        SequenceNumber(0),
        sequence_numbers([0]),
        ["k"],
        [b"v"],
        [1],
    )


def test_an_interval_that_starts_says_hello_and_gives_credit() -> None:
    hand, hello = started()
    (credit,) = hand.of(Credit)
    assert (credit.interval, credit.sequencer, credit.round) == (hello.interval, hello.sequencer, hello.round)


def test_a_bundle_for_another_owner_is_dropped() -> None:
    hand, hello = started()
    dropped = hand.give(he.Received("worker", Delivery(bundle(hello.interval), Sequencer(hello.sequencer - 1), True)))
    assert dropped == []
    taken = hand.give(he.Received("worker", Delivery(bundle(hello.interval), hello.sequencer, True)))
    assert any(isinstance(effect, he.Post) for effect in taken), "it runs"


def test_what_an_earlier_owner_has_sent_and_got_acked_is_not_expected_by_the_next_owner_of_a_receiver() -> None:
    hand, hello = started()
    channel = (SubscriptionId(0), ProducerId(99))
    hand.give(he.Received("worker", Expected((channel,))))
    assert channel in hand.worker.routes.live
    last = msgspec.structs.replace(bundle(hello.interval), sequences=[], keys=[], values=[], timestamps=[])
    hand.give(he.Received("worker", Delivery(last, hello.sequencer, False)))
    assert channel in hand.worker.routes.live
    last = msgspec.structs.replace(last, frontier=MAX_TIME)
    hand.give(he.Received("worker", Delivery(last, hello.sequencer, False)))
    assert channel not in hand.worker.routes.live


def test_a_hello_that_comes_again_takes_no_credit_back() -> None:
    hand, hello = started()
    (credit,) = hand.of(Credit)
    for message in (hello, credit, hello):
        hand.give(he.Received("worker", message))
    assert hand.worker.partitions._accounts[hello.interval].left()


def test_after_a_cut_every_interval_says_hello_anew_and_senders_wait_for_it() -> None:
    hand, hello = started()
    hand.give(he.Received("worker", hello))
    hand.give(he.ChannelOpened("worker"))
    (again,) = hand.of(Hello)
    assert (again.interval, again.sequencer) == (hello.interval, hello.sequencer)
    assert again.round == hello.round + 1
    assert hand.worker._receivers.unreached == {hello.interval}
    hand.give(he.Received("worker", hello))
    assert hand.worker._receivers.unreached == {hello.interval}, "that one was said before the cut"
    hand.give(he.Received("worker", again))
    assert hand.worker._receivers.unreached == set()


def test_a_run_does_not_end_before_it_has_asked_for_redrives() -> None:
    hand = Hand(ListRedrives)
    hand.give(he.Started())
    for ask in [*hand.waiting]:
        if isinstance(ask.wish, he.Discover):
            hand.give(he.Answered(ask.token, he.Discovery((), True, MAX_TIME, 0)))
    hand.give(he.Received("controller", WatermarksRaised({"Keep": MAX_TIME}, {"Keep": MAX_TIME})))
    assert not any(isinstance(effect, he.Ended) for effect in hand.give(he.Rested()))
    (asked,) = [ask for ask in hand.waiting if isinstance(ask.wish, ListRedrives)]
    hand.give(he.Answered(asked.token, []))
    for _ in range(3):
        ended = any(isinstance(effect, he.Ended) for effect in hand.give(he.Rested()))
        hand.give(he.TurnEnded())
    assert ended


def test_after_a_cut_the_controller_hears_everything_again() -> None:
    hand, hello = started()
    hand.of(Claimed)
    hand.give(he.ChannelOpened("controller"))
    claimed = [interval for claim in hand.of(Claimed) for _, interval, _ in claim.intervals]
    assert hello.interval in claimed


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


def test_an_interval_of_a_loop_begins_with_the_floor_that_is_persisted_and_answers_what_was_asked_before() -> None:
    hand = Hand(outputs=[words])
    hand.store.watermark["loop:Keep"] = 50
    hand.give(he.Received("controller", RoundAsked(7, "loop:Keep", 90)))
    assert hand.of(RoundAnswered) == []
    hand.give(he.Started())
    ((actor, core),) = hand.worker.actors.intervals()
    assert (core.config.loop, core.config.promised) == ("loop:Keep", 50)
    answer = RoundAnswered(actor.interval, actor.sequencer, 7, MAX_TIME)
    assert hand.of(RoundAnswered) == [answer]
    hand.give(he.Received("controller", RoundAsked(7, "loop:Keep", 90)))
    assert hand.of(RoundAnswered) == [answer], "a copy is answered by a copy"
    hand.give(he.Received("controller", RoundAsked(6, "loop:Keep", 80)))
    assert hand.of(RoundAnswered) == []
