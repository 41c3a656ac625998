"""Work of a host that takes several answers, written as generators that yield what they wait for.

Lives here: who waits for which answer.  Never here: what the answers mean.  Invariant: a procedure runs only inside
`start`, `answered` and `declined`, so that no two of them ever run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from millwheel.errors import RowRefused
from millwheel.host.alphabet import Ask, Pause, Wish

Steps = Generator[Wish, Any, None]


class Procedures:
    """The procedures of one host; `ask` takes what they wait for."""

    def __init__(self, ask: Callable[[Ask], None]) -> None:
        self._ask = ask
        self._last = 0
        self._waiting: dict[int, tuple[Steps, bool]] = {}

    def start(self, steps: Steps) -> None:
        """Begin."""
        self._go_on(steps, steps.send, None)

    def answered(self, token: int, answer: Any) -> None:
        """The answer to an `Ask`; one that nobody waits for is dropped."""
        steps, _ = self._waiting.pop(token, (None, False))
        if steps is not None:
            self._go_on(steps, steps.send, answer)

    def declined(self, token: int, refusal: RowRefused) -> None:
        """The store refused rows of an `Ask`: the procedure gets the error."""
        steps, _ = self._waiting.pop(token, (None, False))
        if steps is not None:
            self._go_on(steps, steps.throw, refusal)

    def abandon(self, steps: Steps) -> None:
        """End a procedure where it waits; the answer is dropped when it comes."""
        for token in [token for token, (waiting, _) in self._waiting.items() if waiting is steps]:
            del self._waiting[token]
            steps.close()

    def _go_on(self, steps: Steps, resume: Callable[[Any], Wish], given: object) -> None:
        try:
            wish = resume(given)
        except StopIteration:
            return
        self._last += 1
        self._waiting[self._last] = (steps, isinstance(wish, Pause))
        self._ask(Ask(self._last, wish))

    def idle(self) -> bool:
        """True when no procedure waits for anything but time."""
        return all(pausing for _, pausing in self._waiting.values())
