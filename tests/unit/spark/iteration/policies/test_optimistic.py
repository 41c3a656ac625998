"""Optimistic recovery alone on a real Spark: what compensation gets, what becomes of what it gives, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from examples.graphs.runs import rows_of
from millwheel.spark.iteration import CompensationError, Loss, Optimistic, Part, Partitioned, Repair, partition_of
from millwheel.spark.iteration.states import NOTHING, Beside

pytestmark = [pytest.mark.spark]

HOMES = partition_of(np.arange(30), 3)


def in_lost(loss: Loss, part: Part, x: float) -> Part:
    return part.having(x=part["x"] + x) if part.number in loss.lost else part.take(np.arange(0))


def two_of(part: Part) -> Part:
    return part.take(np.arange(min(2, len(part))))


def given(x: float) -> Callable[[Loss], Partitioned[Part]]:
    """A compensation that gives the lost partitions their initial content, moved by `x`."""
    return lambda loss: loss.initial.map(lambda part: in_lost(loss, part, x))


def test_nothing_is_written_and_the_conserved_column_is_added_up(walk: Callable[..., Any]) -> None:
    one = walk(Optimistic(given(0.0), conserved="x"))
    state = one.after(2)
    assert (one.asked, one.policy.newest) == ([Beside(conserved="x")] * 2, None)
    assert state.total == sum(range(30)) + 60.0
    plain = walk(Optimistic(given(0.0)))
    assert (plain.after(1).total, plain.asked) == (0.0, [NOTHING])


def test_survivors_stay_and_the_lost_get_what_compensation_gives(walk: Callable[..., Any]) -> None:
    seen: list[Loss] = []

    def compensate(loss: Loss) -> Partitioned[Part]:
        seen.append(loss)
        return given(0.5)(loss)

    one = walk(Optimistic(compensate, lambda part, initial: None))
    state = one.after(3)
    repaired = one.policy.restore(state, {1})
    expected = {key: key + (0.5 if HOMES[key] == 1 else 3.0) for key in range(30)}
    assert rows_of(one.states.view(repaired)) == expected
    assert (repaired.superstep, repaired.norm) == (3, np.inf)
    (loss,) = seen
    assert (loss.superstep, loss.lost, loss.pending) == (3, (1,), None)
    assert dict(loss.rows) == {number: int(np.sum(number == HOMES)) for number in range(3)}
    assert rows_of(loss.survivors) == {key: key + 3.0 for key in range(30) if HOMES[key] != 1}


def test_everything_may_be_lost(walk: Callable[..., Any]) -> None:
    one = walk(Optimistic(given(2.0)))
    repaired = one.policy.restore(one.after(1), {0, 1, 2})
    assert one.grown(repaired) == 2.0


def test_a_delta_iteration_wakes_what_it_is_told_to(walk: Callable[..., Any]) -> None:
    def compensate(loss: Loss) -> Repair:
        assert loss.pending is not None
        assert {part.number for part in loss.pending.collect() if len(part)} == {0, 2}
        return Repair(given(0.0)(loss), loss.initial.map(lambda part: two_of(in_lost(loss, part, 0.0))))

    one = walk(Optimistic(compensate), delta=True)
    state = one.after(1)
    repaired = one.policy.restore(state, {1})
    assert {number: header.active for number, header in repaired.headers.items()} == {
        number: 2 if number == 1 else state.headers[number].active for number in range(3)
    }


@pytest.mark.parametrize(
    ("policy", "delta", "message"),
    [
        (Optimistic(lambda loss: None), False, "after superstep 1 must return a Partitioned, not NoneType"),
        (Optimistic(given(0.0)), True, "after superstep 1 must return a Repair, not Partitioned"),
        (Optimistic(lambda loss: loss.initial), False, r"partition \d was not lost, and compensation gave content"),
        (Optimistic(given(0.0), lambda part, initial: "key 7 is odd"), False, "partition 1: key 7 is odd"),
        (Optimistic(given(0.5), conserved="x"), False, "total of column 'x' is .*, and was 435.0 at the start"),
        (Optimistic(given(np.nan), conserved="x"), False, "total of column 'x' is nan, and was 435.0 at the start"),
    ],
)
def test_what_breaks_the_contract_is_refused(
    walk: Callable[..., Any], policy: Optimistic, delta: bool, message: str
) -> None:
    one = walk(policy, delta=delta)
    state = one.after(1)
    with pytest.raises(CompensationError, match=f"^walk: .*{message}"):
        one.policy.restore(state, {1})


def test_a_total_that_is_what_it_was_is_accepted(walk: Callable[..., Any]) -> None:
    """Survivors have grown by one row's worth each; the compensation takes that back."""

    def compensate(loss: Loss) -> Partitioned[Part]:
        grown = sum(rows for number, rows in loss.rows.items() if number not in loss.lost)
        return given(-grown / loss.rows[1])(loss)

    one = walk(Optimistic(compensate, conserved="x"))
    repaired = one.policy.restore(one.after(1), {1})
    assert repaired.total == pytest.approx(435.0, rel=1e-12)
