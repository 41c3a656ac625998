"""Alignment: what is held back behind a barrier, and when an epoch is cut."""

from __future__ import annotations

from itertools import count

import pytest

from millwheel.bundles import Bundle
from millwheel.core.channel.alignment import Alignment
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId, sequence_numbers

_numbers = count(1)


def ids(*numbers: int) -> list[IntervalId]:
    return [*map(IntervalId, numbers)]


def bundle(sender: IntervalId, label: int, at: int = 5) -> Bundle:
    return Bundle(
        SubscriptionId(1),
        IntervalId(sender),
        next(_numbers),
        IntervalId(9),
        ProducerId(sender),
        SequenceNumber(0),
        sequence_numbers([0]),
        ["k"],
        [b"v"],
        [at],
        label,
    )


def test_nothing_is_held_back_before_a_barrier() -> None:
    alignment = Alignment()
    assert not alignment.parks(bundle(IntervalId(1), 0))
    assert alignment.open(1, ids(1, 2))
    assert not alignment.parks(bundle(IntervalId(1), 0))
    assert alignment.missing() == [1, 2]


def test_an_epoch_is_cut_when_every_named_sender_has_sent_its_barrier() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1, 2, 3))
    for sender in (1, 2, 2):
        alignment.barrier(IntervalId(sender), 1)
        assert not alignment.complete()
    with pytest.raises(InvariantError, match="before all barriers"):
        alignment.cut()
    alignment.barrier(IntervalId(3), 1)
    assert alignment.complete()
    assert alignment.cut() == []
    assert (alignment.label, alignment.opened, alignment.complete()) == (1, 0, False)


def test_what_comes_after_a_barrier_waits_in_the_order_of_its_sender() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1, 2))
    alignment.barrier(IntervalId(1), 1)
    later = [bundle(IntervalId(1), 1, at) for at in (7, 6)]
    assert all(map(alignment.parks, later))
    assert not alignment.parks(bundle(IntervalId(2), 0))
    assert alignment.size_bytes == sum(b.size() for b in later) > 0
    assert alignment.oldest(99) == 6
    alignment.barrier(IntervalId(2), 1)
    assert alignment.cut() == later
    assert (alignment.size_bytes, alignment.oldest(99)) == (0, 99)
    assert not alignment.parks(bundle(IntervalId(1), 1))


def test_what_is_sent_again_is_parked_once() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1))
    alignment.barrier(IntervalId(1), 1)
    later = [bundle(IntervalId(1), 1), bundle(IntervalId(1), 1)]
    assert all(map(alignment.parks, [*later, *later]))
    assert alignment.size_bytes == sum(b.size() for b in later)
    assert alignment.cut() == later


def test_a_partition_that_opened_after_the_barrier_is_parked_and_not_waited_for() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1))
    new = bundle(IntervalId(4), 1)
    assert alignment.parks(new)
    alignment.barrier(IntervalId(1), 1)
    assert alignment.cut() == [new]


def test_an_interval_without_senders_is_cut_at_once() -> None:
    alignment = Alignment()
    assert not alignment.complete()
    alignment.open(3, [])
    assert alignment.complete()
    alignment.cut()
    assert alignment.label == 3


def test_a_barrier_may_come_before_its_epoch_is_opened() -> None:
    alignment = Alignment()
    alignment.barrier(IntervalId(1), 1)
    early = bundle(IntervalId(1), 1)
    assert alignment.parks(early)
    assert not alignment.complete()
    alignment.open(1, ids(1))
    assert alignment.complete()
    assert alignment.cut() == [early]


def test_copies_of_a_barrier_and_of_an_opening_change_nothing() -> None:
    alignment = Alignment()
    assert alignment.open(1, ids(1))
    assert not alignment.open(1, ids(1, 2))
    alignment.barrier(IntervalId(1), 1)
    alignment.cut()
    alignment.barrier(IntervalId(1), 1)
    assert not alignment.open(1, ids(1))
    assert alignment.open(2, ids(1))
    assert not alignment.complete()


def test_an_epoch_does_not_begin_inside_another_one() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1))
    with pytest.raises(InvariantError, match="epoch 2 begins while 1"):
        alignment.open(2, ids(1))


