"""How many losses a run bears, and what is no loss."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException

from millwheel.limits import ITERATION_LOSSES_IN_A_ROW
from millwheel.spark.iteration import IterationError, doors
from millwheel.spark.iteration.doors import BLOCK_LOST
from millwheel.spark.iteration.losses import Losses, LossNoticed, notice, reason

LOST = PySparkException(f"[{BLOCK_LOST}] Checkpoint block rdd_7_1 not found!")
BUG = PySparkException('File "step.py", line 3, in f\nZeroDivisionError: division by zero')


def test_so_many_losses_in_a_row_are_borne() -> None:
    losses = Losses("ranks")
    for _ in range(ITERATION_LOSSES_IN_A_ROW):
        losses.count(LossNoticed())
    with pytest.raises(IterationError, match=r"^ranks: 8 losses in a row without one completed superstep"):
        losses.count(LOST)
    losses.forget()
    losses.count(LOST)


@pytest.mark.parametrize(("there", "lost", "noticed"), [("1", True, True), ("1", False, False), ("12", True, False)])
def test_an_executor_that_has_gone_is_a_loss_when_it_took_partitions_along(
    monkeypatch: pytest.MonkeyPatch, there: str, lost: bool, noticed: bool
) -> None:
    monkeypatch.setattr(doors, "executors", lambda context: {*there})
    monkeypatch.setattr(doors, "lost_after", lambda rdd, error: {1} if lost else set())
    state: Any = SimpleNamespace(executors={"1", "2"}, rdd=SimpleNamespace(ctx=None))
    with pytest.raises(LossNoticed) if noticed else nullcontext():
        notice(state)


def test_a_loss_on_the_way_means_to_try_again_and_an_error_of_the_user_does_not() -> None:
    tries: list[Exception] = [LOST, LOST]

    def produce() -> str:
        if tries:
            raise tries.pop()
        return "whole"

    assert Losses("ranks").borne(produce) == "whole"
    tries[:] = [LOST, BUG]
    with pytest.raises(IterationError, match=r"^ranks: ZeroDivisionError: division by zero$"):
        Losses("ranks").borne(produce)
    assert tries == [LOST]
    tries[:] = [LOST] * 20
    with pytest.raises(IterationError, match="8 losses in a row"):
        Losses("ranks").borne(produce)
    assert len(tries) == 20 - ITERATION_LOSSES_IN_A_ROW - 1


def test_the_reason_is_the_python_error_if_there_is_one() -> None:
    assert (
        reason(RuntimeError("Job aborted\n  pkg.CheckError: first\npkg.ColumnsError: key 3")) == "ColumnsError: key 3"
    )
    assert reason(RuntimeError("a.FirstError: caused\nb.LastError: key 3")) == "LastError: key 3"
    assert reason(RuntimeError("Job aborted\nmore")) == "Job aborted"
    assert reason(RuntimeError()) == "RuntimeError()"
