"""When an iteration may stop, from the figures of a state."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, cast

import numpy as np
import pytest

from millwheel.spark.iteration import Converged, Steps
from millwheel.spark.iteration.cells import Header
from millwheel.spark.iteration.endings import NothingChanges
from millwheel.spark.iteration.states import State


def state(superstep: int, *norms: float, active: int = 0) -> State:
    headers = {n: Header(n, 10, 3, norm, active, 0.5) for n, norm in enumerate(norms)}
    return State(superstep=superstep, rdd=cast(Any, None), headers=headers, executors=frozenset())


def norm_of(state: State) -> float:
    return state.norm


def test_the_figures_of_a_state_are_those_of_its_partitions() -> None:
    found = state(3, 0.5, 2.0, active=4)
    assert (found.norm, found.active, found.changed, found.total) == (2.0, 8, 6, 1.0)
    assert np.isnan(state(3, 0.5, np.nan, 2.0).norm)


@pytest.mark.parametrize(("norm", "reached"), [(0.09, True), (0.1, False), (np.inf, False)])
def test_a_norm_below_the_tolerance_ends_it(norm: float, reached: bool) -> None:
    ending = Converged(below=0.1, column="x", at_most=7)
    assert ending.reached(state(3, 0.0, norm), norm_of) is reached
    assert (ending.limit, ending.column) == (7, "x")


@pytest.mark.parametrize(("norm", "reached"), [(0.0, True), (1e-300, False), (np.inf, False)])
def test_a_tolerance_of_nothing_ends_it_when_nothing_changes(norm: float, reached: bool) -> None:
    assert Converged(below=0).reached(state(3, 0.0, norm), norm_of) is reached


def test_a_count_ends_it_whatever_the_norm() -> None:
    ending = Steps(3)
    assert [ending.reached(state(n, np.nan), norm_of) for n in (2, 3, 4)] == [False, True, True]
    assert (ending.limit, ending.column) == (3, None)


def test_an_empty_workset_ends_a_delta_iteration() -> None:
    ending = NothingChanges(9)
    assert [ending.reached(state(2, 1.0, active=n), norm_of) for n in (1, 0)] == [False, True]
    assert (ending.limit, ending.column) == (9, None)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Converged(-1.0),
        lambda: Converged(float("nan")),
        lambda: Converged(1.0, at_most=2.5),  # type: ignore[arg-type]
        lambda: Steps(-1),
        lambda: Steps(True),
        lambda: NothingChanges(-1),
        lambda: NothingChanges(None),  # type: ignore[arg-type]
    ],
)
def test_wrong_numbers_are_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="must be 0 or more"):
        wrong()


@pytest.mark.parametrize("missing", ["numpy", "pyspark"])
def test_what_is_missing_is_named_with_what_brings_it(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
try:
    import millwheel.spark.iteration
except ImportError as error:
    print(type(error).__name__, error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == f"ImportError {missing} is missing: pip install 'millwheel-streams[spark]'\n"
