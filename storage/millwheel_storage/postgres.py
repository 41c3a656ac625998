"""The store on Postgres (docs/architecture.md, "The store"): psycopg 3, connections of their own for what must not
wait for each other.

Lives here: transactions and their order.  Never here: SQL text (`statements`), the merge of checkpoints
(`fold`), error translation (`connection`).  Every write is fenced in the statement that writes, or behind
a FOR SHARE lock that its own transaction holds to the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import msgspec
import psycopg
from psycopg.types.numeric import Int4, Int8

from millwheel import limits
from millwheel.bundles import (
    BEFORE_TIMERS,
    Checkpoint,
    Delivered,
    HoldWrites,
    KeyRows,
    LogWrite,
    OpaqueBucket,
    QuarantineEntry,
    Recovered,
    StateRow,
    TimerPlace,
    TimerWrites,
)
from millwheel.errors import RowRefused, StoreError, StoreUnavailable
from millwheel.limits import RECOVERY_CHUNK_BYTES, WORK_LIMIT_RECORDS
from millwheel.model import MIN_TIME, TIMER_KINDS
from millwheel.ports import (
    FoldWrite,
    IntervalRow,
    MarkWrite,
    Opened,
    PipelineShape,
    PositionWrite,
    QuarantineRow,
    SinkTable,
    SourcePosition,
)
from millwheel.work import Wanted
from millwheel_storage import statements
from millwheel_storage.arrays import BigintArray, ByteaArray, TextArray
from millwheel_storage.connection import Connection, Session, Sessions
from millwheel_storage.creation import add_interval, add_name, open_schema
from millwheel_storage.decode import (
    TimerRow,
    decode_image,
    found_ids,
    key_rows,
    productions,
    quarantine_entry,
    timer_rows,
    timer_writes,
)
from millwheel_storage.fold import check_prefix, fifo_rows, fold, quarantine_row
from millwheel_storage.shape import SOURCE_PREFIX, check_shape, schema_name
from millwheel_storage.sinks import SinkRows, blame, coalesce, sink_intervals
from millwheel_storage.tables import RESERVED_NAMES
from millwheel_storage.writes import Step, fold_steps

Pair = tuple[int, int]
"""(interval, seq) of a durable checkpoint."""

_ROW_FAULTS: Final = {"22", "23", "44", "54"}
"""Classes of SQLSTATE that blame the row, not the store: a value, a constraint, a view's check option, a limit (an
index entry that is too long).  A table or a right that is missing is no row's fault."""

_RAISED: Final = "P0001"
"""A trigger of the user's own refuses the row."""


