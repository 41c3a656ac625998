"""Commits: checkpoints into the log, in groups, and sink rows with them.

Lives here: how a group becomes transactions, and what is at fault when the database refuses a sink row.  Never here: the
merge of rows by key, or the search for refused rows (`sink_rows`, which the memory store shares).  Invariant: a sink row is
written only together with a log row that the same statement inserted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn, cast

import msgspec
import psycopg

from millwheel.bundles import LogWrite
from millwheel.errors import RowRefused, StoreUnavailable
from millwheel.ids import IntervalId, Seq
from millwheel.ports import SinkTable
from millwheel.rows import Row
from millwheel_storage.postgres import ownership
from millwheel_storage.postgres.arrays import BigintArray, ByteaArray
from millwheel_storage.postgres.connection import SessionPool
from millwheel_storage.postgres.prepared import BIGINT, BYTEA, TEXT, Connection, Statement, bigint
from millwheel_storage.sink_rows import blame, coalesce, parts, sink_intervals
from millwheel_storage.statements import committing

Pair = tuple[IntervalId, Seq]
"""(interval, seq) of a durable checkpoint."""

_ROW_FAULTS: Final = {"22", "23", "44", "54"}
"""Classes of SQLSTATE for which a row is at fault: a value, a constraint, a view's check option, or a limit such as that of
an index entry.  A missing table or right is not the fault of a row."""

_RAISED: Final = "P0001"
"""A trigger of the user's own refuses the row."""


_LOG_COLUMNS: Final = (BigintArray, BigintArray, BigintArray, BigintArray, ByteaArray, BigintArray)
_COMMIT: Final = Statement(committing.COMMIT, *_LOG_COLUMNS)
_COMMIT_ONE: Final = Statement(committing.COMMIT_ONE, BIGINT, BIGINT, BIGINT, BIGINT, BYTEA)


