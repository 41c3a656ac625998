"""Bugs of snapshots with ids of outside clients, expiry, savepoints and changes of durability (`tests.sim.ledger_cuts`)."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import msgspec

from millwheel.bundles import Checkpoint, StateWrites
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.core.keys.expiry import Expiry
from millwheel.core.source.injector import InjectorCore
from millwheel.host.heard import Heard
from millwheel.host.mapped import MappedOwnership
from millwheel.ports import IntervalRow
from millwheel_storage.memory.contents import MemoryContents
from tests.planted import Patches, only

OUTSIDE = "tests/sim/test_ledger_cuts.py::test_ids_of_outside_clients_are_in_their_epoch"
EXPIRY = "tests/sim/test_ledger_cuts.py::test_a_key_expires_in_its_epoch_and_comes_back"
CHANGED = "tests/sim/test_ledger_cuts.py::test_each_run_has_either_durability"
PUT_BACK = "tests/sim/test_ledger_cuts.py::test_a_savepoint_is_put_back_under_either_durability"


@only(OUTSIDE)
def outside_ids_left_out() -> Patches:
    """The image of an epoch has no ids of outside clients"""
    return {(EpochImage, "_outside_ids"): lambda self: []}


@only(OUTSIDE)
def last_outside_ids_only() -> Patches:
    """Of the ids that outside clients chose, the image of an epoch has the last ones of each bucket"""
    original = EpochImage.add

    def add(self: EpochImage, image: Checkpoint) -> None:
        for outside in image.outside:
            self._outside.pop((outside.subscription, outside.expires), None)
        original(self, image)

    return {(EpochImage, "add"): add}


@only(EXPIRY)
def expired_stays() -> Patches:
    """The image of an epoch does not say which keys have expired"""
    original = EpochImage.image

    def image(self: EpochImage, epoch: int) -> Checkpoint:
        return msgspec.structs.replace(original(self, epoch), forgotten=[])

    return {(EpochImage, "image"): image}


@only(EXPIRY)
def expired_comes_back() -> Patches:
    """What was written to a key before it expired in the same epoch is there again"""

    def forget(self: EpochImage, key: str) -> None:
        self._forgotten[key] = None
        self._timers.pop(key, None)
        self._holds.pop(key, None)

    return {(EpochImage, "_forget"): forget}


@only(EXPIRY)
def first_write_counts() -> Patches:
    """Only the first write of a key extends its life"""
    original = Expiry.renew
    extended: dict[tuple[int, str], None] = {}

    def renew(self: Expiry, state: StateWrites, *arguments: Any) -> None:
        keys = [key for key in sorted(state.keys()) if (id(self), key) not in extended]
        extended.update(((id(self), key), None) for key in keys)
        if keys:
            original(self, state, *arguments)

    return {(Expiry, "renew"): renew}


@only(CHANGED)
def ids_of_earlier_runs_left_out() -> Patches:
    """The image of an epoch has no ids of productions that a run under checkpoints has left"""
    original = EpochImage.image

    def image(self: EpochImage, epoch: int) -> Checkpoint:
        return msgspec.structs.replace(original(self, epoch), ids=[])

    return {(EpochImage, "image"): image}


@only(PUT_BACK)
def undeclared_put_back() -> Patches:
    """A run under checkpoints takes what a savepoint has of an epoch that was not declared"""
    original = MemoryContents.fold_log

    def fold_log(self: MemoryContents, row: IntervalRow) -> None:
        declared = self.declared
        self.declared = 10**9
        try:
            original(self, row)
        finally:
            self.declared = declared

    return {(MemoryContents, "fold_log"): fold_log}


@only("tests/unit/host/test_shared_epochs.py")
def begun_before_read() -> Patches:
    """A worker begins an epoch before it has read what the map gives to it"""

    def serves(self: MappedOwnership) -> bool:
        return not self._starting and all(interval in self._worker.actors.all for interval in self._mine)

    return {(MappedOwnership, "_serves"): serves}


@only("tests/unit/host/test_heard.py")
def told_behind_the_barrier() -> Patches:
    """What was told behind a barrier counts as told in front of it"""
    return {(Heard, "before"): lambda self, epoch: dict(self.values)}


@only("tests/unit/core/source/test_injector.py")
def barriers_left_behind() -> Patches:
    """Under snapshots a partition that has ended is forgotten while a barrier of it is not acked"""
    original = InjectorCore.quiet

    def quiet(self: InjectorCore) -> bool:
        with patch.object(self, "_by_number", {}):
            return original(self)

    return {(InjectorCore, "quiet"): quiet}
