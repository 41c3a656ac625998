"""Clusters in which somebody cannot be reached by somebody, one way, while everybody reaches the store.

Each row of the matrix is a cut: who says nothing to whom.  It lasts for several leases and comes again,
so some runs end while it lasts.
A clock that jumps at the same time must not change what is decided by leases.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from millwheel.model import SECOND
from millwheel.testing.faults.nemesis import NO_FAULTS
from millwheel.testing.world.calls import run
from millwheel.testing.world.fleet import ClusterSimulation
from tests.sim.fleets import simulate_cluster
from tests.sim.quick import quick

ROLES = {"controller": 2, "worker": 3}
DOWN_US = 5 * SECOND
"""More than two leases."""
FROM_US = (700_000, 7 * SECOND)
"""While all begin; and when all runs."""

Pairs = set[tuple[str, str]]
Cut = Callable[[str, list[str], list[str]], Pairs]
"""Which channels are cut, by the leader, the other controllers and the workers."""

MATRIX: dict[str, Cut] = {
    "a worker to the leader": lambda leader, _, workers: {(workers[0], leader)},
    "the leader to a worker": lambda leader, _, workers: {(leader, workers[0])},
    "all workers to the leader": lambda leader, _, workers: {(worker, leader) for worker in workers},
    "the leader to all workers": lambda leader, _, workers: {(leader, worker) for worker in workers},
    "a worker to a peer": lambda _, __, workers: {(workers[0], workers[-1])},
    "a worker to all peers": lambda _, __, workers: {(workers[0], peer) for peer in workers[1:]},
    "all peers to a worker": lambda _, __, workers: {(peer, workers[0]) for peer in workers[1:]},
    "a worker to a standby": lambda _, standbys, workers: {(workers[0], standby) for standby in standbys},
    "a standby to all workers": lambda _, standbys, workers: {(s, worker) for s in standbys for worker in workers},
    "the leader to a standby": lambda leader, standbys, _: {(leader, standby) for standby in standbys},
    "a standby to the leader": lambda leader, standbys, _: {(standby, leader) for standby in standbys},
    "a worker to everybody": lambda leader, standbys, workers: {
        (workers[0], other) for other in (leader, *standbys, *workers[1:])
    },
    "everybody to a worker": lambda leader, standbys, workers: {
        (other, workers[0]) for other in (leader, *standbys, *workers[1:])
    },
    "everybody to the leader": lambda leader, standbys, workers: {(other, leader) for other in (*standbys, *workers)},
}


def planned(cut: Cut, done: Counter[str]) -> Callable[[ClusterSimulation], None]:
    """Cut so, twice; count the cuts."""

    def strike(simulation: ClusterSimulation) -> None:
        controllers = sorted(member.hosts[0].name for member in simulation.live("controller"))
        workers = sorted(member.hosts[0].name for member in simulation.live("worker"))
        leader = run(simulation.store.inner.cluster_map()).leader
        leading = "" if leader is None else f"c{leader.incarnation}"
        if leading not in controllers or len(workers) < ROLES["worker"]:
            simulation.kernel.at(simulation.kernel.now + 100_000, strike, simulation)
            return
        pairs = cut(leading, [name for name in controllers if name != leading], workers)
        simulation.network.cut(pairs, DOWN_US)
        done["cut"] += len(pairs)

    def prepare(simulation: ClusterSimulation) -> None:
        for at in FROM_US:
            simulation.kernel.at(simulation.kernel.now + at, strike, simulation)

    return prepare


@pytest.mark.parametrize(("number", "cut"), [*enumerate(MATRIX)])
def test_a_cluster_that_is_cut_one_way_ends_well(number: int, cut: str) -> None:
    # Clocks jump in every other row.  With number 4 the run ended while frontiers were lost, and their ids stayed for ever.
    done: Counter[str] = Counter()
    jumps = number % 2
    faults = msgspec.structs.replace(NO_FAULTS, clock_step=0.002 * jumps)
    verdict = quick(simulate_cluster)(2 * number + jumps, faults, roles=ROLES, prepare=planned(MATRIX[cut], done))
    assert done["cut"] > 0
    assert jumps or not verdict.faults
