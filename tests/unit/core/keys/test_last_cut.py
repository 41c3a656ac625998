"""What an epoch has set is merged into memory bit by bit: what is read first, the rest before it may leave."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.bundles import CellWrites
from millwheel.core.keys.key_columns import KeyColumns
from millwheel.core.keys.last_cut import LastCut
from millwheel.ids import Seq

GREW = 8
"""What was estimated of the epoch, bytes: it is right, as each of eight values has one byte more."""


@pytest.fixture
def columns() -> KeyColumns:
    columns = KeyColumns()
    for key in "abcdefgh":
        columns.insert(key, {("c", ""): b"1"}, more=False)
    return columns


@pytest.fixture
def cut(columns: KeyColumns) -> LastCut:
    """All eight keys were set in epoch 5."""
    cut = LastCut(columns)
    begin(cut, columns)
    return cut


def begin(cut: LastCut, columns: KeyColumns) -> None:
    values: dict[str, dict[str, bytes | None]] = {"c": dict.fromkeys("abcdefgh", b"22")}
    columns.size_bytes += GREW
    cut.begin(Seq(5), values, [CellWrites("c", [*values["c"]], [*values["c"].values()])], GREW)


def merged(columns: KeyColumns) -> str:
    return "".join(key for key, value in columns.values["c"].items() if value == b"22")


def test_what_is_read_is_merged_and_some_others(
    cut: LastCut, columns: KeyColumns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADOPTED_AT_ONCE", 2)
    size = columns.size_bytes
    cut.merge_for(["h"])
    assert merged(columns) == "abh"
    assert columns.size_bytes == size + 3, "with the estimate of the epoch"
    monkeypatch.setattr(limits, "ADOPTED_PER_KEY", 0)
    cut.merge_for(["h", "g"])
    assert merged(columns) == "abgh"
    cut.merge(["c", "not there"])
    assert merged(columns) == "abcgh"
    cut.merge_all()
    assert merged(columns) == "abcdefgh"
    assert columns.size_bytes == size, "what was estimated is known now"


def test_when_few_are_left_all_are_merged(cut: LastCut, columns: KeyColumns) -> None:
    cut.merge_for(["a", "b"])
    assert merged(columns) == "abcdefgh", "eight are no more than twice the others of two keys"


def test_an_epoch_is_merged_before_its_fold_lets_keys_leave(cut: LastCut, columns: KeyColumns) -> None:
    cut.folded(Seq(4))
    assert merged(columns) == ""
    cut.folded(Seq(5))
    assert merged(columns) == "abcdefgh"


def test_a_small_epoch_is_merged_at_once(cut: LastCut, columns: KeyColumns) -> None:
    size = columns.size_bytes
    cut.merge_at_once()
    assert (merged(columns), columns.size_bytes) == ("abcdefgh", size)
    columns.merge("c", {"a": b"33"})
    cut.merge(["a"])
    cut.merge_all()
    assert columns.values["c"]["a"] == b"33", "nothing of it is left"


def test_a_piece_may_lie_in_two_cells_and_have_removals(columns: KeyColumns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADOPTED_AT_ONCE", 2)
    cut = LastCut(columns)
    values: dict[str, dict[str, bytes | None]] = {"c": {"a": None, "b": b"2", "c": b"2"}, "d": {"a": b"3"}}
    cut.begin(Seq(1), values, [CellWrites(cell, [*of], [*of.values()]) for cell, of in values.items()], 0)
    cut.merge((), others=1)
    assert (columns.values["c"].get("a"), columns.values["c"]["b"], columns.values["c"]["c"]) == (None, b"2", b"1")
    cut.merge((), others=3)
    assert (columns.values["c"]["c"], columns.values["d"]) == (b"2", {"a": b"3"})


def test_the_next_epoch_begins_anew(cut: LastCut, columns: KeyColumns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ADOPTED_AT_ONCE", 2)
    cut.merge((), others=1)
    cut.merge_all()
    columns.merge("c", dict.fromkeys("abcdefgh", b"1"))
    begin(cut, columns)
    assert merged(columns) == ""
    cut.merge((), others=1)
    assert merged(columns) == "ab"
