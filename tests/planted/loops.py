"""Bugs of loops: rounds, what intervals answer in them, floors, and back edges.  Workloads with loops must notice them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millwheel.core.authority import Authority
from millwheel.core.channel.outbox import Outbox
from millwheel.core.interval.held import HeldWork
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.interval.schedule import Schedule
from millwheel.core.loop_rounds import Floor, LoopRounds
from millwheel.graph import Graph
from millwheel.host.adoption import Adoption
from millwheel.host.rounds import Rounds
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from tests.planted import Patches, looped, only


@looped
def live_reports() -> Patches:
    """Live reports of a loop are combined, and not what was held since the last ones"""
    return {(HeldWork, "answer"): lambda self, round_, bound, now_oldest: now_oldest}


@looped
def answer_without_productions() -> Patches:
    """An answer forgets productions that are not acked"""
    real = IntervalCore._answer

    def answer(self: IntervalCore, *arguments: Any) -> None:
        oldest, self._outbox._oldest = self._outbox._oldest, {}
        real(self, *arguments)
        self._outbox._oldest = oldest

    return {(IntervalCore, "_answer"): answer}


@looped
def answer_without_timers() -> Patches:
    """An answer forgets timers and holds"""
    real = IntervalCore._answer

    def answer(self: IntervalCore, *arguments: Any) -> None:
        watermark = self._watermark
        timers, holds = watermark._timers, watermark._holds
        watermark._timers, watermark._holds = type(timers)(), type(holds)()
        real(self, *arguments)
        watermark._timers, watermark._holds = timers, holds

    return {(IntervalCore, "_answer"): answer}


@only("tests/unit/core/interval/test_held.py")
def reset_too_early() -> Patches:
    """What was held is forgotten when an answer leaves, also what is still there"""
    real = HeldWork.answer

    def answer(self: HeldWork, round_: int, bound: int, now_oldest: int) -> int | None:
        found = real(self, round_, bound, now_oldest)
        self._oldest = MAX_TIME
        return found

    return {(HeldWork, "answer"): answer}


@only("tests/unit/core/interval/test_held.py")
def arrivals_not_held() -> Patches:
    """What has arrived and gone between two answers was never held"""
    return {(HeldWork, "note"): lambda self, oldest: None}


@only("tests/unit/core/test_loop_rounds.py")
def new_owner_counts() -> Patches:
    """A round counts though its owners had not all answered the one before"""

    def begin(self: LoopRounds, owners: Mapping[IntervalId, Sequencer], bound: int) -> int:
        began = real(self, owners, bound)
        self._counts = True
        return began

    real = LoopRounds.begin
    return {(LoopRounds, "begin"): begin}


@only("tests/unit/core/test_loop_rounds.py")
def old_owner_counts() -> Patches:
    """A round counts the answer of an earlier owner"""
    real = LoopRounds.answered

    def answered(self: LoopRounds, interval: IntervalId, sequencer: Sequencer, *arguments: Any) -> Floor | None:
        return real(self, interval, self._owners.get(interval, sequencer), *arguments)

    return {(LoopRounds, "answered"): answered}


@only("tests/unit/host/test_rounds.py")
def bound_of_the_end() -> Patches:
    """The floor is bounded by what outside promises when the round ends, and not when it began"""

    def answered(self: Rounds, answer: Any) -> None:
        for loop, rounds in self._rounds.items():
            rounds.bound = max(rounds.bound, self._authority.outside(loop))
        real(self, answer)

    real = Rounds.answered
    return {(Rounds, "answered"): answered}


@looped
def no_bound() -> Patches:
    """The floor is not bounded by the inputs from outside"""
    return {(Authority, "outside"): lambda self, loop: MAX_TIME}


@looped
def back_edge_in_the_input() -> Patches:
    """The input watermark waits for who sends on back edges"""
    real = Graph.bounds

    def bounds(self: Graph, computation: str) -> set[str]:
        loop = self.loop_of(computation)
        back = {sender for sender, receiver in loop.back_edges if receiver == computation} if loop else set()
        return real(self, computation) | back

    return {(Graph, "bounds"): bounds}


@looped
def no_floor() -> Patches:
    """The input watermark of a loop's head does not wait for its floor"""
    real = Graph.bounds
    return {(Graph, "bounds"): lambda self, name: {one for one in real(self, name) if not one.startswith("loop:")}}


@looped
def ends_while_a_record_is_in_the_loop() -> Patches:
    """A loop ends when its inputs from outside are at the end, whatever is in it"""

    def answered(self: LoopRounds, *arguments: Any) -> Floor | None:
        floor = real(self, *arguments)
        return msgspec.structs.replace(floor, value=MAX_TIME) if floor and self.bound >= MAX_TIME else floor

    real = LoopRounds.answered
    return {(LoopRounds, "answered"): answered}


@looped
def unfenced_floor() -> Patches:
    """A floor is persisted whoever owns the loop by now"""
    real = Authority.owners

    def owners(self: Authority, name: str) -> dict[IntervalId, Sequencer]:
        return {} if name in self.loops else real(self, name)

    return {(Authority, "owners"): owners}


@looped
def never_asked_again() -> Patches:
    """A question that was lost is not asked again"""
    real = Rounds._next

    def next_(self: Rounds, loop: str) -> None:
        rounds, owners = self._rounds[loop], self._authority.owners_of_loop(loop)
        if rounds.complete or not rounds.is_of(owners):
            real(self, loop)

    return {(Rounds, "_next"): next_}


@looped
def run_dry_is_no_answer() -> Patches:
    """An interval that has run dry does not count as one that has answered"""

    def answered(
        self: LoopRounds, interval: IntervalId, sequencer: Sequencer, round_: int, minimum: int
    ) -> Floor | None:
        return None if minimum == MAX_TIME else real(self, interval, sequencer, round_, minimum)

    real = LoopRounds.answered
    return {(LoopRounds, "answered"): answered}


@looped
def wall_timers_speak_of_the_past() -> Patches:
    """A wall timer speaks of times before what its interval has answered"""
    real = Schedule.take
    return {
        (Schedule, "take"): lambda self, watermark, now, promised=MIN_TIME: real(self, watermark, now),
    }


@only("tests/unit/host/test_adoption.py")
def promise_forgotten() -> Patches:
    """The next owner does not know how far the floor was persisted"""
    real = Adoption.adopt

    def adopt(self: Adoption, row: Any, sequencer: Any, inherited: Any = None) -> Any:
        steps = real(self, row, sequencer, inherited)
        wish = next(steps)
        try:
            while True:
                answer = yield wish
                if type(wish).__name__ == "ReadWatermarks":
                    answer = {}
                wish = steps.send(answer)
        except StopIteration as stop:
            return stop.value

    return {(Adoption, "adopt"): adopt}


@looped
def back_edges_wait() -> Patches:
    """Productions on back edges count for back-pressure: two intervals wait for each other"""

    def init(self: Outbox, sender: Any, producer: Any, routes: Any, back: Any = (), **more: Any) -> None:
        real(self, sender, producer, routes, **more)

    real = Outbox.__init__
    return {(Outbox, "__init__"): init}
