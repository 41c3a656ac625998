"""A harness that cannot fail proves nothing: planted bugs must be noticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants import crash_points_to_detect, seeds_to_detect
from tests.planted import MUTANTS, UNIT_ONLY, unit_test_notices
from tests.sim.cores import Answers, on_all_cores

BUDGET_SEEDS = 100
SLOW = {
    "A chain of timers fires past one of its key that is still in the queue": 57,
    "Timers that set each other to the same time are never quarantined": 50,
    "What is sent again to an interval that restarts includes what is not durable yet": 38,
    "Timers of a quarantined key fire": 38,
    "A quarantine is released while a record is on its way into it": 20,
    "A quarantine holds the watermark at its first element only, though an older one came later": 20,
    "A line is read again before what was redriven of it is folded": 8,
    "A key is released after the first read of its line, however long that is": 8,
    "A redrive of many keys goes on behind an element that has failed again": 20,
    "A redrive that died between its last element and the release is forgotten": 17,
    "A filter is dropped after the next fold, not when the frontiers have passed what it holds": 148,
    "An outside id is forgotten when it is folded, while an answer that does not know it is on its way": 83,
    "A key leaves memory while a page is on its way, which is outdated about it": 232,
    "The fence is skipped: a stale sequencer reads a page of timers": 8,
    "The culprit of a refused row is run again, and again": 8,
    "Watermark reported past timers that are not in memory": 144,
    "A restarted interval is not sent again what it has lost": 8,
    "Every owner of an interval numbers its bundles from one: an ack for the last owner acks the next one's": 52,
    "An interval with a refused row is taken back from whoever has taken it over meanwhile": 8,
    "A hook runs while its mark is still on the way": 15,
    "What runs after a death is not marked: the same record kills every process": 28,
    "What was alone when the process died stays a suspect, however often": 28,
    "What has killed often enough is run again": 28,
    "Other invocations run beside a suspect": 52,
    "Only the culprit is quarantined, its key's later records run before it": 13,
    "A partition that was missing comes back behind the younger ones of its source, and nobody waits for it": 19,
    "Silence raises a watermark to the wall clock, whatever disorder the source declares": 59,
    "The watermark passes what an earlier version of a computation has sent, and its new version does not list": 60,
    "Ids that outside clients chose are not asked for after a restart": 9,
    "The fence is skipped: a stale injector moves its partition's position": 9,
}
"""The first seed to try, where the rare thing was last seen; `make mutants` counts from 0."""


def noticed(name: str) -> bool:
    """Whether anything sees the bug `name`."""
    if name in UNIT_ONLY:
        return unit_test_notices(name)
    quick = seeds_to_detect(name, 8, SLOW.get(name, 0))
    return bool(quick or seeds_to_detect(name, BUDGET_SEEDS) or crash_points_to_detect(name))


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    yield from on_all_cores(request, noticed)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_noticed(name: str, answers: Answers) -> None:
    assert answers[name].get(), f"nobody noticed: {name}"
