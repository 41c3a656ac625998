"""Columns: where keys live, what travels, and that whatever is wrong is refused with the key named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.spark.iteration import ColumnsError, Part, Rows, combined, partition_of
from millwheel.spark.iteration.columns import (
    as_column,
    as_keys,
    changed_rows,
    check_alike,
    check_home,
    distance,
    joined,
    merged,
    not_a_number,
    opened,
    part_of,
    sealed,
    split,
)

KEYS = st.lists(st.integers(-(2**62), 2**62), max_size=50)


def rows(keys: list[int], **columns: list[float]) -> Rows:
    return Rows(np.array(keys, dtype=np.int64), {name: np.array(column) for name, column in columns.items()})


def part(keys: list[int], number: int = 0, **columns: Any) -> Part:
    return Part(number, np.array(keys, dtype=np.int64), {name: np.array(column) for name, column in columns.items()})


@given(KEYS, st.integers(1, 9))
def test_split_sends_every_row_home_once_and_in_order(keys: list[int], partitions: int) -> None:
    given_rows = rows(keys, at=list(range(len(keys))))
    pieces = split(given_rows, partitions)
    assert len(pieces) == partitions
    for number, piece in enumerate(pieces):
        assert (partition_of(piece.keys, partitions) == number).all()
        assert (np.diff(piece["at"]) > 0).all() if len(piece) else True
    everything = joined(pieces)
    assert sorted(everything["at"].tolist() if len(everything) else []) == list(range(len(keys)))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(-5, 5)), max_size=40))
def test_combined_is_a_reduction_by_key(pairs: list[tuple[int, int]]) -> None:
    given_rows = rows([key for key, _ in pairs], n=[value for _, value in pairs])
    found = combined(given_rows, n=np.minimum)
    expected: dict[int, int] = {}
    for key, value in pairs:
        expected[key] = min(value, expected.get(key, value))
    values = found["n"].tolist() if len(found) else []
    assert dict(zip(found.keys.tolist(), values, strict=True)) == expected
    assert found.keys.tolist() == sorted(expected)


def test_keys_with_a_common_stride_do_not_share_a_partition() -> None:
    for stride in (2, 4, 8, 64, 1000):
        counts = np.bincount(partition_of(np.arange(0, 8000 * stride, stride, dtype=np.int64), 8), minlength=8)
        assert counts.min() > 700, stride


def test_messages_may_name_their_columns_in_any_order() -> None:
    both = joined([rows([1], x=[1.0], y=[2.0]), rows([2], y=[4.0], x=[3.0])])
    assert (both["x"].tolist(), both["y"].tolist()) == ([1.0, 3.0], [2.0, 4.0])


def test_totals_add_up_and_reach_everybody() -> None:
    one, other = (
        Rows(np.empty(0, np.int64), {}, {"mass": 0.25}),
        Rows(np.array([3]), {"x": np.array([1.0])}, {"mass": 0.5}),
    )
    assert joined([one, other]).totals == {"mass": 0.75}
    for partitions in (1, 3):
        assert all(piece.totals == {"mass": 0.5} for piece in split(other, partitions))
    for batch in (one, other):
        assert combined(batch, x=np.add).totals == batch.totals


def test_what_is_combined_has_the_columns_that_were_named_also_without_a_row() -> None:
    full = rows([1, 1], x=[1.0, 2.0], y=[3.0, 4.0])
    for batch in (full, full.take(np.arange(0))):
        assert [*combined(batch, x=np.add).columns] == ["x"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: part([3, 3]), "3 follows 3"),
        (lambda: part([3, 1]), "1 follows 3"),
        (lambda: part([1, 5, 6, 4]), "4 follows 6"),
        (lambda: rows([1, 2], x=[1.0]), "'x' has shape"),
        (lambda: Rows(np.array([1.0]), {}), "int64"),
        (lambda: Rows(np.array([1]), {"x": np.array([object()])}), "'x' holds Python objects"),
        (lambda: Rows(np.array([1]), {"x": [1.0]}), "'x' is a list: give a numpy array"),  # type: ignore[dict-item]
        (lambda: Rows(np.array([1]), {"x": np.ma.array([1.0], mask=[True])}), "'x' is a MaskedArray"),
        (lambda: Rows([1], {}), "int64, not a list"),  # type: ignore[arg-type]
        (lambda: distance(part([1], x=[1.0]), part([1], x=[1.0]), "y"), "no column 'y', but 'x'"),
        (lambda: distance(part([1]), part([1]), "y"), "no column 'y', but none"),
        (lambda: part([1, 5]).places(np.array([1, 4])), "no key 4"),
        (lambda: part([1, 5]).places(np.array([6])), "no key 6"),
        (lambda: part_of(0, 1, rows([7, 7])), "key 7 comes more than once"),
        (lambda: joined([rows([1], x=[1.0]), rows([1], y=[1.0])]), "differ in columns"),
    ],
)
def test_what_is_wrong_is_named(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(ColumnsError, match=says):
        make()


def test_a_key_in_a_strange_partition_is_named() -> None:
    stray = next(key for key in range(100) if partition_of(np.array([key]), 4)[0] == 2)
    with pytest.raises(ColumnsError, match=f"key {stray} belongs to partition 2"):
        check_home(part([stray], number=1), 4)


def test_a_part_that_differs_in_more_than_values_is_refused() -> None:
    model = part([1, 2], x=[0.0, 0.0])
    check_alike(part([1, 2], x=[5.0, 6.0]), model, "it")
    for wrong, says in [
        (part([1, 3], x=[0.0, 0.0]), "key 3 is not one of it"),
        (part([1], x=[0.0]), "key 2 is missing"),
        (part([1, 2], y=[0.0, 0.0]), "has columns"),
        (part([1, 2], x=[0, 0]), "has columns"),
        (part([1, 2], x=[0.0, 0.0], y=[0.0, 0.0]), "has columns"),
        (part([1, 2], x=[[0.0], [0.0]]), "has columns"),
        (part([1, 2], number=3, x=[0.0, 0.0]), "partition 3 stands where 0"),
    ]:
        with pytest.raises(ColumnsError, match=says):
            check_alike(wrong, model, "it")


def test_figures_of_a_superstep() -> None:
    old, new = part([1, 2, 3], x=[0.0, 1.0, 2.0]), part([1, 2, 3], x=[0.0, 1.5, -1.0])
    assert distance(new, old, "x") == distance(new, old, None) == 3.0
    assert changed_rows(new, old) == 2
    assert distance(part([]), part([]), None) == 0.0


def test_merging_changes_only_what_is_named_and_not_the_old_part() -> None:
    base = part([1, 2, 3], x=[0.0, 1.0, 2.0])
    assert merged(base, part([2], x=[9.0]))["x"].tolist() == [0.0, 9.0, 2.0]
    assert base["x"].tolist() == [0.0, 1.0, 2.0]
    assert merged(base, part([])) is base
    with pytest.raises(ColumnsError, match="no key 4"):
        merged(base, part([4], x=[9.0]))


def test_an_empty_partition_has_not_moved() -> None:
    empty = part([], x=[])
    assert (changed_rows(empty, empty), distance(empty, empty, None), not_a_number(empty, None)) == (0, 0.0, None)


def test_what_stays_infinite_has_not_moved_and_what_is_no_number_shows() -> None:
    old, new = part([1, 2, 3], x=[np.inf, 2.0, -np.inf]), part([1, 2, 3], x=[np.inf, 2.5, -np.inf])
    assert distance(new, old, "x") == 0.5
    assert distance(old, part([1, 2, 3], x=[1.0, 2.0, 3.0]), "x") == np.inf
    broken = part([1, 2, 3], y=[0.0, 0.0, 0.0], x=[0.0, np.nan, 0.0])
    assert np.isnan(distance(broken, part([1, 2, 3], y=[0.0] * 3, x=[0.0] * 3), None))
    assert not_a_number(broken, None) == "key 2, column 'x'"
    assert not_a_number(broken, "y") is None


def test_a_row_of_several_numbers_has_changed_when_one_of_them_has() -> None:
    old, new = part([1, 2, 3], x=np.zeros((3, 2))), part([1, 2, 3], x=np.array([[0, 0], [0, 5.0], [1.0, np.nan]]))
    assert changed_rows(new, old) == 2
    assert distance(new.take(np.arange(2)), old.take(np.arange(2)), None) == 5.0
    assert not_a_number(new, None) == "key 3, column 'x'"


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        ([False, True], [True, True], 1.0),
        ([2**62, 0], [2**62 + 1, 0], 1.0),
        ([-(2**63)], [2**63 - 1], 2.0**64),
        (np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64), 1.0),
        ([1 + 1j], [1 + 3j], 2.0),
        (["a", "b"], ["a", "c"], np.inf),
        (np.array(["2026-01-01"], "datetime64[D]"), np.array(["2026-01-04"], "datetime64[D]"), 3.0),
        (np.array([5], "timedelta64[s]"), np.array([7], "timedelta64[s]"), 2.0),
        (np.array([(1, 2.0)], "i8,f8"), np.array([(1, 2.5)], "i8,f8"), np.inf),
        (["a", "b"], ["a", "b"], 0.0),
        ([False, True], [False, True], 0.0),
        (np.array(["NaT"], "datetime64[D]"), np.array(["NaT"], "datetime64[D]"), 0.0),
    ],
)
def test_a_column_of_any_type_moves_when_it_changes(old: Any, new: Any, moved: float) -> None:
    before, after = (Part(0, np.arange(len(old)), {"x": np.asarray(values)}) for values in (old, new))
    assert distance(after, before, None) == distance(after, before, "x") == moved


def test_what_a_step_gets_can_be_read_and_not_written() -> None:
    given = sealed(part([1, 2], x=[1.0, 2.0]))
    with pytest.raises(ValueError, match="read-only"):
        given["x"][0] = 9.0
    with pytest.raises(ValueError, match="read-only"):
        given.keys[0] = 9
    for whole in (opened(given), opened(sealed(part([1, 2], x=[1.0, 2.0])).take(slice(0, 1)))):  # type: ignore[arg-type]
        whole["x"][0] = 9.0
        assert whole["x"][0] == 9.0


def test_columns_are_taken_by_place_and_masked_ones_refused() -> None:
    assert as_column((3.0, 1.0)).tolist() == [3.0, 1.0]
    assert as_column(np.ma.array([1, 2], mask=[False, False])).tolist() == [1, 2]
    for wrong in (as_column, as_keys):
        with pytest.raises(ColumnsError, match="masked"):
            wrong(np.ma.array([1, 2], mask=[False, True]))


def test_keys_that_would_not_come_through_whole_are_refused() -> None:
    assert as_keys([]).dtype == np.int64
    assert as_keys(np.array([1, 2], dtype=np.uint8)).tolist() == [1, 2]
    for wrong in ([1.5], ["a"], [True], np.array([1, 2**63], dtype=np.uint64)):
        with pytest.raises(ColumnsError, match="keys must be integers"):
            as_keys(wrong)
    with pytest.raises(ColumnsError, match="partitions must be 1 or more, not 0"):
        split(rows([1]), 0)
