"""Every crash point: at every commit, fold, advance, persist, send and ack of twelve scenarios, all that can break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millwheel.testing.faults.nemesis import Action, Planned
from millwheel.testing.world.kernel import Kernel, Violation
from tests import effort
from tests.sim import ci
from tests.sim.breaks import breaks, strike_all
from tests.sim.cores import Answers, on_all_cores
from tests.sim.harness import run_workload
from tests.sim.scenarios import SCENARIOS, START_US, scenario

UNTIL_US = 300_000
GATE_STRIDE = 13


def run(name: str, at: int = -1, action: Action = "") -> tuple[Planned, Any]:
    """One run with one fault; what it must leave behind."""
    workload, nemesis, left = scenario(name), Planned(at, action), {}

    def keep(state: Any, sinks: Any) -> None:
        exact = {stage.name for stage in workload.stages if stage.exact}
        left.update(
            {"state": {c: without_wall(state[c]) for c in exact}, "sinks": sinks if exact == set(state) else {}}
        )

    run_workload(0, workload, Kernel(0, START_US), nemesis, UNTIL_US, UNTIL_US, keep)
    return nemesis, left


def without_wall(keys: dict[str, dict[tuple[str, str], bytes]]) -> dict[str, dict[tuple[str, str], bytes]]:
    """Whether the last wall timer rings before the end is a matter of time."""
    return {key: {slot: v for slot, v in cells.items() if slot[0] != "touched"} for key, cells in keys.items()}


def tried_all(name: str) -> tuple[int, int, str]:
    """(faults planned, faults that struck, what went wrong) in a scenario."""
    undisturbed, wanted = run(name)

    def alike(at: int, action: Action) -> Planned:
        nemesis, left = run(name, at, action)
        if left != wanted:
            raise Violation(f"another end: {left}, undisturbed {wanted}")
        return nemesis

    return strike_all(undisturbed.steps, [*effort.share([*breaks(undisturbed.steps)], GATE_STRIDE)], alike)


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    yield from on_all_cores(request, tried_all)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_break_at_every_step_ends_like_the_undisturbed_run(name: str, answers: Answers) -> None:
    planned, tried, wrong = answers[name].get()
    assert not wrong, wrong
    assert tried == planned, "a fault that was planned did not strike"
    assert tried >= (100 if effort.PROFILE == "search" else 15)
    ci.publish("crash_points", {name: tried}, more=True)
