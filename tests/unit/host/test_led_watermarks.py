"""The watermarks of a cluster at the leader: what counts, what is stored, and what is forgotten."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from millwheel.cluster import ClusterMap, Member, PlacedInterval, PlacedSource
from millwheel.core.authority import Authority
from millwheel.host import alphabet as he
from millwheel.host.generations import Generation
from millwheel.host.led_epochs import LedEpochs
from millwheel.host.led_watermarks import LedWatermarks
from millwheel.host.messages import (
    Claimed,
    Disowned,
    EpochDeclared,
    EpochOpened,
    EpochStarted,
    EpochWanted,
    ImageWritten,
    IntervalSettled,
    Message,
    RoundAnswered,
    RoundAsked,
    Unsettled,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.requests import DeclareEpoch, PersistLedWatermarks, ReadMap, ReadWatermarks
from millwheel.host.rounds import Rounds
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.testing.world.calls import run
from tests.unit.host.room import LEASE_US, Room, heard_by, led, noting, placed_one

OWNED = Generation(((IntervalId(1), 7, Sequencer(3)),), ())


def test_the_word_of_an_owner_counts_when_it_has_been_placed() -> None:
    room = Room()
    leader, worker, placed = placed_one(room)
    for message in (
        WorkerJoined({"count": ()}), Claimed((("count", placed.id, placed.sequencer),)),
        WatermarkReport("count", placed.id, 50, placed.sequencer),
    ):  # fmt: skip
        room.give(leader, he.Received(worker, message))
    room.give(leader, he.TurnEnded())
    assert run(room.store.watermarks()) == {"count": 50}
    assert heard_by(room, worker, WatermarksRaised)[-1].values == {"count": 50}


def test_a_leader_whose_watermarks_are_refused_leads_no_more() -> None:
    room = Room()
    leader, worker, placed = led(room)
    room.now += 2 * LEASE_US
    assert run(room.store.lead(room.members[worker].incarnation, LEASE_US)) is not None
    assert room.controllers[leader].leads, "it has not asked since"
    room.give(leader, he.Received(worker, WatermarkReport("count", placed.id, 50, placed.sequencer)))
    room.give(leader, he.TurnEnded())
    assert not room.controllers[leader].leads
    assert run(room.store.watermarks()) == {}


@pytest.mark.parametrize("settles", [True, False])
def test_loops_are_asked_at_once_when_an_interval_has_an_owner_or_nothing_of_an_earlier_version(settles: bool) -> None:
    room = Room()
    leader, worker, placed = led(room)
    rounds, asked = room.controllers[leader]._led._rounds, list[bool]()
    assert rounds is not None
    rounds.hurry = lambda: asked.append(True)  # type: ignore[method-assign]
    said = IntervalSettled(placed.id) if settles else Claimed((("count", placed.id, placed.sequencer),))
    room.give(leader, he.Received(worker, WatermarkReport("count", placed.id, 50, placed.sequencer)))
    assert asked == []
    room.give(leader, he.Received(worker, said))
    assert asked == [True]


def alone() -> tuple[LedWatermarks, list[tuple[str, Message]]]:
    """Those of a leader under snapshots in its first term, and what it tells."""
    told: list[tuple[str, Message]] = []
    led_watermarks = LedWatermarks(
        every_us=1_000, durable=True, begin=lambda steps: None,
        tell=lambda peers, message: told.extend((peer, message) for peer in peers), workers=list,
        disowned=lambda: None, declared=lambda: None, deposed=lambda: None,
    )  # fmt: skip
    led_watermarks.lead(1)
    return led_watermarks, told


def test_what_was_stored_is_not_taken_for_that_of_owners_that_have_come_meanwhile() -> None:
    led_watermarks, _ = alone()
    found = ClusterMap(1, None, (), (), ())
    led_watermarks._map = found
    for changes in (True, False):
        led_watermarks._authority, led_watermarks._generation = None, Generation((), ())
        steps = led_watermarks._load(WorkerJoined({"count": ()}), 1)
        assert isinstance(next(steps), ReadMap)
        assert isinstance(steps.send(found), ReadWatermarks)
        if changes:
            led_watermarks._generation = OWNED
        with pytest.raises(StopIteration):
            steps.send({})
        assert (led_watermarks._authority is None) == changes


def test_what_was_read_in_an_earlier_term_is_not_taken_for_what_is_known_in_this_one() -> None:
    led_watermarks, _ = alone()
    found = led_watermarks._map = ClusterMap(1, None, (), (), ())
    begun = [led_watermarks._load(WorkerJoined({"count": ()}), 1)]
    led_watermarks.forget()
    led_watermarks.lead(2)
    begun.append(led_watermarks._load(WorkerJoined({"count": ()}), 2))
    for term, steps in zip((1, 2), begun, strict=True):
        assert isinstance(next(steps), ReadMap)
        assert isinstance(steps.send(found), ReadWatermarks)
        with pytest.raises(StopIteration):
            steps.send({})
        assert (led_watermarks._authority is not None) == (term == 2)


def test_who_sends_to_whom_is_known_also_after_all_has_gone_back() -> None:
    led_watermarks, _ = alone()
    led_watermarks._joined = ("w7", WorkerJoined({"count": ()}))
    placed = PlacedInterval(IntervalId(1), "count", "", None, 7, Sequencer(3))
    for version in (1, 2):
        placed = msgspec.structs.replace(placed, sequencer=Sequencer(version))
        led_watermarks.follow(ClusterMap(version, None, (Member(7, "n", "worker", "here:1"),), (placed,), ()))
        assert led_watermarks._early == [led_watermarks._joined], "once, however often all goes back"


def test_a_leader_that_has_led_in_an_earlier_term_begins_with_nothing() -> None:
    room = Room()
    leader, worker, _ = led(room)
    controller = room.controllers[leader]
    assert controller._led._authority is not None
    room.now += 2 * LEASE_US
    assert run(room.store.lead(room.members[worker].incarnation, LEASE_US)) is not None
    room.now += 2 * LEASE_US
    room.let_pass(2)
    assert controller.leads
    assert controller._led._authority is None, "others may have decided meanwhile"


def test_when_the_word_of_an_owner_is_refused_the_map_is_read_at_once() -> None:
    room = Room()
    leader, worker, placed = led(room)
    room.store.fence({placed.id})
    reads: list[str] = []
    room.store.cluster_map = noting(reads, "map", room.store.cluster_map)  # type: ignore[method-assign]
    room.give(leader, he.Received(worker, WatermarkReport("count", placed.id, 50, placed.sequencer)))
    room.give(leader, he.TurnEnded())
    assert heard_by(room, worker, Disowned) == [Disowned(((placed.id, placed.sequencer),))]
    assert reads == ["map"]


class Told(LedEpochs):
    """Epochs that are told, and end."""

    def __init__(self) -> None:
        super().__init__(
            workers=(), owners={}, term=1, every_us=1_000, begin=lambda steps: None, tell=lambda message: None, values=dict
        )  # fmt: skip

    def restate(self) -> list[Message]:
        return [EpochStarted(5)]


def test_a_worker_that_comes_hears_of_the_epoch_that_runs() -> None:
    led_watermarks, told = alone()
    led_watermarks._epochs, led_watermarks._generation = Told(), OWNED
    for peer, words in (("w7", [EpochStarted(5)]), ("w8", [])):
        told.clear()
        led_watermarks.welcome(peer)
        assert [message for _, message in told if isinstance(message, EpochStarted)] == words


def test_who_sends_to_whom_is_known_after_a_going_back_also_if_it_was_said_before_the_watermarks_were_read() -> None:
    led_watermarks, _ = alone()
    joined = WorkerJoined({"count": ()})
    for message in (joined, Claimed(())):
        led_watermarks.hear("w7", message)
    led_watermarks._early = []  # all of it has been heeded
    led_watermarks._generation = OWNED
    led_watermarks._renew(ClusterMap(2, None, (), (), ()))
    assert led_watermarks._early == [("w7", joined)]


class Reported(Told):
    """Epochs whose barrier 5 was passed, and what was reported from behind later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.label = 5
        self.heard: list[int] = []

    def reported(self, label: int) -> bool:
        self.heard.append(label)
        return True


