"""The watermark authority: minima, never back, persisted before anybody hears."""

from __future__ import annotations

import random

from millwheel.core.authority import Authority
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME, MIN_TIME


def authority(**persisted: int) -> Authority:
    found = Authority({"a": ["source:s"], "b": ["a", "source:t"]}, persisted)
    found.expect("source:s", IntervalId(1))
    found.expect("a", IntervalId(2))
    found.expect("a", IntervalId(3))
    return found


def test_an_interval_that_has_not_reported_holds_its_computation() -> None:
    found = authority()
    found.report("a", IntervalId(2), 50)
    assert found.changes() == {}
    found.report("a", IntervalId(3), 40)
    assert found.changes() == {"a": 40}


def test_a_value_is_visible_only_when_adopted() -> None:
    found = authority()
    found.bound("source:s", MAX_TIME)
    found.report("source:s", IntervalId(1), 10)
    changed = found.changes()
    assert changed == {"source:s": 10}
    assert found.input_of("a") == MIN_TIME
    assert found.adopt(changed) == {"a": 10}
    assert (found.input_of("a"), found.value("source:s")) == (10, 10)


def test_an_input_is_the_minimum_over_all_senders() -> None:
    found = authority()
    found.bound("source:t", 5)
    assert found.adopt({"a": 30}) == {}
    assert found.adopt(found.changes()) == {"b": 5}
    found.bound("source:t", 100)
    assert found.adopt(found.changes()) == {"b": 30}


def test_one_finished_source_does_not_end_time_while_another_is_idle() -> None:
    found = authority(a=7)
    found.bound("source:t", MAX_TIME)
    found.adopt(found.changes())
    assert found.input_of("b") == 7


def test_a_source_is_held_by_what_it_has_not_discovered() -> None:
    found = authority()
    found.bound("source:s", 20)
    found.report("source:s", IntervalId(1), 90)
    assert found.changes() == {"source:s": 20}


def test_what_waits_for_its_turn_does_not_hold_before() -> None:
    found = authority()
    found.expect("source:s", IntervalId(4))
    found.bound("source:s", 20)
    found.report("source:s", IntervalId(1), 15)
    assert found.changes() == {}
    found.excuse("source:s", IntervalId(4))
    found.report("source:s", IntervalId(1), 16)
    found.adopt(found.changes())
    assert found.value("source:s") == 16
    found.expect("source:s", IntervalId(4))
    found.report("source:s", IntervalId(1), MAX_TIME)
    assert found.changes() == {}
    found.report("source:s", IntervalId(4), 18)
    assert found.changes() == {"source:s": 18}


def test_what_an_earlier_version_has_left_is_waited_for_until_it_is_settled() -> None:
    found = Authority({"a": ["source:s"], "b": ["source:t"]}, {"a": 10, "source:t": 90})
    found.unsettled("a", IntervalId(2), {"b"})
    assert found.input_of("b") == 10
    assert found.settle(IntervalId(3)) == {}
    assert found.settle(IntervalId(2)) == {"b": 90}


def test_nothing_goes_back() -> None:
    dice, found, last = random.Random(5), authority(a=3), dict[str, int]()
    for _ in range(2_000):
        found.report("a", IntervalId(dice.choice((2, 3))), dice.randrange(-10, 1_000))
        found.report("source:s", IntervalId(1), dice.randrange(-10, 1_000))
        found.bound("source:t", dice.randrange(1_000))
        if dice.random() < 0.5:
            continue
        found.adopt(found.changes())
        for name in ("a", "source:s", "source:t"):
            assert found.value(name) >= last.get(name, MIN_TIME)
            last[name] = found.value(name)
        assert found.value("a") <= min(found.intervals("a").values()) or found.value("a") == 3
    assert found.input_of("b") == min(last["a"], last["source:t"])
