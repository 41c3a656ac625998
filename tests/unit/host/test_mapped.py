"""A worker of a cluster by hand: the map changes, and it follows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, limits, subscribe
from millwheel.bundles import Bundle
from millwheel.cluster import Placement, RunEnding
from millwheel.core.interval import events as ev
from millwheel.errors import Fenced
from millwheel.host import alphabet as he
from millwheel.host.mapped import MappedOwnership
from millwheel.host.messages import (
    Delivery,
    HandedOver,
    HandOver,
    Hello,
    Led,
    MapChanged,
    Message,
    Receipt,
    RunEnded,
    WatermarksRaised,
)
from millwheel.host.progress import progress_of
from millwheel.host.requests import NoteHotKeys, NoteStandstills, Reacquire, ReadSenders, StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, sequence_numbers
from millwheel.testing.world.calls import run
from millwheel.work import InvocationOutcome
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore

LEASE_US = 3_600_000_000
ONE, TWO, SENDER = IntervalId(1), IntervalId(2), IntervalId(99)
words = Stream("words", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class ClusterHand:
    """One worker, a leader that this test plays, and another member.  Two intervals; the source is nobody's."""

    def __init__(self) -> None:
        pipeline = Pipeline("hand")
        pipeline.inject(IterableSource("text", []), into=words)
        pipeline.add(Keep, [subscribe(words, lambda word: word)], name="keep", split_keys=("m",))
        self.now = 1_000
        self.store = MemoryStore(lambda: self.now)
        self.mine = run(self.store.join("mine", "worker", "here:1", LEASE_US, b"1")).incarnation
        self.other = run(self.store.join("other", "worker", "here:2", LEASE_US, b"2")).incarnation
        leader = run(self.store.join("leader", "controller", "here:3", LEASE_US, b"3")).incarnation
        self.leader = f"c{leader}"
        run(self.store.open_pipeline(pipeline.graph().shape()))
        led = run(self.store.lead(leader, LEASE_US))
        assert led is not None
        self.epoch = led.epoch
        ownership = partial(MappedOwnership, incarnation=self.mine)
        self.worker = WorkerHost(graph=pipeline.graph(), name=f"w{self.mine}", controller=None, ownership=ownership)
        self.told: list[tuple[str, Message]] = []
        self.asked: list[StoreCall] = []
        self.held: type[StoreCall] | None = None
        """Calls that are not answered yet."""
        self.waiting: list[he.Ask] = []
        self.pauses: list[he.Ask] = []
        self.ran: list[IntervalId] = []
        self.keep_running = False
        """Hooks do not return."""

    def give(self, event: he.HostEvent) -> None:
        for effect in self.worker.handle(event, self.now):
            match effect:
                case he.Tell(peer, message):
                    self.told.append((peer, message))
                case he.Ask(_, StoreCall() as request):
                    self.asked.append(request)
                    if self.held is not None and isinstance(request, self.held):
                        self.waiting.append(effect)
                    else:
                        self.answer(effect)
                case he.Ask(token, he.Prepare()):
                    self.give(he.Answered(token, None))
                case he.Ask():
                    self.pauses.append(effect)
                case he.Post(posted):
                    self.give(posted)
                case he.RunHooks() if self.keep_running:
                    pass
                case he.RunHooks(_, interval, sequencer, _):
                    self.ran.append(interval)
                    self.give(he.Returned(interval, sequencer, InvocationOutcome(processed=1), 0))
                case _:
                    pass

    def answer(self, ask: he.Ask) -> None:
        assert isinstance(ask.wish, StoreCall)
        self.give(he.Answered(ask.token, run(ask.wish.call(self.store))))

    def place(self, *intervals: IntervalId, owner: int | None) -> None:
        found = run(self.store.cluster_map())
        version = run(self.store.place(Placement(self.epoch, found.version, dict.fromkeys(intervals, owner), {})))
        assert version is not None
        self.give(he.Received(self.leader, MapChanged(version)))

    def pass_time(self) -> None:
        """So long that a worker looks again whether something has ended that it waits for."""
        self.now += limits.HAND_OVER_LOOK_US
        for ask in [*self.pauses]:
            self.pauses.remove(ask)
            self.give(he.Answered(ask.token, None))
        self.give(he.TurnEnded())

    def of(self, kind: type[Any]) -> list[Any]:
        found = [message for _, message in self.told if isinstance(message, kind)]
        self.told = [(peer, message) for peer, message in self.told if not isinstance(message, kind)]
        return found

    def owned(self) -> set[IntervalId]:
        return {actor.interval for actor, _ in self.worker.actors.intervals()}

    def deliver(self, producer: int, peer: str) -> None:
        actor = self.worker.actors.all[ONE]
        (number,) = self.worker.routes.subscriptions.values()
        records = Bundle(
            number, SENDER, (producer << 32) + 1, ONE, ProducerId(producer), SequenceNumber(0), sequence_numbers([0]),
            ["k"], [b"v"], [1],
        )  # fmt: skip
        self.give(he.Received(peer, Delivery(records, actor.sequencer, False)))


