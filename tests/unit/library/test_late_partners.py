"""Joins of streams whose values may come too late: each counts in full, or goes to the stream for late ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import SECOND, Pipeline
from millwheel.library import Fixed, Interval, seconds
from tests.effort import examples
from tests.unit.library.pipelines import left as state_left
from tests.unit.library.pipelines import many
from tests.unit.library.test_aggregate_join import SPANS, gathering
from tests.unit.library.test_aggregate_join import found as found_together
from tests.unit.library.test_aggregate_join import nested_loop as nested_together
from tests.unit.library.test_joins import (
    CUTS,
    HOWS,
    INTERVALS,
    How,
    Row,
    as_of,
    by_interval,
    by_version,
    by_windows,
    driven,
    found,
    joined,
    late_lefts,
    late_rights,
)

ANY_ORDER = many(st.tuples(st.integers(0, 1), st.sampled_from("aab"), st.integers(0, 20)), 24)
LAGS = st.lists(st.integers(0, 9), min_size=1, max_size=4)
LATENESS = st.tuples(st.integers(1, 8), st.sampled_from([0, 1])).map(lambda of: seconds(of[0]) - of[1])
"""Whole seconds, or a microsecond less: then the watermark, at whole seconds, is where a value begins to be too late."""


def watermarks(rows: list[Row], cuts: list[int], lags: list[int]) -> Iterator[int]:
    """Under which each of the rows arrives, us, when they are `driven`."""
    newest, place, promised = 0, 0, -1
    while place < len(rows):
        size, lag = cuts[place % len(cuts)], lags[place % len(lags)]
        bundle = rows[place : place + size]
        yield from [promised * SECOND] * len(bundle)
        newest = max([newest, *(second for _, _, second in bundle)])
        promised = max(promised, newest - lag)
        place += size


def late_numbers(rows: list[Row], cuts: list[int], lags: list[int], lateness: int, windows: Fixed | None) -> set[int]:
    """Numbers of the rows that come when none of their time, or of their window, is expected any more."""
    lasts = [windows.of(row[2] * SECOND)[0].last if windows else row[2] * SECOND for row in rows]
    came = watermarks(rows, cuts, lags)
    return {n for n, (last, now) in enumerate(zip(lasts, came, strict=True)) if now > last + lateness}


def counted(rows: list[Row], late: set[int]) -> list[Row]:
    """The rows with their numbers, but the late ones are those of nobody."""
    return [(side, f"late {n}" if n in late else name, second) for n, (side, name, second) in enumerate(rows)]


def without(rows: Counter[Any], late: set[int]) -> Counter[Any]:
    return Counter({row: times for row, times in rows.items() if not {*row[:2]} & late})


def ran(
    pipeline: Pipeline, rows: list[Row], cuts: list[int], lags: list[int], late: set[int], sides: range = range(2)
) -> Any:
    stepper = driven(pipeline, rows, cuts, lags)
    for side in sides:
        gone = [out.value.number for out in stepper.outputs((late_lefts, late_rights)[side])]
        assert gone == [n for n in sorted(late) if rows[n][0] == side]
    assert state_left(stepper, ["matches.join"]) == {}
    return stepper


@settings(max_examples=examples(20, gate=10))
@given(ANY_ORDER, CUTS, LAGS, LATENESS, st.sampled_from(INTERVALS), st.sampled_from(HOWS))
def test_in_an_interval(
    rows: list[Row], cuts: list[int], lags: list[int], lateness: int, within: Interval, how: How
) -> None:
    late = late_numbers(rows, cuts, lags, lateness, None)
    stepper = ran(joined(within, how, lateness), rows, cuts, lags, late)
    assert found(stepper) == without(by_interval(counted(rows, late), within, how), late)


@settings(max_examples=examples(20, gate=10))
@given(ANY_ORDER, CUTS, LAGS, LATENESS, st.sampled_from(HOWS))
def test_in_windows(rows: list[Row], cuts: list[int], lags: list[int], lateness: int, how: How) -> None:
    within = Fixed(seconds=7, offset=seconds(3))
    late = late_numbers(rows, cuts, lags, lateness, within)
    stepper = ran(joined(within, how, lateness), rows, cuts, lags, late)
    assert found(stepper) == without(by_windows(counted(rows, late), within, how), late)


@settings(max_examples=examples(20, gate=10))
@given(ANY_ORDER, CUTS, LAGS, LATENESS, st.sampled_from(SPANS), st.sampled_from(["inner", "left"]), st.booleans())
def test_in_one_with_an_aggregation(
    rows: list[Row], cuts: list[int], lags: list[int], lateness: int, within: Any, how: str, none: bool
) -> None:
    lateness = 0 if none else lateness
    late = late_numbers(rows, cuts, lags, lateness, None)
    stepper = ran(gathering(within, how, lateness), rows, cuts, lags, late)
    wanted = nested_together(counted(rows, late), within, how)
    assert found_together(stepper) == Counter({row: n for row, n in wanted.items() if row[0] not in late})


@pytest.mark.parametrize("how", ["inner", "left"])
@settings(max_examples=examples(10))
@given(ANY_ORDER, CUTS, LAGS, LATENESS)
def test_as_of(how: How, rows: list[Row], cuts: list[int], lags: list[int], lateness: int) -> None:
    """A late version counts for what comes later; here versions are in time."""
    late = late_numbers(rows, cuts, lags, lateness, None)
    seen: set[tuple[str, int]] = set()
    for n, (side, name, second) in enumerate(rows):  # of two versions of one time the later one counts: not here
        if side and ((name, second) in seen or n in late):
            rows = [*rows[:n], (0, name, second), *rows[n + 1 :]]
        elif side:
            seen.add((name, second))
    stepper = ran(as_of(how, lateness), rows, cuts, lags, late, range(1))
    assert found(stepper) == without(by_version(counted(rows, late), how), late)
