"""What the store refuses: the core is void, the next one does it again without the culprits, senders send again."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millwheel.bundles import QuarantineEntry, SinkRow
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.ids.ended import ENDED
from millwheel.core.interval import events as ev
from millwheel.ids import IntervalId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.limits import REDRIVE_AGAIN_US
from millwheel.model import Timer
from millwheel.work import Cause, InvocationOutcome, RecordCause, TimerCause, cause_of
from tests.unit.core.bench import (
    IN,
    OWNER,
    PRODUCER,
    SEQUENCER,
    TARGET,
    Bench,
    bundle,
    outcome,
    produced,
    recovered,
    wrote,
)

ANSWER = "violates check constraint"


def record(key: str, sequence: SequenceNumber) -> Cause:
    return RecordCause(key, IN, PRODUCER, sequence)


def upserted(*causes: Cause, **changes: Any) -> InvocationOutcome:
    return outcome(sinks=[SinkRow("t", b"{}")] * len(causes), causes=[*causes], processed=len(causes), **changes)


def refused(bench: Bench, seq: Seq, *places: int) -> ev.Inherited:
    """The refusal of these sink rows; what the next core is told."""
    bench(ev.Refused(seq, tuple((place, ANSWER) for place in places)))
    (restart,) = bench.of(ev.RestartInterval)
    return restart.inherited


def errors(bench: Bench) -> list[tuple[str, int, str]]:
    """(key, sequence, error) of what the last checkpoint quarantines."""
    return [(e.key, e.sequence, e.error) for image in bench.images() for e in image.quarantined]


def test_a_log_row_says_whose_hooks_wrote_its_sink_rows() -> None:
    commit = Bench().run(
        1, {0: ("a", 5), 1: ("b", 6)}, upserted(record("b", SequenceNumber(1)), record("a", SequenceNumber(0)))
    )
    assert commit.write.keys == ("b", "a")


def test_what_is_before_the_refused_checkpoint_is_durable_and_nothing_after_it() -> None:
    bench = Bench()
    bench.run(1, {0: ("a", 5)}, produced(("x", 5)))
    bench.run(2, {1: ("b", 6)}, upserted(record("b", SequenceNumber(1))))
    bench.run(3, {2: ("c", 7)}, produced(("y", 7)))
    refused(bench, Seq(2), 0)
    assert bench.acks() == [1]
    assert [b.keys for b in bench.sent()] == [["x"]]
    assert bench.core.counters.checkpoints == 1
    assert bench.core.halted
    assert bench(ev.CommitDone(Seq(3))).effects == []


def test_the_next_core_quarantines_the_culprit_and_what_comes_after_it_for_its_key() -> None:
    first = Bench()
    rows = {0: ("k", 5), 1: ("k", 6), 2: ("j", 7), 3: ("k", 8)}
    first.run(1, rows, upserted(*(record(key, SequenceNumber(i)) for i, (key, _) in rows.items())))
    second = Bench(inherited=refused(first, Seq(1), 1))
    second.arrive(1, rows)
    assert second.load().parts[0].sequences == [0, 2]
    second.invoked()
    assert errors(second) == [("k", 1, ANSWER), ("k", 3, "")]
    second(ev.CommitDone(Seq(1)))
    assert second.core.counters.quarantined == 1
    second.arrive(2, {4: ("k", 9)})
    assert second.load().parts[0].sequences == []


def test_the_culprit_is_known_until_its_quarantine_is_durable() -> None:
    first = Bench()
    first.run(1, {0: ("k", 5)}, upserted(record("k", SequenceNumber(0))))
    second = Bench(inherited=refused(first, Seq(1), 0))
    second.run(1, {0: ("k", 5), 1: ("j", 5)}, upserted(record("j", SequenceNumber(1))))
    third = Bench(inherited=refused(second, Seq(1), 0))
    third.arrive(1, {0: ("k", 5), 1: ("j", 5)})
    assert third.load().parts[0].sequences == []
    third.invoked()
    assert errors(third) == [("k", 0, ANSWER), ("j", 1, ANSWER)]
    third(ev.CommitDone(Seq(1)))
    assert not third.core._refused


def test_a_timer_is_a_culprit_too() -> None:
    timers = [("k", "t", "watermark", 10), ("k", "u", "watermark", 20), ("j", "t", "watermark", 15)]
    first = Bench(recovered(timers=timers))
    first(ev.WatermarkMoved(30)).load()
    first.invoked(upserted(TimerCause("k", "watermark", "t", 10)))
    second = Bench(recovered(timers=timers), inherited=refused(first, Seq(1), 0))
    assert second.load().timers == [Timer("j", "t", 15)]
    second.invoked()
    (image,) = second.images()
    assert [(e.tag, e.error) for e in image.quarantined] == [("t", ANSWER)]
    gone = zip(image.timers.keys, image.timers.tags, image.timers.timestamps, strict=True)
    assert list(gone) == [("k", "t", None), ("j", "t", None)]
    assert list(second.core._keyed._timers.of("k")) == [(("watermark", "u"), 20)]  # it stays, and sleeps


def test_the_next_core_runs_under_the_watermark_under_which_the_first_one_reported() -> None:
    # Under what is persisted it quarantined a wall timer with a hold behind what had been reported.
    timers = [("k", "t", "wall", 0)]
    first = Bench(recovered(timers=timers, watermark=10), quarantine_holds=True)
    first.load()
    first.invoked(upserted(TimerCause("k", "wall", "t", 0)))
    assert first(ev.WatermarkMoved(30)).reported() == []
    second = Bench(recovered(timers=timers, watermark=10), inherited=refused(first, Seq(1), 0), quarantine_holds=True)
    second.load()
    (image,) = second.invoked().images()
    assert image.holds.timestamps == [30]


def element(sequence: SequenceNumber) -> QuarantineEntry:
    return QuarantineEntry("bad", IN, PRODUCER, sequence, b"v", 5)


def test_a_redrive_ends_before_the_culprit_and_goes_on_after_a_while() -> None:
    first = Bench(recovered(quarantined=["bad"]))
    first(ev.RedriveAsked(["bad"]))
    first(
        ev.QuarantineFetched([element(SequenceNumber(1)), element(SequenceNumber(2)), element(SequenceNumber(3))])
    ).load()
    first.invoked(
        upserted(
            record("bad", SequenceNumber(1)),
            record("bad", SequenceNumber(2)),
            record("bad", SequenceNumber(3)),
            redriven={"bad": 3},
        )
    )
    second = Bench(recovered(quarantined=["bad"]), inherited=refused(first, Seq(1), 1))
    assert second.of(ev.FetchQuarantine), "what comes before the culprit is redriven without being asked for again"
    second(ev.QuarantineFetched([element(SequenceNumber(1)), element(SequenceNumber(2)), element(SequenceNumber(3))]))
    assert [e.sequence for e in second.load().redrive] == [1]
    second.invoked(upserted(record("bad", SequenceNumber(1)), redriven={"bad": 1}))
    assert second.images()[0].redriven == [("bad", 1)]
    second(ev.CommitDone(Seq(1)))
    (fold,) = second.of(ev.Fold)
    second(ev.FoldDone(fold.upto))
    second(ev.QuarantineFetched([element(SequenceNumber(2)), element(SequenceNumber(3))]))
    assert second.core.quiet()

    second(ev.RedriveAsked(["bad"]))
    assert second(ev.QuarantineFetched([element(SequenceNumber(2)), element(SequenceNumber(3))])).of(ev.Invoke) == []
    second.now = REDRIVE_AGAIN_US
    second(ev.RedriveAsked(["bad"]))
    second(ev.QuarantineFetched([element(SequenceNumber(2)), element(SequenceNumber(3))]))
    assert [e.sequence for e in second.load().redrive] == [2, 3]
    assert "bad" in second.core._quarantine.keys


def test_a_sender_sends_again_what_is_durable_and_not_acked() -> None:
    bench = Bench()
    bench.run(1, {0: ("a", 5)}, produced(("x", 5)))
    bench.run(2, {1: ("b", 6)}, produced(("y", 6)))
    bench.run(3, {2: ("c", 7)}, produced(("z", 7)))
    (first,) = bench(ev.CommitDone(Seq(1))).sent()
    (second,) = bench(ev.CommitDone(Seq(2))).sent()
    bench(ev.AckArrived(first.number))
    assert bench(ev.Resend(TARGET)).sent() == [second]
    assert bench(ev.Resend(IntervalId(TARGET + 1))).sent() == []


def test_an_ack_of_the_void_cores_bundle_says_nothing_about_the_next_ones() -> None:
    first = Bench(productions="weak")
    first.arrive(1, {0: ("a", 5)})
    first.load()
    (weak,) = first.invoked(upserted(record("a", SequenceNumber(0)), produced=produced(("x", 5)).produced)).sent()
    first.now = 10_000_000
    first(ev.AlarmRang())
    inherited = refused(first, Seq(1), 0)
    second = Bench(productions="weak", inherited=inherited, sequencer=Sequencer(SEQUENCER + 1))
    second.arrive(1, {1: ("b", 5)})
    second.load()
    (own,) = second.invoked(produced(("y", 5))).sent()
    second(ev.AckArrived(weak.number))
    assert list(second.core._outbox.unacked) == [own.number]


def test_receivers_are_told_that_nothing_more_comes_from_the_void_core() -> None:
    first = Bench()
    first.run(1, {0: ("a", 5)}, produced(("x", 5)))
    (sent,) = first(ev.CommitDone(Seq(1))).sent()
    first(ev.AckArrived(sent.number))
    first.run(2, {1: ("b", 6)}, upserted(record("b", SequenceNumber(1))))
    inherited = refused(first, Seq(2), 0)
    second = Bench(inherited=inherited, sequencer=Sequencer(SEQUENCER + 1))
    notes = [b for effect in second.core.flush(0) if isinstance(effect, ev.Send) and not (b := effect.bundle).sequences]
    assert [(b.producer, b.frontier) for b in notes] == [(OWNER, ENDED)]
    again = second(ev.Resend(TARGET)).core.flush(0)  # the receiver has lost it
    assert [b.producer for effect in again if isinstance(effect, ev.Send) for b in [effect.bundle]] == [OWNER]


def test_counts_are_of_what_is_durable() -> None:
    first = Bench()
    first.run(1, {0: ("a", 5)}, wrote("a", b"1"))
    first(ev.CommitDone(Seq(1)))
    first.run(2, {1: ("b", 5)}, upserted(record("b", SequenceNumber(1))))
    second = Bench(inherited=refused(first, Seq(2), 0))
    assert second.core.counters.records == 1
    second.arrive(2, {1: ("b", 5), 2: ("c", 5)})
    second.load()
    second.invoked(wrote("c", b"1"))
    assert second.core.counters.records == 1
    second(ev.CommitDone(Seq(1)))
    assert (second.core.counters.records, second.core.counters.checkpoints) == (2, 2)


def test_a_bundle_that_only_the_void_core_had_is_new_to_the_next() -> None:
    first = Bench()
    first.run(1, {0: ("a", 5)}, upserted(record("a", SequenceNumber(0))))
    second = Bench(inherited=refused(first, Seq(1), 0))
    assert second(ev.BundleArrived(bundle(1, {0: ("a", 5), 1: ("b", 5)}))).of(ev.Load)


def test_a_culprit_is_remembered_until_its_own_entry_is_settled() -> None:
    """Whatever else of its key is settled, before or after; a set of causes says the same."""
    dice = random.Random(7)
    for _ in range(40):
        refused_rows, left = RefusedRows(), set[Cause]()
        for _ in range(30):
            key, sequence = dice.choice("kj"), SequenceNumber(dice.randrange(4))
            cause = record(key, sequence)
            if dice.random() < 0.4:
                refused_rows.add(cause, ANSWER)
                left.add(cause)
            else:
                refused_rows.settled([QuarantineEntry(key, IN, PRODUCER, sequence, b"", 5)])
                left.discard(cause)
            for each in (record(key, SequenceNumber(number)) for key in "kj" for number in range(4)):
                assert (refused_rows.answer(each) is not None) == (each in left)
            assert bool(refused_rows) == bool(left)
            assert refused_rows.untouched(["k"]) == (not any(each.key == "k" for each in left))


def gone_back() -> ev.Inherited:
    """Under snapshots, a row of `bad` is refused in the epoch after 3, before which the input had come to 50."""
    bench = Bench(label=3)
    bench(ev.WatermarkMoved(50))
    bench(ev.BundleArrived(msgspec.structs.replace(bundle(1, {0: ("bad", 60)}), epoch=3)))
    bench.load()
    bench.invoked(upserted(record("bad", SequenceNumber(0))))
    bench(ev.EpochBegun(4, frozenset()))
    (written,) = bench.of(ev.Commit)
    return refused(bench, written.write.seq, 0)


def test_when_all_goes_back_watermarks_do_too() -> None:
    assert Bench(recovered(watermark=20), gone_back(), label=3).core.watermark == 20


@pytest.mark.parametrize(("declared", "answers"), [(3, [ANSWER]), (5, [])])
def test_a_culprit_of_an_epoch_is_known_to_a_core_that_goes_back_to_the_begin_of_it_and_to_no_later_one(
    declared: int, answers: list[str]
) -> None:
    """An interval may have been another worker's meanwhile: what was refused has been settled there."""
    bench = Bench(recovered(), gone_back(), label=declared)
    bench(ev.BundleArrived(msgspec.structs.replace(bundle(1, {0: ("bad", 60)}), epoch=declared)))
    assert [work.parts[0].keys for work in [bench.load()]] == [[] if answers else ["bad"]]
    bench.invoked()
    bench(ev.EpochBegun(declared + 1, frozenset()))
    assert [error for _, _, error in errors(bench)] == answers


