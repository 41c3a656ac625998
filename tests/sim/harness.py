"""One seed, from workload to verdict; used by the tests, the mutants and the command line."""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Any, Protocol

import msgspec

from millwheel.bundles import Checkpoint, LogWrite, decode_checkpoint
from millwheel.graph import Graph
from millwheel.ids import IntervalId
from millwheel.model import SECOND
from millwheel.testing.checks.ending import check_end, delivered
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Faults, Nemesis, Seeded
from millwheel.testing.kit.scripted import Script
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore
from tests.sim import mayfly
from tests.sim.workload.drawing import AWAKE_US, ROLLED, SILENT_US, START_US, Workload, draw, shrunk
from tests.sim.workload.expecting import check_commit, check_state
from tests.sim.workload.last import let_it_come
from tests.sim.workload.ledger import renamed

DELIVERED_LIMIT = 0
"""Ids that a finished run may keep: those whose sender's last frontier crossed a duplicate; thousands were delivered."""


EVENTS_ENOUGH = 2_000
"""Core events after which a run's sources end: what takes many events for a row gets fewer rows, and none takes long."""

ROWS_AWAKE = 20
"""Rows that each partition gives after its silence, where sources fall silent, before they end."""

ROLLS_END_US = 12 * SECOND
"""Until then processes are superseded while they go on: for longer, and those whose records kill get nowhere."""


class LedgerStore(WatchedStore):
    """The watched store with the workload's own checks at every commit."""

    check: Any = None

    def on_commit(self, computation: str, write: LogWrite, image: Checkpoint) -> None:
        self.check(self, computation, image)
        if image.quarantined:
            self._ask_at_once(computation, write.interval, {entry.key for entry in image.quarantined})

    def _ask_at_once(self, computation: str, interval: IntervalId, failed: set[str]) -> None:
        """Somebody sees that keys have failed again whose release is not folded, and asks for the next redrive."""
        log = [decode_checkpoint(row.payload) for place, row in self.inner.log.items() if place[0] == interval]
        for key in sorted(failed.intersection(key for one in log for key in one.released)):
            self.ask_redrive(computation, key)

    def on_refused(self, computation: str, write: LogWrite) -> None:
        self.check(self, computation, decode_checkpoint(write.payload))


class Verdict(msgspec.Struct):
    """What one seed did."""

    seed: int
    events: int
    faults: dict[str, int]
    probes: dict[str, int]
    trace_hash: str
    virtual_us: int
    delivered: int
    late: int


def faults_of(seed: int) -> Faults:
    """The fault mix of a seed: rough, or one kind much more often than the others."""
    rng = random.Random(f"faults {seed}")
    base = Faults(
        crash=0.001,
        zombie=0.0004,
        refused=0.03,
        unknown=0.03,
        duplicate=0.05,
        slow=0.005,
        clock_step=0.0005,
        cut=0.0005,
    )
    kind = rng.choice(["", "crash", "zombie", "unknown", "duplicate", "slow", "refused", "cut"])
    many = {
        "crash": 0.004,
        "zombie": 0.002,
        "unknown": 0.2,
        "duplicate": 0.3,
        "slow": 0.05,
        "refused": 0.2,
        "cut": 0.004,
    }
    return msgspec.structs.replace(base, **{kind: many[kind]}) if kind else base


def simulate_seed(seed: int) -> Verdict:
    """Run a seed; raises `Violation` with the story when an invariant breaks."""
    workload = draw(seed)
    kernel = Kernel(seed, start_us=START_US)
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
            script.appears_at += kernel.now
    faults = faults_of(seed)
    if workload.feed == "idle":
        # What silence allows is true by the clock: one that jumps says of records that they are late.
        faults = msgspec.structs.replace(faults, clock_step=0)
    if seed % 27 in ROLLED:
        faults = msgspec.structs.replace(faults, slow=0)  # who is superseded must find out within a silence
    # Faults that end early leave records that arrive in peace; where every twentieth message is slow, all takes longer.
    until_us = (30 if faults.slow > 0.01 else 8 if seed % 3 else 5) * SECOND
    if workload.world.kills_of:
        until_us = 40 * SECOND  # a record that kills has to kill several processes, and each needs its time to start
    # Most redrives run while things break.
    mend_us = until_us if seed % 4 == 0 or workload.world.kills_of else kernel.rng.randrange(2 * SECOND, until_us)
    return run_workload(seed, workload, kernel, Seeded(faults, kernel.rng), until_us, mend_us)


