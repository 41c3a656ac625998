"""The interval core: events in, effects out (docs/architecture-interval.md).  What is acked or sent is durable."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from millwheel import limits
from millwheel.bundles import (
    Delivered,
    Ids,
    KeyRows,
    OutsideBucket,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    decode_checkpoint,
)
from millwheel.core.ids.ended import ENDED
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, sequence_numbers
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.work import InvocationOutcome, Stall
from tests.unit.core.bench import (
    IN,
    OUT,
    OWNER,
    PRODUCER,
    SENDER,
    TARGET,
    Bench,
    bundle,
    failed,
    outcome,
    produced,
    recovered,
    wrote,
)
from tests.unit.core.interval.test_copies_behind_barriers import barrier_of, head_behind_barrier

# --- records ------------------------------------------------------------------------------------------------------


def test_a_record_is_loaded_run_committed_and_only_then_acked() -> None:
    bench = Bench()
    bench.arrive(1, {0: ("k", 5)})
    assert [load.keys for load in bench.of(ev.Load)] == [["k"]]
    work = bench.load()
    assert (work.parts[0].keys, work.parts[0].values, work.values) == (["k"], [b"v0"], {})
    bench.invoked(wrote("k", b"1"))
    assert bench.acks() == []
    (image,) = bench.images()
    assert image.ids == [Ids(IN, PRODUCER, SequenceNumber(0), sequence_numbers([0]))]
    assert [*image.state.rows()] == [("k", "c", "", b"1")]
    assert bench(ev.CommitDone(Seq(1))).acks() == [1]
    assert bench.of(ev.Ack)[0].sender == SENDER


def test_a_key_in_the_cache_is_not_loaded_again() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, wrote("k", b"1"))
    bench.arrive(2, {1: ("k", 6)})
    assert not bench.of(ev.Load)
    assert bench.load().values["c"] == {"k": b"1"}


def test_acks_wait_for_the_whole_prefix() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)})
    bench.run(2, {1: ("k", 6)})
    assert bench(ev.CommitDone(Seq(2))).acks() == []
    assert bench(ev.CommitDone(Seq(1))).acks() == [1, 2]


def test_strong_productions_go_out_after_their_checkpoint() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, produced(("x", 5), ("y", 6)))
    assert bench.images()[0].produced == [Produced(OUT, OWNER, SequenceNumber(0), ["x", "y"], [b"p", b"p"], [5, 6])]
    assert bench.sent() == []
    (sent,) = bench(ev.CommitDone(Seq(1))).sent()
    assert (sent.target, sent.producer, sent.sequences, sent.keys) == (TARGET, OWNER, [0, 1], ["x", "y"])


def test_user_code_pauses_while_too_many_checkpoints_wait() -> None:
    bench = Bench()
    for number in range(limits.INFLIGHT_LIMIT_CHECKPOINTS):
        bench.run(number + 1, {number: ("k", 5)})
    assert not bench.arrive(99, {99: ("k", 5)}).of(ev.Invoke)
    assert bench(ev.CommitDone(Seq(1))).of(ev.Invoke)


# --- duplicates ---------------------------------------------------------------------------------------------------


def test_a_duplicate_of_something_durable_is_acked_at_once() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)})
    bench(ev.CommitDone(Seq(1)))
    bench.arrive(1, {0: ("k", 5)})
    assert bench.acks() == [1]
    assert not bench.of(ev.Invoke)
    assert bench.core.counters.duplicates == 1


def test_a_duplicate_is_not_acked_before_its_original_is() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)})
    assert bench.arrive(1, {0: ("k", 5)}).acks() == []
    bench(ev.CommitDone(Seq(1)))
    assert 1 in bench.acks()


def test_a_duplicate_is_not_acked_while_its_original_waits_for_room_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing runs then, and nothing is on its way to the store: only the inbox knows that the original is not durable.
    monkeypatch.setattr(limits, "LOG_LIMIT_CHECKPOINTS", 1)
    bench = Bench()
    for number in range(2):
        bench.run(number + 1, {number: ("k", 5)}, wrote("k", b"1"))
    bench(ev.CommitDone(Seq(1)))
    (folded,) = bench.of(ev.Fold)
    bench(ev.CommitDone(Seq(2)))
    bench.arrive(3, {2: ("k", 5)})
    assert bench.arrive(3, {2: ("k", 5)}).acks() == []
    bench(ev.FoldDone(folded.upto))
    bench.load()
    assert bench.invoked(wrote("k", b"1")).acks() == []
    assert 3 in bench(ev.CommitDone(Seq(3))).acks()


def test_of_a_mixed_bundle_only_the_new_part_runs() -> None:
    bench = Bench(recovered(ids=[Delivered(IN, PRODUCER, SequenceNumber(2), SequenceNumber(3))]))
    bench.arrive(4, {1: ("k", 5), 2: ("k", 5), 3: ("k", 5), 4: ("k", 5)})
    (asked,) = bench.of(ev.LookupIds)
    assert (asked.sender, asked.subscription, asked.producer, asked.sequences) == (SENDER, IN, PRODUCER, [2, 3])
    bench(ev.IdsFound(SENDER, {3}))
    assert bench.load().parts[0].sequences == [2, 4]
    assert bench.core.counters.duplicates == 2


def test_what_comes_behind_a_bundle_that_waits_for_the_store_keeps_its_place() -> None:
    # Also under the name of a new owner: one producing key may have sent the first and the last of these.
    bench = Bench(recovered(ids=[Delivered(IN, PRODUCER, SequenceNumber(0), SequenceNumber(3))]))
    bench.arrive(1, {3: ("k", 5)})
    bench.arrive(2, {4: ("k", 6)})
    later = msgspec.structs.replace(bundle(3, {0: ("k", 7)}), producer=ProducerId(PRODUCER + 1))
    bench(ev.BundleArrived(later))
    assert not bench.of(ev.Load)
    assert bench.core.counters.queued == 2
    assert not bench.core.quiet()
    bench(ev.WatermarkMoved(100))
    assert bench.core.reported == 5
    bench(ev.IdsFound(SENDER, {3}))
    assert bench.acks() == [1]
    parts = bench.load().parts
    assert [(part.producer, part.sequences) for part in parts] == [(PRODUCER, [4]), (PRODUCER + 1, [0])]


def test_another_sender_does_not_wait_for_the_store() -> None:
    bench = Bench(recovered(ids=[Delivered(IN, PRODUCER, SequenceNumber(0), SequenceNumber(3))]))
    bench.arrive(1, {3: ("k", 5)})
    other = {"producer": ProducerId(PRODUCER + 1), "sender": IntervalId(SENDER + 1)}
    bench(ev.BundleArrived(msgspec.structs.replace(bundle(1, {0: ("k", 7)}), **other)))
    assert bench.load().parts[0].producer == PRODUCER + 1


def test_each_bundle_of_a_lane_may_have_a_question_of_its_own() -> None:
    bench = Bench(recovered(ids=[Delivered(IN, PRODUCER, SequenceNumber(0), SequenceNumber(9))]))
    for number, sequence in enumerate((3, 8, 12), 1):
        bench.arrive(number, {sequence: (f"k{sequence}", 5)})
    bench(ev.IdsFound(SENDER, {3}))
    assert bench.of(ev.LookupIds)[-1].sequences == [8]
    assert bench.acks() == [1]
    bench(ev.IdsFound(SENDER, set()))
    assert bench.load().parts[0].sequences == [8]
    assert bench.core.counters.lookups == 2


def test_a_frontier_that_comes_while_the_store_is_asked_decides() -> None:
    # The store had collected the id when it was asked: it answered that it has nothing.
    bench = Bench(recovered(ids=[Delivered(IN, PRODUCER, SequenceNumber(0), SequenceNumber(9))]))
    bench.arrive(1, {3: ("k", 5)})
    bench(ev.BundleArrived(bundle(0, {}, frontier=SequenceNumber(4))))
    bench(ev.IdsFound(SENDER, set()))
    assert bench.acks() == [1]
    assert not bench.of(ev.Load)


def test_a_channel_that_is_not_live_is_retired_and_told_to_the_store() -> None:
    stored = [
        Delivered(IN, PRODUCER, SequenceNumber(3), SequenceNumber(9)),
        Delivered(IN, ProducerId(PRODUCER + 1), SequenceNumber(0), SequenceNumber(9)),
    ]
    bench = Bench(recovered(ids=stored), live={(IN, ProducerId(PRODUCER + 1))})
    assert not bench.arrive(1, {12: ("k", 5)}).acks(), "an ack would say that it was consumed"
    bench.effects = bench.core.flush(0)
    assert bench.images()[0].ids == [Ids(IN, PRODUCER, ENDED, [])]


def test_records_that_waited_while_their_producer_was_retired_do_not_bring_its_frontier_back() -> None:
    # Their checkpoint came after the one that had let the store drop the channel, and it said frontier 0.
    bench = Bench()
    bench.arrive(1, {0: ("k", 5)})
    bench(ev.Loaded([]))
    bench.arrive(2, {1: ("l", 5)})
    bench(ev.BundleArrived(bundle(0, {}, frontier=ENDED)))
    images = bench(ev.Invoked(wrote("k", b"1"))).images()
    bench.load()
    images += bench(ev.Invoked(wrote("l", b"1"))).images()
    found = [(ids.frontier, ids.sequences) for image in images for ids in image.ids]
    assert found == [(MAX_TIME, [0]), (MAX_TIME, [1])]


def test_what_was_a_duplicate_when_the_store_was_asked_is_one_when_it_answers() -> None:
    # Its run was sealed in between, and the store had been asked about the other id only: it ran twice.
    bench = Bench(recovered(ids=[Delivered(IN, PRODUCER, SequenceNumber(0), SequenceNumber(0))]))
    folds = []
    for number, sequence in enumerate((2, 4), 1):
        bench.run(number, {sequence: ("k", 5)}, wrote("k", b"1"))
        bench(ev.CommitDone(Seq(number)))
        bench.effects = bench.core.flush(bench.now)
        folds += bench.of(ev.Fold)
        if number == 1:
            bench(ev.FoldDone(folds[0].upto))
    bench.now += limits.ID_BUCKET_US
    assert [lookup.sequences for lookup in bench.arrive(9, {0: ("k", 5), 4: ("k", 5)}).of(ev.LookupIds)] == [[0]]
    bench(ev.FoldDone(folds[1].upto))
    bench(ev.IdsFound(SENDER, set()))
    assert [part.sequences for part in bench.load().parts] == [[0]]


def test_ids_are_sealed_by_the_fold_after_the_bucket_turned() -> None:
    bench = Bench()
    for number in range(3):
        bench.run(number + 1, {2 * number: ("k", 5)}, wrote("k", b"1"))
        bench(ev.CommitDone(Seq(number + 1)))
        bench.effects = bench.core.flush(bench.now)
        (fold,) = bench.of(ev.Fold)
        bench.now += limits.ID_BUCKET_US
        bench(ev.FoldDone(fold.upto))
    assert [lookup.sequences for lookup in bench.arrive(9, {4: ("k", 5)}).of(ev.LookupIds)] == [[4]]
    assert bench.core.inbox_bytes > 0, "its sender has no credit for it again until it is here"
    assert ("record", 5, "of which the store is asked whether it came before") in bench.core.blame()
    bench(ev.IdsFound(SENDER, {4}))
    assert bench.acks() == [9]
    assert bench.core.inbox_bytes == 0
    assert not [kind for kind, _, _ in bench.core.blame() if kind == "record"]


def test_without_exactly_once_nothing_is_deduplicated_or_stored() -> None:
    bench = Bench(exactly_once=False)
    bench.run(1, {0: ("k", 5)}, wrote("k", b"1"))
    assert bench.images()[0].ids == []
    bench.arrive(1, {0: ("k", 5)})
    assert bench.of(ev.Invoke)


# --- ids of outside clients ---------------------------------------------------------------------------------------

SLACK = 4_000


def outside(number: int, *ids: bytes, first: int = 0, sender: IntervalId = SENDER) -> ev.BundleArrived:
    """A bundle whose records have these ids."""
    made = bundle(number, {first + i: (f"k{i}", 5 + i) for i in range(len(ids))})
    producer = ProducerId(PRODUCER + sender)
    return ev.BundleArrived(msgspec.structs.replace(made, outside=list(ids), sender=sender, producer=producer))


def test_a_row_whose_outside_id_was_taken_is_recorded_as_delivered_and_not_run() -> None:
    bench = Bench(slacks={IN: SLACK})
    bench(outside(1, b"a", b"b", b"a"))
    work = bench.load()
    assert (work.parts[0].keys, work.parts[0].outside) == (["k0", "k1"], [b"a", b"b"])
    assert bench.invoked().acks() == []
    (image,) = bench.images()
    assert image.ids == [Ids(IN, ProducerId(PRODUCER + SENDER), SequenceNumber(0), sequence_numbers([0, 1, 2]))]
    assert image.outside == [OutsideIdWrites(IN, 5_000, [b"a", b"b"])]
    assert bench(ev.CommitDone(Seq(1))).acks() == [1]
    assert bench.core.counters.repeated == 1
    assert bench.core.counters.duplicates == 0


def test_a_bundle_of_which_every_row_was_taken_commits_its_ids_before_its_ack() -> None:
    # Acked without, it would come again when the slack has passed, and be taken.
    bench = Bench(slacks={IN: SLACK})
    bench(outside(1, b"a"))
    bench.load()
    bench.invoked()
    bench(outside(9, b"a", sender=IntervalId(SENDER + 1)))
    assert bench.acks() == []
    (image,) = bench.images()
    assert (image.ids, image.outside) == (
        [Ids(IN, ProducerId(PRODUCER + SENDER + 1), SequenceNumber(0), sequence_numbers([0]))],
        [],
    )
    assert bench(ev.CommitDone(Seq(1))).acks() == [1]
    assert bench(ev.CommitDone(Seq(2))).acks() == [9]


def test_what_runs_in_pieces_records_the_dropped_rows_with_its_end() -> None:
    bench = Bench(slacks={IN: SLACK}, work_limit_records=1)
    bench(outside(1, b"a", b"a", b"b"))
    bench.load()
    (first,) = bench.invoked().images()
    assert (first.ids[0].sequences, first.outside[0].ids) == ([0], [b"a"])
    bench.load()
    (second,) = bench.invoked().images()
    assert (second.ids[0].sequences, second.outside[0].ids) == ([2, 1], [b"b"])


def test_after_a_restart_an_outside_id_is_asked_for_and_the_filter_is_filled_meanwhile() -> None:
    bench = Bench(recovered(outside=[OutsideBucket(IN, 5_000, 2)]), slacks={IN: SLACK})
    (read,) = bench.of(ev.ReadOutsideIds)
    assert (read.subscription, read.expires, read.after) == (IN, 5_000, b"")
    bench(outside(1, b"a", b"b"))
    (asked,) = bench.of(ev.LookupIds)
    assert (asked.sequences, asked.outside, asked.now) == ([], [b"a", b"b"], 0)
    bench(ev.IdsFound(SENDER, set(), {b"a"}))
    assert bench.load().parts[0].outside == [b"b"]
    bench(ev.OutsideIdsRead(IN, 5_000, [b"a", b"x"]))
    assert not bench(outside(2, b"c", first=9)).of(ev.LookupIds)
    assert bench(outside(3, b"x", first=19)).of(ev.LookupIds)[0].outside == [b"x"]


def test_what_has_expired_is_deleted_by_an_idle_interval_too() -> None:
    bench = Bench(recovered(outside=[OutsideBucket(IN, 5_000, 2)]), slacks={IN: SLACK})
    assert min(alarm.at for alarm in bench.of(ev.SetAlarm)) == 5_000
    bench.now = 5_000
    bench(ev.AlarmRang())
    bench.now += limits.IDLE_RECORD_DELAY_US
    (image,) = bench(ev.AlarmRang()).images()
    assert image.outside == [OutsideIdWrites(IN, bench.now, [])]


def test_under_snapshots_an_expired_bucket_does_not_ring_until_the_next_epoch() -> None:
    """Its ids are deleted with an epoch.  Until then the alarm rang at once, again and again: a process took a whole core."""
    bench = Bench(recovered(outside=[OutsideBucket(IN, 5_000, 2)]), slacks={IN: SLACK}, label=3)
    bench.now = 5_000
    assert bench(ev.AlarmRang()).of(ev.SetAlarm) == []


def test_without_exactly_once_outside_ids_count_for_nothing() -> None:
    bench = Bench(slacks={IN: SLACK}, exactly_once=False)
    bench(outside(1, b"a", b"a"))
    assert bench.load().parts[0].keys == ["k0", "k1"]
    assert bench.invoked(wrote("k0", b"1")).images()[0].outside == []


# --- weak productions ---------------------------------------------------------------------------------------------


def test_weak_productions_go_first_and_the_checkpoint_waits_for_their_acks() -> None:
    bench = Bench(productions="weak")
    bench.arrive(1, {0: ("k", 5)})
    bench.load()
    bench.invoked(produced(("x", 5)))
    (sent,) = bench.sent()
    assert not bench.of(ev.Commit)
    assert not bench.acks()
    bench(ev.AckArrived(sent.number))
    (image,) = bench.images()
    assert image.produced == []  # acked: nothing of it need ever be sent again
    assert bench(ev.CommitDone(Seq(1))).acks() == [1]


def test_a_straggler_makes_the_checkpoint_store_its_production() -> None:
    bench = Bench(productions="weak", straggler_delay_us=1_000)
    bench.arrive(1, {0: ("k", 5)})
    bench.load()
    bench.invoked(produced(("x", 5)))
    assert 1_000 in [alarm.at for alarm in bench.of(ev.SetAlarm)]
    bench.now = 1_000
    (image,) = bench(ev.AlarmRang()).images()
    assert image.produced == [Produced(OUT, OWNER, SequenceNumber(0), ["x"], [b"p"], [5])]
    assert bench(ev.CommitDone(Seq(1))).acks() == [1]
    assert bench.core.blame()[0][0] != "uncommitted checkpoint"


def test_a_weak_checkpoint_leaves_with_its_last_ack_also_while_hooks_run() -> None:
    bench = Bench(productions="weak")
    bench.arrive(1, {0: ("k", 5)})
    bench.load()
    (sent,) = bench.invoked(produced(("x", 5))).sent()
    bench.arrive(2, {1: ("j", 6)})
    bench.load()
    assert bench.images() == []
    assert [image.ids[0].sequences for image in bench(ev.AckArrived(sent.number)).images()] == [[0]]


# --- recovery and fencing -----------------------------------------------------------------------------------------


def test_what_an_earlier_owner_left_unacked_is_sent_again_unchanged() -> None:
    old = msgspec.structs.replace(bundle(0, {3: ("x", 5), 4: ("y", 6)}), subscription=OUT, producer=ProducerId(90))
    bench = Bench(recovered(productions=[old]))
    (sent,) = bench.sent()
    assert (sent.producer, sent.sequences, sent.values) == (90, [3, 4], old.values)
    assert not bench.core.quiet()


def test_an_interval_has_settled_when_all_is_acked_that_an_earlier_version_has_left_on_a_stream_that_is_not_listed() -> (
    None
):
    first = msgspec.structs.replace(bundle(0, {3: ("x", 5)}), subscription=OUT, producer=ProducerId(90))
    second = msgspec.structs.replace(bundle(0, {4: ("y", 6)}), subscription=OUT, producer=ProducerId(91))
    bench = Bench(recovered(productions=[first, second]), outputs=())
    numbers = [sent.number for sent in bench.sent()]
    assert len(numbers) == 2
    said = [bench(ev.AckArrived(number)).of(ev.Settled) for number in (numbers[1], numbers[1], numbers[0], numbers[0])]
    assert said == [[], [], [ev.Settled()], []]


@pytest.mark.parametrize("loading", [True, False], ids=["while keys are loaded", "while hooks run"])
@pytest.mark.parametrize(
    ("kind", "event"),
    [("watermark", ev.WatermarkMoved(100)), ("wall", ev.AlarmRang()), ("wall", ev.WatermarkMoved(3))],
)
def test_one_invocation_runs_at_a_time_whatever_is_due_meanwhile(kind: str, event: ev.Event, loading: bool) -> None:
    bench = Bench(recovered(timers=[("j", "t", kind, 50)]))
    bench.arrive(1, {0: ("k", 5)})
    if not loading:
        bench.load()
    bench.now = 100
    for again in (event, ev.AckArrived(99), event):
        bench(again)
        assert (bench.of(ev.Load), bench.of(ev.Invoke)) == ([], [])
    if loading:
        bench(ev.Loaded([]))
        assert [part.keys for part in bench.load().parts] == [["k"]]
    bench.invoked()
    for _ in range(2):  # with what has come, and when that is durable
        if (bench.of(ev.Load), bench.of(ev.Invoke)) == ([], []):
            bench(ev.CommitDone(Seq(1)))
    assert [timer.key for timer in bench.load().timers] == ["j"]


def end_of_a_hand_over(bench: Bench) -> None:
    """All that a core has committed is recorded and folded."""
    bench.effects = bench.core.flush(bench.now)
    for commit in bench.of(ev.Commit):
        bench(ev.CommitDone(commit.write.seq))
    for fold in bench.of(ev.Fold):
        bench(ev.FoldDone(fold.upto))


def test_what_waits_in_a_closed_core_does_not_run_and_nobody_waits_for_it() -> None:
    """An interval that is hot has always something to do, and would never be handed over."""
    bench = Bench()
    bench.arrive(1, {0: ("k", 5)})
    bench.load()
    bench.arrive(2, {1: ("k", 6)})
    bench.core.close()
    assert not bench.core.settled(), "hooks run"
    assert not bench.invoked(wrote("k", b"1")).of(ev.Invoke)
    assert not bench.core.settled(), "what they wrote is not durable"
    assert bench(ev.CommitDone(Seq(1))).acks() == [1]
    end_of_a_hand_over(bench)
    assert bench.core.settled(acked=True)


def test_a_closed_core_records_the_acks_of_what_it_has_sent_although_something_waits() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, produced(("x", 5)))
    (sent,) = bench(ev.CommitDone(Seq(1))).sent()
    bench.core.close()
    bench.arrive(2, {1: ("k", 6)})
    bench(ev.AckArrived(sent.number))
    assert not bench.core.settled(acked=True)
    end_of_a_hand_over(bench)
    assert bench.core.settled(acked=True)


def test_an_interval_is_not_quiet_while_a_record_waits_for_room() -> None:
    """It waits in memory only: nothing runs, and nothing is on its way to the store."""
    bench = Bench(recovered(timers=[("w", "look", "wall", 50)]))
    bench.run(1, {0: ("k", 5)}, outcome(processed=1, full=True))
    end_of_a_hand_over(bench(ev.CommitDone(Seq(1))))
    end_of_a_hand_over(bench)
    assert bench.core.quiet()
    bench.arrive(2, {1: ("k", 6)})
    assert (bench.of(ev.Load), bench.of(ev.Invoke)) == ([], [])
    assert not bench.core.quiet()
    assert not bench.core.settled()


def test_an_interval_rests_from_the_end_of_its_last_hooks() -> None:
    """Hooks may take long, and a record of frontiers between a checkpoint's number and its row would be one too many."""
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, produced(("x", 5)))
    (sent,) = bench(ev.CommitDone(Seq(1))).sent()
    bench.arrive(2, {1: ("k", 6)})
    bench.load()
    for bench.now in (0, limits.IDLE_RECORD_DELAY_US):
        assert bench(ev.WatermarkMoved(bench.now + 1)).of(ev.Commit) == []
        bench(ev.AckArrived(sent.number))
    assert [commit.write.seq for commit in bench.invoked().of(ev.Commit)] == [2]


