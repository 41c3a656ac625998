"""A harness that cannot fail proves nothing: planted bugs must be noticed."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, crash_points_to_detect, seeds_to_detect

BUDGET_SEEDS = 40


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_noticed(name: str) -> None:
    found = seeds_to_detect(name, BUDGET_SEEDS) or crash_points_to_detect(name)
    assert found is not None, f"nobody noticed: {name}"
