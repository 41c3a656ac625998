"""One suspect at a time: while it runs alone, no other invocation of the process may run (`core.faults.suspects`).

Lives here: which actor runs alone, which ones wait to do so, and the invocations that wait meanwhile.  Never here: I/O.
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
    """The right to run alone.  At most one actor of the process holds it."""

    def __init__(self) -> None:
        self._holder: A | None = None
        self._waiting: deque[tuple[A, bytes]] = deque()
        self._kept: list[tuple[A, Work]] = []

    def enter(self, actor: A, mark: bytes) -> bool:
        """Let only `actor` run.  Returns False when it must wait for another one; `leave` then gives its mark back."""
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
        """The holder is done, or void.  Returns what may run now, and the next holder with its mark.

        It returns nothing when `actor` is not the holder.  An actor that became void while it waited is passed over.
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