def test_what_was_reached_before_a_barrier_is_told_before_a_word_from_behind_it_counts() -> None:
    led_watermarks, told = alone()
    placed = PlacedInterval(IntervalId(1), "count", "", None, 7, Sequencer(3))
    found = ClusterMap(1, None, (Member(7, "n", "worker", "here:1"),), (placed,), ())
    led_watermarks.follow(found)
    authority = led_watermarks._authority = Authority({"count": ()}, {})
    led_watermarks._rounds = Rounds(authority, lambda steps: None, lambda asked: None, 0)
    led_watermarks.follow(found)
    epochs = led_watermarks._epochs = Reported()
    for value, label in ((50, 5), (60, 6)):
        assert (told, epochs.heard) == ([], [])
        led_watermarks.hear("w7", WatermarkReport("count", placed.id, value, placed.sequencer, label))
    assert told == [("w7", WatermarksRaised({"count": 50}, {}, 5))]
    assert epochs.heard == [6]


def test_what_an_earlier_owner_has_reported_is_not_stored_in_the_name_of_the_next_one() -> None:
    led_watermarks, _ = alone()
    member = Member(7, "n", "worker", "here:1")
    placed = PlacedInterval(IntervalId(1), "count", "", None, 7, Sequencer(3))
    found = ClusterMap(1, None, (member,), (placed,), ())
    again = ClusterMap(2, None, (member,), (msgspec.structs.replace(placed, sequencer=Sequencer(4)),), ())
    led_watermarks._every_us = 0  # otherwise all goes back
    authority = led_watermarks._authority = Authority({"count": ()}, {})
    led_watermarks._rounds = Rounds(authority, lambda steps: None, lambda asked: None, 0)
    led_watermarks.follow(found)
    led_watermarks.hear("w7", WatermarkReport("count", placed.id, 50, Sequencer(3)))
    led_watermarks.follow(again)
    assert authority.changes() == {}
    led_watermarks.hear("w7", WatermarkReport("count", placed.id, 40, Sequencer(4)))
    assert authority.changes() == {"count": 40}


