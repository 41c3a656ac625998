"""When a fold is due, and what it takes."""

from __future__ import annotations

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
    CellWrites,
    Checkpoint,
    HoldWrites,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
)
from millwheel.core.durability import unfolded
from millwheel.core.durability.unfolded import CommittedLog
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers


def image(keys: list[str], produced: list[Produced] | None = None, acked: list[Acked] | None = None) -> Checkpoint:
    state = StateWrites([CellWrites("c", keys, [b""] * len(keys))])
    return Checkpoint(
        CHECKPOINT_FORMAT, "", 0, [], produced or [], acked or [], state, TimerWrites(), HoldWrites(), [], []
    )


class Frontier:
    """Everything below `durable` is acked."""

    durable = SequenceNumber(0)

    def __call__(self, subscription: SubscriptionId, producer: ProducerId) -> SequenceNumber:
        assert (subscription, producer) == (1, 9)
        return self.durable


def producing(log: CommittedLog, seq: Seq) -> None:
    """Checkpoint `seq` produces the two records 2 seq and 2 seq + 1, and acks the two before the last two."""
    acked = [Acked(SubscriptionId(1), ProducerId(9), sequence_numbers([2 * seq - 4, 2 * seq - 3]))] if seq > 2 else []
    log.add(
        seq,
        10,
        image(
            [f"k{seq}"],
            [Produced(SubscriptionId(1), ProducerId(9), SequenceNumber(2 * seq), ["x", "y"], [b"", b""], [1, 1])],
            acked,
        ),
    )


def test_a_fold_waits_until_the_acks_are_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 2)
    frontier = Frontier()
    log = CommittedLog(frontier)
    for seq in range(1, 6):
        producing(log, Seq(seq))
    assert not log.due(Seq(0), hurry=True)
    frontier.durable = SequenceNumber(4)
    assert log.due(Seq(0), hurry=True)
    assert not log.due(Seq(0), hurry=False)
    frontier.durable = SequenceNumber(5)  # 4 is acked, 5 is not: checkpoint 2 is not settled
    assert not log.due(Seq(0), hurry=False)
    frontier.durable = SequenceNumber(6)
    assert log.due(Seq(0), hurry=False)
    upto, images, later = log.prefix(Seq(0))
    assert (upto, len(images)) == (2, 2)
    assert [acked.sequences for acked in later] == [[2, 3], [4, 5], [6, 7]]
    log.folded(upto)
    assert len(log) == 3
    assert not log.due(Seq(0), hurry=True)


@pytest.mark.parametrize(("limit", "value"), [("LOG_LIMIT_CHECKPOINTS", 4), ("LOG_LIMIT_BYTES", 40)])
def test_a_long_log_does_not_wait(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(limits, limit, value)
    log = CommittedLog(Frontier())
    for seq in range(1, 4):
        producing(log, Seq(seq))
    assert not log.due(Seq(0), hurry=True)
    producing(log, Seq(4))
    assert log.due(Seq(0), hurry=False)
    assert log.prefix(Seq(0))[0] == 4
    for seq in range(5, 8):
        producing(log, Seq(seq))
    assert not log.full()
    producing(log, Seq(8))
    assert log.full()
    log.folded(Seq(1))
    assert not log.full()


def test_many_keys_start_a_fold_that_is_as_large_as_one_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """New keys are folded while more of them come; a few hot ones are not, nor what waits for acks."""
    monkeypatch.setattr(limits, "FOLD_TRIGGER_KEYS", 4)
    frontier = Frontier()
    log = CommittedLog(frontier)
    log.add(Seq(1), 10, image(["a", "b"]))
    log.add(Seq(2), 10, image(["a", "b"]))
    assert not log.due(Seq(0), hurry=False, keys=2)
    assert log.due(Seq(0), hurry=False, keys=4)
    log.folded(Seq(1))
    assert not log.due(Seq(0), hurry=False, keys=4)
    producing(log, Seq(3))
    log.add(Seq(4), 10, image(["d"]))
    assert not log.due(Seq(0), hurry=False, keys=4)
    frontier.durable = SequenceNumber(8)
    assert log.due(Seq(0), hurry=False, keys=4)


def test_what_is_wanted_does_not_wait() -> None:
    log = CommittedLog(Frontier())
    producing(log, Seq(1))
    producing(log, Seq(2))
    assert log.due(Seq(1), hurry=False)
    assert log.prefix(Seq(1))[0] == 2, "all that is there: a smaller fold would not be cheaper"
    log.folded(Seq(2))
    assert not log.due(Seq(2), hurry=True)


def test_one_fold_takes_what_a_short_transaction_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfolded, "FOLD_LIMIT_ROWS", 3)
    log = CommittedLog(Frontier())
    for seq, keys in enumerate([["a", "b"], ["a", "b", "c"], ["b"], ["d"], ["e"]], 1):
        log.add(Seq(seq), 10, image(keys))
    assert log.prefix(Seq(5))[0] == 3, "a, b and c, however often they are written"
    log.folded(Seq(3))
    assert log.prefix(Seq(5))[0] == 5


