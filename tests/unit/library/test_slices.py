"""Sliding windows, by slices and by windows, give the same."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from millwheel import MAX_TIME, MINUTE, SECOND
from millwheel.library import AtWatermark, EveryRecords, Fixed, Sliding, mean, minutes, seconds, sum_of
from millwheel.library.aggregate import AlignedAggregate
from millwheel.library.firing import Firing
from millwheel.library.slices import SlicedAggregate
from millwheel.library.windowed import aggregate
from millwheel.library.wiring import Inputs, Wiring
from millwheel.testing import HookFailed, Stepper
from tests.unit.library.pipelines import Score, dropped, found, left, panes, send, windowed

TEN = Sliding(seconds=10, every=seconds(5))


def computation(trigger: AtWatermark, windows: Any = TEN) -> type[Any]:
    from millwheel.library import count

    made = aggregate(windows, Firing(trigger, 0, "accumulating", "end"), count())
    return type(made.make(Wiring(Inputs([]), lambda *_: None)))


def test_slices_are_for_triggers_that_do_not_count() -> None:
    assert issubclass(computation(AtWatermark()), SlicedAggregate)
    assert issubclass(computation(AtWatermark(early=EveryRecords(3))), AlignedAggregate)
    assert issubclass(computation(AtWatermark(), Fixed(seconds=1)), AlignedAggregate)


def test_each_window_gives_its_pane_in_order() -> None:
    stepper = Stepper(windowed(TEN))
    for second in (1, 6, 7, 21):
        send(stepper, "ann", 1, second)
    stepper.finish()
    assert found(stepper) == [
        ("ann", -5, 5, 1, "on time"), ("ann", 0, 10, 3, "on time"), ("ann", 5, 15, 2, "on time"),
        ("ann", 15, 25, 1, "on time"), ("ann", 20, 30, 1, "on time"),
    ]  # fmt: skip
    assert left(stepper, ["panes.sum"]) == {}


def test_a_record_writes_one_slice_however_many_windows_overlap() -> None:
    stepper = Stepper(windowed(Sliding(minutes=60, every=minutes(1))))
    for second in (1, 2, 3):
        send(stepper, "ann", 1, second)
    assert stepper.states("panes.sum") == {"ann": {"accumulators": {"0": 3}, "due": MINUTE}}
    stepper.finish()
    assert len(found(stepper)) == 60


@pytest.mark.parametrize("mode", ["accumulating", "discarding"])
def test_a_late_record_gives_a_pane_of_each_window_that_had_its_own(mode: str) -> None:
    stepper = Stepper(windowed(TEN, lateness=seconds(4), panes=mode, dropped=dropped))
    send(stepper, "ann", 1, 6)
    stepper.advance_watermark(13 * SECOND)
    send(stepper, "ann", 2, 7)
    stepper.advance_watermark(16 * SECOND)
    send(stepper, "ann", 4, 8)
    stepper.advance_watermark(19 * SECOND)
    send(stepper, "ann", 8, 9)
    late = [3, 7] if mode == "accumulating" else [2, 4]
    assert found(stepper) == [
        ("ann", 0, 10, 1, "on time"), ("ann", 0, 10, late[0], "late"), ("ann", 5, 15, 3, "on time"),
        ("ann", 5, 15, late[1], "late"),
    ]  # fmt: skip
    assert [out.value.number for out in stepper.outputs(panes)] == [0, 1, 0, 1]
    assert len(stepper.outputs(dropped)) == 1
    assert left(stepper, ["panes.sum"]) == {}


def test_a_window_has_had_its_end_when_the_watermark_is_at_it() -> None:
    stepper = Stepper(windowed(TEN, lateness=seconds(4), dropped=dropped))
    send(stepper, "ann", 1, 6)
    stepper.advance_watermark(10 * SECOND)
    send(stepper, "ann", 2, 7)
    assert found(stepper) == [("ann", 0, 10, 1, "on time"), ("ann", 0, 10, 3, "late")]


def test_a_record_that_is_late_for_some_windows_counts_in_the_others() -> None:
    stepper = Stepper(windowed(TEN))
    send(stepper, "ann", 1, 6)
    stepper.advance_watermark(10 * SECOND)
    assert "running" in stepper.state("panes.sum", "ann")
    send(stepper, "ann", 2, 7)
    stepper.finish()
    assert found(stepper) == [("ann", 0, 10, 1, "on time"), ("ann", 5, 15, 3, "on time")]
    assert left(stepper, ["panes.sum"]) == {}


def test_a_watermark_at_the_last_instant_waits() -> None:
    stepper = Stepper(windowed(TEN))
    send(stepper, "ann", 1, 1)
    stepper.advance_watermark(5 * SECOND - 1)
    send(stepper, "ann", 2, 4.999999)
    assert stepper.watermark("panes.sum") == 5 * SECOND - 1
    stepper.advance_watermark(5 * SECOND)
    assert found(stepper) == [("ann", -5, 5, 3, "on time")]
    stepper.advance_watermark(10 * SECOND)
    assert found(stepper, 1) == [("ann", 0, 10, 3, "on time")]
    assert left(stepper, ["panes.sum"]) == {}
    assert stepper.watermark("panes.sum") == 10 * SECOND


@pytest.mark.parametrize("odd", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("of", [sum_of, mean])
def test_what_is_no_number_is_in_the_windows_that_hold_it_alone(of: Any, odd: float) -> None:
    results = []
    for trigger in (AtWatermark(), AtWatermark(early=EveryRecords(1_000))):
        stepper = Stepper(
            windowed(TEN, aggregation=of(lambda score: odd if score.points == 3 else score.points), trigger=trigger)
        )
        for second in range(1, 40, 4):
            send(stepper, "ann", second // 4, second)
        stepper.finish()
        results.append([(pane[1], str(pane[3])) for pane in found(stepper)])
    assert results[0] == results[1]
    assert [start for start, value in results[0] if value == str(odd)] == [5, 10]


def test_a_record_at_the_end_of_time_is_refused_as_by_other_windows() -> None:
    stepper = Stepper(windowed(TEN))
    with pytest.raises(HookFailed, match="out of range"):
        stepper.send("scores", Score("ann", 1), MAX_TIME - 1)


def test_windows_of_lengths_without_a_common_part_are_not_made_of_slices() -> None:
    """There would be ten million of them a window, and the process would look for each."""
    windows = Sliding(seconds=10, every=timedelta(seconds=1) / 3)
    assert windows.size // windows.slice_us == 10_000_000
    assert issubclass(computation(AtWatermark(), windows), AlignedAggregate)
    stepper = Stepper(windowed(windows))
    send(stepper, "ann", 5, 1)
    stepper.finish()
    assert {value for _, _, _, value, _ in found(stepper)} == {5}
    assert len(found(stepper)) in (30, 31)
