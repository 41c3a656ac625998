"""Bugs of the master and the map: splits and merges that lose something, and a map that is applied twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from millwheel.cluster import ClusterMap, PlacedInterval, Placement, Reshaping
from millwheel.host.leading import ClusterController
from millwheel.host.led_watermarks import LedWatermarks
from millwheel.host.mapped import MappedOwnership
from millwheel.host.master import Master
from millwheel.host.standing import Standing
from millwheel.ids import IntervalId
from millwheel_storage.memory import MemoryStore
from millwheel_storage.memory.agreements import MemoryAgreements
from millwheel_storage.memory.tables import MemoryTables
from tests.planted import Patches, clustered, only

# --- splits and merges --------------------------------------------------------------------------------------------


@clustered
def split_is_lost() -> Patches:
    """A split is lost: what lies behind its key is in no interval of the map."""
    original = MemoryStore._spread

    def spread(self: MemoryStore, interval: IntervalId, new: Sequence[IntervalId]) -> None:
        original(self, interval, new)
        for part in new:
            del self.agreements.interval_owners[part]

    return {(MemoryStore, "_spread"): spread}


@clustered
def merge_forgets() -> Patches:
    """A merge forgets what was delivered to the second interval."""
    original = MemoryTables.unite

    def unite(self: MemoryTables, interval: IntervalId, others: Iterable[IntervalId]) -> None:
        others = [*others]
        for other in others:
            self.delivered.pop(other, None)
        original(self, interval, others)

    return {(MemoryTables, "unite"): unite}


@clustered
def merged_is_waited_for() -> Patches:
    """The watermark waits for ever for an interval that was merged into another one."""
    original = LedWatermarks._adjust

    def adjust(self: LedWatermarks, authority: Any, found: Any) -> None:
        retire, authority.retire = authority.retire, lambda name, interval: None
        original(self, authority, found)
        authority.retire = retire

    return {(LedWatermarks, "_adjust"): adjust}


@clustered
def outdated_decision() -> Patches:
    """A leader's decision about an older map is carried out on the newest one."""

    def current(self: MemoryAgreements, decision: Placement | Reshaping) -> bool:
        return decision.epoch == self.epoch

    return {(MemoryAgreements, "current"): current}


# --- the map ------------------------------------------------------------------------------------------------------


@clustered
def applied_twice() -> Patches:
    """A map is applied twice: an interval gets a second core while the first one recovers."""
    original = MappedOwnership._own

    def own(self: MappedOwnership, found: ClusterMap) -> None:
        self._starting.clear()
        original(self, found)

    return {(MappedOwnership, "_own"): own}


@only("tests/unit/host/test_mapped.py")
def applied_again() -> Patches:
    """A map is applied again: an interval that comes back gets a second core under the sequencer of the first."""
    original = MappedOwnership._take

    def take(self: MappedOwnership, placed: PlacedInterval) -> Any:
        self._used.pop(placed.id, None)
        yield from original(self, placed)

    return {(MappedOwnership, "_take"): take}


# --- placements ---------------------------------------------------------------------------------------------------


@clustered
def never_heard_again() -> Patches:
    """Whoever gets an interval is never heard about it: the watermark stays where it was."""
    return {(Standing, "resume"): lambda self: None}


@only("tests/unit/host/test_leading.py")
def not_asked_what_it_knows() -> Patches:
    """A worker that gets an interval is not asked what it knows of it, though its first words counted for nothing."""
    original = ClusterController._follow

    def follow(self: ClusterController, found: ClusterMap) -> None:
        self._fresh.clear()
        original(self, found)

    return {(ClusterController, "_follow"): follow}


@only("tests/unit/host/test_leading.py")
def refused_placement_is_forgotten() -> Patches:
    """What was let go of is asked for again when the store has refused the placement."""
    return {(Master, "refused"): lambda self: None}
