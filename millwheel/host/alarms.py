"""Alarms of a worker's cores.  Lives here: which alarm rings next.  Never here: a clock."""

from __future__ import annotations

import heapq

from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME


class Alarms:
    """Alarms of intervals, by wall time, us."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, IntervalId]] = []

    def set(self, at: int, interval: IntervalId) -> bool:
        """Ring for `interval` at `at`; true when that is before all others."""
        first = at < self.next()
        heapq.heappush(self._heap, (at, interval))
        return first

    def next(self) -> int:
        """When the next one rings, or MAX_TIME."""
        return self._heap[0][0] if self._heap else MAX_TIME

    def due(self, now: int) -> list[IntervalId]:
        """The intervals whose alarms have come, in order, each once."""
        found: dict[IntervalId, None] = {}
        while self._heap and self._heap[0][0] <= now:
            found[heapq.heappop(self._heap)[1]] = None
        return [*found]
