"""Checkpoints between invocation and commit: in order, and nothing leaves before the whole prefix is durable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    CellWrites,
    Checkpoint,
    HoldWrites,
    Ids,
    QuarantineEntry,
    SinkRow,
    StateWrites,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.inflight import Inflight, Uncommitted
from millwheel.core.durability.unfolded import CommittedLog
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.interval import events as ev
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME
from millwheel.work import Columns, cause_of

CULPRIT = QuarantineEntry("k", SubscriptionId(7), ProducerId(55), SequenceNumber(3), b"v", 5, error="no")
SENDER, PRODUCER, SUB = IntervalId(60), ProducerId(100), SubscriptionId(8)


class Interval:
    """A queue with its outbox and log; every `put` is a checkpoint that consumed bundle `seq` of sender 50."""

    def __init__(self, weak: bool = False) -> None:
        self.outbox = Outbox(SENDER, PRODUCER, {SUB: Ranges([("", IntervalId(70))])})
        self.log = CommittedLog(self.outbox.frontier)
        self.counters, self.refused = ev.Counters(), RefusedRows()
        self.queue = Inflight(
            interval=SENDER,
            sequencer=Sequencer(PRODUCER),
            weak=weak,
            outbox=self.outbox,
            committed=self.log,
            refused=self.refused,
            counters=self.counters,
        )
        self.seq = 0
        self.effects: list[ev.Effect] = []

    def put(self, *keys: str, at: int = 0, now: int = 0) -> list[int]:
        """A checkpoint that produces for `keys`; the numbers of its bundles."""
        self.seq += 1
        made, bundles = (
            self.outbox.number(SUB, Columns([*keys], [b"v"] * len(keys), [at] * len(keys))) if keys else (None, [])
        )
        ids, state = (
            [Ids(SubscriptionId(7), ProducerId(55), SequenceNumber(0), [SequenceNumber(self.seq)])],
            StateWrites([]),
        )
        image = Checkpoint(
            CHECKPOINT_FORMAT, "1", 0, ids, [made] if made else [], [], state, TimerWrites(), HoldWrites([], []), [], []
        )
        entry = Uncommitted(
            Seq(self.seq), image, [(IntervalId(50), self.seq)], bundles, at, ev.Counters(), deadline=now + 1_000
        )
        self.queue.put(entry, self.effects, now)
        self.queue.submit(self.effects, now)
        return [bundle.number for bundle in bundles]

    def put_only(self, **changes: Any) -> None:
        """A checkpoint with nothing in it but this."""
        self.seq += 1
        nothing = Checkpoint(
            CHECKPOINT_FORMAT, "1", 0, [], [], [], StateWrites([]), TimerWrites(), HoldWrites([], []), [], []
        )
        image = msgspec.structs.replace(nothing, **changes)
        self.queue.put(Uncommitted(Seq(self.seq), image, [], [], MAX_TIME, ev.Counters()), self.effects, 0)
        self.queue.submit(self.effects, 0)

    def commit(self, seq: Seq) -> Interval:
        self.effects.clear()
        self.queue.committed(seq, self.effects)
        return self

    def commits(self) -> list[int]:
        return [effect.write.seq for effect in self.effects if isinstance(effect, ev.Commit)]

    def acks(self) -> list[int]:
        return [effect.number for effect in self.effects if isinstance(effect, ev.Ack)]

    def sent(self) -> list[int]:
        return [effect.bundle.number for effect in self.effects if isinstance(effect, ev.Send)]

    def image(self, seq: Seq) -> Checkpoint:
        (found,) = (e.write.payload for e in self.effects if isinstance(e, ev.Commit) and e.write.seq == seq)
        return decode_checkpoint(found)


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_acks_and_strong_sends_wait_for_the_whole_prefix(order: Sequence[int]) -> None:
    interval = Interval()
    numbers = {seq: interval.put("a") for seq in (1, 2, 3)}
    assert interval.commits() == [1, 2, 3]
    assert interval.sent() == interval.acks() == []
    assert interval.queue.kept_back() == [*numbers[1], *numbers[2], *numbers[3]]
    durable: set[int] = set()
    left: list[int] = []
    for seq in order:
        interval.commit(Seq(seq))
        durable.add(seq)
        left += interval.acks()
        prefix = [n for n in (1, 2, 3) if {*range(1, n + 1)} <= durable]
        assert left == prefix
        assert not interval.queue.kept_back() or len(prefix) < 3
    assert not interval.queue
    assert interval.counters.checkpoints == 3
    assert len(interval.log) == 3


def test_user_code_pauses_when_too_much_is_not_durable() -> None:
    interval = Interval()
    for _ in range(limits.INFLIGHT_LIMIT_CHECKPOINTS):
        assert not interval.queue.full()
        interval.put()
    assert interval.queue.full()
    interval.commit(Seq(2))
    assert interval.queue.full(), "the first one is not durable"
    interval.commit(Seq(1))
    assert not interval.queue.full()


def test_the_oldest_time_that_is_not_durable_holds() -> None:
    interval = Interval()
    interval.put(at=30)
    interval.put(at=20)
    assert (interval.queue.oldest(), interval.queue.reaches_back(Seq(0)), interval.queue.reaches_back(Seq(1))) == (
        20,
        False,
        True,
    )
    interval.commit(Seq(1)).commit(Seq(2))
    assert (interval.queue.oldest(), interval.queue.reaches_back(Seq(2))) == (MAX_TIME, False)


def test_weak_productions_leave_at_once_and_their_checkpoint_waits_for_the_acks() -> None:
    interval = Interval(weak=True)
    (number,) = interval.put("a")
    assert interval.sent() == [number]
    assert interval.commits() == []
    interval.queue.acked(number, 10)
    interval.queue.submit(interval.effects, 10)
    assert interval.commits() == [1]
    assert interval.image(Seq(1)).produced == [], "nobody needs what is acked"
    assert interval.commit(Seq(1)).sent() == [], "it has left already"


def test_what_a_weak_checkpoint_still_waits_for_at_its_deadline_is_in_it() -> None:
    interval = Interval(weak=True)
    first, second = interval.put("a")[0], interval.put("b")[0]
    interval.queue.submit(interval.effects, 999)
    assert (interval.commits(), interval.queue.next_deadline()) == ([], 1_000)
    interval.queue.submit(interval.effects, 1_000)
    assert interval.commits() == [1, 2]
    assert [made.keys for made in interval.image(Seq(1)).produced] == [["a"]]
    assert first != second


def test_a_later_checkpoint_that_waits_for_nothing_hurries_those_before_it() -> None:
    interval = Interval(weak=True)
    interval.put("slow")
    (number,) = interval.put("fast")
    assert interval.queue.next_deadline() == 1_000
    interval.queue.acked(number, 10)
    assert interval.queue.next_deadline() == min(1_000, 10 + limits.STRAGGLER_PATIENCE_US)


def test_what_is_behind_a_refused_checkpoint_stays_void() -> None:
    interval = Interval()
    for _ in range(3):
        interval.put("a")
    interval.effects.clear()
    assert interval.queue.refused(Seq(2), interval.effects) == []
    assert interval.acks() == [1]
    assert interval.queue.kept_back() != []


@pytest.mark.parametrize("seq", [1, 3])
def test_a_refusal_of_what_is_not_under_way_is_a_bug(seq: Seq) -> None:
    interval = Interval()
    interval.put()
    interval.put()
    interval.commit(Seq(1))
    with pytest.raises(InvariantError, match="not under way"):
        interval.queue.refused(seq, [])


# What is written, and what is known of it


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"ids": [Ids(SubscriptionId(7), ProducerId(55), SequenceNumber(0), [SequenceNumber(1)])]},
        {"state": StateWrites([CellWrites("c", ["k"], [b"1"])])},
        {"timers": TimerWrites(["k"], ["t"], ["wall"], [None])},
        {"holds": HoldWrites(["k"], [None])},
        {"sinks": [SinkRow("t", b"{}")]},
        {"quarantined": [CULPRIT]},
        {"forgotten": ["k"]},
        {"redriven": [("k", 1)]},
        {"released": ["k"]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_checkpoint_with_anything_in_it_is_written(changes: dict[str, Any], weak: bool) -> None:
    interval = Interval(weak)
    interval.put_only(**changes)
    assert interval.commits() == [1]


def test_a_checkpoint_with_nothing_in_it_is_done_without_a_row() -> None:
    interval = Interval()
    interval.put_only()
    assert interval.commits() == []
    assert not interval.queue


def test_a_culprit_is_remembered_until_its_quarantine_and_all_before_it_are_durable() -> None:
    """A refusal of an earlier checkpoint makes the quarantine void: the culprit must not run again."""
    interval = Interval()
    interval.refused.add(cause_of(CULPRIT), "no")
    interval.put()
    interval.put_only(quarantined=[CULPRIT])
    assert interval.commits() == [1, 2]
    assert interval.refused.answer(cause_of(CULPRIT)) == "no", "its quarantine is only handed over"
    interval.commit(Seq(2))
    assert interval.refused.answer(cause_of(CULPRIT)) == "no", "what is before it may be refused"
    interval.commit(Seq(1))
    assert not interval.refused


def test_an_ack_counts_for_the_frontier_when_it_is_durable_and_not_when_it_is_handed_over() -> None:
    interval = Interval()
    (number,) = interval.put("a")
    interval.commit(Seq(1))
    interval.queue.acked(number, 0)
    interval.put()
    assert interval.image(Seq(2)).acked
    assert interval.outbox.frontier(SUB, PRODUCER) == 0
    interval.commit(Seq(2))
    assert interval.outbox.frontier(SUB, PRODUCER) == 1


def test_a_weak_production_that_was_acked_in_time_leaves_nothing_to_record() -> None:
    interval = Interval(weak=True)
    first, second = interval.put("a"), interval.put("b")
    interval.queue.acked(second[0], 0)
    assert not interval.outbox.has_unrecorded()
    assert interval.outbox.frontier(SUB, PRODUCER) == 0
    interval.queue.acked(first[0], 0)
    assert not interval.outbox.has_unrecorded()
    assert interval.outbox.frontier(SUB, PRODUCER) == 2


def test_an_ack_that_takes_the_frontier_further_is_a_reason_to_look_at_the_log_again() -> None:
    """The row of an earlier checkpoint may be folded now without its productions."""
    interval = Interval(weak=True)
    (first,), (second,) = interval.put("a"), interval.put("b")
    for number in (first, second):
        interval.queue.moved = False
        interval.queue.acked(number, 0)
        assert interval.queue.moved
    interval.queue.moved = False
    interval.queue.acked(first, 0)
    assert not interval.queue.moved, "the ack was there"


def test_a_straggler_is_checkpointed_soon_when_a_later_one_has_all_its_acks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STRAGGLER_PATIENCE_US", 50)
    interval = Interval(weak=True)
    interval.put("a")
    (second,) = interval.put("b")
    assert interval.queue.next_deadline() == 1_000
    interval.queue.acked(second, 100)
    assert interval.queue.next_deadline() == 150


@pytest.mark.parametrize("seed", range(20))
def test_weak_checkpoints_go_to_the_store_in_their_order_with_what_is_not_acked_by_then(seed: int) -> None:
    """Whichever has its acks first: in the log, a checkpoint stands for all before it."""
    dice, interval, now = random.Random(seed), Interval(weak=True), 0
    unacked: dict[int, set[int]] = {}
    for _ in range(60):
        now += dice.randrange(200)
        before = interval.commits()
        match dice.randrange(3):
            case 0:
                numbers = interval.put(*["a"] * dice.choice([0, 1, 1]), now=now)
                unacked[interval.seq] = {*numbers}
            case 1:
                for seq in dice.sample([*unacked], min(len(unacked), 1)):
                    for number in unacked[seq]:
                        interval.queue.acked(number, now)
                    unacked[seq] = set()
                interval.queue.submit(interval.effects, now)
            case _:
                interval.queue.submit(interval.effects, now)
        commits = interval.commits()
        assert commits == [*range(1, len(commits) + 1)]
        for seq in commits[len(before) :]:
            assert len(interval.image(Seq(seq)).produced) == len(unacked[seq])
            unacked[seq] = set()
    assert commits


def test_what_is_stored_of_a_weak_bundle_is_a_run_as_long_as_its_ids_are_dense() -> None:
    interval = Interval(weak=True)
    interval.put("a", "b", "c", now=0)
    interval.queue.submit(interval.effects, 1_000)
    (run,) = interval.image(Seq(1)).produced
    assert (run.first, run.keys) == (0, ["a", "b", "c"])