def run_workload(
    seed: int,
    workload: Workload,
    kernel: Kernel,
    nemesis: Nemesis,
    until_us: int,
    mend_us: int,
    keep: Any = None,
    whole: bool = False,
) -> Verdict:
    """Run a drawn workload under a nemesis, to its verdict; `whole`: with all of its rows, however many events they make."""
    store = LedgerStore(MemoryStore(), workload.graph, kernel, workload.honest)
    store.fed_again = workload.fed_again
    store.check = check_commit(workload)
    store.inner.constraint = workload.world.constraint
    simulation = Simulation(
        graph=workload.graph,
        tables=workload.tables,
        kernel=kernel,
        nemesis=nemesis,
        store=store,
        faults_until_us=until_us,
        mend_us=mend_us,
    )
    simulation.on_mend = lambda: mend(workload, store)
    simulation.on_orderly_end = workload.world.killed.clear
    simulation.hold_open = lambda: unmended(workload, store)
    if seed % 3 == 0 and isinstance(nemesis, Seeded):
        simulation.echoes = Echoes(store.truth, random.Random(f"echoes {seed}"), 100_000)
    if seed % 27 in ROLLED:
        simulation.superseded_limit_us = 5 * SECOND // 2
        for at in range(500_000, min(until_us, ROLLS_END_US), 700_000):
            kernel.at(kernel.now + at, simulation.roll)
    if workload.feed in ("left out", "rewired"):
        simulation.version = Versions(seed, workload, store, kernel.now + until_us)
    if workload.feed == "rewired":
        store.feeds = lambda name: workload.graph.bounds(name) - {"a"}  # not a sender in all versions
    let_last_come(store, workload)
    if not whole:
        kernel.at(kernel.now, end_sources, store, workload)
        if workload.feed == "idle":
            kernel.at(START_US + SILENT_US, fall_silent, store, workload)
    for at in range(workload.redrive_us, until_us, workload.redrive_us) if workload.redrive_us else ():
        kernel.at(kernel.now + at, ask_redrives, store, mayfly.NAME)
    if seed % 2:  # somebody is impatient: these redrives fail, at the first element or at a later one
        kernel.at(kernel.now + mend_us // 2, ask_redrives, store)
    run_shrunk(simulation, workload.exotic)
    check_end(store)
    kept = delivered(store.inner)
    if kept > DELIVERED_LIMIT:
        raise Violation(f"I15: {kept} record ids are kept at the end", kernel.story())
    check_state(workload, store.inner.key_state, bool(kernel.probes["record quarantined"]))
    if keep is not None:
        keep(store.inner.key_state, store.inner.sinks)
    if workload.world.breaches:
        raise Violation(workload.world.breaches[0], kernel.story())
    return Verdict(
        seed, kernel.events, dict(sorted(nemesis.struck.items())), dict(sorted(kernel.probes.items())),
        kernel.trace_hash(), kernel.now, kept, workload.world.late,
    )  # fmt: skip


class Versions:
    """The pipeline of each next process: until `until_us` some of the sources that were begun are not in it, or the first
    stage is not fed and lists no output.  In every other one a cell has another name."""

    def __init__(self, seed: int, workload: Workload, store: WatchedStore, until_us: int) -> None:
        self._rng = random.Random(f"versions {seed}")
        self._graph = workload.graph
        self._rewired = workload.feed == "rewired"
        self._store = store
        self._until_us = until_us
        self._original = workload.graph
        self._turn = 0

    def __call__(self) -> tuple[Graph, int | None]:
        """The pipeline, and how long, us, a process with it runs."""
        if self._store.truth.kernel.now >= self._until_us:
            return self._original, None
        self._turn += 1
        self._graph = self._original
        if self._turn % 2 and self._store.inner.shape is not None:  # the first one names the places, which are checked
            self._store.truth.kernel.probes["cell renamed"] += 1
            computations = {name: renamed(spec) for name, spec in self._original.computations.items()}
            self._graph = msgspec.structs.replace(self._original, computations=computations)
        # One that no process has opened is unknown to the store: nobody could wait for it.
        begun = sorted({source for source, _ in self._store.inner.sources})
        gone = {name for name in begun if self._rng.random() < 0.4}
        if self._rewired:
            return self._without_output(gone), self._rng.randrange(200_000, 1_500_000)
        kept = {name: spec for name, spec in self._graph.sources.items() if name not in gone}
        graph = msgspec.structs.replace(self._graph, sources=kept) if gone else self._graph
        return graph, self._rng.randrange(200_000, 1_500_000)

    def _without_output(self, gone: set[str]) -> Graph:
        if "src-in0" not in gone:
            return self._graph
        kept = {name: spec for name, spec in self._graph.sources.items() if name != "src-in0"}
        first = msgspec.structs.replace(self._graph.computations["a"], outputs=())
        computations = {**self._graph.computations, "a": first}
        return msgspec.structs.replace(self._graph, sources=kept, computations=computations)


def unmended(workload: Workload, store: WatchedStore) -> bool:
    """Whether something is still in quarantine; what came late is redriven as well."""
    if workload.world.mended and any(durable.fifo for durable in store.truth.durable.values()):
        mend(workload, store)
        return True
    return workload.poisoned and not workload.world.mended


class Runs(Protocol):
    """A simulation, of one process or of a cluster."""

    kernel: Kernel

    def run(self) -> None:
        """To its end."""


def run_shrunk(simulation: Runs, exotic: dict[str, float]) -> None:
    """Run under the bounds of a workload; whatever breaks is a `Violation` with its story."""
    with shrunk(exotic):
        try:
            simulation.run()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}", simulation.kernel.story()) from error


