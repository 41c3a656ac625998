"""One seed of a cluster, from workload to verdict."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count

import msgspec

from millwheel.model import SECOND
from millwheel.testing.checks.ending import check_end, delivered
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.faults.nemesis import Faults, Seeded
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.fleet import ClusterSimulation, Roles
from millwheel.testing.world.kernel import Kernel, Violation, untold
from millwheel_storage.memory import MemoryStore
from tests.sim import aside
from tests.sim.harness import LedgerStore, Verdict, end_sources, let_last_come, mend, run_shrunk, unmended
from tests.sim.workload.drawing import ROLLED, START_US, Workload, draw
from tests.sim.workload.expecting import check_commit, check_state
from tests.sim.workload.ledger import KEYS

FEEDS = ("", "idle", "ordered", "missing", "ordered and missing", "last")


class SharedLedgerStore(LedgerStore, SharedWatchedStore):
    """The watched store of a cluster with the workload's own checks at every commit."""


def faults_of_cluster(seed: int) -> Faults:
    """The fault mix of a seed: rough, or one kind much more often than the others."""
    rng = random.Random(f"cluster faults {seed}")
    base = Faults(
        crash=0.0005, zombie=0.0004, refused=0.02, unknown=0.02, duplicate=0.05, slow=0.003, clock_step=0.0005, cut=0.001,
        restarts_limit=14,
    )  # fmt: skip
    kind = rng.choice(["", "crash", "zombie", "unknown", "duplicate", "slow", "refused", "cut"])
    many = {
        "crash": 0.003, "zombie": 0.003, "unknown": 0.15, "duplicate": 0.3, "slow": 0.02, "refused": 0.15, "cut": 0.006,
    }  # fmt: skip
    return msgspec.structs.replace(base, **{kind: many[kind]}) if kind else base


def leaves_of(seed: int) -> random.Random | None:
    """In every fifth seed most processes that end were told to stop."""
    return random.Random(f"leaves {seed}") if seed % 5 == 4 else None


def workload_of(seed: int) -> Workload:
    """The first workload from there on that a cluster runs: one version of the pipeline, and no hook that kills."""
    for number in count(seed * 5):
        workload = draw(number)
        if workload.feed in FEEDS and number % 27 not in ROLLED and not workload.world.kills_of:
            return workload
    raise AssertionError("there are infinitely many")


def simulate_cluster(
    seed: int,
    faults: Faults | None = None,
    order_every_us: int | None = None,
    roles: Roles | None = None,
    prepare: Callable[[ClusterSimulation], None] = lambda simulation: None,
) -> Verdict:
    """Run a seed; raises `Violation` with the story when an invariant breaks.

    Operators order something every `order_every_us`; by default every second in every other seed.  `roles` are drawn from the
    seed if not given.  `prepare` plans more for a simulation before it runs.
    """
    order_every_us = order_every_us or (SECOND if seed % 2 else None)
    workload = workload_of(seed)
    kernel = Kernel(seed, start_us=START_US)
    for parts in workload.scripts.values():
        for script in parts:
            script.arrivals = [at + kernel.now for at in script.arrivals]
            script.appears_at += kernel.now
    faults = faults_of_cluster(seed) if faults is None else faults
    if workload.feed == "idle":
        faults = msgspec.structs.replace(faults, clock_step=0)  # what silence allows is true by the clock
    until_us = (8 + 2 * (seed % 4)) * SECOND
    mend_us = until_us if seed % 4 == 0 else kernel.rng.randrange(2 * SECOND, until_us)
    nemesis = Seeded(faults, kernel.rng)
    store = SharedLedgerStore(MemoryStore(lambda: kernel.now), workload.graph, kernel, workload.honest)
    store.fed_again = workload.fed_again
    store.check = check_commit(workload)
    store.inner.constraint = workload.world.constraint
    rng = random.Random(f"cluster {seed}")
    drawn = {"controller": rng.choice((1, 2, 2, 3)), "worker": rng.choice((1, 2, 2, 3, 4))}
    simulation = ClusterSimulation(
        graph=workload.graph, tables=workload.tables, kernel=kernel, nemesis=nemesis, store=store,
        roles=drawn if roles is None else roles,
        faults_until_us=until_us, mend_us=mend_us, strict=seed % 3 != 0,
    )  # fmt: skip
    simulation.on_mend = lambda: mend(workload, store)
    simulation.hold_open = lambda: unmended(workload, store)
    simulation.leaves = leaves_of(seed)
    if seed % 3 == 0:
        simulation.echoes = Echoes(store.truth, random.Random(f"echoes {seed}"), 100_000)
    if workload.feed != "idle":
        kernel.at(kernel.now, end_sources, store, workload)
    let_last_come(store, workload)
    prepare(simulation)
    keys = [side + key for side in "lr" for key in KEYS]
    for at in range(SECOND, until_us, order_every_us) if order_every_us else ():
        kernel.at(kernel.now + at, simulation.order_something, keys)
    run_shrunk(simulation, workload.exotic)
    check_end(store)
    kept = delivered(store.inner)
    if kept:
        raise Violation(f"I15: {kept} record ids are kept at the end", kernel.story())
    check_state(workload, store.inner.key_state, bool(kernel.probes["record quarantined"]))
    if workload.world.breaches:
        raise Violation(workload.world.breaches[0], kernel.story())
    return Verdict(
        seed, kernel.events, dict(sorted(nemesis.struck.items())), dict(sorted(kernel.probes.items())),
        kernel.trace_hash(), kernel.now, kept, workload.world.late,
    )  # fmt: skip


def try_cluster(seed: int) -> Verdict | str:
    """A verdict, or what broke."""
    try:
        with untold():
            return simulate_cluster(seed)
    except Violation as violation:
        return f"seed {seed}: {violation.summary}"


def run_clusters(seeds: range) -> tuple[list[Verdict], list[str]]:
    """Verdicts and failures of a range of seeds, on what others leave of all cores."""
    found = aside.of_each(try_cluster, seeds)
    return [v for v in found if isinstance(v, Verdict)], [v for v in found if isinstance(v, str)]
