"""Pipelines with loops on a cluster: intervals of a loop move, split and merge while tokens hop, and leaders change."""

from __future__ import annotations

import random

import msgspec

from millwheel.model import SECOND
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.faults.nemesis import Faults, Seeded
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.kernel import Kernel, Violation, untold
from millwheel_storage.memory import MemoryStore
from tests.sim.fleets import faults_of_cluster, leaves_of
from tests.sim.harness import Verdict, ask_redrives
from tests.sim.hops import KEYS, draw_hops, judged
from tests.sim.workload.drawing import START_US


def simulate_hops_on_a_cluster(seed: int, faults: Faults | None = None) -> Verdict:
    """Run a seed with a loop on several workers; raises `Violation` with the story when an invariant breaks."""
    workload, kernel = draw_hops(seed), Kernel(seed, start_us=START_US)
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
    faults = faults_of_cluster(seed) if faults is None else faults
    if workload.clocked:
        faults = msgspec.structs.replace(faults, clock_step=0)
    assert workload.graph is not None
    until_us, rng = (8 + 2 * (seed % 3)) * SECOND, random.Random(f"cluster {seed}")
    nemesis = Seeded(faults, kernel.rng)
    honest = frozenset(workload.graph.computations)
    store = SharedWatchedStore(MemoryStore(lambda: kernel.now), workload.graph, kernel, honest)
    simulation = ClusterSimulation(
        graph=workload.graph, tables={}, kernel=kernel, nemesis=nemesis, store=store,
        roles={"controller": rng.choice((1, 2, 2, 3)), "worker": rng.choice((1, 2, 2, 3, 4))},
        faults_until_us=until_us, mend_us=until_us, strict=seed % 3 != 0,
    )  # fmt: skip
    simulation.leaves = leaves_of(seed)
    simulation.on_mend = lambda: ask_redrives(store)
    simulation.hold_open = lambda: any(durable.fifo for durable in store.truth.durable.values())
    if seed % 3 == 0:
        simulation.echoes = Echoes(store.truth, random.Random(f"echoes {seed}"), 100_000)
    for at in range(SECOND, until_us, SECOND) if seed % 2 else ():
        kernel.at(kernel.now + at, simulation.order_something, [f"k{number}" for number in range(KEYS)])
    return judged(seed, workload, simulation, store, nemesis)


def try_hops_on_a_cluster(seed: int) -> Verdict | str:
    """A verdict, or what broke."""
    try:
        with untold():
            return simulate_hops_on_a_cluster(seed)
    except Violation as violation:
        return f"hops on a cluster, seed {seed}: {violation.summary}"
