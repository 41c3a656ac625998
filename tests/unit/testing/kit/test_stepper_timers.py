"""The test kit sees timers as production runs them: in the order of their times, however far the watermark jumps."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import (
    HOUR,
    SECOND,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    Pipeline,
    Record,
    Stream,
    TextCoder,
    Timer,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.testing import NO_FAULTS, HookFailed, Stepper, simulate

WORDS = Stream("words", TextCoder())


class Ticking(Computation[str]):
    """A tick every `step` up to `last`, in event time, and a window at 35."""

    fired = ListCell(JsonCoder(int))

    def __init__(self, step: int, last: int) -> None:
        self.step = step
        self.last = last

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.set_timer("tick", record.timestamp + self.step)
        context.set_timer("window", record.timestamp + 35)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.fired.append(timer.timestamp)
        if timer.tag == "tick" and timer.timestamp < self.last:
            context.set_timer("tick", timer.timestamp + self.step)


class Restless(Computation[str]):
    """A timer that sets itself to its own time, for ever; other records are counted."""

    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.count.set(self.count.get() + 1)
        if record.value == "wall":
            context.set_timer("again", context.wall_time, "wall")
        if record.value == "watermark":
            context.set_timer("again", record.timestamp)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        context.set_timer("again", timer.timestamp, timer.kind)


def pipeline(factory: Any, **settings: Any) -> Pipeline:
    made = Pipeline("timers")
    made.add(factory, inputs=[subscribe(WORDS, key=str)], name="it", **settings)
    return made


@pytest.mark.parametrize("steps", [[100], [10, 20, 30, 35, 40, 100], [12, 34, 36], range(1, 50)])
def test_small_steps_of_the_watermark_and_one_jump_give_the_same(steps: Any) -> None:
    stepper = Stepper(pipeline(lambda: Ticking(10, 40)))
    stepper.send(WORDS, "to", 0)
    for step in steps:
        stepper.advance_watermark(step)
    stepper.finish()
    assert stepper.state("it", "to") == {"fired": [10, 20, 30, 35, 40]}


def test_a_chain_that_catches_up_with_three_hours_is_not_quarantined_and_costs_few_checkpoints() -> None:
    stepper = Stepper(pipeline(lambda: Ticking(SECOND, 3 * HOUR)))
    stepper.send(WORDS, "to", 0)
    events = stepper.kernel.events
    stepper.advance_watermark(3 * HOUR)
    assert stepper.state("it", "to") == {"fired": [35, *range(SECOND, 3 * HOUR + 1, SECOND)]}
    assert stepper.kernel.events - events < 100


@pytest.mark.parametrize("kind", ["wall", "watermark"])
def test_a_timer_that_never_gets_further_is_quarantined_and_others_go_on(kind: str) -> None:
    stepper = Stepper(pipeline(Restless), quarantine=True)
    stepper.advance_watermark(5)
    stepper.send(WORDS, kind, 5)
    stepper.advance_watermark(6)
    assert [(row.computation, row.key) for row in stepper.quarantined()] == [("it", kind)]
    assert stepper.kernel.probes[f"{kind} timer fired"] == limits.TIMER_REARM_LIMIT + 1
    stepper.send(WORDS, "to", 6)
    assert stepper.state("it", "to") == {"count": 1}
    with pytest.raises(HookFailed, match="a loop"):
        Stepper(pipeline(Restless)).send(WORDS, "wall", 5)


def test_a_simulation_ends_the_same_with_and_without_faults() -> None:
    rows = [(word, at) for at, word in enumerate(["to", "be", "or", "not"])]
    calm = simulate(pipeline(lambda: Ticking(7, 200)), {"words": rows}, faults=NO_FAULTS)
    for seed in range(3):
        rough = simulate(pipeline(lambda: Ticking(7, 200), work_limit_records=1 + seed), {"words": rows}, seed)
        assert rough.states("it") == calm.states("it")
