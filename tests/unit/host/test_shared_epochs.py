"""A worker of a cluster under snapshots by hand: an epoch begins, its barriers are named, and all goes back."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from millwheel import Computation, Context, Pipeline, Record, Snapshots, Stream, TextCoder, subscribe
from millwheel.api.snapshots import HaltingSnapshots
from millwheel.cluster import ClusterMap, Placement
from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.barriers import WentBack
from millwheel.host.mapped import MappedOwnership
from millwheel.host.messages import (
    BarriersNamed,
    Disowned,
    EpochDeclared,
    EpochOpened,
    EpochRefused,
    EpochStarted,
    ImageWritten,
    Led,
    MapChanged,
    Message,
)
from millwheel.host.requests import Leave, StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, ProducerId, Seq, Sequencer
from millwheel.ports import SourcePosition
from millwheel.testing.world.calls import run
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.host.cluster_hand import members

ONE, TWO = IntervalId(1), IntervalId(2)
words = Stream("words", TextCoder())


class Hold(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class SnapshotHand:
    """One worker that has both intervals.  The source is another member's."""

    def __init__(self, durability: Snapshots | None = None, owns: bool = True) -> None:
        pipeline = Pipeline("hand", durability=durability or Snapshots(every_ms=1_000))
        pipeline.inject(IterableSource("text", []), into=words)
        pipeline.add(Hold, [subscribe(words, lambda word: word)], name="hold", split_keys=("m",))
        self.store = MemoryStore(lambda: 1_000)
        self.mine, self.other, led = members(self.store, pipeline)
        self.leader = f"c{led.incarnation}"
        found = run(self.store.cluster_map())
        owner = self.mine if owns else self.other
        placement = Placement(led.epoch, found.version, {ONE: owner, TWO: owner}, {"text": self.other}, back=True)
        run(self.store.place(placement))
        ownership = partial(MappedOwnership, incarnation=self.mine)
        self.worker = WorkerHost(graph=pipeline.graph(), name=f"w{self.mine}", controller=None, ownership=ownership)
        self.told: list[Message] = []
        self.failed: list[Exception] = []
        self.give(he.Started())
        self.hear(Led(led.epoch))

    def give(self, event: he.HostEvent) -> None:
        for effect in self.worker.handle(event, 1_000):
            match effect:
                case he.Tell(peer, message) if peer == self.leader:
                    self.told.append(message)
                case he.Ask(token, StoreCall() as request):
                    self.give(he.Answered(token, run(request.call(self.store))))
                case he.Ask(token, he.Prepare()):
                    self.give(he.Answered(token, None))
                case he.Post(posted):
                    self.give(posted)
                case he.Failed(error):
                    self.failed.append(error)
                case _:
                    pass

    def hear(self, message: Message) -> None:
        self.give(he.Received(self.leader, message))
        self.give(he.TurnEnded())

    def of(self, kind: type[Any]) -> list[Any]:
        found = [message for message in self.told if isinstance(message, kind)]
        self.told = [message for message in self.told if not isinstance(message, kind)]
        return found


@pytest.fixture
def hand() -> SnapshotHand:
    return SnapshotHand()


def test_an_interval_aligns_when_all_barriers_are_named_and_not_before(hand: SnapshotHand) -> None:
    hand.hear(EpochStarted(1))
    (opened,) = hand.of(EpochOpened)
    assert (opened.owners.keys(), opened.barriers) == ({ONE, TWO}, {}), "who sends to nobody is not named"
    assert hand.of(ImageWritten) == []
    hand.hear(BarriersNamed(1, {}))
    assert {written.interval for written in hand.of(ImageWritten)} == {ONE, TWO}


def test_barriers_of_others_are_waited_for(hand: SnapshotHand) -> None:
    hand.hear(EpochStarted(1))
    hand.hear(BarriersNamed(1, {IntervalId(77): (TWO,)}))
    assert [written.interval for written in hand.of(ImageWritten)] == [ONE]


