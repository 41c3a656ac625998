"""Bugs of what processes agree on: leases, the leader, the map, splits and merges.

They are planted into the memory store.  The state machine of both stores would notice each of them too, as Postgres has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from millwheel.cluster import Leader, Placement
from millwheel.ids import IntervalId
from millwheel_storage.memory import MemoryStore
from millwheel_storage.memory.agreements import MemoryAgreements
from millwheel_storage.memory.tables import MemoryTables
from tests.planted import Patches, only

AGREEMENTS = "tests/unit/storage/memory/test_agreements.py"
TABLES = "tests/unit/storage/memory/test_sharing.py"


@only(AGREEMENTS)
def placed_without_a_fence() -> Patches:
    """A placement changes owners and leaves sequencers as they were"""

    async def place(self: MemoryStore, placement: Placement) -> int | None:
        placed = self.agreements.place(placement)
        return placed and placed[0]

    return {(MemoryStore, "place"): place}


@only(AGREEMENTS)
def leases_rise_again() -> Patches:
    """A lease that has run out is renewed"""

    def renew(self: MemoryAgreements, incarnation: int, lease_us: int) -> bool:
        self._leases[incarnation] = self.clock() + lease_us
        return True

    return {(MemoryAgreements, "renew"): renew}


@only(AGREEMENTS)
def leader_without_a_new_epoch() -> Patches:
    """Whoever becomes leader has the epoch of the last one"""
    original = MemoryAgreements.lead

    def lead(self: MemoryAgreements, incarnation: int, lease_us: int) -> Leader | None:
        known = self.epoch
        found = original(self, incarnation, lease_us)
        if found is None or not known:
            return found
        self.epoch = known
        return msgspec.structs.replace(found, epoch=known)

    return {(MemoryAgreements, "lead"): lead}


@only(AGREEMENTS)
def dead_members_own() -> Patches:
    """Intervals are placed with members whose leases have run out"""
    return {(MemoryAgreements, "alive"): lambda self, incarnation: incarnation in self._leases}


@only(AGREEMENTS)
def decided_twice() -> Patches:
    """A decision whose reply was lost is not known again"""
    return {(MemoryAgreements, "repeated"): lambda self, decision: False}


@only(AGREEMENTS)
def taken_from_the_living() -> Patches:
    """Somebody who is no member takes intervals from live members"""
    return {(MemoryAgreements, "living"): lambda self: []}


@only(TABLES)
def divided_productions() -> Patches:
    """A split divides what one producer has sent, by the receivers' keys"""
    original = MemoryTables.copy_ids

    def copy_ids(self: MemoryTables, interval: IntervalId, new: Iterable[IntervalId]) -> None:
        new = [*new]
        original(self, interval, new)
        for channel, rows in self.productions.get(interval, {}).items():
            moved = {sequence: row for sequence, row in rows.items() if row[0] >= "m"}
            for sequence in moved:
                del rows[sequence]
            self.productions.setdefault(new[-1], {})[channel] = moved

    return {(MemoryTables, "copy_ids"): copy_ids}


@only(TABLES)
def forgotten_ids() -> Patches:
    """The part that a split makes does not know what was delivered to the whole"""
    return {(MemoryTables, "copy_ids"): lambda self, interval, new: None}


@only(TABLES)
def smaller_frontier() -> Patches:
    """A merge keeps the first interval's frontier, though the other one has heard of a larger"""
    original = MemoryTables.unite

    def unite(self: MemoryTables, interval: IntervalId, others: Iterable[IntervalId]) -> None:
        known: dict[Any, Any] = dict(self.frontiers.get(interval, {}))
        original(self, interval, others)
        self.frontiers.setdefault(interval, {}).update(known)

    return {(MemoryTables, "unite"): unite}
