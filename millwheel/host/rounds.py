"""When the rounds of loops are begun (`core.loop_rounds`).

Lives here: how often the intervals of each loop are asked, and what becomes of their answers.  Never here: what an answer
means.  Invariants:

* a pipeline without a loop has no round;
* rounds are begun while the floor of a loop is behind its inputs from outside, and not more often than
  `limits.ROUND_DELAY_US`, unless something from outside rises or an interval has a new owner;
* a question that nobody answers is asked again.
"""

from __future__ import annotations

from collections.abc import Callable

from millwheel import limits
from millwheel.core.authority import Authority
from millwheel.core.loop_rounds import LoopRounds
from millwheel.host.alphabet import Pause
from millwheel.host.messages import RoundAnswered, RoundAsked
from millwheel.host.procedures import Steps


class Rounds:
    """The rounds of all loops of one controller."""

    def __init__(
        self, authority: Authority, begin: Callable[[Steps], None], ask: Callable[[RoundAsked], None], last: int = 0
    ) -> None:
        self._authority = authority
        self._begin = begin
        self._ask = ask
        """Tells all workers."""
        self._rounds = {loop: LoopRounds(last) for loop in authority.loops}
        self._turns = dict.fromkeys(authority.loops, 0)
        """How often each loop was hurried: only the newest procedure of each goes on."""
        self._over = False
        self._outside: dict[str, int] = {}
        """What each loop's inputs from outside had promised when it was last hurried, us."""

    def end(self) -> None:
        """Another controller leads, or all has gone back: nobody is asked any more."""
        self._over = True

    def hurry(self) -> None:
        """Something may have risen, or an interval has a new owner: ask at once where there is anything to ask."""
        for loop, rounds in self._rounds.items():
            outside, owners = self._authority.outside(loop), self._authority.owners_of_loop(loop)
            if not owners or (rounds.is_of(owners) and outside == self._outside.get(loop)):
                continue
            self._outside[loop] = outside
            self._hurry(loop)

    def again(self) -> None:
        """Questions and answers may be lost: ask at once where the floor is behind."""
        for loop in self._rounds:
            if self._authority.value(loop) < self._authority.outside(loop):
                self._hurry(loop)

    def _hurry(self, loop: str) -> None:
        self._turns[loop] += 1
        self._begin(self._steps(loop, self._turns[loop]))

    def answered(self, answer: RoundAnswered) -> None:
        """An interval has answered."""
        for loop, rounds in self._rounds.items():
            floor = rounds.answered(answer.interval, answer.sequencer, answer.round, answer.minimum)
            if floor is not None and floor.value > self._authority.value(loop):
                self._authority.floor(loop, floor)

    def _steps(self, loop: str, turn: int) -> Steps:
        pause_us, before = limits.ROUND_DELAY_US, self._authority.value(loop)
        while (
            not self._over and turn == self._turns[loop] and self._authority.value(loop) < self._authority.outside(loop)
        ):
            self._next(loop)
            yield Pause(pause_us)
            risen, before = self._authority.value(loop) > before, self._authority.value(loop)
            pause_us = limits.ROUND_DELAY_US if risen else min(2 * pause_us, limits.ROUND_LIMIT_US)

    def _next(self, loop: str) -> None:
        """Begin a round, or ask again while one is under way."""
        rounds, owners = self._rounds[loop], self._authority.owners_of_loop(loop)
        if not owners:
            return
        if rounds.complete or not rounds.is_of(owners):
            rounds.begin(owners, self._authority.outside(loop))
        self._ask(RoundAsked(rounds.round, loop, rounds.bound))