def test_weak_productions_of_an_interval_that_sends_to_nobody_make_no_difference() -> None:
    """It waits for no acks, so there is no reason to have more on its way to the store."""
    bench = Bench(productions="weak", outputs=())
    for number in range(limits.INFLIGHT_LIMIT_CHECKPOINTS):
        bench.run(number + 1, {number: ("k", 5)})
    assert not bench.arrive(99, {99: ("k", 5)}).of(ev.Invoke)
    assert bench(ev.CommitDone(Seq(1))).of(ev.Invoke)


def test_a_closed_core_fires_no_timer() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, outcome(timers=set_timer("k", "t", 10)))
    bench(ev.CommitDone(Seq(1)))
    bench.core.close()
    assert not bench(ev.WatermarkMoved(20)).of(ev.Invoke)
    end_of_a_hand_over(bench)
    assert bench.core.settled()


def test_under_snapshots_a_core_that_is_closed_goes_on_because_a_barrier_waits_for_all_that_came_before_it() -> None:
    bench = Bench(label=3)
    bench.core.close()
    bench(ev.BundleArrived(msgspec.structs.replace(bundle(1, {0: ("k", 5)}), epoch=3)))
    assert bench.load().parts[0].sequences == [0]


def test_fenced_it_is_silent_for_ever() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, produced(("x", 5)))
    (halt,) = bench(ev.WriteFenced()).of(ev.Halt)
    assert "'c' was fenced" in halt.reason
    assert bench(ev.CommitDone(Seq(1))).effects == []
    assert bench.arrive(2, {1: ("k", 5)}).effects == []
    assert bench.core.flush(0) == []


