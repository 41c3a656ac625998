"""When the load of workers differs for long: what is moved or split (§7.1).

Lives here: the choice of one interval, from reports of loads.  Never here: the way of a move or a split, which is that of an
operator's order (`master`).  Invariants:

* one report says nothing: only what several reports in a row say is acted on;
* after each order there is a rest, so that its effect is seen before the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millwheel import limits
from millwheel.cluster import MapOrder, PlacedInterval
from millwheel.host.messages import IntervalLoad
from millwheel.ids import IntervalId


class Relief:
    """The loads of all workers, as they have reported them last."""

    def __init__(self) -> None:
        self._loads: dict[int, dict[IntervalId, IntervalLoad]] = {}
        self._apart = 0
        """How many reports in a row have said that the loads are far apart."""
        self._rests_until = 0

    def loaded(self, worker: int, loads: Iterable[IntervalLoad]) -> None:
        """A worker has reported.  Loads are looked at once in a round of reports, when the busiest one reports."""
        self._loads[worker] = {load.interval: load for load in loads}
        totals = self._totals(self._loads)
        if worker == max(totals, key=lambda other: (totals[other], -other)):
            far = max(totals.values()) - min(totals.values()) >= limits.LOAD_GAP_PERMILLE
            self._apart = self._apart + 1 if far else 0

    def matters(self) -> bool:
        """Whether anybody is so busy that the number of intervals says less than their loads."""
        return any(total >= limits.LOAD_GAP_PERMILLE for total in self._totals(self._loads).values())

    def propose(
        self, workers: Iterable[int], intervals: Mapping[IntervalId, PlacedInterval], now: int
    ) -> MapOrder | None:
        """What would help at wall time `now`, us, if anything is to be done."""
        live = [*workers]
        self._loads = {worker: loads for worker, loads in self._loads.items() if worker in live}
        if self._apart < limits.LOAD_REPORTS or now < self._rests_until or {*live} != self._loads.keys():
            return None
        totals = self._totals(self._loads)
        most = max(live, key=lambda worker: (totals[worker], -worker))
        least = min(live, key=lambda worker: (totals[worker], worker))
        mine = [load for load in self._loads[most].values() if _owner(intervals, load.interval) == most]
        if not mine:
            return None
        self._apart, self._rests_until = 0, now + limits.LOAD_REST_US
        gap = totals[most] - totals[least]
        best = min(mine, key=lambda load: (abs(gap - 2 * load.permille), load.interval))
        if len(mine) > 1 and 0 < best.permille < gap and gap - abs(gap - 2 * best.permille) >= gap // 4:
            return MapOrder("move", (best.interval,), to=f"w{least}")
        busiest = max(mine, key=lambda load: (load.permille, -load.interval))
        row = intervals[busiest.interval]
        if busiest.median > row.low and (row.high is None or busiest.median < row.high):
            return MapOrder("split", (busiest.interval,), split_keys=(busiest.median,))
        return None

    @staticmethod
    def _totals(loads: Mapping[int, Mapping[IntervalId, IntervalLoad]]) -> dict[int, int]:
        return {worker: sum(load.permille for load in of.values()) for worker, of in loads.items()}


def _owner(intervals: Mapping[IntervalId, PlacedInterval], interval: IntervalId) -> int | None:
    placed = intervals.get(interval)
    return None if placed is None else placed.owner
