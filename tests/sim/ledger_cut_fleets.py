"""The ledgers under snapshots on clusters: ids of outside clients, expiry, timers, holds, and intervals that split."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import msgspec

from millwheel.cluster import Reshaping
from millwheel.ids import IntervalId
from millwheel.model import SECOND
from millwheel.testing.checks.ending import check_end, delivered
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.faults.nemesis import Seeded
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel_storage.memory import MemoryStore
from tests.sim.fleets import faults_of_cluster, leaves_of, workload_of
from tests.sim.harness import end_sources, let_last_come, mend, run_shrunk, unmended
from tests.sim.ledger_cuts import LedgerCuts, forget_soon
from tests.sim.workload.drawing import START_US
from tests.sim.workload.expecting import check_state
from tests.sim.workload.ledger import KEYS

UNTIL_US = 10 * SECOND


class SharedLedgerCuts(LedgerCuts, SharedWatchedStore):
    """The store of a cluster, with what must be true of each cut."""

    async def reshape(self, reshaping: Reshaping) -> tuple[int, tuple[IntervalId, ...]] | None:
        """See `ClusterStore`; what is visible stays as it was (I23)."""
        logs = [(self.inner.intervals[interval], self.valid_log(interval)) for interval in reshaping.intervals]
        take_over = self.tables.reshaped

        def reshaped(*intervals: Any) -> None:  # the logs of these intervals were folded before
            for row, log in logs:
                self.tables.take(row, log)
            take_over(*intervals)

        with patch.object(self.tables, "reshaped", reshaped):
            answer = await super().reshape(reshaping)
        self._compare("a split or a merge")
        return answer


class Everybody(set[int]):
    """All processes."""

    def __contains__(self, process: object) -> bool:
        return True


def simulate_ledger_cuts_on_a_cluster(seed: int) -> Kernel:
    """One seed; raises `Violation` with the story when an invariant breaks."""
    workload, rng = workload_of(seed), random.Random(f"ledger cuts on a cluster {seed}")
    short = forget_soon(workload, rng)
    workload.graph = msgspec.structs.replace(workload.graph, snapshot_every_us=rng.choice((50_000, 200_000, 500_000)))
    kernel = Kernel(seed, start_us=START_US)
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
            script.appears_at += kernel.now
    faults = msgspec.structs.replace(faults_of_cluster(seed), clock_step=0)
    store = SharedLedgerCuts(MemoryStore(lambda: kernel.now), workload.graph, kernel, workload.honest)
    store.wire.snapshots = Everybody()
    store.workload, store.on_cut, store.forgets = workload, store.check_cut, short
    store.inner.constraint = workload.world.constraint
    simulation = ClusterSimulation(
        graph=workload.graph, tables=workload.tables, kernel=kernel, nemesis=Seeded(faults, kernel.rng), store=store,
        roles={"controller": rng.choice((1, 2, 2)), "worker": rng.choice((1, 2, 2, 3))}, faults_until_us=UNTIL_US,
    )  # fmt: skip
    simulation.on_mend = lambda: mend(workload, store)
    simulation.hold_open = lambda: unmended(workload, store)
    simulation.leaves = leaves_of(seed)
    if workload.feed != "idle":
        kernel.at(kernel.now, end_sources, store, workload)
    let_last_come(store, workload)
    for _ in range(rng.choice((0, 2, 5))):
        at = kernel.now + rng.randrange(UNTIL_US)
        kernel.at(at, simulation.order_something, [side + key for side in "lr" for key in KEYS])
    run_shrunk(simulation, workload.exotic)
    check_end(store)
    if kept := delivered(store.inner):
        raise Violation(f"I15: {kept} record ids are kept at the end", kernel.story())
    if not short:
        check_state(workload, store.inner.key_state, bool(kernel.probes["record quarantined"]))
    if workload.world.breaches:
        raise Violation(workload.world.breaches[0], kernel.story())
    return kernel
