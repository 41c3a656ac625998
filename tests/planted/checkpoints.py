"""Bugs of checkpoints: what is committed, folded, recovered and kept in memory."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.api.frame import Frame
from millwheel.bundles import Acked, StateWrites
from millwheel.core.durability.inflight import Inflight
from millwheel.core.durability.log import DurableLog
from millwheel.core.interval import events as ev
from millwheel.core.keys.cache import StateCache
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import FoldWrite
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, mutant


@mutant
def out_of_order_commits() -> Patches:
    """Checkpoint committed past a gap."""
    original = Inflight.submit

    def submit(self: Inflight, effects: list[ev.Effect], now: int) -> None:
        first = len(effects)
        original(self, effects, now)
        commits = [e for e in effects[first:] if isinstance(e, ev.Commit)]
        late = getattr(self, "_late", None)
        if late is not None and commits:
            self._late = None  # type: ignore[attr-defined]
            effects.append(late)
        elif commits and commits[-1].write.seq % 5 == 0:
            effects.remove(commits[-1])
            self._late = commits[-1]  # type: ignore[attr-defined]

    return {(Inflight, "submit"): submit}


@mutant
def no_fence() -> Patches:
    """The fence is skipped: a stale sequencer commits."""
    original = MemoryStore.commit

    async def commit(self: MemoryStore, writes: Any) -> set[tuple[IntervalId, Seq]]:
        owners = dict(self.ownership)
        self.ownership.update({write.interval: write.sequencer for write in writes})
        kept = await original(self, writes)
        self.ownership = owners
        return kept

    return {(MemoryStore, "commit"): commit}


@mutant
def sinks_of_the_fenced() -> Patches:
    """Sink rows are written though their checkpoint was fenced."""
    from millwheel_storage.sink_rows import coalesce

    original = MemoryStore.commit

    async def commit(self: MemoryStore, writes: Any) -> set[tuple[IntervalId, Seq]]:
        kept = await original(self, writes)
        for rows in coalesce(self.sink_tables, [w for w in writes if (w.interval, w.seq) not in kept]):
            self.sinks[rows.table.name].update(rows.rows)
            for key in rows.deleted:
                self.sinks[rows.table.name].pop(key, None)
        return kept

    return {(MemoryStore, "commit"): commit}


@mutant
def renamed_and_lost() -> Patches:
    """A cell that was renamed is looked for under its new name."""
    return {(Frame, "place"): lambda self, cell: cell}


@mutant
def deletions_first() -> Patches:
    """A row that a checkpoint writes and then deletes stays in its sink."""
    from millwheel_storage import sink_rows
    from millwheel_storage.memory import twin

    def coalesce(tables: Any, writes: Any) -> Any:
        turned = []
        for write in writes:
            rows = tuple(sorted(write.sinks, key=lambda row: not row.deleted))
            turned.append(msgspec.structs.replace(write, sinks=rows))
        return sink_rows.coalesce(tables, turned)

    return {(twin, "coalesce"): coalesce}


@mutant
def deletions_lost() -> Patches:
    """A row that is deleted in another checkpoint than the one that wrote it stays in its sink."""
    from millwheel_storage import sink_rows
    from millwheel_storage.memory import twin

    def coalesce(tables: Any, writes: Any) -> Any:
        return [msgspec.structs.replace(rows, deleted={}) for rows in sink_rows.coalesce(tables, writes)]

    return {(twin, "coalesce"): coalesce}


@mutant
def commit_twice() -> Patches:
    """A commit that is retried after its fold is applied a second time."""

    async def commit(self: MemoryStore, writes: Any) -> set[tuple[IntervalId, Seq]]:
        kept = await original(self, writes)
        if len(self.log) % 7 == 3:  # the log row is gone, as after a fold: a second insert succeeds
            for write in writes:
                self.log.pop((write.interval, write.sequencer, write.seq), None)
        return kept

    original = MemoryStore.commit
    return {(MemoryStore, "commit"): commit}


@mutant
def fold_from_cache() -> Patches:
    """A fold takes state from the cache, which is ahead of the log."""
    original = DurableLog.fold

    def fold(self: DurableLog, effects: list[ev.Effect]) -> None:
        first = len(effects)
        original(self, effects)
        for place, effect in enumerate(effects[first:], first):
            if isinstance(effect, ev.Fold):
                images = [_from_cache(self._keyed._cache, image) for image in effect.images]
                effects[place] = msgspec.structs.replace(effect, images=images)

    return {(DurableLog, "fold"): fold}


def _from_cache(cache: StateCache, image: Any) -> Any:
    rows = []
    for key, cell, entry, value in image.state.rows():
        here = key in cache.last_read
        rows.append((key, cell, entry, cache.cells(key).get((cell, entry)) if here else value))
    return msgspec.structs.replace(image, state=StateWrites.of(rows))


@mutant
def stale_fold() -> Patches:
    """The fence is skipped: a stale sequencer folds."""
    original = MemoryStore.fold

    async def fold(self: MemoryStore, write: FoldWrite) -> bool:
        owner, self.ownership[write.interval] = self.ownership[write.interval], write.sequencer
        kept = await original(self, write)
        self.ownership[write.interval] = owner
        return kept

    return {(MemoryStore, "fold"): fold}


@mutant
def stale_position() -> Patches:
    """The fence is skipped: a stale injector moves its partition's position."""
    original = MemoryStore.advance

    async def advance(self: MemoryStore, writes: Any) -> set[IntervalId]:
        owners = dict(self.ownership)
        self.ownership.update({write.interval: write.sequencer for write in writes})
        kept = await original(self, writes)
        self.ownership = owners
        return kept

    return {(MemoryStore, "advance"): advance}


@mutant
def fold_skips_the_last() -> Patches:
    """Recovery folds the log but for its newest row."""
    original = MemoryStore.recover

    async def recover(self: MemoryStore, interval: IntervalId, sequencer: Sequencer) -> Any:
        places = sorted(place for place in self.log if place[0] == interval)
        if places and self.ownership[interval] == sequencer:
            del self.log[places[-1]]
        return await original(self, interval, sequencer)

    return {(MemoryStore, "recover"): recover}


@mutant
def productions_lost_in_fold() -> Patches:
    """A fold drops productions that are not acked."""
    original = MemoryStore.fold

    async def fold(self: MemoryStore, write: FoldWrite) -> bool:
        kept = await original(self, write)
        self.folded.productions.get(write.interval, {}).clear()
        return kept

    return {(MemoryStore, "fold"): fold}


@mutant
def fold_by_soft_acks() -> Patches:
    """A fold leaves out productions whose acks are not durable."""
    original = DurableLog.fold

    def fold(self: DurableLog, effects: list[ev.Effect]) -> None:
        first = len(effects)
        original(self, effects)
        soft = self._outbox._unrecorded.values()
        for place, effect in enumerate(effects[first:], first):
            if isinstance(effect, ev.Fold):
                acked = [Acked(bundle.subscription, bundle.producer, bundle.sequences) for bundle in soft]
                effects[place] = msgspec.structs.replace(effect, acked=[*effect.acked, *acked])

    return {(DurableLog, "fold"): fold}
