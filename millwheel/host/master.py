"""The master of a cluster: who shall own what (§7.1).

Lives here: decisions about the map, as values: what is to be done next, by a map and what workers and operators have said.
Never here: messages, requests, or a clock; `leading` carries decisions out.  Invariants:

* the next step depends on the map and not on what was decided before.  So a leader that takes over goes on where the last one
  stood, and at most moves something that would not have had to move;
* what has a live owner moves only after its owner has let go of it, or has had its time to do so;
* nothing moves for the sake of balance while anything is without an owner.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from millwheel import limits
from millwheel.cluster import ClusterMap, MapOrder, PlacedInterval
from millwheel.host.relief import Relief
from millwheel.ids import IntervalId

Place = IntervalId | str
"""An interval, or the name of a source."""


class LetGo(msgspec.Struct, frozen=True):
    """Ask the owner to let go of these."""

    owner: int
    intervals: tuple[IntervalId, ...]
    sources: tuple[str, ...]
    acked: bool
    """Only when all that they have sent is acked."""


class Assign(msgspec.Struct, frozen=True):
    """Give these owners, or take them from theirs (None)."""

    intervals: Mapping[IntervalId, int | None]
    sources: Mapping[str, int | None]
    back: bool = False
    """All of them, and everything goes back to the last declared epoch."""


class Dismiss(msgspec.Struct, frozen=True):
    """Under snapshots: these members are members no more, and what they own has no owner."""

    incarnations: tuple[int, ...]


class Cut(msgspec.Struct, frozen=True):
    """Split or merge intervals that nobody owns."""

    intervals: tuple[IntervalId, ...]
    split_keys: tuple[str, ...]
    order: int
    back: bool = False
    """Nobody owns anything, and all goes back to the last declared epoch."""


class Hasten(msgspec.Struct, frozen=True):
    """Under snapshots: let an epoch begin now, because something is going to change at its end."""


class Settle(msgspec.Struct, frozen=True):
    """An operator's order is carried out (""), or refused."""

    order: int
    refusal: str


class Bury(msgspec.Struct, frozen=True):
    """End what these members still have open, and forget them: their leases have run out, and they own nothing."""

    incarnations: tuple[int, ...]


class Propose(msgspec.Struct, frozen=True):
    """Give this order, which the loads of workers call for.  It is carried out as an operator's."""

    order: MapOrder


class Finish(msgspec.Struct, frozen=True):
    """The run is over."""


Decision = LetGo | Assign | Dismiss | Hasten | Cut | Settle | Bury | Propose | Finish


class Move(msgspec.Struct):
    """A planned change of one owner.  `to` is a live member; None: the interval is going to be split or merged."""

    owner: int
    to: int | None
    until: int
    """When the owner has had its time, us."""
    asked: bool = False
    gone: bool = False
    """The owner has let go."""


