"""Clusters under snapshots in the simulator: the pipeline of `cuts`, while processes die, freeze and are cut off."""

from __future__ import annotations

import random
from collections.abc import Callable

from millwheel import SECOND
from millwheel.cluster import Reshaping
from millwheel.ids import IntervalId
from millwheel.testing.checks.cuts import CutStore
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.faults.nemesis import Faults, Nemesis, Seeded
from millwheel.testing.world.fleet import ClusterSimulation, Roles
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel_storage.memory import MemoryStore
from tests.sim.cuts import START_US, Stage, small_epochs
from tests.sim.fleets import faults_of_cluster, leaves_of

KEYS = ("is", "not", "or", "p1", "p2", "that")
"""Where operators split."""


class SharedCutStore(CutStore, SharedWatchedStore):
    """A shared store of which only declared epochs may be seen."""

    async def reshape(self, reshaping: Reshaping) -> tuple[int, tuple[IntervalId, ...]] | None:
        """See `ClusterStore`; what is visible stays as it was (I23)."""
        answer = await super().reshape(reshaping)
        self._compare("a split or a merge")
        return answer


def run_cluster_stage(
    stage: Stage,
    kernel: Kernel,
    nemesis: Nemesis,
    until_us: int,
    roles: Roles,
    prepare: Callable[[ClusterSimulation], None] = lambda simulation: None,
) -> Kernel:
    """Run it to its end, under a nemesis."""
    store = SharedCutStore(MemoryStore(lambda: kernel.now), stage.graph, kernel)
    stage.store, store.on_cut = store, stage.check_cut
    store.inner.constraint = stage.constraint
    simulation = ClusterSimulation(
        graph=stage.graph, tables=stage.pipeline.tables, kernel=kernel, nemesis=nemesis, store=store,
        roles=roles, faults_until_us=until_us,
    )  # fmt: skip
    prepare(simulation)
    stage.let_last_come()
    try:
        simulation.run()
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}", kernel.story()) from error
    stage.check_end()
    return kernel


def simulate_cluster_cuts(
    seed: int, faults: Faults | None = None, orders: int | None = None, refused: str = "", anonymous: bool = False
) -> Kernel:
    """One seed, with so many orders if that is not drawn; raises `Violation` with the story when an invariant breaks.

    The database refuses the sink rows of the word `refused`.  When all are `anonymous`, nobody gets what it had.
    """
    kernel, rng = Kernel(seed, start_us=START_US), random.Random(f"cluster cuts {seed}")
    if faults is None:
        faults = faults_of_cluster(seed)
    with small_epochs(seed):
        nemesis = Seeded(faults, kernel.rng)
        roles = {"worker": rng.choice((1, 2, 2, 3)), "controller": rng.choice((1, 2, 2))}
        drawn = rng.choice((0, 2, 5))

        def order(simulation: ClusterSimulation) -> None:
            simulation.anonymous, simulation.leaves = anonymous, leaves_of(seed)
            for _ in range(drawn if orders is None else orders):
                kernel.at(kernel.now + kernel.rng.randrange(10 * SECOND), simulation.order_something, [*KEYS])

        stage = Stage(seed)
        stage.refused = refused
        return run_cluster_stage(stage, kernel, nemesis, 10 * SECOND, roles, order)
