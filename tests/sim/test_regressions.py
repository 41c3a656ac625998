"""Bugs that the simulator has found in the core, each with the smallest test that shows it, and the seeds that did."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.bundles import (
    Bundle,
    Delivered,
    HoldWrites,
    QuarantineEntry,
    RecoveredInterval,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.core.authority import Authority
from millwheel.core.interval import events as ev
from millwheel.core.interval.config import Config
from millwheel.core.interval.machine import IntervalCore
from millwheel.graph import Settings
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.work import InvocationOutcome
from tests.sim.harness import simulate_seed
from tests.sim.quick import quick

SEEDS = [1, 2, 3, 5, 13, 17, 20, 21, 28, 52, 281, 297]


@pytest.mark.long  # a landing runs them among its 500
@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_once_failed(seed: int) -> None:
    quick(simulate_seed)(seed)


def core(timers: TimerWrites | None = None, quarantined: list[str] | None = None, **holds: int) -> IntervalCore:
    """A recovered interval; `holds` by key."""
    recovered = RecoveredInterval(
        [], [], timers or TimerWrites(), HoldWrites(list(holds), list(holds.values())), quarantined or [], MIN_TIME
    )
    made = IntervalCore(Config(IntervalId(1), Sequencer(7), "c", "1", Settings(), {}), recovered)
    made.start(0)
    return made


def bundle(key: str, timestamp: int, sequence: int = 0) -> ev.BundleArrived:
    return ev.BundleArrived(
        Bundle(
            SubscriptionId(1),
            IntervalId(2),
            sequence + 1,
            IntervalId(1),
            ProducerId(3),
            SequenceNumber(0),
            sequence_numbers([sequence]),
            [key],
            [b""],
            [timestamp],
        )
    )


def only(effects: list[ev.Effect], kind: type[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, kind)]


def test_a_wall_timer_that_is_due_while_user_code_is_busy_does_not_spin() -> None:
    # Every AlarmRang asked for another alarm at once: the event loop turned without end until the load came back.
    interval = core(TimerWrites(["k"], ["t"], ["wall"], [100]))
    assert only(interval.handle(bundle("k", 5), 50), ev.Load)
    assert not only(interval.handle(ev.AlarmRang(), 100), ev.SetAlarm)
    loaded = interval.handle(ev.Loaded([]), 101)
    assert only(loaded, ev.Invoke)
    assert only(interval.handle(ev.Invoked(InvocationOutcome()), 102), ev.Invoke)[0].work.timers[0].tag == "t"


def test_a_hold_counts_until_its_release_is_durable() -> None:
    # The release was believed at once; a crash brought the hold back behind a watermark that had been reported.
    interval = core(k=10)
    interval.handle(bundle("k", 50), 0)
    interval.handle(ev.Loaded([]), 0)
    interval.handle(ev.WatermarkMoved(40), 0)
    assert interval.reported == 10
    commit = only(interval.handle(ev.Invoked(InvocationOutcome(holds={"k": None})), 0), ev.Commit)[0]
    assert interval.reported == 10
    interval.handle(ev.CommitDone(commit.write.seq), 0)
    assert interval.reported == 40


def test_a_timer_that_is_moved_counts_until_that_is_durable() -> None:
    interval = core(TimerWrites(["k"], ["t"], ["watermark"], [30]))
    interval.handle(bundle("k", 50), 0)
    interval.handle(ev.Loaded([]), 0)
    commits = only(interval.handle(ev.Invoked(InvocationOutcome(timers={"k": {("watermark", "t"): 90}})), 0), ev.Commit)
    interval.handle(ev.WatermarkMoved(50), 0)
    assert interval.reported == 30
    interval.handle(ev.CommitDone(commits[0].write.seq), 0)
    assert interval.reported == 50


def test_a_source_holds_until_its_first_discovery_is_over() -> None:
    # The first partition's watermark went out before the second partition was expected: its records came late.
    authority = Authority({"c": ["source:s"]}, {})
    authority.expect("source:s", IntervalId(1))
    authority.report("source:s", IntervalId(1), 100)
    assert authority.changes() == {}
    authority.expect("source:s", IntervalId(2))
    authority.bound("source:s", MAX_TIME)
    authority.report("source:s", IntervalId(2), 60)
    assert authority.changes() == {"source:s": 60}


def redriving(interval: IntervalCore, entries: list[QuarantineEntry]) -> list[ev.Effect]:
    fetch = only(interval.handle(ev.RedriveAsked(["k"]), 0), ev.FetchQuarantine)
    assert fetch
    return interval.handle(ev.QuarantineFetched(entries), 0)


def test_a_quarantine_is_not_released_while_a_record_is_on_its_way_into_it() -> None:
    # The record was in the hands of user code when the empty FIFO was read: it was released, and the record with it.
    interval = core(quarantined=["k"])
    interval.handle(ev.RedriveAsked(["k"]), 0)
    interval.handle(bundle("k", 50), 0)
    interval.handle(ev.Loaded([]), 0)
    interval.handle(ev.QuarantineFetched([]), 0)
    commit = only(interval.handle(ev.Invoked(InvocationOutcome()), 0), ev.Commit)[0]
    image = decode_checkpoint(commit.write.payload)
    assert len(image.quarantined) == 1
    assert image.released == []


def test_a_redrive_that_died_between_its_last_element_and_the_release_is_ended_by_the_next_owner() -> None:
    # No element was left, so the key was not in quarantine any more: its hold stopped the watermark for ever, and the
    # request would have emptied the key's next quarantine unasked.
    held: Any = {"k\0quarantine": 10}
    interval = core(**held)
    interval.handle(ev.WatermarkMoved(40), 0)
    assert interval.reported == 10
    commit = only(interval.handle(ev.RedriveAsked(["k"]), 0), ev.Commit)[0]
    image = decode_checkpoint(commit.write.payload)
    assert image.released == ["k"]
    interval.handle(ev.CommitDone(commit.write.seq), 0)
    assert interval.reported == 40


def release(interval: IntervalCore, entries: list[QuarantineEntry], done: InvocationOutcome) -> list[ev.Effect]:
    """Redrive `entries`, which are all there are: what comes of it."""
    redriving(interval, entries)
    interval.handle(ev.Loaded([]), 0)
    effects = interval.handle(ev.Invoked(done), 0)
    assert decode_checkpoint(only(effects, ev.Commit)[0].write.payload).released == ["k"]
    return effects


def test_a_timer_that_a_redriven_record_moved_fires_once_after_the_release() -> None:
    # Due timers of a quarantined key used to join its queue.  One that a redriven record had set anew could be in it
    # twice, further apart than one batch: both fired.
    interval = core(TimerWrites(["k"], ["t"], ["watermark"], [30]), quarantined=["k"])
    interval.handle(ev.WatermarkMoved(100), 0)
    record = QuarantineEntry("k", SubscriptionId(1), ProducerId(3), SequenceNumber(0), b"", 20)
    done = InvocationOutcome(timers={"k": {("watermark", "t"): 60}}, redriven={"k": 1})
    work = only(release(interval, [record], done), ev.Invoke)[0].work
    assert [(timer.tag, timer.timestamp) for timer in work.timers] == [("t", 60)]


def test_timers_of_a_quarantined_key_sleep_and_others_do_not() -> None:
    interval = core(TimerWrites(["k", "m"], ["t", "t"], ["watermark"] * 2, [30, 40]), quarantined=["k"])
    assert only(interval.handle(ev.WatermarkMoved(100), 0), ev.Load)[0].keys == ["m"]
    commit = only(interval.handle(ev.Loaded([]), 0), ev.Invoke)[0].work
    assert [timer.key for timer in commit.timers] == ["m"]
    committed = only(interval.handle(ev.Invoked(InvocationOutcome()), 0), ev.Commit)[0]
    interval.handle(ev.CommitDone(committed.write.seq), 0)
    assert interval.reported == 100


def test_a_quarantine_that_holds_counts_the_timers_that_sleep() -> None:
    recovered = RecoveredInterval(
        [], [], TimerWrites(["k"], ["t"], ["watermark"], [30]), HoldWrites([], []), [], MIN_TIME
    )
    interval = IntervalCore(
        Config(IntervalId(1), Sequencer(7), "c", "1", Settings(quarantine_holds=True), {}), recovered
    )
    interval.start(0)
    interval.handle(bundle("k", 50), 0)
    interval.handle(ev.Loaded([]), 0)
    failed = QuarantineEntry("k", SubscriptionId(1), ProducerId(3), SequenceNumber(0), b"", 50, error="boom")
    commit = only(interval.handle(ev.Invoked(InvocationOutcome(quarantined=[failed])), 0), ev.Commit)[0]
    interval.handle(ev.CommitDone(commit.write.seq), 0)
    interval.handle(ev.WatermarkMoved(100), 0)
    assert interval.reported == 30


def test_a_quarantine_that_holds_counts_what_comes_later_and_is_older() -> None:
    # The hold was that of the first element: the watermark passed an older record that had queued up behind it.
    recovered = RecoveredInterval([], [], TimerWrites(), HoldWrites(["k\0quarantine"], [50]), ["k"], MIN_TIME)
    interval = IntervalCore(
        Config(IntervalId(1), Sequencer(7), "c", "1", Settings(quarantine_holds=True), {}), recovered
    )
    interval.start(0)
    interval.handle(bundle("k", 40), 0)
    interval.handle(ev.Loaded([]), 0)
    commit = only(interval.handle(ev.Invoked(InvocationOutcome()), 0), ev.Commit)[0]
    interval.handle(ev.CommitDone(commit.write.seq), 0)
    interval.handle(ev.WatermarkMoved(100), 0)
    assert interval.reported == 40


def test_a_wall_timer_that_is_redriven_after_the_clock_was_set_back_is_not_early() -> None:
    interval = core(quarantined=["k"])
    redriving(
        interval, [QuarantineEntry("k", SubscriptionId(-1), ProducerId(0), SequenceNumber(0), b"", 900, "t", "wall")]
    )
    assert only(interval.handle(ev.Loaded([]), 5), ev.Invoke)[0].work.wall_time == 900


def test_a_timer_that_is_redriven_before_the_next_owner_has_heard_of_the_watermark_is_not_early() -> None:
    # The request was read at the start, before the controller had told how far the input is: the hook of a timer that
    # had been due in the last process saw a watermark below the timer's time.
    interval = core(quarantined=["k"])
    redriving(
        interval,
        [QuarantineEntry("k", SubscriptionId(-1), ProducerId(0), SequenceNumber(0), b"", 900, "t", "watermark")],
    )
    assert only(interval.handle(ev.Loaded([]), 5), ev.Invoke)[0].work.watermark == 900


def test_ids_of_a_producer_that_is_live_on_another_subscription_only_are_collected() -> None:
    # Live was a matter of the producer: nobody ever told its frontier on this subscription, and its ids stayed.
    ids = [
        Delivered(SubscriptionId(1), ProducerId(3), SequenceNumber(5), SequenceNumber(7)),
        Delivered(SubscriptionId(2), ProducerId(3), SequenceNumber(5), SequenceNumber(7)),
    ]
    interval = IntervalCore(
        Config(IntervalId(1), Sequencer(9), "c", "1", Settings(), {}),
        RecoveredInterval(ids, [], TimerWrites(), HoldWrites([], []), [], MIN_TIME),
    )
    interval.start(0, {(SubscriptionId(2), ProducerId(3))})
    commit = only(interval.flush(0), ev.Commit)[0]
    kept = decode_checkpoint(commit.write.payload).ids
    assert [(i.subscription, i.producer, i.frontier) for i in kept] == [(1, 3, MAX_TIME)]