def test_a_worker_that_has_not_read_what_it_owns_begins_no_epoch() -> None:
    """It owned a source and no interval.  It said that nothing of it was in the epoch, read the map, and began the same epoch
    again: rows were in the state, and not before the stored position.  After a death they counted twice."""
    hand = SnapshotHand(owns=False)
    hand.hear(EpochStarted(1))
    assert hand.of(EpochOpened) == []
    found = run(hand.store.cluster_map())
    assert found.leader is not None
    run(hand.store.place(Placement(found.leader.epoch, found.version, {}, {"text": hand.mine})))
    hand.hear(MapChanged(found.version + 1))
    hand.hear(EpochStarted(1))
    (opened,) = hand.of(EpochOpened)
    assert opened.owners == {}


def test_a_begin_that_is_said_again_is_answered_again_and_begins_nothing(hand: SnapshotHand) -> None:
    hand.hear(EpochStarted(1))
    hand.hear(BarriersNamed(1, {}))
    said = (hand.of(EpochOpened), hand.of(ImageWritten))
    hand.hear(EpochStarted(1))
    hand.hear(BarriersNamed(1, {}))
    assert (hand.of(EpochOpened), hand.of(ImageWritten)) == said


def test_what_was_said_of_an_earlier_epoch_is_not_said_again(hand: SnapshotHand) -> None:
    for epoch in (1, 2, 3):
        hand.hear(EpochStarted(epoch))
        hand.hear(BarriersNamed(epoch, {}))
        if epoch < 3:
            hand.hear(EpochDeclared(epoch))
    hand.told.clear()
    hand.hear(EpochStarted(3))
    assert [said.epoch for said in hand.told if isinstance(said, EpochOpened | ImageWritten)] == [3, 3, 3]


def test_no_epoch_begins_before_the_one_before_it_is_declared(hand: SnapshotHand) -> None:
    hand.hear(EpochStarted(1))
    hand.hear(BarriersNamed(1, {}))
    hand.of(EpochOpened)
    hand.hear(EpochStarted(2))
    assert hand.of(EpochOpened) == []
    hand.hear(EpochDeclared(1))
    hand.hear(EpochStarted(2))
    assert [opened.epoch for opened in hand.of(EpochOpened)] == [2]


def test_refused_rows_of_another_workers_interval_are_no_business_of_this_one(hand: SnapshotHand) -> None:
    # All workers hear it.  Each one that did not have the interval died of it.
    hand.hear(EpochRefused(1, IntervalId(77), Seq(3), ((0, "no"),)))
    assert hand.failed == []
    hand.hear(EpochStarted(1))
    assert len(hand.of(EpochOpened)) == 1


def test_a_worker_that_was_dismissed_goes_back(hand: SnapshotHand) -> None:
    run(hand.store.leave(hand.mine))
    hand.hear(MapChanged(99))
    assert [type(error) for error in hand.failed] == [WentBack]


def test_the_next_member_of_a_process_knows_what_the_last_cores_and_those_before_them_have_left(
    hand: SnapshotHand,
) -> None:
    cores = {actor.interval: (actor, core) for actor, core in hand.worker.actors.intervals()}
    gone, earlier = IntervalId(77), cores[ONE][1].give_up()
    hand.worker.adoption.left.update({gone: earlier, TWO: earlier})
    refused = msgspec.structs.replace(cores[ONE][1].give_up(), watermark=7)
    hand.worker.perform(cores[ONE][0], [ev.RestartInterval(refused)])
    for ask in [effect for effect in hand.worker._out if isinstance(effect, he.Ask)]:
        assert isinstance(ask.wish, Leave)
        hand.give(he.Answered(ask.token, None))
    (back,) = hand.failed
    assert isinstance(back, WentBack)
    assert back.inherited.keys() == {ONE, TWO, gone}
    assert back.inherited[ONE] is refused, "it says what is not to run again"
    assert back.inherited[TWO] is not earlier, "the newest core of an interval knows most"
    assert back.inherited[gone] is earlier, "of an interval that this member did not get"


