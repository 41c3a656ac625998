"""A copy is acked under the label that its receiver has by then, as its original was."""

from __future__ import annotations

import msgspec

from millwheel.bundles import Bundle, Delivered
from millwheel.core.interval import events as ev
from millwheel.ids import IntervalId, ProducerId, SequenceNumber
from tests.unit.core.bench import IN, OUT, Bench, bundle, outcome, recovered

REGULAR = IntervalId(70)
"""A sender for whose barrier the receiver waits."""


def barrier_of(left: Bundle, sender: IntervalId, epoch: int) -> ev.BundleArrived:
    nothing: list[int] = []
    return ev.BundleArrived(
        msgspec.structs.replace(
            left, sender=sender, sequences=nothing, keys=nothing, values=nothing, timestamps=nothing, barrier=epoch
        )
    )


def head_behind_barrier(left: Bundle) -> Bench:
    """The head of a loop, which has passed barrier 4, and gets `left` on a back edge."""
    head = Bench(label=3)
    head(ev.EpochBegun(4, {REGULAR}, {left.sender}))
    head(barrier_of(left, REGULAR, 4))
    assert head.core.label == 4
    head(ev.BundleArrived(left))
    head.load()
    return head.invoked()


def test_a_copy_of_what_ran_behind_a_barrier_is_acked_as_of_behind_it() -> None:
    left = msgspec.structs.replace(bundle(1, {0: ("a", 10)}), epoch=3, inherited=True)
    head = head_behind_barrier(left)
    assert head.of(ev.Ack) == [ev.Ack(left.sender, 1, 4)]
    head(ev.BundleArrived(left))
    assert head.of(ev.Ack) == [ev.Ack(left.sender, 1, 4)]


def test_a_production_stays_in_the_tables_of_an_epoch_in_which_its_receiver_has_not_run_it() -> None:
    """The ack of the original is lost with its channel, or is overtaken: that of the copy counts."""
    stored = msgspec.structs.replace(bundle(1, {0: ("a", 10)}), subscription=OUT)
    sender = Bench(recovered(productions=[stored]), label=3)
    (sent,) = sender.sent()
    left = msgspec.structs.replace(bundle(sent.number, {0: ("a", 10)}), epoch=3, inherited=True)
    head = head_behind_barrier(left)
    head(ev.BundleArrived(left))
    (ack,) = head.of(ev.Ack)
    sender(ev.AckArrived(ack.number, ack.epoch))
    sender(ev.BundleArrived(msgspec.structs.replace(bundle(1, {0: ("b", 10)}), epoch=3)))
    sender.load()
    sender.invoked(outcome(processed=1, values={"c": {"b": b"1"}}))
    sender(ev.EpochBegun(4, {REGULAR}))
    sender(barrier_of(left, REGULAR, 4))
    (image,) = sender.images()
    assert (image.epoch, image.acked) == (4, [])


def test_without_ids_a_copy_that_comes_behind_a_barrier_runs_again() -> None:
    """After a cut of the channel, a sender sends again what was acked before the cut of the epoch."""
    bench = Bench(label=3, exactly_once=False)
    early = msgspec.structs.replace(bundle(1, {0: ("a", 10)}), epoch=3)
    bench(ev.BundleArrived(early))
    bench.load()
    bench.invoked()
    bench(ev.EpochBegun(4, {early.sender}))
    bench(barrier_of(early, early.sender, 4))
    assert bench.core.label == 4
    bench(ev.BundleArrived(early))
    assert [part.keys for part in bench.load().parts] == [["a"]]
    bench.invoked()
    assert bench.acks() == [1]


def test_the_log_of_a_cut_has_what_waits_behind_a_question_to_the_store_when_the_barrier_has_come_round() -> None:
    """An earlier owner's record is asked for, and what its sender has sent after it waits for the answer."""
    known = Delivered(IN, ProducerId(90), SequenceNumber(0), SequenceNumber(9))
    head = Bench(recovered(ids=[known]), label=3)
    left = msgspec.structs.replace(bundle(1, {5: ("a", 10)}), producer=ProducerId(90), epoch=3, inherited=True)
    behind = msgspec.structs.replace(bundle(2, {0: ("b", 10)}), epoch=3)
    head(ev.EpochBegun(4, {REGULAR}, {left.sender}))
    head(barrier_of(left, REGULAR, 4))
    (asked,) = head(ev.BundleArrived(left)).of(ev.LookupIds)
    head(ev.BundleArrived(behind))
    assert head(barrier_of(left, left.sender, 4)).of(ev.Commit) == []
    assert head.of(ev.PartWritten) == []
    head(ev.IdsFound(asked.sender, set()))
    assert [run.keys for image in head.images() for run in image.produced] == [["b"]]


def test_a_barrier_that_has_come_round_ends_its_log_also_while_hooks_run() -> None:
    """Every other interval would wait for the end of them, because the epoch is not complete before."""
    back = IntervalId(60)
    head = Bench(label=3)
    ahead = msgspec.structs.replace(bundle(1, {0: ("a", 10)}), sender=REGULAR, epoch=4)
    head(ev.EpochBegun(4, {REGULAR}, {back}))
    head(barrier_of(ahead, REGULAR, 4))
    head(ev.BundleArrived(ahead))
    head.load()
    assert [written.epoch for written in head(barrier_of(ahead, back, 4)).of(ev.PartWritten)] == [4]
