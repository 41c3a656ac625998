"""Pipelines with loops under snapshots on a cluster: barriers go round between processes that die, freeze and are cut off."""

from __future__ import annotations

import random

import msgspec

from millwheel.model import SECOND
from millwheel.testing.faults.nemesis import Faults, Seeded
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.kernel import Kernel
from millwheel_storage.memory import MemoryStore
from tests.sim.cluster_cuts import SharedCutStore
from tests.sim.fleets import faults_of_cluster, leaves_of
from tests.sim.harness import ask_redrives
from tests.sim.hops import KEYS
from tests.sim.loop_cuts import drawn_loop, run_loop
from tests.sim.workload.drawing import START_US


def simulate_loop_cuts_on_a_cluster(seed: int, faults: Faults | None = None, orders: int | None = None) -> Kernel:
    """One seed, with so many orders if that is not drawn; raises `Violation` with the story when an invariant breaks."""
    kernel, rng = Kernel(seed, start_us=START_US), random.Random(f"loop cuts on a cluster {seed}")
    workload, graph = drawn_loop(seed, kernel, 50_000, 200_000, 500_000)
    faults = msgspec.structs.replace(faults_of_cluster(seed) if faults is None else faults, clock_step=0)
    until_us = 10 * SECOND
    workers, controllers = rng.choice((1, 2, 2, 3)), rng.choice((1, 2, 2))
    store = SharedCutStore(MemoryStore(lambda: kernel.now), graph, kernel)
    simulation = ClusterSimulation(
        graph=graph, tables={}, kernel=kernel, nemesis=Seeded(faults, kernel.rng), store=store,
        roles={"controller": controllers, "worker": workers}, faults_until_us=until_us,
    )  # fmt: skip
    for _ in range(rng.choice((0, 0, 1, 3)) if orders is None else orders):
        kernel.at(kernel.now + rng.randrange(until_us), simulation.order_something, [f"k{n}" for n in range(KEYS)])
    simulation.leaves = leaves_of(seed)
    simulation.on_mend = lambda: ask_redrives(store)
    simulation.hold_open = lambda: any(durable.fifo for durable in store.truth.durable.values())
    return run_loop(simulation, workload, store)