def test_rounds_of_a_later_leader_have_larger_numbers_than_any_of_an_earlier_one() -> None:
    joined, first = WorkerJoined({"a": ("b",), "b": ("a",)}, {"loop": ("a", "b")}), list[int]()
    for term in (1, 2, 3):
        led_watermarks, _ = alone()
        led_watermarks._every_us, led_watermarks.term = 0, term
        found = led_watermarks._map = ClusterMap(1, None, (), (), ())
        steps = led_watermarks._load(joined, term)
        next(steps)
        steps.send(found)
        with pytest.raises(StopIteration):
            steps.send({})
        assert led_watermarks._rounds is not None
        first.append(led_watermarks._rounds._rounds["loop"].round)
    assert [after - before for before, after in itertools.pairwise(first)] == [2**32] * 2


def test_the_word_of_a_worker_that_owns_nothing_does_not_count_for_an_epoch() -> None:
    heard: list[Message] = []

    class Heard(Told):
        def wanted(self, message: EpochWanted) -> None:
            heard.append(message)

    led_watermarks, _ = alone()
    led_watermarks._epochs, led_watermarks._generation = Heard(), OWNED
    led_watermarks.hear_of_epochs("w8", EpochWanted(5))
    led_watermarks.hear_of_epochs("w7", EpochWanted(6))
    assert heard == [EpochWanted(6)]


