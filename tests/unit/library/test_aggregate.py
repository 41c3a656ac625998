"""Panes of windows: when, with what, and that nothing is left."""

from __future__ import annotations

import pytest

from millwheel import MAX_TIME, MINUTE, SECOND
from millwheel.errors import WiringError
from millwheel.library import (
    AtWatermark,
    Calendar,
    EveryRecords,
    EveryWall,
    Fixed,
    Global,
    Once,
    Repeat,
    Sessions,
    Sliding,
    Validity,
    collect,
    seconds,
)
from millwheel.testing import Stepper
from tests.unit.library.pipelines import Score, dropped, found, left, panes, send, windowed

TEN = Fixed(seconds=10)
STEP = ["panes.sum", "panes.collect"]


def test_a_pane_comes_when_the_watermark_has_passed_the_end() -> None:
    stepper = Stepper(windowed(TEN))
    for player, points, second in [("ann", 3, 1), ("bob", 4, 2), ("ann", 5, 9.999999), ("ann", 7, 10)]:
        send(stepper, player, points, second)
    stepper.advance_watermark(10 * SECOND - 1)
    assert found(stepper) == []
    stepper.advance_watermark(10 * SECOND)
    assert sorted(found(stepper)) == [("ann", 0, 10, 8, "on time"), ("bob", 0, 10, 4, "on time")]
    assert {out.timestamp for out in stepper.outputs(panes)} == {10 * SECOND - 1}
    stepper.finish()
    assert found(stepper, 2) == [("ann", 10, 20, 7, "on time")]
    assert left(stepper, ["panes.sum"]) == {}


def test_a_watermark_at_the_last_instant_lets_a_record_of_it_count_and_does_not_pass_the_pane() -> None:
    stepper = Stepper(windowed(TEN))
    send(stepper, "ann", 3, 1)
    stepper.advance_watermark(10 * SECOND - 1)
    send(stepper, "ann", 4, 9.999999)
    assert stepper.watermark("panes.sum") == 10 * SECOND - 1
    stepper.advance_watermark(10 * SECOND)
    assert found(stepper) == [("ann", 0, 10, 7, "on time")]
    assert stepper.watermark("panes.sum") == 10 * SECOND
    assert left(stepper, ["panes.sum"]) == {}


def test_a_late_record_is_dropped_and_may_be_had() -> None:
    stepper = Stepper(windowed(TEN, dropped=dropped))
    send(stepper, "ann", 3, 1)
    stepper.advance_watermark(10 * SECOND)
    send(stepper, "ann", 4, 2)
    send(stepper, "bob", 5, 2)
    stepper.finish()
    assert found(stepper) == [("ann", 0, 10, 3, "on time")]
    assert [out.value for out in stepper.outputs(dropped)] == [Score("ann", 4), Score("bob", 5)]
    assert left(stepper, ["panes.sum"]) == {}


def test_within_the_allowed_lateness_each_late_record_gives_a_pane() -> None:
    stepper = Stepper(windowed(TEN, lateness=seconds(5), dropped=dropped))
    send(stepper, "ann", 3, 1)
    stepper.advance_watermark(15 * SECOND - 1)
    send(stepper, "ann", 4, 2)
    send(stepper, "bob", 6, 2)
    stepper.advance_watermark(15 * SECOND)
    assert left(stepper, ["panes.sum"]) == {}
    send(stepper, "ann", 5, 2)
    assert found(stepper) == [("ann", 0, 10, 3, "on time"), ("ann", 0, 10, 7, "late"), ("bob", 0, 10, 6, "late")]
    assert [(out.value.number, out.value.punctual, out.value.last) for out in stepper.outputs(panes)] == [
        (0, 0, False), (1, 1, False), (0, 0, False),
    ]  # fmt: skip
    assert len(stepper.outputs(dropped)) == 1


def test_discarding_panes_hold_what_is_new() -> None:
    trigger = AtWatermark(early=EveryRecords(2))
    stepper = Stepper(windowed(TEN, trigger=trigger, lateness=seconds(5), panes="discarding"))
    for points in (1, 2, 3, 4, 5):
        send(stepper, "ann", points, points)
    stepper.advance_watermark(12 * SECOND)
    send(stepper, "ann", 6, 6)
    assert found(stepper) == [
        ("ann", 0, 10, 3, "early"), ("ann", 0, 10, 7, "early"), ("ann", 0, 10, 5, "on time"), ("ann", 0, 10, 6, "late"),
    ]  # fmt: skip
    stepper.finish()
    assert left(stepper, ["panes.sum"]) == {}