@pytest.fixture
def hand() -> ClusterHand:
    made = ClusterHand()
    made.give(he.Started())
    return made


def test_a_worker_tells_what_keeps_a_watermark_that_stands(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.keep_running = True
    hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
    hand.give(he.Received(hand.leader, WatermarksRaised({"source:text": 50, "keep": 1}, {"keep": 50})))
    for wait_us in (0, limits.STANDSTILL_US, 1):
        hand.now += wait_us
        hand.give(he.Received(hand.leader, MapChanged(99)))
    (said,) = [request for request in hand.asked if isinstance(request, NoteStandstills)]
    (told,) = said.found
    assert (told.name, told.interval, told.kind, told.timestamp) == ("keep", ONE, "running work", 1)
    assert (told.detail, told.since_us) == ("key 'k'", hand.now - limits.STANDSTILL_US - 1)
    assert [one.member for one in run(hand.store.standstills())] == ["mine"]


def test_the_store_is_told_of_hot_keys_one_after_the_other_and_the_last_word_stays(hand: ClusterHand) -> None:
    # A store that answered later than after a report got the next one beside it, and either could be written last.
    hand.place(ONE, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    hand.held = NoteHotKeys
    ownership = hand.worker.ownership
    assert isinstance(ownership, MappedOwnership)
    for key in ("a", "b", "c"):
        for _ in range(4 * limits.HOT_KEY_BUNDLES):
            ownership._loads.came(ONE, [key] * limits.HOT_KEY_LEAST_RECORDS)
        hand.now += limits.LOAD_EVERY_US
        hand.give(he.Received(hand.leader, MapChanged(99)))
    (first,), hand.held = hand.waiting, None
    hand.answer(first)
    assert [one.key for one in ownership.hot_keys()] == ["c", "b", "a"]
    assert run(hand.store.hot_keys()) == [*ownership.hot_keys()]


def test_a_worker_takes_what_the_map_gives_to_it_and_says_hello_to_all(hand: ClusterHand) -> None:
    assert hand.owned() == set()
    hand.place(ONE, owner=hand.mine)
    assert hand.owned() == {ONE}
    peers = {peer for peer, message in hand.told if isinstance(message, Hello)}
    assert peers == {f"w{hand.mine}", f"w{hand.other}"}
    (hello, _) = hand.of(Hello)
    assert (hello.interval, hello.low, hello.high) == (ONE, "", "m")


def test_an_interval_that_another_worker_gets_is_dropped_and_the_others_go_on(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    hand.place(ONE, owner=hand.other)
    assert hand.owned() == {TWO}


def test_a_fenced_write_costs_the_one_interval(hand: ClusterHand) -> None:
    hand.place(ONE, TWO, owner=hand.mine)
    found = run(hand.store.cluster_map())
    run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.other}, {})))
    actor = hand.worker.actors.all[ONE]
    hand.give(he.Told(ONE, actor.sequencer, ev.WriteFenced()))
    assert hand.owned() == {TWO}


def test_a_process_that_is_no_member_any_more_ends(hand: ClusterHand) -> None:
    hand.now += LEASE_US
    with pytest.raises(Fenced, match="is not a member of this cluster any more"):
        hand.give(he.Received(hand.leader, MapChanged(99)))


