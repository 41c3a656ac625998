"""Aggregations give the same whatever the order, and however their records were merged."""

from __future__ import annotations

from fractions import Fraction
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import JsonCoder, MsgpackCoder
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
LARGE = st.integers(-(2**63), 2**64 - 1)
"""What the coder of a stream takes."""
POWERS = st.builds(lambda sign, power: sign * 2.0**power, st.sampled_from([-1, 1]), st.integers(-60, 60))


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
    "top by size": top(3, abs, float),
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
    st.lists(st.tuples(st.integers(0, 5), FLOATS | NO_NUMBERS | LARGE), max_size=8)
    | st.lists(st.tuples(st.integers(0, 5), POWERS), min_size=3, max_size=8),
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


@given(st.lists(FLOATS) | st.lists(POWERS, min_size=3, max_size=8))
@example([1.0, 2.0**-53, 2.0**-110])  # the last one decides how the two others are rounded
def test_a_sum_is_exact_until_it_is_rounded_once(numbers: list[float]) -> None:
    expected = float(sum(map(Fraction, numbers), Fraction()))
    result = sum_of(itself).result(gathered(sum_of(itself), [(0, number) for number in numbers]))
    assert isfinite(expected)
    assert result == expected


@given(st.lists(LARGE | st.integers(-9, 9), max_size=12), st.randoms(use_true_random=False))
def test_a_sum_of_ints_is_exact_and_rounded_only_where_no_coder_takes_it(numbers: list[int], random: Any) -> None:
    """Nor does it matter whether a part of them would have been too large."""
    total, of = sum(numbers), sum_of(itself)
    expected = total if -(2**63) <= total < 2**64 else float(total)
    for of_order in (numbers, sorted(numbers), random.sample(numbers, len(numbers))):
        records = [(0, number) for number in of_order]
        for cut in (0, len(records) // 2):
            result = of.result(of.merge(gathered(of, records[:cut]), gathered(of, records[cut:])))
            assert (result, type(result)) == (expected, type(expected))
        assert shown(mean(itself).result(gathered(mean(itself), records))) == (
            expected / len(numbers) if numbers else None
        )


@pytest.mark.parametrize(
    ("numbers", "total"),
    [
        ([inf, 1.0], inf), ([-inf, 1, 2**62], -inf), ([inf, -inf], nan), ([nan, 1.0, inf], nan), ([1e308, 1e308], inf),
        ([2**53 + 1, 0.5, 0.5], float(2**53 + 2)), ([-1e308, -1e308, 1.0], -inf),
        ([2**63, 2**63, 2**63, 0.5], 3.0 * 2**63), ([2**64 - 1] * 3 + [inf], inf), ([-(2**63)] * 3 + [nan], nan),
        ([0.5, 10**400], inf), ([0.5, -(10**400)], -inf),
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
    assert shown(found["top by size"]) == ["nan", "nan", 2.0]
    assert shown(gathered(ALL["minimum"], [(0, nan)])) == ["nan"]


def test_results_are_what_their_names_say() -> None:
    records = [(3, 5), (1, 7), (2, 5), (9, 1)]
    found = {name: of.result(gathered(of, records)) for name, of in ALL.items()}
    assert found == {
        "count": 4, "sum": 18, "mean": 4.5, "minimum": 1, "maximum": 7, "first": 7, "last": 1, "collect": [7, 5, 5, 1],
        "top": [7, 5, 5], "top by size": [7, 5, 5], "distinct": 3,
    }  # fmt: skip


def test_of_no_record_there_is_no_mean_and_no_extreme() -> None:
    empty = {name: of.result(of.zero()) for name, of in ALL.items()}
    assert empty == {
        "count": 0, "sum": 0, "mean": None, "minimum": None, "maximum": None, "first": None, "last": None, "collect": [],
        "top": [], "top by size": [], "distinct": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("numbers", [[], [1.5], [1.5, -1.5, 2.0]])
def test_each_result_is_of_the_type_that_the_next_stream_has(name: str, numbers: list[float]) -> None:
    of = ALL[name]
    result = of.result(gathered(of, list(enumerate(numbers))))
    coder: MsgpackCoder[Any] = MsgpackCoder(of.results)
    assert coder.decode(coder.encode(result)) == result


def merged_bytes(of: Aggregation[Any, Any, Any], records: list[tuple[int, Any]]) -> int:
    """Of the accumulator of many, merged as sliding windows do it: all at once, and two by two."""
    halves = [
        of.merge_all([gathered(of, half[at : at + 4]) for at in range(0, len(half), 4)])
        for half in (records[::2], records[1::2])
    ]
    assert of.result(of.merge(of.zero(), halves[0])) == of.result(gathered(of, records[::2]))
    return max(len(of.accumulator.encode(found)) for found in (*halves, of.merge(*halves)))


def test_an_accumulator_says_whether_it_grows() -> None:
    """By that sliding windows choose how many of them they keep."""
    few, many = ([(number, float(number)) for number in range(count)] for count in (16, 256))
    grows = {name for name, of in ALL.items() if merged_bytes(of, many) > merged_bytes(of, few) + 16}
    assert grows == {"collect", "distinct"}
    subtracts = {name for name, of in ALL.items() if of.subtracts}
    assert subtracts == {"count", "sum", "mean"}
    assert {name for name, of in ALL.items() if of.bounded} == ALL.keys() - grows - subtracts


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, inf, nan])
def test_one_value_that_comes_again_and_again_is_one(value: float) -> None:
    of, records = ALL["distinct"], [(0, value)] * 8
    assert of.result(of.merge(gathered(of, records), gathered(of, records))) == 1
    assert of.result(of.merge_all([gathered(of, records) for _ in range(3)])) == 1
    assert len(gathered(of, records)) == 1, "nor is it kept more than once"


@pytest.mark.parametrize("name", [name for name, of in ALL.items() if of.subtracts])
@given(*[st.lists(st.tuples(st.integers(0, 5), FLOATS | NO_NUMBERS | LARGE), max_size=5)] * 2)
def test_what_is_subtracted_was_never_there(
    name: str, stays: list[tuple[int, Any]], goes: list[tuple[int, Any]]
) -> None:
    of = ALL[name]
    rest = of.subtract(of.merge(gathered(of, stays), gathered(of, goes)), gathered(of, goes))
    if rest is None:
        assert name != "count"
        assert not all(isfinite(value) for _, value in stays + goes)
    else:
        assert shown(of.result(rest)) == shown(of.result(gathered(of, stays)))
        more = of.merge(rest, gathered(of, goes))
        assert shown(of.result(more)) == shown(of.result(gathered(of, stays + goes))), "and it goes on from there"


def test_what_differs_in_its_number_is_another_aggregation() -> None:
    """By its name the store tells the state of one from that of another."""
    assert len({top(n, itself, int).name for n in range(1, 9)}) == 8
    assert len({of.name for of in ALL.values()}) == len(ALL) - 1, "two of them are of the top three"


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
