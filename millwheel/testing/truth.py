"""The memory store under observation: what is durable, kept a second time and by other means, and the invariants.

Lives here: `WatchedStore`, the only way of a simulation to its store, and the checks that can be made at the moment of
a write, a send or an ack.  It does not trust the store: it tracks ownership, order, ids and pending work by itself.
Numbers in messages (I1 … I17) are those of the project's list of invariants, `docs/testing.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from millwheel import limits
from millwheel.bundles import (
    Bundle,
    Checkpoint,
    KeyRows,
    LogWrite,
    QuarantineEntry,
    Recovered,
    StateRow,
    TimerPlace,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.core.suspects import Suspicion, Unit, read_mark
from millwheel.errors import RowRefused
from millwheel.graph import Graph, SubscriptionSpec
from millwheel.model import MAX_TIME
from millwheel.ports import FoldWrite, MarkWrite, Opened, PipelineShape, PositionWrite, QuarantineRow, SourcePosition
from millwheel.testing.sources import ScriptedSource
from millwheel.testing.story import Kernel, Violation
from millwheel.work import QUARANTINE_HOLD, Slot, Wanted
from millwheel_storage.memory import MemoryStore

Channel = tuple[int, int]
Payload = tuple[str, bytes, int]


class Durable(msgspec.Struct):
    """What is durable of one computation, by key."""

    state: dict[str, dict[Slot, bytes]] = {}
    timers: dict[str, dict[tuple[str, str], int]] = {}
    holds: dict[str, int] = {}
    fifo: dict[str, list[tuple[int, str, int]]] = {}
    """key to (subscription, kind, timestamp) of its quarantine."""


class WatchedStore:
    """A `Store` that answers as the memory store does and raises `Violation` when an invariant breaks."""

    def __init__(self, store: MemoryStore, graph: Graph, kernel: Kernel, honest: frozenset[str] = frozenset()) -> None:
        self.inner = store
        self.graph = graph
        self.kernel = kernel
        self.honest = honest
        """Computations whose watermark is checked exactly at every persist (I10)."""
        self.durable: dict[str, Durable] = {name: Durable({}, {}, {}, {}) for name in graph.computations}
        self.consumed: dict[Channel, set[int]] = {}
        self.produced: dict[Channel, dict[int, Payload]] = {}
        self.pending: dict[Channel, dict[int, int]] = {}
        """Durable and not durably consumed: sequence to timestamp."""
        self.opaque: dict[tuple[int, int], dict[bytes, int]] = {}
        """(interval, subscription) to the ids that outside clients chose, and when they expire."""
        self.maker: dict[int, str] = {}
        """Producer to computation, or "source:name"."""
        self.subscriptions: dict[int, SubscriptionSpec] = {}
        self.owner: dict[int, int] = {}
        self.seqs: dict[tuple[int, int], int] = {}
        self.failures: list[tuple[str, QuarantineEntry]] = []
        """(computation, element) of every hook that failed to the last attempt, in order."""
        self._computation: dict[int, str] = {}
        self._refused: dict[int, dict[bytes, tuple[int, int]]] = {}
        """Interval to refused row to (sequencer, seq) of its checkpoint."""
        self._marks: dict[int, tuple[int, Suspicion]] = {}
        """Interval to its mark, and the sequencer under which it was written."""
        self._kills: dict[int, Counter[Unit]] = {}
        """Interval to what has killed a process while it ran alone, and how many since the last orderly end."""
        self._in_flight: dict[tuple[int, int, int, int], Bundle] = {}
        self._sources: dict[int, tuple[str, int]] = {}

    def fail(self, message: str, word: str = "") -> None:
        """An invariant broke."""
        raise Violation(message, self.kernel.story(word))

    # --- the store's calls ------------------------------------------------------------------------------------

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """See `Store`."""
        opened = await self.inner.open_pipeline(shape)
        specs = {s.name: s for c in self.graph.computations.values() for s in c.inputs}
        self.subscriptions = {number: specs[name] for name, number in opened.subscriptions.items()}
        self._computation = {row.id: row.computation for row in opened.intervals}
        return opened

    async def acquire(self, intervals: Sequence[int]) -> dict[int, int]:
        """See `Store`; sequencers only ever rise (I5)."""
        taken = await self.inner.acquire(intervals)
        for interval, sequencer in taken.items():
            self._refused.pop(interval, None)  # another process: it does not know
            if sequencer <= self.owner.get(interval, 0) or sequencer in self.maker:
                self.fail(f"I5: interval {interval} got sequencer {sequencer}, which is not new")
            self.owner[interval] = sequencer
            if interval in self._computation:
                self.maker[sequencer] = self._computation[interval]
        return taken

    async def reacquire(self, interval: int, sequencer: int) -> int | None:
        """See `Store`; only the owner gets a new sequencer, and it is new (I5)."""
        fresh = await self.inner.reacquire(interval, sequencer)
        if fresh is not None:
            if self.owner[interval] != sequencer or fresh <= sequencer or fresh in self.maker:
                self.fail(f"I5: interval {interval} got sequencer {fresh} after {sequencer}, which is not its owner's")
            self.owner[interval] = fresh
            self.maker[fresh] = self._computation[interval]
        return fresh

    async def recover(self, interval: int, sequencer: int) -> Recovered | None:
        """See `Store`."""
        recovered = await self.inner.recover(interval, sequencer)
        if recovered is not None and self.owner[interval] != sequencer:
            self.fail(f"I5: interval {interval} recovered under the stale sequencer {sequencer}")
        return recovered

    async def load(self, interval: int, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store`."""
        return await self.inner.load(interval, keys, timers)

    async def load_slots(self, interval: int, wanted: Sequence[Wanted]) -> list[StateRow]:
        """See `Store`."""
        return await self.inner.load_slots(interval, wanted)

    async def load_timers(
        self, interval: int, sequencer: int, kind: str, after: TimerPlace, limit: int
    ) -> TimerWrites | None:
        """See `Store`; a stale owner must not read on (I5)."""
        page = await self.inner.load_timers(interval, sequencer, kind, after, limit)
        if page is not None and self.owner[interval] != sequencer:
            self.fail(f"I5: interval {interval} read timers under the stale sequencer {sequencer}")
        return page

    async def find_ids(self, interval: int, subscription: int, producer: int, sequences: Sequence[int]) -> set[int]:
        """See `Store`; what was consumed durably and is not collected must be found (I14)."""
        found = await self.inner.find_ids(interval, subscription, producer, sequences)
        known = self.consumed.get((subscription, producer), set())
        if not found <= known:
            self.fail(f"I14: ids {sorted(found - known)} of producer {producer} are found, but nobody consumed them")
        return found

    async def find_opaque(self, interval: int, subscription: int, now: int, ids: Sequence[bytes]) -> set[bytes]:
        """See `Store`."""
        return await self.inner.find_opaque(interval, subscription, now, ids)

    async def read_opaque(
        self, interval: int, subscription: int, expires: int, after: bytes, limit: int
    ) -> list[bytes]:
        """See `Store`."""
        return await self.inner.read_opaque(interval, subscription, expires, after, limit)

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[int, int]]:
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
                self.on_refused(self._computation[write.interval], write)
                continue
            if place in before or write.seq <= self.seqs.get(place[:2], 0):
                self._repeated(write)
            else:
                applied.append((write, self._applied(write)))
        for write, image in applied:
            self.on_commit(self._computation[write.interval], write, image)
        if refusal is not None:
            self._check_refusal(refusal, kept, writes)
            raise refusal
        return kept

    def _check_refusal(self, refusal: RowRefused, kept: set[tuple[int, int]], writes: Sequence[LogWrite]) -> None:
        """Nothing is durable from a refused checkpoint on; what wrote its row runs again if it is redriven (I16)."""
        if any(interval == refusal.interval and seq >= refusal.seq for interval, seq in kept):
            self.fail(f"I16: interval {refusal.interval} has committed past #{refusal.seq}, which was refused")
        write = next(w for w in writes if (w.interval, w.seq) == (refusal.interval, refusal.seq))
        image = decode_checkpoint(write.payload)
        self.kernel.probes["redrive refused"] += bool(image.redriven)
        if image.redriven or image.opaque:
            return  # of the rows with one id of an outside client, another one may run now, and write the same
        known, place = self._refused.setdefault(write.interval, {}), (write.sequencer, write.seq)
        for row in (write.sinks[row].values for row, _ in refusal.rows):
            if known.setdefault(row, place) != place:  # the same one may be tried again: its reply was lost
                self.fail(f"I16: interval {write.interval} has run again what wrote the refused row {row!r}")

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store`; a stale owner must not fold (I5), and only what the log says is acked is left out (I2)."""
        interval, upto, owns = write.interval, write.upto, self.owner[write.interval] == write.sequencer
        log = {p[2]: row for p, row in sorted(self.inner.log.items()) if p[:2] == (interval, write.sequencer)}
        later = [decode_checkpoint(row.payload) for seq, row in log.items() if seq > upto]
        recorded = [one for image in later for one in image.acked]
        if owns and any(one not in recorded for one in write.acked):
            self.fail(f"I2: interval {interval} folds up to {upto} by acks that are not in its log")
        stored = [decode_checkpoint(row.payload) for seq, row in log.items() if seq <= upto]
        kept = await self.inner.fold(write)
        if kept and not owns:
            self.fail(f"I5: interval {interval} folded under the stale sequencer {write.sequencer}")
        if kept and stored and stored != list(write.images):
            self.fail(f"I4: interval {interval} folds images that are not its committed log up to {upto}")
        return kept

    async def persist_watermarks(self, values: Mapping[str, int]) -> None:
        """See `Store`; a value that rises is checked against all pending work (I10)."""
        for name, value in sorted(values.items()):
            if value > self.inner.watermark.get(name, value - 1):
                self.kernel.trace(f"persists {name} {value}")
                self._check_watermark(name, value)
        await self.inner.persist_watermarks(values)

    async def watermarks(self) -> dict[str, int]:
        """See `Store`."""
        return await self.inner.watermarks()

    async def open_source(self, source: str, partition: str, state: bytes) -> SourcePosition:
        """See `Store`."""
        position = await self.inner.open_source(source, partition, state)
        if position.producer not in self.maker:
            self.maker[position.producer] = f"source:{source}"
            self._sources[position.interval] = (source, position.producer)
            self._script(source, partition, position.producer)
        return position

    async def source_partitions(self, source: str) -> list[SourcePosition]:
        """See `Store`."""
        return await self.inner.source_partitions(source)

    async def advance(self, writes: Sequence[PositionWrite]) -> set[int]:
        """See `Store`; a position never passes a row that is not consumed (I2)."""
        kept = await self.inner.advance(writes)
        for write in writes:
            if write.interval not in kept:
                continue
            if self.owner[write.interval] != write.sequencer:
                self.fail(f"I5: source interval {write.interval} advanced by stale sequencer {write.sequencer}")
            _, producer = self._sources[write.interval]
            bound = MAX_TIME if write.finished else write.position
            for channel, rows in self.pending.items():
                if channel[1] == producer and rows and min(rows) < bound:
                    self.fail(f"I2: position {bound} of producer {producer} passes row {min(rows)} not consumed")
        return kept

    async def mark(self, writes: Sequence[MarkWrite]) -> set[int]:
        """See `Store`; only an owner says what runs (I5)."""
        kept = await self.inner.mark(writes)
        for write in writes:
            if write.interval in kept and self.owner[write.interval] != write.sequencer:
                self.fail(f"I5: interval {write.interval} marked by stale sequencer {write.sequencer}")
            if write.interval in kept:
                self._marks[write.interval] = (write.sequencer, read_mark(write.mark))
                if write.ends == 0:
                    self._kills.pop(write.interval, None)
        return kept

    def saw_kill(self, interval: int, sequencer: int, running: list[Unit]) -> None:
        """A hook ended the process that ran it; `running` was marked before, if anything was (I16)."""
        if self.owner[interval] != sequencer:
            return
        owner, mark = self._marks.get(interval, (0, Suspicion()))
        if running and (owner != sequencer or mark.running != running):
            self.fail(f"I16: interval {interval} ran {running}, which kills, and the store does not know")
        condemned = {(key, digest) for key, digest, deaths in mark.deaths if deaths >= limits.DEATHS_LIMIT}
        if not condemned.isdisjoint(running):
            self.fail(f"I16: interval {interval} runs {running}, of which some has killed often enough")
        for other, (marker, suspicion) in self._marks.items():
            if other != interval and self.owner[other] == marker and suspicion.alone:
                self.fail(f"I16: interval {interval} killed while interval {other} ran {suspicion.running} alone")
        if running and mark.alone:
            kills = self._kills.setdefault(interval, Counter())
            kills[running[0]] += 1
            if kills[running[0]] > limits.DEATHS_LIMIT:
                self.fail(f"I16: interval {interval} runs {running} again, which has killed {kills} processes alone")

    async def quarantine_rows(self, computation: str, key: str, limit: int) -> list[QuarantineRow]:
        """See `Store`."""
        return await self.inner.quarantine_rows(computation, key, limit)

    async def redrive_requests(self) -> list[tuple[str, str]]:
        """See `Store`."""
        return await self.inner.redrive_requests()

    async def close(self) -> None:
        """See `Store`."""

    # --- what a write makes durable ------------------------------------------------------------------------------

    def _script(self, source: str, partition: str, producer: int) -> None:
        """All rows of a source partition are pending from the start."""
        spec = self.graph.sources[source]
        if not isinstance(spec.source, ScriptedSource):
            return
        rows = next(s.rows for s in spec.source.scripts if s.name == partition)
        encode = self.graph.streams[spec.stream].coder.encode
        for number, subscription in self.subscriptions.items():
            if subscription.stream != spec.stream:
                continue
            keyed = {i: (k, encode(v), t) for i, (v, t) in enumerate(rows) if (k := subscription.key(v)) is not None}
            self.produced[number, producer] = keyed
            self.pending[number, producer] = {i: t for i, (_, _, t) in keyed.items()}

    def _repeated(self, write: LogWrite) -> None:
        self.kernel.probes["commit found applied"] += 1
        stored = self.inner.log.get((write.interval, write.sequencer, write.seq))
        if stored is not None and stored.payload != write.payload:
            self.fail(f"I3: seq {write.seq} of interval {write.interval} was committed again with other contents")

    def _applied(self, write: LogWrite) -> Checkpoint:
        image = decode_checkpoint(write.payload)
        # Tracebacks name files: with them the same seed would have another trace in another directory.
        size = len(write.payload) - sum(len(entry.error.encode()) for entry in image.quarantined)
        self.kernel.trace(f"durable i{write.interval} q{write.sequencer} #{write.seq} {size}")
        if write.sequencer != self.owner[write.interval]:
            self.fail(f"I5: interval {write.interval} committed #{write.seq} under stale sequencer {write.sequencer}")
        place = (write.interval, write.sequencer)
        last = self.seqs.get(place, 0)
        if write.seq <= last:
            self.fail(f"I4: interval {write.interval} committed #{write.seq} after #{last}")
        self.seqs[place] = write.seq
        name = self._computation[write.interval]
        self._apply_ids(name, image)
        self._apply_opaque(write.interval, image)
        self._apply_productions(write, image)
        self._apply_keys(self.durable[name], image)
        self._apply_fifo(name, image)
        return image

    def on_commit(self, computation: str, write: LogWrite, image: Checkpoint) -> None:
        """A workload's own checks; `durable` already holds the checkpoint's effects."""

    def on_refused(self, computation: str, write: LogWrite) -> None:
        """A workload's own checks of a write that was fenced: it must have changed nothing."""

    def _apply_ids(self, name: str, image: Checkpoint) -> None:
        for ids in image.ids:
            channel = (ids.subscription, ids.producer)
            spec = self.subscriptions[ids.subscription]
            if spec.computation != name:
                self.fail(f"I3: {name} consumed ids of subscription {spec.name!r}")
            known = self.consumed.setdefault(channel, set())
            again = known.intersection(ids.sequences)
            if again:
                self.fail(f"I1: {name} consumed {sorted(again)} of {spec.name!r} from producer {ids.producer} twice")
            known.update(ids.sequences)
            pending = self.pending.get(channel, {})
            for sequence in ids.sequences:
                pending.pop(sequence, None)
            if pending and min(pending) < ids.frontier:
                self.fail(
                    f"I14: {name} may collect ids of {spec.name!r} from producer {ids.producer} below {ids.frontier}, "
                    f"but {min(pending)} is not consumed"
                )

    def _apply_opaque(self, interval: int, image: Checkpoint) -> None:
        for opaque in image.opaque:
            if not opaque.ids:
                self.kernel.probes["outside ids expired"] += 1
            taken = self.opaque.setdefault((interval, opaque.subscription), {})
            for id_ in opaque.ids:
                if taken.get(id_, 0) >= opaque.expires - 1:
                    self.fail(f"I1: interval {interval} takes the outside id {id_!r} twice within its slack")
                taken[id_] = opaque.expires

    def _apply_productions(self, write: LogWrite, image: Checkpoint) -> None:
        for produced in image.produced:
            channel = (produced.subscription, produced.producer)
            rows = self.produced.setdefault(channel, {})
            pending = self.pending.setdefault(channel, {})
            columns = zip(produced.keys, produced.values, produced.timestamps, strict=True)
            for sequence, row in enumerate(columns, produced.first):
                if rows.setdefault(sequence, row) != row:
                    self.fail(f"I3: production {sequence} of producer {produced.producer} changed")
                if sequence not in self.consumed.get(channel, ()):
                    pending[sequence] = row[2]
        for acked in image.acked:
            channel = (acked.subscription, acked.producer)
            if not self._exact(acked.subscription):
                continue
            lost = set(acked.sequences) - self.consumed.get(channel, set())
            if lost:
                self.fail(f"I2: interval {write.interval} records acks of {sorted(lost)}, which nobody consumed")

    def _apply_keys(self, durable: Durable, image: Checkpoint) -> None:
        for key in image.forgotten:
            durable.state.pop(key, None)
            durable.timers.pop(key, None)
            durable.holds.pop(key, None)
            self.kernel.probes["key expired"] += 1
        for key, cell, entry, value in image.state.rows():
            _put(durable.state, key, (cell, entry), value)
        timers = image.timers
        for key, kind, tag, at in zip(timers.keys, timers.kinds, timers.tags, timers.timestamps, strict=True):
            _put(durable.timers, key, (kind, tag), at)
        for key, at in zip(image.holds.keys, image.holds.timestamps, strict=True):
            if at is None:
                durable.holds.pop(key, None)
            else:
                durable.holds[key] = at

    def _apply_fifo(self, name: str, image: Checkpoint) -> None:
        fifo = self.durable[name].fifo
        for key in image.released:
            self.kernel.probes["quarantine redriven"] += 1
            if fifo.pop(key, []):
                self.fail(f"I2: {name} released the quarantine of {key!r} with elements in it")
        for entry in image.quarantined:
            fifo.setdefault(entry.key, []).append((entry.subscription, entry.kind, entry.timestamp))
            self.kernel.probes["record quarantined"] += 1
            if entry.error:
                self.failures.append((name, entry))
        for key, count in image.redriven:
            del fifo[key][:count]

    # --- sends and acks ---------------------------------------------------------------------------------------

    def _exact(self, subscription: int) -> bool:
        spec = self.graph.computations[self.subscriptions[subscription].computation]
        return spec.settings.exactly_once

    def saw_send(self, interval: int, sequencer: int, bundle: Bundle, process: int) -> None:
        """A bundle leaves: strong productions are durable by now (I7), frontiers below everything pending (I14)."""
        self._in_flight[process, interval, bundle.number, bundle.target] = bundle
        channel = (bundle.subscription, bundle.producer)
        pending = self.pending.get(channel, {})
        if pending and bundle.frontier > min(pending) and self._exact(bundle.subscription):
            self.fail(
                f"I14: interval {interval} advertises frontier {bundle.frontier} for producer {bundle.producer}, "
                f"but {min(pending)} is not consumed"
            )
        name = self._computation.get(interval)
        if name is None or self.graph.computations[name].settings.productions == "weak":
            return
        rows = self.produced.get(channel, {})
        for sequence, *row in zip(bundle.sequences, bundle.keys, bundle.values, bundle.timestamps, strict=True):
            if rows.get(sequence) != tuple(row):
                self.fail(f"I7: interval {interval} sends {sequence} of producer {bundle.producer}, not as committed")

    def saw_ack(self, interval: int, sender: int, number: int, process: int) -> None:
        """An ack leaves: what it acks is consumed durably (I2)."""
        bundle = self._in_flight.get((process, sender, number, interval))
        if bundle is None:
            self.fail(f"I3: interval {interval} acks bundle {number} of {sender}, which was never sent to it")
            return
        channel = (bundle.subscription, bundle.producer)
        known = self.consumed.setdefault(channel, set())
        if not self._exact(bundle.subscription):
            known.update(bundle.sequences)
            for sequence in bundle.sequences:
                self.pending.get(channel, {}).pop(sequence, None)
            return
        lost = [sequence for sequence in bundle.sequences if sequence not in known]
        if lost:
            self.fail(f"I2: interval {interval} acks {lost} of producer {bundle.producer}, not consumed durably")

    # --- watermarks -------------------------------------------------------------------------------------------

    def _check_watermark(self, name: str, value: int) -> None:
        if name.startswith("source:"):
            return
        for sender in sorted(self.graph.senders(name)):
            known = self.inner.watermark.get(sender)
            if known is None or value > known:
                self.fail(f"I10: {name} is at {value}, its sender {sender} at {known}")
        if name in self.honest:
            for what, oldest in self.work_of(name):
                if oldest < value:
                    self.fail(f"I10: watermark of {name} goes to {value}, but {what} is pending at {oldest}")

    def work_of(self, name: str) -> list[tuple[str, int]]:
        """(what, oldest timestamp us) of everything durable that `name` still has to do or to deliver."""
        durable = self.durable[name]
        waits = self.graph.computations[name].settings.quarantine_holds
        found = [
            (f"timer {tag!r} of {key!r}", at)
            for key, timers in durable.timers.items()
            for (kind, tag), at in timers.items()
            if kind == "watermark" and (waits or not durable.fifo.get(key))
        ]
        found += [(f"hold of {key!r}", at) for key, at in durable.holds.items()]
        for (subscription, producer), rows in self.pending.items():
            spec = self.subscriptions[subscription]
            if rows and (spec.computation == name or self.maker.get(producer) == name):
                found.append((f"a record on {spec.name!r} from producer {producer}", min(rows.values())))
        if waits:
            for key, entries in durable.fifo.items():
                times = [t for sub, kind, t in entries if sub >= 0 or kind == "watermark"]
                found += [(f"quarantine of {key!r}", min(times))] if times else []
        return found

    # --- the end ----------------------------------------------------------------------------------------------

    def check_end(self) -> None:
        """After an orderly end: nothing is pending, the folded tables say what the checkpoints said (I2, I4, I15)."""
        store = self.inner
        for (subscription, producer), rows in self.pending.items():
            if rows:
                name = self.subscriptions[subscription].name
                self.fail(f"I2: {name!r} never consumed {sorted(rows)[:5]} of producer {producer}")
        if store.log:
            self.fail(f"I15: {len(store.log)} checkpoints are not folded at the end")
        leftover = {i: rows for i, channels in store.folded.productions.items() for rows in channels.values() if rows}
        if leftover:
            self.fail(f"I15: productions are left in the store: {leftover}")
        asked = sorted(place for place in store.folded.redrives if place not in store.quarantine)
        if asked:
            self.fail(f"I15: requests to redrive {asked} are left, and nothing is in quarantine there")
        for name, durable in self.durable.items():
            held = {key for key in durable.holds if key.endswith(QUARANTINE_HOLD)}
            empty = held - {key + QUARANTINE_HOLD for key, entries in durable.fifo.items() if entries}
            if empty:
                self.fail(f"I10: {name} is held by quarantines with nothing in them: {sorted(empty)}")
        current = set(self.owner.values())
        for interval, frontiers in store.folded.frontiers.items():
            retired = sorted(producer for _, producer in frontiers if producer not in current)
            if retired and self.graph.computations[self._computation[interval]].settings.exactly_once:
                self.fail(f"I15: interval {interval} keeps frontiers of producers {retired}, which are retired")
        self._check_tables()

    def _check_tables(self) -> None:
        store = self.inner
        for name, durable in self.durable.items():
            if _full(durable.state) != _full(store.key_state.get(name, {})):
                self.fail(f"I4: folded state of {name} is not what its checkpoints say")
            if _full(durable.timers) != _full(store.folded.timers.get(name, {})):
                self.fail(f"I4: folded timers of {name} are not what its checkpoints say")
            if durable.holds != store.folded.holds.get(name, {}):
                self.fail(f"I4: folded holds of {name} are not what its checkpoints say")
            stored = {k: len(rows) for (c, k), rows in store.quarantine.items() if c == name}
            if {k: len(rows) for k, rows in durable.fifo.items() if rows} != stored:
                self.fail(f"I4: folded quarantine of {name} is not what its checkpoints say")

    def delivered(self) -> int:
        """Ids that the store still keeps."""
        return sum(len(ids) for channels in self.inner.folded.delivered.values() for ids in channels.values())


def _put(table: dict[str, dict[Any, Any]], key: str, place: object, value: object) -> None:
    entries = table.setdefault(key, {})
    if value is None:
        entries.pop(place, None)
        if not entries:
            del table[key]
    else:
        entries[place] = value


def _full(table: Mapping[str, Mapping[Any, Any]]) -> dict[str, dict[Any, Any]]:
    return {key: dict(entries) for key, entries in table.items() if entries}