@pytest.mark.parametrize(
    "how", ["placed elsewhere", "fenced", "handed over", "handed over and back", "begun anew", "ended"]
)
def test_what_a_worker_has_counted_stays_when_an_interval_goes(hand: ClusterHand, how: str) -> None:
    # It was counted in cores, and a worker leaves at the end of a run when it has none left: its last line said 0 records.
    hand.place(ONE, TWO, owner=hand.mine)
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    actor = hand.worker.actors.all[ONE]
    hand.deliver(actor.sequencer + 1, f"w{hand.other}")
    hand.give(he.TurnEnded())
    assert progress_of(hand.worker, {}).records == 1
    match how:
        case "placed elsewhere":
            hand.place(ONE, owner=hand.other)
        case "fenced":
            found = run(hand.store.cluster_map())
            run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.other}, {})))
            hand.give(he.Told(ONE, actor.sequencer, ev.WriteFenced()))
        case "begun anew":
            hand.worker.give_up(actor)
            hand.give(he.Received(hand.leader, MapChanged(99)))
        case "ended":
            hand.give(he.Received(hand.leader, RunEnded(RunEnding())))
            while hand.owned():
                hand.pass_time()
        case _:
            hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
            while hand.owned() != {TWO}:
                hand.pass_time()
    if how == "handed over and back":
        hand.now += limits.HAND_OVER_LIMIT_US
        hand.give(he.Received(hand.leader, MapChanged(99)))
        assert hand.owned() == {ONE, TWO}
        assert progress_of(hand.worker, {}).records == 1
        hand.deliver(hand.worker.actors.all[ONE].sequencer + 1, f"w{hand.other}")
        hand.give(he.TurnEnded())
        assert progress_of(hand.worker, {}).records == 2
        return
    assert progress_of(hand.worker, {}).records == 1


def test_no_core_is_made_twice_under_one_sequencer(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    first = hand.worker.actors.all[ONE].sequencer
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), acked=False)))
    assert hand.of(HandedOver) == [HandedOver((ONE,), ())]
    assert hand.owned() == set()
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.owned() == set(), "the leader has its time to place it elsewhere"
    hand.now += limits.HAND_OVER_LIMIT_US
    hand.give(he.Received(hand.leader, MapChanged(99)))
    assert hand.worker.actors.all[ONE].sequencer > first
    assert any(isinstance(request, Reacquire) for request in hand.asked)


def test_words_of_a_worker_that_is_not_known_yet_are_kept_until_the_map_names_it(hand: ClusterHand) -> None:
    hand.place(ONE, owner=hand.mine)
    newest = run(hand.store.join("third", "worker", "here:4", LEASE_US, b"4")).incarnation
    hand.give(he.Received(f"w{newest}", Hello(TWO, Sequencer(7), 0, "m", None)))
    assert hand.worker._receivers.place(hand.worker.routes.rows[TWO]) == (f"w{newest}", 7)


def test_a_stranger_is_forgotten_after_a_while_and_not_at_once(hand: ClusterHand) -> None:
    hand.worker.strangers.forget()
    hand.give(he.Received("w77", Hello(TWO, Sequencer(7), 0, "m", None)))
    hand.worker.strangers.forget()
    assert "w77" in hand.worker.strangers._words, "the map may have been read before it joined"
    hand.worker.strangers.forget()
    assert hand.worker.strangers._words == {}


@pytest.mark.parametrize("sends", [True, False])
def test_what_an_unknown_producer_sends_waits_until_the_store_says_who_it_is(hand: ClusterHand, sends: bool) -> None:
    hand.place(ONE, owner=hand.mine)
    producer = hand.worker.actors.all[ONE].sequencer - 1
    (number,) = hand.worker.routes.subscriptions.values()
    hand.held = ReadSenders
    hand.deliver(producer, f"w{hand.other}")
    assert hand.ran == []
    assert not hand.of(Receipt)
    if sends:  # it was given out before, and was not seen when this core has asked
        rows = {SequenceNumber(0): ("k", b"v", 1)}
        hand.store.folded.productions[SENDER] = {(number, ProducerId(producer)): rows}
    (ask,) = hand.waiting
    hand.answer(ask)
    hand.give(he.TurnEnded())
    assert hand.ran == ([ONE] if sends else [])
    assert [receipt.number for receipt in hand.of(Receipt)] == [(producer << 32) + 1]


def test_what_the_map_has_given_and_the_worker_does_not_know_yet_is_handed_over_for_good(hand: ClusterHand) -> None:
    # It said at once that it had let go, then read the map and took it: it ran while the leader merged the interval.
    hand.give(he.Received(hand.leader, Led(hand.epoch)))
    found = run(hand.store.cluster_map())
    version = run(hand.store.place(Placement(hand.epoch, found.version, {ONE: hand.mine}, {})))
    assert version is not None
    hand.give(he.Received(hand.leader, HandOver((ONE,), (), True)))
    while not (said := hand.of(HandedOver)):
        hand.pass_time()
    assert said == [HandedOver((ONE,), ())]
    hand.give(he.Received(hand.leader, MapChanged(version)))
    assert hand.owned() == set()
