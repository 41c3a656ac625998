"""The image of a checkpoint: exactly what was applied, and what it puts into, and takes out of, quarantine."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.bundles import CHECKPOINT_FORMAT, Checkpoint, HoldWrites, QuarantineEntry, RecoveredInterval, TimerWrites
from millwheel.core.durability.checkpoint import Checkpointer
from millwheel.core.faults.quarantine import Quarantine, quarantine_hold
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.interval.schedule import ScheduledWork
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.errors import InvariantError
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, MIN_TIME, Timer
from millwheel.work import BundlePart, InvocationOutcome, RecordCause, Work
from tests.unit.core.bench import timer_writes

AFTER = 80


def element(key: str, timestamp: int = 10) -> QuarantineEntry:
    return QuarantineEntry(key, SubscriptionId(1), ProducerId(2), SequenceNumber(0), b"v", timestamp, error="boom")


class Interval:
    """The parts that a checkpoint is made of."""

    def __init__(
        self,
        *timers: tuple[str, str, str, int],
        holds: dict[str, int] | None = None,
        quarantined: tuple[str, ...] = (),
        after: int | None = None,
    ) -> None:
        self.keyed, kept = KeyedState(1 << 20), holds or {}
        self.keyed.restore(
            RecoveredInterval([], [], timer_writes(*timers), HoldWrites([*kept], [*kept.values()]), [], MIN_TIME)
        )
        self.refused = RefusedRows()
        self.quarantine = Quarantine(
            keys=quarantined, refused=self.refused, suspects=Suspects(), keyed=self.keyed, keeps_hold=True
        )
        self.quarantine.start()
        self.checkpointer = Checkpointer(
            shape="s",
            keyed=self.keyed,
            arrivals=Arrivals(ev.Counters(), True, {}, []),
            expiry=Expiry(after, self.keyed, self.quarantine),
            quarantine=self.quarantine,
        )

    def work(self, *fired: Timer, redrive: tuple[QuarantineEntry, ...] = ()) -> Work:
        for timer in fired:
            assert self.keyed.take_due(timer.kind, timer.timestamp, 1) == [(timer.timestamp, (timer.key, timer.tag))]
        work = self.keyed.work(100, 200)
        work.timers, work.redrive = [*fired], [*redrive]
        return work

    def image(self, work: Work, expiring: dict[str, int] | None = None, **outcome: Any) -> Checkpoint:
        scheduled = ScheduledWork(work, expiring=expiring or {})
        return self.checkpointer.image(Seq(1), scheduled, InvocationOutcome(**outcome), 100)

    def redrive(self, key: str, *entries: QuarantineEntry) -> None:
        """These are all elements of its line, and are going to run."""
        self.quarantine.ask([key], 0)
        assert self.quarantine.next() == [key]
        self.quarantine.fetched(entries, more=False)
        assert self.quarantine.take_fetched() == [*entries]


def timers_of(writes: TimerWrites) -> dict[tuple[str, str, str], int | None]:
    return dict(zip(zip(writes.keys, writes.kinds, writes.tags, strict=True), writes.timestamps, strict=True))


def test_an_image_says_what_was_applied() -> None:
    interval = Interval(("a", "t", "watermark", 5), holds={"a": 3})
    image = interval.image(
        interval.work(Timer("a", "t", 5)),
        values={"c": {"a": b"1"}},
        timers={"a": {("wall", "u"): 300}},
        holds={"a": None},
    )
    assert (image.format, image.shape, image.epoch) == (CHECKPOINT_FORMAT, "s", 0)
    assert [*image.state.rows()] == [("a", "c", "", b"1")]
    assert timers_of(image.timers) == {("a", "watermark", "t"): None, ("a", "wall", "u"): 300}
    assert (image.holds.keys, image.holds.timestamps) == (["a"], [None])
    assert dict(interval.keyed.holds.all) == {}


def test_what_failed_goes_to_quarantine_and_holds_the_watermark_at_the_oldest_of_what_waits() -> None:
    interval = Interval(("bad", "t", "watermark", 4))
    image = interval.image(interval.work(), quarantined=[element("bad", 10)])
    assert [entry.key for entry in image.quarantined] == ["bad"]
    assert dict(zip(image.holds.keys, image.holds.timestamps, strict=True)) == {quarantine_hold("bad"): 4}
    assert interval.keyed.timers.minimum("watermark") is None, "it sleeps"


def test_a_key_may_be_released_and_fail_again_in_one_checkpoint() -> None:
    interval = Interval(quarantined=("bad",), holds={quarantine_hold("bad"): 4})
    old = element("bad", 10)
    interval.redrive("bad", old)
    image = interval.image(interval.work(redrive=(old,)), redriven={"bad": 1}, quarantined=[element("bad", 20)])
    assert (image.redriven, image.released) == ([("bad", 1)], ["bad"])
    assert [entry.timestamp for entry in image.quarantined] == [20]
    assert image.holds.timestamps == [None, 20, 10], "the old hold ends, and a new one begins, which lasts"
    assert dict(interval.keyed.holds.all) == {quarantine_hold("bad"): 10}


def test_keys_that_expire_are_forgotten_and_kept_ones_are_looked_at_later() -> None:
    interval = Interval(("kept", "t", "watermark", 130), after=AFTER)
    image = interval.image(interval.work(), expiring={"gone": 50, "kept": 50})
    assert image.forgotten == ["gone"]
    assert timers_of(image.timers) == {("kept", EXPIRY_KIND, EXPIRY_TAG): 130}


def test_a_write_to_a_key_extends_its_life() -> None:
    interval = Interval(after=AFTER)
    image = interval.image(interval.work(), values={"c": {"a": b"1"}})
    assert timers_of(image.timers) == {("a", EXPIRY_KIND, EXPIRY_TAG): 100 + AFTER + AFTER // 8}


def test_an_image_that_does_not_say_what_is_pending_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    interval = Interval(("a", "t", "watermark", 500))
    monkeypatch.setattr(interval.keyed._timers, "remove", lambda *_: None)
    with pytest.raises(InvariantError, match="I8"):
        interval.image(interval.work(), timers={"a": {("watermark", "t"): None}})


def test_an_idle_interval_records_nothing_but_frontiers() -> None:
    image = Interval().checkpointer.records(Seq(1), 100, 200)
    assert (image.ids, image.state.cells, image.timers.keys, image.quarantined) == ([], [], [], [])


# What a crash before the commit would bring back


def undone(interval: Interval, work: Work | None = None, **outcome: Any) -> int:
    return interval.checkpointer.oldest_undone(work or interval.work(), InvocationOutcome(**outcome))


def test_timers_and_holds_that_are_moved_or_end_count_until_that_is_durable() -> None:
    interval = Interval(("a", "t", "watermark", 5), ("a", "u", "wall", 1), holds={"b": 7})
    assert undone(interval) == MAX_TIME
    assert undone(interval, timers={"a": {("watermark", "t"): None}}) == 5
    assert undone(interval, timers={"a": {("wall", "u"): None}}) == MAX_TIME, "wall time holds no watermark"
    assert undone(interval, holds={"b": 90}) == 7
    assert undone(interval, timers={"a": {("watermark", "new"): 3}}) == MAX_TIME


def test_timers_and_holds_that_are_put_to_sleep_count_too() -> None:
    interval = Interval(("a", "t", "watermark", 5), ("b", "t", "watermark", 4), holds={"a": 3})
    assert undone(interval, quarantined=[element("b")]) == 4
    assert undone(interval, quarantined=[element("a")]) == 3


def test_so_does_the_hold_of_a_quarantine_that_ends() -> None:
    interval = Interval(quarantined=("bad",), holds={quarantine_hold("bad"): 6})
    interval.redrive("bad", element("bad"))
    assert undone(interval, interval.work(redrive=(element("bad"),))) == 6


def test_a_culprit_is_behind_the_record_of_its_key_that_fails_before_it() -> None:
    """It was diverted before the first of them ran."""
    interval, sub, producer = Interval(), SubscriptionId(1), ProducerId(2)
    interval.refused.add(RecordCause("a", sub, producer, SequenceNumber(1)), "refused")
    work = interval.work()
    work.parts = [
        BundlePart(sub, producer, SequenceNumber(0), sequence_numbers([0, 1]), ["a", "a"], [b"v", b"v"], [10, 20])
    ]
    assert [part.sequences for part in interval.quarantine.divert(work).parts] == [[0]]
    image = interval.image(work, quarantined=[element("a", 10)])
    assert [entry.timestamp for entry in image.quarantined] == [10, 20]
