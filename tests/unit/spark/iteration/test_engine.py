"""The loop of an iteration, without a Spark: which losses are in a row."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel.limits import ITERATION_LOSSES_IN_A_ROW
from millwheel.spark.iteration import CheckpointError, Converged, IterationError, Steps, doors, engine
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


@pytest.mark.parametrize("beyond", [0, 1])
def test_a_checkpoint_of_a_longer_run_is_no_result_of_this_one(monkeypatch: pytest.MonkeyPatch, beyond: int) -> None:
    monkeypatch.setattr(Mending, "start", lambda self: state(STEPS + beyond))
    run = iteration(monkeypatch, lambda before: None)
    if not beyond:
        assert run.run(None).supersteps == STEPS
        return
    with pytest.raises(CheckpointError, match=f"of superstep {STEPS + 1}, and this run ends after {STEPS}"):
        run.run(None)


def test_a_state_whose_checkpoint_fails_does_not_stay_in_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[int] = []

    def following(superstep: int, *_: Any) -> State:
        made = state(superstep)
        vars(made.rdd)["unpersist"] = lambda: dropped.append(superstep)
        return made

    def fail(self: Any, before: State, after: State) -> None:
        raise CheckpointError("no room")

    run = iteration(monkeypatch, lambda before: None)
    vars(run._states)["materialised"] = following
    monkeypatch.setattr(Mending, "after", fail)
    with pytest.raises(CheckpointError, match="no room"):
        run.run(None)
    assert dropped == [1]


def test_an_iteration_that_does_not_converge_ends_after_its_last_superstep(monkeypatch: pytest.MonkeyPatch) -> None:
    run = iteration(monkeypatch, lambda before: None)
    run._ending = Converged(0.1, at_most=3)
    outcome = run.run(lambda view: view.superstep)  # type: ignore[attr-defined]
    assert (outcome.supersteps, outcome.executed, outcome.value, outcome.converged) == (3, 3, 3, False)


@pytest.mark.parametrize("lost", [set(), {0, 2}])
def test_what_is_lost_comes_from_the_policy_and_else_the_same_superstep_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    failed = list[int]()

    def lose(before: State) -> None:
        if before.superstep == 3 and not failed:
            failed.append(3)
            raise LossNoticed

    run = iteration(monkeypatch, lose)
    monkeypatch.setattr(doors, "lost_after", lambda *_: {*lost})
    monkeypatch.setattr(Mending, "restore", lambda self, before, gone: state(before.superstep - 2))
    outcome = run.run(None)
    (told,) = outcome.recoveries
    assert (told.after, told.lost, told.resumed) == (3, tuple(lost), 1 if lost else 3)
    assert told.how == ("mending" if lost else "tried again")
    assert (outcome.supersteps, outcome.executed) == (STEPS, STEPS + (2 if lost else 0))


class UserError(Exception):
    """What Spark says of a job whose code has failed."""


def test_code_of_the_user_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = list[int]()

    def fail(before: State) -> None:
        tries.append(before.superstep)
        raise UserError("ZeroDivisionError: division by zero")

    monkeypatch.setattr(engine, "JobFailed", (UserError,))
    run = iteration(monkeypatch, fail)
    monkeypatch.setattr(doors, "lost_after", lambda *_: set())
    with pytest.raises(IterationError, match="walk: ZeroDivisionError: division by zero"):
        run.run(None)
    assert tries == [0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_policy_forgets_what_it_has_written_only_when_the_run_has_its_result(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    called = list[str]()
    monkeypatch.setattr(Mending, "settle", lambda self: called.append("settle"))
    monkeypatch.setattr(Mending, "forget", lambda self: called.append("forget"))

    def deliver(view: Any) -> None:
        called.append("deliver")
        if fails:
            raise OSError("no room for the result")

    run = iteration(monkeypatch, lambda before: None)
    with pytest.raises(OSError, match="no room") if fails else nullcontext():
        run.run(deliver)
    assert called == ["deliver", "settle"] + ([] if fails else ["forget"])
