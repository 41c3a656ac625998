"""What a process has counted in cores that it has no more.

Lives here: where the counts of a core go when its interval or partition does.  Never here: the counting, which cores do.
Invariant: what was counted is in a core or here, and never in both.
"""

from __future__ import annotations

from millwheel.core.interval.counters import Counters
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.core.source.row_counts import RowCounts


class Tally:
    """Of one process.  Its members of a cluster have it one after the other, and so have the workers of an embedded run."""

    def __init__(self) -> None:
        self.by_source: dict[str, RowCounts] = {}
        """Of partitions."""
        self.by_computation: dict[str, Counters] = {}
        self.commits = 0
        """Transactions of the store that made checkpoints durable."""
        self.commit_us = 0
        """How long they took together, us, from when the process asked for each until it heard."""

    def take(self, owner: str, core: IntervalCore | InjectorCore) -> None:
        """A core of the computation or source `owner` goes.  The next one of its interval has its counters, at 0."""
        if isinstance(core, InjectorCore):
            self.by_source[owner] = self.by_source.get(owner, RowCounts()) + core.rows.end()
            return
        self.by_computation.setdefault(owner, Counters()).add(core.counters)
        core.counters.clear()
