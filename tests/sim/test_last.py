"""A partition that is discovered when all others have ended, in each kind of simulation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.effort import some
from tests.sim.cluster_cuts import simulate_cluster_cuts
from tests.sim.cuts import simulate_cuts
from tests.sim.fleets import simulate_cluster
from tests.sim.harness import simulate_seed
from tests.sim.quick import quick
from tests.sim.workload.drawing import draw

SEEDS = some([(simulate_cuts, 5), (simulate_seed, 107)], [(simulate_cluster, 9), (simulate_cluster_cuts, 5)])


@pytest.mark.parametrize(("simulate", "seed"), SEEDS, ids=lambda given: getattr(given, "__name__", str(given)))
def test_the_last_partition_comes_when_all_others_have_ended_and_is_read(
    simulate: Callable[[int], Any], seed: int
) -> None:
    assert quick(simulate)(seed).probes["partition discovered when all others had ended"] == 1


def test_each_moment_at_which_it_can_come_is_drawn_and_it_is_promised_unless_it_comes_last_of_all() -> None:
    drawn = [workload for seed in (26, 53, 80, 107) if (workload := draw(seed)).last is not None]
    assert [workload.last_when for workload in drawn] == ["quiet", "finished", "read", "over"]
    assert [bool(workload.last and workload.last.late) for workload in drawn] == [False, False, False, True]