def test_a_worker_that_halts_reads_nothing_until_the_epoch_of_all_workers_is_declared() -> None:
    hand = SnapshotHand(HaltingSnapshots(every_ms=1_000))
    assert not hand.worker.pressed()
    hand.give(he.Received(hand.leader, EpochStarted(1)))
    assert hand.worker.pressed(), "in the very turn in which positions were noted"
    hand.hear(BarriersNamed(1, {}))
    assert len(hand.of(ImageWritten)) == 2
    assert hand.worker.pressed(), "others may not have written"
    hand.hear(EpochDeclared(1))
    assert not hand.worker.pressed()


def test_every_partition_notes_its_position_when_an_epoch_begins(
    hand: SnapshotHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = SourcePosition("one", IntervalId(9), ProducerId(9), 0, False, b"")
    core = InjectorCore(position.interval, position, {}, Sequencer(1))
    part = Actor(interval=position.interval, sequencer=Sequencer(1), owner="source:text", core=core)
    asked: list[tuple[Actor, ev.Event]] = []
    monkeypatch.setattr(hand.worker.actors, "partitions", lambda: [(part, core)])
    monkeypatch.setattr(hand.worker, "handle_core", lambda actor, event: asked.append((actor, event)))
    hand.worker.epochs.begin(1)
    assert (part, ev.BarrierAsked(1)) in asked


def test_a_worker_that_is_too_full_to_read_stays_so_in_the_turn_in_which_an_epoch_begins(hand: SnapshotHand) -> None:
    hand.worker.epochs.pressed = True
    hand.give(he.Received(hand.leader, EpochStarted(1)))
    assert hand.of(EpochOpened)
    assert hand.worker.pressed()


def test_barriers_that_are_named_twice_begin_nothing_twice(hand: SnapshotHand, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.hear(EpochStarted(1))
    told: list[ev.Event] = []
    monkeypatch.setattr(hand.worker, "handle_core", lambda actor, event: told.append(event))
    for _ in range(2):
        hand.hear(BarriersNamed(1, {IntervalId(77): (TWO,)}))
    assert told == [ev.EpochBegun(1, set(), set()), ev.EpochBegun(1, {IntervalId(77)}, set())]


def test_no_epoch_begins_while_something_that_the_map_gives_to_it_has_no_core(hand: SnapshotHand) -> None:
    """Rows that others send to it would be in no image, and before the stored positions."""
    hand.worker.drop(hand.worker.actors.all[ONE])
    hand.hear(EpochStarted(1))
    assert hand.of(EpochOpened) == []


@pytest.mark.parametrize("given_up", [False, True])
def test_all_goes_back_when_somebody_has_given_up_a_partition_that_is_read(hand: SnapshotHand, given_up: bool) -> None:
    """No epoch can be declared with its position."""
    run(hand.store.open_source("text", {"one": b""}))
    (position,) = run(hand.store.source_partitions("text"))
    taken = run(hand.store.take_partitions("text", hand.other, [position.interval]))
    assert taken is not None
    sequencer = taken[position.interval]
    core = InjectorCore(position.interval, position, {}, sequencer)
    hand.worker.actors.put(Actor(interval=position.interval, sequencer=sequencer, owner="source:text", core=core))
    if given_up:
        run(hand.store.take_partitions("text", hand.other, [position.interval]))
    hand.hear(Disowned(((position.interval, sequencer),)))
    assert [type(error) for error in hand.failed] == ([WentBack] if given_up else [])


def test_a_member_goes_on_after_the_epoch_that_was_declared_when_it_was_given_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hand = SnapshotHand(owns=False)
    assert hand.worker.label() == 0
    found = run(hand.store.cluster_map())
    assert found.leader is not None
    placement = Placement(found.leader.epoch, found.version, {}, {"text": hand.mine})
    run(hand.store.place(placement))
    declared: ClusterMap = msgspec.structs.replace(run(hand.store.cluster_map()), declared=4)

    async def cluster_map() -> ClusterMap:
        return declared

    monkeypatch.setattr(hand.store, "cluster_map", cluster_map)
    hand.hear(MapChanged(declared.version))
    assert hand.worker.label() == 4
    for epoch in (4, 6, 5):
        hand.hear(EpochStarted(epoch))
    assert [opened.epoch for opened in hand.of(EpochOpened)] == [5]
