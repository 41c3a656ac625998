"""Controllers on a shared store, one step at a time: the end of a run reaches everybody, whoever leads by then."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import (
    ClusterMap,
    Leader,
    MapOrder,
    Member,
    PlacedInterval,
    PlacedSource,
    Placement,
    RunEnding,
)
from millwheel.errors import Fenced, StoreError
from millwheel.host import alphabet as he
from millwheel.host.leading import ClusterController
from millwheel.host.led_epochs import LedEpochs
from millwheel.host.master import Assign, Cut, Decision, Dismiss, Finish, Propose
from millwheel.host.messages import (
    Claimed,
    Drained,
    EpochOpened,
    EpochStarted,
    HandedOver,
    HandOver,
    ImageWritten,
    InQuarantine,
    IntervalLoad,
    Led,
    LoadReport,
    MapChanged,
    RunEnded,
    WatermarkReport,
    WorkerJoined,
)
from millwheel.host.missing import NO_WORKER
from millwheel.host.over import Tolerance
from millwheel.host.requests import (
    CountQuarantined,
    CountRejected,
    Expel,
    GiveOrder,
    Lead,
    Leave,
    PlaceAnew,
    ReadMap,
    ReadOrders,
    Reshape,
)
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import MAX_TIME, SECOND
from millwheel.ports import FoldWrite, PipelineShape, PositionWrite, WatermarkWrite
from millwheel.testing.world.calls import run
from tests.unit.host.room import LEASE_US, Room, heard_by, led, noting, placed_one


def finished(standbys: int) -> tuple[Room, str, str]:
    """A room whose worker was just told that the run is over, with its leader and the worker."""
    room = Room()
    leader = room.join("controller")
    for _ in range(standbys):
        room.join("controller")
    worker = room.join("worker")
    room.let_pass(2)
    assert room.leaders() == [leader]
    room.drain(leader, worker)
    assert (leader, worker, RunEnded()) in room.told
    return room, leader, worker


def test_controllers_stay_until_the_last_worker_has_left() -> None:
    room, leader, worker = finished(standbys=1)
    room.let_pass(10)
    assert room.ended == []
    room.leave(worker)
    room.let_pass(10)
    assert sorted(room.ended) == sorted(room.controllers)
    assert room.ended[-1] == leader


def test_a_leader_whose_term_ended_meanwhile_still_knows_that_the_run_is_over() -> None:
    # Its machine was busy for longer than its lease as leader.  In its next term it waited for workers for ever.
    room, leader, worker = finished(standbys=0)
    room.leave(worker)
    room.cut.add(leader)
    room.now += 2 * LEASE_US
    other = room.join("controller")
    room.let_pass(2)
    assert room.leaders() == [leader, other]  # the first one does not know yet
    room.cut = {other}
    room.now += 2 * LEASE_US
    room.leave(other)
    room.let_pass(10)
    assert room.ended == [leader]


def test_another_leader_who_never_heard_of_the_end_is_told_by_the_earlier_one() -> None:
    room = Room()
    earlier = room.join("controller")
    worker = room.join("worker")
    room.let_pass(2)
    room.drain(earlier, worker)
    room.leave(worker)
    room.cut.add(earlier)
    room.now += 2 * LEASE_US
    later = room.join("controller")
    room.let_pass(10)
    assert room.controllers[later].leads
    assert room.ended == []
    room.cut.clear()
    room.let_pass(2 * limits.FAREWELLS)
    assert sorted(room.ended) == sorted([earlier, later])


def test_a_controller_that_leads_only_after_all_workers_have_left_a_finished_pipeline_ends() -> None:
    # Whoever knew that the run is over was gone by then, and a worker to say it never came: it waited for ever.
    room = Room()
    run(room.store.open_pipeline(PipelineShape("demo", {"a": ()}, {}, {}, (), ("src",))))
    late = room.join("controller")
    room.let_pass(2)
    found = run(room.store.cluster_map())
    assert found.leader is not None
    writes = [WatermarkWrite(name, MAX_TIME - 1, {}) for name in ("a", "source:src")]
    assert run(room.store.persist_led_watermarks(found.leader.epoch, writes)) == {"a", "source:src"}
    room.let_pass(2 * limits.DESERTED_US / SECOND)
    assert room.ended == []  # something is left to be done: it waits for workers
    writes = [WatermarkWrite(write.name, MAX_TIME, {}) for write in writes]
    assert run(room.store.persist_led_watermarks(found.leader.epoch, writes)) == {"a", "source:src"}
    worker = room.join("worker")
    room.let_pass(2 * limits.DESERTED_US / SECOND)
    assert room.ended == []
    room.leave(worker)
    other = room.join("controller")
    room.let_pass(2 * limits.DESERTED_US / SECOND)
    assert sorted(room.ended) == sorted([late, other])


def deserted(allowed: Tolerance, folds: bool) -> tuple[Room, str]:
    """All is at the end of time, a key is in quarantine, all workers are gone, and so is the leader whom they told; the next
    one.  `folds`: the log was folded before that."""
    room = Room()
    room.tolerance = allowed
    run(room.store.open_pipeline(PipelineShape("demo", {"a": ()}, {}, {}, (), ("src",))))
    first = room.join("controller")
    room.let_pass(2)
    found = run(room.store.cluster_map())
    assert found.leader is not None
    writes = [WatermarkWrite(name, MAX_TIME, {}) for name in ("a", "source:src")]
    assert run(room.store.persist_led_watermarks(found.leader.epoch, writes)) == {"a", "source:src"}
    (placed,) = found.intervals
    entry = QuarantineEntry("k", SubscriptionId(1), ProducerId(5), SequenceNumber(0), b"v", 1)
    image = Checkpoint(
        format=CHECKPOINT_FORMAT, shape="", epoch=0, ids=[], produced=[], acked=[], state=StateWrites.of([]),
        timers=TimerWrites(), holds=HoldWrites(), sinks=[], quarantined=[entry],
    )  # fmt: skip
    run(room.store.commit([LogWrite(placed.id, placed.sequencer, Seq(1), 0, encode_checkpoint(image))]))
    if folds:
        fold(room, image)
    room.cut.add(first)
    room.leave(first)
    room.now += 2 * LEASE_US
    return room, room.join("controller")


def fold(room: Room, image: Checkpoint) -> None:
    (placed,) = run(room.store.cluster_map()).intervals
    assert run(room.store.fold(FoldWrite(placed.id, placed.sequencer, Seq(1), [image])))


@pytest.mark.parametrize(("allowed", "too_much"), [(Tolerance(), True), (Tolerance(1), False)])
def test_a_leader_whom_no_worker_has_told_of_a_quarantine_knows_it_from_the_store(
    allowed: Tolerance, too_much: bool
) -> None:
    # It said that nothing was left over: a run with keys in quarantine ended with status 0.
    room, leader = deserted(allowed, folds=True)
    room.let_pass(limits.DESERTED_US / SECOND - 5)
    assert room.ended == []
    room.let_pass(20)
    assert room.ended == [leader]
    assert room.controllers[leader].ending == RunEnding(1, 0, too_much)


def test_more_quarantines_than_are_allowed_end_a_run_although_nobody_works() -> None:
    room, leader = deserted(Tolerance(0), folds=True)
    room.let_pass(5)
    assert room.ended == [leader]
    assert room.controllers[leader].ending.stopped == "1 key is in quarantine, 0 are allowed"


@pytest.mark.parametrize("allowed", [Tolerance(), Tolerance(0)])
def test_a_leader_judges_nothing_before_the_logs_of_dead_workers_are_folded(allowed: Tolerance) -> None:
    # A quarantine may be in a log and in no table.  A worker has to come, as after every other death.
    room, leader = deserted(allowed, folds=False)
    room.let_pass(3 * limits.DESERTED_US / SECOND)
    assert room.ended == []
    worker = room.join("worker")
    room.let_pass(2)
    (placed,) = run(room.store.cluster_map()).intervals
    assert run(room.store.recover(placed.id, placed.sequencer)) is not None
    room.leave(worker)
    room.let_pass(2 * limits.DESERTED_US / SECOND)
    assert room.ended == [leader]
    assert room.controllers[leader].ending.quarantined == 1
    assert room.controllers[leader].ending.too_much


def test_an_order_under_snapshots_is_carried_out_at_the_end_of_an_epoch_that_begins_for_it() -> None:
    room = Room(snapshot_every_us=3_600 * SECOND)
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    leader, worker = room.join("controller"), room.join("worker")
    room.let_pass(10)
    room.give(leader, he.Received(worker, WorkerJoined({"count": ()}, {})))
    room.let_pass(2)
    (placed,) = run(room.store.cluster_map()).intervals
    assert placed.owner == room.members[worker].incarnation
    assert (leader, worker, EpochStarted(1)) not in room.told
    run(room.store.order(MapOrder("split", (placed.id,), split_keys=("m",))))
    room.let_pass(2)
    assert (leader, worker, EpochStarted(1)) in room.told
    assert run(room.store.cluster_map()).intervals == (placed,)
    room.give(leader, he.Received(worker, EpochOpened(1, {placed.id: placed.sequencer}, (), {})))
    room.give(leader, he.Received(worker, ImageWritten(1, placed.id, placed.sequencer, 0)))
    found = run(room.store.cluster_map())
    assert found.declared == 1
    assert [row.owner for row in found.intervals] == [None]  # at once, and not when the leader looks the next time
    again = room.join("worker")
    room.let_pass(2)
    found = run(room.store.cluster_map())
    assert [(row.low, row.owner) for row in found.intervals] == [
        (key, room.members[again].incarnation) for key in ("", "m")
    ]
    assert run(room.store.orders()) == []


def test_what_was_asked_of_a_worker_is_asked_again_when_its_channel_is_open() -> None:
    # What is said before a channel is open is lost.  The split was refused 5 s later, and a move waited for so long.
    room = Room()
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    leader, worker = room.join("controller"), room.join("worker")
    room.let_pass(2)
    (placed,) = run(room.store.cluster_map()).intervals
    run(room.store.order(MapOrder("split", (placed.id,), split_keys=("m",))))
    room.let_pass(1)
    asked = (leader, worker, HandOver((placed.id,), (), True))
    assert room.told.count(asked) == 1
    room.give(leader, he.ChannelOpened(worker))
    assert room.told.count(asked) == 2
    room.give(leader, he.Received(worker, HandedOver((placed.id,), ())))
    assert [row.low for row in run(room.store.cluster_map()).intervals] == ["", "m"]
    told = len(room.told)
    room.give(leader, he.ChannelOpened(worker))
    assert not [message for _, _, message in room.told[told:] if isinstance(message, HandOver)]


@pytest.mark.parametrize("kind", ["split", "merge"])
def test_an_order_that_was_carried_out_is_never_refused_by_the_next_leader(kind: str) -> None:
    # The leader died between the change of the map and the word of it.  The next one found nothing to be split, and said so.
    room = Room()
    computations: dict[str, tuple[str, ...]] = {"count": () if kind == "split" else ("m",)}
    run(room.store.open_pipeline(PipelineShape("p", computations, {}, {}, (), ())))
    leader, other, worker = room.join("controller"), room.join("controller"), room.join("worker")
    room.let_pass(2)
    placed = tuple(row.id for row in run(room.store.cluster_map()).intervals)
    number = run(room.store.order(MapOrder(kind, placed, split_keys=("m",) if kind == "split" else ())))
    room.let_pass(1)
    room.dies_after = Reshape
    room.give(leader, he.Received(worker, HandedOver(placed, ())))
    room.let_pass(1)
    assert room.cut == {leader}
    room.now += 2 * LEASE_US
    room.let_pass(2)
    assert room.controllers[other].leads
    assert len(run(room.store.cluster_map()).intervals) == (2 if kind == "split" else 1)
    assert run(room.store.refusal(number)) == ""


def test_an_order_that_the_store_cannot_carry_out_is_refused_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the leader would try for ever, and whoever has ordered it would never hear why."""

    async def refuse(*_: object) -> None:
        raise StoreError("nothing is behind 'm'")

    room = Room()
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    leader, worker = room.join("controller"), room.join("worker")
    room.let_pass(2)
    (placed,) = run(room.store.cluster_map()).intervals
    number = run(room.store.order(MapOrder("split", (placed.id,), split_keys=("m",))))
    room.let_pass(1)
    monkeypatch.setattr(room.store, "reshape", refuse)
    room.give(leader, he.Received(worker, HandedOver((placed.id,), ())))
    assert run(room.store.refusal(number)) == "nothing is behind 'm'"