def test_a_foreign_event_is_a_bug() -> None:
    with pytest.raises(AssertionError, match="Advanced"):
        Bench()(ev.Advanced(1, False))


# --- timers -------------------------------------------------------------------------------------------------------


def set_timer(
    key: str, tag: str, at: int | None, kind: str = "watermark"
) -> dict[str, dict[tuple[str, str], int | None]]:
    return {key: {(kind, tag): at}}


def test_a_timer_fires_once_when_the_watermark_reaches_it() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, outcome(timers=set_timer("k", "t", 10)))
    assert bench.images()[0].timers.timestamps == [10]
    bench(ev.CommitDone(Seq(1)))
    assert not bench(ev.WatermarkMoved(9)).of(ev.Invoke)
    bench(ev.WatermarkMoved(10))
    (timer,) = bench.load().timers
    assert (timer.key, timer.tag, timer.timestamp, timer.kind) == ("k", "t", 10, "watermark")
    bench.invoked()
    assert bench.images()[0].timers.timestamps == [None]
    assert not bench(ev.WatermarkMoved(20)).of(ev.Invoke)


def test_a_timer_of_an_earlier_owner_fires_without_new_input() -> None:
    bench = Bench(recovered(timers=[("k", "t", "watermark", 10), ("k", "w", "wall", 50)]))
    bench(ev.WatermarkMoved(10))
    assert [t.tag for t in bench.load().timers] == ["t"]
    bench.invoked()
    bench.now = 50
    bench(ev.AlarmRang())
    assert [t.tag for t in bench.load().timers] == ["w"]


