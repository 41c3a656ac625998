"""Rows of Postgres become the values of bundles; what another version wrote is refused."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.errors import IncompatibleStore
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel_storage.decode import decode_image, found_ids, key_rows, quarantine_entry, timer_rows, timer_writes
from millwheel_storage.productions import pack_ids


def image(format_: int = CHECKPOINT_FORMAT) -> bytes:
    return encode_checkpoint(
        Checkpoint(format_, "1", 0, [], [], [], StateWrites([]), TimerWrites(), HoldWrites([], []), [], [], ["a"])
    )


def test_an_image_comes_back() -> None:
    assert decode_image(image()).forgotten == ["a"]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\xc1", "cannot be decoded"),
        (msgspec.msgpack.encode("text"), "cannot be decoded"),
        (image(CHECKPOINT_FORMAT + 1), f"has format {CHECKPOINT_FORMAT + 1}"),
    ],
)
def test_what_this_version_has_not_written_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(IncompatibleStore, match=says):
        decode_image(payload)


def test_ids_are_found_from_the_frontier_on() -> None:
    rows = [(pack_ids(sequence_numbers([1, 2, 3])), 2), (pack_ids(sequence_numbers([7, 9])), 8)]
    assert found_ids(rows, sequence_numbers([1, 2, 4, 7, 9])) == {2, 9}
    assert found_ids([], sequence_numbers([1])) == set()


def test_timers_are_rows_in_order_of_time_and_columns_again() -> None:
    rows = timer_rows([(b"k", "wall", b"t", 5), ("é".encode(), "watermark", b"", 7)])
    assert rows == [(5, "k", "t", "wall"), (7, "é", "", "watermark")]
    columns = timer_writes(rows)
    assert (columns.keys, columns.tags, columns.kinds, columns.timestamps) == (
        ["k", "é"], ["t", ""], ["wall", "watermark"], [5, 7],
    )  # fmt: skip


def test_a_key_with_more_cells_than_the_limit_was_not_read_to_the_end() -> None:
    cells = [(b"b", "c", b"1", b"x"), (b"b", "c", b"2", b"y"), (b"a", "c", b"", b"z")]
    a, b, t = key_rows(cells, [(b"t", "wall", b"tag", 3), (b"a", "wall", b"tag", 4)], 1)
    assert [(row.key, row.more) for row in (a, b, t)] == [("a", False), ("b", True), ("t", False)]
    assert b.cells == {("c", "1"): b"x", ("c", "2"): b"y"}
    assert (a.timers, t.timers, t.cells) == ({("wall", "tag"): 4}, {("wall", "tag"): 3}, {})


def test_a_quarantined_element_comes_back() -> None:
    row = (b"k", 7, 55, 3, b"v", 9, b"tag", "wall", "é".encode())
    assert quarantine_entry(row) == QuarantineEntry(
        "k", SubscriptionId(7), ProducerId(55), SequenceNumber(3), b"v", 9, "tag", "wall", "é"
    )
