"""The master of a cluster under snapshots: when all goes back, and who gets what then
(docs/adr/0035-snapshots-on-a-cluster.md).

Lives here: decisions about the map of a pipeline under snapshots.  Never here: epochs (`led_epochs`).  Intervals and sources
have owners of one *generation*: all were placed by one decision, which took the store back to the last declared epoch.
Invariants:

* while anything has no live owner, whoever owns something is dismissed, and then all is placed by one decision;
* a worker that has owned something never gets anything again: its process joins anew, as another member;
* nothing is changed on purpose while an epoch runs.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from millwheel import limits
from millwheel.cluster import ClusterMap
from millwheel.host.master import Assign, Decision, Dismiss, MapView, Master, Settle, assign
from millwheel.ids import IntervalId, Sequencer

REFUSAL = (
    "the pipeline takes snapshots, and its intervals are not moved, split or merged by order: stop it and start it with "
    "durability=Checkpoints(), or start and stop workers, among which all is shared out anew"
)


class Generation(msgspec.Struct, frozen=True):
    """All owners of one placement: of intervals with their sequencers, and of sources."""

    owners: tuple[tuple[IntervalId, int, Sequencer], ...]
    sources: tuple[tuple[str, int], ...]

    @property
    def members(self) -> set[int]:
        """Who owns something."""
        return {owner for _, owner, _ in self.owners} | {owner for _, owner in self.sources}


def generation_of(found: ClusterMap) -> Generation | None:
    """The generation that a map shows; None while anything has no live owner."""
    alive = {member.incarnation for member in found.members if member.role == "worker" and member.alive}
    owners = [(i.id, i.owner, i.sequencer) for i in found.intervals if i.owner in alive and i.owner is not None]
    sources = [(s.name, s.owner) for s in found.sources if s.owner in alive and s.owner is not None]
    whole = len(owners) == len(found.intervals) and len(sources) == len(found.sources)
    return Generation(tuple(owners), tuple(sources)) if whole and owners else None


class WholeMaster(Master):
    """The plans of one leader under snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.resting = False
        """No epoch runs, so what was done since the last one is little."""
        self._since: int | None = None
        """When places without an owner were seen first, us."""
        self._returning = 0
        """How many workers there were when owners were dismissed: the processes of these join again."""

    def decide(self, found: ClusterMap, now: int) -> Decision | None:
        """See `Master`."""
        view = MapView(found)
        decision = self._share_out(view, now) or self._bury(view) or self._settle_orders() or self._even_out(view)
        if decision is not None or self._since is not None or not self.resting:
            return decision
        view.workers = tuple(sorted({owner for owner in view.owners.values() if owner is not None}))
        return self._finish(view)  # who owns nothing hears of no watermark

    def _share_out(self, view: MapView, now: int) -> Decision | None:
        if view.owners and all(owner in view.workers for owner in view.owners.values()):
            self._since = None
            return None
        if self._since is None:
            self._since = now
        owners = {owner for owner in view.owners.values() if owner is not None}
        if owners:
            self._returning = len(view.workers)
            return Dismiss(tuple(sorted(owners)))
        limit = limits.RETURN_LIMIT_US if self._returning else limits.GATHER_US
        here = self._returning and len(view.workers) >= self._returning
        if not view.workers or not view.owners or (now - self._since < limit and not here):
            return None
        self._returning = 0
        self._last = {}
        every: Assign = assign({place: view.give(place) for place in view.owners})
        return Assign(every.intervals, every.sources, back=True)

    def _settle_orders(self) -> Decision | None:
        return next((Settle(number, REFUSAL) for number in self._orders), None)

    def _even_out(self, view: MapView) -> Decision | None:
        """A worker has nothing, and another one has more than one thing: all is shared out anew, between two epochs."""
        if not self.resting or self._since is not None or self._is_over(view):
            return None
        counts = Counter(owner for owner in view.owners.values() if owner is not None)
        if all(counts[worker] for worker in view.workers) or max(counts.values(), default=0) < 2:
            return None
        self._returning = len(view.workers)
        return Dismiss(tuple(sorted(counts)))