def test_where_ids_are_not_what_they_were_the_first_record_of_the_key_on_its_subscription_stands_for_the_culprit() -> (
    None
):
    rows = RefusedRows(renumbered=True)
    rows.add(record("k", SequenceNumber(3)), ANSWER)
    later = QuarantineEntry("k", IN, PRODUCER, SequenceNumber(9), b"", 5)
    elsewhere = QuarantineEntry("k", SubscriptionId(IN + 1), PRODUCER, SequenceNumber(9), b"", 5)
    assert rows.answer(cause_of(later)) == ANSWER
    assert rows.answer(cause_of(elsewhere)) is None
    rows.settled([elsewhere])
    assert rows.answer(cause_of(later)) == ANSWER
    rows.settled([later])
    assert not rows


@pytest.mark.parametrize("label", [4, 5])
def test_culprits_are_known_to_the_next_core_if_it_begins_where_the_one_that_met_them_did(label: int) -> None:
    """At a later epoch the quarantine of the culprit may be declared: what it stands for would wait without a reason."""
    first = Bench(label=4)
    rows = RefusedRows(renumbered=True)
    rows.add(record("bad", SequenceNumber(0)), ANSWER)
    inherited = msgspec.structs.replace(first.core.give_up(), refused=rows)
    second = Bench(label=label, inherited=inherited)
    second(ev.BundleArrived(msgspec.structs.replace(bundle(1, {7: ("bad", 5)}), epoch=label)))
    runs = bool(second.of(ev.Load)) and bool(second.load().parts[0].keys)
    assert runs == (label == 5)


