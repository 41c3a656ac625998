"""An interval and its log: the epoch that everything carries, and that no fold crosses."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import limits
from millwheel.bundles import Bundle, HoldWrites, LogWrite, RecoveredInterval, TimerWrites, decode_checkpoint
from millwheel.core.durability.log import DurableLog
from millwheel.core.interval import events as ev
from millwheel.core.interval.config import Config
from millwheel.core.interval.machine import IntervalCore
from millwheel.graph import Settings
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.work import Columns, InvocationOutcome


class Hand:
    """An interval that produces one record of each that it gets, and the log by which it becomes durable."""

    def __init__(self) -> None:
        recovered = RecoveredInterval([], [], TimerWrites(), HoldWrites([], []), [], MIN_TIME)
        self.core = IntervalCore(
            Config(
                IntervalId(1), Sequencer(7), "c", "1", Settings(), {SubscriptionId(2): Ranges([("", IntervalId(5))])}
            ),
            recovered,
        )
        self.effects = self.core.start(0)
        assert isinstance(self.core._durability, DurableLog)
        self.log = self.core._durability

    def give(self, event: ev.Event) -> None:
        self.effects += self.core.handle(event, 0)

    def take(self, kind: type[Any]) -> list[Any]:
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def run(self, sequence: SequenceNumber) -> LogWrite:
        """One record, until its checkpoint is handed over."""
        self.give(
            ev.BundleArrived(
                Bundle(
                    SubscriptionId(1),
                    IntervalId(3),
                    sequence + 1,
                    IntervalId(1),
                    ProducerId(3),
                    SequenceNumber(0),
                    [sequence],
                    ["k"],
                    [b""],
                    [sequence],
                )
            )
        )
        if self.take(ev.Load):
            self.give(ev.Loaded([]))
        self.give(ev.Invoked(InvocationOutcome(produced={SubscriptionId(2): Columns(["k"], [b"v"], [sequence])})))
        (commit,) = self.take(ev.Commit)
        write: LogWrite = commit.write
        return write

    def runs(self) -> None:
        """Two records in one epoch and two in the next, all durable, and the productions of the first acked."""
        for sequence in range(4):
            self.log.epoch = sequence // 2
            self.give(ev.CommitDone(self.run(SequenceNumber(sequence)).seq))


def test_images_log_rows_bundles_and_acks_are_of_the_epoch_in_which_they_were_put() -> None:
    hand = Hand()
    first = hand.run(SequenceNumber(0))
    hand.log.epoch = 1
    second = hand.run(SequenceNumber(1))
    assert [(write.epoch, decode_checkpoint(write.payload).epoch) for write in (first, second)] == [(0, 0), (1, 1)]
    for write in (first, second):  # released in the next epoch, and still of their own
        hand.give(ev.CommitDone(write.seq))
    assert [ack.epoch for ack in hand.take(ev.Ack)] == [0, 1]
    assert [send.bundle.epoch for send in hand.take(ev.Send)] == [0, 1]


def test_no_fold_crosses_an_epoch() -> None:
    hand = Hand()
    hand.runs()
    hand.effects += hand.core.flush(0)
    (fold,) = hand.take(ev.Fold)
    assert (fold.upto, fold.epoch, [image.epoch for image in fold.images]) == (2, 0, [0, 0])
    hand.give(ev.FoldDone(Seq(2)))
    (fold,) = hand.take(ev.Fold)
    assert (fold.upto, fold.epoch, [image.epoch for image in fold.images]) == (4, 1, [1, 1])


LEFT: dict[str, tuple[str, Any, bool, bool]] = {
    "a checkpoint under way": ("_inflight", [1], False, False),
    "a checkpoint that is not folded": ("_committed", [1], False, False),
    "a fold under way": ("_folding", True, False, False),
    "a production without an ack": ("_outbox.unacked", {1: None}, True, False),
    "an ack that is not recorded": ("_outbox._unrecorded", {1: None}, True, False),
    "a frontier that was not told": ("_outbox.frontier_moved", True, True, True),
}
"""What is left, and whether the interval is settled with it: as far as its log goes, and with all its acks."""


@pytest.mark.parametrize("name", LEFT)
def test_an_interval_is_quiet_when_nothing_at_all_is_left(name: str) -> None:
    log = Hand().log
    assert (log.quiet(), log.settled(False), log.settled(True)) == (True, True, True)
    place, value, settled, settled_acked = LEFT[name]
    *owners, attribute = place.split(".")
    owner: Any = log
    for each in owners:
        owner = getattr(owner, each)
    setattr(owner, attribute, value)
    assert (log.quiet(), log.settled(False), log.settled(True)) == (False, settled, settled_acked)


def test_idle_is_who_has_not_been_busy_since() -> None:
    log, delay = Hand().log, limits.IDLE_RECORD_DELAY_US
    log._outbox.frontier_moved = True
    effects: list[ev.Effect] = []
    log.rest(False, effects, 0)
    assert log.alarm() == delay
    log.rest(True, effects, delay - 1)
    log.rest(False, effects, delay)
    assert (log._outbox.frontier_moved, log.alarm()) == (True, 2 * delay)
    log.rest(False, effects, 2 * delay)
    assert (log._outbox.frontier_moved, log.alarm()) == (False, MAX_TIME)


def test_who_waits_for_a_commit_is_not_idle() -> None:
    hand, delay = Hand(), limits.IDLE_RECORD_DELAY_US
    write = hand.run(SequenceNumber(0))
    hand.log._outbox.frontier_moved = True
    effects: list[ev.Effect] = []
    for now in (0, delay, 2 * delay):
        hand.log.rest(False, effects, now)
    assert effects == []
    hand.give(ev.CommitDone(write.seq))
    for now in (2 * delay, 3 * delay):
        hand.log.rest(False, effects, now)
    assert effects


def test_who_had_nothing_to_record_meanwhile_waits_again_from_the_beginning() -> None:
    log, delay = Hand().log, limits.IDLE_RECORD_DELAY_US
    effects: list[ev.Effect] = []
    for moved, now in ((True, 0), (False, delay - 1), (True, delay)):
        log._outbox.frontier_moved = moved
        log.rest(False, effects, now)
    assert (effects, log._outbox.frontier_moved, log.alarm()) == ([], True, 2 * delay)
    log._outbox.frontier_moved = False
    log.rest(False, effects, delay + 1)
    assert log.alarm() == MAX_TIME, "nothing rings for nothing"


def test_one_fold_is_under_way_at_a_time() -> None:
    """A second one would read the same rows, and delete what it has not stored."""
    hand = Hand()
    hand.runs()
    hand.effects += hand.core.flush(0)
    assert len(hand.take(ev.Fold)) == 1
    hand.log.want()
    hand.effects += hand.core.flush(0)
    assert hand.take(ev.Fold) == []
    hand.give(ev.FoldDone(Seq(2)))
    assert [fold.upto for fold in hand.take(ev.Fold)] == [4]


def test_what_is_durable_is_folded_when_its_interval_has_rested_however_little_it_is() -> None:
    """Otherwise a later start reads it from the log, and its keys stay in memory."""
    hand, delay = Hand(), limits.IDLE_RECORD_DELAY_US
    hand.give(ev.CommitDone(hand.run(SequenceNumber(0)).seq))
    assert not hand.log._outbox.frontier_moved
    assert hand.log.alarm() == delay
    effects: list[ev.Effect] = []
    hand.log.rest(False, effects, delay)
    hand.log.fold(effects)
    assert [effect.upto for effect in effects if isinstance(effect, ev.Fold)] == [1]
    hand.log.rest(False, effects, 2 * delay)
    assert hand.log.alarm() == MAX_TIME, "one is under way"
