"""Procedures: one runs only when it is started or answered, and an answer that nobody waits for is dropped."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.errors import RowRefused
from millwheel.host.alphabet import Ask, Pause
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.requests import ReadWatermarks
from millwheel.ids import IntervalId, Seq


class Asked:
    """What procedures have asked, and what became of them."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.told: list[Any] = []
        self.procedures = Procedures(self.asks.append)

    def two_questions(self) -> Steps:
        self.told.append((yield ReadWatermarks()))
        self.told.append((yield ReadWatermarks()))

    def guarded(self) -> Steps:
        try:
            yield ReadWatermarks()
        except RowRefused as refusal:
            self.told.append(refusal)


def test_each_answer_goes_to_who_asked() -> None:
    asked = Asked()
    asked.procedures.start(asked.two_questions())
    asked.procedures.start(asked.two_questions())
    first, second = asked.asks
    asked.procedures.answered(second.token, "b")
    asked.procedures.answered(first.token, "a")
    assert asked.told == ["b", "a"]
    assert len({ask.token for ask in asked.asks}) == 4


def test_an_answer_that_comes_twice_is_dropped() -> None:
    asked = Asked()
    asked.procedures.start(asked.two_questions())
    (first,) = asked.asks
    asked.procedures.answered(first.token, 1)
    asked.procedures.answered(first.token, 2)
    assert asked.told == [1]


def test_a_refusal_is_an_error_in_the_procedure_and_only_there() -> None:
    asked = Asked()
    asked.procedures.start(asked.guarded())
    asked.procedures.start(asked.two_questions())
    refusal = RowRefused("no", IntervalId(1), Seq(1))
    asked.procedures.declined(asked.asks[0].token, refusal)
    assert asked.told == [refusal]
    with pytest.raises(RowRefused):
        asked.procedures.declined(asked.asks[1].token, refusal)
    asked.procedures.declined(asked.asks[1].token, refusal)  # nobody waits any more


def test_a_host_is_idle_when_all_wait_for_time_only() -> None:
    asked = Asked()
    assert asked.procedures.idle()

    def pausing() -> Steps:
        yield Pause(5)
        yield ReadWatermarks()

    asked.procedures.start(pausing())
    assert asked.procedures.idle()
    asked.procedures.answered(asked.asks[0].token, None)
    assert not asked.procedures.idle()
    asked.procedures.answered(asked.asks[1].token, {})
    assert asked.procedures.idle()


def test_a_procedure_that_is_abandoned_ends_at_once_whoever_still_has_it_and_the_others_go_on() -> None:
    asked = Asked()

    def tidy() -> Steps:
        try:
            asked.told.append((yield ReadWatermarks()))
        finally:
            asked.told.append("tidied")

    steps = tidy()
    asked.procedures.start(steps)
    asked.procedures.start(asked.two_questions())
    asked.procedures.abandon(steps)
    assert asked.told == ["tidied"]
    for ask in [*asked.asks]:
        asked.procedures.answered(ask.token, ask.token)
    assert asked.told == ["tidied", asked.asks[1].token], "the answer to nobody is dropped"
