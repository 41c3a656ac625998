"""Bugs of a pipeline from which a computation is taken out."""

from __future__ import annotations

from typing import Any

from millwheel_storage.memory import handed_over
from millwheel_storage.memory.tables import MemoryTables
from millwheel_storage.schema import evolution
from tests.planted import Patches, only

EXACT = "tests/integration/test_drop.py::test_what_it_has_sent_counts_once_wherever_the_run_before_ends"


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