class Strict(Room):
    """Its controllers allow one key in quarantine, and one rejected row."""

    tolerance = Tolerance(1, 1)


def spoilt(room: Room, rejected: int) -> tuple[str, str, IntervalId]:
    """A leader, and a worker that owns the only interval; so many rows of its source are rejected."""
    run(room.store.open_pipeline(PipelineShape("left", {"count": ()}, {}, {}, (), ("src",))))
    leader, worker = room.join("controller"), room.join("worker")
    room.let_pass(2)
    (opened,) = run(room.store.open_source("src", {"p": b""}))
    taken = run(room.store.take_partitions("src", room.members[worker].incarnation, [opened.interval]))
    assert taken is not None
    run(room.store.advance([PositionWrite(opened.interval, taken[opened.interval], 9, True, b"", rejected=rejected)]))
    room.let_pass(2)
    (placed,) = [placed for placed in run(room.store.cluster_map()).intervals if placed.computation == "count"]
    assert placed.owner == room.members[worker].incarnation
    return leader, worker, placed.id


def endings(room: Room, worker: str) -> set[RunEnding]:
    return {message.ending for _, peer, message in room.told if peer == worker and isinstance(message, RunEnded)}


def test_a_run_that_leaves_nothing_over_ends_well_and_one_that_does_says_so_to_all() -> None:
    for rejected, keys, too_much in ((0, 0, False), (1, 0, True), (0, 1, True)):
        room = Room()
        leader, worker, interval = spoilt(room, rejected)
        room.drain(leader, worker, {interval: keys})
        assert endings(room, worker) == {RunEnding(keys, rejected, too_much)}
        assert room.controllers[leader].ending.too_much is too_much


