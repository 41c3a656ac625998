"""The log of a cut at the head of a loop: its numbers, and when it is dropped."""

from __future__ import annotations

import pytest

from millwheel.bundles import Acked, Produced
from millwheel.core.durability.loop_log import LoopLog
from millwheel.errors import InvariantError
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.work import BundlePart

ME, SUB, OTHER = ProducerId(7), SubscriptionId(2), SubscriptionId(3)


def part(subscription: SubscriptionId, *keys: str) -> BundlePart:
    numbers = sequence_numbers(range(40, 40 + len(keys)))
    return BundlePart(
        subscription, ProducerId(5), SequenceNumber(0), numbers, [*keys], [b"v"] * len(keys), [9] * len(keys)
    )


def test_records_become_productions_of_the_interval_to_itself() -> None:
    log = LoopLog(ME)
    log.begin(Seq(4))
    for of, keys in ((SUB, ("a",)), (OTHER, ("b", "c")), (SUB, ("d",))):
        log.add(part(of, *keys), 10)
    assert log.size_bytes == 30
    assert log.end() == [
        Produced(SUB, ME, SequenceNumber(0), ["a", "d"], [b"v", b"v"], [9, 9]),
        Produced(OTHER, ME, SequenceNumber(0), ["b", "c"], [b"v", b"v"], [9, 9]),
    ]
    assert log.size_bytes == 0


def test_a_log_is_dropped_by_the_next_cut_when_that_is_declared() -> None:
    log = LoopLog(ME)
    assert not log
    log.begin(Seq(4))
    assert log
    log.add(part(SUB, "a", "b"), 10)
    log.end()
    log.declared()
    assert log
    assert log.frontier(SUB, ME) == 0, "the cut that has it is declared, so it must be kept"
    assert log.drop() == [Acked(SUB, ME, sequence_numbers([0, 1]))]
    assert log.frontier(SUB, ME) == 0, "the next cut is not declared yet"
    log.declared()
    assert log.frontier(SUB, ME) == 2
    assert not log


def test_the_numbers_of_the_next_log_go_on() -> None:
    log = LoopLog(ME)
    log.begin(Seq(4))
    log.add(part(SUB, "a"), 10)
    log.end()
    log.drop()
    log.begin(Seq(8))
    log.add(part(SUB, "b"), 10)
    assert [run.first for run in log.end()] == [1]
    assert log.drop() == [Acked(SUB, ME, sequence_numbers([1]))]


def test_what_comes_after_the_barrier_has_come_round_is_an_error() -> None:
    log = LoopLog(ME)
    log.begin(Seq(4))
    assert log.end() == []
    with pytest.raises(InvariantError, match="behind the barrier of their sender"):
        log.add(part(SUB, "a"), 10)


def test_no_number_is_given_twice_however_many_logs_there_are() -> None:
    log, given = LoopLog(ME), dict[SubscriptionId, list[int]]()
    for records in (1, 2, 3, 2):
        log.begin(Seq(4))
        for of in (SUB, OTHER):
            log.add(part(of, *"abc"[:records]), 10)
        for run in log.end():
            given.setdefault(run.subscription, []).extend(range(run.first, run.first + len(run.keys)))
    assert given == {SUB: [*range(8)], OTHER: [*range(8)]}
