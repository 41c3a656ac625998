"""How exactly a repaired state has the total of the conserved column."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millwheel.spark.iteration import CompensationError, Optimistic
from millwheel.spark.iteration.cells import Header
from millwheel.spark.iteration.states import State


def repaired(total: float) -> State:
    header = Header(0, 1, 1, np.inf, 1, total=total)
    rdd: Any = None
    return State(superstep=4, rdd=rdd, headers={0: header}, executors=frozenset())


@pytest.mark.parametrize("wanted", [1.0, -1.0, 435.0, 1e-6, -1e-6, 1e-200, 3e12])
@pytest.mark.parametrize(("share", "is_refused"), [(0.0, False), (0.9e-9, False), (-0.9e-9, False), (1.1e-9, True)])
def test_a_total_is_kept_to_one_part_in_a_thousand_million_however_small_it_is(
    wanted: float, share: float, is_refused: bool
) -> None:
    states: Any = SimpleNamespace(name="walk", initial=SimpleNamespace(total=lambda _: wanted))
    run = Optimistic(lambda loss: None, conserved="x").over(states)
    says = f"^walk: after compensation the total of column 'x' is .*, and was {wanted!r} at the start"
    with pytest.raises(CompensationError, match=says) if is_refused else nullcontext():
        run._check_conserved(repaired(wanted * (1 + share)))


@pytest.mark.parametrize(("total", "is_refused"), [(0.0, False), (1e-12, True), (np.nan, True)])
def test_a_total_of_nothing_stays_nothing(total: float, is_refused: bool) -> None:
    states: Any = SimpleNamespace(name="walk", initial=SimpleNamespace(total=lambda _: 0.0))
    run = Optimistic(lambda loss: None, conserved="x").over(states)
    with pytest.raises(CompensationError) if is_refused else nullcontext():
        run._check_conserved(repaired(total))
