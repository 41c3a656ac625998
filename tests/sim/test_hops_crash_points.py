"""Every crash point of small runs with a loop: whatever breaks at whichever step, each hop is made once, and the run ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millwheel.testing.faults.nemesis import Action, Planned
from millwheel.testing.world.kernel import Kernel
from tests import effort
from tests.sim import ci
from tests.sim.breaks import breaks, strike_all
from tests.sim.cores import Answers, on_all_cores
from tests.sim.hops import few_hops, run_hops
from tests.sim.test_crash_points import UNTIL_US
from tests.sim.workload.drawing import START_US

SHAPES = ("itself", "two")
GATE_STRIDE = 11


def run_few(shape: str, at: int = -1, action: Action = "") -> Planned:
    """One run with one fault; raises `Violation` when it does not end as it must."""
    nemesis = Planned(at, action)
    run_hops(1, few_hops(shape), Kernel(0, START_US), nemesis, UNTIL_US)
    return nemesis


def tried_all_of(shape: str) -> tuple[int, int, str]:
    """(faults planned, faults that struck, what went wrong) with loops of a shape."""
    steps = run_few(shape).steps
    return strike_all(
        steps, [*effort.share([*breaks(steps)], GATE_STRIDE)], lambda at, action: run_few(shape, at, action)
    )


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    yield from on_all_cores(request, tried_all_of)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SHAPES)
def test_every_break_at_every_step_of_a_loop_ends_as_it_must(name: str, answers: Answers) -> None:
    planned, tried, wrong = answers[name].get()
    assert not wrong, wrong
    assert tried == planned, "a fault that was planned did not strike"
    assert tried >= (100 if effort.PROFILE == "search" else 10)
    ci.publish("crash_points", {f"a loop of {name}": tried}, more=True)
