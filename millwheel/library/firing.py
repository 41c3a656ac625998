"""Panes of one window: when one is due, its number, timing and event time.

Lives here: `Firing`, a trigger with everything that it depends on, and `Progress`, what a window remembers of its panes.
Never here: accumulators, the choice of windows.  Invariant: what a pane holds depends on the records, their times and the
watermarks under which they came.  It does not depend on how far the watermark jumps later.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millwheel.errors import WiringError
from millwheel.library.durations import Duration, length
from millwheel.library.panes import PaneTime, Timing
from millwheel.library.triggers import AtWatermark, EveryRecords, Once, Trigger
from millwheel.model import MAX_TIME

Panes = Literal["accumulating", "discarding"]


class Progress(msgspec.Struct, array_like=True):
    """What a window remembers besides its accumulator."""

    new: int = 0
    """Records since the last pane."""
    number: int = 0
    """Panes so far."""
    punctual: int = 0
    """Those that were not early."""
    closed: bool = False
    """There will be no other pane; the window only drops records until it is over."""
    stamp: int | None = None
    """The next pane's event time; None: the last instant of the window."""
    due: int | None = None
    """The wall time of the next pane, if a trigger of wall time waits for it."""
    ended: bool = False
    """The timer of its end has fired, or there was none because all of its records are late."""

    def joined(self, other: Progress, firing: Firing) -> Progress:
        """Of two windows that become one: it has had no pane yet."""
        stamps = [stamp for stamp in (self.stamp, other.stamp) if stamp is not None]
        dues = [due for due in (self.due, other.due) if due is not None]
        return Progress(self.new + other.new, stamp=firing.combined(stamps), due=min(dues, default=None))


class Firing:
    """A trigger, the allowed lateness, what happens to fired records, and the panes' event time."""

    def __init__(self, trigger: Trigger, lateness: Duration, panes: Panes, time: PaneTime) -> None:
        if panes not in ("accumulating", "discarding"):
            raise WiringError(f"panes={panes!r}: use 'accumulating' or 'discarding'")
        if not callable(time) and time not in ("end", "earliest", "latest"):
            raise WiringError(f"time={time!r}: use 'end', 'earliest', 'latest' or a function of an event time")
        self.panes = panes
        self.time = time
        self.accumulates = panes == "accumulating"
        self.on_time = isinstance(trigger, AtWatermark)
        self.once = isinstance(trigger, Once)
        self.early, self.late = (
            (trigger.early, trigger.late) if isinstance(trigger, AtWatermark) else (trigger.every,) * 2
        )
        # Without a trigger for late records they are dropped, so nothing need wait for them.
        self.lateness = 0 if self.late is None else length(lateness, "the allowed lateness")
        self.holds = time != "end"
        self.tracks = self.early is not None or self.holds
        """Each record that is not late changes the window's progress."""

    @property
    def backdates(self) -> bool:
        """Whether a pane may be made behind the watermark by a timer, so that its time is older than its cause."""
        return self.lateness > 0 and self.late != EveryRecords(1)

    @property
    def one_by_one(self) -> bool:
        """Whether there is nothing but a pane at the watermark and one for each late record."""
        return self.on_time and not self.tracks and self.late in (None, EveryRecords(1))

    def to_come(self, progress: Progress) -> bool:
        """Whether the pane at the watermark is still to come, though the watermark may be beyond the end: records may run
        before timers that are due."""
        return self.on_time and not progress.ended and not progress.punctual

    def over_at(self, end: int) -> int:
        """The watermark at which a window that ends at `end` takes no record any more."""
        return min(end + self.lateness, MAX_TIME - 1)

    def combined(self, stamps: list[int]) -> int | None:
        """The time of a pane with these."""
        if not stamps:
            return None
        return max(stamps) if self.time == "latest" else min(stamps)

    def stamp(self, progress: Progress, timestamp: int, watermark: int) -> None:
        """A record has come; one behind the watermark does not count, for the pane would be late by its fault."""
        if self.holds and timestamp >= watermark:
            own = timestamp
            if callable(self.time):
                # Nothing keeps the watermark back that has passed already: a pane of an earlier time would be late.
                # And a record's own hook produces nothing that is older than the record.
                own = max(self.time(timestamp), timestamp if isinstance(self.early, EveryRecords) else watermark)
            progress.stamp = self.combined([own] if progress.stamp is None else [own, progress.stamp])

    def fired(self, progress: Progress, timing: Timing) -> None:
        """A pane is out."""
        progress.new, progress.due = 0, None
        progress.number += 1
        progress.closed = self.once
        if timing != "early":
            progress.punctual += 1
        if timing != "early" or not self.on_time:
            progress.stamp = None
