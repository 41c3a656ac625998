"""Pipelines with loops under snapshots in the simulator: after each declared epoch, state and log are one cut.

The tokens are those of `hops`.  What a token makes of itself does not depend on the interleaving.  So of all rows before the
stored positions, each hop was either seen, or comes of a record in a log, or of a token that waits for its timer: once (I22).
"""

from __future__ import annotations

import copy
import random
from collections import Counter

import msgspec

from millwheel import JsonCoder
from millwheel.bundles import decode_checkpoint
from millwheel.graph import Graph
from millwheel.model import MAX_TIME, SECOND
from millwheel.testing.checks.cuts import CutStore, visible
from millwheel.testing.checks.ending import check_accounts
from millwheel.testing.faults.nemesis import Nemesis, Seeded
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.fold import fold
from millwheel_storage.memory import MemoryStore
from tests.sim.harness import Runs, ask_redrives, faults_of, run_shrunk
from tests.sim.hops import Hopper, Hops, check_hops, draw_hops, key_of, next_of
from tests.sim.workload.drawing import START_US

HOPPERS = JsonCoder(Hopper)
Seen = Counter[tuple[str, str, str]]
"""(stage, key, hop) to how often."""


def of_tokens(workload: Hops, todo: list[Hopper]) -> Seen:
    """Every hop that these tokens will make, the one that they are sent to included."""
    found, todo = Seen(), [*todo]
    while todo:
        token = todo.pop()
        found[token.to, key_of(token), f"{token.id} {token.left}"] += 1
        if token.to != "end":
            todo += next_of(token, token.to, workload.edges, workload.fans)
    return found


class LoopCuts:
    """What of a workload is to be seen when."""

    def __init__(self, workload: Hops, store: CutStore) -> None:
        self._workload = workload
        self._store = store

    def logged(self) -> list[tuple[Hopper, int]]:
        """The tokens in logs that nobody has consumed, and their times."""
        inner, found = self._store.inner, []
        tables = copy.deepcopy(inner.folded)
        for interval, row in inner.intervals.items():
            log = [write for place, write in sorted(inner.log.items()) if place[0] == interval]
            tables.apply(row, fold(decode_checkpoint(w.payload) for w in log if w.epoch <= inner.declared), {})
        for interval, row in inner.intervals.items():
            for channel, rows in tables.productions.get(interval, {}).items():
                taken = tables.delivered.get(interval, {}).get(channel, ())
                frontier = tables.frontiers.get(interval, {}).get(channel, 0)
                tokens = [
                    (HOPPERS.decode(r[1]), r[2])
                    for sequence, r in rows.items()
                    if sequence not in taken and sequence >= frontier
                ]
                found += [(token, at) for token, at in tokens if token.to == row.computation]
        return found

    def check(self) -> None:
        """Rows before the positions, once: seen, in a log, or waiting."""
        workload, shown = self._workload, visible(self._store.inner)
        seen, waiting = Seen(), []
        for stage in (*workload.edges, "end"):
            for key, cells in shown.get(stage, {}).items():
                for (cell, entry), value in cells.items():
                    if cell == "seen" and entry:
                        seen[stage, key, entry] += int(value)
                    elif cell == "waits" and entry:
                        waiting += next_of(HOPPERS.decode(value), stage, workload.edges, workload.fans)
                    elif cell == "breaks":
                        self._store.truth.fail(f"I11: {stage}[{key!r}] {entry}: {value!r}")
        logged = self.logged()
        self._store.truth.kernel.probes["cut with a log"] += bool(logged)
        self._store.check_watermarks((token.to, at) for token, at in logged)
        found = seen + of_tokens(workload, [*waiting, *(token for token, _ in logged)])
        rows = {script.name: script.rows for scripts in workload.scripts.values() for script in scripts}
        given = [t for p in self._store.inner.sources.values() for t, _ in rows[p.partition][: p.position]]
        wanted = of_tokens(workload, given)
        if found != wanted:
            missing, extra = wanted - found, found - wanted
            self._store.truth.fail(f"I22: the cut lacks {[*missing][:3]} and has {[*extra][:3]} too often")


def drawn_loop(seed: int, kernel: Kernel, *intervals_us: int) -> tuple[Hops, Graph]:
    """The workload of a seed from `kernel`'s now on, and its graph with a snapshot every one of `intervals_us`."""
    rng = random.Random(f"loop cuts {seed}")
    workload = draw_hops(seed)
    workload.clocked = False
    workload.exotic["LOOP_LOG_LIMIT_BYTES"] = rng.choice([1, 1_000, 8_388_608])
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
    assert workload.graph is not None
    return workload, msgspec.structs.replace(workload.graph, snapshot_every_us=rng.choice(intervals_us))


def loop_simulation(graph: Graph, store: CutStore, nemesis: Nemesis, until_us: int) -> Simulation:
    """One process at a time has all of it."""
    simulation = Simulation(
        graph=graph, tables={}, kernel=store.truth.kernel, nemesis=nemesis, store=store, faults_until_us=until_us
    )
    # Kills from outside may hit one record three times while it runs alone: it waits until somebody asks for it.
    simulation.on_mend = lambda: ask_redrives(store)
    simulation.hold_open = lambda: any(durable.fifo for durable in store.truth.durable.values())
    return simulation


def run_loop(simulation: Runs, workload: Hops, store: CutStore) -> Kernel:
    """Run it to its end, whatever it runs on."""
    kernel = store.truth.kernel
    store.on_cut = LoopCuts(workload, store).check
    run_shrunk(simulation, workload.exotic)
    inner, folded = store.inner, store.inner.folded
    check_hops(workload, inner.key_state)
    if inner.log or any(folded.delivered.values()) or any(any(c.values()) for c in folded.productions.values()):
        store.truth.fail("I15: something is not folded at the end")
    check_accounts(store)
    if {inner.watermark[name] for name in store.truth.graph.computations} != {MAX_TIME}:
        store.truth.fail("I22: a watermark that was reached is not stored at the end")
    return kernel


def simulate_loop_cuts(seed: int) -> Kernel:
    """One seed; raises `Violation` with the story when an invariant breaks."""
    kernel = Kernel(seed, start_us=START_US)
    workload, graph = drawn_loop(seed, kernel, 10_000, 50_000, 200_000, SECOND)
    store = CutStore(MemoryStore(), graph, kernel)
    faults = msgspec.structs.replace(faults_of(seed), clock_step=0)
    return run_loop(loop_simulation(graph, store, Seeded(faults, kernel.rng), 8 * SECOND), workload, store)