def test_who_leads_no_more_tells_nothing_of_what_it_was_just_storing() -> None:
    begun: list[Steps] = []
    told: list[tuple[str, Message]] = []
    led_watermarks = LedWatermarks(
        every_us=0, durable=True, begin=begun.append,
        tell=lambda peers, message: told.extend((peer, message) for peer in peers), workers=lambda: ["w7"],
        disowned=lambda: None, declared=lambda: None, deposed=lambda: None,
    )  # fmt: skip
    led_watermarks.lead(1)
    authority = led_watermarks._authority = Authority({"count": ()}, {})
    authority.expect("count", IntervalId(1), Sequencer(3))
    authority.report("count", IntervalId(1), 50)
    led_watermarks.persist()
    (steps,) = begun
    assert isinstance(next(steps), PersistLedWatermarks)
    led_watermarks.forget()
    with pytest.raises(StopIteration):
        steps.send({"count"})
    assert told == []


class Leader:
    """The leader of the workers w7 and w8, in its first term.  Intervals 1, 2 and 3 are of a loop."""

    def __init__(self, every_us: int = 0, *, durable: bool = True) -> None:
        self.asks: list[he.Ask] = []
        self.told: list[tuple[str, Message]] = []
        self.procedures = Procedures(self.asks.append)
        self.led = LedWatermarks(
            every_us=every_us, durable=durable, begin=self.procedures.start, workers=lambda: ["w7", "w8"],
            tell=lambda peers, message: self.told.extend((peer, message) for peer in peers),
            disowned=lambda: None, declared=lambda: None, deposed=lambda: self.deposed.append(True),
        )  # fmt: skip
        self.deposed: list[bool] = []
        self.found = ClusterMap(
            1, None, (Member(7, "n", "worker", "here:1"), Member(8, "m", "worker", "here:2")),
            (
                PlacedInterval(IntervalId(1), "a", "", None, 7, Sequencer(3)),
                PlacedInterval(IntervalId(2), "b", "", "m", 7, Sequencer(3)),
                PlacedInterval(IntervalId(3), "b", "m", None, 7, Sequencer(3)),
            ),
            (PlacedSource("s", 7),),
        )  # fmt: skip
        self.led.lead(1)

    def joined(self) -> None:
        self.led.hear("w7", WorkerJoined({"a": ("source:s", "loop"), "b": ("a",)}, {"loop": ("a", "b")}))

    def knows(self, **stored: int) -> Authority:
        """It reads what is stored, and is the authority."""
        self.led.follow(self.found)
        self.joined()
        self.answer(ReadMap, self.found)
        self.answer(ReadWatermarks, stored)
        self.told.clear()
        assert self.led._authority is not None
        return self.led._authority

    def answer(self, kind: type[Any], answer: Any) -> None:
        """Answer the oldest wish of a kind."""
        ask = next(ask for ask in self.asks if isinstance(ask.wish, kind))
        self.asks.remove(ask)
        self.procedures.answered(ask.token, answer)

    def rest(self) -> None:
        """All pauses are over."""
        for _ in [ask for ask in self.asks if isinstance(ask.wish, he.Pause)]:
            self.answer(he.Pause, None)

    def asked(self) -> list[type[Any]]:
        return [type(ask.wish) for ask in self.asks]

    def of(self, kind: type[Any]) -> list[tuple[str, Any]]:
        found = [one for one in self.told if isinstance(one[1], kind)]
        self.told = [one for one in self.told if not isinstance(one[1], kind)]
        return found


def test_what_is_stored_is_read_once_whatever_is_said_meanwhile() -> None:
    """A second authority would know nothing of what the first one has heard."""
    leader = Leader()
    leader.led.follow(leader.found)
    for _ in range(3):
        leader.joined()
        leader.led.hear("w7", Claimed((("a", IntervalId(1), Sequencer(3)),)))
        leader.led.load_if_due()
    assert leader.asked() == [ReadMap]


