"""Sliding windows of aggregations that cannot subtract, a minimum for example, at two merges per window.

Lives here: the merges of a window's slices that the next windows use again.  Never here: which windows there are, and when
(`slices`).  Invariant: what is kept is the merge of the slices that it stands for, or it is forgotten.

This is a queue of two stacks.  When a window ends behind the turn, its slices are merged from the newest to the oldest.
Each beginning of a later window on this way keeps what is merged so far: its *front*.  The end of the window is the new
*turn*.  Slices behind the turn are merged into the *back* as they come.  So a window is its front and the back, and each
slice is read three times in all, however many windows hold it.
"""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from millwheel.library.aggregate import NOTHING
from millwheel.library.slices import SlicedAggregate
from millwheel.library.windows import Window

R = TypeVar("R")

TURN: Final = "turn"
BACK: Final = "back"


class StackedAggregate(SlicedAggregate[R], Generic[R]):
    """`running` has each front under its beginning, and the back; `held` of how many slices each is, and the turn."""

    def whole(self, window: Window) -> tuple[Any, int]:
        """See `SlicedAggregate`."""
        turn = self.held.get(TURN)
        if turn is None or window.start >= turn:
            return self._turn(window)
        parts, number = self._take(str(window.start))
        fresh = self.slices(Window(window.end - self.windows.every, window.end))
        back, count = self.running.get(BACK, NOTHING), self.held.get(BACK, 0)
        if fresh:
            back = self.merged([*([] if back is NOTHING else [back]), *fresh.values()])
            count += len(fresh)
            self.running.set(BACK, back)
            self.held.set(BACK, count)
        return self.merged([*parts, *([] if back is NOTHING else [back])]), number + count

    def _take(self, entry: str) -> tuple[list[Any], int]:
        """A front, which no later window has, and of how many slices it is."""
        number = self.held.get(entry, 0)
        if not number:
            return [], 0
        parts = [self.running.get(entry)]
        self.running.delete(entry)
        self.held.delete(entry)
        return parts, number

    def _turn(self, window: Window) -> tuple[Any, int]:
        """All of a window, and the fronts of those after it that begin before its end."""
        found = self.slices(window)
        self.changed()
        begins = window.start + (window.end - 1 - window.start) // self.windows.every * self.windows.every
        accumulator, number = NOTHING, 0
        for entry, part in reversed(found.items()):
            while begins > int(entry):
                self._keep(begins, accumulator, number)
                begins -= self.windows.every
            accumulator = part if accumulator is NOTHING else self.merged([part, accumulator])
            number += 1
        while begins > window.start:
            self._keep(begins, accumulator, number)
            begins -= self.windows.every
        self.held.set(TURN, window.end)
        return accumulator, number

    def _keep(self, begins: int, accumulator: Any, number: int) -> None:
        if number:
            self.running.set(str(begins), accumulator)
            self.held.set(str(begins), number)

    def changed(self) -> None:
        """See `SlicedAggregate`."""
        for entry in [entry for entry, _ in self.held.items()]:
            self.held.delete(entry)
        for entry in [entry for entry, _ in self.running.items()]:
            self.running.delete(entry)

    def goes_on(self, window: Window, accumulator: Any, old: dict[str, Any], number: int) -> None:
        """See `SlicedAggregate`.  What the next window needs is there already."""

    def ended(self) -> None:
        """See `SlicedAggregate`."""
        self.changed()
