"""What a cluster's run leaves over is judged once, over all workers, and counted once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import msgspec
import pytest

from millwheel.cluster import ClusterMap, Member, PlacedInterval, RunEnding
from millwheel.host.left_overs import LeftOvers
from millwheel.host.over import Tolerance
from millwheel.host.requests import CountQuarantined, CountRejected
from millwheel.ids import IntervalId, Sequencer

T = TypeVar("T")
ONE, TWO = IntervalId(1), IntervalId(2)


WORKER = Member(7, "w", "worker", "here:1", alive=True)


def owned(*members: Member, **owners: int) -> ClusterMap:
    """A map of the intervals 1 and 2, and a worker if no other member is named."""
    placed = [
        PlacedInterval(interval, "count", "", None, owners.get(name), Sequencer(1))
        for name, interval in (("one", ONE), ("two", TWO))
    ]
    return ClusterMap(1, None, members or (WORKER,), tuple(placed), ())


def asked(steps: Generator[Any, Any, T], rejected: int = 0, stored: Sequence[int | None] = ()) -> T:
    """What is judged on a store that says this; each of `stored` is an answer, and all must be asked for."""
    left, answer = [*stored], None
    try:
        while True:
            wish = steps.send(answer)
            assert isinstance(wish, CountRejected | CountQuarantined)
            answer = rejected if isinstance(wish, CountRejected) else left.pop(0)
    except StopIteration as end:
        assert left == []
        value: T = end.value
        return value


def test_when_no_worker_is_left_the_store_is_asked_once_until_it_knows() -> None:
    left, dead = LeftOvers(Tolerance(1)), msgspec.structs.replace(WORKER, alive=False)
    left.said(7, {ONE: 5})
    assert asked(left.excess(owned(dead, one=7)), stored=[None]) is None, "what a dead worker has said is out of date"
    assert asked(left.judged(owned(dead, one=7)), stored=[None]) is None
    assert asked(left.excess(owned(dead, one=7)), stored=[1]) is None
    assert asked(left.judged(owned(dead, one=7))) == RunEnding(1, 0, False)
    said = asked(left.excess(owned(one=7)))
    assert said is not None
    assert said.stopped == "5 keys are in quarantine, 1 is allowed"
    assert asked(left.judged(owned(dead, one=7)), stored=[2]) == RunEnding(2, 0, True), "a worker was there meanwhile"


def test_keys_of_all_workers_count_together_and_each_for_the_owner_of_its_interval() -> None:
    left = LeftOvers(Tolerance())
    left.said(7, {ONE: 2, TWO: 3})
    left.said(8, {TWO: 5})
    assert left.keys(owned(one=7, two=8)) == 7
    assert left.keys(owned(one=7, two=7)) == 5
    assert left.keys(owned(one=7)) == 2
    left.said(7, {})
    assert left.keys(owned(one=7, two=8)) == 5


@pytest.mark.parametrize(
    ("allowed", "keys", "rejected", "too_much"),
    [
        (Tolerance(), 0, 0, False),
        (Tolerance(), 1, 0, True),
        (Tolerance(), 0, 1, True),
        (Tolerance(1), 1, 0, False),
        (Tolerance(1), 2, 0, True),
        (Tolerance(1), 0, 1, True),
        (Tolerance(rejected=1), 0, 1, False),
        (Tolerance(rejected=1), 0, 2, True),
        (Tolerance(rejected=1), 1, 0, True),
        (Tolerance(0, 0), 0, 0, False),
    ],
)
def test_what_is_left_at_the_end_is_judged_as_by_an_embedded_run(
    allowed: Tolerance, keys: int, rejected: int, too_much: bool
) -> None:
    left = LeftOvers(allowed)
    left.said(7, {ONE: keys})
    assert asked(left.judged(owned(one=7)), rejected) == RunEnding(keys, rejected, too_much)


@pytest.mark.parametrize(
    ("allowed", "keys", "rejected", "why"),
    [
        (Tolerance(), 9, 9, ""),
        (Tolerance(1), 1, 9, ""),
        (Tolerance(1), 2, 0, "2 keys are in quarantine, 1 is allowed"),
        (Tolerance(rejected=1), 9, 1, ""),
        (Tolerance(rejected=1), 0, 2, "2 rows are rejected, 1 is allowed"),
        (Tolerance(0, 0), 0, 1, "1 row is rejected, 0 are allowed"),
    ],
)
def test_a_run_is_stopped_only_by_more_than_it_was_allowed(
    allowed: Tolerance, keys: int, rejected: int, why: str
) -> None:
    left = LeftOvers(allowed)
    left.said(7, {ONE: keys})
    ending = asked(left.excess(owned(one=7)), rejected)
    assert ("" if ending is None else ending.stopped) == why
    assert ending is None or ending.too_much