def test_a_wall_timer_asks_to_be_woken() -> None:
    assert [alarm.at for alarm in Bench(recovered(timers=[("k", "w", "wall", 50)])).of(ev.SetAlarm)] == [50]


def test_one_alarm_is_asked_for_until_it_has_rung_or_an_earlier_one_is_wanted() -> None:
    bench = Bench(recovered(timers=[("j", "t", "wall", 5_000)]))
    assert [alarm.at for alarm in bench.of(ev.SetAlarm)] == [5_000]
    assert bench(ev.WatermarkMoved(10)).of(ev.SetAlarm) == []
    bench.run(1, {0: ("k", 5)}, outcome(timers={"k": {("wall", "t"): 3_000}}))
    assert [alarm.at for alarm in bench.of(ev.SetAlarm)] == [3_000]
    bench.now = 2_000  # it may ring too early
    assert [alarm.at for alarm in bench(ev.AlarmRang()).of(ev.SetAlarm)] == [3_000]


def test_a_wall_timer_far_away_does_not_put_off_the_end_of_a_rest() -> None:
    bench = Bench(recovered(timers=[("j", "t", "wall", 100 * limits.IDLE_RECORD_DELAY_US)]))
    bench.run(1, {0: ("k", 5)})
    bench(ev.CommitDone(Seq(1)))
    assert [alarm.at for alarm in bench.of(ev.SetAlarm)] == [limits.IDLE_RECORD_DELAY_US]


def test_how_long_timers_have_set_each_other_goes_with_them_until_something_else_sets_them() -> None:
    bench = Bench(recovered(timers=[("k", "t", "watermark", 1)]))
    bench(ev.WatermarkMoved(10))
    assert bench.load().stalls == {}
    stalls = {("k", "watermark", "t"): Stall(7, 1, MIN_TIME)}
    bench.invoked(outcome(timers=set_timer("k", "t", 1), stalls=stalls))
    assert bench.load().stalls == stalls
    bench.invoked(outcome(timers=set_timer("k", "t", 20), stalls=stalls))
    bench.arrive(1, {0: ("k", 30)})
    bench.load()
    bench.invoked(outcome(processed=1, timers=set_timer("k", "t", 20)))
    bench(ev.WatermarkMoved(30))
    assert bench.load().stalls == {}


# --- watermark ----------------------------------------------------------------------------------------------------


def test_the_reported_watermark_never_passes_what_is_still_to_be_done() -> None:
    bench = Bench()
    bench.arrive(1, {0: ("k", 5)})
    assert bench(ev.WatermarkMoved(100)).reported() == [5]  # the record waits for its state
    bench(ev.Loaded([]))
    bench.invoked(produced(("x", 7)))
    assert bench.reported() == []
    assert bench(ev.CommitDone(Seq(1))).reported() == [7]  # committed, but its production is out
    assert bench(ev.AckArrived(bench.sent()[0].number)).reported() == [100]


def test_timers_and_holds_keep_the_watermark() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, outcome(timers=set_timer("k", "t", 60), holds={"k": 20}))
    bench(ev.CommitDone(Seq(1)))
    assert bench(ev.WatermarkMoved(50)).reported() == [20]
    assert [(kind, at) for kind, at, _ in bench.core.blame()[:2]] == [("hold", 20), ("input watermark", 50)]
    bench.run(2, {1: ("k", 55)}, outcome(holds={"k": None}))
    assert bench(ev.CommitDone(Seq(2))).reported() == [50]
    assert bench(ev.WatermarkMoved(80)).reported() == [60]  # the timer may still produce at its time
    bench.load()
    bench.invoked()
    assert bench(ev.CommitDone(Seq(3))).reported() == [80]


