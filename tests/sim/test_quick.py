"""Runs without stories: what breaks is told all the same."""

from __future__ import annotations

import pytest

from millwheel.testing.world.kernel import Kernel, Violation
from tests.sim.quick import quick

made: list[Kernel] = []


def simulate(seed: int, breaks: tuple[bool, ...] = ()) -> str:
    """A run of one step; `breaks`: whether each run of it in turn does."""
    kernel = Kernel(seed)
    made.append(kernel)
    kernel.trace("the step")
    if breaks and breaks[len(made) - 1]:
        raise Violation("I1: twice", kernel.story())
    return kernel.trace_hash()


@pytest.fixture(autouse=True)
def none_made() -> None:
    made.clear()


def test_a_run_that_holds_runs_once_and_keeps_no_story() -> None:
    assert quick(simulate)(1) == quick(simulate)(2), "nothing was hashed"
    assert [kernel.story() for kernel in made] == ["", ""]
    simulate(1)
    assert made[-1].story() == "0 the step", "afterwards stories are kept again"


def test_a_run_that_breaks_an_invariant_runs_again_and_tells_its_story() -> None:
    with pytest.raises(Violation, match="I1: twice\n0 the step"):
        quick(simulate)(1, (True, True))
    assert len(made) == 2


def test_a_run_that_breaks_only_once_is_not_taken_for_one_that_holds() -> None:
    with pytest.raises(AssertionError, match="the first one broke this"):
        quick(simulate)(1, (True, False))
