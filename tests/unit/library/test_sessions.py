"""Sessions grow, merge, and leave nothing."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest

from millwheel import MINUTE, SECOND
from millwheel.core.interval.schedule import Schedule
from millwheel.library import Aggregation, AtWatermark, EveryRecords, EveryWall, Once, Sessions, collect, seconds
from millwheel.testing import Stepper
from tests.unit.library.pipelines import Score, dropped, found, left, panes, scores, send, windowed

GAP = Sessions(seconds=10)


def test_records_that_are_nearer_than_the_gap_are_one_session() -> None:
    stepper = Stepper(windowed(GAP))
    for second in (1, 8, 18, 40):
        send(stepper, "ann", 1, second)
    stepper.finish()
    assert found(stepper) == [
        ("ann", 1, 18, 2, "on time"), ("ann", 18, 28, 1, "on time"), ("ann", 40, 50, 1, "on time"),
    ]  # fmt: skip
    assert left(stepper, ["panes.sum"]) == {}


@pytest.mark.parametrize("order", [*permutations((1, 11, 21))])
@pytest.mark.parametrize("nearer", [0, 1])
def test_a_session_ends_before_the_record_that_is_a_whole_gap_later(order: tuple[int, ...], nearer: int) -> None:
    """Whichever comes first; a microsecond nearer, the one in the middle makes one session of all."""
    times = {second: second * SECOND + nearer * (0 if second == 11 else 1 if second < 11 else -1) for second in order}
    stepper = Stepper(windowed(GAP, aggregation=collect(int, lambda score: score.points)))
    for second in order:
        stepper.send(scores, Score("ann", second), times[second])
    stepper.finish()
    assert [pane[3] for pane in found(stepper)] == ([[1, 11, 21]] if nearer else [[1], [11], [21]])
    assert left(stepper, ["panes.collect"]) == {}


def test_a_record_between_two_sessions_makes_them_one() -> None:
    stepper = Stepper(windowed(GAP, aggregation=collect(int, lambda score: score.points)))
    for points, second in [(1, 20), (2, 5), (3, 13), (4, 2)]:
        send(stepper, "ann", points, second)
    stepper.advance_watermark(29 * SECOND)
    assert found(stepper) == []
    stepper.advance_watermark(30 * SECOND)
    assert found(stepper) == [("ann", 2, 30, [4, 2, 3, 1], "on time")]
    assert left(stepper, ["panes.collect"]) == {}


@pytest.mark.parametrize("trigger", [AtWatermark(), AtWatermark(EveryRecords(2))])
@pytest.mark.parametrize("second", [5, 15, 21])
def test_a_late_record_may_join_sessions_whose_timer_is_due(
    trigger: AtWatermark, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records may run before timers: then the pane at the watermark is that of the session that has grown."""
    of: Aggregation[Score, Any, list[int]] = collect(int, lambda score: score.points)
    stepper = Stepper(windowed(GAP, lateness=seconds(60), aggregation=of, trigger=trigger))
    for points, at in [(1, 10), (2, 12), (3, 30)]:
        send(stepper, "ann", points, at)
    with monkeypatch.context() as patch:
        patch.setattr(Schedule, "_take_timers", lambda *_: [])
        stepper.advance_watermark(50 * SECOND)
        send(stepper, "ann", 4, second)
    stepper.finish()
    late = [pane for pane in found(stepper) if pane[-1] == "late"]
    grown = [sorted(pane[3]) for pane in found(stepper) if pane[-1] == "on time"]
    assert (late, grown) == ([], [[1, 2, 3, 4]] if second == 21 else [[1, 2, 4], [3]])
    assert left(stepper, ["panes.collect"]) == {}


def test_a_late_record_may_join_sessions_that_had_their_panes() -> None:
    stepper = Stepper(windowed(GAP, lateness=seconds(60), aggregation=collect(int, lambda score: score.points)))
    send(stepper, "ann", 1, 0)
    send(stepper, "ann", 2, 15)
    stepper.advance_watermark(30 * SECOND)
    send(stepper, "ann", 3, 7)
    assert found(stepper) == [
        ("ann", 0, 10, [1], "on time"),
        ("ann", 15, 25, [2], "on time"),
        ("ann", 0, 25, [1, 3, 2], "late"),
    ]
    assert [out.value.number for out in stepper.outputs(panes)] == [0, 0, 0]
    stepper.advance_watermark(84 * SECOND)
    assert left(stepper, ["panes.collect"])
    stepper.advance_watermark(85 * SECOND)
    assert left(stepper, ["panes.collect"]) == {}


@pytest.mark.parametrize(("watermark", "timer"), [(0, "e"), (30, "o")])
def test_a_session_that_becomes_part_of_another_leaves_no_timer(watermark: int, timer: str) -> None:
    stepper = Stepper(windowed(GAP, lateness=seconds(60)))
    for second in (2, 15):
        send(stepper, "ann", 1, second)
    stepper.advance_watermark(watermark * SECOND)
    send(stepper, "ann", 1, 8)
    stepper.restart()  # all logs are folded
    assert {tag for _, tag in stepper.store.inner.folded.timers["panes.sum"]["ann"]} == {f"{timer}2000000"}


@pytest.mark.parametrize("before", [(1, 2, 15), (1, 15, 16)])
def test_records_of_sessions_that_become_one_count_together_for_the_next_pane(before: tuple[int, ...]) -> None:
    stepper = Stepper(windowed(GAP, trigger=AtWatermark(early=EveryRecords(4))))
    for second in before:
        send(stepper, "ann", 1, second)
    assert found(stepper) == []
    send(stepper, "ann", 1, 9)
    assert found(stepper) == [("ann", 1, max(before) + 10, 4, "early")]