def test_an_interval_begins_at_the_watermark_that_earlier_hooks_have_seen() -> None:
    """Else a hook would see an earlier one than the hook before it."""
    core = Bench(recovered(watermark=20)).core
    again = IntervalCore(core.config, recovered(watermark=20))
    again.start(0, input_watermark=30)
    assert (core.watermark, again.watermark) == (20, 30)


def test_watermarks_do_not_go_back() -> None:
    bench = Bench(recovered(watermark=30))
    assert bench(ev.WatermarkMoved(20)).reported() == []
    assert bench(ev.WatermarkMoved(40)).reported() == [40]
    assert bench(ev.WatermarkMoved(35)).reported() == []
    assert bench.core.watermark == 40


# --- expiry -------------------------------------------------------------------------------------------------------


def expire(bench: Bench, at: int) -> list[str]:
    bench(ev.WatermarkMoved(at))
    return [key for image in bench.images() for key in image.forgotten]


def test_a_key_is_forgotten_when_its_time_has_passed() -> None:
    bench = Bench(expire_after=80)
    bench.run(1, {0: ("k", 5)}, wrote("k", b"1"))
    bench(ev.CommitDone(Seq(1)))
    assert expire(bench, 5 + 80) == []
    assert expire(bench, 5 + 80 + 10) == ["k"]  # an eighth of slack
    bench(ev.CommitDone(Seq(2)))
    assert bench.core.counters.expired == 1
    bench.arrive(2, {1: ("k", 200)})
    assert "k" not in bench.load().values["c"]


def test_a_key_with_a_pending_timer_lives_on() -> None:
    bench = Bench(expire_after=80)
    done = wrote("k", b"1")
    done.timers = set_timer("k", "t", 500)
    bench.run(1, {0: ("k", 5)}, done)
    bench(ev.CommitDone(Seq(1)))
    assert expire(bench, 499) == []


def test_the_end_of_time_expires_nothing() -> None:
    bench = Bench(expire_after=80)
    bench.run(1, {0: ("k", 5)}, wrote("k", b"1"))
    bench(ev.CommitDone(Seq(1)))
    assert expire(bench, MAX_TIME) == []


# --- quarantine ---------------------------------------------------------------------------------------------------


def test_later_records_of_a_poisoned_key_queue_up_behind_it() -> None:
    bench = Bench()
    bench.run(1, {0: ("bad", 5)}, failed("bad", 5))
    bench(ev.CommitDone(Seq(1)))
    bench.arrive(2, {1: ("bad", 6), 2: ("good", 6)})
    assert bench.load().parts[0].keys == ["good"]
    bench.invoked()
    (image,) = bench.images()
    assert [(e.key, e.sequence) for e in image.quarantined] == [("bad", 1)]
    assert image.ids[0].sequences == [1, 2]  # consumed: in the key's line, not in the sender's


def test_records_that_make_too_much_together_run_again_and_fewer_at_a_time() -> None:
    """Nothing of the first time counts: neither ids and acks, nor what was diverted to a quarantine."""
    bench = Bench()
    bench.run(1, {0: ("bad", 5)}, failed("bad", 5))
    bench(ev.CommitDone(Seq(1)))
    bench.arrive(2, {1: ("bad", 6), 2: ("a", 6), 3: ("b", 7), 4: ("bad", 8)})
    assert bench.load().parts[0].keys == ["a", "b"]
    bench.invoked(outcome(fits=1))
    assert (bench.images(), bench.acks()) == ([], [])
    ran, images = [], []
    while bench.of(ev.Invoke):
        ran.append([key for part in bench.load().parts for key in part.keys])
        bench.invoked(outcome(processed=1))
        images += bench.images()
    assert ran == [[], ["a", "b"], []]
    assert [ids.sequences for image in images for ids in image.ids] == [[1], [2, 3], [4]]
    assert [(e.key, e.sequence) for image in images for e in image.quarantined] == [("bad", 1), ("bad", 4)]
    for seq in (2, 3, 4):
        bench(ev.CommitDone(Seq(seq)))
    assert bench.acks() == [2]
    assert bench.core.inbox_bytes == 0


def entry(sequence: SequenceNumber) -> QuarantineEntry:
    return QuarantineEntry("bad", IN, PRODUCER, sequence, b"v", 5)


def fold(bench: Bench) -> None:
    for effect in bench.of(ev.Fold):
        bench(ev.FoldDone(effect.upto))


def test_a_redrive_drains_the_line_and_releases_the_key() -> None:
    bench = Bench(recovered(quarantined=["bad"]))
    (fetch,) = bench(ev.RedriveAsked(["bad"])).of(ev.FetchQuarantine)
    assert fetch.keys == ["bad"]
    bench(ev.QuarantineFetched([entry(SequenceNumber(1)), entry(SequenceNumber(2))]))
    assert [e.sequence for e in bench.load().redrive] == [1, 2]
    bench.invoked(outcome(redriven={"bad": 2}))
    (image,) = bench.images()
    assert (image.redriven, image.released) == ([("bad", 2)], ["bad"])
    bench.arrive(2, {3: ("bad", 6)})
    bench.invoked()
    assert bench.images()[0].ids[0].sequences == [3]
    assert bench.images()[0].quarantined == []


def test_a_request_for_a_key_that_is_not_in_quarantine_is_answered_by_its_release() -> None:
    bench = Bench()
    bench(ev.RedriveAsked(["good"]))
    assert not bench.of(ev.FetchQuarantine)
    assert bench.images()[0].released == ["good"], "or the request would stay for ever"


def test_a_line_that_is_longer_than_one_read_is_read_again_when_that_is_folded() -> None:
    bench = Bench(recovered(quarantined=["bad"]))
    bench(ev.RedriveAsked(["bad"]))
    bench(ev.QuarantineFetched([entry(SequenceNumber(1)), entry(SequenceNumber(2))], more=True))
    bench.load()
    bench.invoked(outcome(redriven={"bad": 2}))
    (image,) = bench.images()
    assert (image.redriven, image.released) == ([("bad", 2)], [])
    assert not bench.of(ev.FetchQuarantine)
    bench(ev.CommitDone(Seq(1)))
    fold(bench)
    (fetch,) = bench.of(ev.FetchQuarantine)
    assert fetch.keys == ["bad"]
    bench(ev.QuarantineFetched([]))
    assert bench.images()[0].released == ["bad"]


def test_a_line_that_grows_while_it_is_redriven_is_not_released() -> None:
    bench = Bench(recovered(quarantined=["bad"]))
    bench(ev.RedriveAsked(["bad"]))
    bench.arrive(1, {0: ("bad", 5)}).load()  # while the line is being read
    bench.invoked()
    assert [e.sequence for e in bench.images()[0].quarantined] == [0]
    bench(ev.QuarantineFetched([entry(SequenceNumber(1))]))
    bench.load()
    bench.invoked(outcome(redriven={"bad": 1}))
    (image,) = bench.images()
    assert (image.redriven, image.released) == ([("bad", 1)], [])


