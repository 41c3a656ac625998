"""Bugs of a pipeline from which a computation is taken out, or a combiner."""

from __future__ import annotations

from typing import Any

from millwheel_storage.memory import handed_over
from millwheel_storage.memory.tables import MemoryTables
from millwheel_storage.schema import evolution
from tests.planted import Patches, only

EXACT = "tests/integration/test_drop.py::test_what_it_has_sent_counts_once_wherever_the_run_before_ends"


HANDED_BACK = "tests/integration/test_combiner_goes.py::test_each_record_counts_once_wherever_the_run_with_it_ends"


@only(EXACT)
def what_it_has_sent_goes_with_it() -> Patches:
    """What a computation that goes has sent, and nobody has taken yet, goes too."""
    return {(handed_over, "heir"): lambda subscription, shape: None}


@only(EXACT)
def a_log_is_not_folded_first() -> Patches:
    """A computation goes, and what it has sent is looked for in the tables while it is still in the log."""

    def moves(self: evolution.Plan) -> bool:
        return bool(self.handovers or self.recuts)

    return {(evolution.Plan, "moves"): moves}


@only(EXACT)
def ids_of_the_receiver_go_with_the_sender() -> Patches:
    """What the receiver has been delivered is forgotten when the computation that has sent it goes."""
    original = MemoryTables.adopt

    def adopt(self: MemoryTables, subscription: Any, old: Any, first: Any) -> None:
        original(self, subscription, old, first)
        self.delivered[first], self.frontiers[first] = {}, {}

    return {(MemoryTables, "adopt"): adopt}


@only(HANDED_BACK)
def what_is_gathered_goes() -> Patches:
    """What a combiner that goes has gathered goes with it."""
    return {(MemoryTables, "give_gathered"): lambda self, parts, first, channel: None}


@only(HANDED_BACK)
def ids_of_the_combiner_are_not_told() -> Patches:
    """A computation is not told what its combiner was delivered when that goes."""
    original = MemoryTables.hand_back

    def hand_back(self: MemoryTables, subscription: Any, merged: Any, old: Any, new: Any) -> None:
        for interval in old:
            self.delivered.pop(interval, None)
        original(self, subscription, merged, old, new)

    return {(MemoryTables, "hand_back"): hand_back}


@only(HANDED_BACK)
def merged_values_are_new() -> Patches:
    """What a combiner that goes has sent is no longer known to be taken."""
    original = MemoryTables.hand_back

    def hand_back(self: MemoryTables, subscription: Any, merged: Any, old: Any, new: Any) -> None:
        for interval in new:
            tables: tuple[dict[Any, Any], ...] = (self.delivered, self.frontiers)
            for of in tables:
                of[interval] = {channel: it for channel, it in of.get(interval, {}).items() if channel[0] != merged}
        original(self, subscription, merged, old, new)

    return {(MemoryTables, "hand_back"): hand_back}
