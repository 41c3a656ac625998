"""A harness that cannot fail proves nothing: planted bugs must be noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.effort import REMARK
from tests.mutants import crash_points_to_detect, seeds_to_detect
from tests.planted import MUTANTS, UNIT_ONLY, unit_test_notices
from tests.sim import ci
from tests.sim.cores import Answers, on_all_cores

BUDGET_SEEDS = 100
NEAR_SEEDS = 8
"""A bug that needs more than these is seen earlier from another seed on: the end of the tests says so."""
FIRST_SEEDS = {
    "What invocations have left of an epoch is never merged into memory": 1,
    "Hooks run before their process has heard of the watermarks that hooks before them have seen": 10,
    "A group is handed over with the newest checkpoint first": 1,
    "A source is at the end of time when all partitions have ended that were found": 26,
    "A leader takes a source for ended when all partitions have ended that were found": 9,
    "Nobody looks for partitions any more when all have ended that were found": 5,
    "The owner of a source looks for partitions no more when all have ended that were found": 59,
    "A run is over at the end of time, though its sources may have another partition": 207,
    "A run ends as soon as everything has run, with acks and log rows left": 27,
    "A lease is judged by the clock of whoever has it: that of a dead member never runs out": 1,
    "What a dead worker owns is not given to another one": 4,
    "A leader's decision about an older map is carried out on the newest one": 219,
    "A map is applied twice: an interval gets a second core while the first one recovers": 7,
    "A weak interval sends nothing again to a receiver that another worker has by now": 6,
    "A split is lost: what lies behind its key is in no interval of the map": 3,
    "A merge forgets what was delivered to the second interval": 25,
    "The watermark waits for ever for an interval that was merged into another one": 13,
    "Reports of watermarks that wait for others are forgotten when something else is told": 35,
    "The epoch is not looked at: a leader that was followed persists watermarks": 32,
    "Cores that send to an interval that was split keep what is unacked for it as it is": 7,
    "Each leader counts the rounds of a loop from zero": 24,
    "A leader takes an answer to a round from behind a barrier for one from before it": 4,
    "A leader says only once that an epoch begins": 10,
    "A partition that opens while an epoch runs begins before its barrier": 15,
    "An epoch begins at a worker that does not serve all yet that is its own": 2,
    "Barriers are named when the first worker has begun the epoch": 4,
    "The first cores after a going back have passed no barrier": 27,
    "Workers that own nothing hear of watermarks, and get something when all has gone back": 9,
    "What a leader knows of watermarks outlives a going back": 7,
    "Live reports of a loop are combined, and not what was held since the last ones": 13,
    "A wall timer speaks of times before what its interval has answered": 1,
    "The watermarks that are stored with an epoch are the newest ones": 39,
    "A watermark is stored with an epoch when it is at the end of time, and else begins anew when all goes back": 7,
    "No hook is told that its record is late": 6,
    "Under snapshots a new owner is not given the holds that are declared": 4,
    "A receiver says nothing after a cut: what was lost is not sent again": 5,
    "After a cut a sender counts on, while the receiver begins anew": 13,
    "The fence is skipped: a stale sequencer reads a page of timers": 8,
    "A weak checkpoint with nothing but a timer in it is not written": 8,
    "A cancelled timer stays in the store": 8,
    "A hook that sets a timer and cancels it leaves the one that was set before": 9,
    "A cancelled timer is pending again when its key leaves quarantine": 20,
    "A write does not extend the life of its key": 8,
    "A key expires though it has a hold": 18,
    "A key expires though it is in quarantine": 135,
    "The life of a key is counted from its record, also when the watermark is past that": 21,
    "The end of the input expires what is left": 8,
    "When a row of one interval is refused, the whole group counts as committed": 8,
    "After a cut a sender goes on before the receiver has said hello: what was lost comes later": 42,
    "The watermark does not wait for a partition until it has reported": 21,
    "Receivers are not told of a partition that an earlier run had numbered: they refuse its rows": 38,
    "A bundle that was sent to an earlier owner of an interval reaches the next one": 8,
    "After a cut a worker claims only what it has started to serve": 83,
    "A fold with a release deletes what was asked for since, when the key had failed again": 65,
    "Redrives that somebody asks for while a process serves are not seen": 8,
    "A chain of timers fires past one of its key that is still in the queue": 57,
    "A suspect whose row the database refused keeps the process for itself": 8,
    "Timers that set each other to the same time are never quarantined": 50,
    "What is sent again to an interval that restarts includes what is not durable yet": 9,
    "A line is read again before what was redriven of it is folded": 8,
    "Timers of a quarantined key fire": 13,
    "A quarantine is released while a record is on its way into it": 13,
    "A key is released after the first read of its line, however long that is": 8,
    "How long timers have set each other is forgotten with each invocation": 50,
    "A redrive of many keys goes on behind an element that has failed again": 50,
    "A quarantine holds the watermark at its first element only, though an older one came later": 20,
    "Bundles that need no answer overtake one of their sender that waits for the store's": 10,
    "Ids that outside clients chose are not asked for after a restart": 13,
    "An outside id is forgotten when it is folded, while an answer that does not know it is on its way": 9,
    "A hot key is thinned without a note of what was removed from it and is not folded": 19,
    "A key leaves memory while a page is on its way, which is outdated about it": 14,
    "A partition that was missing comes back behind the younger ones of its source, and nobody waits for it": 19,
    "The watermark passes a source that is left out of one run": 12,
    "A source's watermark moves before all its partitions are known": 1,
    "The fence is skipped: a process that was superseded persists watermarks": 9,
    "The culprit of a refused row is run again, and again": 8,
    "Only the culprit is quarantined, its key's later records run before it": 13,
    "Every owner of an interval numbers its bundles from one: an ack for the last owner acks the next one's": 67,
    "What is durable on a stream that the new version of a computation does not list is taken for delivered": 51,
    "An interval with a refused row is taken back from whoever has taken it over meanwhile": 75,
    "A hook runs while its mark is still on the way": 15,
    "What runs after a death is not marked: the same record kills every process": 28,
    "What was alone when the process died stays a suspect, however often": 28,
    "What has killed often enough is run again": 28,
    "Other invocations run beside a suspect": 150,
    "A receiver forgets a producer that has said its last word, and takes its late copies for new": 30,
    "An ack leaves when its checkpoint is known to be durable, and one before it is not": 1,
    "A frontier passes what is acked when its ack is handed to the store, before that is durable": 14,
    "What comes in the name of a retired producer is taken for new": 3,
    "The fence is skipped: a stale sequencer commits": 1,
    "A fold takes state from the cache, which is ahead of the log": 1,
    "Recovery folds the log but for its newest row": 1,
    "A cell that was renamed is looked for under its new name": 4,
    "No producer of an earlier owner is retired: its frontier comes back to the store, for good": 3,
    "Sink rows are written though their checkpoint was fenced": 1,
    "The fence is skipped: a stale sequencer folds": 1,
    "A fold leaves out productions whose acks are not durable": 2,
    "A core that goes on from an epoch begins without its label": 2,
    "Delivered ids not loaded at recovery": 1,
    "Timers are forgotten at recovery": 1,
    "A look for partitions takes what was begun for finished": 1,
    "Whoever was superseded may declare an epoch": 6,
    "Alignment forgets one input": 2,
    "An interval may be in two commit groups at a time": 20,
    "A receiver promises once, and nothing more when it has worked something off": 1,
    "The image of an epoch has no timers": 13,
    "A barrier that was lost in a cut of the channel is not sent again": 6,
    "A read that waited for credit is not tried again": 1,
    "A recovery folds images of an epoch that was not declared": 3,
    "The bound of a source is raised before the partitions that were found are open": 1,
    "Ids of producers that will never send again are kept for ever": 12,
    "Wall timers fire as soon as they are set": 1,
    "Watermark reported without unacked productions": 1,
    "A hold that was released, or a timer that was moved, no longer counts before that is durable": 1,
    "A sender takes each bundle off its credit twice": 1,
    "Checkpoints do not carry holds": 1,
    "A suspect that waited for another one is not marked when its turn comes": 1,
    "What an invocation did before one of its hooks waited for state is lost": 1,
    "Dirty keys are evicted": 1,
    "An owner takes the keys that another one has stored for new": 1,
    "A hot key is thinned of entries that are not folded": 26,
    "An invocation that waited for state begins from the start, and keeps what it did before": 1,
    "All is placed anew, and nobody was dismissed before that": 12,
    "Whoever leads once leads until it leaves, also when it is dead": 1,
    "A worker that hears of the begin of an epoch again says nothing again": 38,
    "A core starts without asking who may still send: ids of other workers' producers are forgotten": 3,
    "A split or a merge leaves its order open: the next leader refuses what the last one has done": 3,
    "The epoch is not looked at: a leader that was followed places intervals": 12,
    "Who has nothing but unacked productions of an earlier owner left is no sender: its ids are forgotten": 3,
    "Workers do not hear of splits and merges": 3,
    "A worker goes on with a source that was given to another one, under new sequencers": 11,
    "What was removed from a key that is in memory in part is asked of the store again, which still has it": 1,
    "Workers that own nothing hear of rounds, and get something when all has gone back": 2,
    "A question that was lost is not asked again": 5,
    "A record runs before one of its key that waits for state": 2,
    "Checkpoint with an input's id but without its unacked productions": 2,
    "Sequencer, and with it record ids, used again after a restart": 1,
    "A timer that goes back to the queue does not keep back what comes later for its key": 3,
    "A timer that is set while others are due fires after them": 3,
    "Ids of a source that is left out of one run are collected: it sends the rows again when it is back": 4,
    "A timer that fired in the invocation that moved it stays pending for its old time": 3,
    "A weak interval without deduplication acks its inputs when its productions are sent": 2,
    "What the store answers a void core reaches the next core of its interval": 19,
    "Strong productions sent before their checkpoint is durable": 1,
    "Unacked productions are not sent again after a restart": 1,
    "A write to any but the first cell of a checkpoint does not extend the life of its key": 8,
    "The fence is skipped: a stale injector moves its partition's position": 41,
    "The watermark of an interval with another owner is forgotten, and nobody waits for the new owner's": 13,
    "A run ends before the last positions of its sources are durable": 22,
    "After a cut the controller does not hear again which images are written": 9,
    "The next core of an interval is told that a void core's checkpoint was refused": 8,
    "A split or a merge leaves the log as it is": 7,
    "A commit that is retried after its fold is applied a second time": 1,
    "Ids of producers that are gone are kept for ever": 27,
    "A page of timers overwrites what is set in memory": 16,
    "Who hears a hello does not send again what was not acked": 1,
    "A process keeps a partition in memory that is read to its end": 16,
    "A watermark is told before it is durable": 14,
    "State that a hook wrote before it raised is kept": 13,
    "A log is dropped by the first cut after a recovery, run or not": 10,
    "Timers that are due go before records however long these have waited": 1,
    "A restarted interval is not sent again what it has lost": 1,
    "A fold drops productions that are not acked": 1,
    "The next core of an interval is not told how far its inputs are": 5,
    "Ids sealed into a filter before the store can be asked for them": 2,
    "The floor is not bounded by the inputs from outside": 1,
}
"""The first seed to try, where the bug was last seen, if that is not 0; `make mutants` counts from 0."""

LONG = {
    "A leader says only once that an epoch begins",
    "A placement changes the owner and not the sequencer: the last owner is not fenced",
    "A sender gets no new promise later when its receiver had no room at the time at which little was left",
    "A silence that is shorter than a window is no dip",
    "A source without an owner sends nothing back",
    "A weak interval sends nothing again to a receiver that another worker has by now",
    "A worker that hears of the begin of an epoch again says nothing again",
    "An epoch begins at a worker that does not serve all yet that is its own",
    "An interval waits for barriers on back edges before its cut when another worker sends them",
    "Bundles that need no answer overtake one of their sender that waits for the store's",
    "Each leader counts the rounds of a loop from zero",
    "Nobody says hello to a worker that joins later: its intervals send nothing",
    "Nobody tells a new leader what the last one was told",
    "Of an invocation that is put back, what was diverted to a quarantine stays there",
    "Receipts go to the worker that had the sender first",
    "Rounds of the owners before are asked after all has gone back",
    "The hello of a worker that is not known yet is forgotten",
    "The noise of a key is assumed, and not learned from its past",
    "The report walks a key's windows once for each of its anomalies",
    "The watermark of an interval with another owner is forgotten, and nobody waits for the new owner's",
    "The watermark waits for ever for an interval that was merged into another one",
    "What a worker knows of refused rows is forgotten when another one gets the interval",
    "Whoever gets an interval is never heard about it: the watermark stays where it was",
    "Workers that own nothing hear of rounds, and get something when all has gone back",
    "Workers that own nothing hear of watermarks, and get something when all has gone back",
}
"""Those that take 2 to 100 s of processor: `make reliability` tries them, as all others."""


def noticed(name: str) -> dict[str, str]:
    """Where the bug `name` was seen, and which invariant broke; empty when nothing sees it."""
    if name in UNIT_ONLY:
        return {"at": "unit test", "by": UNIT_ONLY[name]} if unit_test_notices(name) else {}
    first = FIRST_SEEDS.get(name, 0)
    seen = seeds_to_detect(name, BUDGET_SEEDS, first)
    if seen:
        return {"at": f"seed {first + seen[0] - 1}", "by": seen[1].split(":")[0], "after": str(seen[0])}
    point = crash_points_to_detect(name)
    return {"at": f"crash point {point[0]}", "by": point[1].split(":")[0]} if point else {}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    yield from on_all_cores(request, noticed)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in LONG else []) for name in MUTANTS]
)
def test_planted_bug_is_noticed(name: str, answers: Answers, record_property: Callable[[str, object], None]) -> None:
    seen = answers[name].get()
    assert seen, f"nobody noticed: {name}"
    if int(seen.pop("after", "1")) > NEAR_SEEDS:
        record_property(REMARK, f"FIRST_SEEDS is out of date, and costs time: {name!r} is seen at {seen['at']}")
    ci.publish("planted", {name: seen}, more=True)