def test_the_pane_at_the_watermark_comes_also_when_nothing_is_new() -> None:
    for mode, value in (("discarding", 0), ("accumulating", 3)):
        stepper = Stepper(windowed(TEN, trigger=AtWatermark(early=EveryRecords(1)), panes=mode))
        send(stepper, "ann", 3, 1)
        stepper.finish()
        assert found(stepper) == [("ann", 0, 10, 3, "early"), ("ann", 0, 10, value, "on time")]
        assert [out.value.punctual for out in stepper.outputs(panes)] == [-1, 0]


def test_early_panes_by_wall_time_come_once_for_what_is_new() -> None:
    stepper = Stepper(windowed(TEN, trigger=AtWatermark(early=EveryWall(minutes=1))))
    send(stepper, "ann", 3, 1)
    stepper.advance_clock(MINUTE - 1)
    send(stepper, "ann", 4, 2)
    assert found(stepper) == []
    stepper.advance_clock(1)
    assert found(stepper) == [("ann", 0, 10, 7, "early")]
    stepper.advance_clock(10 * MINUTE)
    send(stepper, "ann", 5, 3)
    stepper.finish()
    assert found(stepper, 1) == [("ann", 0, 10, 12, "on time")]
    stepper.advance_clock(10 * MINUTE)
    assert len(found(stepper)) == 2
    assert left(stepper, ["panes.sum"]) == {}


def test_aligned_wall_time_is_that_of_the_clock() -> None:
    start = 1_700_000_030 * SECOND
    stepper = Stepper(windowed(TEN, trigger=AtWatermark(early=EveryWall(minutes=1, aligned=True))), wall_time_us=start)
    send(stepper, "ann", 3, 1)
    due = EveryWall(minutes=1, aligned=True).due(start)
    assert due % MINUTE == 0
    stepper.advance_clock(due - start - 1)
    assert found(stepper) == []
    stepper.advance_clock(1)
    assert found(stepper) == [("ann", 0, 10, 3, "early")]


@pytest.mark.parametrize("mode", ["accumulating", "discarding"])
def test_late_records_may_be_gathered_for_a_while(mode: str) -> None:
    trigger = AtWatermark(late=EveryWall(minutes=1))
    stepper = Stepper(windowed(TEN, trigger=trigger, lateness=seconds(5), panes=mode))
    send(stepper, "ann", 3, 1)
    stepper.advance_watermark(11 * SECOND)
    send(stepper, "ann", 4, 2)
    send(stepper, "ann", 5, 3)
    assert found(stepper) == [("ann", 0, 10, 3, "on time")]
    stepper.advance_clock(MINUTE)
    assert found(stepper, 1) == [("ann", 0, 10, 12 if mode == "accumulating" else 9, "late")]
    assert stepper.outputs(panes)[1].timestamp == 10 * SECOND - 1


def test_late_records_that_no_pane_has_had_come_out_when_the_window_is_over() -> None:
    stepper = Stepper(windowed(TEN, trigger=AtWatermark(late=EveryRecords(3)), lateness=seconds(5)))
    send(stepper, "ann", 3, 1)
    stepper.advance_watermark(11 * SECOND)
    send(stepper, "ann", 4, 2)
    stepper.advance_watermark(15 * SECOND)
    assert found(stepper) == [("ann", 0, 10, 3, "on time"), ("ann", 0, 10, 7, "late")]
    assert [out.value.last for out in stepper.outputs(panes)] == [False, True]
    assert left(stepper, ["panes.sum"]) == {}


def test_without_a_late_trigger_the_first_punctual_pane_is_the_last() -> None:
    stepper = Stepper(windowed(TEN, trigger=AtWatermark(late=None), lateness=seconds(50), dropped=dropped))
    send(stepper, "ann", 3, 1)
    stepper.advance_watermark(11 * SECOND)
    send(stepper, "ann", 4, 2)
    assert [(out.value.value, out.value.last) for out in stepper.outputs(panes)] == [(3, True)]
    assert len(stepper.outputs(dropped)) == 1
    assert left(stepper, ["panes.sum"]) == {}


