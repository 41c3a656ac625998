"""A worker by hand: events in, effects out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.bundles import Bundle, LogWrite
from millwheel.core.interval import events as ev
from millwheel.host import alphabet as he
from millwheel.host.messages import (
    Claimed,
    Delivery,
    Expected,
    Hello,
    Message,
    WatermarksRaised,
)
from millwheel.host.requests import ListRedrives, StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME
from millwheel.testing.world.calls import run
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
        self.now = 1_000
        self.posts = False
        """What is for later turns is given at once; else it is lost."""
        pipeline = Pipeline("hand")
        pipeline.inject(IterableSource("text", []), into=words)
        pipeline.add(Keep, [subscribe(words, lambda word: word)], outputs)
        self.store = MemoryStore()
        self.worker = WorkerHost(graph=pipeline.graph())
        self.told: list[Message] = []
        self.noted: list[str] = []
        self.failed: list[he.Failed] = []
        self.waiting: list[he.Ask] = []

    def give(self, event: he.HostEvent) -> list[he.HostEffect]:
        effects = self.worker.handle(event, self.now)
        for effect in effects:
            match effect:
                case he.Tell(_, message):
                    self.told.append(message)
                case he.Notice(text):
                    self.noted.append(text)
                case he.Failed():
                    self.failed.append(effect)
                case he.Ask(token, StoreCall() as request) if self._later is None or not isinstance(
                    request, self._later
                ):
                    self.give(he.Answered(token, run(request.call(self.store))))
                case he.Ask(token, he.Prepare()):
                    self.give(he.Answered(token, None))
                case he.Ask():
                    self.waiting.append(effect)
                case he.Post(posted) if self.posts:
                    self.give(posted)
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


def test_a_worker_is_woken_for_each_alarm_also_when_one_before_it_has_rung() -> None:
    hand, _ = started()
    ((actor, _),) = hand.worker.actors.intervals()
    hand.worker.perform(actor, [ev.SetAlarm(2_000), ev.SetAlarm(3_000)])
    for now, then in ((2_000, [3_000]), (3_000, [])):
        hand.now = now
        woken = [effect.at for effect in hand.give(he.Tick()) if isinstance(effect, he.WakeAt)]
        assert woken == then


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


def test_a_run_does_not_end_before_it_has_asked_for_redrives() -> None:
    hand = Hand(ListRedrives)
    hand.give(he.Started())
    for ask in [*hand.waiting]:
        if isinstance(ask.wish, he.Discover):
            hand.give(he.Answered(ask.token, he.Discovery((), True, MAX_TIME, 0)))
    ends = {"source:text": MAX_TIME, "Keep": MAX_TIME}
    hand.give(he.Received("controller", WatermarksRaised(ends, {"Keep": MAX_TIME})))
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


def test_what_a_void_core_had_submitted_is_not_written() -> None:
    hand = Hand()
    hand.give(he.Started())
    ((actor, _),) = hand.worker.actors.intervals()
    hand.worker._lanes.submit(LogWrite(actor.interval, actor.sequencer, Seq(1), 0, b"x"))
    hand.worker.withdraw(actor)
    assert hand.worker._lanes.idle()


def test_a_source_that_was_taken_out_before_its_end_is_named_once_and_one_that_has_ended_is_not() -> None:
    """Nothing else says why the watermarks stand."""
    hand, _ = started()
    hand.worker.routes.left_out = {"old": "words", "ended": "words"}
    for at in (1_000_000, 2_000_000):
        hand.give(he.Received("controller", WatermarksRaised({"source:old": at, "source:ended": MAX_TIME}, {})))
    (said,) = [text for text in hand.noted if "is not in this pipeline" in text]
    assert said.startswith(
        "source old is not in this pipeline and was not read to its end; what it feeds waits for it at"
    )
    assert "1970-01-01T00:00:01" in said
