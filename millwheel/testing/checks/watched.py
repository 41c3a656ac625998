"""The memory store under observation, which checks the invariants of each call.  A simulation has no other way to its store.

Lives here: `WatchedStore`, which checks ownership, the order of the log, positions and watermarks at each write, against what
it knows by itself (`truth`).  Never here: what one checkpoint may hold (`truth`), messages between intervals (`wire`), or
culprits (`culprits`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from millwheel.bundles import (
    Checkpoint,
    KeyRows,
    LogWrite,
    QuarantineEntry,
    RecoveredInterval,
    StateRow,
    TimerPlace,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.errors import RowRefused
from millwheel.graph import Graph
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.loops import LOOP_PREFIX
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import (
    Declaration,
    FoldWrite,
    MarkWrite,
    Opened,
    PipelineShape,
    PositionWrite,
    SourcePosition,
    WatermarkWrite,
)
from millwheel.testing.checks.accounts import Owned
from millwheel.testing.checks.culprits import Culprits
from millwheel.testing.checks.folded_tables import FoldedTables
from millwheel.testing.checks.lifetimes import Lifetimes
from millwheel.testing.checks.truth import Truth
from millwheel.testing.checks.wire import Wire
from millwheel.testing.world.kernel import Kernel
from millwheel.work import Wanted
from millwheel_storage.memory import MemoryStore


class WatchedStore:
    """A `Store` that answers as the memory store does and raises `Violation` when an invariant breaks."""

    def __init__(self, store: MemoryStore, graph: Graph, kernel: Kernel, honest: frozenset[str] = frozenset()) -> None:
        self.inner = store
        self.truth = Truth(graph, kernel)
        self.wire = Wire(self.truth)
        self.culprits = Culprits(self.truth)
        self.tables = FoldedTables(graph, self.truth.fail)
        self.lifetimes = Lifetimes(self.truth)
        self.owned: dict[tuple[IntervalId, Sequencer], Owned] = {}
        """What the hooks of an interval have done, by its sequencer."""
        self.honest = honest
        """Computations whose watermark is checked exactly at every persist (I10)."""
        self.fed_again: frozenset[str] = frozenset()
        """Of these, the ones that get old records from what an earlier version of the pipeline did not feed."""
        self.feeds: Callable[[str], set[str]] = graph.bounds
        """What sends to a computation in every version of the pipeline."""
        self._seen: set[tuple[IntervalId, Sequencer, Seq]] = set()
        """(interval, sequencer, seq) of every checkpoint that became durable."""
        self._seqs: dict[tuple[IntervalId, Sequencer], Seq] = {}
        """(interval, sequencer) to the last checkpoint that became durable."""
        self._sources: dict[IntervalId, tuple[str, ProducerId]] = {}
        """Interval of a source partition to its source and its producer."""

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """See `Store`."""
        opened = await self.inner.open_pipeline(shape)
        self.truth.opened(opened)
        return opened

    async def acquire(self, intervals: Sequence[IntervalId]) -> dict[IntervalId, Sequencer]:
        """See `Store`; sequencers only ever rise (I5)."""
        taken = await self.inner.acquire(intervals)
        for interval, sequencer in taken.items():
            self.culprits.taken(interval)
            if sequencer <= self.truth.owner.get(interval, 0) or sequencer in self.truth.maker:
                self.truth.fail(f"I5: interval {interval} got sequencer {sequencer}, which is not new")
            self.truth.owner[interval] = sequencer
            if interval in self.truth.computation:
                self.truth.maker[sequencer] = self.truth.computation[interval]
        return taken

    async def reacquire(self, interval: IntervalId, sequencer: Sequencer) -> Sequencer | None:
        """See `Store`; only the owner gets a new sequencer, and it is new (I5)."""
        fresh = await self.inner.reacquire(interval, sequencer)
        if fresh is not None:
            if self.truth.owner[interval] != sequencer or fresh <= sequencer or fresh in self.truth.maker:
                self.truth.fail(
                    f"I5: interval {interval} got sequencer {fresh} after {sequencer}, which is not its owner's"
                )
            self.truth.owner[interval] = fresh
            self.truth.maker[fresh] = self.truth.computation[interval]
        return fresh

    async def recover(self, interval: IntervalId, sequencer: Sequencer) -> RecoveredInterval | None:
        """See `Store`; a new owner begins with exactly what is durable (I4)."""
        log = [
            decode_checkpoint(self.inner.log[place].payload) for place in sorted(self.inner.log) if place[0] == interval
        ]
        recovered = await self.inner.recover(interval, sequencer)
        if recovered is None:
            return None
        if self.truth.owner[interval] != sequencer:
            self.truth.fail(f"I5: interval {interval} recovered under the stale sequencer {sequencer}")
        row = self.inner.intervals[interval]
        self.tables.folded(self.inner, row, log)
        self.tables.recovered(row, recovered)
        self.check_requests()
        return recovered

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store`; what is read is what was folded (I4)."""
        rows = await self.inner.load(interval, keys, timers)
        self.tables.loaded(self.inner.intervals[interval], keys, rows)
        return rows

    async def load_slots(self, interval: IntervalId, wanted: Sequence[Wanted]) -> list[StateRow]:
        """See `Store`."""
        return await self.inner.load_slots(interval, wanted)

    async def load_timers(
        self, interval: IntervalId, sequencer: Sequencer, kind: str, after: TimerPlace, limit: int
    ) -> TimerWrites | None:
        """See `Store`; a stale owner must not read on (I5)."""
        page = await self.inner.load_timers(interval, sequencer, kind, after, limit)
        if page is not None and self.truth.owner[interval] != sequencer:
            self.truth.fail(f"I5: interval {interval} read timers under the stale sequencer {sequencer}")
        return page

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        """See `Store`; what was consumed durably and is not collected must be found (I14)."""
        found = await self.inner.find_ids(interval, subscription, producer, sequences)
        known = self.truth.consumed.get((subscription, producer), set())
        if not found <= known:
            self.truth.fail(
                f"I14: ids {sorted(found - known)} of producer {producer} are found, but nobody consumed them"
            )
        return found

    async def find_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """See `Store`."""
        return await self.inner.find_outside_ids(interval, subscription, now, ids)

    async def read_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, expires: int, after: bytes, limit: int
    ) -> list[bytes]:
        """See `Store`."""
        return await self.inner.read_outside_ids(interval, subscription, expires, after, limit)

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[IntervalId, Seq]]:
        """See `Store`; every row that becomes durable is checked."""
        before = set(self.inner.log)
        refusal: RowRefused | None = None
        try:
            kept = await self.inner.commit(writes)
        except RowRefused as error:  # what comes before the refused checkpoint may be durable
            refusal, log = error, self.inner.log
            kept = {(w.interval, w.seq) for w in writes if (w.interval, w.sequencer, w.seq) in log}
        applied: list[tuple[LogWrite, Checkpoint]] = []
        for write in writes:
            place = (write.interval, write.sequencer, write.seq)
            if (write.interval, write.seq) not in kept:
                # A merge may have put an end to the interval of a process that stood still.
                self.on_refused(self.truth.maker[write.sequencer], write)
                continue
            if place in before or place in self._seen:
                self._repeated(write)
            else:
                applied.append((write, self._applied(write)))
        for write, image in applied:
            self.on_commit(self.truth.computation[write.interval], write, image)
        if refusal is not None:
            self.culprits.check_refusal(refusal, kept, writes)
            raise refusal
        return kept

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store`; a stale owner must not fold (I5), and only what the log says is acked is left out (I2)."""
        interval, upto, owns = write.interval, write.upto, self.truth.owner[write.interval] == write.sequencer
        log = {p[2]: row for p, row in sorted(self.inner.log.items()) if p[:2] == (interval, write.sequencer)}
        later = [decode_checkpoint(row.payload) for seq, row in log.items() if seq > upto]
        recorded = [one for image in later for one in image.acked]
        if owns and any(one not in recorded for one in write.acked):
            self.truth.fail(f"I2: interval {interval} folds up to {upto} by acks that are not in its log")
        if any(image.epoch != write.epoch for image in write.images):
            self.truth.fail(f"I4: a fold of interval {interval} crosses the end of epoch {write.epoch}")
        stored = [decode_checkpoint(row.payload) for seq, row in log.items() if seq <= upto]
        kept = await self.inner.fold(write)
        if kept and not owns:
            self.truth.fail(f"I5: interval {interval} folded under the stale sequencer {write.sequencer}")
        if kept and stored and stored != list(write.images):
            self.truth.fail(f"I4: interval {interval} folds images that are not its committed log up to {upto}")
        if kept and stored:
            self.tables.folded(self.inner, self.inner.intervals[interval], stored, write.acked)
        self.check_requests()
        return kept

    def ask_redrive(self, computation: str, key: str) -> None:
        """Somebody asks for the redrive of a key that is in quarantine."""
        self.inner.request_redrive(computation, key)
        self.truth.asked.add((computation, key))

    def check_requests(self) -> None:
        """What was asked for and not answered by a release is still to be done (I2)."""
        lost = sorted(self.truth.asked - self.inner.folded.redrives.keys())
        if lost:
            self.truth.fail(
                f"I2: requests to redrive {lost} are gone, and the keys are in quarantine since before them"
            )

    async def rewind(self, owners: Mapping[IntervalId, Sequencer]) -> int | None:
        """See `Store`; only an owner goes back (I5)."""
        declared = await self.inner.rewind(owners)
        self._check_epoch_owners(declared is not None, owners)
        self.truth.owner |= {i: s for i, s in self.inner.ownership.items() if i in self.truth.computation}
        return declared

    async def declare(self, declaration: Declaration) -> bool:
        """See `Store`; only who owns all intervals declares an epoch (I5)."""
        kept = await self.inner.declare(declaration)
        self._check_epoch_owners(kept, declaration.owners)
        return kept

    def _check_epoch_owners(self, kept: bool, owners: Mapping[IntervalId, Sequencer]) -> None:
        stale = sorted(i for i, sequencer in owners.items() if self.truth.owner[i] != sequencer)
        if kept and stale:
            self.truth.fail(f"I5: an epoch is moved by who does not own {stale}")

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        """See `Store`; only who owns all that a value rests on persists it (I5), and one that rises is checked against all
        pending work (I10)."""
        before = dict(self.inner.watermark)
        kept = await self.inner.persist_watermarks(writes)
        for write in sorted(writes, key=lambda write: write.name):
            if write.name not in kept:
                continue
            self._check_owners(write)
            if write.value > before.get(write.name, write.value - 1):
                self.truth.kernel.trace(f"persists {write.name} {write.value}")
                self._check_watermark(write.name, write.value, before)
        for name in self.lifetimes.names() if kept else ():
            values = [self.inner.watermark.get(sender, MIN_TIME) for sender in self.feeds(name)]
            self.lifetimes.persisted(name, min(values, default=MIN_TIME))
            self.lifetimes.persisted(name, self.inner.watermark.get(name, MIN_TIME))  # from which a new owner goes on
        return kept

    async def still_owned(self, owners: Mapping[IntervalId, Sequencer]) -> set[IntervalId]:
        """See `Store`."""
        return await self.inner.still_owned(owners)

    async def behind_others(self, intervals: Collection[IntervalId]) -> set[IntervalId]:
        """See `Store`."""
        return await self.inner.behind_others(intervals)

    def _check_owners(self, write: WatermarkWrite) -> None:
        """The writer owns every interval of a computation, of a loop, or of those that a source feeds."""
        streams = {spec.stream for name, spec in self.truth.graph.sources.items() if f"source:{name}" == write.name}
        fed = {s.computation for s in self.truth.subscriptions.values() if s.stream in streams} or {write.name}
        fed = fed.union(*(loop.members for loop in self.truth.graph.loops if loop.name == write.name))
        rests = {i: self.truth.owner[i] for i, name in self.truth.computation.items() if name in fed}
        if not rests.items() <= write.owners.items():
            self.truth.fail(f"I5: the watermark of {write.name} is persisted by who does not own {sorted(rests)}")

    async def watermarks(self) -> dict[str, int]:
        """See `Store`."""
        return await self.inner.watermarks()

    async def open_source(self, source: str, states: Mapping[str, bytes]) -> list[SourcePosition]:
        """See `Store`."""
        positions = await self.inner.open_source(source, states)
        for position in positions:
            if position.producer not in self.truth.maker:
                self.truth.maker[position.producer] = f"source:{source}"
                self._sources[position.interval] = (source, position.producer)
                self.truth.positions[position.producer] = 0
                self.truth.script(source, position.partition, position.producer)
        return positions

    async def source_partitions(self, source: str) -> list[SourcePosition]:
        """See `Store`."""
        return await self.inner.source_partitions(source)

    async def unfinished_partitions(self) -> list[tuple[str, SourcePosition]]:
        """See `Store`."""
        return await self.inner.unfinished_partitions()

    async def unknown_signs(self, source: str, signs: Sequence[bytes]) -> set[bytes]:
        """See `Store`."""
        return await self.inner.unknown_signs(source, signs)

    async def find_partitions(self, source: str, signs: Sequence[bytes], names: Sequence[str]) -> list[SourcePosition]:
        """See `Store`."""
        return await self.inner.find_partitions(source, signs, names)

    async def add_signs(self, source: str, signs: Mapping[IntervalId, Sequence[bytes]]) -> None:
        """See `Store`."""
        await self.inner.add_signs(source, signs)

    async def advance(self, writes: Sequence[PositionWrite]) -> set[IntervalId]:
        """See `Store`; a position never passes a row that is not consumed (I2)."""
        kept = await self.inner.advance(writes)
        for write in writes:
            if write.interval not in kept:
                continue
            if self.truth.owner[write.interval] != write.sequencer:
                self.truth.fail(f"I5: source interval {write.interval} advanced by stale sequencer {write.sequencer}")
            _, producer = self._sources[write.interval]
            bound = MAX_TIME if write.finished else write.position
            self.truth.positions[producer] = max(bound, self.truth.positions[producer])
            for channel, rows in self.truth.pending.items():
                if channel[1] == producer and rows and min(rows) < bound:
                    self.truth.fail(f"I2: position {bound} of producer {producer} passes row {min(rows)} not consumed")
        return kept

    async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
        """See `Store`; only an owner says what runs (I5)."""
        kept = await self.inner.mark(writes)
        for write in writes:
            if write.interval in kept and self.truth.owner[write.interval] != write.sequencer:
                self.truth.fail(f"I5: interval {write.interval} marked by stale sequencer {write.sequencer}")
            if write.interval in kept:
                self.culprits.marked(write)
        return kept

    async def quarantined(self, interval: IntervalId, keys: Sequence[str], limit: int) -> list[QuarantineEntry]:
        """See `Store`; what waits first is read, and all of it that there is room for (I17)."""
        entries = await self.inner.quarantined(interval, keys, limit)
        self.tables.lines(self.truth.computation[interval], keys, limit, entries)
        return entries

    async def redrive_requests(self, start: tuple[str, str], limit: int) -> list[tuple[str, str]]:
        """See `Store`."""
        return await self.inner.redrive_requests(start, limit)

    async def close(self) -> None:
        """See `Store`."""

    def _repeated(self, write: LogWrite) -> None:
        self.truth.kernel.probes["commit found applied"] += 1
        stored = self.inner.log.get((write.interval, write.sequencer, write.seq))
        if stored is not None and stored.payload != write.payload:
            self.truth.fail(f"I3: seq {write.seq} of interval {write.interval} was committed again with other contents")

    def _applied(self, write: LogWrite) -> Checkpoint:
        image = decode_checkpoint(write.payload)
        # Tracebacks name files, so with them the same seed would have another trace in another directory.
        size = len(write.payload) - sum(len(entry.error.encode()) for entry in image.quarantined)
        self.truth.kernel.trace(f"durable i{write.interval} q{write.sequencer} #{write.seq} {size}")
        if write.sequencer != self.truth.owner[write.interval]:
            self.truth.fail(
                f"I5: interval {write.interval} committed #{write.seq} under stale sequencer {write.sequencer}"
            )
        place = (write.interval, write.sequencer)
        last = self._seqs.get(place, 0)
        if write.seq <= last:
            self.truth.fail(f"I4: interval {write.interval} committed #{write.seq} after #{last}")
        self._seqs[place] = write.seq
        self._seen.add((*place, write.seq))
        self._become_durable(write, image)
        return image

    def _become_durable(self, write: LogWrite, image: Checkpoint) -> None:
        """What hooks did is what their checkpoint says."""
        truth, name = self.truth, self.truth.computation[write.interval]
        owned = self.owned.get((write.interval, write.sequencer))
        if owned is not None:
            owned.before(write.seq, truth.fail)
        self.lifetimes.drops(name, image)
        if name in self.honest and name not in self.fed_again:
            self._check_productions(name, image)
        truth.apply(write.interval, (write.sequencer, write.seq), image)
        if owned is None:
            return
        turn = owned.became_durable(write.seq, image, truth.fail)
        for key in image.forgotten:
            owned.forgets(key, truth.fail)
        self.lifetimes.wrote(name, turn.lives if turn is not None else {})

    def _check_productions(self, name: str, image: Checkpoint) -> None:
        """Nothing begins behind a watermark or a floor that is persisted: others may count on it."""
        loop = self.truth.graph.loop_of(name)
        for bound in (name, loop.name) if loop else (name,):
            reached = self.inner.watermark.get(bound, MIN_TIME)
            oldest = min((min(produced.timestamps) for produced in image.produced), default=reached)
            if oldest < reached:
                self.truth.fail(f"I10: {name} produces a record of {oldest}, and {bound} is at {reached}")

    def on_commit(self, computation: str, write: LogWrite, image: Checkpoint) -> None:
        """A workload's own checks; `truth` already holds the checkpoint's effects."""

    def on_refused(self, computation: str, write: LogWrite) -> None:
        """A workload's own checks of a write that was fenced: it must have changed nothing."""

    def _check_watermark(self, name: str, value: int, before: Mapping[str, int]) -> None:
        if name.startswith("source:"):
            return
        if name.startswith(LOOP_PREFIX):
            self._check_floor(name, value, before)
            return
        for sender in sorted(self.feeds(name)):
            known = before.get(sender)
            if known is None or value > known:
                self.truth.fail(f"I10: {name} is at {value}, its sender {sender} at {known}")
        if name in self.honest:
            for what, oldest in self.truth.work_of(name):
                if oldest < value:
                    self.truth.fail(f"I10: watermark of {name} goes to {value}, but {what} is pending at {oldest}")

    def _check_floor(self, name: str, value: int, before: Mapping[str, int]) -> None:
        """No work of a loop is behind its floor, nor anything that may still come from outside."""
        loop = next(loop for loop in self.truth.graph.loops if loop.name == name)
        outside = set[str]().union(*map(self.feeds, loop.members)).difference(loop.members, {name})
        for sender in sorted(outside):
            known = before.get(sender)
            if known is None or value > known:
                self.truth.fail(f"I20: the floor of {name} goes to {value}, and {sender} sends into it from {known} on")
        self.truth.kernel.probes["floor of a loop raised"] += 1
        for member in loop.members if self.honest.issuperset(loop.members) else ():
            for what, oldest in self.truth.work_of(member):
                if oldest < value:
                    self.truth.fail(
                        f"I20: the floor of {name} goes to {value}, but {what} is pending in {member} at {oldest}"
                    )
