"""Planted bugs in what a hook sees: the time, the order of its records, and holds and watermarks after all has gone back."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.api.frame import Frame
from millwheel.bundles import HoldWrites
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.core.interval.inbox import Inbox
from millwheel.host.epoch_keeper import Declaring
from millwheel.model import MAX_TIME, Record
from millwheel.runtime import executor
from millwheel.work import Work
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, cut, cut_in_loop, looped, mutant


@cut
def only_the_end_is_stored() -> Patches:
    """A watermark is stored with an epoch when it is at the end of time, and else begins anew when all goes back"""
    original = Declaring._declare

    def declare(self: Declaring, opened: Any) -> Any:
        stored = self._stored if self._stored is not None else dict(self._values())
        self._stored = {name: value for name, value in stored.items() if value == MAX_TIME}
        return original(self, opened)

    return {(Declaring, "_declare"): declare}


@looped
def bundles_reversed() -> Patches:
    """The last record of a bundle runs first"""
    original = Inbox.put

    def put(self: Inbox, item: Any) -> None:
        part = item.part
        if part is not None and not part.outside:
            columns = {name: getattr(part, name)[::-1] for name in ("sequences", "keys", "values", "timestamps")}
            item = msgspec.structs.replace(item, part=msgspec.structs.replace(part, **columns))
        original(self, item)

    return {(Inbox, "put"): put}


@mutant
def nothing_is_late() -> Patches:
    """No hook is told that its record is late"""

    def punctual(key: str, value: Any, timestamp: int, late: bool, producer: Any, sequence: Any) -> Record[Any]:
        return Record(key, value, timestamp, False, producer, sequence)

    return {(executor, "Record"): punctual}


@mutant
def watermark_of_the_last_invocation() -> Patches:
    """Hooks see the watermark that the invocation before theirs had"""
    original = Frame.start

    def start(self: Frame, work: Work) -> None:
        before = getattr(self, "watermark", work.watermark)
        original(self, work)
        self.watermark = before

    return {(Frame, "start"): start}


@cut_in_loop
def image_forgets_holds() -> Patches:
    """The image of an epoch has no holds"""
    original = EpochImage.image

    def image(self: EpochImage, epoch: int) -> Any:
        return msgspec.structs.replace(original(self, epoch), holds=HoldWrites())

    return {(EpochImage, "image"): image}


@cut_in_loop
def begins_without_holds() -> Patches:
    """Under snapshots a new owner is not given the holds that are declared"""
    original = MemoryStore.recover

    async def recover(self: MemoryStore, interval: Any, sequencer: Any) -> Any:
        found = await original(self, interval, sequencer)
        return msgspec.structs.replace(found, holds=HoldWrites()) if found is not None else None

    return {(MemoryStore, "recover"): recover}
