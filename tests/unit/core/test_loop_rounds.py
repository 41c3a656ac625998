"""Rounds of a loop: what one round says is true, and what the minimum of live reports says is not."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.interval.held import HeldWork
from millwheel.core.loop_rounds import Floor, LoopRounds
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME

OWNERS = {1: 10, 2: 20}


def owned(owners: Mapping[int, int]) -> dict[IntervalId, Sequencer]:
    return {IntervalId(interval): Sequencer(sequencer) for interval, sequencer in owners.items()}


def tell(rounds: LoopRounds, interval: int, sequencer: int, round_: int, minimum: int) -> Floor | None:
    return rounds.answered(IntervalId(interval), Sequencer(sequencer), round_, minimum)


def test_the_first_round_of_owners_says_nothing_and_the_next_one_does() -> None:
    rounds = LoopRounds()
    assert rounds.begin(owned(OWNERS), 100) == 1
    assert tell(rounds, 1, 10, 1, MAX_TIME) is None
    assert tell(rounds, 2, 20, 1, MAX_TIME) is None
    assert rounds.complete
    assert rounds.begin(owned(OWNERS), 100) == 2
    assert tell(rounds, 1, 10, 2, 70) is None
    assert tell(rounds, 2, 20, 2, 90) == Floor(70, owned(OWNERS))


def counting() -> LoopRounds:
    """One whose newest round counts when all have answered."""
    rounds = LoopRounds()
    for interval, sequencer in OWNERS.items():
        tell(rounds, interval, sequencer, rounds.begin(owned(OWNERS), 100) if interval == 1 else 1, MAX_TIME)
    rounds.begin(owned(OWNERS), 100)
    return rounds


def test_what_comes_from_outside_bounds_the_floor_as_of_the_begin_of_the_round() -> None:
    rounds = counting()
    tell(rounds, 1, 10, 2, MAX_TIME)
    assert tell(rounds, 2, 20, 2, MAX_TIME) == Floor(100, owned(OWNERS))


def test_a_loop_that_holds_nothing_ends_with_its_inputs() -> None:
    rounds = counting()
    for interval, sequencer in OWNERS.items():
        tell(rounds, interval, sequencer, 2, MAX_TIME)
    rounds.begin(owned(OWNERS), MAX_TIME)
    tell(rounds, 1, 10, 3, MAX_TIME)
    assert tell(rounds, 2, 20, 3, MAX_TIME) == Floor(MAX_TIME, owned(OWNERS))


def test_copies_old_rounds_and_earlier_owners_change_nothing() -> None:
    rounds = counting()
    assert tell(rounds, 1, 10, 2, 50) is None
    assert tell(rounds, 1, 10, 2, 80) is None, "a copy"
    assert tell(rounds, 2, 20, 1, 10) is None, "of the round before"
    assert tell(rounds, 2, 20, 3, 10) is None, "of a round that nobody has begun"
    assert tell(rounds, 2, 19, 2, 10) is None, "of an earlier owner"
    assert tell(rounds, 3, 30, 2, 10) is None, "of an interval that is not of this loop"
    assert tell(rounds, 2, 20, 2, 60) == Floor(50, owned(OWNERS))
    assert tell(rounds, 2, 20, 2, 60) is None


def test_a_round_that_was_given_up_makes_the_next_one_say_nothing() -> None:
    rounds = counting()
    tell(rounds, 1, 10, 2, MAX_TIME)
    assert rounds.begin(owned(OWNERS), 100) == 3
    tell(rounds, 1, 10, 3, MAX_TIME)
    assert tell(rounds, 2, 20, 3, MAX_TIME) is None, "2 may have answered 3 before 1 had answered 2"
    rounds.begin(owned(OWNERS), 100)
    tell(rounds, 1, 10, 4, MAX_TIME)
    assert tell(rounds, 2, 20, 4, MAX_TIME) is not None


def test_a_round_with_another_owner_than_the_one_before_says_nothing() -> None:
    rounds = counting()
    for interval, sequencer in OWNERS.items():
        tell(rounds, interval, sequencer, 2, MAX_TIME)
    newer = {1: 10, 2: 21}
    assert rounds.is_of(owned(OWNERS))
    assert not rounds.is_of(owned(newer))
    rounds.begin(owned(newer), 100)
    tell(rounds, 1, 10, 3, MAX_TIME)
    assert tell(rounds, 2, 21, 3, MAX_TIME) is None


def test_a_loop_that_nobody_owns_is_never_complete() -> None:
    rounds = LoopRounds(last=6)
    assert rounds.begin(owned({}), MAX_TIME) == 7
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


class Model:
    """Records that come from outside and hop between intervals of a loop, and rounds whose messages are lost, doubled and
    late.  Owners change.  No floor may ever pass a record that is in the loop, or one that comes later."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        count = self.random.randint(1, 4)
        self.at = {i: Interval() for i in range(count)}
        self.owners = {i: i + 1 for i in range(count)}
        self.rounds = LoopRounds()
        self.bound = self.made = self.floor = 0
        self.questions: list[tuple[int, int, int, int]] = []
        self.answers: list[tuple[int, int, int, int]] = []
        self.sent: list[tuple[str, int, int, int]] = []
        """(record, its time, from, to): on the way, held by its sender."""
        self.acks: list[tuple[str, int]] = []
        self.hasty = self.random.choice([0.0, 0.02, 0.3])
        """How often a round is begun before the last one is over."""
        often = [self.round, self.ask, self.ask, self.answer, self.answer, self.arrive, self.ack, self.produce]
        self.rules = [rule for rule in often for _ in range(self.random.choice([4, 12]))]
        self.rules += [self.from_outside, self.promise, self.promise, self.promise, self.end]
        self.rules += [self.start_anew] * self.random.choice([0, 0, 3])

    def run(self, steps: int) -> int:
        for _ in range(steps):
            self.random.choice(self.rules)()
            oldest = min(interval.oldest() for interval in self.at.values())
            assert self.floor <= min(oldest, self.bound), f"the floor is {self.floor}, and there is work at {oldest}"
        return self.floor

    def from_outside(self) -> None:
        if self.made < 6 or self.random.random() < 0.1:
            self.made += 1
            self.at[self.random.randrange(len(self.at))].take(
                f"r{self.made}", self.bound + self.random.choice([0, 0, 5])
            )

    def promise(self) -> None:
        self.bound += self.random.choice([0, 1, 10])

    def _record(self) -> tuple[Interval, str, int] | None:
        found = [(i, name) for i, interval in self.at.items() for name in interval.work if name[0] == "r"]
        if not found:
            return None
        i, name = self.random.choice(found)
        return self.at[i], name, i

    def produce(self) -> None:
        """A record is consumed, and what comes of it leaves; it is held until it is acked."""
        found = self._record()
        if found is not None:
            interval, name, i = found
            at = interval.work.pop(name) + self.random.choice([0, 0, 0, 1])
            self.made += 1
            interval.take(f"p{self.made}", at)
            self.sent.append((f"p{self.made}", at, i, self.random.randrange(len(self.at))))

    def end(self) -> None:
        found = self._record() if self.random.random() < 0.1 else None
        if found is not None:
            del found[0].work[found[1]]

    def arrive(self) -> None:
        if self.sent:
            name, at, from_, to = self._take(self.sent)
            self.at[to].take("r" + name, at)
            self.acks.append((name, from_))

    def ack(self) -> None:
        if self.acks:
            name, i = self._take(self.acks)
            self.at[i].work.pop(name, None)

    def _take(self, of: list[Any]) -> Any:
        """Any of them, in no order."""
        return of.pop(self.random.randrange(len(of)))

    def start_anew(self) -> None:
        """Another owner begins with the work that is durable, and has answered nothing."""
        i = self.random.randrange(len(self.at))
        work, self.at[i] = self.at[i].work, Interval()
        self.at[i].work = work
        self.owners[i] += 10

    def round(self) -> None:
        """When the last one is over, mostly."""
        if self.rounds.complete or self.random.random() < self.hasty:
            number = self.rounds.begin(owned(self.owners), self.bound)
            self.questions += [(i, sequencer, number, self.bound) for i, sequencer in self.owners.items()]

    def ask(self) -> None:
        if self.questions:
            i, sequencer, number, bound = question = self._take(self.questions)
            answer = self.at[i].held.answer(number, bound, self.at[i].oldest())
            if self.owners[i] == sequencer and answer is not None:
                self.answers.append((i, sequencer, number, answer))
            if self.random.random() < 0.3:
                self.questions.append(question)

    def answer(self) -> None:
        if self.answers:
            answer = self._take(self.answers)
            found = tell(self.rounds, *answer)
            if found is not None:
                self.floor = max(self.floor, found.value)
            if self.random.random() < 0.3:
                self.answers.append(answer)


