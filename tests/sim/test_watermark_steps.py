"""Each workload with watermarks in small steps and in one jump: everything that it leaves must be the same."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.model import SECOND
from millwheel.testing.faults.nemesis import Planned
from millwheel.testing.world.kernel import Kernel
from tests.effort import share
from tests.sim.harness import run_workload
from tests.sim.quick import quick
from tests.sim.workload.drawing import START_US, draw

ROWS = 100
"""Of each partition."""

SEEDS = (0, 1, 44, 11, 56, 57)
"""Those in whose workloads timers set timers, and whose end is known exactly."""


ORDER_OF_ARRIVAL = {"total", "count", "ids", "members", "open", "fired", "order", "held"}
"""Cells that do not depend on whether a record or a timer came first."""


def end_of(seed: int, jump_us: int) -> dict[str, Any]:
    """What a run without faults leaves in the state of its keys."""
    workload = draw(seed)
    assert any(stage.ticks and stage.exact and stage.honest for stage in workload.stages)
    assert not workload.poisoned
    assert not workload.feed
    workload.watermarks_jump(jump_us)
    kernel = Kernel(seed, start_us=START_US)
    for scripts in workload.scripts.values():
        for script in scripts:
            del script.rows[ROWS:], script.arrivals[ROWS:]
            script.arrivals = [at + kernel.now for at in script.arrivals]
            script.appears_at += kernel.now
    kept: list[Any] = []
    run_workload(seed, workload, kernel, Planned(), 0, 0, keep=lambda state, sinks: kept.append(state), whole=True)
    return {
        name: {
            key: {slot: value for slot, value in cells.items() if slot[0] in ORDER_OF_ARRIVAL}
            for key, cells in kept[0].get(name, {}).items()
        }
        for name in [stage.name for stage in workload.stages if stage.exact and stage.honest]
    }


@pytest.mark.parametrize("seed", share(SEEDS, 3))
def test_the_end_does_not_depend_on_how_far_watermarks_jump(seed: int) -> None:
    end = quick(end_of)
    assert end(seed, 1) == end(seed, SECOND) == end(seed, 10_000 * SECOND)
