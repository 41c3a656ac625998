"""Quarantines under snapshots: what waits is in each cut, and a redrive counts it once, whatever goes back meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from millwheel.testing.world.kernel import Kernel
from tests.effort import some
from tests.sim.cut_redrives import simulate_cut_redrives, simulate_cut_redrives_on_a_cluster
from tests.sim.quick import quick

WANTED = ("cut with a quarantine", "epoch declared", "quarantine redriven", "record quarantined")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("simulate", "seeds"),
    [
        (simulate_cut_redrives, some((0, 2, 4, 7), (1, 3, 5, 6, *range(8, 24)))),
        (simulate_cut_redrives_on_a_cluster, some((0, 1, 7), (2, 3, 4, 5, 6))),
    ],
)
def test_each_element_is_counted_or_waits(simulate: Callable[[int], Kernel], seeds: Sequence[int]) -> None:
    probes: Counter[str] = Counter()
    for seed in seeds:
        probes.update(quick(simulate)(seed).probes)
    assert all(probes[name] for name in WANTED), probes


def test_a_process_that_is_replaced_redrives_what_is_declared() -> None:
    assert simulate_cut_redrives(7).probes["quarantine redriven"]
