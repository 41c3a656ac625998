"""Running aggregates give each record its own in order of event time; windows of wall time give each record one pane."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND, JsonCoder, MsgpackCoder, Pipeline, Stream
from millwheel.errors import WiringError
from millwheel.library import (
    Aggregation,
    EveryRecords,
    Flow,
    Repeat,
    Running,
    Wall,
    aggregation,
    collect,
    count,
    maximum,
    minimum,
    seconds,
    top,
)
from millwheel.testing import Stepper, simulate
from tests.effort import examples
from tests.unit.library.pipelines import Score, dropped, left, many, panes, scores, send, windowed
from tests.unit.library.test_properties import timers_left

run_up = Stream("run_up", MsgpackCoder(Running[Score, Any]))


def points(score: Score) -> int:
    return score.points


AGGREGATIONS: dict[str, tuple[Aggregation[Score, Any, Any], Any]] = {
    "minimum": (minimum(points), min),
    "maximum": (maximum(points), max),
    "top": (top(2, lambda n: n, int, points), lambda seen: sorted(seen, reverse=True)[:2]),
    "count": (count(), len),
    "collect": (collect(int, points), list),
}


def pipeline(aggregation: Aggregation[Score, Any, Any], **more: Any) -> Pipeline:
    made = Pipeline("running")
    keyed = Flow(made).read(scores).key_by(lambda score: score.player)
    keyed.running(aggregation, dropped=dropped, **more).to(run_up)
    return made


def found(results: Any) -> Counter[tuple[str, int, str, int]]:
    """Player, points, what there is up to them, second."""
    return Counter(
        (out.value.key, out.value.value.points, str(out.value.result), out.timestamp // SECOND)
        for out in results.outputs(run_up)
    )


def one_by_one(rows: list[tuple[str, int, int]], of: Any, last: int | None) -> Counter[tuple[str, int, str, int]]:
    result: Counter[tuple[str, int, str, int]] = Counter()
    seen: dict[str, list[int]] = {}
    for player, number, second in sorted(rows, key=lambda row: (row[2], row[1])):
        mine = seen.setdefault(player, [])
        mine.append(number)
        result[player, number, str(of(mine if last is None else mine[-last:])), second] += 1
    return result


@settings(max_examples=examples(50, gate=25))
@given(
    many(st.tuples(st.sampled_from("ab"), st.integers(0, 30), st.integers(0, 30)), 20),
    st.sampled_from(sorted(AGGREGATIONS)),
    st.sampled_from([None, 1, 3]),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_each_record_has_what_there_is_up_to_it(
    rows: list[tuple[str, int, int]], name: str, last: int | None, step: int, dice: random.Random
) -> None:
    aggregation, of = AGGREGATIONS[name]
    stepper = Stepper(pipeline(aggregation, last=last, order=points, lateness=seconds(6)))
    arriving = sorted(rows, key=lambda row: row[2] + dice.randint(0, 6))
    for place, (player, number, second) in enumerate(arriving):
        send(stepper, player, number, second)
        if place % step == 0:
            stepper.advance_watermark(max(row[2] for row in arriving[: place + 1]) * SECOND)
    stepper.finish()
    assert found(stepper) == one_by_one(rows, of, last)
    assert stepper.outputs(dropped) == []
    assert left(stepper, ["run_up.running"]) == {}


def joined_texts() -> Aggregation[Score, str, str]:
    """One in which the order shows."""
    return aggregation(
        "texts", str, lambda a, score: f"{a} {score.points}", lambda a, b: a + b, lambda a: a, JsonCoder(str), str
    )


@pytest.mark.parametrize("last", [None, 3])
@given(st.permutations([3, 300, 1, 70_000, 2, 40, 2]))
def test_records_of_one_time_have_an_order_of_their_own(last: int | None, arriving: list[int]) -> None:
    """Without one of the user's it is that of their bytes, in which small numbers stand as they do anywhere."""
    stepper = Stepper(pipeline(joined_texts(), last=last))
    for number in arriving:
        send(stepper, "a", number, 5)
    stepper.finish()
    results = [out.value.result for out in stepper.outputs(run_up)]
    assert results[-1] == (" 1 2 2 3 40 300 70000" if last is None else " 40 300 70000")
    assert results[:2] == [" 1", " 1 2"]


@pytest.mark.parametrize("seed", [0, 2, 3, 5])
@pytest.mark.parametrize("last", [None, 3])
def test_faults_change_nothing(seed: int, last: int | None) -> None:
    rows = [("abc"[n % 3], n * 7 % 50, n * 13 % 120) for n in range(120)]
    given_ = {"scores": [(Score(player, number), second * SECOND) for player, number, second in rows]}
    outcome = simulate(pipeline(AGGREGATIONS["collect"][0], last=last, order=points), given_, seed)
    assert outcome.faults
    assert found(outcome) == one_by_one(rows, list, last)
    assert left(outcome, ["run_up.running"]) == {}


def test_a_result_comes_when_nothing_older_can() -> None:
    stepper = Stepper(pipeline(maximum(points), lateness=seconds(2)))
    send(stepper, "a", 5, 10)
    stepper.advance_watermark(12 * SECOND)
    send(stepper, "a", 9, 10)
    assert found(stepper) == {}
    stepper.advance_watermark(12 * SECOND + 1)
    assert sorted(found(stepper)) == [("a", 5, "5", 10), ("a", 9, "9", 10)]
    send(stepper, "a", 1, 10)
    assert [out.value.points for out in stepper.outputs(dropped)] == [1]


def test_of_no_record_there_is_nothing_to_say() -> None:
    with pytest.raises(WiringError, match="at least one record"):
        pipeline(count(), last=0)


# --- windows of wall time --------------------------------------------------------------------------------------


def spans(results: Any) -> list[tuple[str, int, int, int]]:
    return [
        (out.value.key, out.value.start // SECOND, out.value.end // SECOND, out.value.value)
        for out in results.outputs(panes)
    ]


def test_the_clock_says_in_which_window_a_record_is() -> None:
    stepper = Stepper(windowed(Wall(seconds=10), count()))
    stepper.advance_clock(-stepper.clock % (10 * SECOND))
    begin = stepper.clock // SECOND
    send(stepper, "a", 1, 500)
    stepper.advance_clock(4 * SECOND)
    send(stepper, "a", 1, 3)
    send(stepper, "b", 1, 3)
    assert spans(stepper) == []
    stepper.advance_clock(6 * SECOND)
    assert sorted(spans(stepper)) == [("a", begin, begin + 10, 2), ("b", begin, begin + 10, 1)]
    assert timers_left(stepper) == {}, "of a key that has no window nothing is kept until the end of the input"
    send(stepper, "a", 1, 900)
    stepper.finish()
    assert spans(stepper)[2:] == [("a", begin + 10, begin + 20, 1)]
    assert stepper.states("panes.count") == {}
    assert timers_left(stepper) == {}


@pytest.mark.parametrize("seed", range(4))
def test_every_record_is_in_one_pane_whatever_crashes(seed: int) -> None:
    rows = [(Score("abc"[n % 3], n), n * SECOND // 4) for n in range(90)]
    outcome = simulate(windowed(Wall(seconds=1), collect(int, points)), {"scores": rows}, seed)
    assert outcome.faults
    assert sorted(n for out in outcome.outputs(panes) for n in out.value.value) == list(range(90))
    assert left(outcome, ["panes.collect"]) == {}


def test_windows_of_wall_time_have_one_trigger() -> None:
    with pytest.raises(WiringError, match="one pane each"):
        Stepper(windowed(Wall(seconds=10), trigger=Repeat(EveryRecords(1))))
