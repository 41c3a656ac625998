"""Rounds: how far event time has come inside a loop (docs/architecture-time.md, Loops).

Lives here: when the answers of one round say something, and what.  Never here: who is asked how often (`host.controller`),
what an interval held (`interval.held`).

In a loop a record may hop from an interval that has not reported yet to one that has.  So the minimum of live reports is
wrong.  In a round, each interval answers with the oldest work that it has *held since its previous answer*.  A round is begun
after all have answered the round before.  So there is one moment, the begin of the round, about which all answers speak.  At
that moment every piece of work was held by some interval, because a sender holds what its receiver has not acked.  Work of a
later time comes of work that was held then, or from outside.  Invariants:

* a round counts if all owners have answered it, and all of the same owners had answered the round before it was begun;
* the floor is at most what the inputs from outside had promised when the round was begun.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millwheel.ids import IntervalId, Sequencer


class Floor(msgspec.Struct, frozen=True):
    """No work in the loop is older than `value`, us, and none will be.  These were the owners, by interval."""

    value: int
    owners: Mapping[IntervalId, Sequencer]


class LoopRounds:
    """The rounds of one loop.  The first one has the number after `last`: numbers of one loop only ever rise."""

    def __init__(self, last: int = 0) -> None:
        self.round = last
        """The newest one."""
        self.bound = 0
        """What the inputs from outside had promised at its begin, us."""
        self._owners: dict[IntervalId, Sequencer] = {}
        """Interval to sequencer: those who must answer."""
        self._answers: dict[IntervalId, int] = {}
        self._counts = False
        """The same owners had all answered the round before."""

    def begin(self, owners: Mapping[IntervalId, Sequencer], bound: int) -> int:
        """Begin a round of these owners.  `bound` is what all inputs from outside promise by now, us.  Returns its number."""
        self._counts = self.complete and self._owners == owners
        self._owners, self._answers, self.bound = dict(owners), {}, bound
        self.round += 1
        return self.round

    @property
    def complete(self) -> bool:
        """All have answered the newest round."""
        return bool(self._owners) and self._answers.keys() == self._owners.keys()

    def is_of(self, owners: Mapping[IntervalId, Sequencer]) -> bool:
        """Whether the newest round is one of these owners."""
        return self._owners == owners

    def answered(self, interval: IntervalId, sequencer: Sequencer, round_: int, minimum: int) -> Floor | None:
        """An answer: the oldest work, us, that the interval has held since its answer before.

        Returns the floor when this was the last answer and the round counts.  Answers to other rounds, of earlier owners,
        and copies change nothing.
        """
        if round_ != self.round or self._owners.get(interval) != sequencer or interval in self._answers:
            return None
        self._answers[interval] = minimum
        if not self.complete or not self._counts:
            return None
        return Floor(min(self.bound, *self._answers.values()), dict(self._owners))
