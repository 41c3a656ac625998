"""A combiner in front of a hot key changes how the work is spread, and nothing else."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from millwheel import SECOND
from millwheel.errors import WiringError
from millwheel.library import (
    AtWatermark,
    Combiner,
    EveryRecords,
    Fixed,
    Repeat,
    Sessions,
    Sliding,
    collect,
    last,
    seconds,
    sum_of,
)
from millwheel.shape import CombinedBy, PipelineShape
from millwheel.testing import NO_FAULTS, Results, Stepper, simulate
from millwheel_injectors import IterableSource
from tests.unit.library.pipelines import Score, dropped, found, left, panes, scores, send, windowed

ROWS = [(Score("ann" if n % 3 else "bob", n), (n * 37 % 50) * SECOND) for n in range(60)]
WINDOWS = [
    Fixed(seconds=10),
    Sliding(seconds=20, every=seconds(5)),
    Sliding(timedelta(microseconds=1_200), every=timedelta(microseconds=400), offset=timedelta(microseconds=100)),
]
"""The slices of the last one are shorter than what a number alone may say."""
AGGREGATIONS = [
    sum_of(lambda score: score.points),
    last(int, lambda score: score.points),
    collect(int, lambda score: score.points),
]


def final(results: Results) -> dict[Any, Any]:
    return {(o.value.key, o.value.start): (o.value.value, o.value.timing) for o in results.outputs(panes)}


@pytest.mark.parametrize("windows", WINDOWS, ids=["fixed", "sliding", "short slices"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["sum", "last", "collect"])
def test_the_panes_are_the_same(windows: Any, aggregation: Any) -> None:
    plain = windowed(windows, aggregation=aggregation)
    spread = windowed(windows, aggregation=aggregation, combiner=Combiner(4), name="hot")
    calm = simulate(plain, {"scores": ROWS}, faults=NO_FAULTS)
    rough = simulate(spread, {"scores": ROWS}, seed=5)
    assert final(rough) == final(calm)
    assert left(rough, ["hot.parts", "hot"]) == {}


def test_a_key_is_gathered_under_several() -> None:
    stepper = Stepper(windowed(Fixed(seconds=10), combiner=Combiner(4), name="hot"))
    for points in range(50):
        send(stepper, "ann", points, 1)
    assert sorted(stepper.states("hot.parts")) == ["ann#0", "ann#1", "ann#2", "ann#3"]
    assert stepper.states("hot") == {}
    stepper.finish()
    assert found(stepper) == [("ann", 0, 10, sum(range(50)), "on time")]


def test_a_value_without_a_key_is_for_no_shard_either() -> None:
    spread = Combiner(2).spread(lambda text: text or None)
    assert spread("") is None
    assert str(spread("ann")).startswith("ann#")


def test_what_goes_to_which_shard_may_be_said() -> None:
    stepper = Stepper(windowed(Fixed(seconds=10), combiner=Combiner(4, by=lambda score: 1), name="hot"))
    for points in range(50):
        send(stepper, "a#b", points, 1)
    assert len(stepper.states("hot.parts")) == 1
    stepper.finish()
    assert found(stepper) == [("a#b", 0, 10, sum(range(50)), "on time")]


@pytest.mark.parametrize("windows", WINDOWS, ids=["fixed", "sliding", "short slices"])
def test_late_records_count_as_without(windows: Any) -> None:
    results = []
    both: list[dict[str, Any]] = [{}, {"combiner": Combiner(3), "name": "hot"}]
    for settings in both:
        stepper = Stepper(windowed(windows, lateness=seconds(7), **settings))
        for points, second in [(1, 1), (2, 8), (4, 13)]:
            send(stepper, "ann", points, second)
            stepper.advance_watermark((second + 4) * SECOND)
            send(stepper, "ann", 10 * points, second - 1)
        send(stepper, "ann", 1_000, 5)
        stepper.finish()
        results.append(found(stepper))
        assert left(stepper, ["hot.parts", "hot"] if settings else ["panes.sum"]) == {}
    assert results[0] == results[1]


@pytest.mark.parametrize("lateness", [0, 3])
def test_what_no_window_takes_any_more_is_dropped_as_without(lateness: int) -> None:
    uneven = Sliding(seconds=10, every=seconds(4))
    both: list[dict[str, Any]] = [{}, {"combiner": Combiner(3), "name": "hot"}]
    for settings in both:
        stepper = Stepper(windowed(uneven, lateness=seconds(lateness), dropped=dropped, **settings))
        send(stepper, "ann", 1, 13)
        stepper.advance_watermark((10 + lateness) * SECOND - 1)
        send(stepper, "ann", 2, 3)
        stepper.advance_watermark((10 + lateness) * SECOND)
        send(stepper, "ann", 4, 3)
        assert [out.value.points for out in stepper.outputs(dropped)] == [4]


def test_early_panes_come_with_whatever_a_shard_gives() -> None:
    trigger = AtWatermark(early=EveryRecords(2))
    stepper = Stepper(windowed(Fixed(seconds=10), trigger=trigger, combiner=Combiner(2, by=lambda s: 0), name="hot"))
    for points in (1, 2, 3):
        send(stepper, "ann", points, 1)
    assert found(stepper) == [("ann", 0, 10, 3, "early")]
    stepper.finish()
    assert found(stepper, 1) == [("ann", 0, 10, 6, "on time")]


def test_a_pane_at_the_watermark_that_discards_has_what_no_early_one_had() -> None:
    trigger = AtWatermark(early=EveryRecords(2))
    combiner = Combiner(2, by=lambda score: score.points % 2 * 4)
    stepper = Stepper(windowed(Fixed(seconds=10), trigger=trigger, panes="discarding", combiner=combiner, name="hot"))
    for points in (1, 10, 3, 20, 5, 30, 40, 7, 9):
        send(stepper, "ann", points, 1)
    stepper.finish()
    early = [("ann", 0, 10, points, "early") for points in (4, 30, 70, 12)]
    assert found(stepper) == [*early, ("ann", 0, 10, 9, "on time")]


def test_of_sliding_windows_only_the_last_slice_has_what_waits_for_the_end() -> None:
    trigger = AtWatermark(early=EveryRecords(100))
    windows = Sliding(seconds=10, every=seconds(5))
    stepper = Stepper(windowed(windows, trigger=trigger, panes="discarding", combiner=Combiner(2), name="hot"))
    for points, second in ((1, 2), (2, 7), (4, 12)):
        send(stepper, "ann", points, second)
        stepper.advance_watermark((second + 4) * SECOND)
    stepper.finish()
    assert sorted(found(stepper), key=lambda pane: pane[1]) == [
        ("ann", -5, 5, 1, "on time"),
        ("ann", 0, 10, 1, "early"),
        ("ann", 0, 10, 2, "on time"),
        ("ann", 5, 15, 2, "early"),
        ("ann", 5, 15, 4, "on time"),
        ("ann", 10, 20, 4, "early"),
        ("ann", 10, 20, 0, "on time"),
    ]


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS, ids=["sum", "last", "collect"])
def test_the_second_step_has_the_state_of_the_only_one(windows: Any, aggregation: Any) -> None:
    def shape(combiner: Combiner | None) -> PipelineShape:
        pipeline = windowed(windows, aggregation=aggregation, combiner=combiner, name="hot")
        pipeline.inject(IterableSource("src", []), into=scores)
        return pipeline.graph().shape()

    def cells(of: PipelineShape) -> dict[str, str]:
        return {name: it for name, it in of.coders.items() if name.rpartition(".")[0] == "cell:hot"}

    assert cells(shape(None)) == cells(shape(Combiner(4)))
    assert shape(Combiner(4)).combiners == {"hot": CombinedBy("hot.parts", "", "#0", ("source:src",))}


@pytest.mark.parametrize(
    ("windows", "settings"),
    [
        (Sessions(seconds=3), {"combiner": Combiner(2), "name": "hot"}),
        (Fixed(seconds=3), {"combiner": Combiner(2)}),
        (Fixed(seconds=3), {"combiner": Combiner(2), "name": "hot", "trigger": Repeat(EveryRecords(1))}),
    ],
)
def test_what_a_combiner_cannot_do_is_refused(windows: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(WiringError, match="'hot'" if "name" in settings else r"give it name=\.\.\."):
        windowed(windows, **settings)
    with pytest.raises(WiringError):
        Combiner(1)


@pytest.mark.parametrize("windows", [Fixed(seconds=3), Sliding(seconds=4, every=seconds(2))])
@pytest.mark.parametrize("time", ["earliest", "latest", lambda time: time])
def test_another_time_than_the_end_is_refused_with_a_combiner(windows: Any, time: Any) -> None:
    with pytest.raises(WiringError, match=r"'hot' has a combiner.* leave out time=, or the combiner"):
        windowed(windows, combiner=Combiner(2), name="hot", time=time)
    windowed(windows, combiner=Combiner(2), name="hot", time="end")
