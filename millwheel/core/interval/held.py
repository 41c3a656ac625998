"""What an interval of a loop answers in a round: the oldest work that it has held since its previous answer.

Lives here: the minimum between two answers, and what was answered.  Never here: what work there is (`watermark`), what the
answers come to (`core.loop_rounds`).  Invariants:

* the answer to a round is given once; who asks again hears it again;
* nothing that was held between two answers is missing in the second one, however briefly it was held.
"""

from __future__ import annotations

from millwheel.model import MAX_TIME, MIN_TIME


class HeldWork:
    """Of one interval under one owner."""

    def __init__(self, promised: int = MIN_TIME) -> None:
        self._oldest = MAX_TIME
        """Since the last answer."""
        self._round: int | None = None
        self._answer = MAX_TIME
        self.promised = promised
        """The floor of the loop is, or may become, as late as this.  What begins here by itself must not be older, us."""

    def note(self, oldest: int) -> None:
        """Work as old as this is held now."""
        if oldest < self._oldest:
            self._oldest = oldest

    def answer(self, round_: int, bound: int, now_oldest: int) -> int | None:
        """The answer to a round, in which inputs from outside promise `bound`; `now_oldest` is the oldest work of now.

        None: this round is over, and the question was late.
        """
        if self._round is not None and round_ < self._round:
            return None
        if round_ != self._round:
            self._round, self._answer = round_, min(self._oldest, now_oldest)
            self._oldest = now_oldest
            self.promised = max(self.promised, min(bound, self._answer))
        return self._answer
