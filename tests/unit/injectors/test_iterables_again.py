"""Rows in Python that are read again: after a stop, and from any row."""

from __future__ import annotations

import pytest

from millwheel_injectors import BoundedDisorder, IterableSource
from tests.unit.injectors.drain import Registry, only, read_all, rows_of

ROWS = [("a", 5), ("b", 9), ("c", 7), ("d", 20)]


@pytest.mark.parametrize("position", range(5))
def test_it_goes_back_or_on_to_any_row_with_what_was_seen(position: int) -> None:
    """The newest event time comes with the state, and is that of all rows that were read and not of the first."""
    partition = only(IterableSource("s", lambda: ROWS, BoundedDisorder(1)))
    states = [partition.fingerprint()]
    while (batch := partition.read(1)) is not None:
        states.append(batch.state)
    partition.resume(position, states[position])
    if position:
        assert partition.watermark() == max(time for _, time in ROWS[:position]) - 1
    assert [row for row, _, _ in rows_of(read_all(partition, 3))] == [*range(position, 4)]


def test_the_promise_follows_the_newest_row_of_a_read() -> None:
    partition = only(IterableSource("s", lambda: ROWS, BoundedDisorder(1)))
    assert partition.read(3) is not None
    assert partition.watermark() == 8


def test_one_that_was_begun_goes_on_and_one_that_has_ended_does_not() -> None:
    begun, ended = IterableSource("s", ROWS), IterableSource("s", ROWS)
    (partition,) = Registry(begun).search()
    registry = Registry(begun)
    registry.begin(partition.name, partition.fingerprint())
    assert [found.name for found in registry.search()] == ["rows"]
    registry = Registry(ended)
    registry.finish(partition.name, len(ROWS), partition.fingerprint())
    assert registry.search() == registry.search() == []
