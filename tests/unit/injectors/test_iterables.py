"""Rows that are already in Python."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.errors import SourceError
from millwheel.limits import LONG_ROWS, READ_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import Batch
from millwheel_injectors import BoundedDisorder, Exact, FileCreation, IterableSource
from tests.unit.injectors.drain import Registry, only, read_all, rows_of

ROWS = [("a", 5), ("b", 3), ("c", 9)]


@given(st.lists(st.tuples(st.text(), st.integers(0, 99)), max_size=20), st.integers(1, 5), st.integers(0, 20))
def test_rows_are_numbered_and_replayed(rows: list[tuple[str, int]], limit: int, stop: int) -> None:
    whole = [(n, value, time) for n, (value, time) in enumerate(rows)]
    for source in (IterableSource("s", rows), IterableSource("s", lambda: iter(rows))):
        first = only(source)
        before: list[Batch] = []
        state = first.fingerprint()
        while len(rows_of(before)) < stop and (batch := first.read(limit)):
            before.append(batch)
            state = batch.state
        again = only(source)
        again.resume(len(rows_of(before)), state)
        assert rows_of(before) + rows_of(read_all(again, limit)) == whole
        assert again.finished()


def test_the_watermark_of_a_sequence_is_exact() -> None:
    source = IterableSource("s", ROWS)
    assert (source.complete(), source.pending_watermark()) == (False, MIN_TIME)
    partition = only(source)
    assert (source.complete(), source.pending_watermark()) == (True, MAX_TIME)
    seen = [partition.watermark()]
    while partition.read(1):
        seen.append(partition.watermark())
    assert seen == [3, 3, 9, 9]
    assert partition.watermark() == MAX_TIME
    assert source.discover({"rows"}) == []


def test_a_function_of_rows_has_a_bounded_disorder() -> None:
    partition = only(IterableSource("s", lambda: ROWS, BoundedDisorder(2)))
    assert partition.watermark() == MIN_TIME
    partition.read(1)
    assert partition.watermark() == 3


@pytest.mark.parametrize("rows", [ROWS, lambda: iter(ROWS)])
def test_rows_behind_an_end_are_not_lost_in_silence(rows: Any) -> None:
    whole, short = Registry(IterableSource("s", rows)), Registry(IterableSource("s", rows))
    whole.finish("rows", 3, b"{}")
    assert whole.search() == whole.search() == []
    short.finish("rows", 2, b"{}")
    with pytest.raises(SourceError, match="source s: it ended after 2 rows in an earlier run, and has more now"):
        short.search()


@pytest.mark.parametrize("long", ["x" * 1_000_000, b"x" * 1_000_000])
def test_a_read_of_long_rows_is_short(long: Any) -> None:
    """All rows of a read are in memory at once, and a source without a file may have any number of long ones."""
    partition = only(IterableSource("long", lambda: ((long, row) for row in range(100))))
    sizes = [len(batch.rows) for batch in read_all(partition, 4_096)]
    assert sum(sizes) == 100
    assert max(sizes) <= READ_LIMIT_BYTES // 1_000_000 + LONG_ROWS


def test_promises_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="files"):
        IterableSource("s", ROWS, FileCreation())
    with pytest.raises(ValueError, match="a sequence"):
        IterableSource("s", lambda: ROWS, Exact())
    with pytest.raises(SourceError, match="there are 3, but 4"):
        only(IterableSource("s", ROWS)).resume(4, b"{}")
