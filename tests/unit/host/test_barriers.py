"""The epochs of one worker by hand: their begin, what was noted, their end, and when another one is wanted."""

from __future__ import annotations

import pytest

from millwheel import Computation, Context, Pipeline, Record, Snapshots, Stream, TextCoder, subscribe
from millwheel.api.snapshots import HaltingSnapshots
from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.host import alphabet as he
from millwheel.host.barriers import WentBack
from millwheel.host.messages import Delivery, EpochBased, EpochDeclared, EpochOpened, EpochStarted, EpochWanted, Hello
from millwheel.host.worker import WorkerHost
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel_injectors import IterableSource
from tests.unit.host.test_worker import Hand

words, kept = Stream("words", TextCoder()), Stream("kept", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class SnapshotHand(Hand):
    """A worker under snapshots: a source feeds `first`, which feeds `second`."""

    def __init__(self, *names: str, durability: Snapshots | None = None) -> None:
        super().__init__()
        self.posted: list[he.HostEvent] = []
        pipeline = Pipeline("hand", durability=durability or Snapshots())
        pipeline.inject(IterableSource("text", []), into=words)
        pipeline.add(Keep, [subscribe(words, lambda word: word)], [kept], name="first")
        pipeline.add(Keep, [subscribe(kept, lambda word: word)], name="second")
        self.worker = WorkerHost(graph=pipeline.graph())
        self.give(he.Started())
        for ask in [*self.waiting]:
            if isinstance(ask.wish, he.Discover):
                found = he.Discovery(tuple((name, b"") for name in names), False, MAX_TIME, 0)
                self.give(he.Answered(ask.token, found))
        while resumes := [ask for ask in self.waiting if isinstance(ask.wish, he.Resume)]:
            for ask in resumes:
                self.waiting.remove(ask)
                self.give(he.Answered(ask.token, MIN_TIME))
        self.first, self.second = (actor for actor, _ in self.worker.actors.intervals())

    def give(self, event: he.HostEvent) -> list[he.HostEffect]:
        effects = super().give(event)
        self.posted += [effect.event for effect in effects if isinstance(effect, he.Post)]
        return effects

    def hear(self, message: EpochStarted | EpochDeclared) -> None:
        self.give(he.Received("controller", message))


def test_a_worker_says_where_it_begins_and_only_then_may_epochs_begin() -> None:
    hand = SnapshotHand("a")
    assert hand.of(EpochBased) == [EpochBased(0)]
    assert hand.worker.label() == 0
    assert Hand().worker.label() is None


def test_an_epoch_begins_once_with_the_owners_and_the_positions_of_that_moment() -> None:
    hand = SnapshotHand("a", "b")
    for actor, core in hand.worker.actors.partitions():
        core._read_to = (int(actor.interval), b"state", 0)
    hand.hear(EpochStarted(1))
    (opened,) = hand.of(EpochOpened)
    assert opened.epoch == 1
    assert opened.owners == {actor.interval: actor.sequencer for actor in (hand.first, hand.second)}
    assert {write.interval: write.position for write in opened.positions} == {
        actor.interval: int(actor.interval) for actor, _ in hand.worker.actors.partitions()
    }
    hand.hear(EpochStarted(1))
    assert hand.of(EpochOpened) == [], "a copy"
    assert hand.worker.label() == 1


def test_an_interval_waits_for_the_barriers_of_all_that_send_to_it_and_of_nobody_else() -> None:
    hand = SnapshotHand("a", "b")
    hand.hear(EpochStarted(1))
    partitions = {actor.interval for actor, _ in hand.worker.actors.partitions()}
    cores = dict(hand.worker.actors.intervals())
    assert {*cores[hand.first]._alignment.missing()} == partitions
    assert cores[hand.second]._alignment.missing() == [hand.first.interval]


def test_positions_become_durable_with_the_epoch_that_has_them_and_no_other() -> None:
    hand = SnapshotHand("a")
    ((actor, core),) = hand.worker.actors.partitions()
    core._read_to = (5, b"", 0)
    hand.hear(EpochStarted(1))
    core._read_to = (9, b"", 0)
    for epoch in (0, 2):
        hand.hear(EpochDeclared(epoch))
    assert told(hand, actor.interval) == []
    hand.hear(EpochDeclared(1))
    assert told(hand, actor.interval) == [5]
    hand.hear(EpochDeclared(1))
    assert told(hand, actor.interval) == [], "a copy"


def told(hand: SnapshotHand, interval: int) -> list[int]:
    """Positions that a partition is told are durable, since the last call."""
    effects, hand.worker._out[:] = [*hand.worker._out], []
    posted = [effect.event for effect in effects if isinstance(effect, he.Post)]
    return [
        event.event.position
        for event in posted
        if isinstance(event, he.Told) and event.interval == interval and isinstance(event.event, ev.Advanced)
    ]


def test_the_next_epoch_is_wanted_once_until_it_has_begun() -> None:
    hand = SnapshotHand("a")
    hand.worker.epochs.want()
    hand.worker.epochs.want()
    assert wanted(hand) == [EpochWanted(0)]
    hand.hear(EpochStarted(1))
    hand.worker.epochs.want()
    assert wanted(hand) == [EpochWanted(1)]


def wanted(hand: SnapshotHand) -> list[EpochWanted]:
    effects, hand.worker._out[:] = [*hand.worker._out], []
    said = [effect.message for effect in effects if isinstance(effect, he.Tell)]
    return [message for message in said if isinstance(message, EpochWanted)]


def test_a_run_ends_after_an_epoch_that_began_when_all_was_done() -> None:
    hand = SnapshotHand()
    hand.hear(EpochStarted(1))
    pass_barriers(hand)
    assert not hand.worker.epochs.settled()
    hand.hear(EpochDeclared(1))
    assert not hand.worker.epochs.settled(), "that one had begun before"
    hand.hear(EpochStarted(2))
    pass_barriers(hand)
    hand.hear(EpochDeclared(2))
    assert hand.worker.epochs.settled()
    assert Hand().worker.epochs.settled(), "without snapshots there is nothing to wait for"


def test_a_run_does_not_end_while_an_interval_has_something_for_another_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = SnapshotHand()
    assert not hand.worker.epochs.settled()
    hand.hear(EpochStarted(1))
    pass_barriers(hand)
    hand.hear(EpochDeclared(1))
    monkeypatch.setattr(type(hand.second.core), "wants_epoch", property(lambda core: core is hand.second.core))
    wanted(hand)
    assert not hand.worker.epochs.settled()
    assert wanted(hand) == [EpochWanted(1)]
    monkeypatch.undo()
    assert hand.worker.epochs.settled()


def test_partitions_that_only_wait_for_an_epoch_to_end_do_not_wait_for_the_next_one_in_turn() -> None:
    hand = SnapshotHand("a", "b")
    first, second = (core for _, core in hand.worker.actors.partitions())
    first._exhausted = True
    hand.give(he.Rested())
    assert wanted(hand) == [], "the other one is still read"
    second._exhausted = True
    hand.give(he.Rested())
    assert wanted(hand) == [EpochWanted(0)]


def test_partitions_are_read_again_when_the_epoch_that_was_pressed_for_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = SnapshotHand("a")
    read = [0]
    monkeypatch.setattr(hand.worker.partitions, "go_on", lambda: read.append(1))
    with monkeypatch.context() as full:
        full.setattr(type(hand.first.core), "pressed", property(lambda core: core is hand.first.core))
        hand.worker.epochs.press()
        hand.worker.epochs.press()
        assert hand.worker.pressed()
        assert wanted(hand) == [EpochWanted(0)]
    assert read == [0]
    hand.worker.epochs.press()
    hand.worker.epochs.press()
    assert (read, hand.worker.pressed()) == ([0, 1], False)


def pass_barriers(hand: SnapshotHand) -> None:
    """What intervals have sent to each other arrives."""
    for hello in hand.of(Hello):
        hand.give(he.Received("worker", hello))
    for delivery in hand.of(Delivery):
        hand.give(he.Received("worker", delivery))
    while hand.posted:
        hand.give(hand.posted.pop(0))
    hand.give(he.TurnEnded())
    while hand.posted:
        hand.give(hand.posted.pop(0))


@pytest.mark.parametrize("ends", [["a"], ["a", "b"]])
def test_only_when_all_partitions_wait_for_an_epoch_does_it_have_to_come_at_once(ends: list[str]) -> None:
    hand = SnapshotHand("a", "b")
    for (_, core), _ in zip(hand.worker.actors.partitions(), ends, strict=False):
        assert isinstance(core, InjectorCore)
        core._exhausted = True
    hand.worker.epochs.hurry()
    assert bool(wanted(hand)) == (len(ends) == 2)


@pytest.mark.parametrize("finished", [1, 2])
def test_a_partition_that_is_at_its_end_for_good_does_not_keep_others_from_theirs(finished: int) -> None:
    hand = SnapshotHand("a", "b")
    for place, (_, core) in enumerate(hand.worker.actors.partitions()):
        assert isinstance(core, InjectorCore)
        core._exhausted, core.finished = True, place < finished
    hand.worker.epochs.hurry()
    assert bool(wanted(hand)) == (finished == 1), "an epoch has nothing to do when all are"


def test_rows_that_are_refused_take_all_intervals_back_and_each_with_what_is_its_own() -> None:
    hand = SnapshotHand("a")
    inherited = dict(hand.worker.actors.intervals())[hand.first].give_up()
    hand.worker.epochs.go_back(hand.first, inherited)
    (failed,) = [effect for effect in hand.worker._out if isinstance(effect, he.Failed)]
    assert isinstance(failed.error, WentBack)
    assert failed.error.inherited[hand.first.interval] is inherited
    assert failed.error.inherited.keys() == {hand.first.interval, hand.second.interval}
    assert all(core.halted for _, core in hand.worker.actors.intervals())


@pytest.mark.parametrize("halts", [False, True])
def test_a_worker_that_halts_reads_nothing_from_the_begin_of_an_epoch_until_it_is_declared(halts: bool) -> None:
    hand = SnapshotHand("a", durability=HaltingSnapshots() if halts else Snapshots())
    assert not hand.worker.pressed()
    hand.hear(EpochStarted(1))
    assert hand.worker.pressed() is halts, "in the very turn in which positions were noted"
    hand.give(he.TurnEnded())
    assert hand.worker.pressed() is halts
    assert hand.of(EpochWanted) == [], "that it stands is no reason for another epoch"
    hand.hear(EpochDeclared(1))
    hand.give(he.TurnEnded())
    assert not hand.worker.pressed()
