"""Bugs of a pipeline that goes on under other split keys."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import msgspec

from millwheel.host.adoption import Adoption
from millwheel_storage.memory.tables import MemoryTables
from millwheel_storage.schema import evolution, recuts
from tests.planted import Patches, only

EXACT = "tests/integration/test_recut.py::test_each_record_counts_once_wherever_the_run_before_ends"
ORDER = "tests/integration/test_recut_order.py::test_what_was_sent_before_the_cut_comes_first"
SHARDS = "tests/integration/test_recut.py::test_a_combiner_gets_other_shards"


@only(EXACT)
def the_first_half_keeps_the_ids() -> Patches:
    """An interval that is cut off by other split keys is not told what was delivered before."""

    def copy_ids(self: MemoryTables, interval: Any, new: Any) -> None:
        for other in new:
            self.delivered[other], self.frontiers[other] = {}, {}

    return {(MemoryTables, "copy_ids"): copy_ids}


@only(EXACT)
def productions_of_the_merged_are_gone() -> Patches:
    """What an interval has sent is forgotten when other split keys make it a part of its neighbour."""
    original = MemoryTables.unite

    def unite(self: MemoryTables, interval: Any, others: Any) -> None:
        for other in others:
            self.productions.pop(other, None)
        original(self, interval, others)

    return {(MemoryTables, "unite"): unite}


@only(ORDER)
def parts_start_at_once() -> Patches:
    """A part that other split keys cut off starts before receivers have what the whole interval had sent."""

    def behind(self: Adoption, places: Any) -> Generator[Any, Any, set[Any]]:
        yield from ()
        return set()

    return {(Adoption, "behind"): behind}


@only(ORDER)
def nobody_is_followed() -> Patches:
    """A part that is cut off by other split keys does not know who had sent for its keys."""
    return {(MemoryTables, "_sent_by"): lambda self, interval: set()}


@only(SHARDS)
def each_shard_knows_its_own() -> Patches:
    """Another number of shards leaves each interval of the combiner with what it was given itself."""
    original = recuts.recuts

    def alone(stored: Any, shape: Any) -> Iterator[Any]:
        return (msgspec.structs.replace(it, mixed=False) for it in original(stored, shape))

    return {(evolution, "recuts"): alone}


@only("tests/integration/test_recut.py::test_a_row_counts_under_one_key_when_the_keys_change")
def other_keys_are_not_heeded() -> Patches:
    """Intervals are not told what the others have run when a key function gives other keys."""
    return {(recuts, "_rekeyed"): lambda stored, shape: iter(())}
