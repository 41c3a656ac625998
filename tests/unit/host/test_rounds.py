"""When rounds are begun: not without need, not too often, again when nobody answers, and at once when something rises."""

from __future__ import annotations

from collections.abc import Mapping

from millwheel import limits
from millwheel.core.authority import Authority
from millwheel.host.alphabet import Pause
from millwheel.host.messages import RoundAnswered, RoundAsked
from millwheel.host.procedures import Steps
from millwheel.host.rounds import Rounds
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME


class Hand:
    """Rounds of one loop, a to b and back to a, whose pauses end when a test says so."""

    def __init__(self, loops: Mapping[str, tuple[str, ...]] | None = None) -> None:
        senders = {"a": ["source:s", "loop:a"], "b": ["a"]}
        self.authority = Authority(senders, {}, {"loop:a": ("a", "b")} if loops is None else loops)
        self.asked: list[RoundAsked] = []
        self.steps: list[Steps] = []
        self.pauses: list[int] = []
        self.rounds = Rounds(self.authority, self._begin, self.asked.append)
        self.own(10, 20)

    def own(self, a: int, b: int) -> None:
        for name, interval, sequencer in (("a", 1, a), ("b", 2, b)):
            self.authority.expect(name, IntervalId(interval), Sequencer(sequencer))

    def _begin(self, steps: Steps) -> None:
        self._go_on(steps)

    def _go_on(self, steps: Steps) -> None:
        for wish in steps:
            assert isinstance(wish, Pause)
            self.pauses.append(wish.delay_us)
            self.steps.append(steps)
            return

    def pause(self) -> None:
        """All pauses end."""
        steps, self.steps = self.steps, []
        for one in steps:
            self._go_on(one)

    def outside(self, value: int) -> None:
        self.authority.bound("source:s", value)
        self.authority.adopt(self.authority.changes())
        self.rounds.hurry()

    def answer(self, minimum: int = MAX_TIME, a: int = 10, b: int = 20) -> None:
        for interval, sequencer in ((1, a), (2, b)):
            answer = RoundAnswered(IntervalId(interval), Sequencer(sequencer), self.asked[-1].round, minimum)
            self.rounds.answered(answer)
        self.authority.adopt(self.authority.changes())

    @property
    def floor(self) -> int:
        return self.authority.value("loop:a")


def test_a_pipeline_without_a_loop_has_no_round() -> None:
    hand = Hand({})
    hand.outside(50)
    assert (hand.asked, hand.pauses) == ([], [])


def test_rounds_are_begun_until_the_floor_is_where_its_inputs_are_and_then_no_more() -> None:
    hand = Hand()
    hand.outside(50)
    assert hand.asked == [RoundAsked(1, "loop:a", 50)]
    hand.answer()
    assert hand.floor == MIN_TIME, "the first round of these owners"
    hand.pause()
    hand.answer(30)
    assert hand.floor == 30
    hand.pause()
    hand.answer()
    assert hand.floor == 50
    hand.pause()
    hand.pause()
    assert [asked.round for asked in hand.asked] == [1, 2, 3]
    hand.outside(MAX_TIME)
    hand.answer()
    assert hand.floor == MAX_TIME, "the same owners have answered the round before"


def test_a_loop_that_waits_for_an_old_record_is_asked_less_and_less_often() -> None:
    hand = Hand()
    hand.outside(50)
    for _ in range(9):
        hand.answer(30)
        hand.pause()
    assert hand.pauses[-1] == limits.ROUND_LIMIT_US
    assert hand.pauses[2:] == sorted(hand.pauses[2:]), "after the second round, which raised the floor to the record"
    hand.answer(40)
    hand.pause()
    assert hand.pauses[-1] == limits.ROUND_DELAY_US, "it has risen"


def test_who_does_not_answer_is_asked_the_same_again() -> None:
    hand = Hand()
    hand.outside(50)
    hand.pause()
    assert hand.asked == [RoundAsked(1, "loop:a", 50)] * 2


def test_what_rises_outside_is_asked_about_at_once_and_nothing_is_asked_twice_as_often() -> None:
    hand = Hand()
    hand.outside(50)
    hand.answer(30)
    hand.outside(60)
    assert hand.asked[-1] == RoundAsked(2, "loop:a", 60)
    assert len(hand.steps) == 2
    hand.answer(30)
    hand.pause()
    assert len(hand.asked) == 3
    hand.pause()
    assert len(hand.steps) == 1, "the older one has ended"


def test_a_new_owner_is_asked_at_once_and_a_round_of_its_own_comes_first() -> None:
    hand = Hand()
    hand.outside(50)
    hand.answer()
    hand.pause()
    hand.own(10, 21)
    hand.rounds.hurry()
    assert [asked.round for asked in hand.asked] == [1, 2, 3]
    hand.answer(b=21)
    assert hand.floor == MIN_TIME
    hand.pause()
    hand.answer(b=21)
    assert hand.floor == 50


def test_a_loop_that_nobody_owns_as_a_whole_is_not_asked() -> None:
    hand = Hand()
    hand.authority.expect("b", IntervalId(3))
    hand.outside(50)
    assert hand.asked == []
    hand.authority.expect("b", IntervalId(3), Sequencer(30))
    hand.rounds.hurry()
    assert hand.asked == [RoundAsked(1, "loop:a", 50)]


def test_the_last_interval_to_have_no_owner_is_waited_for_while_a_round_runs() -> None:
    hand = Hand()
    hand.outside(50)
    hand.authority.expect("b", IntervalId(3))
    hand.answer()
    hand.pause()
    assert [asked.round for asked in hand.asked] == [1]


def test_after_a_cut_all_are_asked_again_at_once_where_there_is_anything_to_ask() -> None:
    hand = Hand()
    hand.outside(50)
    hand.rounds.again()
    assert hand.asked == [RoundAsked(1, "loop:a", 50)] * 2
    hand.answer()
    hand.pause()
    hand.answer()
    hand.rounds.again()
    assert len(hand.asked) == 3, "the floor is where its inputs are"


def test_what_outside_promises_while_a_round_runs_is_for_the_next_one() -> None:
    hand = Hand()
    hand.outside(50)
    hand.answer()
    hand.pause()
    hand.authority.bound("source:s", 60)
    hand.authority.adopt(hand.authority.changes())
    hand.answer()
    assert hand.floor == 50


def test_rounds_of_another_term_or_generation_ask_nobody_any_more() -> None:
    # After a going back they went on beside those of the new owners, whose lower numbers nobody answered.
    hand = Hand()
    hand.outside(50)
    asked = len(hand.asked)
    assert asked
    hand.rounds.end()
    hand.pause()
    hand.rounds.again()
    assert (len(hand.asked), hand.steps) == (asked, [])