def test_a_fold_does_not_know_of_acks_of_a_later_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its epoch ends with the production unacked: whoever goes on from there has to send it.
    monkeypatch.setattr(unfolded, "FOLD_LIMIT_ROWS", 1)
    for epoch, known in ((0, 1), (1, 0)):
        log = CommittedLog(Frontier())
        log.add(
            Seq(1), 1, image(["a"], [Produced(SubscriptionId(1), ProducerId(9), SequenceNumber(0), ["k"], [b""], [0])])
        )
        later = image(["b"], acked=[Acked(SubscriptionId(1), ProducerId(9), sequence_numbers([0]))])
        log.add(Seq(2), 1, msgspec.structs.replace(later, epoch=epoch))
        upto, images, acked = log.prefix(Seq(2))
        assert (upto, len(images), len(acked)) == (1, 1, known)


def test_ids_of_outside_clients_that_are_folded_are_no_reason_for_another_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_IDS", 2)
    log = CommittedLog(Frontier())
    for seq in (1, 2, 3):
        taken = image([f"k{seq}"])
        taken.outside.append(OutsideIdWrites(SubscriptionId(1), 99, [b"id%d" % seq]))
        log.add(Seq(seq), 10, taken)
        assert log.due(Seq(0), False) == (seq == 2)
        if seq == 2:
            log.folded(Seq(2))


def test_bytes_that_are_folded_are_no_reason_for_another_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_BYTES", 20)
    log = CommittedLog(Frontier())
    for seq in range(1, 7):
        log.add(Seq(seq), 10, image([f"k{seq}"]))
        assert log.due(Seq(0), hurry=False) is (seq % 2 == 0)
        if seq % 2 == 0:
            upto, _, _ = log.prefix(Seq(0))
            log.folded(upto)


def test_all_rows_but_those_of_state_count_for_what_one_fold_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unfolded, "FOLD_LIMIT_ROWS", 4)
    entry = QuarantineEntry("k", SubscriptionId(1), ProducerId(1), SequenceNumber(0), b"", 1)
    timers, holds = TimerWrites(), HoldWrites([], [])
    timers.add("k", "t", "watermark", 1)
    holds.add("k", 1)
    changes: list[dict[str, object]] = [
        {"timers": timers}, {"holds": holds}, {"forgotten": ["k"]}, {"quarantined": [entry]},
    ]  # fmt: skip
    log = CommittedLog(Frontier())
    for seq, change in enumerate([*changes, *changes], 1):
        log.add(Seq(seq), 10, msgspec.structs.replace(image([]), **change))
    assert log.prefix(Seq(9))[0] == 4
    log.folded(Seq(4))
    assert log.prefix(Seq(9))[0] == 8
