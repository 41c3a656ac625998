"""The ledgers of `harness` where runs may be under snapshots: ids of outside clients, expiry, timers, holds, versions.

Each process of a seed is under snapshots, or in every other seed under either durability, as somebody has started it.  What
a run leaves, the next one goes on with.  After each declared epoch, the first stages have counted each record before the
stored positions once, whatever its client has sent again (I22), and sink rows are what the state counts (I24).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from millwheel.bundles import Checkpoint
from millwheel.graph import Graph
from millwheel.model import SECOND
from millwheel.testing.checks.either import EitherStore
from millwheel.testing.checks.ending import check_end, delivered
from millwheel.testing.faults.nemesis import Seeded
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore
from tests.sim import mayfly
from tests.sim.harness import (
    Versions,
    ask_redrives,
    end_sources,
    fall_silent,
    faults_of,
    let_last_come,
    mend,
    run_shrunk,
    unmended,
)
from tests.sim.kept import Kept, keep, put_back
from tests.sim.workload.drawing import SILENT_US, START_US, Workload, draw
from tests.sim.workload.expecting import check_commit, check_state

UNTIL_US = 8 * SECOND
SPANS_US = (200_000, 1_500_000)
"""How long a process runs until somebody starts the next one, us."""


class LedgerCuts(EitherStore):
    """The store of a workload, with what must be true of each cut."""

    workload: Workload
    forgets = False
    """Ids of outside clients expire within the run."""

    def on_durable(self, computation: str, image: Checkpoint) -> None:
        """See `EitherStore`."""
        check_commit(self.workload)(self, computation, image)

    def check_cut(self) -> None:
        """An epoch is declared."""
        if self.workload.world.breaches:
            self.truth.fail(self.workload.world.breaches[0])
        self.truth.kernel.probes["cut of a ledger"] += 1
        if not self.forgets and not self.workload.poisoned and not self.truth.kernel.probes["record quarantined"]:
            self._check_first_stages()

    def _check_first_stages(self) -> None:
        """The first stages have what comes before the positions, and what runs under checkpoints have had since: once."""
        for stage in self.workload.stages:
            if not stage.exact or "expire_after" in stage.settings:
                continue
            if any(stream not in self.workload.scripts for stream, _ in stage.inputs):
                continue
            wanted = {id_ for stream, _ in stage.inputs for id_ in self._consumed(stage.name, stream)}
            found = Counter[str]()
            for cells in self.truth.durable[stage.name].state.values():
                entries = {entry: int(value) for (cell, entry), value in cells.items() if cell in ("ids", "known")}
                found.update({id_: times for id_, times in entries.items() if id_})
            if found != dict.fromkeys(wanted, 1):
                missing, extra = wanted - found.keys(), found - Counter(wanted)
                self.truth.fail(f"I22: {stage.name} lacks {[*missing][:3]} and has {[*extra][:3]} too often")

    def _consumed(self, stage: str, stream: str) -> Iterator[str]:
        for number, spec in self.truth.subscriptions.items():
            if (spec.computation, spec.stream) != (stage, stream):
                continue
            for position in self.inner.sources.values():
                script = self.truth.scripts.get((number, position.producer))
                if script is not None:
                    for row in self.truth.consumed.get((number, position.producer), ()):
                        yield script.rows[row][0].id


class Operator:
    """Somebody who makes savepoints, and puts them back while a process runs or when it has been stopped."""

    def __init__(self, seed: int, simulation: Simulation, store: LedgerCuts, until_us: int) -> None:
        self._rng = random.Random(f"savepoints {seed}")
        self._simulation = simulation
        self._store = store
        self._kept: list[Kept] = []
        kernel = store.truth.kernel
        for call in (self._keep, self._keep, self._put_back, self._put_back):
            kernel.at(kernel.now + self._rng.randrange(SECOND // 10, until_us), call)

    def _keep(self) -> None:
        if self._store.inner.shape is None:
            return
        self._store.truth.kernel.probes["savepoint made"] += 1
        later = any(write.epoch > self._store.inner.declared for write in self._store.inner.log.values())
        self._store.truth.kernel.probes["savepoint made while an epoch is written"] += later
        self._kept.append(keep(self._store))

    def _put_back(self) -> None:
        newest = self._simulation.processes[-1]
        if not self._kept or newest.dead:
            return
        self._store.truth.kernel.probes["savepoint put back"] += 1
        self._store.truth.kernel.trace("a savepoint is put back")
        stopped = newest.worker.serving and self._rng.random() < 0.5
        if stopped:
            newest.end_in_order()
        put_back(self._store, self._rng.choice(self._kept))
        # What those that still run tell themselves rests on what is gone.
        self._store.wire.snapshots.update(process.number for process in self._simulation.processes)
        self._simulation.launch()


class Turns:
    """The pipeline of each next process, with a durability, and how long that runs."""

    def __init__(self, seed: int, simulation: Simulation, store: LedgerCuts, workload: Workload, until_us: int) -> None:
        self._rng = random.Random(f"turns {seed}")
        self._simulation = simulation
        self._store = store
        self._graph = workload.graph
        self._until_us = until_us
        self._mixed = seed % 2 == 1
        versions = workload.feed in ("left out", "rewired")
        self._versions = Versions(seed, workload, store, until_us) if versions else None
        self._last: Graph | None = None

    def __call__(self) -> tuple[Graph, int | None]:
        """The next one."""
        before, processes = self._last, self._simulation.processes
        probes = self._store.truth.kernel.probes
        graph, span_us = self._versions() if self._versions is not None else (self._graph, None)
        if before is not None and processes[-1].left:
            graph = before  # all goes back in one process
        elif self._mixed:
            every_us = self._rng.choice((0, graph.snapshot_every_us))
            graph = msgspec.structs.replace(graph, snapshot_every_us=every_us) if not every_us else graph
            if before is not None:
                probes["other durability"] += bool(before.snapshot_every_us) != bool(every_us)
        if self._mixed and span_us is None and self._store.truth.kernel.now < self._until_us:
            span_us = self._rng.randrange(*SPANS_US)
        self._last = graph
        if graph.snapshot_every_us:
            self._store.wire.snapshots.add(len(processes) + 1)
        return graph, span_us


def forget_soon(workload: Workload, rng: random.Random) -> bool:
    """In some seeds with ids of outside clients these expire within the run, so that a record may count again later."""
    sources = [spec.source for spec in workload.graph.sources.values() if spec.source.record_id is not None]
    short = bool(sources) and rng.random() < 0.3
    for source in sources if short else ():
        source.id_slack = rng.choice((100_000, SECOND))
    return short


def simulate_ledger_cuts(seed: int) -> Kernel:
    """One seed; raises `Violation` with the story when an invariant breaks."""
    workload = draw(seed)
    rng = random.Random(f"ledger cuts {seed}")
    every_us = rng.choice((10_000, 50_000, 200_000, 50_000 if seed % 2 else SECOND))
    short = forget_soon(workload, rng)
    workload.graph = msgspec.structs.replace(workload.graph, snapshot_every_us=every_us)
    kernel = Kernel(seed, start_us=START_US)
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
            script.appears_at += kernel.now
    faults = msgspec.structs.replace(faults_of(seed), clock_step=0)
    until_us = UNTIL_US * (4 if workload.world.kills_of else 1)
    store = LedgerCuts(MemoryStore(), workload.graph, kernel, workload.honest)
    store.workload, store.on_cut, store.forgets = workload, store.check_cut, short
    store.fed_again = workload.fed_again
    store.inner.constraint = workload.world.constraint
    simulation = Simulation(
        graph=workload.graph, tables=workload.tables, kernel=kernel, nemesis=Seeded(faults, kernel.rng), store=store,
        faults_until_us=until_us,
    )  # fmt: skip
    simulation.on_mend = lambda: mend(workload, store)
    simulation.on_orderly_end = workload.world.killed.clear
    simulation.hold_open = lambda: unmended(workload, store)
    if workload.feed == "rewired":
        store.feeds = lambda name: workload.graph.bounds(name) - {"a"}
    simulation.version = Turns(seed, simulation, store, workload, kernel.now + until_us)
    if seed % 4 > 1 and not workload.world.kills_of:
        Operator(seed, simulation, store, until_us)
    let_last_come(store, workload)
    kernel.at(kernel.now, end_sources, store, workload)
    if workload.feed == "idle":
        kernel.at(START_US + SILENT_US, fall_silent, store, workload)
    for at in range(workload.redrive_us, until_us, workload.redrive_us) if workload.redrive_us else ():
        kernel.at(kernel.now + at, ask_redrives, store, mayfly.NAME)
    run_shrunk(simulation, workload.exotic)
    check_end(store)
    if kept := delivered(store.inner):
        raise Violation(f"I15: {kept} record ids are kept at the end", kernel.story())
    if not short:
        check_state(workload, store.inner.key_state, bool(kernel.probes["record quarantined"]))
    if workload.world.breaches:
        raise Violation(workload.world.breaches[0], kernel.story())
    return kernel
