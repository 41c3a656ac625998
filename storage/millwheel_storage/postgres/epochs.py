"""Epochs on Postgres: one transaction declares one, and a run begins behind the last that was declared.

Lives here: what becomes visible together (docs/adr/0032-snapshots-at-barriers.md).  Never here: when an epoch is complete, or
how a sink row is written (`log_appends`).  Invariant: nothing is visible of an epoch that is not declared, and everything of
one that is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.types.numeric import Int8

from millwheel.bundles import LogWrite
from millwheel.errors import RowRefused, StoreError, StoreUnavailable
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import Declaration
from millwheel_storage.decode import decode_image
from millwheel_storage.postgres import positions, query
from millwheel_storage.postgres.arrays import BigintArray, TextArray
from millwheel_storage.postgres.log_appends import Commits, refuses_a_row
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.schema.shape_checks import SOURCE_PREFIX
from millwheel_storage.statements import committing, declaring

Cursor = psycopg.AsyncCursor[tuple[Any, ...]]


class _DeclarationFenced(Exception):
    """Nothing of the declaration is to stay."""


class _AlreadyDeclared(Exception):
    """Nor of a second one of the same epoch: the reply of the first was lost."""


async def rewind(connection: Connection, owners: Mapping[IntervalId, Sequencer]) -> int | None:
    """See `Store.rewind`."""
    async with connection.transaction():
        if not await _held(connection, owners):
            return None
        await connection.execute(declaring.FENCE_OTHERS, (SOURCE_PREFIX, [Int8(interval) for interval in owners]))
        declared = await query.first(connection, declaring.READ_DECLARED)
        number = 0 if declared is None else int(declared[0])
        await connection.execute(declaring.DROP_LATER, (Int8(number),))
    return number


async def declare(connection: Connection, commits: Commits, declaration: Declaration) -> bool:
    """See `Store.declare`."""
    try:
        async with _at_once(connection):
            await _declare(connection, commits, declaration)
            return True
    except _DeclarationFenced:
        return False
    except _AlreadyDeclared:
        return True
    except psycopg.Error as error:
        if not refuses_a_row(error):
            raise
    except RowRefused:
        pass
    return await _blame(connection, commits, declaration)


@asynccontextmanager
async def _at_once(connection: Connection) -> AsyncIterator[None]:
    """A transaction whose statements are sent without waiting for the answers before.

    While hooks run, an answer is read between two of their invocations.  So six answers, one after the other, took longer
    than the transaction.  psycopg's own transactions wait for their begin.
    """
    try:
        async with connection.pipeline():
            await connection.execute("BEGIN")
            yield
            await connection.execute("COMMIT")
    except Exception:
        if not connection.closed:
            await connection.rollback()
        raise


async def _declare(connection: Connection, commits: Commits, declaration: Declaration) -> None:
    written = {write.interval: write.sequencer for write in declaration.positions}
    owners = {**declaration.owners, **written}
    held = await _ask_held(connection, owners)
    declared = await connection.execute(declaring.DECLARE, (Int8(declaration.epoch),), binary=True)
    if declaration.sinks:  # what comes before is judged first, because images of others may be gone
        await _judge(held, declared, owners)
        for write in await _sinks(connection, declaration):
            await commits.write(connection, write)
    if declaration.watermarks:
        names, values = TextArray([*declaration.watermarks]), BigintArray([*declaration.watermarks.values()])
        await connection.execute(declaring.RAISE_WATERMARKS, (names, values))
    advanced = await positions.advance_within(connection, declaration.positions) if declaration.positions else set()
    if not declaration.sinks:
        await _judge(held, declared, owners)
    if advanced != written.keys():
        raise _DeclarationFenced
    if declaration.term and await query.first(connection, declaring.HOLD_TERM, (Int8(declaration.term),)) is None:
        raise _DeclarationFenced


async def _judge(held: Cursor, declared: Cursor, owners: Mapping[IntervalId, Sequencer]) -> None:
    if await _count(held) != len(owners):
        raise _DeclarationFenced
    if await declared.fetchone() is None:
        raise _AlreadyDeclared


async def _held(connection: Connection, owners: Mapping[IntervalId, Sequencer]) -> bool:
    """Whether all of these are owners.  If so, they stay it until the transaction around this call ends."""
    return await _count(await _ask_held(connection, owners)) == len(owners)


async def _ask_held(connection: Connection, owners: Mapping[IntervalId, Sequencer]) -> Cursor:
    intervals = BigintArray([*owners])
    parameters = (intervals, BigintArray([*owners.values()]), intervals)
    return await connection.execute(declaring.HELD, parameters, binary=True)


async def _count(held: Cursor) -> int:
    found = await held.fetchone()
    return 0 if found is None else int(found[0])


async def _sinks(connection: Connection, declaration: Declaration) -> list[LogWrite]:
    """The sink rows of the epoch, by interval and seq."""
    if not declaration.sinks:
        return []
    intervals, seqs = zip(*declaration.sinks, strict=True)
    sequencers = [declaration.owners[interval] for interval in intervals]
    parameters = (BigintArray(intervals), BigintArray(sequencers), BigintArray(seqs), Int8(declaration.epoch))
    rows = await query.rows(connection, declaring.READ_SINKS, parameters)
    if len(rows) != len(declaration.sinks):
        raise StoreError(f"epoch {declaration.epoch}: not all images with sink rows are there")
    found = [(interval, sequencer, seq, decode_image(payload)) for interval, sequencer, seq, payload in sorted(rows)]
    return [
        LogWrite(interval, sequencer, seq, declaration.epoch, b"", tuple(image.sinks), tuple(image.sink_keys))
        for interval, sequencer, seq, image in found
    ]


async def _blame(connection: Connection, commits: Commits, declaration: Declaration) -> bool:
    """Find the rows at fault by writing all again in a transaction that is rolled back.  Raises `RowRefused`."""
    async with connection.transaction(force_rollback=True):
        await connection.execute(committing.CONSTRAINTS_NOW)
        for write in await _sinks(connection, declaration):
            refused = await commits.refused_rows(connection, write)
            if refused:
                message = f"the database refused a sink row: {refused[0][1]}"
                raise RowRefused(message, write.interval, write.seq, refused)
    raise StoreUnavailable(
        "the database refused sink rows of an epoch, but took each of them when they were tried again"
    )
