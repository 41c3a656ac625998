"""Every crash point of a change that is made on purpose under snapshots.

Whatever breaks at whichever decision, each cut is one cut, and the orders are settled.
"""

from __future__ import annotations

import random
from typing import Final

import pytest

from millwheel import SECOND
from millwheel.cluster import MapOrder
from millwheel.testing.faults.nemesis import NO_FAULTS, Action, Seeded
from millwheel.testing.world.calls import run
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.kernel import Kernel, Violation
from tests import effort
from tests.sim.breaks import strike_all
from tests.sim.cluster_cuts import run_cluster_stage
from tests.sim.cuts import START_US, Stage

DECISIONS: Final = frozenset({"declare", "leave", "orders", "place", "reshape"})
"""Orders are read and settled by steps of one name."""
BREAKS: Final[tuple[Action, ...]] = ("crash before", "crash after", "lost", "absent")
ORDERED_US: Final = 1_500_000
UNTIL_US: Final = 3 * SECOND


class OneBreak(Seeded):
    """One fault, at the n-th decision since the orders were given."""

    def __init__(self, kernel: Kernel, at: int = -1, action: Action = "") -> None:
        super().__init__(NO_FAULTS, random.Random(1))
        self._kernel, self._at, self._action = kernel, at, action
        self.decisions: list[str] = []

    def strike(self, step: str) -> Action:
        """The planned fault when its step has come."""
        if step not in DECISIONS or self._kernel.now < START_US + ORDERED_US:
            return ""
        self.decisions.append(step)
        if len(self.decisions) - 1 != self._at:
            return ""
        self.struck[self._action] += 1
        return self._action


def changed(at: int = -1, action: Action = "") -> OneBreak:
    """A run in which an interval is split and another one moved; raises `Violation` when it does not end as it must."""
    kernel = Kernel(0, start_us=START_US)
    nemesis = OneBreak(kernel, at, action)

    def order(simulation: ClusterSimulation) -> None:
        kernel.at(kernel.now + ORDERED_US, give, simulation)

    def give(simulation: ClusterSimulation) -> None:
        store = simulation.store
        count = next(row for row in store.inner.intervals.values() if row.computation == "Count" and row.low == "")
        meet = next(row for row in store.inner.intervals.values() if row.computation == "Meet" and row.low == "")
        run(store.order(MapOrder("split", (count.id,), split_keys=("be",))))
        run(store.order(MapOrder("move", (meet.id,), to=simulation.live("worker")[0].member.name)))

    stage = Stage(SEED)
    run_cluster_stage(stage, kernel, nemesis, UNTIL_US, {"worker": 2, "controller": 2}, order)
    if run(stage.store.orders()):  # type: ignore[attr-defined]
        raise Violation("I21: an order is not settled at the end", kernel.story())
    if not any(row.low == "be" for row in stage.store.inner.intervals.values()):
        raise Violation("I21: an interval was not split", kernel.story())
    return nemesis


AFTER: Final = 4
"""Decisions after the placement: the move is settled."""
GATE_STRIDE: Final = 7
SEED: Final = 0
"""Of a pipeline that is not over when the orders are given."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_break_at_every_decision_of_a_planned_change_ends_as_it_must() -> None:
    steps = changed().decisions
    assert "reshape" in steps
    first = steps[: steps.index("place", steps.index("reshape")) + AFTER]
    assert {*first} == DECISIONS
    plans = effort.share([(at, action) for at in range(len(first)) for action in BREAKS], GATE_STRIDE)
    planned, struck, wrong = strike_all(first, [*plans], changed)
    assert not wrong, wrong
    assert struck == planned
