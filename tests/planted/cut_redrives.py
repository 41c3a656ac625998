"""Bugs of quarantines under snapshots; `tests.sim.cut_redrives` is to notice them."""

from __future__ import annotations

from typing import Any

from millwheel.core.durability.epoch_image import EpochImage
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, only

REPLACED = "tests/sim/test_cut_redrives.py::test_a_process_that_is_replaced_redrives_what_is_declared"


@only(REPLACED)
def failed_again_forgotten() -> Patches:
    """The image of an epoch forgets what came into a quarantine that was there before"""
    original = EpochImage._quarantine

    def quarantine(self: EpochImage) -> Any:
        quarantined, redriven, released = original(self)
        return quarantined[:1], redriven, released

    return {(EpochImage, "_quarantine"): quarantine}


@only(REPLACED)
def released_stays() -> Patches:
    """The image of an epoch does not say that a quarantine has ended"""
    original = EpochImage._quarantine

    def quarantine(self: EpochImage) -> Any:
        quarantined, redriven, _ = original(self)
        return quarantined, redriven, []

    return {(EpochImage, "_quarantine"): quarantine}


@only(REPLACED)
def first_is_skipped() -> Patches:
    """Of a quarantine under snapshots, the store gives all but what waits first"""
    original = MemoryStore.quarantined

    async def quarantined(self: MemoryStore, interval: Any, keys: Any, limit: int) -> Any:
        return (await original(self, interval, keys, limit))[1:]

    return {(MemoryStore, "quarantined"): quarantined}
