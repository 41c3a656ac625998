"""Planted bugs in what becomes durable together: the epochs of an interval."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.durability.log import DurableLog
from millwheel.core.durability.unfolded import CommittedLog
from millwheel.core.interval.machine import IntervalCore
from millwheel.ids import Seq
from tests.planted import Patches, only


def newest(core: IntervalCore) -> Uncommitted:
    """What was put last into a core's log."""
    assert isinstance(core._durability, DurableLog)
    return core._durability._inflight._entries[-1]


@only("tests/unit/core/durability/test_log.py")
def epoch_forgotten() -> Patches:
    """What is put after the end of an epoch still belongs to it."""
    return {(DurableLog, "_dated"): lambda self, entry: entry}


@only("tests/unit/core/durability/test_log.py")
def fold_crosses_epochs() -> Patches:
    """A fold goes on into the next epoch."""
    original = CommittedLog.prefix

    def prefix(self: CommittedLog, goal: int) -> Any:
        images = [row.image for row in self._rows]
        for row in self._rows:
            row.image = msgspec.structs.replace(row.image, epoch=images[0].epoch)
        found = original(self, Seq(goal))
        for row, image in zip(self._rows, images, strict=True):
            row.image = image
        return found

    return {(CommittedLog, "prefix"): prefix}
