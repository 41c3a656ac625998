"""Seeds of a pipeline under snapshots: every declared epoch is one consistent cut, under every fault."""

from __future__ import annotations

import pytest

from tests.effort import some
from tests.sim.cuts import simulate_cuts
from tests.sim.quick import quick

SEEDS = some((0, 4, 6, 7, 11, 13, 81), (1, 2, 3, 5, 8, 9, 10, 12, *range(14, 24)))
WANTED = ("epoch declared", "epoch fenced", "channel cut", "message lost in a cut", "applied, reply lost: declare")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_epoch_that_is_declared_is_one_consistent_cut() -> None:
    probes = dict.fromkeys(WANTED, 0)
    for seed in SEEDS:
        kernel = quick(simulate_cuts)(seed)
        assert kernel.events > 300
        for name in WANTED:
            probes[name] += kernel.probes[name]
    assert all(probes.values()), probes


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate_cuts(0).trace_hash() == simulate_cuts(0).trace_hash()
