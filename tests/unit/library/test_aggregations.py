"""Aggregations give the same whatever the order, and however their records were merged."""

from __future__ import annotations

from fractions import Fraction
from math import inf, isfinite, nan
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
NO_NUMBERS = st.sampled_from([nan, inf, -inf])
LARGE = st.integers(-(2**60), 2**60)


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


def shown(result: Any) -> Any:
    """A result in which what is no number is equal to itself."""
    if isinstance(result, list):
        return [shown(each) for each in result]
    return result if result == result else "nan"


@pytest.mark.parametrize("name", ALL)
@given(
    st.lists(st.tuples(st.integers(0, 5), FLOATS | NO_NUMBERS | LARGE), max_size=8),
    st.randoms(use_true_random=False),
    st.integers(0, 8),
)
def test_neither_order_nor_cut_matters(name: str, records: list[tuple[int, Any]], random: Any, cut: int) -> None:
    of = ALL[name]
    whole = of.result(gathered(of, records))
    shuffled = random.sample(records, len(records))
    parts = of.merge(gathered(of, shuffled[:cut]), gathered(of, shuffled[cut:]))
    assert shown(of.result(parts)) == shown(whole)
    assert shown(of.result(of.merge(of.zero(), parts))) == shown(whole)


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


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([inf, 1.0], inf), ([-inf, 1, 2**62], -inf), ([inf, -inf], nan), ([nan, 1.0, inf], nan), ([1e308, 1e308], inf),
        ([2**53 + 1, 0.5, 0.5], float(2**53 + 2)),
    ],
)  # fmt: skip
def test_a_sum_is_as_that_of_floats_where_it_is_no_number(numbers: list[float], total: float) -> None:
    for given_numbers in (numbers, numbers[::-1]):
        records = [(0, number) for number in given_numbers]
        assert shown(sum_of(itself).result(gathered(sum_of(itself), records))) == shown(total)
        average = total / len(numbers)
        assert shown(mean(itself).result(gathered(mean(itself), records))) == shown(average)


def test_what_is_no_number_is_larger_than_all_numbers_and_one_value() -> None:
    found = {name: of.result(gathered(of, [(0, v) for v in (1.0, nan, 2.0, nan)])) for name, of in ALL.items()}
    assert found["minimum"] == 1.0
    assert shown([found["maximum"], found["top"], found["distinct"]]) == ["nan", ["nan", "nan", 2.0], 3]
    assert shown(gathered(ALL["minimum"], [(0, nan)])) == ["nan"]


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


def test_one_value_may_be_the_top() -> None:
    of: Aggregation[int, Any, Any] = top(1, lambda n: n % 10, int)
    assert of.result(of.merge(of.add(of.add(of.zero(), 19), 21), of.add(of.zero(), 12))) == [19]


def test_top_of_nothing_is_refused() -> None:
    with pytest.raises(WiringError):
        top(0, itself, int)
