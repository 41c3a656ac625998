"""Seeds of pipelines with loops under snapshots: every declared epoch is one consistent cut, its logs included."""

from __future__ import annotations

import pytest

from tests.effort import some
from tests.sim.loop_cuts import simulate_loop_cuts
from tests.sim.quick import quick

SEEDS = some((7, 19), (1, 14))
WANTED = ("epoch declared", "cut with a log", "channel cut", "message lost in a cut")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_epoch_of_a_loop_is_one_consistent_cut() -> None:
    probes = dict.fromkeys(WANTED, 0)
    for seed in SEEDS:
        kernel = quick(simulate_loop_cuts)(seed)
        for name in WANTED:
            probes[name] += kernel.probes[name]
    assert all(probes.values()), probes