@pytest.mark.parametrize("every_us", [0, 1_000])
def test_loops_are_asked_at_once_when_what_comes_from_outside_has_been_told(every_us: int) -> None:
    leader = Leader(every_us)
    authority = leader.knows()
    authority.expect("source:s", IntervalId(9), Sequencer(3))
    authority.report("source:s", IntervalId(9), 40)
    authority.bound("source:s", 50)
    leader.led.persist()
    if not every_us:
        assert leader.of(RoundAsked) == []
        leader.answer(PersistLedWatermarks, {"source:s"})
    assert {(asked.loop, asked.bound) for _, asked in leader.of(RoundAsked)} == {("loop", 40)}


@pytest.mark.parametrize("merged", [False, True])
def test_loops_are_asked_at_once_when_the_map_shows_another_owner_or_an_interval_less(merged: bool) -> None:
    leader = Leader()
    leader.knows(**{"source:s": 40})
    *others, last = leader.found.intervals
    left = (*others,) if merged else (*others, msgspec.structs.replace(last, owner=8, sequencer=Sequencer(4)))
    leader.led.follow(msgspec.structs.replace(leader.found, version=2, intervals=left))
    assert {(asked.loop, asked.bound) for _, asked in leader.of(RoundAsked)} == {("loop", 40)}


@pytest.mark.parametrize("comes", ["joins", "opens a channel"])
@pytest.mark.parametrize(("every_us", "hearers"), [(0, ["w7", "w8"]), (1_000, ["w7"])])
def test_a_worker_that_comes_after_another_one_hears_of_all_watermarks_that_are_for_it(
    every_us: int, hearers: list[str], comes: str
) -> None:
    leader = Leader(every_us)
    leader.knows(**{"source:s": 40})
    for peer in ("w7", "w8"):
        if comes == "joins":
            leader.led.hear(peer, WorkerJoined({"a": ("source:s", "loop"), "b": ("a",)}, {"loop": ("a", "b")}))
        else:
            leader.led.welcome(peer)
    told = [(peer, raised.values) for peer, raised in leader.of(WatermarksRaised)]
    assert told == [(peer, {"source:s": 40}) for peer in hearers]


def test_a_later_term_expects_every_interval_anew_and_heeds_nothing_that_was_said_in_an_earlier_one() -> None:
    """What an interval has reported is not known any more: it holds the watermark until it reports again."""
    leader = Leader()
    leader.knows()
    leader.led.forget()
    leader.led.lead(2)
    leader.led.follow(leader.found)
    leader.joined()
    leader.led.forget()
    leader.led.lead(3)
    leader.led.follow(leader.found)
    leader.led.load_if_due()
    assert leader.asked() == [ReadMap], "that was for the second term"
    leader.answer(ReadMap, leader.found)
    leader.answer(ReadWatermarks, {})
    assert leader.led._authority is None
    authority = leader.knows()
    assert {*authority.intervals("a"), *authority.intervals("b")} == {1, 2, 3}


def test_what_was_reported_before_the_term_ended_is_not_stored_afterwards() -> None:
    leader = Leader()
    authority = leader.knows()
    for value in (50, 60):
        authority.report("a", IntervalId(1), value)
        leader.led.persist()
    leader.answer(PersistLedWatermarks, {"a"})
    authority.report("a", IntervalId(1), 70)
    leader.led.forget()
    leader.answer(he.Pause, None)
    assert PersistLedWatermarks not in leader.asked()


