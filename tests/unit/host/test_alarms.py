"""Alarms ring by the clock, each interval's once a tick."""

from __future__ import annotations

from millwheel.host.alarms import Alarms
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME


def test_all_that_are_due_ring_in_order_and_each_interval_once() -> None:
    alarms = Alarms()
    assert alarms.next() == MAX_TIME
    assert alarms.set(30, IntervalId(3))
    assert alarms.set(10, IntervalId(1))
    assert not alarms.set(20, IntervalId(2))
    assert not alarms.set(15, IntervalId(1))
    assert alarms.due(9) == []
    assert alarms.due(20) == [1, 2]
    assert alarms.next() == 30
    assert alarms.due(100) == [3]
    assert alarms.next() == MAX_TIME