@pytest.mark.parametrize("places", [(0,), (0, 2), (2, 1), (0, 1, 2)])
def test_each_culprit_is_told_what_the_database_said_of_its_own_row(places: tuple[int, ...]) -> None:
    rows = {0: ("a", 5), 1: ("b", 6), 2: ("c", 7)}
    first = Bench()
    first.run(1, rows, upserted(*(record(key, SequenceNumber(number)) for number, (key, _) in rows.items())))
    first(ev.Refused(Seq(1), tuple((place, f"row {place}") for place in places)))
    (restart,) = first.of(ev.RestartInterval)
    second = Bench(inherited=restart.inherited)
    second.arrive(1, rows)
    second.load()
    second.invoked()
    assert errors(second) == [(rows[place][0], place, f"row {place}") for place in sorted(places)]


def test_a_record_does_not_stand_for_a_timer_of_its_key_that_was_refused() -> None:
    refused_rows, timer = RefusedRows(renumbered=True), TimerCause("k", "watermark", "t", 5)
    refused_rows.add(timer, ANSWER)
    assert refused_rows.answer(record("k", SequenceNumber(0))) is None
    assert refused_rows.answer(timer) == ANSWER
    refused_rows.settled([QuarantineEntry("k", IN, PRODUCER, SequenceNumber(0), b"", 5)])
    assert refused_rows.answer(timer) == ANSWER
