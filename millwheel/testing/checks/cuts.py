"""The memory store under observation when a pipeline becomes durable by epochs: what is visible is one consistent cut.

Lives here: `CutStore`, which applies the images of an epoch to what is durable when the epoch is declared, and no sooner, and
compares that with what the store shows.  Never here: what a workload expects of a cut (`on_cut`).  The checks of `watched`
that follow single checkpoints, acks and ids have no meaning here: between two epochs all of these are in memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from millwheel.bundles import Checkpoint, KeyRows, LogWrite, QuarantineEntry, RecoveredInterval, decode_checkpoint
from millwheel.errors import RowRefused
from millwheel.graph import Graph
from millwheel.host.alphabet import RunHooks
from millwheel.host.messages import Message, WatermarksRaised
from millwheel.host.requests import StoreCall
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import Declaration, FoldWrite, PositionWrite, WatermarkWrite
from millwheel.testing.checks.folded_tables import check_given
from millwheel.testing.checks.lifetimes import Lifetimes
from millwheel.testing.checks.truth import Durable, Element, Truth, apply_keys, element_of
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.checks.wire import Wire
from millwheel.testing.world.kernel import Kernel
from millwheel.work import InvocationOutcome
from millwheel_storage.fold import fold
from millwheel_storage.memory import MemoryStore

State = dict[str, dict[str, dict[tuple[str, str], bytes]]]
"""By computation, key and (cell, entry)."""


class QuietWire(Wire):
    """Bundles and acks between intervals rest on nothing durable.  Watermarks are heard before they are durable."""

    def __init__(self, truth: Truth, lifetimes: Lifetimes) -> None:
        super().__init__(truth)
        self._lifetimes = lifetimes

    def asked(self, request: StoreCall) -> None:
        """See `Wire`."""

    def told(self, interval: IntervalId, sequencer: Sequencer, seq: Seq, all_before: bool = False) -> None:
        """See `Wire`."""

    def saw_run(self, run: RunHooks, outcome: InvocationOutcome, process: int) -> None:
        """See `Wire`."""

    def heard(self, message: Message, process: int) -> None:
        """See `Wire`."""
        if isinstance(message, WatermarksRaised):
            self._lifetimes.told(message.inputs)

    def saw(self, message: Message, process: int) -> None:
        """See `Wire`."""


class CutStore(WatchedStore):
    """A `Store` that raises `Violation` when something is visible that is not of a declared epoch, or is not all of it."""

    def __init__(self, store: MemoryStore, graph: Graph, kernel: Kernel) -> None:
        super().__init__(store, graph, kernel)
        self.wire = QuietWire(self.truth, self.lifetimes)
        self.on_cut: Callable[[], None] = lambda: None
        """Called when an epoch was declared: `truth` and `inner` have all of it."""
        self.newest_declared = 0

    async def recover(self, interval: IntervalId, sequencer: Sequencer) -> RecoveredInterval | None:
        """See `Store`; what is visible stays as it was (I23), and a new owner begins with what is declared (I22)."""
        recovered = await self.inner.recover(interval, sequencer)
        if recovered is not None and self.truth.owner[interval] != sequencer:
            self.truth.fail(f"I5: interval {interval} recovered under the stale sequencer {sequencer}")
        self.check_requests()
        self._compare("a recovery")
        if recovered is not None:
            row = self.inner.intervals[interval]
            check_given(self.truth.durable[row.computation], row, recovered, self.truth.fail)
        return recovered

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store`; hooks are checked against what other hooks have left (`accounts`)."""
        return await self.inner.load(interval, keys, timers)

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        """See `Store`; only ids of records that an earlier owner has left are stored."""
        return await self.inner.find_ids(interval, subscription, producer, sequences)

    async def quarantined(self, interval: IntervalId, keys: Sequence[str], limit: int) -> list[QuarantineEntry]:
        """See `Store`; what is declared and waits first is read (I17)."""
        entries = await self.inner.quarantined(interval, keys, limit)
        name, read = self.truth.computation[interval], dict[str, list[Element]]()
        for entry in entries:
            read.setdefault(entry.key, []).append(element_of(entry))
        for key, found in read.items():
            waits = self.truth.durable[name].fifo.get(key, [])
            if found != waits[: len(found)]:
                self.truth.fail(f"I17: {found} is read of the quarantine of {key!r} in {name}, and {waits} waits", key)
        return entries

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[IntervalId, Seq]]:
        """See `Store`; an image changes nothing that is visible (I23)."""
        kept = await self.inner.commit(writes)
        for write in writes:
            if (write.interval, write.seq) not in kept:
                continue
            if write.sequencer != self.truth.owner[write.interval]:
                self.truth.fail(f"I5: interval {write.interval} committed under stale sequencer {write.sequencer}")
            if write.epoch <= 0 or write.sinks:
                self.truth.fail(f"I23: interval {write.interval} has written #{write.seq} outside of an epoch")
        self._compare("a commit")
        return kept

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store`; only what is declared is folded, and it stays what it was (I23)."""
        if write.epoch > self.inner.declared:
            self.truth.fail(f"I23: interval {write.interval} folds epoch {write.epoch}, which is not declared")
        kept = await self.inner.fold(write)
        if kept and self.truth.owner[write.interval] != write.sequencer:
            self.truth.fail(f"I5: interval {write.interval} folded under the stale sequencer {write.sequencer}")
        self.check_requests()
        self._compare("a fold")
        return kept

    async def declare(self, declaration: Declaration) -> bool:
        """See `Store`; it makes all of an epoch visible, once (I22, I23)."""
        try:
            kept = await super().declare(declaration)
        except RowRefused:
            self.truth.kernel.probes["epoch refused"] += 1
            self._compare("a refused epoch")
            raise
        if not kept:
            self.truth.kernel.probes["epoch fenced"] += 1
        elif declaration.epoch > self.newest_declared:
            self.newest_declared = declaration.epoch
            self._apply(declaration)
            self._compare("a declaration")
            self.on_cut()
        return kept

    def _apply(self, declaration: Declaration) -> None:
        kernel = self.truth.kernel
        kernel.trace(f"epoch {declaration.epoch} is declared")
        kernel.probes["epoch declared"] += 1
        parts = self._parts(declaration)
        before = self._expiring(parts)
        for place, image in parts:
            name = self.truth.computation[place[0]]
            apply_keys(self.truth.durable[name], image)
            self.truth.apply_line(name, image)
        for owner in declaration.owners.items():
            images = [image for place, image in parts if place[:2] == owner]
            expired = [key for image in images for key in image.forgotten]
            turns = (
                self.owned[owner].declared(declaration.epoch, images, self.truth.fail) if owner in self.owned else []
            )
            name = self.truth.computation[owner[0]]
            self.lifetimes.epoch(name, before.get(name, Durable()), turns, expired)
        for position in declaration.positions:
            _, producer = self._sources[position.interval]
            bound = MAX_TIME if position.finished else position.position
            if bound < self.truth.positions[producer]:
                self.truth.fail(f"I22: the position of producer {producer} goes back to {bound}")
            self.truth.positions[producer] = bound
            for (_, of), rows in self.truth.pending.items():
                for row in [row for row in rows if row < bound] if of == producer else ():
                    del rows[row]

    def _parts(self, declaration: Declaration) -> list[tuple[tuple[IntervalId, Sequencer, Seq], Checkpoint]]:
        """What intervals have written for the epoch."""
        found = []
        for place, write in sorted(self.inner.log.items()):
            if write.epoch == declaration.epoch:
                if declaration.owners.get(place[0]) != place[1]:
                    self.truth.fail(
                        f"I22: epoch {declaration.epoch} has an image of interval {place[0]} by another owner"
                    )
                found.append((place, decode_checkpoint(write.payload)))
        return found

    def _expiring(self, parts: Iterable[tuple[tuple[IntervalId, Sequencer, Seq], Checkpoint]]) -> dict[str, Durable]:
        """Keys that are about to expire, as they are, by computation."""
        found: dict[str, Durable] = {}
        for place, image in parts:
            name = self.truth.computation[place[0]]
            durable, kept = self.truth.durable[name], found.setdefault(name, Durable({}, {}, {}, {}))
            for key in image.forgotten:
                kept.state[key] = dict(durable.state.get(key, {}))
                kept.timers[key] = dict(durable.timers.get(key, {}))
                kept.holds.update({key: durable.holds[key]} if key in durable.holds else {})
                kept.fifo[key] = [*durable.fifo.get(key, ())]
        return found

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        """See `Store`; a watermark becomes durable with an epoch only (I22)."""
        self.truth.fail("I22: a watermark is persisted outside of an epoch")

    async def advance(self, writes: Sequence[PositionWrite]) -> set[IntervalId]:
        """See `Store`; a position becomes durable with an epoch only (I22)."""
        self.truth.fail("I22: a position is persisted outside of an epoch")

    def check_watermarks(self, logged: Iterable[tuple[str, int]] = ()) -> None:
        """What is stored with an epoch is not ahead of what the epoch leaves to be done: all goes back to it (I22).

        That is rows behind the positions, timers, holds, quarantines, and records in logs: `logged` are their receivers and
        times.  All sources keep their promises.
        """
        reached, left = self.inner.watermark, [*logged]
        left += [(self.truth.maker[of], min(rows.values())) for (_, of), rows in self.truth.pending.items() if rows]
        for name in self.truth.graph.computations:
            left += [(name, oldest) for _, oldest in self.truth.work_of(name)]
        for name, oldest in left:
            loop = self.truth.graph.loop_of(name)
            for bound in (name, loop.name) if loop else (name,):
                if reached.get(bound, MIN_TIME) > oldest:
                    self.truth.fail(
                        f"I22: epoch {self.newest_declared} stores {bound} at {reached[bound]}, and {name} has work of "
                        f"{oldest}"
                    )

    def _compare(self, what: str) -> None:
        """Everybody sees what was declared, and nothing else."""
        shown = visible(self.inner)
        for name, durable in self.truth.durable.items():
            if _full(shown.get(name, {})) != _full(durable.state):
                self.truth.fail(
                    f"I23: after {what}, the state of {name} that can be seen is not that of declared epochs"
                )


def visible(store: MemoryStore) -> State:
    """What a reader sees: the tables, and the log of declared epochs on top of them."""
    shown: State = {name: {key: dict(cells) for key, cells in keys.items()} for name, keys in store.key_state.items()}
    for interval, row in store.intervals.items():
        log = [write for place, write in sorted(store.log.items()) if place[0] == interval]
        folded = fold(decode_checkpoint(write.payload) for write in log if write.epoch <= store.declared)
        keys = shown.setdefault(row.computation, {})
        for key in folded.forgotten:
            keys.pop(key, None)
        for key in folded.state_keys():
            cells = keys.setdefault(key, {})
            for place, value in folded.cells_of(key).items():
                if value is None:
                    cells.pop(place, None)
                else:
                    cells[place] = value
    return shown


def _full(table: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[Any, Any]]:
    return {key: dict(entries) for key, entries in table.items() if entries}
