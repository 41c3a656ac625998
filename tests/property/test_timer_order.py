"""However far the watermark jumps, the timers of a key fire in the same order, and so everything ends the same.

Programs of timers that set, move and cancel timers are drawn, with pages, bounds and restarts; the model keeps one dict of
what is pending, and takes the earliest by time and then by tag.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    Pipeline,
    Record,
    Stream,
    TextCoder,
    Timer,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.testing import Stepper
from tests.effort import examples

IN = Stream("in", TextCoder())
OUT = Stream("out", JsonCoder(list[Any]))
END = 60

Program = dict[str, list[tuple[str, int | None]]]
"""Tag to what its hook does: (tag, how much later it is set to, or None: it is cancelled)."""

TAGS = st.sampled_from("abcdef")
ACTIONS = st.lists(st.tuples(TAGS, st.none() | st.integers(-3, 25)), max_size=3)
PROGRAMS = st.dictionaries(TAGS, ACTIONS)
STARTS = st.dictionaries(TAGS, st.integers(1, 40), min_size=1)
STEPS = st.lists(st.integers(1, END), max_size=6).map(sorted)
FIRINGS = 40
"""Of one key; then its program is over, for most have no end."""


class Programmed(Computation[str]):
    """Starts its timers with its record, and does what the program says."""

    order = ValueCell(JsonCoder(list[Any]), default=[])

    def __init__(self, program: Program, starts: dict[str, int]) -> None:
        self.program = program
        self.starts = starts

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        for tag, at in self.starts.items():
            context.set_timer(tag, at)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        order = self.order.get()
        self.order.set([*order, [timer.tag, timer.timestamp]])
        context.produce(OUT, [context.key, len(order)])
        if len(order) < FIRINGS:
            for tag, later in self.program.get(timer.tag, []):
                if later is None:
                    context.cancel_timer(tag)
                else:
                    context.set_timer(tag, timer.timestamp + later)


class Last(Computation[list[Any]]):
    def ProcessRecord(self, context: Context, record: Record[list[Any]]) -> None:
        pass


def model(program: Program, starts: dict[str, int]) -> list[list[Any]]:
    """What fires until the end of time."""
    pending, order = dict(starts), list[list[Any]]()
    while pending:
        at, tag = min((at, tag) for tag, at in pending.items())
        del pending[tag]
        for other, later in program.get(tag, []) if len(order) < FIRINGS else []:
            if later is None:
                pending.pop(other, None)
            else:
                pending[other] = at + later
        order.append([tag, at])
    return order


def bounds(**values: int) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for name, value in values.items():
        stack.enter_context(patch.object(limits, name, value))
    return stack


@settings(max_examples=examples(60, gate=30))
@given(
    PROGRAMS, STARTS, STEPS, st.booleans(), st.sampled_from([0, 1, 3, 1_024]), st.sampled_from([0, 2, 64]),
    st.sampled_from([1, 2, 16_384]), st.sampled_from([1, 3, 4_096]),
)  # fmt: skip
def test_the_order_of_firings_does_not_depend_on_the_steps_of_the_watermark(
    program: Program, starts: dict[str, int], steps: list[int], restarts: bool, chain: int, stalled: int, page: int,
    work: int,
) -> None:  # fmt: skip
    pipeline = Pipeline("programmed")
    pipeline.add(
        lambda: Programmed(program, starts), [subscribe(IN, key=str)], [OUT], name="p", work_limit_records=work
    )
    pipeline.add(Last, [subscribe(OUT, key=lambda value: value[0])])
    memory = {"TIMER_PAGE_ROWS": page, "TIMERS_IN_MEMORY": 0 if page < 9 else 131_072}
    with bounds(TIMER_CHAIN=chain, TIMER_STALLED_CHAIN=stalled, TIMER_REARM_LIMIT=1_000, **memory):
        stepper = Stepper(pipeline)
        for key in ("x", "y"):
            stepper.send(IN, key, 0)
        for step in steps:
            stepper.advance_watermark(step)
            if restarts:
                stepper.restart()
        stepper.finish()
    wanted = model(program, starts)
    for key in ("x", "y"):
        assert stepper.state("p", key).get("order", {"": []}) in (wanted, {"": wanted}), key