def end_sources(store: WatchedStore, workload: Workload) -> None:
    """When there were events enough, and what falls silent has come back."""
    kernel = store.truth.kernel
    scripts = [script for parts in workload.scripts.values() for script in parts]
    if kernel.events < EVENTS_ENOUGH or (workload.feed == "idle" and not all(map(came_back, scripts))):
        kernel.at(kernel.now + SECOND // 20, end_sources, store, workload)
        return
    for script in scripts:
        if script is not workload.last:
            script.end()
    store.truth.scripts_ended()


def let_last_come(store: WatchedStore, workload: Workload) -> None:
    """The partition that comes last, if there is one, waits until all others have ended."""
    if workload.last is not None:
        scripts = [script for parts in workload.scripts.values() for script in parts]
        others = [script for script in scripts if script is not workload.last]
        store.truth.kernel.at(0, let_it_come, store, workload.last, others, workload.last_when)


def fall_silent(store: WatchedStore, workload: Workload) -> None:
    """What slow processes have not read yet comes after the silence, which there would not be else."""
    for parts in workload.scripts.values():
        for script in parts:
            script.delay(START_US + AWAKE_US)
    store.truth.scripts_delayed()


def came_back(script: Script) -> bool:
    """Whether enough was read of what a script gives after its silence."""
    silent = bisect_left(script.arrivals, START_US + SILENT_US)
    return script.read_to >= min(silent + ROWS_AWAKE, len(script.rows))


def mend(workload: Workload, store: WatchedStore) -> None:
    """User code is mended, and the next time the database too; every key in quarantine, now or later, is redriven."""
    workload.world.rows_mended = workload.world.mended
    workload.world.mended = True
    ask_redrives(store)


def ask_redrives(store: WatchedStore, only: str = "") -> None:
    """For every key that is in quarantine now, of one computation or of all."""
    for name, durable in store.truth.durable.items():
        for key in durable.fifo if only in ("", name) else ():
            store.ask_redrive(name, key)
