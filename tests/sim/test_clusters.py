"""Clusters under faults: the seeds of one CI run, and that a seed is a run of its own."""

from __future__ import annotations

from collections import Counter

import pytest

from millwheel.testing.faults.nemesis import NO_FAULTS, Faults
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.members import WorkerMember
from tests.effort import examples
from tests.sim import aside
from tests.sim.ci import publish
from tests.sim.fleets import run_clusters, simulate_cluster
from tests.sim.quick import quick

SEEDS = examples(5, gate=36)
EVENTS_LIMIT = 1_500
FAULTS_LIMIT = 5
STORM_ORDERS = 10

PROBES = (
    "bundle for an earlier owner dropped",
    "channel cut one way",
    "controller died",
    "event for a void core dropped",
    "fenced commit refused",
    "fenced watermark refused",
    "interval restarted",
    "interval split",
    "intervals merged",
    "late copy of a retired producer's bundle",
    "leader changed",
    "member left",
    "message lost in a cut",
    "order carried out",
    "order refused",
    "placement",
    "process ended by its own lease",
    "weak straggler checkpointed",
    "worker died",
    "worker frozen",
)
"""What must happen somewhere among them."""


@pytest.mark.every_core
@pytest.mark.slow
@pytest.mark.timeout(aside.LIMIT_S)
def test_every_seed_of_a_cluster_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    verdicts, failures = run_clusters(range(SEEDS))
    probes: Counter[str] = Counter()
    for verdict in verdicts:
        probes.update(verdict.probes)
    faults = [sum(verdict.faults.values()) for verdict in verdicts]
    events = [verdict.events for verdict in verdicts]
    publish("clusters", {"seeds": SEEDS, "failures": failures, "faults": sum(faults), "events": sum(events)})
    assert not failures
    assert min(events) >= EVENTS_LIMIT
    assert min(faults) >= FAULTS_LIMIT
    assert not [name for name in PROBES if not probes[name]]


@pytest.mark.parametrize("seed", [1, 3, 9, 33])
def test_a_cluster_without_faults_splits_merges_moves_and_ends(seed: int) -> None:
    verdict = quick(simulate_cluster)(seed, NO_FAULTS)
    assert verdict.faults == {}
    assert verdict.probes["placement"] > 0


def test_the_same_seed_gives_the_same_run() -> None:
    assert simulate_cluster(3) == simulate_cluster(3)


@pytest.mark.long  # a landing runs them among the others
@pytest.mark.parametrize("seed", [3, 12, 34])
def test_a_seed_that_once_failed(seed: int) -> None:
    quick(simulate_cluster)(seed)


def test_an_interval_that_starts_anew_while_it_is_handed_over_takes_nothing_out_of_order() -> None:
    # The map that was read next showed its new sequencer.  It was taken for one that is placed anew, and was opened again,
    # behind records that it had turned away.
    quick(simulate_cluster)(136, order_every_us=300_000)


@pytest.mark.parametrize(
    ("seed", "faults", "order_every_us"),
    [(0, NO_FAULTS, 150_000), (12, NO_FAULTS, 50_000), (12, None, 50_000), (16, None, 150_000)],
)
def test_a_storm_of_orders_keeps_every_invariant(seed: int, faults: Faults | None, order_every_us: int) -> None:
    # With seed 0 and no faults an interval of weak productions was moved.  Its receiver heard of that before its last owner
    # did, and acked what that still sent, which nobody had consumed.
    verdict = quick(simulate_cluster)(seed, faults, order_every_us=order_every_us)
    assert verdict.probes["order carried out"] >= STORM_ORDERS


@pytest.mark.parametrize("seed", [1, 2])
def test_rows_are_counted_once_however_often_the_map_changes(seed: int) -> None:
    """Whoever takes a partition again reads what was not durable again."""
    simulations: list[ClusterSimulation] = []
    quick(simulate_cluster)(seed, NO_FAULTS, order_every_us=150_000, prepare=simulations.append)
    (simulation,) = simulations
    workers = [member.worker for member in simulation.members if isinstance(member, WorkerMember)]
    read = sum(position.position for position in simulation.store.inner.sources.values())
    assert sum(worker.actors.rows().given for worker in workers) == read > 0
