"""One suspect at a time: while it runs by itself, nothing else of the process may be running (`core.suspects`).

Lives here: who has the process for itself, who waits for that, and the invocations that wait.  Never here: I/O.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from millwheel.work import Work


class Halting(Protocol):
    """A core, as far as this goes."""

    @property
    def halted(self) -> bool:
        """It is void."""
        ...


class Runner(Protocol):
    """What a driver calls an actor."""

    @property
    def core(self) -> Halting:
        """Its core."""
        ...


A = TypeVar("A", bound=Runner)


class Alone(Generic[A]):
    """Of a process's actors, at most one holds it."""

    def __init__(self) -> None:
        self._holder: A | None = None
        self._waiting: deque[tuple[A, bytes]] = deque()
        self._kept: list[tuple[A, Work]] = []

    def enter(self, actor: A, mark: bytes) -> bool:
        """From now on only `actor` runs; False when it waits for another one, and `leave` will tell of its mark."""
        if self._holder is not None:
            self._waiting.append((actor, mark))
            return False
        self._holder = actor
        return True

    def keeps(self, actor: A, work: Work) -> bool:
        """Whether `work` waits here until the holder has left."""
        kept = self._holder is not None and self._holder is not actor
        if kept:
            self._kept.append((actor, work))
        return kept

    def leave(self, actor: A) -> tuple[list[tuple[A, Work]], tuple[A, bytes] | None]:
        """The holder is done, or void: what may run now, and who is next, with its mark.  Nothing for anybody else.

        Who became void while it waited is passed over.
        """
        if self._holder is not actor:
            return [], None
        while self._waiting:
            after = self._waiting.popleft()
            if not after[0].core.halted:
                self._holder = after[0]
                return [], after
        self._holder = None
        kept, self._kept = self._kept, []
        return kept, None
