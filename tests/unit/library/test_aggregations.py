"""Aggregations give the same whatever the order, and however their records were merged."""

from __future__ import annotations

from fractions import Fraction
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import JsonCoder
from millwheel.errors import WiringError
from millwheel.library import (
    Aggregation,
    aggregation,
    collect,
    count,
    distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    sum_of,
    top,
)

FLOATS = st.floats(-1e300, 1e300) | st.integers(-(10**9), 10**9)


def itself(value: Any) -> Any:
    return value


ALL: dict[str, Aggregation[Any, Any, Any]] = {
    "count": count(),
    "sum": sum_of(itself),
    "mean": mean(itself),
    "minimum": minimum(itself),
    "maximum": maximum(itself),
    "first": first(float),
    "last": last(float),
    "collect": collect(float),
    "top": top(3, itself, float),
    "distinct": distinct(itself, float),
}


def gathered(of: Aggregation[Any, Any, Any], records: list[tuple[int, Any]]) -> Any:
    """The accumulator, stored and read again after each record, as state is."""
    accumulator = of.zero()
    for time, value in records:
        accumulator = of.accumulator.decode(of.accumulator.encode(of.add_at(accumulator, value, time)))
    return accumulator


@pytest.mark.parametrize("name", ALL)
@given(st.lists(st.tuples(st.integers(0, 5), FLOATS)), st.randoms(use_true_random=False), st.integers(0, 20))
def test_neither_order_nor_cut_matters(name: str, records: list[tuple[int, Any]], random: Any, cut: int) -> None:
    of = ALL[name]
    whole = of.result(gathered(of, records))
    shuffled = random.sample(records, len(records))
    parts = of.merge(gathered(of, shuffled[:cut]), gathered(of, shuffled[cut:]))
    assert of.result(parts) == whole
    assert of.result(of.merge(of.zero(), parts)) == whole


@pytest.mark.parametrize("name", ALL)
@given(st.lists(st.lists(st.tuples(st.integers(0, 5), FLOATS), max_size=6), min_size=3, max_size=3))
def test_merging_is_associative_and_all_at_once_is_the_same(name: str, groups: list[list[tuple[int, Any]]]) -> None:
    of = ALL[name]

    def parts() -> list[Any]:  # made anew: `merge` may change its first argument
        return [gathered(of, group) for group in groups]

    a, b, c = parts()
    to_the_left = of.result(of.merge(of.merge(a, b), c))
    a, b, c = parts()
    assert of.result(of.merge(a, of.merge(b, c))) == to_the_left
    assert of.result(of.merge_all(parts())) == to_the_left
    assert of.result(of.merge_all(parts()[:1])) == of.result(parts()[0])


@given(st.lists(FLOATS))
def test_a_sum_is_exact_until_it_is_rounded_once(numbers: list[float]) -> None:
    expected = float(sum(map(Fraction, numbers), Fraction()))
    result = sum_of(itself).result(gathered(sum_of(itself), [(0, number) for number in numbers]))
    assert isfinite(expected)
    assert result == expected


def test_results_are_what_their_names_say() -> None:
    records = [(3, 5), (1, 7), (2, 5), (9, 1)]
    found = {name: of.result(gathered(of, records)) for name, of in ALL.items()}
    assert found == {
        "count": 4, "sum": 18, "mean": 4.5, "minimum": 1, "maximum": 7, "first": 7, "last": 1, "collect": [7, 5, 5, 1],
        "top": [7, 5, 5], "distinct": 3,
    }  # fmt: skip


def test_of_no_record_there_is_no_mean_and_no_extreme() -> None:
    empty = {name: of.result(of.zero()) for name, of in ALL.items()}
    assert empty == {
        "count": 0, "sum": 0, "mean": None, "minimum": None, "maximum": None, "first": None, "last": None, "collect": [],
        "top": [], "distinct": 0,
    }  # fmt: skip


def test_an_aggregation_of_your_own_is_four_functions() -> None:
    longest: Aggregation[str, str, int] = aggregation(
        "longest",
        lambda: "",
        lambda a, v: max(a, v, key=len),
        lambda a, b: max(a, b, key=len),
        len,
        JsonCoder(str),
        int,
    )
    assert longest.result(gathered(longest, [(0, "to"), (1, "be or"), (2, "not")])) == 5


def test_top_of_nothing_is_refused() -> None:
    with pytest.raises(WiringError):
        top(0, itself, int)