def test_what_belongs_before_a_barrier_is_never_cut_off_by_it() -> None:
    alignment = Alignment()  # it should have begun with the label of its senders
    assert alignment.parks(bundle(IntervalId(1), 4))
    alignment.open(5, ids(1))
    alignment.barrier(IntervalId(1), 5)
    with pytest.raises(InvariantError, match="held back"):
        alignment.cut()


def test_a_sender_that_overtakes_its_own_barrier_is_found_out() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1, 2))
    with pytest.raises(InvariantError, match="before its barrier"):
        alignment.parks(bundle(IntervalId(1), 1))


def test_an_epoch_is_cut_without_the_barriers_of_back_edges_and_waits_for_them_afterwards() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1), ids(2, 3))
    alignment.barrier(IntervalId(3), 1)
    assert not alignment.complete()
    alignment.barrier(IntervalId(1), 1)
    assert alignment.complete()
    assert alignment.heads
    assert alignment.cut() == []
    assert not alignment.came_round()
    assert alignment.busy()
    alignment.barrier(IntervalId(2), 1)
    assert alignment.came_round()
    assert not alignment.busy()


def test_what_comes_on_a_back_edge_before_the_cut_is_held_once_the_other_barriers_are_here() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1), ids(2))
    assert not alignment.parks(bundle(IntervalId(2), 0)), "the epoch has not come to its end here"
    alignment.barrier(IntervalId(1), 1)
    before, behind = bundle(IntervalId(2), 0, at=3), bundle(IntervalId(2), 1)
    assert alignment.parks(before)
    assert alignment.parks(before), "a copy"
    alignment.barrier(IntervalId(2), 1)
    assert alignment.parks(behind)
    assert alignment.oldest(9) == 3
    assert alignment.size_bytes == before.size() + behind.size()
    assert alignment.cut() == [before, behind]
    assert alignment.size_bytes == 0
    assert alignment.came_round()


def test_the_next_epoch_does_not_begin_while_a_barrier_goes_round() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1), ids(2))
    alignment.barrier(IntervalId(1), 1)
    alignment.cut()
    with pytest.raises(InvariantError, match=r"barriers of \[2\] go round"):
        alignment.open(2, ids(1), ids(2))


def test_a_late_copy_of_an_earlier_barrier_does_not_come_round_for_the_newest() -> None:
    alignment = Alignment()
    for epoch in (1, 2):
        alignment.open(epoch, ids(1), ids(2))
        alignment.barrier(IntervalId(1), epoch)
        alignment.cut()
        if epoch == 1:
            alignment.barrier(IntervalId(2), 1)
    alignment.barrier(IntervalId(2), 1)
    assert not alignment.came_round(), "what it sent before the second one is not all here"
    alignment.barrier(IntervalId(2), 2)
    assert alignment.came_round()


def test_who_keeps_anything_of_an_epoch_that_is_not_open_yet_is_busy() -> None:
    alignment = Alignment()
    assert not alignment.busy()
    alignment.barrier(IntervalId(1), 1)
    alignment.parks(bundle(IntervalId(1), 1))
    assert alignment.busy()
    alignment.open(1, ids(1))
    alignment.cut()
    assert not alignment.busy()


def test_who_waits_for_a_barrier_is_busy() -> None:
    alignment = Alignment()
    alignment.open(1, ids(1, 2))
    alignment.barrier(IntervalId(1), 1)
    assert alignment.busy()
    alignment.barrier(IntervalId(2), 1)
    alignment.cut()
    assert not alignment.busy()


def test_barriers_that_were_passed_take_no_memory() -> None:
    alignment = Alignment()
    for epoch in range(1, 100):
        alignment.barrier(IntervalId(1), epoch)
        alignment.open(epoch, ids(1))
        alignment.cut()
        alignment.barrier(IntervalId(1), epoch)
    assert alignment._barriers == {}


def test_what_was_held_on_a_back_edge_comes_in_once() -> None:
    """Without ids, what comes in again runs again."""
    alignment = Alignment()
    alignment.open(1, ids(1), ids(2))
    alignment.barrier(IntervalId(1), 1)
    held = bundle(IntervalId(2), 0)
    assert alignment.parks(held)
    assert alignment.cut() == [held]
    assert alignment.size_bytes == 0
    alignment.barrier(IntervalId(2), 1)
    alignment.open(2, ids(1), ids(2))
    alignment.barrier(IntervalId(1), 2)
    assert alignment.cut() == []
