"""What a cluster's run leaves over is judged once, over all workers, and counted once."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import pytest

from millwheel.cluster import ClusterMap, PlacedInterval, RunEnding
from millwheel.host.left_overs import LeftOvers
from millwheel.host.over import Tolerance
from millwheel.host.requests import CountRejected
from millwheel.ids import IntervalId, Sequencer

T = TypeVar("T")
ONE, TWO = IntervalId(1), IntervalId(2)


def owned(**owners: int) -> ClusterMap:
    """A map of the intervals 1 and 2."""
    placed = [
        PlacedInterval(interval, "count", "", None, owners.get(name), Sequencer(1))
        for name, interval in (("one", ONE), ("two", TWO))
    ]
    return ClusterMap(1, None, (), tuple(placed), ())


def asked(steps: Generator[Any, Any, T], rejected: int = 0) -> T:
    try:
        wish = next(steps)
        assert isinstance(wish, CountRejected)
        steps.send(rejected)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it asks for more")


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
        (Tolerance(1), 2, 0, "2 keys are in quarantine, 1 are allowed"),
        (Tolerance(rejected=1), 9, 1, ""),
        (Tolerance(rejected=1), 0, 2, "2 rows are rejected, 1 are allowed"),
        (Tolerance(0, 0), 0, 1, "1 rows are rejected, 0 are allowed"),
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
