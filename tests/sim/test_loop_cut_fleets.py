"""Loops under snapshots on a cluster: every declared epoch is one cut, its logs included, whoever dies, freezes or leads."""

from __future__ import annotations

from collections import Counter

import pytest

from millwheel.testing.faults.nemesis import NO_FAULTS
from tests.effort import some
from tests.sim.loop_cut_fleets import simulate_loop_cuts_on_a_cluster
from tests.sim.quick import quick

SEEDS = some((1, 11, 35), (0, 3, 6, 7, 19))
PROBES = (
    "channel cut",
    "controller died",
    "cut with a log",
    "leader changed",
    "message lost in a cut",
    "process ended by its own lease",
    "productions resent after restart",
    "told twice: RoundAnswered",
    "worker died",
    "worker frozen",
)
"""What must happen somewhere among them."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_seed_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    probes: Counter[str] = Counter()
    for seed in SEEDS:
        probes.update(quick(simulate_loop_cuts_on_a_cluster)(seed).probes)
    assert not [name for name in PROBES if not probes[name]]


@pytest.mark.parametrize("seed", [35])
def test_without_faults_all_is_placed_once_and_logs_are_cut(seed: int) -> None:
    kernel = simulate_loop_cuts_on_a_cluster(seed, NO_FAULTS, orders=0)
    assert kernel.probes["placement"] == 1
    assert kernel.probes["cut with a log"]
