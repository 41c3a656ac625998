"""Seeds with loops: tokens hop round them under everything that can go wrong, and the end is exactly what it must be."""

from __future__ import annotations

import pytest

from millwheel.model import MAX_TIME
from millwheel.testing.world.kernel import Violation, untold
from tests.effort import examples
from tests.sim import aside, ci
from tests.sim.harness import Verdict
from tests.sim.hops import EDGES, draw_hops, expected_hops, simulate_hops
from tests.sim.quick import quick

SEEDS = examples(6, gate=36)
EVENTS_LIMIT = 1_000
"""Events of a host that reach a core, in the least eventful seed.  A loop of few tokens runs dry early."""

PROBES = (
    "floor of a loop raised",
    "bundle delivered twice",
    "channel cut",
    "commit found applied",
    "fenced commit refused",
    "late copy of a bundle",
    "page of timers read",
    "productions resent after restart",
    "timer fired after restart",
    "told twice: RoundAnswered",
    "told twice: RoundAsked",
    "zombie overtaken",
)
"""What must happen somewhere among the seeds."""


def try_hops(seed: int) -> Verdict | str:
    """A verdict, or what broke."""
    try:
        with untold():
            return simulate_hops(seed)
    except Violation as violation:
        return f"hops, seed {seed}: {violation.summary}"


@pytest.mark.every_core
@pytest.mark.slow
@pytest.mark.timeout(aside.LIMIT_S)
def test_every_seed_with_a_loop_keeps_every_invariant() -> None:
    found = ci.run_seeds(range(SEEDS), try_hops)
    ci.publish("loops", found)
    assert not found["failures"]
    assert found["events_least"] >= EVENTS_LIMIT
    assert found["faults_least"] >= ci.FAULTS_LIMIT
    assert not [name for name in PROBES if not found["probes"].get(name)]


def test_the_workload_reaches_every_stage_of_every_shape() -> None:
    for seed, shape in enumerate(EDGES.values()):
        workload = draw_hops(seed)
        assert workload.edges == shape
        assert expected_hops(workload).keys() == {*shape, "end"}
        assert workload.graph is not None
        assert workload.graph.loops


def test_a_run_ends_at_the_end_of_time_when_its_loop_has_run_dry() -> None:
    verdict = quick(simulate_hops)(5)
    assert verdict.probes["floor of a loop raised"] > 20
    assert verdict.probes["wall timer fired"]
    assert verdict.virtual_us < MAX_TIME


def test_a_partition_that_another_process_reads_to_its_end_meanwhile_is_not_gone() -> None:
    assert quick(simulate_hops)(39).faults["zombie"], (
        "which woke up in the midst of its start, and found its partition ended"
    )
