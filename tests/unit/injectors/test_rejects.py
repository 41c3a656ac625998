"""The reject file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from millwheel_injectors.rejects import Reject, RejectFile, open_rejects
from tests.unit.injectors.drain import reject_lines


def rows(path: Path) -> list[tuple[str, int]]:
    return [(line.partition, line.row) for line in reject_lines(path)]


def test_two_writers_keep_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "r"
    one, two = RejectFile(path), RejectFile(path)
    one.add("a", [Reject(1, "why", b"x"), Reject(4, "why", b"y")])
    two.add("b", [Reject(1, "why", b"z")])
    two.add("a", [Reject(1, "why", b"x"), Reject(2, "why", b"w")])
    one.add("a", [Reject(2, "why", b"w"), Reject(5, "why", b"v")])
    assert rows(path) == [("a", 1), ("a", 4), ("b", 1), ("a", 2), ("a", 5)]


@pytest.mark.parametrize("torn", [b'{"partition":"a","row":2', b"\xff"])
def test_a_torn_last_line_is_cut_off_and_written_again(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "r"
    RejectFile(path).add("a", [Reject(1, "why", b"x")])
    with open(path, "ab") as file:
        file.write(torn)
    RejectFile(path).add("a", [Reject(1, "why", b"x"), Reject(2, "why", b"y")])
    assert rows(path) == [("a", 1), ("a", 2)]


def test_without_a_file_rejects_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "millwheel.injectors"):
        open_rejects(None).add("part", [Reject(7, "no number", b"x")])
    assert "part row 7 rejected: no number: b'x'" in caplog.text
