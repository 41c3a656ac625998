"""Many timers that wait under one key: what is written for each of them does not grow with their number."""

from __future__ import annotations

from millwheel import SECOND, MsgpackCoder, Pipeline, Stream
from millwheel.library import Flow, Running, count, seconds
from millwheel.limits import WAITING_SPANS
from millwheel.testing import Stepper

numbers = Stream("numbers", MsgpackCoder(int))
out = Stream("out", MsgpackCoder(Running[int, int]))

RECORDS = 640


def test_what_waits_lies_in_spans_of_the_lateness() -> None:
    pipeline = Pipeline("p")
    flow = Flow(pipeline)
    flow.read(numbers).key_by(lambda number: "k").running(count(), lateness=seconds(RECORDS)).to(out)
    stepper = Stepper(pipeline)
    for second in range(1, RECORDS):
        stepper.send(numbers, second, second * SECOND)
    stepper.advance_watermark(RECORDS * SECOND)
    state = stepper.state("out.running", "k")
    assert len(state["waiting"]) == RECORDS - 1
    assert len(state["oldest"]) <= WAITING_SPANS + 1
    assert max(map(len, state["stamps"].values())) <= RECORDS // WAITING_SPANS
    assert stepper.watermark("out.running") == SECOND
    stepper.advance_watermark((RECORDS + 9) * SECOND)
    assert stepper.watermark("out.running") == 9 * SECOND
    stepper.send(numbers, 0, 9 * SECOND + 1)  # older than all that waits
    stepper.finish()
    results = [(found.value.value, found.value.result) for found in stepper.outputs(out)]
    assert results == [*((n, n) for n in range(1, 10)), (0, 10), *((n, n + 1) for n in range(10, RECORDS))]
    assert stepper.states("out.running") == {}
