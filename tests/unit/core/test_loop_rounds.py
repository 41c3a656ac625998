"""Rounds of a loop: what one round says is true, and what the minimum of live reports says is not."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millwheel.core.interval.held import HeldWork
from millwheel.core.loop_rounds import Floor, LoopRounds
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME

OWNERS = {1: 10, 2: 20}


def test_the_first_round_of_owners_says_nothing_and_the_next_one_does() -> None:
    rounds = LoopRounds()
    assert rounds.begin(OWNERS, 100) == 1
    assert rounds.answered(IntervalId(1), Sequencer(10), 1, MAX_TIME) is None
    assert rounds.answered(IntervalId(2), Sequencer(20), 1, MAX_TIME) is None
    assert rounds.complete
    assert rounds.begin(OWNERS, 100) == 2
    assert rounds.answered(IntervalId(1), Sequencer(10), 2, 70) is None
    assert rounds.answered(IntervalId(2), Sequencer(20), 2, 90) == Floor(70, OWNERS)


def counting() -> LoopRounds:
    """One whose newest round counts when all have answered."""
    rounds = LoopRounds()
    for interval, sequencer in OWNERS.items():
        rounds.answered(
            IntervalId(interval), Sequencer(sequencer), rounds.begin(OWNERS, 100) if interval == 1 else 1, MAX_TIME
        )
    rounds.begin(OWNERS, 100)
    return rounds


def test_what_comes_from_outside_bounds_the_floor_as_of_the_begin_of_the_round() -> None:
    rounds = counting()
    rounds.answered(IntervalId(1), Sequencer(10), 2, MAX_TIME)
    assert rounds.answered(IntervalId(2), Sequencer(20), 2, MAX_TIME) == Floor(100, OWNERS)


def test_a_loop_that_holds_nothing_ends_with_its_inputs() -> None:
    rounds = counting()
    for interval, sequencer in OWNERS.items():
        rounds.answered(IntervalId(interval), Sequencer(sequencer), 2, MAX_TIME)
    rounds.begin(OWNERS, MAX_TIME)
    rounds.answered(IntervalId(1), Sequencer(10), 3, MAX_TIME)
    assert rounds.answered(IntervalId(2), Sequencer(20), 3, MAX_TIME) == Floor(MAX_TIME, OWNERS)


def test_copies_old_rounds_and_earlier_owners_change_nothing() -> None:
    rounds = counting()
    assert rounds.answered(IntervalId(1), Sequencer(10), 2, 50) is None
    assert rounds.answered(IntervalId(1), Sequencer(10), 2, 80) is None, "a copy"
    assert rounds.answered(IntervalId(2), Sequencer(20), 1, 10) is None, "of the round before"
    assert rounds.answered(IntervalId(2), Sequencer(20), 3, 10) is None, "of a round that nobody has begun"
    assert rounds.answered(IntervalId(2), Sequencer(19), 2, 10) is None, "of an earlier owner"
    assert rounds.answered(IntervalId(3), Sequencer(30), 2, 10) is None, "of an interval that is not of this loop"
    assert rounds.answered(IntervalId(2), Sequencer(20), 2, 60) == Floor(50, OWNERS)
    assert rounds.answered(IntervalId(2), Sequencer(20), 2, 60) is None


def test_a_round_that_was_given_up_makes_the_next_one_say_nothing() -> None:
    rounds = counting()
    rounds.answered(IntervalId(1), Sequencer(10), 2, MAX_TIME)
    assert rounds.begin(OWNERS, 100) == 3
    rounds.answered(IntervalId(1), Sequencer(10), 3, MAX_TIME)
    assert rounds.answered(IntervalId(2), Sequencer(20), 3, MAX_TIME) is None, (
        "2 may have answered 3 before 1 had answered 2"
    )
    rounds.begin(OWNERS, 100)
    rounds.answered(IntervalId(1), Sequencer(10), 4, MAX_TIME)
    assert rounds.answered(IntervalId(2), Sequencer(20), 4, MAX_TIME) is not None


def test_a_round_with_another_owner_than_the_one_before_says_nothing() -> None:
    rounds = counting()
    for interval, sequencer in OWNERS.items():
        rounds.answered(IntervalId(interval), Sequencer(sequencer), 2, MAX_TIME)
    newer = {1: 10, 2: 21}
    assert rounds.is_of(OWNERS)
    assert not rounds.is_of(newer)
    rounds.begin(newer, 100)
    rounds.answered(IntervalId(1), Sequencer(10), 3, MAX_TIME)
    assert rounds.answered(IntervalId(2), Sequencer(21), 3, MAX_TIME) is None


def test_a_loop_that_nobody_owns_is_never_complete() -> None:
    rounds = LoopRounds(last=6)
    assert rounds.begin({}, MAX_TIME) == 7
    assert not rounds.complete


# What is true


class Interval:
    """Work by name: an interval holds it until its receiver has acked it, and the receiver from when it arrives."""

    def __init__(self) -> None:
        self.work: dict[str, int] = {}
        self.held = HeldWork()

    def take(self, name: str, at: int) -> None:
        self.work[name] = at
        self.held.note(at)

    def oldest(self) -> int:
        return min(self.work.values(), default=MAX_TIME)


def test_the_minimum_of_live_reports_passes_a_record_that_hops_between_two_of_them() -> None:
    a, b = Interval(), Interval()
    a.take("record", 50)
    live, asked = [b.oldest()], [b.held.answer(2, 100, b.oldest())]  # b reports while the record is at a
    b.take("record", 50)  # it hops,
    del a.work["record"]  # and is acked
    live.append(a.oldest())  # a reports when it is at b
    asked.append(a.held.answer(2, 100, a.oldest()))
    assert min(live) == MAX_TIME, "wrong: the record is in the loop, at 50"
    assert min(answer for answer in asked if answer is not None) == 50


class LoopMachine(RuleBasedStateMachine):
    """Records that come from outside and hop between intervals of a loop, and rounds whose messages are lost, doubled and
    late.  Owners change.  No floor may ever pass a record that is in the loop, or one that comes later."""

    @initialize(intervals=st.integers(1, 4))
    def begin(self, intervals: int) -> None:
        self.at = {i: Interval() for i in range(intervals)}
        self.owners = {i: i + 1 for i in range(intervals)}
        self.rounds = LoopRounds()
        self.bound = 0
        self.questions: list[tuple[int, int, int, int]] = []
        self.answers: list[tuple[int, int, int, int]] = []
        self.sent: list[tuple[str, int, int, int]] = []
        """(record, its time, from, to): on the way, held by its sender."""
        self.acks: list[tuple[str, int]] = []
        self.made = 0
        self.floor = 0
        self.live: dict[int, int] = {}
        self.floors: list[Floor] = []

    def _pick(self, from_: list[Any], which: int) -> Any:
        return from_[which % len(from_)]

    @rule(by=st.integers(0, 5))
    def outside_promises(self, by: int) -> None:
        self.bound += by

    @rule(to=st.integers(0, 3), later=st.integers(0, 9))
    def comes_from_outside(self, to: int, later: int) -> None:
        self.made += 1
        self.at[to % len(self.at)].take(f"r{self.made}", self.bound + later)

    @rule(which=st.integers(0, 9), to=st.integers(0, 3), later=st.integers(0, 2))
    def produces(self, which: int, to: int, later: int) -> None:
        """A record is consumed, and what comes of it leaves; it is held until it is acked."""
        found = sorted((i, name) for i, interval in self.at.items() for name in interval.work if name[0] == "r")
        if found:
            i, name = self._pick(found, which)
            at = self.at[i].work.pop(name) + later
            self.made += 1
            self.at[i].take(f"p{self.made}", at)
            self.sent.append((f"p{self.made}", at, i, to % len(self.at)))

    @rule(which=st.integers(0, 9))
    def arrives(self, which: int) -> None:
        if self.sent:
            name, at, from_, to = self._pick(self.sent, which)
            self.sent.remove((name, at, from_, to))
            self.at[to].take("r" + name, at)
            self.acks.append((name, from_))

    @rule(which=st.integers(0, 9))
    def is_acked(self, which: int) -> None:
        if self.acks:
            name, i = self._pick(self.acks, which)
            self.acks.remove((name, i))
            self.at[i].work.pop(name, None)

    @rule(which=st.integers(0, 9))
    def ends(self, which: int) -> None:
        found = sorted((i, name) for i, interval in self.at.items() for name in interval.work if name[0] == "r")
        if found:
            i, name = self._pick(found, which)
            del self.at[i].work[name]

    @rule(i=st.integers(0, 3))
    def starts_anew(self, i: int) -> None:
        """Another owner begins with the work that is durable, and has answered nothing."""
        i %= len(self.at)
        work, self.at[i] = self.at[i].work, Interval()
        self.at[i].work = work
        self.owners[i] += 10

    @rule()
    def a_round_begins(self) -> None:
        number = self.rounds.begin(self.owners, self.bound)
        self.questions += [(i, sequencer, number, self.bound) for i, sequencer in self.owners.items()]

    @rule(which=st.integers(0, 9), again=st.booleans())
    def is_asked(self, which: int, again: bool) -> None:
        if self.questions:
            i, sequencer, number, bound = question = self._pick(self.questions, which)
            if not again:
                self.questions.remove(question)
            answer = self.at[i].held.answer(number, bound, self.at[i].oldest())
            if self.owners[i] == sequencer and answer is not None:
                self.answers.append((i, sequencer, number, answer))

    @rule(which=st.integers(0, 9), again=st.booleans())
    def answers_arrive(self, which: int, again: bool) -> None:
        if self.answers:
            answer = self._pick(self.answers, which)
            if not again:
                self.answers.remove(answer)
            found = self.rounds.answered(*answer)
            if found is not None:
                self.floors.append(found)
                self.floor = max(self.floor, found.value)

    @rule()
    def all_in_order(self) -> None:
        """A round to its end, as on a good day."""
        number = self.rounds.begin(self.owners, self.bound)
        for i, sequencer in self.owners.items():
            answer = self.at[i].held.answer(number, self.bound, self.at[i].oldest())
            found = (
                None if answer is None else self.rounds.answered(IntervalId(i), Sequencer(sequencer), number, answer)
            )
            if found is not None:
                self.floor = max(self.floor, found.value)

    @invariant()
    def nothing_is_behind_the_floor(self) -> None:
        for interval in getattr(self, "at", {}).values():
            assert self.floor <= interval.oldest()
        assert not hasattr(self, "bound") or self.floor <= self.bound


TestLoops = LoopMachine.TestCase
TestLoops.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)


@given(st.integers(1, 5))
def test_a_loop_that_has_run_dry_lets_the_floor_reach_what_outside_promises(intervals: int) -> None:
    owners = dict.fromkeys(range(intervals), 7)
    rounds, held = LoopRounds(), {i: HeldWork() for i in owners}
    held[0].note(3)
    found = []
    for _ in range(3):
        number = rounds.begin(owners, 40)
        for i in owners:
            answer = held[i].answer(number, 40, MAX_TIME)
            assert answer is not None
            found.append(rounds.answered(IntervalId(i), Sequencer(7), number, answer))
    assert [floor.value for floor in found if floor] == [40, 40]
