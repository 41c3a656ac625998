"""Rejected rows make a line per kind, with a count, and as many kinds as are bounded."""

from __future__ import annotations

import logging

import pytest

from millwheel import limits
from millwheel.rejected import OTHERS, Kinds, kind_of


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "ValueError: could not convert string to float: 'a'",
            "ValueError: could not convert string to float: ''",
            True,
        ),
        ("value of 4194305 bytes; limit 4194304", "value of 5000000 bytes; limit 4194304", True),
        ("no `at` in row", "no `id` in row", False),
        ("ValueError: x", "KeyError: x", False),
    ],
)
def test_a_kind_is_a_reason_without_what_belongs_to_one_row(one: str, other: str, same: bool) -> None:
    assert (kind_of(one) == kind_of(other)) is same


def test_many_rows_of_a_kind_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    kinds = Kinds("clicks")
    with caplog.at_level(logging.WARNING, "millwheel.injectors"):
        for row in range(100_000):
            kinds.add("part", row, f"bad number {row}", b"raw")
    assert [record.getMessage() for record in caplog.records] == [
        "source clicks: rejected row 0 of part: bad number 0: b'raw'",
        *(f"source clicks: rejected {10**n:,} rows so far: bad number …" for n in range(1, 6)),
    ]
    assert kinds.counts == {"bad number …": 100_000}


def test_a_line_is_short_and_harmless_whatever_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A handler cannot write half of a pair of surrogates, and a terminal obeys control characters."""
    kinds = Kinds("s")
    with caplog.at_level(logging.WARNING, "millwheel.injectors"):
        for row in range(10):
            kinds.add("p", row, "\ud800 \x1b[2J\n" + "no " * 1_000_000, b"x")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all(line.isprintable() and len(line) < 2_200 for line in said)
    assert r"\ud800 \x1b[2J" in said[0]


def test_kinds_are_bounded() -> None:
    kinds = Kinds("clicks")
    for word in range(3 * limits.REJECT_KINDS):
        kinds.count("x" * (word + 1))
    assert len(kinds.counts) == limits.REJECT_KINDS + 1
    assert kinds.counts[OTHERS] == 2 * limits.REJECT_KINDS