def test_a_leader_stops_the_run_when_all_workers_together_have_failed_too_often() -> None:
    for rejected, keys, why in ((1, 1, ""), (2, 1, "rows are rejected"), (1, 2, "keys are in quarantine")):
        room = Strict()
        leader, worker, interval = spoilt(room, rejected)
        number = room.members[worker].incarnation
        room.give(leader, he.Received(worker, InQuarantine(number, {interval: keys})))
        room.let_pass(2)
        assert all(why in ending.stopped for ending in endings(room, worker))
        assert bool(endings(room, worker)) == bool(why)


def test_whoever_leads_next_has_the_same_verdict_from_workers_and_the_store() -> None:
    room = Strict()
    earlier, worker, interval = spoilt(room, 1)
    other = room.join("controller")
    number = room.members[worker].incarnation
    room.give(earlier, he.Received(worker, InQuarantine(number, {interval: 1})))
    room.cut.add(earlier)
    room.now += 2 * LEASE_US
    room.let_pass(2)
    assert room.controllers[other].leads
    room.drain(other, worker, {interval: 1})
    assert endings(room, worker) == {RunEnding(1, 1, False)}


def test_whoever_was_given_something_is_asked_what_it_knows_of_it() -> None:
    # What it had said while it was being placed counted for nothing.
    room = Room()
    leader, worker, placed = placed_one(room)
    asked = len(heard_by(room, worker, Led))
    assert asked == 2, "when it came, and when it had got something"
    other = room.join("worker")
    room.let_pass(1)
    assert len(heard_by(room, other, Led)) == 1
    run(room.store.order(MapOrder("move", (placed.id,), to=other)))
    room.let_pass(1)
    room.give(leader, he.Received(worker, HandedOver((placed.id,), ())))
    room.let_pass(1)
    assert len(heard_by(room, other, Led)) == 2
    assert len(heard_by(room, worker, Led)) == asked


