"""The memory store under observation when some runs of a pipeline become durable by checkpoints and others by epochs.

Lives here: `EitherStore`, which keeps one account of what is durable, whichever way it became so: records that are
consumed, ids that outside clients chose, productions that wait in the tables, and folded tables.  So a run under snapshots
is held to what a run under checkpoints has left, and the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.bundles import Checkpoint, KeyRows, LogWrite, QuarantineEntry, RecoveredInterval, decode_checkpoint
from millwheel.graph import Graph
from millwheel.host.alphabet import RunHooks
from millwheel.host.messages import Message, WatermarksRaised
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import MAX_TIME
from millwheel.ports import Declaration, FoldWrite, PositionWrite, WatermarkWrite
from millwheel.testing.checks.cuts import CutStore
from millwheel.testing.checks.lifetimes import Lifetimes
from millwheel.testing.checks.truth import Truth
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.checks.wire import Wire
from millwheel.testing.world.kernel import Kernel
from millwheel.work import InvocationOutcome
from millwheel_storage.memory import MemoryStore


class EitherWire(Wire):
    """What processes tell each other, of which some run under snapshots: what these send and ack rests on nothing durable."""

    def __init__(self, truth: Truth, lifetimes: Lifetimes) -> None:
        super().__init__(truth)
        self._lifetimes = lifetimes
        self.snapshots: set[int] = set()
        """Numbers of processes that run under snapshots."""

    def saw_run(self, run: RunHooks, outcome: InvocationOutcome, process: int) -> None:
        """See `Wire`."""
        if process not in self.snapshots:
            super().saw_run(run, outcome, process)

    def heard(self, message: Message, process: int) -> None:
        """See `Wire`."""
        if isinstance(message, WatermarksRaised):
            self._lifetimes.told(message.inputs)
        if process not in self.snapshots:
            super().heard(message, process)

    def saw(self, message: Message, process: int) -> None:
        """See `Wire`."""
        if process not in self.snapshots:
            super().saw(message, process)


class EitherStore(CutStore):
    """A `Store` that raises `Violation` when what one run has left is not what the next one goes on with."""

    def __init__(self, store: MemoryStore, graph: Graph, kernel: Kernel, honest: frozenset[str] = frozenset()) -> None:
        super().__init__(store, graph, kernel)
        self.honest = honest
        self.wire: EitherWire = EitherWire(self.truth, self.lifetimes)

    async def recover(self, interval: IntervalId, sequencer: Sequencer) -> RecoveredInterval | None:
        """See `Store`; what is valid of the log comes into the tables, and nothing else of it (I4, I23)."""
        log = self.valid_log(interval)
        recovered = await super().recover(interval, sequencer)
        if recovered is not None:
            row = self.inner.intervals[interval]
            self.tables.folded(self.inner, row, log)
            self.tables.recovered(row, recovered)
        return recovered

    def valid_log(self, interval: IntervalId) -> list[Checkpoint]:
        """What counts of the log of an interval."""
        writes = [self.inner.log[place] for place in sorted(self.inner.log) if place[0] == interval]
        return [decode_checkpoint(write.payload) for write in writes if write.epoch <= self.inner.declared]

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store`."""
        return await WatchedStore.load(self, interval, keys, timers)

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        """See `Store`."""
        return await WatchedStore.find_ids(self, interval, subscription, producer, sequences)

    async def quarantined(self, interval: IntervalId, keys: Sequence[str], limit: int) -> list[QuarantineEntry]:
        """See `Store`."""
        return await WatchedStore.quarantined(self, interval, keys, limit)

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[IntervalId, Seq]]:
        """See `Store`; a row of an epoch changes nothing that is visible, and any other one does at once."""
        if any(write.epoch for write in writes):
            return await super().commit(writes)
        return await WatchedStore.commit(self, writes)

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store`."""
        if write.epoch > self.inner.declared:
            self.truth.fail(f"I23: interval {write.interval} folds epoch {write.epoch}, which is not declared")
        kept = await WatchedStore.fold(self, write)
        self._compare("a fold")
        return kept

    def _apply(self, declaration: Declaration) -> None:
        self._pass_rows(declaration.positions)
        parts = self._parts(declaration)
        for place, image in parts:
            self.truth.apply_records(place[0], place[1:], image)
        super()._apply(declaration)
        for place, image in parts:  # what one interval acks, another one may have consumed in the same epoch
            self._pass_acked(image)
            self.truth.apply_productions(place[0], place[1:], image)

    def _pass_acked(self, image: Checkpoint) -> None:
        """Where records are not deduplicated no ids say what has run, and acks do."""
        for acked in image.acked:
            channel = (acked.subscription, acked.producer)
            if not self.truth.exact(acked.subscription):
                self.truth.consumed.setdefault(channel, set()).update(acked.sequences)
                for sequence in acked.sequences:
                    self.truth.pending.get(channel, {}).pop(sequence, None)

    def _pass_rows(self, positions: Sequence[PositionWrite]) -> None:
        """Rows before the positions of an epoch are consumed."""
        for position in positions:
            _, producer = self._sources[position.interval]
            bound = MAX_TIME if position.finished else position.position
            for channel, rows in self.truth.produced.items():
                if channel[1] == producer:
                    passed = [row for row in rows if row < bound]
                    self.truth.consumed.setdefault(channel, set()).update(passed)

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        """See `Store`."""
        return await WatchedStore.persist_watermarks(self, writes)

    async def advance(self, writes: Sequence[PositionWrite]) -> set[IntervalId]:
        """See `Store`."""
        return await WatchedStore.advance(self, writes)

    def on_commit(self, computation: str, write: LogWrite, image: Checkpoint) -> None:
        """See `WatchedStore`."""
        self.on_durable(computation, image)

    def on_durable(self, computation: str, image: Checkpoint) -> None:
        """A workload's own checks of a checkpoint."""
