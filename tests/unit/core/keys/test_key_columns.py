"""State in columns: what is overlaid, what is removed, what is here in part, and what all of it takes."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.bundles import StateWrites
from millwheel.core.keys.key_columns import KeyColumns
from millwheel.limits import ENTRY_OVERHEAD_BYTES, SLOT_OVERHEAD_BYTES


@pytest.fixture
def columns() -> KeyColumns:
    columns = KeyColumns()
    columns.insert("a", {("v", ""): b"123", ("m", "x"): b"1", ("m", "y"): b"12"}, more=False)
    return columns


def test_a_key_its_slots_and_their_bytes_count(columns: KeyColumns) -> None:
    assert columns.size_bytes == ENTRY_OVERHEAD_BYTES + 3 * SLOT_OVERHEAD_BYTES + 6
    columns.insert_empty(["b", "c"])
    assert columns.size_bytes == 3 * ENTRY_OVERHEAD_BYTES + 3 * SLOT_OVERHEAD_BYTES + 6
    assert columns.of("a") == {("v", ""): b"123", ("m", "x"): b"1", ("m", "y"): b"12"}
    assert columns.of("b") == {}


def test_writes_overlay_and_none_removes(columns: KeyColumns) -> None:
    size = columns.size_bytes
    columns.merge("v", {"a": None, "b": b"1"})
    assert columns.values["v"] == {"b": b"1"}
    assert columns.size_bytes == size - 2
    log = columns.merge_entries("m", {"a": {"x": None, "y": b"1"}, "c": {"z": None}})
    assert [*StateWrites([log]).rows()] == [
        ("a", "m", "x", None), ("a", "m", "y", b"1"), ("c", "m", "z", None),
    ]  # fmt: skip
    assert columns.entries["m"] == {"a": {"y": b"1"}}, "a key without entries has no column"
    assert columns.size_bytes == size - 2 - SLOT_OVERHEAD_BYTES - 2


def test_of_keys_that_are_here_in_part_removals_are_remembered() -> None:
    columns = KeyColumns()
    columns.insert("a", {("v", ""): b"1"}, more=True)
    columns.insert("b", {("v", ""): b"1"}, more=False)
    size = columns.size_bytes
    columns.merge("v", {"a": None, "b": None})
    columns.merge_entries("m", {"a": {"x": None, "y": b"1"}})
    assert columns.partial["a"].absent == {("v", ""), ("m", "x")}
    assert columns.partial.keys() == {"a"}
    assert (
        columns.size_bytes == size - 2 * (SLOT_OVERHEAD_BYTES + 1) + 2 * SLOT_OVERHEAD_BYTES + SLOT_OVERHEAD_BYTES + 1
    )
    columns.clear(["a", "b"])
    assert (columns.size_bytes, columns.partial, columns.of("a")) == (0, {}, {})


def test_what_was_asked_for_and_is_not_there_is_known_to_be_absent() -> None:
    columns = KeyColumns()
    columns.insert("a", {}, more=True)
    columns.merge("w", {"a": b"new"})
    wanted = [("a", "v", ""), ("a", "w", ""), ("a", "m", "x"), ("a", "m", "y"), ("a", "l", None)]
    columns.fill(wanted, [("a", "v", "", b"1"), ("a", "w", "", b"old"), ("a", "m", "x", b"2"), ("a", "m", "y", None)])
    assert columns.of("a") == {("v", ""): b"1", ("w", ""): b"new", ("m", "x"): b"2"}
    assert (columns.partial["a"].absent, columns.partial["a"].whole) == ({("m", "y")}, {"l"})


@pytest.mark.parametrize("by_write", [False, True])
def test_a_key_with_many_entries_is_noted_until_it_is_thinned(
    columns: KeyColumns, monkeypatch: pytest.MonkeyPatch, by_write: bool
) -> None:
    monkeypatch.setattr(limits, "STATE_PAGE_SLOTS", 2)
    assert not columns.big
    if by_write:
        columns.merge_entries("m", {"a": {"z": b"123"}})
    else:
        columns.insert("b", {("m", name): b"1" for name in "xyz"}, more=False)
    assert [*columns.big] == ["a" if by_write else "b"]
    key = next(iter(columns.big))
    columns.thin(key, {"m": {"z": b"1", "gone": None}})
    assert not columns.big
    assert columns.entries["m"][key].keys() == {"z"}
    assert columns.partial[key].absent == ({("m", "gone")} if by_write else {("m", "gone"), ("v", "")})
    assert ("v", "") in columns.of(key) or not by_write, "values stay"
    twin = KeyColumns()
    for one in ("a",) if by_write else ("a", "b"):
        twin.insert(one, columns.of(one), more=False)
    assert columns.size_bytes == twin.size_bytes + SLOT_OVERHEAD_BYTES * len(columns.partial[key].absent)
