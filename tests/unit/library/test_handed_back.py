"""What a shard of a combiner gives when its window is over, and the pieces of what is handed back when a combiner goes.

That a store hands back what it must is in `tests/integration/test_library_combiner.py`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from millwheel import SECOND, MsgpackCoder, Pipeline, Stream
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Fixed,
    Flow,
    Global,
    Pane,
    Sliding,
    collect,
    last,
    seconds,
    sum_of,
)
from millwheel.library.combining import merging
from millwheel.library.firing import Firing
from millwheel.library.handed_back import of_accumulators, take_back, windows_of_parts
from millwheel.library.windowed import aggregate
from millwheel.library.windows import Aligned
from millwheel.model import Timer
from millwheel.shape import HANDED_BACK
from millwheel.testing import Stepper
from tests.unit.library.pipelines import Score, found, left, panes, send, windowed

parts = Stream("hot.parts.out", MsgpackCoder(Pane[bytes]))


def second(windows: Aligned) -> Stepper:
    """The second of the two steps, alone."""
    pipeline = Pipeline("second")
    firing = Firing(AtWatermark(), 0, "accumulating", "end")
    step = aggregate(windows, firing, merging(sum_of(lambda score: score.points), windows, firing))
    Flow(pipeline).read(parts).key_by(lambda pane: "ann").apply(step, "hot").to(panes)
    return Stepper(pipeline)


def part(start: int, end: int, value: Any, timing: Any = "on time") -> Pane[bytes]:
    return Pane("ann#0", start * SECOND, end * SECOND, msgspec.msgpack.encode(value), 0, timing)


@pytest.mark.parametrize("timing", ["on time", "early"])
def test_what_a_shard_had_in_time_is_a_late_pane_of_its_own_when_the_window_is_over(timing: str) -> None:
    stepper = second(Fixed(seconds=10))
    stepper.send(parts, part(0, 10, 1), 10 * SECOND - 1)
    stepper.advance_watermark(60 * SECOND)
    stepper.send(parts, part(0, 10, 20, timing), 10 * SECOND - 1)
    assert found(stepper) == [("ann", 0, 10, 1, "on time"), ("ann", 0, 10, 20, "late")]
    assert left(stepper, ["hot"]) == {}


def test_of_sliding_windows_each_gets_one_that_is_over_and_the_others_count_it() -> None:
    stepper = second(Sliding(seconds=10, every=seconds(5)))
    stepper.advance_watermark(12 * SECOND)
    stepper.send(parts, part(5, 10, 7), 10 * SECOND - 1)
    assert found(stepper) == [("ann", 0, 10, 7, "late")]
    stepper.advance_watermark(40 * SECOND)
    assert found(stepper, 1) == [("ann", 5, 15, 7, "on time")]
    stepper.send(parts, part(5, 10, 8), 10 * SECOND - 1)
    assert found(stepper, 2) == [("ann", 0, 10, 8, "late"), ("ann", 5, 15, 8, "late")]


def test_what_was_late_for_a_window_is_not_for_it() -> None:
    stepper = second(Sliding(seconds=10, every=seconds(5)))
    stepper.advance_watermark(12 * SECOND)
    stepper.send(parts, part(5, 10, 7, "late"), 10 * SECOND - 1)
    stepper.advance_watermark(40 * SECOND)
    assert found(stepper) == [("ann", 5, 15, 7, "on time")]
    stepper.send(parts, part(5, 10, 8, "late"), 10 * SECOND - 1)
    assert found(stepper, 1) == [("ann", 5, 15, 8, "late")]


def test_windows_without_a_combiner_drop_as_ever() -> None:
    stepper = Stepper(windowed(Fixed(seconds=10)))
    stepper.advance_watermark(60 * SECOND)
    send(stepper, "ann", 1, 3)
    assert found(stepper) == []


AGGREGATIONS: list[Aggregation[Score, Any, Any]] = [
    sum_of(lambda score: score.points),
    last(int, lambda score: score.points),
    collect(int, lambda score: score.points),
]


@pytest.mark.parametrize("whole", AGGREGATIONS, ids=["sum", "last", "collect"])
def test_accumulators_are_added_as_they_are_merged(whole: Aggregation[Score, Any, Any]) -> None:
    one, other = (whole.add_at(whole.zero(), Score("ann", points), points) for points in (3, 5))
    of = of_accumulators(whole)
    assert of.add(one, other) == whole.merge(one, other)
    assert (of.of_parts, whole.of_parts, of.bounded, of.subtracts) == (True, False, whole.bounded, whole.subtracts)


class Entries(dict[str, int]):
    """In the place of a cell."""

    def delete(self, entry: str) -> None:
        del self[entry]


def test_what_is_taken_back_is_added_once_at_the_watermark_of_then_and_is_no_longer_there() -> None:
    handed = {f"{start * SECOND}{HANDED_BACK}{shard}": shard for start in (0, 10) for shard in (1, 2)}
    frame, added = SimpleNamespace(cause=0), list[tuple[int, int, int, int]]()
    operator: Any = SimpleNamespace(accumulators=Entries({"0": 7, **handed}), _frame=frame)
    operator.of_accumulators = lambda: SimpleNamespace(
        add=lambda then, last, part: added.append((then.watermark, last, part, frame.cause))
    )
    timer = Timer("ann", HANDED_BACK, 12 * SECOND)
    take_back(operator, Fixed(seconds=10), SimpleNamespace(watermark=90 * SECOND), timer)  # type: ignore[arg-type]
    ends = [10 * SECOND - 1] * 2 + [20 * SECOND - 1] * 2
    causes = [10 * SECOND - 1] * 2 + [12 * SECOND] * 2
    assert added == [(12 * SECOND, *of) for of in zip(ends, (1, 2, 1, 2), causes, strict=True)]
    assert operator.accumulators == {"0": 7}
    assert frame.cause == 12 * SECOND


def test_parts_of_sliding_windows_are_slices() -> None:
    slices = windows_of_parts(Sliding(seconds=6, every=seconds(4), offset=seconds(1)))
    assert [*slices.starts(4 * SECOND)] == [3 * SECOND]
    assert slices.end(3 * SECOND) == 5 * SECOND
    windows = Global()
    assert windows_of_parts(windows) is windows