def asked_to_move() -> tuple[Room, str, str, str, PlacedInterval]:
    """A worker whose interval is to go to another one has been asked to let go of it."""
    room = Room()
    leader, worker, placed = placed_one(room)
    other = room.join("worker")
    room.let_pass(1)
    run(room.store.order(MapOrder("move", (placed.id,), to=other)))
    room.let_pass(1)
    return room, leader, worker, other, placed


def test_an_owner_is_not_asked_again_to_let_go_because_the_map_has_changed_meanwhile() -> None:
    room, leader, worker, other, placed = asked_to_move()
    asked = heard_by(room, worker, HandOver)
    place, refused = room.store.place, list[Placement]()

    async def once(placement: Placement) -> int | None:
        if not refused:
            refused.append(placement)
            return None
        return await place(placement)

    room.store.place = once  # type: ignore[method-assign]
    room.give(leader, he.Received(worker, HandedOver((placed.id,), ())))
    room.let_pass(2)
    assert len(refused) == 1
    assert [one.owner for one in run(room.store.cluster_map()).intervals] == [room.members[other].incarnation]
    assert heard_by(room, worker, HandOver) == asked


def test_an_owner_that_was_not_heard_while_its_interval_was_placed_in_vain_says_everything_again() -> None:
    room, leader, worker, other, placed = asked_to_move()
    asked, place = len(heard_by(room, worker, Led)), room.store.place

    async def refused(placement: Placement) -> int | None:
        return None

    room.store.place = refused  # type: ignore[method-assign]
    room.give(leader, he.Received(worker, HandedOver((placed.id,), ())))
    room.leave(other)
    room.let_pass(2)
    room.store.place = place  # type: ignore[method-assign]
    assert len(heard_by(room, worker, Led)) > asked
    assert [one.owner for one in run(room.store.cluster_map()).intervals] == [placed.owner]