class PostgresStore:
    """A `Store` in the schema of one pipeline of a Postgres database.

    `url` is a libpq connection string or URL.  Connections open on first use and reopen when they are lost.
    """

    def __init__(self, url: str, pipeline: str) -> None:
        self.schema = schema_name(pipeline)
        self._commits = Sessions(url, self.schema, 2)  # the shared group, and the intervals with sink rows
        self._progress = Sessions(url, self.schema, 2)  # positions, and watermarks
        self._loads = Session(url, self.schema)
        self._folds = Session(url, self.schema)
        self._intervals: dict[int, tuple[int, IntervalRow]] = {}
        self._computations: dict[str, int] = {}
        self._sinks: dict[str, SinkTable] = {}
        self._with_sinks: dict[tuple[str, ...], bytes] = {}
        """`statements.commit_with_sinks` by the sink tables that are written to."""

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """See `Store.open_pipeline`; also refuses a server that could lose a commit."""
        check_shape(shape, RESERVED_NAMES)
        if schema_name(shape.name) != self.schema:
            raise StoreError(f"this store is for schema {self.schema!r}, not for pipeline {shape.name!r}")

        async def work(connection: Connection) -> Opened:
            await _check_settings(connection)
            return await open_schema(connection, self.schema, shape)

        opened = await self._folds.run(work)
        self._sinks = {table.name: table for table in shape.sinks}
        return opened

    async def acquire(self, intervals: Sequence[int]) -> dict[int, int]:
        """See `Store.acquire`."""
        wanted = sorted(set(intervals))

        async def work(connection: Connection) -> dict[int, int]:
            taken = {}
            async with connection.transaction():
                for interval in wanted:  # one by one: locks in id order, whatever plan Postgres would choose
                    row = await _first(connection, statements.ACQUIRE, (interval,))
                    if row is None:
                        raise StoreError(f"interval {interval} does not exist")
                    taken[interval] = row[0]
            return taken

        return await self._folds.run(work)

    async def reacquire(self, interval: int, sequencer: int) -> int | None:
        """See `Store.reacquire`.  The number is taken first, so that a repeated update knows its own."""

        async def number(connection: Connection) -> int:
            row = await _first(connection, statements.NEXT_SEQUENCER, ())
            assert row is not None
            return int(row[0])

        fresh = await self._folds.run(number)

        async def work(connection: Connection) -> int | None:
            parameters = (fresh, interval, [Int8(sequencer), Int8(fresh)])
            return None if await _first(connection, statements.REACQUIRE, parameters) is None else fresh

        return await self._folds.run(work)

    # Commits

    async def commit(self, writes: Sequence[LogWrite]) -> set[Pair]:
        """See `Store.commit`.  Intervals with sink rows commit in a second transaction, after the shared
        group."""
        apart = sink_intervals(writes)
        distinct = {(write.interval, write.seq, write.sequencer): write for write in writes}
        ordered = [write for _, write in sorted(distinct.items())]
        with_sinks = [write for write in ordered if write.interval in apart]
        shared = [write for write in ordered if write.interval not in apart]
        durable: set[Pair] = set()
        if shared:
            durable |= await self._commit_shared(shared)
        if with_sinks:
            durable |= await self._commit_with_sinks(with_sinks)
        return durable

    async def _commit_shared(self, writes: list[LogWrite]) -> set[Pair]:
        async def work(connection: Connection) -> set[Pair]:
            return set(await _prepared(connection, *_log_rows(writes)))

        return await self._commits.run(work, repeatable=False)

    async def _commit_with_sinks(self, writes: list[LogWrite]) -> set[Pair]:
        """All in one transaction; if a row is refused, in smaller ones in order, so that the refused one is known."""

        async def work(connection: Connection) -> set[Pair] | None:
            try:
                return await self._insert_with_sinks(connection, writes)
            except RowRefused:
                return None
            except psycopg.Error as error:
                if not _refuses_a_row(error):
                    raise
                return None

        durable = await self._commits.run(work, repeatable=False)
        if durable is not None:
            return durable
        if len(writes) == 1:
            await self._blame(writes[0])
        durable = set()
        for part in _parts(writes):
            durable |= await self._commit_with_sinks(part)
        return durable

    async def _insert_with_sinks(self, connection: Connection, writes: list[LogWrite]) -> set[Pair] | None:
        """In one statement; None if that cannot say whose row wins."""
        sinks = coalesce(self._sinks, writes)
        if not sinks:
            return set(await _prepared(connection, *_log_rows(writes)))
        if any(sink.contested for sink in sinks):
            return None
        names = tuple(sink.table.name for sink in sinks)
        if names not in self._with_sinks:
            self._with_sinks[names] = statements.commit_with_sinks([sink.table for sink in sinks])
        parameters: list[Any] = [*_log_columns(writes)]
        for sink in sinks:
            parameters += (_json(sink), BigintArray(sink.places))
        return set(await _prepared(connection, self._with_sinks[names], parameters))

    async def _blame(self, write: LogWrite) -> NoReturn:
        """Find the rows at fault by writing them again, in a transaction that is undone; raises `RowRefused`."""

        async def work(connection: Connection) -> tuple[tuple[int, str], ...]:
            async with connection.transaction(force_rollback=True):
                # What is checked at the end of a transaction would else be found too late to know the row.
                await connection.execute(statements.CONSTRAINTS_NOW)
                search = blame(write.keys or ("",) * len(write.sinks))
                try:
                    rows = next(search)
                    while True:
                        rows = search.send(await self._try_rows(connection, write, rows))
                except StopIteration as found:
                    return cast("tuple[tuple[int, str], ...]", found.value)

        refused = await self._commits.run(work)
        if not refused:
            raise StoreUnavailable("the database refused sink rows, but took each of them when they were tried again")
        message = f"the database refused a sink row: {refused[0][1]}"
        raise RowRefused(message, write.interval, write.seq, refused)

    async def _try_rows(self, connection: Connection, write: LogWrite, rows: list[int]) -> str | None:
        """Write some rows of a checkpoint; the database's answer if it refuses them, and then nothing of them is left."""
        some = msgspec.structs.replace(write, sinks=tuple(write.sinks[row] for row in rows))
        try:
            async with connection.transaction():
                await self._upsert(connection, some)
        except RowRefused as refusal:
            return str(refusal)
        except psycopg.Error as error:
            if not _refuses_a_row(error):
                raise
            return str(error)
        return None

    async def _upsert(self, connection: Connection, write: LogWrite) -> None:
        for sink in coalesce(self._sinks, [write]):
            await connection.execute(statements.sink_upsert(sink.table), (_json(sink),), prepare=True)

    # Loads, folds and recovery

    async def load(self, interval: int, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store.load`; has a connection of its own, so that it never waits for a fold."""
        encoded = ByteaArray(sorted({key.encode() for key in keys}))

        async def work(connection: Connection) -> list[KeyRows]:
            number, _ = await self._row(connection, interval)
            limit = limits.STATE_PAGE_SLOTS
            parameters = (encoded, Int4(number), Int8(limit + 1))
            cells = await connection.execute(statements.LOAD_KEYS, parameters, prepare=True, binary=True)
            stored = await cells.fetchall()
            if not timers:
                return key_rows(stored, [], limit)
            pending = await connection.execute(
                statements.LOAD_KEY_TIMERS, (Int4(number), encoded), prepare=True, binary=True
            )
            return key_rows(stored, await pending.fetchall(), limit)

        return await self._loads.run(work)

    async def load_slots(self, interval: int, wanted: Sequence[Wanted]) -> list[StateRow]:
        """See `Store.load_slots`."""
        whole = sorted({(key, cell) for key, cell, entry in wanted if entry is None})
        single = sorted({(key, cell, entry) for key, cell, entry in wanted if entry is not None})

        async def work(connection: Connection) -> list[StateRow]:
            number, _ = await self._row(connection, interval)
            rows: list[tuple[Any, ...]] = []
            if single:
                keys, cells, entries = zip(*single, strict=True)
                slots = (ByteaArray.of_texts(keys), TextArray(cells), ByteaArray.of_texts(entries), Int4(number))
                rows += await _prepared(connection, statements.LOAD_SLOTS, slots)
            if whole:
                keys, cells = zip(*whole, strict=True)
                columns = (ByteaArray.of_texts(keys), TextArray(cells), Int4(number))
                rows += await _prepared(connection, statements.LOAD_CELLS, columns)
            return [(key.decode(), cell, entry.decode(), value) for key, cell, entry, value in rows]

        return await self._loads.run(work)

    async def load_timers(
        self, interval: int, sequencer: int, kind: str, after: TimerPlace, limit: int
    ) -> TimerWrites | None:
        """See `Store.load_timers`."""

        async def work(connection: Connection) -> TimerWrites | None:
            number, row = await self._row(connection, interval)
            async with connection.transaction():
                if await _first(connection, statements.OWNED, (interval, sequencer)) is None:
                    return None
                return timer_writes(await _timer_page(connection, row, number, kind, after, limit))

        return await self._loads.run(work)

    async def find_ids(self, interval: int, subscription: int, producer: int, sequences: Sequence[int]) -> set[int]:
        """See `Store.find_ids`; reads the segments that lie between the first and the last."""
        if not sequences:
            return set()

        async def work(connection: Connection) -> set[int]:
            parameters = (Int8(interval), Int4(subscription), Int8(producer), Int8(sequences[0]), Int8(sequences[-1]))
            cursor = await connection.execute(statements.FIND_IDS, parameters, prepare=True, binary=True)
            return found_ids(await cursor.fetchall(), sequences)

        return await self._loads.run(work)

    async def find_opaque(self, interval: int, subscription: int, now: int, ids: Sequence[bytes]) -> set[bytes]:
        """See `Store.find_opaque`: an index probe for each id and bucket."""
        if not ids:
            return set()

        async def work(connection: Connection) -> set[bytes]:
            parameters = (ByteaArray(ids), Int8(interval), Int4(subscription), Int8(now))
            cursor = await connection.execute(statements.FIND_OPAQUE, parameters, prepare=True, binary=True)
            return {row[0] for row in await cursor.fetchall()}

        return await self._loads.run(work)

    async def read_opaque(
        self, interval: int, subscription: int, expires: int, after: bytes, limit: int
    ) -> list[bytes]:
        """See `Store.read_opaque`."""

        async def work(connection: Connection) -> list[bytes]:
            parameters = (Int8(interval), Int4(subscription), Int8(expires), after, Int8(limit))
            cursor = await connection.execute(statements.READ_OPAQUE, parameters, prepare=True, binary=True)
            return [row[0] for row in await cursor.fetchall()]

        return await self._loads.run(work)

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store.fold`.  Folding again what is folded already (its reply was lost) changes nothing."""
        folded = fold(write.images, write.acked)

        async def work(connection: Connection) -> bool:
            number, _ = await self._row(connection, write.interval)
            async with connection.transaction():
                if await _first(connection, statements.OWNED, (write.interval, write.sequencer)) is None:
                    return False
                parameters = (Int8(write.interval), Int8(write.sequencer), Int8(write.upto))
                deleted = await connection.execute(statements.FOLD_LOG, parameters, prepare=True)
                if deleted.rowcount == 0:
                    return True
                check_prefix(write, deleted.rowcount)
                await _apply(connection, fold_steps(write.interval, number, folded, write.fresh))
            return True

        return await self._folds.run(work)

    async def recover(self, interval: int, sequencer: int) -> Recovered | None:
        """See `Store.recover`.  Its cost follows the log and what is pending, never the number of keys."""

        async def work(connection: Connection) -> Recovered | None:
            number, row = await self._row(connection, interval)
            async with connection.transaction():
                if await _first(connection, statements.OWNED, (interval, sequencer)) is None:
                    return None
                # The lock keeps every other writer of the interval out until this transaction ends.
                async for images in _log_chunks(connection, interval):
                    await _apply(connection, fold_steps(interval, number, fold(images)))
                await connection.execute(statements.DELETE_LOG, (interval,))
                recovered = await _recovered(connection, row, number)
                suspicion = await _first(connection, statements.BEGIN_SUSPICION, (interval,))
                assert suspicion is not None
                recovered.ends, recovered.suspicion = suspicion
                return recovered

        return await self._folds.run(work)

    async def _row(self, connection: Connection, interval: int) -> tuple[int, IntervalRow]:
        """Computation number and range of an interval, which never change while it exists."""
        if interval not in self._intervals:
            row = await _first(connection, statements.READ_INTERVAL, (interval,))
            if row is None:
                raise StoreError(f"interval {interval} does not exist")
            names = await _names(connection, "computation")
            high = None if row[2] is None else row[2].decode()
            name = next(name for name, number in names.items() if number == row[0])
            self._intervals[interval] = (row[0], IntervalRow(interval, name, row[1].decode(), high))
        return self._intervals[interval]

    # Watermarks and sources

    async def persist_watermarks(self, values: Mapping[str, int]) -> None:
        """See `Store.persist_watermarks`."""
        if not values:
            return

        async def work(connection: Connection) -> None:
            parameters = (list(values), [Int8(value) for value in values.values()])
            await connection.execute(statements.PERSIST_WATERMARKS, parameters, prepare=True)

        await self._progress.run(work)

    async def watermarks(self) -> dict[str, int]:
        """See `Store.watermarks`."""

        async def work(connection: Connection) -> dict[str, int]:
            return dict(await _all(connection, statements.READ_WATERMARKS, ()))

        return await self._loads.run(work)

    async def open_source(self, source: str, partition: str, state: bytes) -> SourcePosition:
        """See `Store.open_source`."""

        async def work(connection: Connection) -> SourcePosition:
            known = await _sources(connection, source, partition)
            if known:
                return known[0]
            async with connection.transaction():
                await connection.execute(statements.LOCK_SCHEMA, (self.schema,))
                if not await _sources(connection, source, partition):
                    number = await add_name(connection, "computation", SOURCE_PREFIX + source)
                    interval = await add_interval(connection, number, "", None)
                    await connection.execute(statements.ADD_SOURCE, (source, partition, interval, state))
            return (await _sources(connection, source, partition))[0]

        return await self._loads.run(work)

    async def source_partitions(self, source: str) -> list[SourcePosition]:
        """See `Store.source_partitions`."""

        async def work(connection: Connection) -> list[SourcePosition]:
            return await _sources(connection, source, None)

        return await self._loads.run(work)

    async def advance(self, writes: Sequence[PositionWrite]) -> set[int]:
        """See `Store.advance`; repeating it is harmless."""
        if not writes:
            return set()

        async def work(connection: Connection) -> set[int]:
            parameters = (
                [Int8(write.interval) for write in writes],
                [Int8(write.sequencer) for write in writes],
                [Int8(write.position) for write in writes],
                [write.finished for write in writes],
                [write.state for write in writes],
                [Int8(write.interval) for write in writes],
            )
            cursor = await connection.execute(statements.ADVANCE, parameters, prepare=True)
            return {row[0] for row in await cursor.fetchall()}

        return await self._progress.run(work)

    async def mark(self, writes: Sequence[MarkWrite]) -> set[int]:
        """See `Store.mark`; repeating it is harmless."""
        if not writes:
            return set()

        async def work(connection: Connection) -> set[int]:
            intervals = [Int8(write.interval) for write in writes]
            parameters = (
                intervals,
                [Int8(write.sequencer) for write in writes],
                [write.mark for write in writes],
                [None if write.ends is None else Int4(write.ends) for write in writes],
                intervals,
            )
            cursor = await connection.execute(statements.MARK, parameters, prepare=True)
            return {row[0] for row in await cursor.fetchall()}

        return await self._progress.run(work)

    # Quarantine

    async def quarantine_rows(self, computation: str, key: str, limit: int) -> list[QuarantineRow]:
        """See `Store.quarantine_rows`; what is committed but not folded yet is part of the answer."""

        async def work(connection: Connection) -> list[QuarantineEntry]:
            number = (await _names(connection, "computation")).get(computation)
            if number is None:
                raise StoreError(f"computation {computation!r} is not in the store")
            async with connection.transaction():
                await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                images = await _key_images(connection, number, key)
                dropped = sum(count for image in images for other, count in image.redriven if other == key)
                parameters = (number, key.encode(), limit + dropped)
                stored = await _all(connection, statements.READ_QUARANTINE, parameters)
            return fifo_rows([quarantine_entry(row) for row in stored], images, key)[:limit]

        entries = await self._loads.run(work)
        return [quarantine_row(computation, place, entry) for place, entry in enumerate(entries)]

    async def redrive_requests(self) -> list[tuple[str, str]]:
        """See `Store.redrive_requests`."""

        async def work(connection: Connection) -> list[tuple[str, str]]:
            rows = await _all(connection, statements.READ_REDRIVES, ())
            return sorted((name, key.decode()) for name, key in rows)

        return await self._loads.run(work)

    async def close(self) -> None:
        """See `Store.close`."""
        for session in (self._commits, self._progress, self._loads, self._folds):
            await session.close()


def _refuses_a_row(error: psycopg.Error) -> bool:
    return (error.sqlstate or "")[:2] in _ROW_FAULTS or error.sqlstate == _RAISED


async def _check_settings(connection: Connection) -> None:
    """Exactly-once rests on these: with any of them off, an acknowledged commit can be lost."""
    row = await _first(connection, statements.SAFE_SETTINGS, ())
    assert row is not None
    for name, value in zip(("fsync", "full_page_writes", "synchronous_commit"), row, strict=True):
        if value == "off":
            raise StoreError(f"Postgres runs with {name} = off, which can lose commits; turn it on")


async def _first(connection: Connection, statement: str, parameters: Sequence[Any]) -> tuple[Any, ...] | None:
    cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchone()


async def _all(connection: Connection, statement: str, parameters: Any) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchall()


async def _prepared(connection: Connection, statement: str | bytes, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    cursor = await connection.execute(statement, parameters, prepare=True, binary=True)
    return await cursor.fetchall()


async def _names(connection: Connection, kind: str) -> dict[str, int]:
    rows = await _all(connection, statements.READ_NAMES, ())
    return {name: number for stored, name, number in rows if stored == kind}


def _log_rows(writes: list[LogWrite]) -> tuple[str, Sequence[Any]]:
    """The statement and its parameters that insert log rows whose owner still is the owner."""
    if len(writes) > 1:
        return statements.COMMIT, _log_columns(writes)
    write = writes[0]
    return statements.COMMIT_ONE, (*map(Int8, (write.interval, write.sequencer, write.seq, write.epoch)), write.payload)


def _log_columns(writes: list[LogWrite]) -> tuple[BigintArray | ByteaArray, ...]:
    intervals = BigintArray([write.interval for write in writes])
    sequencers = BigintArray([write.sequencer for write in writes])
    seqs = BigintArray([write.seq for write in writes])
    epochs = BigintArray([write.epoch for write in writes])
    return intervals, sequencers, seqs, epochs, ByteaArray([write.payload for write in writes]), intervals


def _parts(writes: list[LogWrite]) -> list[list[LogWrite]]:
    """Writes of several owners by owner, those of one alone, in order."""
    owners: dict[Pair, list[LogWrite]] = {}
    for write in writes:
        owners.setdefault((write.interval, write.sequencer), []).append(write)
    return list(owners.values()) if len(owners) > 1 else [[write] for write in writes]


def _json(sink: SinkRows) -> str:
    return msgspec.json.encode(list(sink.rows.values())).decode()


async def _apply(connection: Connection, steps: Iterable[Step]) -> None:
    for statement, parameters in steps:
        await connection.execute(statement, parameters, prepare=True)


async def _log_chunks(connection: Connection, interval: int) -> AsyncIterator[list[Checkpoint]]:
    """The interval's log, decoded, in commit order over all its owners; chunks bound the memory."""
    images: list[Checkpoint] = []
    size = 0
    async with connection.cursor(name="millwheel_log", binary=True) as cursor:
        cursor.itersize = WORK_LIMIT_RECORDS
        await cursor.execute(statements.READ_LOG, (interval,))
        async for _, _, payload in cursor:
            images.append(decode_image(payload))
            size += len(payload)
            if size >= RECOVERY_CHUNK_BYTES:
                yield images
                images, size = [], 0
    if images:
        yield images


async def _recovered(connection: Connection, row: IntervalRow, number: int) -> Recovered:
    high = None if row.high is None else row.high.encode()
    place = {"computation": number, "low": row.low.encode(), "high": high}
    limit = limits.TIMER_PAGE_ROWS
    pages = {kind: await _timer_page(connection, row, number, kind, BEFORE_TIMERS, limit) for kind in TIMER_KINDS}
    holds = await _all(connection, statements.LOAD_HOLDS, place)
    quarantined = await _all(connection, statements.LOAD_QUARANTINED, place)
    watermark = await _first(connection, statements.READ_WATERMARK, (row.computation,))
    return Recovered(
        ids=[Delivered(*channel) for channel in await _all(connection, statements.LOAD_CHANNELS, (row.id,))],
        productions=productions(await _all(connection, statements.LOAD_PRODUCTIONS, (row.id,))),
        timers=timer_writes([timer for page in pages.values() for timer in page]),
        holds=HoldWrites([key.decode() for key, _ in holds], [time for _, time in holds]),
        quarantined=[key.decode() for (key,) in quarantined],
        watermark=MIN_TIME if watermark is None else watermark[0],
        opaque=[OpaqueBucket(*row) for row in await _all(connection, statements.LOAD_OPAQUE_BUCKETS, (row.id,))],
        more_timers=[kind for kind, page in pages.items() if len(page) >= limit],
    )


async def _timer_page(
    connection: Connection, row: IntervalRow, number: int, kind: str, after: TimerPlace, limit: int
) -> list[TimerRow]:
    timestamp, (key, tag) = after
    place = {"computation": number, "low": row.low.encode(), "high": None if row.high is None else row.high.encode()}
    start = {"kind": kind, "timestamp": timestamp, "key": key.encode(), "tag": tag.encode(), "limit": limit}
    return timer_rows(await _all(connection, statements.LOAD_TIMERS, place | start))


async def _sources(connection: Connection, source: str, partition: str | None) -> list[SourcePosition]:
    rows = await _all(connection, statements.READ_SOURCES, {"source": source, "partition": partition})
    return [SourcePosition(*row) for row in rows]


async def _key_images(connection: Connection, computation: int, key: str) -> list[Checkpoint]:
    """Unfolded checkpoints of the interval that holds `key`."""
    encoded = key.encode()
    images: list[Checkpoint] = []
    for interval, _, low, high in await _all(connection, statements.READ_INTERVALS, ([computation],)):
        if low <= encoded and (high is None or encoded < high):
            rows = await _all(connection, statements.READ_LOG, (interval,))
            images += [decode_image(payload) for _, _, payload in rows]
    return images