def test_many_lines_are_read_and_redriven_together() -> None:
    """Of three, the first is done, the second fails half way, and of the third it is not known whether that is all."""

    def of(key: str, count: int) -> list[QuarantineEntry]:
        return [QuarantineEntry(key, IN, PRODUCER, SequenceNumber(i), b"v", 5) for i in range(count)]

    bench = Bench(recovered(quarantined=["a", "b", "c", "d"]))
    (fetch,) = bench(ev.RedriveAsked(["d", "c", "b", "a"])).of(ev.FetchQuarantine)
    assert fetch.keys == ["a", "b", "c", "d"]
    bench(ev.QuarantineFetched([*of("a", 1), *of("b", 2), *of("c", 2)], more=True))
    assert [e.key for e in bench.load().redrive] == ["a", "b", "b", "c", "c"]
    bench.invoked(outcome(redriven={"a": 1, "b": 1, "c": 2}))
    (image,) = bench.images()
    assert (image.redriven, image.released) == ([("a", 1), ("b", 1), ("c", 2)], ["a"])
    (fetch,) = bench.of(ev.FetchQuarantine)
    assert fetch.keys == ["d"]  # b has failed, c is not folded yet
    assert bench.core.counters.redriven == 0
    bench(ev.QuarantineFetched(of("d", 1)))
    bench.load()
    bench.invoked(outcome(redriven={"d": 1}))
    bench(ev.CommitDone(Seq(1)))
    bench(ev.CommitDone(Seq(2)))
    assert bench.core.counters.redriven == 5
    fold(bench)
    (fetch,) = bench.of(ev.FetchQuarantine)
    assert fetch.keys == ["c"]


def test_what_a_redrive_costs_does_not_grow_with_how_often_it_is_asked_for() -> None:
    """20,000 keys, asked for again and again: one read and one checkpoint for each 256."""
    keys = [f"{i:05}" for i in range(20_000)]
    bench = Bench(recovered(quarantined=keys))
    reads = 0
    began = time.process_time()
    fetches = bench(ev.RedriveAsked(keys)).of(ev.FetchQuarantine)
    while fetches:
        (fetch,) = fetches
        reads += 1
        bench(ev.RedriveAsked(keys))
        assert not bench.of(ev.FetchQuarantine)
        bench(
            ev.QuarantineFetched([QuarantineEntry(key, IN, PRODUCER, SequenceNumber(0), b"v", 5) for key in fetch.keys])
        )
        bench.load()
        bench.invoked(outcome(redriven=dict.fromkeys(fetch.keys, 1)))
        fetches = bench.of(ev.FetchQuarantine)
        (commit,) = bench.of(ev.Commit)
        assert len(commit.write.payload) < 40_000
        bench(ev.CommitDone(commit.write.seq))
        fold(bench)
    assert reads == -(-len(keys) // limits.REDRIVE_KEYS)
    assert time.process_time() - began < 10


def test_a_redrive_that_fails_half_way_does_not_fetch_again_what_it_has_done() -> None:
    """Asked again before its checkpoint is folded, the store would hand out the first element a second time."""
    bench = Bench(recovered(quarantined=["bad"]))
    bench(ev.RedriveAsked(["bad"]))
    bench(ev.QuarantineFetched([entry(SequenceNumber(1)), entry(SequenceNumber(2))]))
    bench.load()
    bench.invoked(outcome(redriven={"bad": 1}))
    assert bench.images()[0].redriven == [("bad", 1)]
    assert not bench(ev.RedriveAsked(["bad"])).of(ev.FetchQuarantine)
    bench(ev.CommitDone(Seq(1)))
    assert not bench.of(ev.FetchQuarantine)
    fold(bench)
    assert bench.of(ev.FetchQuarantine)


def test_a_redrive_of_a_healthy_key_does_nothing() -> None:
    assert not Bench()(ev.RedriveAsked(["good"])).of(ev.FetchQuarantine)


def test_a_quarantine_that_holds_keeps_the_watermark() -> None:
    bench = Bench(quarantine_holds=True)
    bench.run(1, {0: ("bad", 5)}, failed("bad", 5))
    bench(ev.CommitDone(Seq(1)))
    assert bench(ev.WatermarkMoved(50)).reported() == [5]


# --- folds, acks, the end -----------------------------------------------------------------------------------------


def held_and_failed(**settings: Any) -> Bench:
    """A key sets a hold at 10 and a timer at 30, and then fails at 50; the input is read up to 100."""
    bench = Bench(**settings)
    bench.run(1, {0: ("bad", 10)}, outcome(holds={"bad": 10}, timers=set_timer("bad", "t", 30)))
    bench(ev.CommitDone(Seq(1)))
    bench.run(2, {1: ("bad", 50)}, failed("bad", 50, SequenceNumber(1)))
    bench(ev.WatermarkMoved(100))
    return bench


def test_the_hold_of_a_quarantined_key_does_not_count_once_that_is_durable() -> None:
    bench = held_and_failed()
    assert bench.core.reported == 10  # a crash now would bring it back
    bench(ev.CommitDone(Seq(2)))
    assert bench.core.reported == 100


def test_a_quarantine_that_holds_keeps_the_keys_own_hold_too() -> None:
    bench = held_and_failed(quarantine_holds=True)
    bench(ev.CommitDone(Seq(2)))
    assert bench.core.reported == 10
    assert [blamed[0] for blamed in bench.core.blame()] == ["hold", "input watermark"]


def test_a_redriven_hook_has_its_hold_and_may_end_it() -> None:
    bench = held_and_failed()
    bench(ev.CommitDone(Seq(2)))
    (fold,) = bench.core.flush(0)[-1:]
    assert isinstance(fold, ev.Fold)
    bench(ev.FoldDone(fold.upto))
    bench(ev.RedriveAsked(["bad"]))
    bench(ev.QuarantineFetched([QuarantineEntry("bad", IN, PRODUCER, SequenceNumber(1), b"v", 50)]))
    assert bench.load().holds == {"bad": 10}
    bench.invoked(outcome(holds={"bad": None}, redriven={"bad": 1}))
    assert (bench.images()[0].holds.keys, bench.images()[0].holds.timestamps) == (["bad"], [None])
    assert dict(bench.core._keyed._holds.all) == {}


def test_after_the_release_a_hold_counts_again() -> None:
    bench = Bench(recovered(quarantined=["bad"]))
    bench.core._keyed._holds.set("bad", 10)
    bench(ev.WatermarkMoved(5))
    bench(ev.RedriveAsked(["bad"]))
    bench(ev.QuarantineFetched([]))
    bench(ev.CommitDone(Seq(1)))
    bench(ev.WatermarkMoved(100))
    assert bench.core.reported == 10


def test_a_flush_folds_everything_and_then_it_is_quiet() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, wrote("k", b"1"))
    bench(ev.CommitDone(Seq(1)))
    assert not bench.core.quiet()
    bench.effects = bench.core.flush(0)
    (folded,) = bench.of(ev.Fold)
    assert (folded.upto, len(folded.images)) == (1, 1)
    bench(ev.FoldDone(Seq(1)))
    assert bench.core.quiet()


def test_an_idle_interval_records_its_acks_durably_and_then_tells_the_frontier() -> None:
    bench = Bench()
    bench.run(1, {0: ("k", 5)}, produced(("x", 5)))
    (sent,) = bench(ev.CommitDone(Seq(1))).sent()
    bench(ev.AckArrived(sent.number))
    assert not bench.of(ev.Commit)
    bench.now = limits.IDLE_RECORD_DELAY_US
    (image,) = bench(ev.AlarmRang()).images()
    assert [(a.producer, a.sequences) for a in image.acked] == [(OWNER, [0])]
    seq = bench.of(ev.Commit)[0].write.seq
    bench(ev.CommitDone(seq))
    notes = bench.sent()
    for _ in range(5):
        if notes:
            break
        fold(bench)
        bench.now += limits.IDLE_RECORD_DELAY_US
        notes = bench(ev.AlarmRang()).sent()
    assert [(note.frontier, note.sequences, note.number) for note in notes] == [(1, [], 0)]


