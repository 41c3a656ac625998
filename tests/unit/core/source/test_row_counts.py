"""Rows that are read again after a going back count once."""

from __future__ import annotations

from millwheel.core.source.row_counts import RowCounter, RowCounts


def test_without_snapshots_all_that_was_read_counts_when_a_partition_goes() -> None:
    rows = RowCounter(snapshots=False)
    rows.add(RowCounts(3, 1))
    rows.add(RowCounts(4, 0))
    assert rows.read == RowCounts(7, 1)
    assert rows.end() == RowCounts(7, 1)
    assert rows.end() == RowCounts(), "it counts from 0"


def test_under_snapshots_what_no_epoch_has_is_read_again_and_counts_then() -> None:
    rows = RowCounter(snapshots=True)
    rows.add(RowCounts(3, 1, {"a": 1}))
    rows.note()
    rows.add(RowCounts(4, 2, {"a": 1, "b": 1}))
    assert rows.read == RowCounts(7, 3, {"a": 2, "b": 1}), "while the partition is here, all that it has read"
    rows.declare()
    rows.add(RowCounts(1, 0))
    assert rows.end() == RowCounts(3, 1, {"a": 1})
    assert (rows.read, rows.end()) == (RowCounts(), RowCounts())


def test_a_barrier_that_passes_before_the_last_epoch_is_told_takes_nothing_of_that() -> None:
    rows = RowCounter(snapshots=True)
    rows.add(RowCounts(3, 0))
    rows.note()
    rows.add(RowCounts(4, 0))
    rows.note()
    rows.declare()
    assert rows.end() == RowCounts(3, 0)


def test_what_was_noted_before_a_partition_went_does_not_count_for_the_next_one() -> None:
    rows = RowCounter(snapshots=True)
    rows.add(RowCounts(3, 0))
    rows.note()
    rows.end()
    rows.declare()
    rows.add(RowCounts(5, 0))
    assert rows.end() == RowCounts()
