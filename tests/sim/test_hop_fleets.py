"""Loops on a cluster under faults: intervals of a loop move, split and merge, and leaders change."""

from __future__ import annotations

import pytest

from tests.effort import examples
from tests.sim import aside, ci
from tests.sim.hop_fleets import simulate_hops_on_a_cluster, try_hops_on_a_cluster
from tests.sim.quick import quick

SEEDS = examples(3, gate=16)

PROBES = (
    "floor of a loop raised",
    "interval split",
    "leader changed",
    "placement",
    "worker died",
    "told twice: RoundAsked",
)
"""What must happen somewhere among them."""


@pytest.mark.every_core
@pytest.mark.slow
@pytest.mark.timeout(aside.LIMIT_S)
def test_every_seed_of_a_loop_on_a_cluster_keeps_every_invariant() -> None:
    found = ci.run_seeds(range(SEEDS), try_hops_on_a_cluster)
    ci.publish("loops_on_clusters", found)
    assert not found["failures"]
    assert found["events_least"] >= ci.EVENTS_LIMIT
    assert found["faults_least"] >= ci.FAULTS_LIMIT
    assert not [name for name in PROBES if not found["probes"].get(name)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(101, id="who sends back is routed anew when its receiver is merged"),
        # A landing runs this one among the others above.
        pytest.param(
            9, marks=pytest.mark.long, id="what was dropped while an interval was given up comes again if it is kept"
        ),
        pytest.param(111, id="who leaves records no frontier any more"),
    ],
)
def test_a_seed_that_has_failed_once(seed: int) -> None:
    assert quick(simulate_hops_on_a_cluster)(seed).probes["floor of a loop raised"]
