"""The store in memory: the twin of `PostgresStore`, for the simulator and for tests.

Lives here: the calls of `Store` in plain dicts: ownership, the log, sinks, progress, and who may do what.  Never here: what
happens when a store is opened (`opened`), what a fold does to the tables (`tables`), psycopg, or an `await`.  A coroutine of
this store ends at its first step, so the simulator drives it without an event loop.  Every call is atomic because nothing
interrupts it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import NoReturn

import msgspec

from millwheel import limits
from millwheel.bundles import (
    KeyRows,
    LogWrite,
    QuarantineEntry,
    RecoveredInterval,
    StateRow,
    TimerPlace,
    TimerWrites,
)
from millwheel.errors import RowRefused, StoreError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import MIN_TIME
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
from millwheel.work import Wanted
from millwheel_storage.decisions import check_unused
from millwheel_storage.decode import decode_image, timer_writes
from millwheel_storage.fold import check_fresh, check_prefix, fold
from millwheel_storage.memory import opened
from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.releases import releases
from millwheel_storage.schema.shape_checks import SOURCE_PREFIX, holds_key
from millwheel_storage.sink_rows import blame, coalesce, parts, sink_intervals


class SoloMemoryStore(MemoryContents):
    """A `Store` in this process.  It lives as long as the object: a "restart" is opening the same object
    again.  `clock` is the clock of the database, us, which judges leases.

    >>> store = SoloMemoryStore()
    >>> shape = PipelineShape("demo", {"count": ()}, {}, {}, (), ())
    >>> store.open_pipeline(shape).send(None)
    Traceback (most recent call last):
    StopIteration: Opened(intervals=(IntervalRow(id=1, computation='count', low='', high=None),), subscriptions={})
    """

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """See `Store.open_pipeline`."""
        return opened.open_pipeline(self, shape)

    async def acquire(self, intervals: Sequence[IntervalId]) -> dict[IntervalId, Sequencer]:
        """See `Store.acquire`."""
        for interval in intervals:
            self.row(interval)
        check_unused(self.shape.name if self.shape else "", self.agreements.living())
        self.agreements.taken_outside({*intervals})
        return self.fence(set(intervals))

    async def reacquire(self, interval: IntervalId, sequencer: Sequencer) -> Sequencer | None:
        """See `Store.reacquire`; a number is used up in any case, as by its twin."""
        fresh = self.next_sequencer()
        if self.ownership[interval] != sequencer:
            return None
        self.ownership[interval] = fresh
        return fresh

    async def recover(self, interval: IntervalId, sequencer: Sequencer) -> RecoveredInterval | None:
        """See `Store.recover`."""
        if self.ownership.get(interval) != sequencer:  # one that was merged away has no owner
            return None
        row = self.row(interval)
        self.fold_log(row)
        ends, suspicion = self.suspicions.get(interval, (0, b""))
        self.suspicions[interval] = ends + 1, suspicion
        return self.folded.recovered(row, self.watermark.get(row.computation, MIN_TIME), ends, suspicion)

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store.load`."""
        computation = self.row(interval).computation
        stored = self.key_state.get(computation, {})
        pending = self.folded.timers.get(computation, {}) if timers else {}
        rows = []
        for key in sorted(set(keys)):
            cells, limit = stored.get(key, {}), limits.STATE_PAGE_SLOTS
            more = len(cells) > limit
            if more:
                cells = dict(sorted(cells.items())[: limit + 1])
            if key in stored or key in pending:
                rows.append(KeyRows(key, dict(cells), dict(pending.get(key, {})), more))
        return rows

    async def load_slots(self, interval: IntervalId, wanted: Sequence[Wanted]) -> list[StateRow]:
        """See `Store.load_slots`."""
        stored = self.key_state.get(self.row(interval).computation, {})
        found: dict[tuple[str, str, str], bytes] = {}
        for key, cell, entry in wanted:
            for slot, value in stored.get(key, {}).items():
                if slot[0] == cell and entry in (None, slot[1]):
                    found[key, *slot] = value
        return [(*slot, value) for slot, value in found.items()]

    async def load_timers(
        self, interval: IntervalId, sequencer: Sequencer, kind: str, after: TimerPlace, limit: int
    ) -> TimerWrites | None:
        """See `Store.load_timers`."""
        if self.ownership.get(interval) != sequencer:
            return None
        row = self.row(interval)
        return timer_writes(self.folded.timer_page(row, kind, after, limit))

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        """See `Store.find_ids`."""
        return self.folded.delivered.get(interval, {}).get((subscription, producer), set()).intersection(sequences)

    async def find_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """See `Store.find_outside_ids`."""
        stored = self.folded.outside.items()
        buckets = (b for place, b in stored if place[:2] == (interval, subscription) and place[2] > now)
        return set(ids).intersection(set[bytes]().union(*buckets))

    async def read_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, expires: int, after: bytes, limit: int
    ) -> list[bytes]:
        """See `Store.read_outside_ids`."""
        bucket = self.folded.outside.get((interval, subscription, expires), ())
        return sorted(id_ for id_ in bucket if id_ > after)[:limit]

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[IntervalId, Seq]]:
        """See `Store.commit`."""
        apart = sink_intervals(writes)
        distinct = {(write.interval, write.seq, write.sequencer): write for write in writes}
        ordered = [write for _, write in sorted(distinct.items())]
        owned = [write for write in ordered if self.ownership.get(write.interval) == write.sequencer]
        fresh = [write for write in owned if (write.interval, write.sequencer, write.seq) not in self.log]
        self._append([write for write in fresh if write.interval not in apart])
        self._commit_with_sinks([write for write in fresh if write.interval in apart])
        return {(write.interval, write.seq) for write in owned}

    def _append(self, writes: Sequence[LogWrite]) -> None:
        for write in writes:
            self.log[write.interval, write.sequencer, write.seq] = write

    def _commit_with_sinks(self, writes: Sequence[LogWrite]) -> None:
        """Commit as one transaction.  If a row is refused, commit smaller parts in order, up to the first refused one."""
        if self._try_rows(writes) is None:
            self._append(writes)
            self._write_rows(writes)
        elif len(writes) > 1:
            for part in parts(writes):
                self._commit_with_sinks(part)
        else:
            self._blame(writes[0])

    def _write_rows(self, writes: Sequence[LogWrite]) -> None:
        for rows in coalesce(self.sink_tables, writes):
            stored = self.sinks[rows.table.name]
            stored.update(rows.rows)
            for key in rows.deleted:
                stored.pop(key, None)

    def _try_rows(self, writes: Sequence[LogWrite]) -> str | None:
        """Why the sink rows of `writes` cannot be written together; None when they can."""
        try:
            tables = coalesce(self.sink_tables, writes)
        except RowRefused as refusal:
            return str(refusal)
        if any(rows.contested for rows in tables):
            return "several owners write the same row"
        answers = (self.constraint(rows.table.name, row) for rows in tables for row in rows.rows.values())
        return next((answer for answer in answers if answer is not None), None)

    def _blame(self, write: LogWrite) -> NoReturn:
        search = blame(write.keys or ("",) * len(write.sinks))
        try:
            rows = next(search)
            while True:
                some = msgspec.structs.replace(write, sinks=tuple(write.sinks[row] for row in rows))
                rows = search.send(self._try_rows([some]))
        except StopIteration as found:
            refused: tuple[tuple[int, str], ...] = found.value
        raise RowRefused(f"the database refused a sink row: {refused[0][1]}", write.interval, write.seq, refused)

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store.fold`; folding again what is folded already changes nothing."""
        if self.ownership.get(write.interval) != write.sequencer:
            return False
        row, owner = self.row(write.interval), (write.interval, write.sequencer)
        keys = [key for key in self.log if key[:2] == owner and key[2] <= write.upto]
        if not keys:
            return True
        check_prefix(write, len(keys))
        check_fresh(write.interval, write.fresh & self.key_state.get(row.computation, {}).keys())
        released = releases(write.images, [key[1:] for key in sorted(keys)])
        self.folded.apply(row, fold(write.images, write.acked), released)
        for key in keys:
            del self.log[key]
        return True

    async def rewind(self, owners: Mapping[IntervalId, Sequencer]) -> int | None:
        """See `Store.rewind`."""
        if len(await self.still_owned(owners)) < len(owners):
            return None
        for interval, row in sorted(self.intervals.items()):
            if interval not in owners and not row.computation.startswith(SOURCE_PREFIX):
                self.ownership[interval] = self.next_sequencer()
        self.drop_later()
        return self.declared

    async def declare(self, declaration: Declaration) -> bool:
        """See `Store.declare`."""
        owners = {**declaration.owners, **{write.interval: write.sequencer for write in declaration.positions}}
        if len(await self.still_owned(owners)) < len(owners):
            return False
        if declaration.epoch <= self.declared:
            return True
        writes = self._epoch_sinks(declaration)
        for write in writes:
            if self._try_rows([write]) is not None:
                self._blame(write)
        for write in writes:
            self._write_rows([write])
        self.declared = declaration.epoch
        await self.advance(declaration.positions)
        for name, value in declaration.watermarks.items():
            self.watermark[name] = max(value, self.watermark.get(name, value))
        return True

    def _epoch_sinks(self, declaration: Declaration) -> list[LogWrite]:
        """The images with sink rows, and these rows as they are to be written."""
        places = sorted(
            (interval, declaration.owners[IntervalId(interval)], seq) for interval, seq in declaration.sinks
        )
        writes = [self.log[place] for place in places if place in self.log]
        if [write.epoch for write in writes] != [declaration.epoch] * len(places):
            raise StoreError(f"epoch {declaration.epoch}: not all images with sink rows are there")
        images = [decode_image(write.payload) for write in writes]
        return [
            msgspec.structs.replace(write, sinks=tuple(image.sinks), keys=tuple(image.sink_keys))
            for write, image in zip(writes, images, strict=True)
        ]

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        """See `Store.persist_watermarks`."""
        kept = [write for write in writes if len(await self.still_owned(write.owners)) == len(write.owners)]
        for write in kept:
            self.watermark[write.name] = max(write.value, self.watermark.get(write.name, write.value))
        return {write.name for write in kept}

    async def still_owned(self, owners: Mapping[IntervalId, Sequencer]) -> set[IntervalId]:
        """See `Store.still_owned`."""
        return {interval for interval, sequencer in owners.items() if self.ownership.get(interval) == sequencer}

    async def behind_others(self, intervals: Collection[IntervalId]) -> set[IntervalId]:
        """See `Store.behind_others`."""
        siblings = {i: [id_ for _, id_ in self.by_low(self.row(i).computation)] for i in intervals}
        return {interval for interval, others in siblings.items() if self.folded.behind(interval, others)}

    async def watermarks(self) -> dict[str, int]:
        """See `Store.watermarks`."""
        return dict(self.watermark)

    async def open_source(self, source: str, states: Mapping[str, bytes]) -> list[SourcePosition]:
        """See `Store.open_source`."""
        for partition, state in states.items():
            if (source, partition) not in self.sources:
                interval = self.add_interval(SOURCE_PREFIX + source, "", None)
                producer = ProducerId(self.next_sequencer())
                self.sources[source, partition] = SourcePosition(partition, interval, producer, 0, False, state)
        return [self.sources[source, partition] for partition in states]

    async def source_partitions(self, source: str) -> list[SourcePosition]:
        """See `Store.source_partitions`."""
        mine = [self.sources[place] for place in sorted(self.sources) if place[0] == source]
        return [position for position in mine if not position.finished or position.interval not in self._signed]

    async def unknown_signs(self, source: str, signs: Sequence[bytes]) -> set[bytes]:
        """See `Store.unknown_signs`."""
        return {sign for sign in signs if not self.signs.get((source, sign))}

    async def find_partitions(self, source: str, signs: Sequence[bytes], names: Sequence[str]) -> list[SourcePosition]:
        """See `Store.find_partitions`."""
        intervals = {interval for sign in signs for interval in self.signs.get((source, sign), ())}
        mine = [self.sources[place] for place in sorted(self.sources) if place[0] == source]
        return [position for position in mine if position.interval in intervals or position.partition in names]

    async def add_signs(self, source: str, signs: Mapping[IntervalId, Sequence[bytes]]) -> None:
        """See `Store.add_signs`."""
        finished = {position.interval for place, position in self.sources.items() if position.finished}
        for interval in sorted(signs.keys() & finished):
            self._signed.add(interval)
            for sign in signs[interval]:
                self.signs.setdefault((source, sign), set()).add(interval)

    async def unfinished_partitions(self) -> list[tuple[str, SourcePosition]]:
        """See `Store.unfinished_partitions`."""
        return [(place[0], self.sources[place]) for place in sorted(self.sources) if not self.sources[place].finished]

    async def advance(self, writes: Sequence[PositionWrite]) -> set[IntervalId]:
        """See `Store.advance`."""
        places = {position.interval: place for place, position in self.sources.items()}
        owned = [write for write in writes if self.ownership.get(write.interval) == write.sequencer]
        for write in owned:
            old = self.sources[places[write.interval]]
            self.sources[places[write.interval]] = SourcePosition(
                old.partition, old.interval, old.producer, write.position, write.finished, write.state, write.rejected
            )
            if write.finished:
                await self.add_signs(places[write.interval][0], {write.interval: write.signs})
        return {write.interval for write in owned}

    async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
        """See `Store.mark`."""
        known = [write for write in writes if write.interval in self.suspicions]
        owned = [write for write in known if self.ownership[write.interval] == write.sequencer]
        for write in owned:
            ends, _ = self.suspicions[write.interval]
            self.suspicions[write.interval] = (ends if write.ends is None else write.ends, write.mark)
        return {write.interval for write in owned}

    async def quarantined(self, interval: IntervalId, keys: Sequence[str], limit: int) -> list[QuarantineEntry]:
        """See `Store.quarantined`."""
        computation = self.row(interval).computation
        found = (entry for key in sorted(keys) for entry in self.quarantine.get((computation, key), ()))
        return list(islice(found, limit))

    def request_redrive(self, computation: str, key: str) -> None:
        """Ask for a key's quarantine to be drained (the reader's operation, for tests)."""
        mine = (id_ for id_, row in self.intervals.items() if row.computation == computation and holds_key(row, key))
        ends = [place[1:] for interval in mine for place in self.log if place[0] == interval]
        none = (Sequencer(0), Seq(0))
        known = self.folded.redrives.get((computation, key), none)
        self.folded.redrives[computation, key] = max([known, *ends])

    async def redrive_requests(self, start: tuple[str, str], limit: int) -> list[tuple[str, str]]:
        """See `Store.redrive_requests`."""
        return sorted(place for place in self.folded.redrives if place >= start)[:limit]

    async def close(self) -> None:
        """Nothing to release."""
