"""Receipts go where the newest owner of a sender is."""

from __future__ import annotations

from millwheel.bundles import Bundle
from millwheel.host.origins import Origins
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME


def bundle(number: int, sequences: list[SequenceNumber], frontier: int = 0) -> Bundle:
    return Bundle(
        SubscriptionId(1),
        IntervalId(7),
        number,
        IntervalId(2),
        ProducerId(3),
        SequenceNumber(frontier),
        sequences,
        ["k"] * len(sequences),
        [],
        [],
    )


def test_a_late_copy_of_an_earlier_owner_changes_nothing() -> None:
    origins = Origins()
    assert origins.of(IntervalId(7)) is None
    origins.note("w1", bundle((5 << 32) + 1, sequence_numbers([0])))
    origins.note("w2", bundle((9 << 32) + 1, sequence_numbers([0])))
    origins.note("w1", bundle((5 << 32) + 2, sequence_numbers([1])))
    assert origins.of(IntervalId(7)) == "w2"


def test_a_worker_that_is_gone_is_told_nothing() -> None:
    origins = Origins()
    origins.note("w1", bundle((5 << 32) + 1, sequence_numbers([0])))
    origins.forget("w1")
    assert origins.of(IntervalId(7)) is None


def test_a_partition_is_forgotten_with_the_receipt_of_its_end() -> None:
    origins = Origins()
    origins.note("w1", bundle(1, sequence_numbers([0])))
    origins.note("w1", bundle(2, [], SequenceNumber(MAX_TIME)))
    assert origins.of(IntervalId(7)) == "w1"
    assert origins.of(IntervalId(7)) is None


def test_of_two_owners_one_after_the_other_the_later_one_counts() -> None:
    origins = Origins()
    for later in (6, 7):
        origins.note("w2", bundle((later << 32) + 1, sequence_numbers([0])))
        origins.note("w1", bundle((later - 1 << 32) + 2, sequence_numbers([1])))
        assert origins.of(IntervalId(7)) == "w2"