def test_repeat_takes_no_notice_of_the_watermark() -> None:
    stepper = Stepper(windowed(TEN, trigger=Repeat(EveryRecords(2)), lateness=seconds(5)))
    for points in (1, 2, 3):
        send(stepper, "ann", points, points)
    stepper.advance_watermark(11 * SECOND)
    send(stepper, "ann", 4, 4)
    send(stepper, "ann", 5, 5)
    assert found(stepper) == [("ann", 0, 10, 3, "early"), ("ann", 0, 10, 10, "late")]
    stepper.finish()
    assert found(stepper, 2) == [("ann", 0, 10, 15, "late")]
    assert left(stepper, ["panes.sum"]) == {}


def test_once_gives_one_pane_and_drops_the_rest() -> None:
    stepper = Stepper(windowed(TEN, trigger=Once(EveryRecords(2)), lateness=seconds(5), dropped=dropped))
    for points in (1, 2, 3):
        send(stepper, "ann", points, points)
    send(stepper, "bob", 9, 4)
    stepper.advance_watermark(14 * SECOND)
    send(stepper, "ann", 4, 4)
    assert found(stepper) == [("ann", 0, 10, 3, "early")]
    assert len(stepper.outputs(dropped)) == 2
    stepper.advance_watermark(15 * SECOND)
    assert found(stepper, 1) == [("bob", 0, 10, 9, "late")]
    assert left(stepper, ["panes.sum"]) == {}


@pytest.mark.parametrize(("time", "stamp"), [("end", 9_999_999), ("earliest", 2 * SECOND), ("latest", 5 * SECOND)])
def test_the_time_of_a_pane_may_be_that_of_its_records(time: str, stamp: int) -> None:
    stepper = Stepper(windowed(TEN, time=time))
    for second in (3, 2, 5):
        send(stepper, "ann", 1, second)
    send(stepper, "ann", 1, 14)
    stepper.advance_watermark(9 * SECOND)
    assert stepper.watermark("panes.sum") == min(stamp, 9 * SECOND)
    stepper.advance_watermark(12 * SECOND)
    assert [out.timestamp for out in stepper.outputs(panes)] == [stamp]
    assert stepper.watermark("panes.sum") == 12 * SECOND
    stepper.finish()
    assert left(stepper, ["panes.sum"]) == {}
    assert stepper.watermark("panes.sum") == MAX_TIME


