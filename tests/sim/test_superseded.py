"""A process that is superseded while nothing is to be done finds out by itself, and writes no watermark (I5)."""

from __future__ import annotations

from collections import Counter

import pytest

import tests.planted.superseded  # noqa: F401  (registers the planted bug)
from millwheel.model import SECOND
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Planned
from millwheel.testing.kit.scripted import ScriptedSource
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore
from tests.planted import planted
from tests.sim.scenarios import START_US, scenario

FENCE = "The fence is skipped: a process that was superseded persists watermarks"


def rolled(idle_after_us: int | None) -> Counter[str]:
    """Rows, three seconds of silence in which a new process takes over from one that goes on, and the last row."""
    workload, kernel = scenario("one record at a time"), Kernel(0, START_US)
    (script,) = workload.scripts["in0"]
    script.arrivals[-1] = START_US + 7 * SECOND
    (spec,) = workload.graph.sources.values()
    assert isinstance(spec.source, ScriptedSource)
    spec.source.idle_after_us, spec.source.disorder_us = idle_after_us, 1_000 * SECOND
    store = WatchedStore(MemoryStore(), workload.graph, kernel)
    simulation = Simulation(
        graph=workload.graph,
        tables=workload.tables,
        kernel=kernel,
        nemesis=Planned(),
        store=store,
        faults_until_us=9 * SECOND,
    )
    simulation.superseded_limit_us = 2 * SECOND
    kernel.at(START_US + 4_300_000, simulation.roll)
    simulation.run()
    return kernel.probes


def test_one_that_has_nothing_to_write_asks_and_ends() -> None:
    assert rolled(None)["process asked, and found itself superseded"] >= 1


def test_one_that_follows_the_clock_is_refused_and_ends() -> None:
    assert rolled(20_000)["fenced watermark refused"] >= 1


def test_one_that_is_not_refused_is_noticed() -> None:
    with (
        planted(FENCE),
        pytest.raises(Violation, match=r"I5: the watermark of .* is persisted by who does not own"),
    ):
        rolled(20_000)