class Master:
    """The plans of one leader.  Call `decide` with every new map, until it has nothing to say."""

    def __init__(self) -> None:
        self._moves: dict[Place, Move] = {}
        self._orders: dict[int, MapOrder] = {}
        self.relief = Relief()
        self._last: dict[Place, Move] = {}
        """What the last assignment has carried out."""
        self._ready: set[Place] = set()
        """What was taken from its owner after that had let go of it, and is going to be split or merged."""
        self._begun: set[int] = set()
        """Orders to move that have their moves."""
        self._drained: dict[int, int] = {}
        """By worker: the version of the map of which it has nothing left to do."""
        self._confirmed: set[int] = set()
        """Workers that have said so again since all have said it: what was on its way to them by then has come."""
        self._over: int | None = None
        """The version of which all have said it."""

    # --- what is heard ----------------------------------------------------------------------------------------

    def handed_over(self, owner: int, places: Iterable[Place]) -> None:
        """A worker has let go of these."""
        for place in places:
            move = self._moves.get(place)
            if move is not None and move.owner == owner:
                move.gone = True

    def reached(self, owner: int) -> bool:
        """The channel to a worker is open again: what it was asked may be lost.  Returns whether it is to be asked again."""
        lost = [move for move in self._moves.values() if move.owner == owner and move.asked and not move.gone]
        for move in lost:
            move.asked = False
        return bool(lost)

    def drained(self, worker: int, version: int) -> None:
        """A worker has nothing left to do of all that this version of the map gives to it."""
        self._drained[worker] = version
        if version == self._over:
            self._confirmed.add(worker)

    def refused(self) -> None:
        """The store did not accept the last assignment."""
        self._moves |= self._last
        self._ready -= self._last.keys()

    def ordered(self, orders: Mapping[int, MapOrder]) -> None:
        """What operators want, by number; those that are settled are not in it."""
        self._orders = dict(sorted(orders.items()))
        self._begun &= self._orders.keys()
        self._ready &= {interval for order in orders.values() for interval in order.intervals}

    @property
    def busy(self) -> bool:
        """Whether something is going to move."""
        return bool(self._moves)

    # --- what is decided --------------------------------------------------------------------------------------

    def decide(self, found: ClusterMap, now: int) -> Decision | None:
        """The next step at wall time `now`, us, or None: nothing is to be done now."""
        view = MapView(found)
        self._forget(view)
        if not view.workers:
            return None
        return (
            self._adopt_orphans(view)
            or self._bury(view)
            or self._finish_moves(view, now)
            or self._carry_out(view, now)
            or self._balance(view, now)
            or self._relieve(view, now)
            or self._finish(view)
        )

    def _forget(self, view: MapView) -> None:
        """Moves that the map has overtaken."""
        self._moves = {place: move for place, move in self._moves.items() if view.owners.get(place) == move.owner}

    def _adopt_orphans(self, view: MapView) -> Decision | None:
        """What nobody owns who lives gets an owner: whoever has least, first of the same computation."""
        orphans = [p for p, owner in view.owners.items() if owner not in view.workers]
        placed = [place for place in orphans if not (place in self._ready and view.owners[place] is None)]
        self._last = {}
        return assign({place: view.give(place) for place in placed}) if placed else None

    def _bury(self, view: MapView) -> Decision | None:
        return Bury(view.dead) if view.dead else None

    def _finish_moves(self, view: MapView, now: int) -> Decision | None:
        asked = {place: move for place, move in self._moves.items() if not move.asked}
        if asked:
            owner, cut = min((move.owner, move.to is None) for move in asked.values())
            mine = [p for p, move in asked.items() if (move.owner, move.to is None) == (owner, cut)]
            for place in mine:
                self._moves[place].asked = True
            return LetGo(owner, *_parts(mine), acked=cut)
        late = [p for p, move in self._moves.items() if move.to is None and not move.gone and now >= move.until]
        if late:  # its log may not be empty
            del self._moves[late[0]]
            number = next((number for number, order in self._orders.items() if late[0] in order.intervals), None)
            text = f"the owner of interval {late[0]} has not let go of it in time: try again"
            return Settle(number, text) if number is not None else None
        done = {place: move for place, move in self._moves.items() if move.gone or now >= move.until}
        if not done:
            return None
        self._ready |= {place for place, move in done.items() if move.to is None}
        self._last = done
        self._moves = {place: move for place, move in self._moves.items() if place not in done}
        return assign({p: m.to if m.to is None or m.to in view.workers else view.give(p) for p, m in done.items()})

    def move(self, place: Place, owner: int, to: int | None, now: int) -> None:
        """Plan that a place goes from its owner to another one."""
        self._moves[place] = Move(owner, to, now + limits.HAND_OVER_LIMIT_US)

    # --- orders -----------------------------------------------------------------------------------------------

    def _carry_out(self, view: MapView, now: int) -> Decision | None:
        for number, order in self._orders.items():
            if any(interval in self._moves for interval in order.intervals):
                return None  # one order at a time
            refusal = refused(order, view)
            if refusal:
                return Settle(number, refusal)
            decision = (
                self._move_all(number, order, view, now)
                if order.kind == "move"
                else self._cut(number, order, view, now)
            )
            if decision is not None or self._moves:
                return decision
        return None

    def _move_all(self, number: int, order: MapOrder, view: MapView, now: int) -> Decision | None:
        to = view.named[order.to]
        left = [interval for interval in order.intervals if view.owners[interval] != to]
        if not left:
            return Settle(number, "")
        if number in self._begun:
            return Settle(number, f"the intervals {left} were given to other workers, because {order.to} was gone")
        self._begun.add(number)
        for interval in left:
            self.move(interval, view.owner_of(interval), to, now)
        return self._finish_moves(view, now)

    def _cut(self, number: int, order: MapOrder, view: MapView, now: int) -> Decision | None:
        owned = [interval for interval in order.intervals if view.owners[interval] is not None]
        if not owned:
            self._ready.difference_update(order.intervals)
            return Cut(order.intervals, order.split_keys, number)
        for interval in owned:
            self.move(interval, view.owner_of(interval), None, now)
        return self._finish_moves(view, now)

    # --- balance and end --------------------------------------------------------------------------------------

    def _balance(self, view: MapView, now: int) -> Decision | None:
        """Whoever has at least two more than another one gives one away; several at once, as far as that goes."""
        if self._moves or self._orders or self._is_over(view):
            return None
        counts = Counter(owner for owner in view.owners.values() if owner is not None)
        while len(self._moves) < limits.MOVES_AT_ONCE:
            most = max(view.workers, key=lambda worker: (counts[worker], -worker))
            least = min(view.workers, key=lambda worker: (counts[worker], worker))
            if counts[most] - counts[least] < 2 or (counts[least] and self.relief.matters()):
                break  # who is busy is relieved by load, and not by number
            place = view.spare(most, least, self._moves)
            self.move(place, most, least, now)
            counts[most] -= 1
            counts[least] += 1
        return self._finish_moves(view, now)

    def _relieve(self, view: MapView, now: int) -> Decision | None:
        if self._moves or self._orders or self._is_over(view):
            return None
        order = self.relief.propose(view.workers, view.intervals, now)
        return None if order is None else Propose(order)

    def _is_over(self, view: MapView) -> bool:
        return all(self._drained.get(worker) == view.version for worker in view.workers)

    def _finish(self, view: MapView) -> Decision | None:
        if self._moves or self._orders or not self._is_over(view):
            self._over = None
            return None
        if self._over != view.version:
            self._over = view.version
            self._confirmed.clear()
        return Finish() if self._confirmed.issuperset(view.workers) else None


