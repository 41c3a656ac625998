"""Rows that are read again after a going back count once."""

from __future__ import annotations

from millwheel.core.source.row_counts import RowCounter, RowCounts


def test_without_snapshots_what_is_behind_the_last_position_is_read_again_and_counts_then() -> None:
    rows = RowCounter(snapshots=False)
    rows.add(RowCounts(3, 1))
    first = rows.read
    rows.add(RowCounts(4, 0))
    rows.note(first)
    rows.declare()
    assert rows.read == RowCounts(7, 1), "while the partition is here, all that it has read"
    assert rows.end() == RowCounts(3, 1)
    assert rows.end() == RowCounts(), "it counts from 0"


def test_a_position_that_is_being_written_counts_unless_it_is_refused() -> None:
    for refused, counts in ((False, RowCounts(3, 0)), (True, RowCounts())):
        rows = RowCounter(snapshots=False)
        rows.add(RowCounts(3, 0))
        rows.note(rows.read)
        rows.add(RowCounts(4, 0))
        if refused:
            rows.refuse()
        assert rows.end() == counts


def test_under_snapshots_what_no_epoch_has_is_read_again_and_counts_then() -> None:
    rows = RowCounter(snapshots=True)
    rows.add(RowCounts(3, 1, {"a": 1}))
    rows.note(rows.read)
    rows.add(RowCounts(4, 2, {"a": 1, "b": 1}))
    assert rows.read == RowCounts(7, 3, {"a": 2, "b": 1}), "while the partition is here, all that it has read"
    rows.declare()
    rows.add(RowCounts(1, 0))
    assert rows.end() == RowCounts(3, 1, {"a": 1})
    assert (rows.read, rows.end()) == (RowCounts(), RowCounts())


def test_a_barrier_that_passes_before_the_last_epoch_is_told_takes_nothing_of_that() -> None:
    rows = RowCounter(snapshots=True)
    rows.add(RowCounts(3, 0))
    rows.note(rows.read)
    rows.add(RowCounts(4, 0))
    rows.note(rows.read)
    rows.declare()
    assert rows.end() == RowCounts(3, 0)


def test_what_was_noted_before_a_partition_went_does_not_count_for_the_next_one() -> None:
    rows = RowCounter(snapshots=True)
    rows.add(RowCounts(3, 0))
    rows.note(rows.read)
    rows.end()
    rows.declare()
    rows.add(RowCounts(5, 0))
    assert rows.end() == RowCounts()