def test_a_pane_is_not_late_by_the_function_of_its_time() -> None:
    stepper = Stepper(windowed(TEN, time=lambda time: time - 5 * SECOND))
    stepper.advance_watermark(8 * SECOND)
    send(stepper, "ann", 1, 9)
    send(stepper, "bob", 2, 14)
    assert stepper.watermark("panes.sum") == 8 * SECOND
    stepper.finish()
    assert [(out.value.key, out.timestamp // SECOND) for out in stepper.outputs(panes)] == [("ann", 8), ("bob", 9)]
    counting = AtWatermark(early=EveryRecords(1))
    stepper = Stepper(windowed(TEN, time=lambda time: time - 5 * SECOND, trigger=counting))
    send(stepper, "ann", 1, 9)
    stepper.finish()
    assert [out.timestamp // SECOND for out in stepper.outputs(panes)] == [9, 9]


def test_an_early_pane_leaves_the_time_of_the_next_one_as_it_is() -> None:
    stepper = Stepper(windowed(TEN, time="earliest", trigger=AtWatermark(early=EveryRecords(1)), lateness=seconds(5)))
    for second in (3, 5):
        send(stepper, "ann", 1, second)
    stepper.advance_watermark(12 * SECOND)
    send(stepper, "ann", 1, 4)
    times = [out.timestamp for out in stepper.outputs(panes)]
    assert times == [3 * SECOND, 3 * SECOND, 3 * SECOND, 10 * SECOND - 1]


def test_a_late_record_leaves_windows_of_validity_as_they_are() -> None:
    stepper = Stepper(windowed(Validity(), dropped=dropped))
    for second in (1, 9):
        send(stepper, "ann", second, second)
    stepper.advance_watermark(9 * SECOND)
    send(stepper, "ann", 4, 4)
    stepper.finish()
    assert next(pane[1:4] for pane in found(stepper)) == (1, 9, 1)
    assert [out.value.points for out in stepper.outputs(dropped)] == [4]
    assert len(stepper.outputs(panes)) == 2


def test_the_global_window_ends_with_the_input() -> None:
    stepper = Stepper(windowed(Global(), lateness=seconds(5), trigger=AtWatermark(early=EveryRecords(2))))
    for points in (1, 2, 3):
        send(stepper, "ann", points, points * 10**6)
    stepper.advance_watermark(10**14)
    assert [out.value.value for out in stepper.outputs(panes)] == [3]
    stepper.finish()
    assert [(out.value.value, out.value.timing) for out in stepper.outputs(panes)] == [(3, "early"), (6, "on time")]
    assert left(stepper, ["panes.sum"]) == {}


def test_a_calendar_day_is_a_window() -> None:
    stepper = Stepper(windowed(Calendar("day", "Europe/Berlin"), aggregation=collect(int, lambda score: score.points)))
    send(stepper, "ann", 1, 1_774_738_800)  # 29 March 2026, 00:00 in Berlin, a day of 23 hours
    send(stepper, "ann", 2, 1_774_738_800 + 23 * 3600 - 1)
    send(stepper, "ann", 3, 1_774_738_800 + 23 * 3600)
    stepper.finish()
    assert [out.value.value for out in stepper.outputs(panes)] == [[1, 2], [3]]


SIMPLE = [TEN, Sliding(seconds=10, every=seconds(5)), Sessions(seconds=4)]


@pytest.mark.parametrize("windows", SIMPLE, ids=["fixed", "sliding", "sessions"])
def test_a_restart_between_any_two_records_changes_nothing(windows: object) -> None:
    outcomes = []
    for restarts in (False, True):
        stepper = Stepper(windowed(windows, lateness=seconds(6)))
        for second in (1, 2, 7, 3, 13, 5):
            send(stepper, "ann", second, second)
            stepper.advance_watermark((second + 1) * SECOND)
            if restarts:
                stepper.restart()
        stepper.finish()
        outcomes.append(found(stepper))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("windows", SIMPLE, ids=["fixed", "sliding", "sessions"])
def test_state_of_other_windows_is_refused(windows: object) -> None:
    def cells(pipeline: object) -> set[str]:
        return {fp for name, fp in pipeline.graph().shape().coders.items() if name.startswith("cell:")}  # type: ignore[attr-defined]

    def fed(windows: object) -> object:
        pipeline = windowed(windows)
        from millwheel_injectors import IterableSource
        from tests.unit.library.pipelines import scores

        pipeline.inject(IterableSource("scores", []), into=scores)
        return pipeline

    assert cells(fed(windows)) != cells(fed(Fixed(seconds=11)))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(WiringError):
        windowed(TEN, panes="both")
    with pytest.raises(WiringError):
        windowed(TEN, lateness=-1)
    with pytest.raises(WiringError):
        EveryRecords(0)
    with pytest.raises(WiringError):
        EveryWall()


def test_a_pane_of_a_repeated_trigger_has_the_time_of_its_own_records() -> None:
    stepper = Stepper(windowed(Fixed(seconds=100), trigger=Repeat(EveryRecords(2)), time="earliest"))
    for second in (1, 2, 5, 6):
        send(stepper, "ann", 1, second)
    assert [out.timestamp for out in stepper.outputs(panes)] == [SECOND, 5 * SECOND]


@pytest.mark.parametrize("every", [EveryRecords(2), EveryWall(seconds=5)])
@pytest.mark.parametrize("time", ["end", "earliest", "latest"])
def test_the_watermark_stays_at_the_last_instant_for_what_a_repeated_trigger_has_still_to_give(
    time: str, every: EveryRecords | EveryWall
) -> None:
    stepper = Stepper(windowed(TEN, trigger=Repeat(every), time=time))
    send(stepper, "ann", 1, 3)
    stepper.advance_watermark(10 * SECOND - 1)
    send(stepper, "ann", 2, 9.999999)
    stepper.advance_clock(5 * SECOND)
    send(stepper, "ann", 4, 5)  # behind the watermark, and not late for its window
    assert stepper.watermark("panes.sum") == 10 * SECOND - 1
    stepper.advance_watermark(12 * SECOND)
    assert [out.value.value for out in stepper.outputs(panes)] == [3, 7]
    assert stepper.watermark("panes.sum") == 12 * SECOND
    assert left(stepper, ["panes.sum"]) == {}
