"""Operators in loops: those whose results wait for the watermark are refused, because the loop's would wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import MAX_TIME, JsonCoder, Pipeline, Stream
from millwheel.errors import WiringError
from millwheel.library import (
    Chain,
    EveryRecords,
    Fixed,
    Flow,
    Global,
    Interval,
    KeyedChain,
    Repeat,
    Sessions,
    Sliding,
    Wall,
    count,
    seconds,
)
from millwheel.testing import Stepper
from millwheel_injectors import IterableSource


def in_a_loop(step: Callable[[KeyedChain[int], KeyedChain[int]], Chain[Any]]) -> Pipeline:
    """`step` of numbers, and of what came out of it before."""
    start, again = Stream("start", JsonCoder(int)), Stream("again", JsonCoder(int))
    pipeline = Pipeline("loop")
    flow = Flow(pipeline)
    flow.inject(IterableSource("rows", [(1, 1_000)]), into=start)
    back = flow.read(again).filter(lambda number: number < 3)
    step(flow.read(start).union(back).key_by(str), back.key_by(str)).map(lambda value: 5).to(again)
    return pipeline


WAITING: dict[str, Callable[[KeyedChain[int], KeyedChain[int]], Chain[Any]]] = {
    "windows": lambda one, other: one.window(Fixed(seconds=1)).aggregate(count(), name="step"),
    "sliding": lambda one, other: one.window(Sliding(seconds=2, every=seconds(1))).aggregate(count(), name="step"),
    "repeat": lambda one, other: one.window(Global(), Repeat(EveryRecords(1))).aggregate(count(), name="step"),
    "running": lambda one, other: one.running(count(), name="step"),
    "as of": lambda one, other: one.join_as_of(other, name="step"),
    "left": lambda one, other: one.join(other, Interval(after=seconds(1)), "left", name="step"),
    "outer": lambda one, other: one.join(other, Fixed(seconds=1), "outer", name="step"),
    "sessions": lambda one, other: one.join(other, Sessions(seconds=1), name="step"),
    "aggregate": lambda one, other: one.join_aggregate(other, Interval(after=seconds(1)), count(), name="step"),
}
GOING_ON: dict[str, Callable[[KeyedChain[int], KeyedChain[int]], Chain[Any]]] = {
    "inner": lambda one, other: one.join(other, Fixed(seconds=1), name="step"),
    "near": lambda one, other: one.join(other, Interval(after=seconds(1)), name="step"),
    "one": lambda one, other: one.join_one(other, name="step"),
    "wall": lambda one, other: one.window(Wall(seconds=1)).aggregate(count(), name="step"),
    "new": lambda one, other: one.deduplicate(seconds(1), name="step"),
}


@pytest.mark.parametrize("kind", WAITING)
def test_what_waits_for_the_watermark_is_refused_in_a_loop(kind: str) -> None:
    with pytest.raises(WiringError, match=r"'step' is in a loop: .* put it behind the loop"):
        in_a_loop(WAITING[kind]).graph()
    with pytest.raises(WiringError, match="'step' is in a loop"):
        Stepper(in_a_loop(WAITING[kind]))


@pytest.mark.parametrize("kind", GOING_ON)
def test_what_does_not_wait_may_be_in_a_loop(kind: str) -> None:
    stepper = Stepper(in_a_loop(GOING_ON[kind]))
    stepper.send("start", 1, 1_000)
    stepper.finish()
    assert stepper.watermark("step") == MAX_TIME