def test_what_is_due_at_the_start_runs_under_the_watermark_that_was_persisted() -> None:
    # Under none at all a wall timer could produce behind it, and one that is quarantined held the watermark for ever.
    bench = Bench(recovered(timers=[("k", "t", "wall", -1)], watermark=70), quarantine_holds=True)
    assert bench.load().watermark == 70


def test_many_checkpoints_start_a_fold_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 3)
    bench = Bench()
    for number in range(3):
        bench.run(number + 1, {number: ("k", 5)}, wrote("k", b"1"))
        assert not bench.of(ev.Fold)
        bench(ev.CommitDone(Seq(number + 1)))
    (folded,) = bench.of(ev.Fold)
    assert folded.upto == 3


def test_user_code_pauses_while_the_log_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOG_LIMIT_CHECKPOINTS", 1)
    bench = Bench()
    for number in range(2):
        bench.run(number + 1, {number: ("k", 5)}, wrote("k", b"1"))
    bench(ev.CommitDone(Seq(1)))
    (folded,) = bench.of(ev.Fold)
    bench(ev.CommitDone(Seq(2)))
    assert not bench.arrive(3, {2: ("k", 5)}).of(ev.Invoke)
    assert bench(ev.FoldDone(folded.upto)).of(ev.Invoke)


def test_user_code_pauses_while_too_many_keys_are_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UNFOLDED_LIMIT_KEYS", 2)
    bench = Bench()
    bench.run(1, {0: ("a", 5)}, wrote("a", b"1"))
    assert not bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    bench.run(2, {1: ("a", 5)}, wrote("a", b"2"))  # the same key once more
    assert not bench(ev.CommitDone(Seq(2))).of(ev.Fold)
    bench.run(3, {2: ("b", 5)}, wrote("b", b"1"))
    (folded,) = bench.of(ev.Fold)
    assert folded.upto == 2
    assert not bench.arrive(4, {3: ("b", 5)}).of(ev.Invoke)
    assert bench(ev.FoldDone(Seq(2))).of(ev.Invoke)


def test_what_was_absent_when_it_was_loaded_is_folded_as_new_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    bench = Bench()
    bench.arrive(1, {0: ("a", 1), 1: ("b", 1), 2: ("c", 1)})
    bench.load([KeyRows("b", {("c", ""): b"1"}), KeyRows("c", {}, {("watermark", "t"): 9})])
    bench.invoked(InvocationOutcome({"c": dict.fromkeys("abc", b"2")}))
    (folded,) = bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    assert folded.fresh == {"a", "c"}
    bench.run(2, {3: ("a", 1)}, wrote("a", b"3"))
    bench(ev.FoldDone(Seq(1)))
    (folded,) = bench(ev.CommitDone(Seq(2))).of(ev.Fold)
    assert folded.fresh == set()


def test_keys_that_no_hook_has_had_are_not_asked_of_a_blank_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", 1)
    bench = Bench(msgspec.structs.replace(recovered(), blank=True), cache_limit_bytes=1)
    (run,) = bench.arrive(1, {0: ("b", 1), 1: ("a", 1)}).of(ev.Invoke)
    assert run.work.parts[0].keys == ["b", "a"]
    assert not bench.of(ev.Load)
    bench.invoked(InvocationOutcome({"c": dict.fromkeys("ab", b"2")}))
    (folded,) = bench(ev.CommitDone(Seq(1))).of(ev.Fold)
    assert [*folded.fresh] == ["a", "b"]
    bench(ev.FoldDone(Seq(1)))  # they leave memory
    (load,) = bench.arrive(2, {2: ("c", 1), 3: ("b", 1), 4: ("d", 1)}).of(ev.Load)
    assert load.keys == ["b"]
    assert not bench.of(ev.Invoke)
    assert bench.load([KeyRows("b", {("c", ""): b"2"})]).parts[0].keys == ["c", "b", "d"]
    bench.invoked(InvocationOutcome({"c": dict.fromkeys("bcd", b"3")}))
    (folded,) = bench(ev.CommitDone(Seq(2))).of(ev.Fold)
    assert [*folded.fresh] == ["c", "d"]


def test_every_key_is_asked_of_a_store_that_was_not_blank() -> None:
    (load,) = Bench().arrive(1, {0: ("b", 1), 1: ("a", 1)}).of(ev.Load)
    assert load.keys == ["a", "b"]


def test_two_bench_runs_write_the_same_bytes() -> None:
    def payload() -> bytes:
        return Bench().run(1, {0: ("a", 5), 1: ("b", 6)}, wrote("a", b"1")).write.payload

    assert payload() == payload()
    assert decode_checkpoint(payload()).shape == "1"
    assert Bench().core.reported == MIN_TIME


def test_a_long_bundle_is_run_in_pieces_and_acked_with_its_last() -> None:
    bench = Bench(work_limit_records=2)
    bench.arrive(9, {0: ("a", 5), 1: ("b", 3), 2: ("c", 7)})
    work = bench.load()
    assert [(part.keys, part.sequences) for part in work.parts] == [(["a", "b"], [0, 1])]
    bench.invoked(wrote("a", b"1"))
    (head,) = bench.images()
    assert [ids.sequences for ids in head.ids] == [[0, 1]]
    assert [part.keys for part in bench.load().parts] == [["c"]]
    bench(ev.CommitDone(Seq(1)))
    assert bench.acks() == []  # a crash now: the sender must still send the rest
    bench.invoked(wrote("c", b"1"))
    (tail,) = bench.images()
    assert [ids.sequences for ids in tail.ids] == [[2]]
    assert bench(ev.CommitDone(Seq(2))).acks() == [9]
    assert bench.core.inbox_bytes == 0


