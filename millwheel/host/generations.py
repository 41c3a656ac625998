"""The master of a cluster under snapshots: when all goes back, and who gets what then
(docs/adr/0035-snapshots-on-a-cluster.md).

Lives here: decisions about the map of a pipeline under snapshots.  Never here: epochs (`led_epochs`).  Intervals and sources
have owners of one *generation*: all were placed by one decision, which took the store back to the last declared epoch.
Invariants:

* while anything has no live owner, whoever owns something is dismissed, and then all is placed by one decision;
* a worker that has owned something never gets anything again: its process joins anew, as another member;
* what is changed on purpose is changed at the end of an epoch, and an order is carried out while nobody owns anything;
* a worker that joins again under its name gets what it had, so one change does not undo those before it.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from millwheel import limits
from millwheel.cluster import ClusterMap
from millwheel.host.master import (
    Assign,
    Cut,
    Decision,
    Dismiss,
    Hasten,
    MapView,
    Master,
    Place,
    Settle,
    assign,
    refused,
)
from millwheel.ids import IntervalId, Sequencer


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
        """No epoch runs."""
        self.declared = 0
        """The last declared epoch."""
        self._awaited = 0
        """The epoch at whose end something is to be changed on purpose; 0: nothing is."""
        self._since: int | None = None
        """When places without an owner were seen first, us."""
        self._returning = 0
        """How many workers there were when owners were dismissed: the processes of these join again."""
        self._targets: dict[int, str] = {}
        """By order to move that was begun: what the worker is called, which joins again under another number."""
        self._had: dict[Place, str] = {}
        """What the owners are called, of the last placement of all that was seen."""

    def decide(self, found: ClusterMap, now: int) -> Decision | None:
        """See `Master`."""
        view = MapView(found)
        decision = self._share_out(view, now) or self._bury(view)
        if decision is not None or self._since is not None:
            return decision
        decision = self._settle_order(view)
        if decision is not None:
            return decision
        if self._orders or self._is_uneven(view):
            return self._at_the_end(view)
        self._awaited = 0
        relief = self._relieve(view, now)
        if relief is not None:
            return relief
        if not self.resting:
            return None
        view.workers = tuple(sorted({owner for owner in view.owners.values() if owner is not None}))
        return self._finish(view)  # who owns nothing hears of no watermark

    @property
    def waits(self) -> bool:
        """Whether something is to be changed at the end of an epoch."""
        return self._awaited > 0

    # --- going back -------------------------------------------------------------------------------------------

    def _share_out(self, view: MapView, now: int) -> Decision | None:
        if view.owners and all(owner in view.workers for owner in view.owners.values()):
            self._since = None
            self._had = {place: view.names[owner] for place, owner in view.owners.items() if owner is not None}
            return None
        if self._since is None:
            self._since, self._awaited = now, 0
        owners = {owner for owner in view.owners.values() if owner is not None}
        if owners:
            return self._dismiss(view)
        limit = limits.RETURN_LIMIT_US if self._returning else limits.GATHER_US
        here = self._returning and len(view.workers) >= self._returning
        if not view.workers or not view.owners or (now - self._since < limit and not here):
            return None
        return self._reshape(view) or self._place_all(view)

    def _dismiss(self, view: MapView) -> Dismiss:
        self._returning = len(view.workers)
        return Dismiss(tuple(sorted({owner for owner in view.owners.values() if owner is not None})))

    def _place_all(self, view: MapView) -> Assign:
        self._returning, self._last = 0, {}
        wanted = {**self._kept(view), **self._moved(view)}
        for place, owner in wanted.items():
            view.take(place, owner)
        every = assign({place: wanted[place] if place in wanted else view.give(place) for place in view.owners})
        return Assign(every.intervals, every.sources, back=True)

    # --- changes on purpose -----------------------------------------------------------------------------------

    def _at_the_end(self, view: MapView) -> Decision | None:
        """At the end of an epoch all are dismissed.  It is hastened, so that little is repeated."""
        if not self._awaited:
            self._awaited = self.declared + 1
            return Hasten()
        if not self.resting or self.declared < self._awaited:
            return None
        moves = {number: order.to for number, order in self._orders.items() if order.to in view.named}
        self._targets = {number: view.names[view.named[to]] for number, to in moves.items()}
        if self._is_uneven(view):
            self._had = {}  # all is shared out anew
        return self._dismiss(view)

    def _is_uneven(self, view: MapView) -> bool:
        """A worker has nothing, and another one has more than one thing."""
        counts = Counter(owner for owner in view.owners.values() if owner is not None)
        idle = not all(counts[worker] for worker in view.workers)
        return idle and max(counts.values(), default=0) > 1 and not self._is_over(view)

    def _settle_order(self, view: MapView) -> Settle | None:
        """What is to be said of the first order, if it is carried out or cannot be.  Those behind it may rest on it."""
        for number, order in self._orders.items():
            begun = self._targets.get(number)
            wanted = order if begun is None else msgspec.structs.replace(order, to=begun)
            answer = refused(wanted, view)
            if not answer and order.kind == "move":
                others = [i for i in order.intervals if view.owners[i] != view.named[wanted.to]]
                if others and begun is None:
                    return None
                answer = (
                    f"the intervals {others} were given to other workers, because {begun} was gone" if others else ""
                )
            elif not answer:
                return None
            return Settle(number, answer)
        return None

    def _reshape(self, view: MapView) -> Decision | None:
        """Splits and merges come first, while nobody owns anything."""
        for number, order in self._orders.items():
            if order.kind != "move":
                refusal = refused(order, view)
                return Settle(number, refusal) if refusal else Cut(order.intervals, order.split_keys, number, back=True)
        return None

    def _kept(self, view: MapView) -> dict[Place, int]:
        """What workers had that are here again.  A name that several of them have says nothing."""
        called = Counter(view.names[worker] for worker in view.workers)
        here = {name: worker for worker, name in view.names.items() if called[name] == 1}
        return {place: here[name] for place, name in self._had.items() if place in view.owners and name in here}

    def _moved(self, view: MapView) -> dict[Place, int]:
        """What orders want, of the workers that are here."""
        found: dict[Place, int] = {}
        for number, order in self._orders.items():
            target = view.named.get(self._targets.get(number, ""))
            if target is not None:
                found |= dict.fromkeys((interval for interval in order.intervals if interval in view.owners), target)
        return found