def test_nobody_is_heard_about_an_interval_while_it_is_being_placed() -> None:
    room, leader, worker, _, placed = asked_to_move()
    for message in (WorkerJoined({"count": ()}), Claimed((("count", placed.id, placed.sequencer),))):
        room.give(leader, he.Received(worker, message))
    authority = room.controllers[leader]._led._authority
    assert authority is not None
    place, heard = room.store.place, list[int]()

    async def meanwhile(placement: Placement) -> int | None:
        for value in (40, 50):
            if value == 50:  # the owner is another one by now, and nobody knows it yet
                version = await place(placement)
            room.give(leader, he.Received(worker, WatermarkReport("count", placed.id, value, placed.sequencer)))
            heard.append(authority.intervals("count")[placed.id])
        return version

    room.give(leader, he.Received(worker, WatermarkReport("count", placed.id, 30, placed.sequencer)))
    room.store.place = meanwhile  # type: ignore[method-assign]
    room.give(leader, he.Received(worker, HandedOver((placed.id,), ())))
    room.let_pass(1)
    assert heard == [30, 30]


def test_sessions_of_a_dead_worker_are_ended_before_what_it_had_is_placed_and_before_it_is_forgotten() -> None:
    room = Room()
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    room.join("controller")
    dying = run(room.store.join("dying", "worker", "here:1", 3 * SECOND, b"dying")).incarnation
    room.let_pass(2)
    assert [placed.owner for placed in run(room.store.cluster_map()).intervals] == [dying]
    room.join("worker")
    done: list[str] = []
    for name in ("expel", "place", "leave"):
        setattr(room.store, name, noting(done, name, getattr(room.store, name)))
    room.let_pass(3)
    assert done == ["expel", "place", "expel", "leave"]


@pytest.mark.parametrize("snapshot_every_us", [0, 3_600 * SECOND])
def test_workers_hear_of_a_later_map_whenever_the_leader_has_placed_anything_anew(snapshot_every_us: int) -> None:
    """Of the version that they have they have heard, and look no more."""
    room = Room(snapshot_every_us)
    run(room.store.open_pipeline(PipelineShape("p", {"count": ("m",)}, {}, {}, (), ())))
    room.join("controller")
    changes = 0
    for _ in range(3):
        room.join("worker")
    for step in range(1_200):
        if step == 400:
            run(room.store.leave(run(room.store.cluster_map()).intervals[0].owner or 0))
        elif step == 800:
            room.join("worker")
        before = run(room.store.cluster_map())
        room.told.clear()
        room.let_pass(0.1)
        after = run(room.store.cluster_map())
        if [placed.owner for placed in before.intervals] != [placed.owner for placed in after.intervals]:
            changes += 1
            for member in after.members:
                heard = [message.version for message in heard_by(room, f"w{member.incarnation}", MapChanged)]
                assert member.role != "worker" or max(heard, default=0) > before.version, (step, member)
    assert changes > 1


def test_no_epoch_begins_when_the_run_is_over() -> None:
    controller = ClusterController(1, LEASE_US, 1_000)
    controller._led.lead(1)
    epochs = controller._led._epochs = LedEpochs(
        workers=(), owners={}, term=1, every_us=1_000, begin=lambda steps: None, tell=lambda message: None, values=dict
    )
    steps = controller._carry_out(Finish(), ClusterMap(1, None, (Member(7, "n", "worker", "here:1"),), (), ()), 1)
    next(steps)
    with pytest.raises(StopIteration):
        steps.send(0)
    assert epochs._over