def test_big_records_are_run_a_few_at_a_time() -> None:
    bench = Bench()
    values = [b"x" * (limits.WORK_LIMIT_BYTES // 2)] * 3
    bench(
        ev.BundleArrived(
            msgspec.structs.replace(bundle(1, dict.fromkeys(range(3), ("k", 5))), values=values, size_bytes=0)
        )
    )
    assert len(bench.load().parts[0].keys) == 1  # with what a record costs besides its value, two do not fit
    bench.invoked()
    assert len(bench.load().parts[0].keys) == 1


def test_slow_hooks_get_fewer_records_and_quick_ones_more_again() -> None:
    bench = Bench(work_limit_records=8)
    bench.arrive(1, dict.fromkeys(range(8), ("k", 5)))
    works = [bench.load()]
    for number in range(1, 6):
        bench.arrive(number + 1, {8 * number + i: ("k", 5) for i in range(8)})
    for targets in (4, 4, 1, 0, 0):  # how many times the target the last one took
        count = sum(len(part.keys) for part in works[-1].parts)
        bench(ev.Invoked(outcome(processed=count), targets * limits.INVOCATION_TARGET_US))
        works.append(bench.load())
    assert [sum(len(part.keys) for part in work.parts) for work in works] == [8, 2, 1, 2, 4, 8]


def test_hooks_of_which_nobody_knows_whether_they_are_slow_get_a_few_records_first() -> None:
    bench = Bench()
    bench.core.begin_slowly(2)
    bench.arrive(1, dict.fromkeys(range(8), ("k", 5)))
    sizes = []
    for _ in range(3):
        sizes.append(sum(len(part.keys) for part in bench.load().parts))
        bench(ev.Invoked(outcome(processed=sizes[-1]), 1))
    assert sizes == [2, 4, 2]


def test_a_frontier_of_an_earlier_owner_that_is_not_recorded_wants_an_epoch() -> None:
    note = bundle(0, {}, frontier=9)
    bench = Bench(
        recovered(ids=[Delivered(note.subscription, note.producer, SequenceNumber(4), SequenceNumber(6))]), label=3
    )
    before = bench.core.wants_epoch
    bench(ev.BundleArrived(note))
    assert (before, bench.core.wants_epoch) == (False, True)
    bench(ev.EpochBegun(4, set()))
    bench.images()
    assert bench.core.label == 4


def early(number: int, sequence: int, key: str) -> ev.BundleArrived:
    """A record that was sent before barrier 4."""
    return ev.BundleArrived(msgspec.structs.replace(bundle(number, {sequence: (key, 10)}), epoch=3))


def test_an_epoch_is_cut_when_all_that_came_before_its_barrier_has_run() -> None:
    """What runs behind the cut is in no image of the epoch, and after a recovery to it nobody sends it again."""
    bench = Bench(label=3)
    bench(ev.EpochBegun(4, {SENDER}))
    bench(early(1, 0, "a"))
    bench.load()
    bench(early(2, 1, "b"))
    bench(barrier_of(bundle(3, {0: ("", 10)}), SENDER, 4))
    assert bench.core.label == 3, "hooks run"
    bench.invoked(wrote("a", b"1"))
    assert bench.core.label == 3, "another record waits"
    bench.load()
    (image,) = bench.invoked(wrote("b", b"2")).images()
    assert bench.core.label == 4
    assert [*image.state.rows()] == [("a", "c", "", b"1"), ("b", "c", "", b"2")]


def test_an_epoch_is_not_cut_while_a_record_before_its_barrier_has_no_room_to_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "OUTBOX_LIMIT_BUNDLES", 1)
    bench = Bench(label=3)
    bench(early(1, 0, "a"))
    bench.load()
    (sent,) = bench.invoked(produced(("x", 5))).sent()
    bench(ev.EpochBegun(4, {SENDER}))
    bench(early(2, 1, "b"))
    bench(barrier_of(bundle(3, {0: ("", 10)}), SENDER, 4))
    assert (bench.of(ev.Load), bench.core.label) == ([], 3)
    bench(ev.AckArrived(sent.number, 3))
    bench.load()
    (image,) = bench.invoked(wrote("b", b"2")).images()
    assert [*image.state.rows()] == [("b", "c", "", b"2")]


def test_an_epoch_is_not_cut_while_the_store_is_asked_about_a_record_before_its_barrier() -> None:
    known = Delivered(IN, PRODUCER, SequenceNumber(0), SequenceNumber(9))
    bench = Bench(recovered(ids=[known]), label=3)
    bench(ev.EpochBegun(4, {SENDER}))
    bench(early(1, 5, "a"))
    assert bench.of(ev.LookupIds)
    bench(barrier_of(bundle(2, {0: ("", 10)}), SENDER, 4))
    assert bench.core.label == 3
    bench(ev.IdsFound(SENDER, set()))
    bench.load()
    (image,) = bench.invoked(wrote("a", b"1")).images()
    assert ([*image.state.rows()], bench.core.label) == ([("a", "c", "", b"1")], 4)


def test_a_barrier_is_heard_while_hooks_run() -> None:
    """When it is the last, and the invocation was the last before it, nothing else comes that would cut the epoch."""
    bench = Bench(label=3)
    bench(early(1, 0, "a"))
    bench.load()
    bench(ev.EpochBegun(4, {SENDER}))
    bench(barrier_of(bundle(2, {0: ("", 10)}), SENDER, 4))
    bench.invoked()
    assert [written.epoch for written in bench.of(ev.PartWritten)] == [4]


def test_a_barrier_is_acked_when_it_comes_and_each_copy_of_it_too() -> None:
    """Its sender is not quiet before, and sends it again after each cut of the channel."""
    bench = Bench(label=3)
    barrier = barrier_of(bundle(7, {0: ("", 10)}), SENDER, 4)
    for _ in range(2):
        assert bench(barrier).of(ev.Ack) == [ev.Ack(SENDER, 7)]
    bench(ev.EpochBegun(4, {SENDER}))
    assert bench.core.label == 4
    assert bench(barrier).of(ev.Ack) == [ev.Ack(SENDER, 7)]


def test_what_waits_behind_a_barrier_runs_when_it_is_passed_and_is_of_the_next_epoch() -> None:
    bench, other = Bench(label=3), IntervalId(SENDER + 1)
    bench(ev.EpochBegun(4, {SENDER, other}))
    bench(barrier_of(bundle(1, {0: ("", 10)}), SENDER, 4))
    for number in (2, 3):
        late = msgspec.structs.replace(bundle(number, {number: (f"k{number}", 5)}), epoch=4)
        assert bench(ev.BundleArrived(late)).of(ev.Load) == []
    bench(barrier_of(bundle(1, {0: ("", 10)}), other, 4))
    assert [written.epoch for written in bench.of(ev.PartWritten)] == [4]
    ran = [key for part in bench.load().parts for key in part.keys]
    bench.invoked()
    assert [(ack.number, ack.epoch) for ack in bench.of(ev.Ack)] == [(2, 4)] if ran == ["k2"] else [(2, 4), (3, 4)]
    while bench.of(ev.Load):
        ran += [key for part in bench.load().parts for key in part.keys]
        bench.invoked()
    assert ran == ["k2", "k3"]


def test_an_interval_has_not_settled_while_a_page_of_its_timers_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TIMER_PAGE_ROWS", 2)
    timers = [("j", "t", "watermark", 50), ("k", "t", "watermark", 60)]
    bench = Bench(recovered(timers=timers, more=["watermark"]))
    bench(ev.WatermarkMoved(55))
    bench.load()
    bench.invoked()
    for commit in bench.of(ev.Commit):
        bench(ev.CommitDone(commit.write.seq))
    end_of_a_hand_over(bench)
    assert bench.core._schedule.paging
    assert not bench.core.settled()


def test_an_interval_is_not_quiet_while_it_waits_for_a_barrier() -> None:
    bench = Bench(label=3)
    assert bench.core.quiet()
    bench(ev.EpochBegun(4, {SENDER}))
    assert not bench.core.quiet()
    bench(barrier_of(bundle(2, {0: ("", 10)}), SENDER, 4))
    assert not bench.core.quiet(), "its own barrier is not acked"


def test_an_epoch_is_not_for_an_interval_without_snapshots() -> None:
    with pytest.raises(InvariantError, match="without snapshots"):
        Bench()(ev.EpochEnded(4))


def test_barriers_go_to_whom_something_is_sent_and_to_nobody_else() -> None:
    """Who does not list a sender's stream knows of no barrier of it, and who listens waits for one."""
    stored = msgspec.structs.replace(bundle(1, {0: ("a", 10)}), subscription=OUT)
    assert Bench(label=3).core.sends_to == {TARGET}
    assert Bench(label=3, outputs=()).core.sends_to == set()
    assert Bench(recovered(productions=[stored]), label=3, outputs=()).core.sends_to == {TARGET}, (
        "of an earlier version"
    )


def test_a_round_of_a_loop_is_not_for_an_interval_in_no_loop() -> None:
    with pytest.raises(InvariantError, match="in no loop"):
        Bench()(ev.RoundBegan(1, 5))


def test_what_comes_round_a_loop_from_before_the_cut_is_in_the_log_of_its_epoch() -> None:
    left = msgspec.structs.replace(bundle(1, {0: ("a", 10)}), epoch=3)
    head = head_behind_barrier(left)
    assert not [image for image in head.images() if image.produced]
    head(barrier_of(left, left.sender, 4))
    assert [made.keys for image in head.images() for made in image.produced] == [["a"]]