def test_a_session_that_had_its_pane_is_open_again_when_it_grows_beyond_the_watermark() -> None:
    stepper = Stepper(windowed(GAP, lateness=seconds(60)))
    send(stepper, "ann", 1, 0)
    stepper.advance_watermark(12 * SECOND)
    send(stepper, "ann", 2, 8)
    assert len(found(stepper)) == 1
    stepper.advance_watermark(18 * SECOND)
    assert found(stepper, 1) == [("ann", 0, 18, 3, "on time")]
    stepper.finish()
    assert left(stepper, ["panes.sum"]) == {}


def test_a_late_session_that_waits_for_more_is_open_again_when_it_grows() -> None:
    stepper = Stepper(windowed(GAP, trigger=AtWatermark(late=EveryRecords(5)), lateness=seconds(60)))
    stepper.advance_watermark(12 * SECOND)
    send(stepper, "ann", 1, 0)
    send(stepper, "ann", 2, 8)
    stepper.advance_watermark(18 * SECOND)
    assert found(stepper) == [("ann", 0, 18, 3, "on time")]
    stepper.finish()
    assert left(stepper, ["panes.sum"]) == {}


def test_the_last_instant_of_a_session_may_still_extend_it() -> None:
    stepper = Stepper(windowed(GAP))
    send(stepper, "ann", 1, 0)
    stepper.advance_watermark(10 * SECOND - 1)
    send(stepper, "ann", 2, 9.999999)
    stepper.advance_watermark(15 * SECOND)
    assert stepper.watermark("panes.sum") == 15 * SECOND
    assert found(stepper) == []
    stepper.finish()
    assert found(stepper) == [("ann", 0, 19.999999, 3, "on time")]
    assert left(stepper, ["panes.sum"]) == {}


def test_early_panes_count_from_0_when_the_session_has_grown() -> None:
    stepper = Stepper(windowed(GAP, trigger=AtWatermark(early=EveryRecords(2))))
    for second in (1, 2, 3, 4):
        send(stepper, "ann", 1, second)
    stepper.finish()
    assert found(stepper) == [("ann", 1, 12, 2, "early"), ("ann", 1, 14, 4, "early"), ("ann", 1, 14, 4, "on time")]
    assert [out.value.number for out in stepper.outputs(panes)] == [0, 0, 1]


@pytest.mark.parametrize("seconds_", [(1, 5, 25, 20, 13), (25, 20, 13, 5, 1)])
def test_early_panes_by_wall_time_survive_merges(seconds_: tuple[int, ...]) -> None:
    stepper = Stepper(windowed(GAP, trigger=AtWatermark(early=EveryWall(minutes=1))))
    for second in seconds_:
        send(stepper, "ann", 1, second)
    stepper.advance_clock(MINUTE)
    assert found(stepper) == [("ann", 1, 35, 5, "early")]
    stepper.finish()
    stepper.advance_clock(MINUTE)
    assert found(stepper, 1) == [("ann", 1, 35, 5, "on time")]
    assert left(stepper, ["panes.sum"]) == {}


@pytest.mark.parametrize("seconds_", [(20, 5), (5, 20)])
def test_sessions_that_become_one_are_due_when_the_first_of_them_was(seconds_: tuple[int, int]) -> None:
    stepper = Stepper(windowed(GAP, trigger=AtWatermark(early=EveryWall(minutes=1))))
    for second in seconds_:
        send(stepper, "ann", 1, second)
        stepper.advance_clock(20 * SECOND)
    send(stepper, "ann", 1, 13)
    stepper.advance_clock(20 * SECOND - 1)
    assert found(stepper) == []
    stepper.advance_clock(1)
    assert found(stepper) == [("ann", 5, 30, 3, "early")]


@pytest.mark.parametrize("seconds_", [(1, 2, 8, 15, 20), (20, 15, 8, 2, 1)])
def test_a_session_that_has_had_its_one_pane_drops_the_rest_however_it_grows(seconds_: tuple[int, ...]) -> None:
    stepper = Stepper(windowed(GAP, trigger=Once(EveryRecords(2)), dropped=dropped))
    for second in seconds_:
        send(stepper, "ann", 1, second)
    stepper.finish()
    assert [pane[3:] for pane in found(stepper)] == [(2, "early")]
    assert len(stepper.outputs(dropped)) == 3
    assert left(stepper, ["panes.sum"]) == {}


def test_the_gap_may_depend_on_the_key() -> None:
    stepper = Stepper(windowed(Sessions(lambda key: seconds(10 if key == "ann" else 2))))
    for player in ("ann", "bob"):
        for second in (1, 5):
            send(stepper, player, 1, second)
    stepper.finish()
    assert sorted(found(stepper)) == [
        ("ann", 1, 15, 2, "on time"),
        ("bob", 1, 3, 1, "on time"),
        ("bob", 5, 7, 1, "on time"),
    ]


def test_what_comes_too_late_is_dropped() -> None:
    stepper = Stepper(windowed(GAP, lateness=seconds(5), dropped=dropped))
    send(stepper, "ann", 1, 12)
    stepper.advance_watermark(16 * SECOND)
    send(stepper, "ann", 2, 1)
    send(stepper, "ann", 3, 2)
    stepper.finish()
    assert found(stepper) == [("ann", 2, 12, 3, "late"), ("ann", 12, 22, 1, "on time")]
    assert len(stepper.outputs(dropped)) == 1
