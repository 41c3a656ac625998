"""The small steps that calls of the store in memory have in common."""

from __future__ import annotations

import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import IntervalRow
from millwheel_storage.memory.contents import MemoryContents

ONE, TWO, THREE = IntervalId(1), IntervalId(2), IntervalId(3)


@pytest.fixture
def contents() -> MemoryContents:
    contents = MemoryContents(lambda: 7)
    contents.add_interval("a", "m", None)
    contents.add_interval("a", "", "m")
    contents.add_interval("b", "", None)
    return contents


def log(contents: MemoryContents, interval: IntervalId, seq: int, epoch: int, value: bytes) -> None:
    state = StateWrites.of([("k", "cell", "", value)])
    image = Checkpoint(CHECKPOINT_FORMAT, "", epoch, [], [], [], state, TimerWrites(), HoldWrites(), [], [])
    owner = contents.ownership[interval]
    contents.log[interval, owner, Seq(seq)] = LogWrite(interval, owner, Seq(seq), epoch, encode_checkpoint(image))


def test_an_interval_is_new_and_has_no_owner(contents: MemoryContents) -> None:
    assert contents.row(THREE) == IntervalRow(THREE, "b", "", None)
    assert contents.ownership == {ONE: 0, TWO: 0, THREE: 0}
    assert contents.by_low("a") == [("", TWO), ("m", ONE)]
    with pytest.raises(StoreError, match="interval 4 does not exist"):
        contents.row(IntervalId(4))


def test_a_fence_gives_larger_numbers_in_the_order_of_ids(contents: MemoryContents) -> None:
    assert contents.fence({THREE, ONE}) == {ONE: 1, THREE: 2}
    assert contents.fence({ONE}) == {ONE: 3}
    assert contents.ownership == {ONE: 3, TWO: 0, THREE: 2}
    assert contents.next_sequencer() == Sequencer(4)


def test_a_fold_takes_what_counts_in_order_and_empties_the_log_of_its_interval(contents: MemoryContents) -> None:
    contents.declared = 1
    log(contents, TWO, 2, 1, b"second")
    log(contents, TWO, 1, 0, b"first")
    log(contents, TWO, 3, 2, b"never declared")
    log(contents, THREE, 1, 0, b"other")
    contents.fold_log(contents.row(TWO))
    assert contents.key_state == {"a": {"k": {("cell", ""): b"second"}}}
    assert [place[0] for place in contents.log] == [THREE]


def test_what_is_not_declared_is_dropped_everywhere(contents: MemoryContents) -> None:
    contents.declared = 1
    for interval, epoch in ((ONE, 1), (ONE, 2), (THREE, 0), (THREE, 2)):
        log(contents, interval, epoch + 1, epoch, b"v")
    contents.drop_later()
    assert [(place[0], write.epoch) for place, write in contents.log.items()] == [(ONE, 1), (THREE, 0)]