class Commits:
    """The way into the log.  `sinks` are the pipeline's tables, by name."""

    def __init__(self, sessions: SessionPool) -> None:
        self.sinks: dict[str, SinkTable] = {}
        self._sessions = sessions
        self._with_sinks: dict[tuple[tuple[str, bool], ...], Statement] = {}
        """`committing.commit_with_sinks` by the sink tables that are written to, and whether rows of them are deleted."""

    async def commit(self, writes: Sequence[LogWrite]) -> set[Pair]:
        """See `Store.commit`.  Intervals with sink rows commit in a second transaction, after the shared
        group."""
        if len(writes) == 1:  # at low rates a group is just that
            return await (self._commit_with_sinks([*writes]) if writes[0].sinks else self._commit_shared([*writes]))
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
        return await self._sessions.run(lambda connection: _insert(connection, writes), repeatable=False)

    async def _commit_with_sinks(self, writes: list[LogWrite]) -> set[Pair]:
        """Commit all in one transaction.  If a row is refused, commit smaller parts in order, to find the refused one."""

        async def work(connection: Connection) -> set[Pair] | None:
            try:
                return await self._insert_with_sinks(connection, writes)
            except RowRefused:
                return None
            except psycopg.Error as error:
                if not refuses_a_row(error):
                    raise
                return None

        durable = await self._sessions.run(work, repeatable=False)
        if durable is not None:
            return durable
        if len(writes) > 1:
            done = [await self._commit_with_sinks(part) for part in parts(writes)]
            return set().union(*done)
        write = writes[0]
        if await self._sessions.run(lambda connection: ownership.owned(connection, write.interval, write.sequencer)):
            await self._blame(write)
        return set()  # fenced: whatever is wrong with its rows, nothing of it counts any more

    async def _insert_with_sinks(self, connection: Connection, writes: list[LogWrite]) -> set[Pair] | None:
        """Insert in one statement.  Returns None if one statement cannot decide whose row wins."""
        sinks = coalesce(self.sinks, writes)
        if not sinks:
            return await _insert(connection, writes)
        if any(sink.contested for sink in sinks):
            return None
        what = tuple((sink.table.name, bool(sink.deleted)) for sink in sinks)
        values = _log_columns(writes)
        for sink in sinks:
            if sink.deleted:
                values += (_json(sink.deleted), BigintArray(sink.deleted_places).data)
            values += (_json(sink.rows), BigintArray(sink.places).data)
        if what not in self._with_sinks:
            text = committing.commit_with_sinks([(sink.table, bool(sink.deleted)) for sink in sinks])
            pairs = (len(values) - len(_LOG_COLUMNS)) // 2
            self._with_sinks[what] = Statement(text, *_LOG_COLUMNS, *(TEXT, BigintArray) * pairs)
        return set(await connection.pairs(self._with_sinks[what], values))

    # Who is at fault

    async def _blame(self, write: LogWrite) -> NoReturn:
        """Find the rows at fault by writing them again in a transaction that is rolled back.  Raises `RowRefused`."""

        async def work(connection: Connection) -> tuple[tuple[int, str], ...]:
            async with connection.transaction(force_rollback=True):
                # Otherwise constraints are checked at the end of the transaction, too late to know the row.
                await connection.execute(committing.CONSTRAINTS_NOW)
                return await self.refused_rows(connection, write)

        refused = await self._sessions.run(work)
        if not refused:
            raise StoreUnavailable("the database refused sink rows, but took each of them when they were tried again")
        message = f"the database refused a sink row: {refused[0][1]}"
        raise RowRefused(message, write.interval, write.seq, refused)

    async def refused_rows(self, connection: Connection, write: LogWrite) -> tuple[tuple[int, str], ...]:
        """Which rows of a checkpoint the database refuses now, and its answers.  The others are written."""
        search = blame(write.keys or ("",) * len(write.sinks))
        try:
            rows = next(search)
            while True:
                rows = search.send(await self.try_rows(connection, write, rows))
        except StopIteration as found:
            return cast("tuple[tuple[int, str], ...]", found.value)

    async def try_rows(self, connection: Connection, write: LogWrite, rows: list[int]) -> str | None:
        """Write some rows of a checkpoint.  Returns the database's answer if it refuses them; then none is left."""
        some = msgspec.structs.replace(write, sinks=tuple(write.sinks[row] for row in rows))
        try:
            async with connection.transaction():
                await self.write(connection, some)
        except RowRefused as refusal:
            return str(refusal)
        except psycopg.Error as error:
            if not refuses_a_row(error):
                raise
            return str(error)
        return None

    async def write(self, connection: Connection, write: LogWrite) -> None:
        """Write the sink rows of a checkpoint, in the transaction around this call."""
        for sink in coalesce(self.sinks, [write]):
            gone, kept = _json(sink.deleted).decode(), _json(sink.rows).decode()
            await connection.execute(committing.sink_delete(sink.table), (gone,), prepare=True)
            await connection.execute(committing.sink_upsert(sink.table), (kept,), prepare=True)


def refuses_a_row(error: psycopg.Error) -> bool:
    """Whether a row is at fault, not the store."""
    return (error.sqlstate or "")[:2] in _ROW_FAULTS or error.sqlstate == _RAISED


async def _insert(connection: Connection, writes: list[LogWrite]) -> set[Pair]:
    """Insert log rows whose owner still is the owner; those that are durable."""
    if len(writes) > 1:
        return set(await connection.pairs(_COMMIT, _log_columns(writes)))
    write = writes[0]
    numbers = map(bigint, (write.interval, write.sequencer, write.seq, write.epoch))
    return set(await connection.pairs(_COMMIT_ONE, (*numbers, write.payload)))


def _log_columns(writes: list[LogWrite]) -> list[bytes]:
    """Values of the types `_LOG_COLUMNS`."""
    intervals = BigintArray([write.interval for write in writes])
    sequencers = BigintArray([write.sequencer for write in writes])
    seqs = BigintArray([write.seq for write in writes])
    epochs = BigintArray([write.epoch for write in writes])
    payloads = ByteaArray([write.payload for write in writes])
    return [intervals.data, sequencers.data, seqs.data, epochs.data, payloads.data, intervals.data]


def _json(rows: Mapping[tuple[Any, ...], Row]) -> bytes:
    return msgspec.json.encode(list(rows.values()))
