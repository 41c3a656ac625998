"""Clusters under snapshots in the simulator: the pipeline of `cuts`, while processes die, freeze and are cut off."""

from __future__ import annotations

import random
from unittest.mock import patch

from millwheel import SECOND, limits
from millwheel.testing.checks.cuts import CutStore
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.faults.nemesis import Faults, Nemesis, Seeded
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel_storage.memory import MemoryStore
from tests.sim.cuts import START_US, Stage
from tests.sim.fleets import faults_of_cluster


class SharedCutStore(CutStore, SharedWatchedStore):
    """A shared store of which only declared epochs may be seen."""


def run_cluster_stage(
    stage: Stage, kernel: Kernel, nemesis: Nemesis, until_us: int, workers: int, controllers: int
) -> Kernel:
    """Run it to its end, under a nemesis."""
    store = SharedCutStore(MemoryStore(lambda: kernel.now), stage.graph, kernel)
    stage.store, store.on_cut = store, stage.check_cut
    simulation = ClusterSimulation(
        graph=stage.graph, tables=stage.pipeline.tables, kernel=kernel, nemesis=nemesis, store=store,
        roles={"controller": controllers, "worker": workers}, faults_until_us=until_us,
    )  # fmt: skip
    try:
        simulation.run()
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}", kernel.story()) from error
    stage.check_end()
    return kernel


def simulate_cluster_cuts(seed: int, faults: Faults | None = None) -> Kernel:
    """One seed; raises `Violation` with the story when an invariant breaks."""
    kernel, rng = Kernel(seed, start_us=START_US), random.Random(f"cluster cuts {seed}")
    if faults is None:
        faults = faults_of_cluster(seed)
    with patch.object(limits, "EPOCH_LIMIT_WRITES", 12 if seed % 4 == 1 else limits.EPOCH_LIMIT_WRITES):
        nemesis = Seeded(faults, kernel.rng)
        return run_cluster_stage(
            Stage(seed), kernel, nemesis, 10 * SECOND, rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 2))
        )