SEEDS = 600


def test_no_floor_passes_a_record_whatever_becomes_of_messages_and_owners() -> None:
    floors = [Model(seed).run(600) for seed in range(SEEDS)]
    assert sum(floor > 0 for floor in floors) > SEEDS // 4, "a protocol without progress would be safe too"


def _forgets_when_asked_again(self: HeldWork, round_: int, bound: int, now_oldest: int) -> int:
    answer, self._oldest = min(self._oldest, now_oldest), now_oldest
    return answer


def _forgets_what_is_there(self: HeldWork, round_: int, bound: int, now_oldest: int) -> int | None:
    answer = HELD_ANSWER(self, round_, bound, now_oldest)
    self._oldest = MAX_TIME
    return answer


def _late_bound(
    self: LoopRounds, interval: IntervalId, sequencer: Sequencer, round_: int, minimum: int
) -> Floor | None:
    self.bound = MAX_TIME
    return LOOP_ANSWERED(self, interval, sequencer, round_, minimum)


LOOP_ANSWERED, HELD_ANSWER = LoopRounds.answered, HeldWork.answer
BROKEN: dict[str, tuple[Any, str, Any]] = {
    "live reports are combined": (HeldWork, "answer", lambda self, round_, bound, now_oldest: now_oldest),
    "who is asked again forgets what was held": (HeldWork, "answer", _forgets_when_asked_again),
    "what is there at an answer is forgotten": (HeldWork, "answer", _forgets_what_is_there),
    "inputs from outside do not bound it": (LoopRounds, "answered", _late_bound),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_model_notices_a_broken_protocol(name: str) -> None:
    def try_all() -> None:
        for seed in range(SEEDS):
            Model(seed).run(600)

    with patch.object(*BROKEN[name]), pytest.raises(AssertionError, match="the floor is"):
        try_all()


@given(st.integers(1, 5))
def test_a_loop_that_has_run_dry_lets_the_floor_reach_what_outside_promises(intervals: int) -> None:
    owners = dict.fromkeys(range(intervals), 7)
    rounds, held = LoopRounds(), {i: HeldWork() for i in owners}
    held[0].note(3)
    found = []
    for _ in range(3):
        number = rounds.begin(owned(owners), 40)
        for i in owners:
            answer = held[i].answer(number, 40, MAX_TIME)
            assert answer is not None
            found.append(tell(rounds, i, 7, number, answer))
    assert [floor.value for floor in found if floor] == [40, 40]