def test_what_is_said_while_watermarks_are_read_counts_and_workers_hear_what_was_stored() -> None:
    leader = Leader()
    leader.led.follow(leader.found)
    leader.joined()
    leader.led.hear("w7", WatermarkReport("a", IntervalId(1), 50, Sequencer(3)))
    leader.answer(ReadMap, leader.found)
    leader.answer(ReadWatermarks, {"source:s": 40})
    assert leader.of(WatermarksRaised)[-2:] == [
        (peer, WatermarksRaised({"source:s": 40}, {"a": MIN_TIME, "b": MIN_TIME})) for peer in ("w7", "w8")
    ]
    leader.led.persist()
    (ask,) = [ask.wish for ask in leader.asks if isinstance(ask.wish, PersistLedWatermarks)]
    assert [(write.name, write.value) for write in ask.writes] == [("a", 50)]


def test_under_snapshots_nothing_is_read_before_all_is_placed() -> None:
    """Epochs that nobody owns would never be declared."""
    leader = Leader(1_000)
    first, *others = leader.found.intervals
    nobody = msgspec.structs.replace(first, owner=None)
    leader.led.follow(msgspec.structs.replace(leader.found, intervals=(nobody, *others)))
    leader.joined()
    assert leader.asked() == []
    leader.led.follow(leader.found)
    leader.led.load_if_due()
    assert leader.asked() == [ReadMap]


def test_a_watermark_that_the_store_has_refused_is_told_to_nobody() -> None:
    leader = Leader()
    authority = leader.knows()
    authority.report("a", IntervalId(1), 50)
    authority.expect("source:s", IntervalId(9), Sequencer(3))
    authority.report("source:s", IntervalId(9), 60)
    authority.bound("source:s", 60)
    leader.led.persist()
    leader.answer(PersistLedWatermarks, {"source:s"})
    assert {peer for peer, _ in leader.of(Disowned)} == {"w7", "w8"}
    told = leader.of(WatermarksRaised)
    assert [(peer, raised.values) for peer, raised in told] == [("w7", {"source:s": 60}), ("w8", {"source:s": 60})]
    assert authority.value("a") == MIN_TIME
    leader.rest()
    (again,) = [ask.wish for ask in leader.asks if isinstance(ask.wish, PersistLedWatermarks)]
    assert [write.name for write in again.writes] == ["a"], "it is tried again"


def gone_back(leader: Leader) -> ClusterMap:
    """All intervals have other sequencers."""
    placed = tuple(msgspec.structs.replace(one, sequencer=Sequencer(9)) for one in leader.found.intervals)
    leader.led.follow(found := msgspec.structs.replace(leader.found, version=2, intervals=placed))
    return found


@pytest.mark.parametrize("goes_back", [False, True])
def test_rounds_and_epochs_end_with_their_owners_and_with_their_term(goes_back: bool) -> None:
    leader = Leader(1_000)
    leader.knows()
    rounds, epochs = leader.led._rounds, leader.led._epochs
    assert rounds is not None
    assert epochs is not None
    over = [(rounds._over, epochs._over)]
    if goes_back:
        gone_back(leader)
    else:
        leader.led.forget()
    over.append((rounds._over, epochs._over))
    assert over == [(False, False), (True, True)]


def test_when_only_a_source_has_another_owner_all_intervals_are_expected_anew_under_snapshots() -> None:
    leader = Leader(1_000)
    leader.knows()
    leader.found = msgspec.structs.replace(leader.found, version=2, sources=(PlacedSource("s", 8),))
    authority = leader.knows()
    assert {*authority.intervals("a"), *authority.intervals("b")} == {1, 2, 3}


def test_after_a_going_back_the_last_worker_counts_that_has_said_who_sends_to_whom() -> None:
    leader = Leader(1_000)
    leader.knows()
    last = WorkerJoined({"a": ("source:s",), "b": ("a",)})
    leader.led.hear("w8", last)
    assert leader.led._early == [], "all of it was heeded"
    gone_back(leader)
    assert leader.led._early == [("w8", last)]
    leader.led.forget()
    leader.led.lead(2)
    leader.led.follow(leader.found)
    assert leader.led._early == [], "in this term nobody has said so"


