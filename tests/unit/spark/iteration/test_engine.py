"""The loop of an iteration, without a Spark: which losses are in a row."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel.limits import ITERATION_LOSSES_IN_A_ROW
from millwheel.spark.iteration import IterationError, Steps, doors, engine
from millwheel.spark.iteration.cells import Header
from millwheel.spark.iteration.losses import LossNoticed
from millwheel.spark.iteration.policies import PolicyRun
from millwheel.spark.iteration.states import State

STEPS = ITERATION_LOSSES_IN_A_ROW + 2


def state(superstep: int) -> State:
    rdd: Any = SimpleNamespace(unpersist=lambda: None)
    return State(superstep=superstep, rdd=rdd, headers={0: Header(0, 1, 1, 1.0, 1)}, executors=frozenset())


class Mending(PolicyRun):
    """What is lost comes back as it was."""

    how = "mending"

    def start(self) -> State:
        return state(0)

    def restore(self, lost_of: State, lost: Any) -> State:
        return state(lost_of.superstep)


def iteration(monkeypatch: pytest.MonkeyPatch, lose: Any) -> engine._Iteration:
    """`lose(state)` may raise `LossNoticed` before a superstep."""
    monkeypatch.setattr(engine, "notice", lose)
    monkeypatch.setattr(doors, "lost_after", lambda *_: {0})
    states = SimpleNamespace(
        name="walk", norm_of=lambda _: 1.0, view=lambda of: of, materialised=lambda superstep, *_: state(superstep)
    )
    work = SimpleNamespace(described=lambda _: None, make=None)
    return engine._Iteration(
        states=cast(Any, states), work=cast(Any, work), ending=Steps(STEPS), policy=Mending(cast(Any, states)),
        listener=lambda _: None,
    )  # fmt: skip


def test_losses_with_a_completed_superstep_between_them_are_not_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = set[int]()

    def lose(before: State) -> None:
        if before.superstep not in lost:
            lost.add(before.superstep)
            raise LossNoticed

    outcome = iteration(monkeypatch, lose).run(None)
    assert (outcome.supersteps, len(outcome.recoveries)) == (STEPS, STEPS)


def test_losses_without_one_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(before: State) -> None:
        if before.superstep == 2:
            raise LossNoticed

    with pytest.raises(IterationError, match=f"walk: {ITERATION_LOSSES_IN_A_ROW} losses in a row"):
        iteration(monkeypatch, lose).run(None)
