"""Group commit: whatever is ready goes into one transaction.

Lives here: which intervals commit together, and in which order.  Never here: what a checkpoint is.  Invariant: an interval's
checkpoints are handed to the store in the order of submission, and no interval is in two groups at a time.

Intervals with sink rows commit in a lane of their own, so that a slow or locked table of a user delays no other interval.
Nothing declares which intervals write sink rows.  An interval changes lanes with its first sink row, and never goes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec

from millwheel import limits
from millwheel.bundles import LogWrite
from millwheel.ids import IntervalId


class Group(msgspec.Struct, eq=False):
    """Checkpoints that commit together."""

    writes: list[LogWrite]
    lane: Lane


class Lane:
    """Checkpoints that wait, in the order of submission, and the group that is being committed."""

    def __init__(self) -> None:
        self.waiting: list[LogWrite] = []
        self.open: frozenset[IntervalId] = frozenset()
        """Intervals of the open group."""

    def take(self, busy: frozenset[IntervalId]) -> Group | None:
        """A group of what waits, without intervals that are `busy` elsewhere; None while one is open."""
        if self.open or not self.waiting:
            return None
        writes = [write for write in self.waiting if write.interval not in busy] if busy else self.waiting
        if not writes:
            return None
        later = writes[_fitting(writes) :]
        writes = writes[: len(writes) - len(later)]
        self.waiting = [write for write in self.waiting if write.interval in busy] + later if busy else later
        self.open = frozenset(write.interval for write in writes)
        return Group(writes, self)


def _fitting(writes: Sequence[LogWrite]) -> int:
    """How many of the first ones go into one message to the store: one at least."""
    sizes = accumulate(len(write.payload) for write in writes)
    return max(1, sum(1 for size in sizes if size <= limits.GROUP_LIMIT_BYTES))


class CommitLanes:
    """Two lanes: the shared group, and the intervals that write sink rows."""

    def __init__(self) -> None:
        self._shared = Lane()
        self._sinks = Lane()
        self._with_sinks: set[IntervalId] = set()

    def submit(self, write: LogWrite) -> None:
        """Commit `write` after everything of its interval that was submitted before."""
        if write.sinks and write.interval not in self._with_sinks:
            self._change_lanes(write.interval)
        lane = self._sinks if write.interval in self._with_sinks else self._shared
        lane.waiting.append(write)

    def _change_lanes(self, interval: IntervalId) -> None:
        self._with_sinks.add(interval)
        self._sinks.waiting += [write for write in self._shared.waiting if write.interval == interval]
        self._shared.waiting = [write for write in self._shared.waiting if write.interval != interval]

    def ready(self) -> list[Group]:
        """Groups to hand to the store now; each ends with `done`."""
        if not (self._shared.waiting or self._sinks.waiting):
            return []
        groups = (self._shared.take(self._sinks.open), self._sinks.take(self._shared.open))
        return [group for group in groups if group is not None]

    def done(self, group: Group) -> None:
        """The store has answered for all of `group`, or what is left of it."""
        group.lane.open = frozenset()

    def drop(self, interval: IntervalId) -> None:
        """Forget what waits of an interval whose core is void.  It must not become durable after the next core's recovery."""
        for lane in (self._shared, self._sinks):
            lane.waiting = [write for write in lane.waiting if write.interval != interval]

    def waits(self) -> bool:
        """True when something is not in the hands of the store yet."""
        return bool(self._shared.waiting or self._sinks.waiting)

    def idle(self) -> bool:
        """True when nothing waits or is under way."""
        return not (self._shared.waiting or self._sinks.waiting or self._shared.open or self._sinks.open)
