"""The way from a computation to what keeps its watermark."""

from __future__ import annotations

import pytest

from millwheel.host.keepers import keepers

BOUNDS = {
    "Split": ["source:a", "source:b"],
    "Count": ["Split"],
    "Join": ["Count", "source:b"],
    "In": ["source:a", "loop:In"],
}
LOOPS = {"loop:In": ("In", "Out")}


@pytest.mark.parametrize(("watermarks", "kept_by"), [
    ({}, ["source:a", "source:b"]),
    ({"source:a": 9, "source:b": 5, "Split": 5, "Count": 5, "Join": 5}, ["source:b"]),
    ({"source:a": 9, "source:b": 9, "Split": 5, "Count": 5, "Join": 5}, ["Split"]),
    ({"source:a": 9, "source:b": 9, "Split": 9, "Count": 5, "Join": 5}, ["Count"]),
    ({"source:a": 9, "source:b": 9, "Split": 9, "Count": 9, "Join": 5}, ["Join"]),
    ({"source:a": 9, "source:b": 9, "Split": 9, "Count": 9, "Join": 9}, ["source:a", "source:b"]),
])  # fmt: skip
def test_it_ends_at_whoever_is_behind_all_of_its_senders(watermarks: dict[str, int], kept_by: list[str]) -> None:
    assert keepers("Join", watermarks, lambda name: BOUNDS.get(name, ()), LOOPS) == kept_by


def test_the_floor_of_a_loop_is_kept_by_its_members_or_by_what_comes_in() -> None:
    bounds = {**BOUNDS, "Out": ["In"]}
    marks = {"source:a": 9, "loop:In": 5, "In": 5, "Out": 3}
    assert keepers("In", marks, lambda name: bounds.get(name, ()), LOOPS) == ["Out"]
