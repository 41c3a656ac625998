"""Bugs of a combiner that comes to a store which has run without it."""

from __future__ import annotations

from typing import Any

from millwheel_storage.memory import handed_over
from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.memory.tables import MemoryTables
from tests.planted import Patches, only

EXACT = "tests/integration/test_combiner_later.py::test_each_record_counts_once_wherever_the_run_without_it_ends"
LOOPED = "tests/integration/test_combiner_later.py::test_in_a_loop_too"


@only(EXACT)
def ids_left_behind() -> Patches:
    """A combiner that comes later is not told what was delivered before."""
    original = MemoryTables.hand_over

    def hand_over(self: MemoryTables, subscription: Any, old: Any, new: Any, combiner: Any) -> None:
        original(self, subscription, old, new, combiner)
        for interval in new:
            self.delivered[interval], self.frontiers[interval] = {}, {}

    return {(MemoryTables, "hand_over"): hand_over}


@only(EXACT)
def outside_ids_left_behind() -> Patches:
    """A combiner that comes later is not told which ids of clients were taken before."""

    def forget(self: MemoryTables, subscription: Any, old: Any, new: Any) -> None:
        pass

    return {(MemoryTables, "_hand_over_outside_ids"): forget}


@only(EXACT)
def log_left_behind() -> Patches:
    """What only the log has is not handed over to a combiner that comes later."""
    original = handed_over.rearrange

    def rearrange(contents: MemoryContents, planned: Any) -> None:
        log, contents.log = contents.log, {}
        original(contents, planned)
        contents.log = log

    return {(handed_over, "rearrange"): rearrange}


@only(EXACT)
def quarantine_left_behind() -> Patches:
    """What waits in quarantine keeps the subscription that a combiner has taken over."""
    return {(MemoryTables, "requalify"): lambda self, computation, subscription, other: None}


@only(LOOPED)
def logs_left_behind() -> Patches:
    """What the head of a loop has logged is sent by it when its combiner is the head."""
    original = MemoryTables.hand_over

    def hand_over(self: MemoryTables, subscription: Any, old: Any, new: Any, combiner: Any) -> None:
        mine = {id_: {c for c in self.productions.get(id_, {}) if c[0] == subscription} for id_ in old}
        original(self, subscription, old, new, combiner)
        for id_, channels in mine.items():
            for channel in channels:
                self.productions[id_][channel] = self.productions[new[0]].pop(channel)

    return {(MemoryTables, "hand_over"): hand_over}
