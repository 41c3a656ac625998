"""Expiry: a key goes some event time after its last write, never before, and never while anything keeps it."""

from __future__ import annotations

import pytest

from millwheel.bundles import CellWrites, StateWrites, TimerWrites
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, Timer
from millwheel.work import BundlePart, Work

AFTER = 80


class Interval:
    """The parts of an interval that an expiry shares."""

    def __init__(self, after: int | None = AFTER) -> None:
        keyed = KeyedState(1 << 20)
        self.cache, self.timers, self.holds = keyed._cache, keyed._timers, keyed._holds
        self.quarantine = Quarantine(keys=[], refused=RefusedRows(), suspects=Suspects(), keyed=keyed, keeps_hold=True)
        self.expiry = Expiry(after, keyed, self.quarantine)
        self.writes = TimerWrites()

    def write(self, key: str, record: int | None = None, watermark: int = 0, timer: Timer | None = None) -> int | None:
        """A hook writes a key, for a record or a timer; when the key expires now."""
        parts = (
            []
            if record is None
            else [
                BundlePart(
                    SubscriptionId(1), ProducerId(2), SequenceNumber(0), sequence_numbers([1]), [key], [b""], [record]
                )
            ]
        )
        work = Work(parts, [timer] if timer else [], {}, {}, {}, watermark, 0)
        self.expiry.renew(StateWrites([CellWrites("c", [key], [b"1"])]), work, watermark, self.writes)
        return self.timers.expiry(key)

    def drop(self, due: dict[str, int], watermark: int) -> list[str]:
        return self.expiry.drop(due, Seq(1), watermark, TimerWrites())


def test_a_key_lives_on_from_its_newest_record_or_the_watermark() -> None:
    interval = Interval()
    assert interval.write("a", record=1_000) == 1_000 + AFTER + AFTER // 8
    assert interval.write("b", record=1_000, watermark=3_000) == 3_000 + AFTER + AFTER // 8
    assert interval.write("c", timer=Timer("c", "t", 2_000, "watermark")) == 2_000 + AFTER + AFTER // 8
    assert interval.writes.kinds == [EXPIRY_KIND] * 3


def test_a_wall_timer_says_nothing_of_event_time_and_of_several_timers_the_newest_counts() -> None:
    interval = Interval()
    assert interval.write("a", timer=Timer("a", "t", 9_000, "wall"), watermark=50) == 50 + AFTER + AFTER // 8
    timers = [Timer("b", tag, at, "watermark") for tag, at in (("x", 2_000), ("y", 3_000), ("z", 1_000))]
    work = Work([], timers, {}, {}, {}, 100, 0)
    interval.expiry.renew(StateWrites([CellWrites("c", ["b"], [b"1"])]), work, 100, interval.writes)
    assert interval.timers.expiry("b") == 3_000 + AFTER + AFTER // 8


def test_a_write_extends_the_life_by_an_eighth_at_once_and_not_each_time() -> None:
    interval = Interval()
    first = interval.write("a", record=1_000)
    assert interval.write("a", record=1_000 + AFTER // 8) == first, "it still has its time"
    assert len(interval.writes.keys) == 1
    later = interval.write("a", record=1_001 + AFTER // 8)
    assert first is not None
    assert later is not None
    assert later >= 1_001 + AFTER // 8 + AFTER


def test_every_cell_that_is_written_extends_the_life_of_its_keys() -> None:
    interval = Interval()
    work = Work([], [], {}, {}, {}, 100, 0)
    cells = [CellWrites("c", ["a"], [b"1"]), CellWrites("d", ["b"], [b"1"], ["x"])]
    interval.expiry.renew(StateWrites(cells), work, 100, interval.writes)
    assert [interval.timers.expiry(key) for key in ("a", "b")] == [100 + AFTER + AFTER // 8] * 2


def test_nothing_expires_without_a_time_to_live() -> None:
    assert Interval(None).write("a", record=1_000) is None


def test_keys_are_due_by_the_watermark_but_not_at_the_end_of_the_input() -> None:
    interval = Interval()
    interval.timers.set("a", EXPIRY_KIND, EXPIRY_TAG, 10)
    interval.timers.set("b", EXPIRY_KIND, EXPIRY_TAG, 20)
    assert interval.expiry.take_due(9, 5) == {}
    assert interval.expiry.take_due(MAX_TIME, 5) == {}, "a finished run keeps its state"
    assert interval.expiry.take_due(20, 1) == {"a": 10}
    assert interval.expiry.take_due(20, 1) == {"b": 20}


def test_a_timer_that_is_due_comes_first() -> None:
    interval = Interval()
    interval.timers.set("a", EXPIRY_KIND, EXPIRY_TAG, 10)
    interval.timers.set("b", "watermark", "t", 15)
    assert interval.expiry.take_due(20, 5) == {}
    assert interval.expiry.take_due(15, 5) == {}
    assert interval.expiry.take_due(14, 5) == {"a": 10}


@pytest.mark.parametrize("keeper", ["timer", "hold", "quarantine"])
def test_what_keeps_a_key(keeper: str) -> None:
    interval = Interval()
    if keeper == "timer":
        interval.timers.set("kept", "watermark", "t", 500)
    elif keeper == "hold":
        interval.holds.set("kept", 500)
    else:
        interval.quarantine.keys.add("kept")
    assert interval.drop({"gone": 10, "kept": 10}, watermark=100) == ["gone"]
    asked_again = interval.timers.expiry("kept")
    assert asked_again == 100 + AFTER, "sooner than its timer, which may be cancelled"
    assert interval.cache.unfolded == 2, "neither may leave memory before that is in the tables"
    interval.timers.remove("kept", "watermark", "t")
    interval.holds.remove("kept")
    interval.quarantine.keys.clear()
    assert interval.drop({"kept": asked_again}, watermark=200) == ["kept"]


def test_a_key_that_is_kept_is_asked_again_behind_its_next_timer() -> None:
    interval = Interval()
    interval.timers.set("kept", "watermark", "t", 120)
    interval.drop({"kept": 10}, watermark=100)
    assert interval.timers.expiry("kept") == 120


def test_a_key_whose_timer_sleeps_in_quarantine_is_not_asked_again_at_once() -> None:
    # Its timer is behind the watermark and does not fire: the key would be due again in each invocation.
    interval = Interval()
    interval.write("a", record=0)
    interval.timers.set("a", "watermark", "t", 30)
    interval.quarantine.keys.add("a")
    assert interval.drop({"a": 90}, 1_000) == []
    assert interval.timers.expiry("a") == 1_000 + AFTER


def test_a_wall_timer_does_not_say_when_a_key_that_is_kept_is_looked_at_again() -> None:
    """Its time is not event time: a look too early finds the key kept, and writes another one."""
    interval = Interval()
    interval.timers.set("kept", "wall", "t", 101)
    interval.drop({"kept": 10}, watermark=100)
    assert interval.timers.expiry("kept") == 100 + AFTER
