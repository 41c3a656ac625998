"""Members of a cluster, their leases, the leader and the map, as dicts: one part of `MemoryStore`.

Lives here: the rows of `ClusterStore` and the rules of its answers.  Never here: sequencers and logs, which the store has.
Invariant: the answers are those of the statements `joining` and `placing` on Postgres, with another clock.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import msgspec

from millwheel import limits
from millwheel.cluster import (
    HotKey,
    Leader,
    MapOrder,
    Member,
    PlacedSource,
    Placement,
    Reshaping,
    StandsAt,
    Standstill,
    in_order,
)
from millwheel.errors import StoreError
from millwheel.ids import IntervalId
from millwheel.ports import WallClock
from millwheel_storage.decisions import Alive, digest


class Holdings(msgspec.Struct, frozen=True):
    """What a member owned, or what a decision is about: intervals and sources."""

    intervals: Set[IntervalId]
    sources: Set[str]


class MemoryAgreements:
    """One cluster.  `clock` is the clock of the database, us."""

    def __init__(self, clock: WallClock) -> None:
        self.clock = clock
        self.version = 0
        self.epoch = 0
        self.interval_owners: dict[IntervalId, int | None] = {}
        self.source_owners: dict[str, int | None] = {}
        self.members: dict[int, Member] = {}
        self._joined: dict[bytes, int] = {}
        self._leases: dict[int, int | None] = {}
        """By incarnation, until when; None when it is over for ever."""
        self._leader: int | None = None
        self._leads_until = 0
        self._decision = b""
        self._incarnation = 0
        self.shape = b""
        """`decisions.shape_digest` of what was opened last."""
        self._orders: dict[int, tuple[MapOrder, str | None]] = {}
        """By number: what an operator wants, and None while it is open."""
        self._ordered = 0
        """The number of the last order."""
        self._hot: dict[int, Sequence[HotKey]] = {}
        self._stands: dict[int, Sequence[Standstill]] = {}

    def expect(self, intervals: Set[IntervalId], sources: Set[str]) -> None:
        """The map covers these intervals and sources, and no others."""
        if (self.interval_owners.keys(), self.source_owners.keys()) != (intervals, sources):
            self.interval_owners = {id_: self.interval_owners.get(id_) for id_ in sorted(intervals)}
            self.source_owners = {name: self.source_owners.get(name) for name in sorted(sources)}
            self.version += 1

    # Members

    def alive(self, incarnation: int | None) -> bool:
        """Whether a member's lease is valid now."""
        until = None if incarnation is None else self._leases.get(incarnation)
        return until is not None and until > self.clock()

    def join(self, member: Member, key: bytes, lease_us: int) -> Member:
        """See `ClusterStore.join`; a number is used up in any case, as on Postgres."""
        self._incarnation += 1
        if key not in self._joined:
            self._joined[key] = self._incarnation
            self.members[self._incarnation] = msgspec.structs.replace(member, incarnation=self._incarnation)
            self._leases[self._incarnation] = self.clock() + lease_us
        return self._shown(self._joined[key])

    def _shown(self, incarnation: int) -> Member:
        return msgspec.structs.replace(self.members[incarnation], alive=self.alive(incarnation))

    def all_members(self) -> tuple[Member, ...]:
        """In the order of their incarnations."""
        return tuple(self._shown(incarnation) for incarnation in sorted(self.members))

    def renew(self, incarnation: int, lease_us: int) -> bool:
        """See `ClusterStore.renew`."""
        if incarnation not in self._leases:
            return False
        self._leases[incarnation] = self.clock() + lease_us if self.alive(incarnation) else None
        return self.alive(incarnation)

    def leave(self, incarnation: int) -> Holdings | None:
        """Forget a member; what it owned, or None when there is no such member."""
        if self.members.pop(incarnation, None) is None:
            return None
        self._joined = {key: other for key, other in self._joined.items() if other != incarnation}
        del self._leases[incarnation]
        if self._leader == incarnation:
            self._leader = None
        intervals = {id_ for id_, owner in self.interval_owners.items() if owner == incarnation}
        sources = {name for name, owner in self.source_owners.items() if owner == incarnation}
        self.interval_owners.update(dict.fromkeys(intervals))
        self.source_owners.update(dict.fromkeys(sources))
        self.version += 1
        return Holdings(intervals, sources)

    # The leader

    def lead(self, incarnation: int, lease_us: int) -> Leader | None:
        """See `ClusterStore.lead`."""
        other_leads = self._leader not in (None, incarnation) and self._leads_until > self.clock()
        if other_leads or not self.alive(incarnation):
            return None
        if self._leader != incarnation:
            self._leader = incarnation
            self.epoch += 1
        self._leads_until = self.clock() + lease_us
        return Leader(incarnation, self.epoch, self.members[incarnation].address)

    def leader(self) -> Leader | None:
        """Who leads now."""
        if self._leader is None or self._leads_until <= self.clock():
            return None
        return Leader(self._leader, self.epoch, self.members[self._leader].address)

    # The map

    def living(self) -> list[Alive]:
        """Members whose leases are valid, by incarnation."""
        return [Alive(row, self._leases[row.incarnation] or 0) for row in self.all_members() if row.alive]

    def taken_outside(self, intervals: Set[IntervalId]) -> None:
        """Somebody who is no member took intervals."""
        taken = {id_ for id_ in intervals if self.interval_owners.get(id_) is not None}
        if taken:
            self.interval_owners.update(dict.fromkeys(taken))
            self.version += 1

    def disown_all(self) -> None:
        """No member owns anything any more."""
        owners = {*self.interval_owners.values(), *self.source_owners.values()}
        if owners - {None}:
            self.interval_owners = dict.fromkeys(self.interval_owners)
            self.source_owners = dict.fromkeys(self.source_owners)
            self.version += 1

    def current(self, decision: Placement | Reshaping) -> bool:
        """Whether a decision was made on the map as it is, by who leads."""
        return (decision.epoch, decision.version) == (self.epoch, self.version)

    def repeated(self, decision: Placement | Reshaping) -> bool:
        """Whether this decision made the map what it is."""
        known = (self.epoch, self.version, self._decision)
        return known == (decision.epoch, decision.version + 1, digest(decision))

    def decided(self, decision: Placement | Reshaping) -> int:
        """A decision was carried out: the new version."""
        self.version += 1
        self._decision = digest(decision)
        return self.version

    def place(self, placement: Placement) -> tuple[int, Holdings] | None:
        """See `ClusterStore.place`; the version, and what needs new sequencers."""
        if self.repeated(placement):
            return self.version, Holdings(frozenset(), frozenset())
        owners = {*placement.intervals.values(), *placement.sources.values()} - {None}
        if not self.current(placement) or not all(self.alive(owner) for owner in owners):
            return None
        for asked in (*placement.sources, *placement.intervals):
            if asked not in self.interval_owners and asked not in self.source_owners:
                raise StoreError(f"{asked!r} is no interval and no source of the map")
        self.interval_owners.update(placement.intervals)
        self.source_owners.update(placement.sources)
        return self.decided(placement), Holdings(placement.intervals.keys(), placement.sources.keys())

    def placed_sources(self) -> tuple[PlacedSource, ...]:
        """In the order of their names."""
        return tuple(PlacedSource(name, self.source_owners[name]) for name in sorted(self.source_owners))

    # Orders

    def order(self, order: MapOrder) -> int:
        """See `ClusterStore.order`."""
        if (order, None) not in self._orders.values():
            self._ordered += 1
            self._orders[self._ordered] = (order, None)
        return max(number for number, (wanted, _) in self._orders.items() if wanted == order)

    def orders(self) -> list[tuple[int, MapOrder]]:
        """See `ClusterStore.orders`."""
        return [(number, order) for number, (order, refusal) in self._orders.items() if refusal is None]

    def note_hot_keys(self, incarnation: int, keys: Sequence[HotKey]) -> None:
        """See `ClusterStore.note_hot_keys`."""
        members = {member.incarnation for member in self.all_members()}
        noted = {**self._hot, incarnation: keys}
        self._hot = {member: keys for member, keys in noted.items() if member in members}

    def hot_keys(self) -> list[HotKey]:
        """See `ClusterStore.hot_keys`."""
        members = {member.incarnation for member in self.all_members()}
        return in_order(key for member, keys in self._hot.items() if member in members for key in keys)

    def note_standstills(self, incarnation: int, found: Sequence[Standstill]) -> None:
        """See `ClusterStore.note_standstills`."""
        noted = {**self._stands, incarnation: found}
        self._stands = {member: said for member, said in noted.items() if member in self.members}

    def standstills(self) -> list[StandsAt]:
        """See `ClusterStore.standstills`."""
        members = [member for member in self.all_members() if member.alive]
        return [StandsAt(m.name, one) for m in members for one in self._stands.get(m.incarnation, ())]

    def settle(self, epoch: int, number: int, refusal: str) -> bool:
        """See `ClusterStore.settle_order`."""
        if epoch != self.epoch:
            return False
        if number in self._orders and self._orders[number][1] is None:
            self._orders[number] = (self._orders[number][0], refusal)
        oldest = number - limits.SETTLED_ORDERS
        self._orders = {n: kept for n, kept in self._orders.items() if n > oldest or kept[1] is None}
        return True

    def refusal(self, number: int) -> str | None:
        """See `ClusterStore.refusal`."""
        if number not in self._orders:
            raise StoreError(f"there is no order {number}")
        return self._orders[number][1]

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """See `MemoryStore.tables`."""
        return {
            "cluster": [(self.version,)],
            "cluster_leader": [(self.epoch, self._leader)],
            "cluster_member": [(row.incarnation, row.name, row.role, row.address) for row in self.all_members()],
            "interval_owner": sorted(self.interval_owners.items()),
            "source_owner": sorted(self.source_owners.items()),
            "hot_key": [(member,) for member in sorted(self._hot)],
            "standstill": [(member,) for member in sorted(self._stands)],
            "map_order": [(number, refusal) for number, (_, refusal) in self._orders.items()],
        }
