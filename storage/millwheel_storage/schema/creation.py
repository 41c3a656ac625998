"""Opening a pipeline's schema: create, migrate, check, and number its names.

Lives here: what `open_pipeline` does in its one transaction, under an advisory lock against a second opener.  Never here: the
hot path.  `ddl` is imported only where a sink table is made, because SQLAlchemy takes a quarter of a second of a start.
Invariant: nothing is written before everything is found compatible, and all of it commits or none.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias

import msgspec
from psycopg import AsyncConnection, errors, sql

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.cluster import Member
from millwheel.errors import IncompatibleStore, InvariantError, StoreError
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.ports import IntervalRow, Opened, PipelineShape
from millwheel_storage.decisions import Alive, check_same, shape_digest
from millwheel_storage.schema.evolution import Plan, places_of
from millwheel_storage.schema.examine import Examined, Question, examine, foreign
from millwheel_storage.schema.handovers import watermarks
from millwheel_storage.schema.migrations import MIGRATIONS
from millwheel_storage.schema.shape_checks import STORE_FORMAT, check_formats, no_schema, no_tables, ranges
from millwheel_storage.statements import advancing, opening, placing

logger = logging.getLogger("millwheel")

Connection: TypeAlias = AsyncConnection[tuple[Any, ...]]

Rearrange: TypeAlias = Callable[[Plan], Awaitable[None]]
"""What is done when something moves between intervals."""


async def open_schema(connection: Connection, schema: str, shape: PipelineShape, rearrange: Rearrange) -> Opened:
    """Make `schema` hold the pipeline of `shape`, and answer its durable numbers and intervals.

    Refuses a server that could lose a commit.
    """
    await _check_settings(connection)
    async with connection.transaction():
        await connection.execute(opening.LOCK_SCHEMA, (schema,))
        await _migrate(connection, schema, shape)
        opened_as = shape_digest(shape)
        stored = await _stored_shape(connection)
        found = await _ask(connection, examine(shape))
        found.plan.check()
        for doubt in found.plan.doubts:
            logger.warning("%s", doubt)
        if found.plan.moves():  # nobody joins any more, or takes intervals, before this is committed
            await connection.execute(placing.LOCK_CLUSTER)
        if stored not in (b"", opened_as):
            check_same(schema, await living(connection), found.beside)
        await _carry_out(connection, found)
        remembered = found.plan.shape
        fed = await _fed(connection, remembered)
        opened = await _register(connection, shape, fed)
        if found.plan.moves():
            await rearrange(found.plan)
            opened = await _register(connection, shape, fed)
        opened = msgspec.structs.replace(opened, places=places_of(remembered))
        meta = (CHECKPOINT_FORMAT, msgspec.json.encode(remembered))
        if await (await connection.execute(opening.READ_META)).fetchone() != meta:
            await connection.execute(opening.WRITE_META, meta)
        if stored != opened_as:
            await connection.execute(placing.SET_SHAPE, (opened_as,))
    return opened


async def _stored_shape(connection: Connection) -> bytes:
    row = await (await connection.execute(placing.READ_SHAPE)).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    return bytes(row[0])


async def living(connection: Connection) -> list[Alive]:
    """Members of a cluster whose leases are valid, by incarnation."""
    rows = await (await connection.execute(placing.LIVING_MEMBERS)).fetchall()
    return [Alive(Member(*member), until) for *member, until in rows]


async def _check_settings(connection: Connection) -> None:
    """Exactly-once rests on these: with any of them off, an acknowledged commit can be lost.  `synchronous_commit` is no
    setting of the server alone: each session turns it on (`opening.SETTLE`)."""
    row = await (await connection.execute(opening.SAFE_SETTINGS)).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    for name, value in zip(("fsync", "full_page_writes"), row, strict=True):
        if value == "off":
            raise StoreError(f"Postgres runs with {name} = off, which can lose commits; turn it on")


async def _migrate(connection: Connection, schema: str, shape: PipelineShape) -> None:
    if await (await connection.execute(opening.FIND_SCHEMA, (schema,))).fetchone() is None:
        await _create(connection, schema)
    cursor = await connection.execute(opening.SCHEMA_TABLES, (schema,))
    tables = {row[0] for row in await cursor.fetchall()}
    made = {"migration", "meta"} <= tables
    if not made and (refusal := foreign(schema, tables, shape)):
        raise IncompatibleStore(refusal)
    if not made:
        rights = await (await connection.execute(opening.MAY_BEGIN, (schema,))).fetchone()
        if rights is not None and not rights[0]:
            raise StoreError(no_tables(schema, connection.info.user))
    applied = await _applied(connection) if made else 0
    check_formats(applied, CHECKPOINT_FORMAT)
    if applied == STORE_FORMAT:
        return
    statements = [statement for migration in MIGRATIONS[applied:] for statement in migration]
    await connection.execute(";\n".join(statements))  # one wait for all
    await connection.execute(opening.RECORD_MIGRATIONS, (applied + 1, STORE_FORMAT))
    if not made:
        await connection.execute(opening.BEGIN_SEQUENCERS)


async def _create(connection: Connection, schema: str) -> None:
    try:
        await connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    except errors.InsufficientPrivilege as error:
        raise StoreError(no_schema(schema, connection.info.user)) from error


async def _applied(connection: Connection) -> int:
    row = await (await connection.execute(opening.APPLIED_MIGRATION)).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    return int(row[0])


async def _ask(connection: Connection, questions: Generator[Question, list[Any], Examined]) -> Examined:
    try:
        question = next(questions)
        while True:
            question = questions.send(await (await connection.execute(*question)).fetchall())
    except StopIteration as answer:
        found: Examined = answer.value
        return found


async def _carry_out(connection: Connection, found: Examined) -> None:
    """Rename, drop and create, as it was planned."""
    old = {new: name for name, new in found.plan.renamed.items()}
    for cell in found.plan.dropped:
        number = found.numbers["computation", old.get(cell.computation, cell.computation)]
        await connection.execute(opening.DROP_CELL, (number, cell.place))
    for kind, names in (("computation", found.plan.renamed), ("subscription", found.plan.subscriptions)):
        for name, new in names.items():
            await connection.execute(opening.RENAME, (new, kind, name))
    for name, new in found.plan.renamed.items():
        for stored, now in zip(watermarks(name), watermarks(new), strict=True):
            await connection.execute(opening.FORGET_WATERMARK, (now,))
            await connection.execute(opening.RENAME_WATERMARK, (now, stored))
    for alteration in found.alterations:
        await connection.execute(alteration)
    if found.new_tables:
        from millwheel_storage.schema.ddl import sink_creation

        for table in found.new_tables:
            await connection.execute(sink_creation(table))


async def _fed(connection: Connection, remembered: PipelineShape) -> dict[str, str]:
    """Sources that have opened a partition, and the streams that they feed."""
    cursor = await connection.execute(advancing.OPENED_SOURCES, (sorted(remembered.streams),))
    return {name: remembered.streams[name] for name in sorted(name for (name,) in await cursor.fetchall())}


async def _register(connection: Connection, shape: PipelineShape, fed: dict[str, str]) -> Opened:
    cursor = await connection.execute(opening.READ_NAMES)
    known = {(kind, name): number for kind, name, number in await cursor.fetchall()}
    computations = {}
    for name in sorted(shape.computations):
        number = known.get(("computation", name))
        if number is None:
            number = await add_name(connection, "computation", name)
            for low, high in ranges(shape.computations[name]):
                await add_interval(connection, number, low, high)
        computations[number] = name
    subscriptions = {
        name: SubscriptionId(known.get(("subscription", name)) or await add_name(connection, "subscription", name))
        for name in sorted(shape.subscriptions)
    }
    intervals = await _intervals(connection, computations)
    await _expect(connection, {row.id for row in intervals}, {*shape.sources})
    return Opened(intervals, subscriptions, fed)


async def _expect(connection: Connection, intervals: set[IntervalId], sources: set[str]) -> None:
    """Make the map of a cluster cover these intervals and sources, and no others."""
    known = {id_ for (id_,) in await (await connection.execute(placing.KNOWN_INTERVALS)).fetchall()}
    named = {name for name, _ in await (await connection.execute(placing.READ_PLACED_SOURCES)).fetchall()}
    if (known, named) == (intervals, sources):
        return
    await connection.execute(placing.LOCK_CLUSTER)
    added = {"intervals": sorted(intervals - known), "sources": sorted(sources - named)}
    gone = {"intervals": sorted(known - intervals), "sources": sorted(named - sources)}
    await connection.execute(placing.ADD_TO_MAP, added)
    await connection.execute(placing.DROP_FROM_MAP, gone)
    await connection.execute(placing.MAP_CHANGED)


async def _intervals(connection: Connection, computations: dict[int, str]) -> tuple[IntervalRow, ...]:
    cursor = await connection.execute(opening.READ_INTERVALS, (list(computations),))
    return tuple(
        IntervalRow(number, computations[computation], low.decode(), None if high is None else high.decode())
        for number, computation, low, high in await cursor.fetchall()
    )


async def add_name(connection: Connection, kind: str, name: str) -> int:
    """The durable number of a name, made when it is new; under the schema lock."""
    cursor = await connection.execute(opening.READ_NAMES)
    for stored_kind, stored_name, number in await cursor.fetchall():
        if (stored_kind, stored_name) == (kind, name):
            return int(number)
    row = await (await connection.execute(opening.ADD_NAME, {"kind": kind, "name": name})).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    return int(row[0])


async def add_interval(connection: Connection, computation: int, low: str, high: str | None) -> int:
    """A new interval and its ownership row, owned by nobody (sequencer 0)."""
    parameters = (computation, low.encode(), None if high is None else high.encode())
    row = await (await connection.execute(opening.ADD_INTERVAL, parameters)).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    return int(row[0])