class MapView:
    """A map as the master looks at it; `give` notes what it has given."""

    def __init__(self, found: ClusterMap) -> None:
        self.version = found.version
        live = [member for member in found.members if member.role == "worker" and member.alive]
        self.workers = tuple(sorted(member.incarnation for member in live))
        self.named = {f"w{member.incarnation}": member.incarnation for member in live}
        self.named |= {member.name: member.incarnation for member in live}
        self.names = {member.incarnation: member.name for member in live}
        self.dead = tuple(sorted(member.incarnation for member in found.members if not member.alive))
        self.intervals: dict[IntervalId, PlacedInterval] = {i.id: i for i in found.intervals}
        ordered = sorted(found.intervals, key=lambda i: (i.computation, i.low))
        self.owners: dict[Place, int | None] = {i.id: i.owner for i in ordered}
        self.owners |= {s.name: s.owner for s in found.sources}
        self._given = {place: owner for place, owner in self.owners.items() if owner in self.workers}

    def owner_of(self, place: Place) -> int:
        """The owner, of a place that has one."""
        owner = self.owners[place]
        return -1 if owner is None else owner

    def _kind(self, place: Place) -> str:
        return "" if isinstance(place, str) else self.intervals[place].computation

    def give(self, place: Place) -> int:
        """The worker that shall have a place: it has the fewest places of this computation, or of all."""
        kinds = Counter(owner for other, owner in self._given.items() if self._kind(other) == self._kind(place))
        counts = Counter(self._given.values())
        worker = min(self.workers, key=lambda worker: (counts[worker], kinds[worker], worker))
        self._given[place] = worker
        return worker

    def take(self, place: Place, owner: int) -> None:
        """A place is given to this worker."""
        self._given[place] = owner

    def spare(self, owner: int, to: int, moves: Mapping[Place, Move]) -> Place:
        """What `owner` gives away to `to`: of the computation of which it has most more."""
        mine = [place for place, has in self.owners.items() if has == owner and place not in moves]
        theirs = Counter(self._kind(place) for place, has in self.owners.items() if has == to)
        theirs.update(self._kind(place) for place, move in moves.items() if move.to == to)
        kinds = Counter(self._kind(place) for place in mine)
        return max(mine, key=lambda place: kinds[self._kind(place)] - theirs[self._kind(place)])


def _parts(places: Iterable[Place]) -> tuple[tuple[IntervalId, ...], tuple[str, ...]]:
    both = [*places]
    return tuple(p for p in both if not isinstance(p, str)), tuple(p for p in both if isinstance(p, str))


def assign(owners: Mapping[Place, int | None]) -> Assign:
    """Owners of places, as intervals and sources."""
    return Assign(
        {place: owner for place, owner in owners.items() if not isinstance(place, str)},
        {place: owner for place, owner in owners.items() if isinstance(place, str)},
    )


def refused(order: MapOrder, view: MapView) -> str:
    """Why an order cannot be carried out, or ""."""
    missing = [interval for interval in order.intervals if interval not in view.intervals]
    if missing or not order.intervals:
        return f"there are no intervals {missing}: list them, they may have been split or merged"
    if order.kind == "move":
        known = ", ".join(sorted(view.named)) or "none"
        return "" if order.to in view.named else f"there is no live worker {order.to!r}; there are {known}"
    rows = [view.intervals[interval] for interval in order.intervals]
    if order.kind == "merge":
        neighbours = all(a.computation == b.computation and a.high == b.low for a, b in pairwise(rows))
        return (
            "" if len(rows) > 1 and neighbours else "a merge names two or more neighbours of one computation, in order"
        )
    if order.kind != "split" or len(rows) != 1:
        return f"an order is a move, a split of one interval or a merge, not {order.kind!r} of {len(rows)} intervals"
    row, keys = rows[0], [*order.split_keys]
    inside = all(key > row.low and (row.high is None or key < row.high) for key in keys)
    if not keys or keys != sorted({*keys}) or not inside:
        return f"split keys lie inside of the interval, {row.low!r} to {row.high!r}, and ascend; {keys} do not"
    return ""
