"""The owner of a key's state, timers and holds: what is taken and what is written is checked against what is pending (I8)."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.bundles import HoldWrites, KeyRows, RecoveredInterval, TimerWrites
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.core.keys.minheap import MinHeap
from millwheel.errors import InvariantError
from millwheel.ids import Seq
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, MIN_TIME, Timer
from millwheel.work import InvocationOutcome, Stall, Work
from tests.unit.core.bench import timer_writes


def keyed(*timers: tuple[str, str, str, int], holds: dict[str, int | None] | None = None) -> KeyedState:
    """Keys with these timers, as (key, tag, kind, timestamp), and these holds."""
    made, kept = KeyedState(1 << 20), holds or {}
    stored = HoldWrites([*kept], [*kept.values()])
    made.restore(RecoveredInterval([], [], timer_writes(*timers), stored, [], MIN_TIME))
    return made


def applied(state: KeyedState, fired: tuple[Timer, ...] = (), **outcome: Any) -> tuple[TimerWrites, HoldWrites]:
    """What a checkpoint of this outcome writes."""
    timers, holds = TimerWrites(), HoldWrites()
    work = state.work(0, 0)
    work.timers = [*fired]
    state.apply(work, InvocationOutcome(**outcome), Seq(1), timers, holds)
    state.check_written(timers, holds)
    return timers, holds


# What is taken


def test_timers_are_taken_in_order_and_are_gone() -> None:
    state = keyed(("b", "t", "wall", 5), ("a", "u", "wall", 5), ("a", "t", "wall", 5), ("c", "t", "wall", 9))
    assert state.take_due("wall", 5, 10) == [(5, ("a", "t")), (5, ("a", "u")), (5, ("b", "t"))]
    assert state.take_due("wall", 5, 10) == []
    assert (state.timers.minimum("wall"), state.timers.pending("a")) == (9, False)


def test_the_last_timer_of_a_page_is_taken_and_what_is_beyond_waits_for_its_page() -> None:
    state = KeyedState(1 << 20)
    page = timer_writes(("a", "t", "wall", 5))
    state.restore(RecoveredInterval([], [], page, HoldWrites(), [], MIN_TIME, [], ["wall"]))
    assert state.take_due("wall", 9, 10) == [(5, ("a", "t"))]
    assert not state.timers.complete
    state.add_page("wall", timer_writes(("b", "t", "wall", 6)), False)
    assert state.take_due("wall", 9, 10) == [(6, ("b", "t"))]
    assert state.timers.complete


@pytest.mark.parametrize(
    ("due", "word"),
    [
        ([(7, ("a", "t"))], "before it is due"),
        ([(5, ("b", "t")), (4, ("a", "t"))], "before an earlier one"),
        ([(5, ("z", "t"))], "before an earlier one"),
    ],
)
def test_a_timer_that_is_early_or_passes_another_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, due: list[tuple[int, tuple[str, str]]], word: str
) -> None:
    state = keyed(("c", "t", "wall", 5))
    monkeypatch.setattr(MinHeap, "pop_due", lambda *_: due)
    with pytest.raises(InvariantError, match=f"I8.*{word}"):
        state.take_due("wall", 6, 10)


def test_a_timer_of_a_key_that_sleeps_is_not_due_and_taking_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    state = keyed(("a", "t", "wall", 5), ("z", "t", "wall", 9))
    state.sleep("a", keeps_hold=True)
    assert state.take_due("wall", 6, 10) == []
    state.wake("a")
    assert state.take_due("wall", 6, 10) == [(5, ("a", "t"))]
    state.put_back(Timer("a", "t", 5, "wall"))
    state.sleep("a", keeps_hold=True)
    monkeypatch.setattr(MinHeap, "pop_due", lambda *_: [(5, ("a", "t"))])
    with pytest.raises(InvariantError, match=r"I8.*whose key sleeps"):
        state.take_due("wall", 6, 10)


def test_a_key_that_sleeps_may_come_to_expire() -> None:
    """Whether it does is for `Expiry` to say."""
    state = keyed(("a", EXPIRY_TAG, EXPIRY_KIND, 5))
    state.sleep("a", keeps_hold=False)
    assert state.take_due(EXPIRY_KIND, 6, 10) == [(5, ("a", EXPIRY_TAG))]


def test_a_timer_that_was_put_back_fires_later() -> None:
    state = keyed(("a", "t", "watermark", 5))
    assert state.take_due("watermark", 6, 10)
    state.put_back(Timer("a", "t", 5))
    assert [*state.timers.of("a")] == [(("watermark", "t"), 5)]


def test_what_is_known_of_a_timer_that_was_due_when_it_was_set_goes_with_it() -> None:
    state, stall = keyed(), Stall(1, 2, 3)
    applied(state, timers={"a": {("wall", "t"): 4}}, stalls={("a", "wall", "t"): stall})
    work = state.work(0, 0)
    work.timers = [Timer("a", "t", 4, "wall"), Timer("b", "t", 4, "wall")]
    state.take_stalls(work)
    assert work.stalls == {("a", "wall", "t"): stall}
    again = state.work(0, 0)
    again.timers = work.timers
    state.take_stalls(again)
    assert again.stalls == {}


@pytest.mark.parametrize("at", [None, 9])
def test_a_timer_that_is_set_again_or_cancelled_was_not_due_when_it_was_set(at: int | None) -> None:
    state = keyed()
    applied(state, timers={"a": {("wall", "t"): 4}}, stalls={("a", "wall", "t"): Stall(1, 2, 3)})
    applied(state, timers={"a": {("wall", "t"): at}})
    work = state.work(0, 0)
    work.timers = [Timer("a", "t", 9, "wall")]
    state.take_stalls(work)
    assert work.stalls == {}


# What is changed


def test_what_hooks_did_is_pending_and_is_written() -> None:
    state = keyed(("a", "t", "wall", 5), ("a", "u", "wall", 6), holds={"a": 1, "b": 2})
    fired = Timer("a", "t", 5, "wall")
    assert state.take_due("wall", 5, 10)
    timers, holds = applied(
        state,
        (fired,),
        timers={"a": {("wall", "u"): None, ("watermark", "v"): 9}},
        holds={"a": None, "b": 7},
        values={"c": {"a": b"1"}},
    )
    rows = zip(timers.keys, timers.kinds, timers.tags, timers.timestamps, strict=True)
    assert [*rows] == [("a", "wall", "t", None), ("a", "wall", "u", None), ("a", "watermark", "v", 9)]
    assert dict(zip(holds.keys, holds.timestamps, strict=True)) == {"a": None, "b": 7}
    assert [*state.timers.of("a")] == [(("watermark", "v"), 9)]
    assert dict(state.holds.all) == {"b": 7} == state.holds_of(["a", "b"])
    assert state.unfolded == 1
    state.folded(Seq(1))
    assert state.unfolded == 0


def test_a_timer_that_fired_and_was_set_again_is_written_once() -> None:
    state = keyed(("a", "t", "wall", 5))
    state.take_due("wall", 5, 1)
    timers, _ = applied(state, (Timer("a", "t", 5, "wall"),), timers={"a": {("wall", "t"): 8}})
    assert (timers.tags, timers.timestamps) == (["t"], [8])


@pytest.mark.parametrize(
    ("key", "kind", "tag", "at"),
    [
        ("a", "wall", "t", None),  # it is still pending
        ("a", "wall", "t", 6),  # at another time
        ("a", "watermark", "t", 5),  # of another kind
        ("b", "wall", "t", 5),  # of another key
        ("a", EXPIRY_KIND, EXPIRY_TAG, 5),
    ],
)
def test_writing_a_timer_that_is_not_there_is_an_error(key: str, kind: str, tag: str, at: int | None) -> None:
    state, writes = keyed(("a", "t", "wall", 5)), TimerWrites()
    writes.add(key, tag, kind, at)
    with pytest.raises(InvariantError, match=r"I8: the .* timer"):
        state.check_written(writes, HoldWrites())


@pytest.mark.parametrize(("name", "at"), [("a", None), ("a", 6), ("b", 5)])
def test_writing_a_hold_that_is_not_there_is_an_error(name: str, at: int | None) -> None:
    state, writes = keyed(holds={"a": 5}), HoldWrites()
    writes.add(name, at)
    with pytest.raises(InvariantError, match="I8: the hold of"):
        state.check_written(TimerWrites(), writes)


def test_writes_of_several_kinds_and_of_keys_that_sleep_are_looked_up_one_by_one() -> None:
    state, writes = keyed(("a", "t", "wall", 5), ("b", "t", "watermark", 6)), TimerWrites()
    writes.add("a", "t", "wall", 5)
    state.sleep("a", keeps_hold=True)
    state.check_written(writes, HoldWrites())
    writes.add("b", "t", "watermark", 6)
    state.check_written(writes, HoldWrites())
    writes.add("b", "t", "watermark", 7)
    with pytest.raises(InvariantError, match="I8"):
        state.check_written(writes, HoldWrites())


def test_of_two_writes_of_one_timer_the_last_counts() -> None:
    state, writes = keyed(("a", "t", "wall", 5)), TimerWrites()
    writes.add("a", "t", "wall", 9)
    writes.add("a", "t", "wall", 5)
    state.check_written(writes, HoldWrites())


# Expiry and quarantine


def test_an_expiry_is_written_as_it_is_set_and_moved() -> None:
    state, writes = keyed(), TimerWrites()
    state.set_expiry("a", 5, writes)
    state.set_expiry("a", 8, writes)
    assert (state.timers.expiry("a"), writes.timestamps) == (8, [5, 8])
    state.check_written(writes, HoldWrites())
    assert state.timers.empty(), "an expiry is not a timer of the user's"


def test_holds_of_quarantines_are_written_when_they_change() -> None:
    state, writes = keyed(holds={"q": 5}), HoldWrites()
    state.hold("q", 3, writes)
    state.release("q", writes)
    state.release("q", writes)
    assert writes.timestamps == [3, None]
    assert state.holds.minimum() == MAX_TIME


def test_a_hold_sleeps_with_its_key_unless_the_key_keeps_it() -> None:
    state = keyed(holds={"a": 5, "b": 6})
    state.sleep("a", keeps_hold=False)
    state.sleep("b", keeps_hold=True)
    assert (state.holds.minimum(), state.holds.first(), state.holds.counting("a")) == (6, "b", MAX_TIME)
    state.wake("a")
    assert state.holds.first() == "a"


# Memory


def test_a_key_is_loaded_with_the_timers_that_are_beyond_the_page() -> None:
    state = KeyedState(1 << 20)
    state.restore(
        RecoveredInterval([], [], timer_writes(("x", "t", "wall", 5)), HoldWrites(), [], MIN_TIME, [], ["wall"])
    )
    number = state.next_invocation()
    assert state.missing({"a": number, "b": number}) == ["a", "b"]
    rows = [KeyRows("a", {("c", ""): b"1"}, {("wall", "far"): 70, ("wall", "gone"): 3})]
    state.load(["a", "b"], rows, {})
    state.touch({"a": number, "b": number})
    assert state.missing({"a": number, "b": number}) == []
    assert [*state.timers.of("a")] == [(("wall", "far"), 70)], "the other one is before the end, and has fired"
    work: Work = state.work(3, 4)
    assert (work.values, work.watermark, work.wall_time) == ({"c": {"a": b"1"}}, 3, 4)
    state.apply(work, InvocationOutcome(values={"c": {"a": b"2", "b": b"3"}}), Seq(1), TimerWrites(), HoldWrites())
    assert {*state.take_absent(Seq(1))} == {"b"}


def test_a_key_that_leaves_memory_takes_its_far_timers_along() -> None:
    state = KeyedState(0)
    state.restore(
        RecoveredInterval([], [], timer_writes(("x", "t", "wall", 5)), HoldWrites(), [], MIN_TIME, [], ["wall"])
    )
    number = state.next_invocation()
    state.load(["a"], [KeyRows("a", {("c", ""): b"1"}, {("wall", "far"): 70})], {})
    state.touch({"a": number})
    for sheds, left in ((False, True), (True, False)):
        state.trim((), (), by_records=True, next_timers=lambda keys: [1.0 for _ in keys], sheds_timers=sheds)
        assert state.missing({"a": number}) == ["a"]
        assert state.timers.pending("a") == left
        state.load(["a"], [KeyRows("a", {("c", ""): b"1"}, {("wall", "far"): 70})], {})
        state.touch({"a": number})


def test_keys_that_were_kept_or_forgotten_are_dirty_until_they_are_folded() -> None:
    state = keyed()
    state.load(["a", "b"], [KeyRows("a", {("c", ""): b"1"}), KeyRows("b", {("c", ""): b"1"})], {})
    state.keep("a", Seq(1))
    state.forget(["b"], Seq(2))
    assert (state.unfolded, state.work(0, 0).values) == (2, {"c": {"a": b"1"}})
    state.folded(Seq(1))
    assert state.unfolded == 1