def test_a_loop_has_a_floor_when_all_its_intervals_have_answered_twice() -> None:
    leader = Leader()
    authority = leader.knows(**{"source:s": 40})
    for _ in range(2):
        assert authority.changes() == {}
        leader.rest()
        ((_, asked), *_) = leader.of(RoundAsked)
        for interval in (1, 2, 3):
            leader.led.hear("w7", RoundAnswered(IntervalId(interval), Sequencer(3), asked.round, MAX_TIME))
    assert authority.changes() == {"loop": 40}


def test_an_input_that_rises_because_productions_of_an_earlier_version_are_gone_is_told() -> None:
    leader = Leader()
    leader.knows(a=50)
    leader.led.hear("w7", Unsettled("a", IntervalId(1), ("a",)))
    leader.led.hear("w7", Unsettled("b", IntervalId(2), ("b",)))
    assert leader.of(WatermarksRaised) == []
    leader.led.hear("w7", IntervalSettled(IntervalId(2)))
    assert leader.of(WatermarksRaised) == [(peer, WatermarksRaised({}, {"b": 50})) for peer in ("w7", "w8")]


def test_a_share_of_a_source_that_a_worker_has_told_is_heeded() -> None:
    leader = Leader()
    leader.led.follow(leader.found)
    leader.led.hear("w7", WorkerJoined({"a": ("source:s",), "b": ("a",)}, {}, {"source:s": 500_000}))
    leader.answer(ReadMap, leader.found)
    leader.answer(ReadWatermarks, {})
    authority = leader.led._authority
    assert authority is not None
    authority.bound("source:s", MAX_TIME)
    for interval, value in ((8, 10), (9, 90)):
        authority.expect("source:s", IntervalId(interval), Sequencer(3))
        authority.report("source:s", IntervalId(interval), value)
    assert authority.changes() == {"source:s": 90}


def test_what_rises_after_all_was_stored_is_stored_too() -> None:
    leader = Leader()
    authority = leader.knows()
    for value in (50, 60):
        authority.report("a", IntervalId(1), value)
        leader.led.persist()
        leader.answer(PersistLedWatermarks, {"a"})
        leader.answer(he.Pause, None)
        assert authority.value("a") == value


@pytest.mark.parametrize("again", [False, True])
def test_a_refusal_of_an_earlier_term_deposes_nobody_in_the_next_one(again: bool) -> None:
    leader = Leader()
    leader.knows().report("a", IntervalId(1), 50)
    leader.led.persist()
    if again:
        leader.led.forget()
        leader.led.lead(2)
    leader.answer(PersistLedWatermarks, None)
    assert leader.deposed == ([] if again else [True])


@pytest.mark.parametrize("durable", [True, False])
def test_epochs_go_on_from_the_last_one_that_is_declared_in_the_name_of_the_term(durable: bool) -> None:
    leader = Leader(1_000, durable=durable)
    leader.led.clock(50_000_000)
    leader.found = msgspec.structs.replace(leader.found, declared=4)
    leader.knows()
    for now, begun in ((50_000_999, []), (50_001_000, [("w7", EpochStarted(5))])):
        assert leader.led.resting
        leader.led.clock(now)
        leader.answer(he.Pause, None)
        assert leader.of(EpochStarted) == begun
    assert not leader.led.resting
    owners = {one.id: one.sequencer for one in leader.found.intervals}
    leader.led.hear_of_epochs("w7", EpochOpened(5, owners, (), {}))
    for interval, sequencer in owners.items():
        leader.led.hear_of_epochs("w7", ImageWritten(5, interval, sequencer, 0))
    declared = [ask.wish.declaration for ask in leader.asks if isinstance(ask.wish, DeclareEpoch)]
    assert [(one.epoch, one.term) for one in declared] == ([(5, 1)] if durable else [])
    assert leader.of(EpochDeclared) == ([] if durable else [("w7", EpochDeclared(5))])
