"""Sliding windows of what cannot be subtracted: the two stacks give what all slices give, and are kept no longer."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import MINUTE, SECOND, JsonCoder
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Sliding,
    collect,
    count,
    first,
    last,
    maximum,
    minimum,
    minutes,
    seconds,
    top,
)
from millwheel.library.aggregations import aggregation
from millwheel.library.firing import Firing
from millwheel.library.sketches import distinct
from millwheel.library.slices import SlicedAggregate
from millwheel.library.stacks import StackedAggregate
from millwheel.library.windowed import aggregate
from millwheel.library.wiring import Inputs, Wiring
from millwheel.testing import Stepper
from tests.unit.library.pipelines import Score, dropped, left, many, panes, send, windowed
from tests.unit.library.test_slices import TEN

BOUNDED: dict[str, Aggregation[Score, Any, Any]] = {
    "minimum": minimum(lambda score: score.points),
    "maximum": maximum(lambda score: score.points),
    "first": first(int, lambda score: score.points),
    "last": last(int, lambda score: score.points),
    "top": top(2, lambda points: points, int, lambda score: score.points),
    "distinct": distinct(lambda score: score.points),
}
SHAPES = [
    Sliding(seconds=12, every=seconds(4)),
    Sliding(seconds=10, every=seconds(4)),
    Sliding(seconds=9, every=seconds(9)),
]
LATE = 6


def kind_of(of: Aggregation[Any, Any, Any]) -> type[Any]:
    made = aggregate(TEN, Firing(AtWatermark(), 0, "accumulating", "end"), of)
    return type(made.make(Wiring(Inputs([]), lambda *_: None)))


def test_stacks_are_for_small_accumulators_that_cannot_be_subtracted() -> None:
    own: Aggregation[Any, Any, Any] = aggregation(
        "own", list, lambda a, v: a, lambda a, b: a, len, JsonCoder(list[int]), int
    )
    for of in BOUNDED.values():
        assert issubclass(kind_of(of), StackedAggregate)
    others: list[Aggregation[Any, Any, Any]] = [count(), collect(int), own]
    for other in others:
        assert issubclass(kind_of(other), SlicedAggregate)
        assert not issubclass(kind_of(other), StackedAggregate)


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=15)
@given(
    many(st.tuples(st.integers(0, 60), st.integers(-50, 50), st.integers(0, LATE)), 30),
    st.sampled_from(SHAPES),
    st.lists(st.integers(0, LATE), min_size=1, max_size=4),
    st.booleans(),
)
def test_each_window_is_what_its_records_are(
    name: str, drawn: list[tuple[int, int, int]], shape: Sliding, lags: list[int], late: bool
) -> None:
    """In any order within the disorder, also when records come for windows of which the next ones have a part already."""
    of = BOUNDED[name]
    rows = [(second, points) for second, points, _ in sorted(drawn, key=lambda row: row[0] + row[2])]
    stepper = Stepper(windowed(shape, of, lateness=seconds(LATE) if late else 0))
    newest = 0
    for place, (second, points) in enumerate(rows):
        send(stepper, "ann", points, second)
        newest = max(newest, second)
        stepper.advance_watermark((newest - (lags[place % len(lags)] if late else LATE)) * SECOND)
    stepper.finish()
    expected = {}
    for start in sorted({start for second, _ in rows for start in shape.starts(second * SECOND)}):
        inside = [(second * SECOND, points) for second, points in rows if start <= second * SECOND < shape.end(start)]
        accumulator = of.zero()
        for time, points in inside:
            accumulator = of.add_at(accumulator, Score("ann", points), time)
        expected[start] = of.result(accumulator)
    assert {out.value.start: out.value.value for out in stepper.outputs(panes)} == expected
    assert left(stepper, [f"panes.{name}"]) == {}


class Counting:
    """A coder that counts what is read."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.decoded, self.fingerprint, self.encode = inner, 0, inner.fingerprint, inner.encode

    def decode(self, data: bytes, /) -> Any:
        self.decoded += 1
        return self.inner.decode(data)

    def __copy__(self) -> Counting:
        return self  # the cells of all steps count together


def test_the_cost_of_a_window_does_not_grow_with_its_slices() -> None:
    """Of a window of sixty slices each is read a few times, not sixty times."""
    of: Aggregation[Score, Any, Any] = minimum(lambda score: score.points)
    coder: Any = Counting(of.accumulator)
    of.accumulator = coder
    stepper = Stepper(windowed(Sliding(minutes=60, every=minutes(1)), of))
    for minute in range(240):
        send(stepper, "ann", minute % 7, minute * 60)
        stepper.advance_watermark(minute * MINUTE)
    assert coder.decoded < 8 * 240
    stepper.finish()
    assert left(stepper, ["panes.minimum"]) == {}


def test_a_late_record_of_a_slice_that_was_merged_counts_in_the_windows_to_come() -> None:
    stepper = Stepper(windowed(TEN, BOUNDED["maximum"], dropped=dropped))
    send(stepper, "ann", 1, 6)
    stepper.advance_watermark(10 * SECOND)
    assert "running" in stepper.state("panes.maximum", "ann")
    send(stepper, "ann", 9, 7)
    stepper.finish()
    assert [out.value.value for out in stepper.outputs(panes)] == [1, 9]
