"""One image of an epoch stands for all of its images (the law is in `tests/property/test_fold_law.py`)."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
    Checkpoint,
    HoldWrites,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    SinkRow,
    StateRow,
    StateWrites,
    TimerWrites,
)
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers


def checkpoint(*rows: StateRow, forgotten: tuple[str, ...] = (), **changes: Any) -> Checkpoint:
    made = Checkpoint(
        CHECKPOINT_FORMAT, "1", 0, [], [], [], StateWrites.of(rows), TimerWrites(), HoldWrites(), [], [], [*forgotten],
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def merged(*images: Checkpoint) -> Checkpoint:
    overlay = EpochImage()
    for image in images:
        overlay.add(image)
    return overlay.image(4)


def test_the_last_write_of_a_place_counts() -> None:
    image = merged(checkpoint(("a", "sum", "", b"1"), ("a", "bag", "x", b"1")), checkpoint(("a", "sum", "", b"2")))
    assert sorted(image.state.rows()) == [("a", "bag", "x", b"1"), ("a", "sum", "", b"2")]
    assert (image.epoch, image.shape, image.format) == (4, "1", CHECKPOINT_FORMAT)


def test_a_key_that_is_forgotten_keeps_only_what_came_later() -> None:
    first = checkpoint(("a", "sum", "", b"1"), ("a", "bag", "x", b"1"))
    first.timers.add("a", "t", "wall", 5)
    first.holds.add("a", 5)
    image = merged(first, checkpoint(("a", "sum", "", b"2"), forgotten=("a",)))
    assert image.forgotten == ["a"]
    assert [*image.state.rows()] == [("a", "sum", "", b"2")]
    assert (image.timers.keys, image.holds.keys) == ([], [])


def test_productions_that_were_acked_are_gone() -> None:
    produced = [
        Produced(SubscriptionId(1), ProducerId(7), SequenceNumber(0), ["a", "b", "c"], [b"x", b"y", b"z"], [1, 2, 3])
    ]
    acked = [Acked(SubscriptionId(1), ProducerId(7), sequence_numbers([1]))]
    later = [Acked(SubscriptionId(1), ProducerId(6), sequence_numbers([5]))]
    image = merged(checkpoint(produced=produced, acked=acked), checkpoint(acked=later))
    assert image.produced == [
        Produced(SubscriptionId(1), ProducerId(7), SequenceNumber(0), ["a"], [b"x"], [1]),
        Produced(SubscriptionId(1), ProducerId(7), SequenceNumber(2), ["c"], [b"z"], [3]),
    ]
    assert image.acked == [Acked(SubscriptionId(1), ProducerId(6), sequence_numbers([5]))]


@pytest.mark.parametrize("seed", range(20))
def test_every_production_that_is_left_is_as_it_was_made_in_whatever_runs(seed: int) -> None:
    """Two channels, of which any record may have been acked, and whose images may come in any order."""
    chosen = random.Random(seed)
    channels = [(SubscriptionId(1), ProducerId(7)), (SubscriptionId(2), ProducerId(7))]
    runs = [(channel, 4 * run, chosen.randint(1, 4)) for channel in channels for run in range(4)]
    chosen.shuffle(runs)
    images, left = list[Checkpoint](), dict[tuple[SubscriptionId, ProducerId, int], tuple[str, bytes, int]]()
    for channel, first, count in runs:
        rows = [(f"k{first + n}", b"%d" % (first + n), 100 - first - n) for n in range(count)]
        made = Produced(*channel, SequenceNumber(first), *map(list, zip(*rows, strict=True)))
        images.append(checkpoint(produced=[made]))
        left.update(((*channel, first + n), row) for n, row in enumerate(rows))
    for channel, sequence in [(place[:2], place[2]) for place in [*left] if chosen.random() < 0.2]:
        images.append(checkpoint(acked=[Acked(*channel, sequence_numbers([sequence]))]))
        del left[*channel, sequence]
    produced = merged(*images).produced
    found = {
        (run.subscription, run.producer, run.first + n): row
        for run in produced
        for n, row in enumerate(zip(run.keys, run.values, run.timestamps, strict=True))
    }
    assert found == left
    ends = {(run.subscription, run.producer, run.first + len(run.keys)) for run in produced}
    assert not any((run.subscription, run.producer, run.first) in ends for run in produced), "what is dense is one run"
    assert len(produced) < len(left)


def test_sink_rows_and_outside_ids_keep_their_order() -> None:
    later = [OutsideIdWrites(SubscriptionId(1), 9, [b"q"]), OutsideIdWrites(SubscriptionId(1), 3, [])]
    image = merged(
        checkpoint(sinks=[SinkRow("t", b"1")], outside=[OutsideIdWrites(SubscriptionId(1), 9, [b"p"])]),
        checkpoint(sinks=[SinkRow("t", b"2", deleted=True)], outside=later),
    )
    assert image.sinks == [SinkRow("t", b"1"), SinkRow("t", b"2", deleted=True)]
    assert image.outside == [
        OutsideIdWrites(SubscriptionId(1), 9, [b"p", b"q"]),
        OutsideIdWrites(SubscriptionId(1), 3, []),
    ]


def test_of_a_line_that_ended_only_what_is_left_is_appended() -> None:
    entries = [QuarantineEntry("a", SubscriptionId(1), ProducerId(1), SequenceNumber(n), b"", 0) for n in range(3)]
    image = merged(
        checkpoint(redriven=[("a", 2)], released=["a"]),
        checkpoint(quarantined=entries),
        checkpoint(redriven=[("a", 2), ("b", 1)]),
    )
    assert (image.released, image.redriven, image.quarantined) == (["a"], [("b", 1)], entries[2:])


def test_how_much_there_is() -> None:
    overlay = EpochImage()
    assert (overlay.images, overlay.keys()) == (0, 0)
    overlay.add(checkpoint(("a", "sum", "", b"1"), ("b", "sum", "", b"1"), ("a", "bag", "x", b"1")))
    overlay.add(checkpoint(("a", "sum", "", b"2")))
    assert (overlay.images, overlay.keys()) == (2, 3)
