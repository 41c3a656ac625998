"""A harness that cannot fail proves nothing: planted bugs must be noticed."""

from __future__ import annotations

import pytest

from tests.mutants import MUTANTS, crash_points_to_detect, seeds_to_detect

BUDGET_SEEDS = 100
SLOW = {
    "What is sent again to an interval that restarts includes what is not durable yet": 20,
    "Timers of a quarantined key fire": 20,
    "A quarantine is released while a record is on its way into it": 50,
    "A quarantine holds the watermark at its first element only, though an older one came later": 33,
    "A redrive that died between its last element and the release is forgotten": 66,
}
"""The first seed to try, where the rare thing was last seen; `make mutants` counts from 0."""


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_noticed(name: str) -> None:
    quick = seeds_to_detect(name, 8, SLOW.get(name, 0))
    assert quick or seeds_to_detect(name, BUDGET_SEEDS) or crash_points_to_detect(name), f"nobody noticed: {name}"
