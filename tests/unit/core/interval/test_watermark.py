"""What holds the watermark of an interval: everything that is still to be done, by its name."""

from __future__ import annotations

import msgspec

from millwheel.bundles import Bundle
from millwheel.core.channel.outbox import NO_SUBSCRIPTION, UNKNOWN
from millwheel.core.interval import events as ev
from millwheel.ids import IntervalId, ProducerId, Seq
from millwheel.model import MAX_TIME
from tests.unit.core.bench import (
    IN,
    INTERVAL,
    SENDER,
    TARGET,
    Bench,
    bundle,
    outcome,
    produced,
    recovered,
    timer_writes,
)


def test_blame_names_what_is_still_to_be_done_the_oldest_first() -> None:
    start = recovered(timers=[("t", "u", "watermark", 60)])
    start.holds.add("h", 40)
    bench = Bench(start)
    bench(ev.WatermarkMoved(50))
    assert bench.core.blame() == [
        ("hold", 40, "key 'h'"), ("input watermark", 50, ""), ("timer", 60, "key 't' tag 'u'"),
    ]  # fmt: skip
    bench.arrive(1, {0: ("k", 30)})
    bench.arrive(2, {1: ("l", 20)})
    assert bench.core.blame()[:2] == [("waiting record", 20, "key 'l'"), ("running work", 30, "key 'k'")]


def test_blame_follows_a_production_until_it_is_acked() -> None:
    bench = Bench()
    commit = bench.run(1, {0: ("k", 30)}, produced(("p", 35)))
    assert bench(ev.WatermarkMoved(50)).reported() == [30]
    waits = ("unacked production", 35, f"key 'p' to interval {TARGET}")
    assert bench.core.blame()[:2] == [("uncommitted checkpoint", 30, ""), waits]
    assert bench(ev.CommitDone(commit.write.seq)).reported() == [35]
    assert bench.core.blame()[0] == waits
    (sent,) = bench.sent()
    assert bench(ev.AckArrived(sent.number)).reported() == [50]
    assert bench.core.blame() == [("input watermark", 50, "")]


def test_of_productions_that_are_not_acked_the_oldest_is_named() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 30)}, produced(("p", 45)))
    bench.run(2, {1: ("l", 30)}, produced(("q", 35)))
    named = [blamed for blamed in bench.core.blame() if blamed[0] == "unacked production"]
    assert named == [("unacked production", 35, f"key 'q' to interval {TARGET}")]


def test_a_timer_that_is_not_in_memory_is_said_to_be() -> None:
    bench = Bench(recovered(timers=[("t", "u", "watermark", 60)], more=["watermark"]))
    bench(ev.WatermarkMoved(60))
    bench.load()
    bench.invoked(outcome())
    assert ("timer", 60, "not in memory yet") in bench.core.blame()
    bench(ev.TimersLoaded("watermark", timer_writes(("s", "v", "watermark", 70)), False))
    assert ("timer", 70, "key 's' tag 'v'") in bench.core.blame()


def test_what_rests_on_reports_of_the_next_epoch_waits_for_its_barrier() -> None:
    bench = Bench(recovered(timers=[("t", "u", "watermark", 60)]), label=3)
    bench(ev.EpochBegun(4, {SENDER}))
    assert bench(ev.WatermarkMoved(50, 3)).core.watermark == 50
    assert bench(ev.WatermarkMoved(70, 4)).core.watermark == 50
    assert not bench.of(ev.Load)
    barrier = Bundle(
        NO_SUBSCRIPTION, SENDER, 9, INTERVAL, ProducerId(1), UNKNOWN, [], [], [], [], 3, barrier=4
    )  # fmt: skip
    bench(ev.BundleArrived(barrier))
    assert [written.epoch for written in bench.of(ev.PartWritten)] == [4]
    assert (bench.core.watermark, bench.core.label) == (70, 4)
    assert [timer.key for timer in bench.load().timers] == ["t"]  # it is of the next epoch


def test_what_is_held_back_behind_a_barrier_holds_the_watermark() -> None:
    bench, late = Bench(label=3), IntervalId(SENDER + 1)
    bench(ev.EpochBegun(4, {SENDER, late}))
    barrier = Bundle(
        NO_SUBSCRIPTION, SENDER, 9, INTERVAL, ProducerId(1), UNKNOWN, [], [], [], [], 3, barrier=4
    )  # fmt: skip
    bench(ev.BundleArrived(barrier))
    behind = msgspec.structs.replace(bundle(10, {0: ("k", 30)}), epoch=4)
    bench(ev.BundleArrived(behind))
    assert bench(ev.WatermarkMoved(50, 3)).reported() == [30]
    assert bench.core.blame()[0] == ("record", 30, "that waits for the barriers of other senders")


def test_a_word_that_comes_late_does_not_take_the_input_back() -> None:
    bench = Bench()
    for value in (50, 40, 60):
        bench(ev.WatermarkMoved(value))
        assert bench.core.watermark >= 50
    assert bench.core.watermark == 60


def test_blame_names_no_key_of_a_bundle_of_which_no_record_is_left() -> None:
    """Its row was taken before, under the id that a client chose, and it waits until what runs now is done."""
    bench = Bench(slacks={IN: 1_000})
    taken = [msgspec.structs.replace(bundle(number, {number: ("k", 20)}), outside=[b"x"]) for number in (1, 2)]
    bench(ev.BundleArrived(taken[0]))
    bench.load()
    bench.invoked()
    bench(ev.CommitDone(Seq(1)))
    bench.arrive(3, {3: ("m", 40)})
    bench(ev.BundleArrived(taken[1]))
    assert ("waiting record", MAX_TIME, "") in bench.core.blame()
    assert ("running work", 40, "key 'm'") in bench.core.blame()


def test_blame_names_the_timer_of_event_time_of_those_that_run_together() -> None:
    bench = Bench(recovered(timers=[("w", "u", "wall", 5), ("t", "u", "watermark", 60)]))
    bench.now = 10
    bench(ev.WatermarkMoved(70))
    assert sorted(timer.key for timer in bench.load().timers) == ["t", "w"]
    assert ("running work", 60, "key 't'") in bench.core.blame()