def test_a_controller_that_is_no_member_any_more_ends_also_while_others_live() -> None:
    room = Room()
    leader, worker, _ = led(room)
    room.join("controller")
    room.leave(leader)
    assert any(member.alive for member in run(room.store.cluster_map()).members)
    with pytest.raises(Fenced, match="not a member of this cluster any more"):
        room.let_pass(2 * LEASE_US / SECOND)
    room.leave(worker)


SEEN = ClusterMap(
    4, None,
    (
        Member(1, "c", "controller", "here:1"), Member(7, "n", "worker", "here:7"), Member(8, "m", "worker", "here:8"),
        Member(9, "gone", "worker", "here:9", False),
    ),
    (PlacedInterval(IntervalId(1), "count", "", None, 7, Sequencer(3)),), (PlacedSource("text", 8),),
)  # fmt: skip


class Carried:
    """A leader in term 1 that follows the map SEEN and carries out a decision, one step at a time."""

    def __init__(self, decision: Decision, found: ClusterMap = SEEN) -> None:
        self.controller = ClusterController(1, LEASE_US, 1_000)
        self.controller._led.lead(1)
        self.controller._follow(found)
        self.controller._out.clear()
        self.epochs = self.controller._led._epochs = LedEpochs(
            workers=(), owners={}, term=1, every_us=1_000, begin=lambda steps: None, tell=lambda message: None, values=dict
        )  # fmt: skip
        self.steps = self.controller._carry_out(decision, found, 1)
        self.wish: object = next(self.steps)

    def answer(self, answer: object) -> bool | None:
        """Returns whether the map is looked at again at once; None: there is more to be done."""
        try:
            self.wish = self.steps.send(answer)
        except StopIteration as end:
            again: bool = end.value
            return again
        return None

    def told(self) -> list[tuple[str, object]]:
        return [(effect.peer, effect.message) for effect in self.controller._out if isinstance(effect, he.Tell)]


def test_before_owners_are_dismissed_epochs_end_and_the_dead_are_expelled_and_nobody_else_is() -> None:
    carried = Carried(Dismiss((7, 8)))
    assert carried.epochs._over
    wishes = [carried.wish]
    while carried.answer(None) is None:
        wishes.append(carried.wish)
    assert wishes == [Expel((9,)), Leave(7), Leave(8)]
    assert carried.told() == [("w7", MapChanged(5)), ("w8", MapChanged(5))]


def test_an_order_that_the_leader_proposes_is_given_to_the_store_and_noted() -> None:
    wanted = MapOrder("move", (IntervalId(1),), to="w8")
    carried = Carried(Propose(wanted))
    assert carried.wish == GiveOrder(wanted)
    assert carried.answer(3) is True
    assert carried.controller._out == [he.Notice("load: move of [1] w8")]


@pytest.mark.parametrize("leads", [True, False])
def test_a_change_of_the_map_that_the_store_has_not_made_is_told_to_nobody_and_is_not_tried_again_at_once(
    leads: bool,
) -> None:
    """Another controller may lead: a try at once, and the next one, would ask the store without a pause."""
    carried = Carried(Cut((IntervalId(1),), ("m",), 3, back=True))
    assert isinstance(carried.wish, Reshape)
    if not leads:
        carried.controller._led.forget()
    assert carried.answer(None if leads else 2) is False
    assert carried.told() == []


@pytest.mark.parametrize("leads", [True, False])
def test_a_leader_that_does_not_know_how_the_run_has_ended_or_leads_no_more_ends_it_not(leads: bool) -> None:
    nobody = msgspec.structs.replace(SEEN, members=SEEN.members[:1])
    carried = Carried(Finish(), nobody if leads else SEEN)
    assert isinstance(carried.wish, CountQuarantined if leads else CountRejected)
    if not leads:
        carried.controller._led.forget()
    assert carried.answer(None if leads else 0) is False
    assert not carried.controller._finishing
    assert not carried.epochs._over or not leads


def test_the_owner_of_a_source_that_was_placed_in_vain_is_to_say_everything_again_and_nobody_else_is() -> None:
    carried = Carried(Assign({}, {"text": 7}))
    assert carried.wish == Expel((9,))
    carried.answer(None)
    assert isinstance(carried.wish, PlaceAnew)
    assert carried.answer(None) is False
    assert carried.controller._fresh == {8}


