"""Clusters under snapshots: every cut is one cut, whoever dies, freezes or leads meanwhile."""

from __future__ import annotations

from collections import Counter

import pytest

from millwheel import SECOND
from millwheel.ids import IntervalId
from millwheel.testing.faults.nemesis import NO_FAULTS, Seeded
from millwheel.testing.world.kernel import Kernel
from tests.effort import some
from tests.sim.cluster_cuts import run_cluster_stage, simulate_cluster_cuts
from tests.sim.cuts import START_US, Stage
from tests.sim.quick import quick

SEEDS = some((7, 18), range(6))
PROBES = (
    "channel cut",
    "controller died",
    "epoch declared",
    "interval split",
    "intervals merged",
    "leader changed",
    "message lost in a cut",
    "order carried out",
    "order refused",
    "process ended by its own lease",
    "worker died",
    "worker frozen",
)
"""What must happen somewhere among them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_seed_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    probes: Counter[str] = Counter()
    for seed in SEEDS:
        probes.update(quick(simulate_cluster_cuts)(seed).probes)
    assert not [name for name in PROBES if not probes[name]]


@pytest.mark.parametrize("seed", [0, 2, 9])
def test_without_faults_all_is_placed_once_and_the_run_ends(seed: int) -> None:
    kernel = simulate_cluster_cuts(seed, NO_FAULTS, orders=0)
    assert kernel.probes["epoch declared"] > 1
    assert kernel.probes["placement"] == 1


@pytest.mark.parametrize("seed", [0, 4])
def test_a_refused_row_goes_to_quarantine_whoever_gets_its_interval(seed: int) -> None:
    # Each worker knew only what its own last membership had seen, and the interval went to the other one: for ever.
    kernel = simulate_cluster_cuts(seed, NO_FAULTS, orders=0, refused="not", anonymous=True)
    assert 0 < kernel.probes["epoch refused"] <= 4
    assert kernel.probes["record quarantined"]


@pytest.mark.parametrize("seed", [0, 3])
def test_all_goes_back_when_somebody_takes_the_partitions_that_are_read(seed: int) -> None:
    """As `millwheel source drop` does it.  The map says nothing of it, and no epoch was declared any more."""
    kernel, stage, taken = Kernel(seed, start_us=START_US), Stage(seed, lines=40, every_ms=50), list[IntervalId]()

    def take() -> None:
        store = stage.store.inner
        begun = [row.interval for row in store.sources.values() if row.position and not row.finished]
        store.ownership.update({interval: store.next_sequencer() for interval in begun})
        taken.extend(begun)
        if not begun:
            kernel.at(kernel.now + SECOND // 100, take)

    run_cluster_stage(
        stage, kernel, Seeded(NO_FAULTS, kernel.rng), 10 * SECOND, {"worker": 2, "controller": 1},
        lambda simulation: kernel.at(kernel.now, take),
    )  # fmt: skip
    assert taken
    assert kernel.probes["placement"] == 2


@pytest.mark.slow
def test_rows_are_refused_while_processes_die() -> None:
    assert sum(simulate_cluster_cuts(seed, refused="that").probes["epoch refused"] for seed in (1, 2)) > 1
