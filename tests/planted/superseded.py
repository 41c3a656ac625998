"""Bugs of a process that was superseded."""

from __future__ import annotations

from typing import Any

from millwheel.core.authority import Authority
from millwheel.ids import IntervalId, Sequencer
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, mutant


@mutant
def watermark_without_fence() -> Patches:
    """The fence is skipped: a process that was superseded persists watermarks."""

    async def persist_watermarks(self: MemoryStore, writes: Any) -> set[str]:
        for write in writes:
            self.watermark[write.name] = max(write.value, self.watermark.get(write.name, write.value))
        return {write.name for write in writes}

    return {(MemoryStore, "persist_watermarks"): persist_watermarks}


@mutant
def source_rests_on_nothing() -> Patches:
    """The watermark of a source is fenced by its partitions only: one without any follows the clock for ever."""
    original = Authority.owners

    def owners(self: Authority, name: str) -> dict[IntervalId, Sequencer]:
        return dict(self._owners.get(name, {})) if name.startswith("source:") else original(self, name)

    return {(Authority, "owners"): owners}
