"""What comes out of a window: a pane, one result of one key and window.

Lives here: the value, and the choice of its event time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import msgspec

from millwheel.library.windows import Window

R = TypeVar("R")

Timing = Literal["early", "on time", "late"]

PaneTime = Literal["end", "earliest", "latest"] | Callable[[int], int]
"""A pane's event time: the last instant of its window; the earliest or latest time of the records that were punctual; or
the earliest of a function of these.  All but the first keep the watermark back until the pane is out."""


class Pane(msgspec.Struct, Generic[R], frozen=True, array_like=True):
    """One result of `key` and the window [start, end), us.

    `number` counts the panes of this key and window from 0; `punctual` counts those that were not early, -1 before the
    first; `last` says that no other will come.  A session that grows is another window: its panes count from 0 again.
    """

    key: str
    start: int
    end: int
    value: R
    number: int = 0
    timing: Timing = "on time"
    punctual: int = 0
    last: bool = True

    @property
    def window(self) -> Window:
        """The window."""
        return Window(self.start, self.end)
