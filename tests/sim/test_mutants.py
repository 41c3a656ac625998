"""A harness that cannot fail proves nothing: planted bugs must be noticed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mutants import crash_points_to_detect, seeds_to_detect
from tests.planted import MUTANTS, UNIT_ONLY, unit_test_notices
from tests.sim.cores import Answers, on_all_cores

BUDGET_SEEDS = 100
SLOW = {
    "Reports of watermarks that wait for others are forgotten when something else is told": 17,
    "The epoch is not looked at: a leader that was followed persists watermarks": 12,
    "Cores that send to an interval that was split keep what is unacked for it as it is": 7,
    "Each leader counts the rounds of a loop from zero": 2,
    "A leader takes an answer to a round from behind a barrier for one from before it": 24,
    "A leader says only once that an epoch begins": 4,
    "A partition that opens while an epoch runs begins before its barrier": 5,
    "An epoch begins at a worker that does not serve all yet that is its own": 2,
    "Barriers are named when the first worker has begun the epoch": 2,
    "The first cores after a going back have passed no barrier": 4,
    "Workers that own nothing hear of watermarks, and get something when all has gone back": 3,
    "What a leader knows of watermarks outlives a going back": 1,
    "Live reports of a loop are combined, and not what was held since the last ones": 5,
    "A wall timer speaks of times before what its interval has answered": 13,
    "The watermarks that are stored with an epoch are the newest ones": 36,
    "A receiver says nothing after a cut: what was lost is not sent again": 8,
    "After a cut a sender counts on, while the receiver begins anew": 13,
    "Watermark reported past timers that are not in memory": 8,
    "The fence is skipped: a stale sequencer reads a page of timers": 8,
    "A weak checkpoint with nothing but a timer in it is not written": 8,
    "A cancelled timer stays in the store": 8,
    "A hook that sets a timer and cancels it leaves the one that was set before": 8,
    "A cancelled timer is pending again when its key leaves quarantine": 20,
    "A write does not extend the life of its key": 8,
    "A key expires though it has a hold": 199,
    "A key expires though it is in quarantine": 21,
    "The life of a key is counted from its record, also when the watermark is past that": 20,
    "The end of the input expires what is left": 8,
    "When a row of one interval is refused, the whole group counts as committed": 8,
    "After a cut a sender goes on before the receiver has said hello: what was lost comes later": 57,
    "The watermark does not wait for a partition until it has reported": 21,
    "Receivers are not told of a partition that an earlier run had numbered: they refuse its rows": 13,
    "A bundle that was sent to an earlier owner of an interval reaches the next one": 38,
    "After a cut a worker claims only what it has started to serve": 42,
    "Redrives that somebody asks for while a process serves are not seen": 8,
    "A chain of timers fires past one of its key that is still in the queue": 57,
    "A suspect whose row the database refused keeps the process for itself": 8,
    "Timers that set each other to the same time are never quarantined": 50,
    "What is sent again to an interval that restarts includes what is not durable yet": 9,
    "A line is read again before what was redriven of it is folded": 8,
    "Timers of a quarantined key fire": 13,
    "A quarantine is released while a record is on its way into it": 47,
    "A key is released after the first read of its line, however long that is": 8,
    "How long timers have set each other is forgotten with each invocation": 50,
    "A redrive of many keys goes on behind an element that has failed again": 13,
    "A quarantine holds the watermark at its first element only, though an older one came later": 20,
    "Bundles that need no answer overtake one of their sender that waits for the store's": 10,
    "Ids that outside clients chose are not asked for after a restart": 13,
    "An outside id is forgotten when it is folded, while an answer that does not know it is on its way": 94,
    "A hot key is thinned without a note of what was removed from it and is not folded": 19,
    "A key leaves memory while a page is on its way, which is outdated about it": 12,
    "A partition that was missing comes back behind the younger ones of its source, and nobody waits for it": 19,
    "The watermark passes a source that is left out of one run": 12,
    "A source's watermark moves before all its partitions are known": 40,
    "The fence is skipped: a process that was superseded persists watermarks": 8,
    "The culprit of a refused row is run again, and again": 8,
    "Only the culprit is quarantined, its key's later records run before it": 8,
    "Every owner of an interval numbers its bundles from one: an ack for the last owner acks the next one's": 52,
    "What is durable on a stream that the new version of a computation does not list is taken for delivered": 51,
    "An interval with a refused row is taken back from whoever has taken it over meanwhile": 181,
    "A hook runs while its mark is still on the way": 15,
    "What runs after a death is not marked: the same record kills every process": 28,
    "What was alone when the process died stays a suspect, however often": 28,
    "What has killed often enough is run again": 28,
    "Other invocations run beside a suspect": 69,
    "A receiver forgets a producer that has said its last word, and takes its late copies for new": 28,
}
"""The first seed to try, where the rare thing was last seen; `make mutants` counts from 0."""

AT_CRASH_POINTS = {
    "The next core of an interval is not told how far its inputs are",
}
"""Those that a crash point sees and no seed does."""


def noticed(name: str) -> bool:
    """Whether anything sees the bug `name`."""
    if name in UNIT_ONLY:
        return unit_test_notices(name)
    if name in AT_CRASH_POINTS:
        return bool(crash_points_to_detect(name))
    quick = seeds_to_detect(name, 8, SLOW.get(name, 0))
    return bool(quick or seeds_to_detect(name, BUDGET_SEEDS) or crash_points_to_detect(name))


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    yield from on_all_cores(request, noticed)


@pytest.mark.parametrize("name", MUTANTS)
def test_planted_bug_is_noticed(name: str, answers: Answers) -> None:
    assert answers[name].get(), f"nobody noticed: {name}"