def test_a_controller_that_the_map_shows_as_dead_ends_with_the_reason() -> None:
    mine, *others = SEEN.members
    dead = msgspec.structs.replace(SEEN, members=(msgspec.structs.replace(mine, alive=False), *others))
    with pytest.raises(Fenced, match="not a member of this cluster any more"):
        ClusterController(1, LEASE_US)._follow(dead)


def test_a_map_is_looked_at_by_one_at_a_time_and_again_when_something_has_come_meanwhile() -> None:
    """Of two who look at the same map, both would carry out the same decision."""
    controller, asks = ClusterController(1, LEASE_US), list[he.Ask]()

    def give(event: he.HostEvent) -> None:
        asks.extend(effect for effect in controller.handle(event, 0) if isinstance(effect, he.Ask))

    def answer(kind: type[object], answer: object) -> None:
        (ask,) = [ask for ask in asks if isinstance(ask.wish, kind)]
        asks.remove(ask)
        give(he.Answered(ask.token, answer))

    give(he.Started())
    answer(Lead, Leader(1, 1, "here:1"))
    for _ in range(3):
        give(he.Received("w7", HandedOver((IntervalId(1),), ())))
        assert [ask.wish for ask in asks if isinstance(ask.wish, ReadMap)] == [ReadMap()]
    answer(ReadMap, msgspec.structs.replace(SEEN, members=SEEN.members[:3]))
    give(he.Received("w7", HandedOver((IntervalId(1),), ())))
    assert not [ask for ask in asks if isinstance(ask.wish, ReadMap)], "it asks for orders, of the map that it has read"
    answer(ReadOrders, [])
    assert [ask.wish for ask in asks if isinstance(ask.wish, ReadMap)] == [ReadMap()]


def deposed(room: Room, leader: str, worker: str) -> None:
    """The leader was without its lease for a while, and leads again."""
    terms = len(heard_by(room, worker, Led))
    room.now += 2 * LEASE_US
    assert run(room.store.lead(room.members[worker].incarnation, LEASE_US)) is not None
    room.let_pass(1)
    assert not room.controllers[leader].leads
    assert len(heard_by(room, worker, Led)) == terms
    room.now += 2 * LEASE_US
    room.let_pass(1)
    assert room.controllers[leader].leads


def test_who_leads_again_tells_workers_that_it_knew_before_and_knows_nothing_of_what_they_had_said() -> None:
    room = Room()
    leader, worker, placed = placed_one(room)
    number, found = room.members[worker].incarnation, run(room.store.cluster_map())
    (*_, first) = heard_by(room, worker, Led)
    room.give(leader, he.Received(worker, InQuarantine(number, {placed.id: 5})))
    room.give(leader, he.Received(worker, Drained(number, found.version, {placed.id: 5})))
    controller = room.controllers[leader]
    assert controller._left_overs.keys(found) == 5
    deposed(room, leader, worker)
    assert heard_by(room, worker, Led)[-1].epoch > first.epoch
    assert controller._left_overs.keys(found) == 0
    room.give(leader, he.Received(worker, Drained(number, found.version, {})))
    assert heard_by(room, worker, RunEnded) == [], "it has said so once in this term"


def test_an_earlier_map_than_the_one_that_was_followed_is_not_followed() -> None:
    """What an owner of an earlier map says would count for intervals that have other owners by now."""
    controller = ClusterController(1, LEASE_US)
    shown: list[ClusterMap] = []
    controller._led.follow = lambda found: shown.append(found)  # type: ignore[method-assign]
    later, earlier = msgspec.structs.replace(SEEN, version=6), msgspec.structs.replace(SEEN, version=5)
    for found in (SEEN, later, earlier, later):
        steps = controller._act_all()
        controller._again = True
        assert next(steps) == ReadMap()
        with pytest.raises(StopIteration):
            steps.send(found)
    assert shown == [SEEN, later, later]


def test_what_a_worker_has_said_before_all_was_placed_is_enough_to_begin_when_it_is() -> None:
    room = Room(snapshot_every_us=3_600 * SECOND)
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    leader, worker = room.join("controller"), room.join("worker")
    room.give(leader, he.Received(worker, WorkerJoined({"count": ()}, {})))
    assert room.controllers[leader]._led._authority is None
    room.let_pass(10)
    assert room.controllers[leader]._led._authority is not None


