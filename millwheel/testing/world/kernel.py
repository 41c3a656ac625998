"""Virtual time: a heap of events, one seeded generator, a hash of everything that happened.

Lives here: `Kernel`, the only clock and the only source of random numbers of a simulation.  Never here: what events mean.
Invariant: the same seed gives the same events in the same order, and so the same trace hash, in every process.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import Any, ClassVar, Final

STORY_LIMIT_LINES: Final = 20_000
"""Lines kept for the story that is told when an invariant breaks."""


class Violation(AssertionError):
    """An invariant does not hold.  The message names it, and the story says what happened before."""

    def __init__(self, message: str, story: str = "") -> None:
        super().__init__(f"{message}\n{story}" if story else message)
        self.summary = message


class Kernel:
    """Heap of (time us, order, call), the clock, the dice, the trace."""

    telling: ClassVar[bool] = True

    def __init__(self, seed: int, start_us: int = 0) -> None:
        self.rng = random.Random(seed)
        self.now = start_us
        self.events = 0
        """Events handled by cores."""
        self.probes: Counter[str] = Counter()
        """How often each "sometimes" happened."""
        self.lines: deque[str] = deque(maxlen=STORY_LIMIT_LINES)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def at(self, time_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Run `call` at `time_us` (now, when that is past); calls of the same time run in this order."""
        self._order += 1
        heappush(self._heap, (time_us if time_us > self.now else self.now, self._order, call, arguments))

    def next_time(self) -> int | None:
        """Time of the next call."""
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Run the next call; false when there is none."""
        if not self._heap:
            return False
        self.now, _, call, arguments = heappop(self._heap)
        call(*arguments)
        return True

    def trace(self, line: str) -> None:
        """Add a line to the story and to the hash."""
        if not self.telling:
            return
        line = f"{self.now} {line}"
        self.lines.append(line)
        self._digest.update(line.encode("utf-8", "surrogatepass"))

    def trace_hash(self) -> str:
        """Hash of everything so far."""
        return self._digest.hexdigest()

    def story(self, word: str = "", limit: int = 60) -> str:
        """The last lines, only those with `word` in them when it is given."""
        chosen = [line for line in self.lines if word in line]
        return "\n".join(chosen[-limit:])


@contextmanager
def untold() -> Iterator[None]:
    """Simulations of this process keep no story and no hash meanwhile, and take up to a sixth less time: for many runs, of
    which the few that fail are run again."""
    before, Kernel.telling = Kernel.telling, False
    try:
        yield
    finally:
        Kernel.telling = before
