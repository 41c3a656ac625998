"""What an interval answers: the oldest that it has held since its previous answer, the same to everybody who asks again."""

from __future__ import annotations

import msgspec

from millwheel.core.interval import events as ev
from millwheel.core.interval.held import HeldWork
from millwheel.core.interval.machine import IntervalCore
from millwheel.ids import Seq
from millwheel.model import MAX_TIME, MIN_TIME
from tests.unit.core.bench import Bench, produced, recovered


def test_an_answer_knows_what_was_held_however_briefly() -> None:
    held = HeldWork()
    held.note(50)
    held.note(70)
    assert held.answer(1, 500, 90) == 50
    assert held.answer(2, 500, 90) == 90
    assert held.answer(3, 500, MAX_TIME) == 90, "what was there at the answer before was held since"
    assert held.answer(4, 500, MAX_TIME) == MAX_TIME


def test_who_asks_again_hears_the_same_and_nothing_is_forgotten_by_it() -> None:
    held = HeldWork()
    held.answer(1, 500, MAX_TIME)
    held.note(30)
    assert held.answer(2, 500, MAX_TIME) == 30
    held.note(40)
    assert held.answer(2, 500, MAX_TIME) == 30
    assert held.answer(3, 500, MAX_TIME) == 40


def test_a_question_of_an_earlier_round_is_late() -> None:
    held = HeldWork()
    held.answer(7, 500, 10)
    held.note(5)
    assert held.answer(6, 500, 10) is None
    assert held.answer(8, 500, 10) == 5


def test_what_is_answered_is_a_promise_up_to_what_comes_from_outside() -> None:
    held = HeldWork(promised=3)
    assert held.promised == 3
    held.answer(1, 20, MAX_TIME)
    assert held.promised == 20
    held.answer(2, 40, 10)
    assert held.promised == 20, "a promise is kept"
    assert HeldWork().promised == MIN_TIME


def test_an_interval_of_a_loop_tells_of_what_its_hooks_have_made_though_that_is_acked_by_then() -> None:
    bench = Bench()
    bench.core = IntervalCore(msgspec.structs.replace(bench.core.config, loop=True), recovered())
    bench.effects = bench.core.start(0, None)

    def answer(round_: int) -> int:
        (said,) = bench(ev.RoundBegan(round_, MAX_TIME)).of(ev.AnswerRound)
        return said.minimum

    assert answer(1) == MAX_TIME
    bench.run(0, {0: ("k", 50)}, produced(("k", 20)))
    (sent,) = bench(ev.CommitDone(Seq(1))).sent()
    bench(ev.AckArrived(sent.number))
    bench(ev.FoldDone(Seq(1)))
    assert answer(2) == 20