def test_epochs_of_a_cluster_begin_as_often_as_they_are_to() -> None:
    room = Room(snapshot_every_us=10 * SECOND)
    leader, worker, placed = placed_under_snapshots(room)
    begun: list[int] = []
    for epoch in (1, 2, 3):
        until = room.now + 60 * SECOND
        while EpochStarted(epoch) not in heard_by(room, worker, EpochStarted) and room.now < until:
            room.let_pass(0.1)
        begun.append(room.now)
        room.give(leader, he.Received(worker, EpochOpened(epoch, {placed.id: placed.sequencer}, (), {})))
        room.give(leader, he.Received(worker, ImageWritten(epoch, placed.id, placed.sequencer, 0)))
    for before, after in itertools.pairwise(begun):
        assert abs(after - before - 10 * SECOND) <= SECOND


def placed_under_snapshots(room: Room) -> tuple[str, str, PlacedInterval]:
    """A leader under snapshots that knows who sends to whom, and the owner of the only interval."""
    run(room.store.open_pipeline(PipelineShape("p", {"count": ()}, {}, {}, (), ())))
    leader, worker = room.join("controller"), room.join("worker")
    room.give(leader, he.Received(worker, WorkerJoined({"count": ()}, {})))
    room.let_pass(10)
    (placed,) = run(room.store.cluster_map()).intervals
    return leader, worker, placed


def test_whose_term_ends_while_the_dead_are_expelled_places_nothing() -> None:
    carried = Carried(Assign({}, {"text": 7}))
    carried.controller._led.forget()
    assert carried.answer(None) is False


def test_whose_term_ends_while_it_places_tells_nobody_and_asks_nobody() -> None:
    carried = Carried(Assign({IntervalId(1): 8}, {"text": 7}))
    carried.answer(None)
    carried.controller._led.forget()
    assert carried.answer(5) is False
    assert carried.told() == []
    assert carried.controller._fresh == set()


def test_whoever_was_given_an_interval_or_a_source_is_asked_what_it_knows_of_it() -> None:
    carried = Carried(Assign({IntervalId(1): 8}, {"text": 7}))
    carried.answer(None)
    assert carried.answer(5) is True
    assert carried.controller._fresh == {7, 8}
    assert carried.told() == [("w7", MapChanged(5)), ("w8", MapChanged(5))]


def test_whose_term_ends_while_it_counts_does_not_end_the_run_and_decides_nothing() -> None:
    controller = ClusterController(1, LEASE_US, tolerance=Tolerance(rejected=0))
    controller._led.lead(1)
    steps = controller._lead_on(SEEN, 1)
    assert next(steps) == CountRejected()
    controller._led.forget()
    assert steps.send(5) == ReadOrders()
    with pytest.raises(StopIteration):
        steps.send([(3, MapOrder("move", (IntervalId(1),), to="m"))])
    assert not controller._finishing
    assert not controller._master._orders


@pytest.mark.parametrize("comes", [True, False])
def test_what_comes_while_a_change_is_made_in_vain_has_the_map_looked_at_again(comes: bool) -> None:
    controller = ClusterController(1, LEASE_US)
    controller._led.lead(1)
    controller._master.decide = lambda found, now: Cut((IntervalId(1),), ("m",), 3, back=False)  # type: ignore[method-assign]
    controller._acting = True
    steps = controller._lead_on(SEEN, 1)
    assert next(steps) == ReadOrders()
    assert isinstance(steps.send([]), Reshape)
    if comes:
        controller.handle(he.Received("w7", HandedOver((IntervalId(1),), ())), 0)
    with pytest.raises(StopIteration):
        steps.send(None)
    assert controller._again is comes


def test_loads_that_a_worker_reports_are_those_from_which_relief_is_planned() -> None:
    room = Room()
    leader, worker, placed = placed_one(room)
    heard: list[tuple[int, object]] = []
    room.controllers[leader]._master.relief.loaded = lambda *said: heard.append(said)  # type: ignore[method-assign]
    loads = (IntervalLoad(placed.id, 700, "k"),)
    room.give(leader, he.Received(worker, LoadReport(loads)))
    assert heard == [(room.members[worker].incarnation, loads)]


def test_a_leader_without_workers_says_that_it_waits_for_one() -> None:
    room = Room()
    leader = room.join("controller")
    room.let_pass(120)
    assert room.noted
    assert {(host, text == NO_WORKER) for host, text in room.noted} == {(leader, True)}
