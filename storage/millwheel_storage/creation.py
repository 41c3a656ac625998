"""Opening a pipeline's schema: create, migrate, check, and number its names.

Lives here: what `open_pipeline` does in its one transaction, under an advisory lock against a second
opener.  Never here: the hot path, or the import of `schema` where nothing is to be made: SQLAlchemy takes a quarter of
a second of every start.  Invariant: nothing is written before everything is found compatible; it
all commits, or none of it.
"""

from __future__ import annotations

from typing import Final

import msgspec
from psycopg import sql

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.errors import IncompatibleStore, StoreError
from millwheel.ports import IntervalRow, Opened, PipelineShape, SinkTable
from millwheel_storage import statements
from millwheel_storage.prepared import Connection
from millwheel_storage.shape import STORE_FORMAT, check_compatible, check_formats, merged_shape, ranges

CATALOG_TYPES: Final = {"timestamptz": "timestamp with time zone"}
"""How the catalog spells a declared type, where it differs."""


async def open_schema(connection: Connection, schema: str, shape: PipelineShape) -> Opened:
    """Make `schema` hold the pipeline of `shape`, and answer its durable numbers and intervals.

    Refuses a server that could lose a commit.
    """
    await _check_settings(connection)
    async with connection.transaction():
        await connection.execute(statements.LOCK_SCHEMA, (schema,))
        await _migrate(connection, schema)
        remembered = await _check_stored(connection, shape)
        opened = await _register(connection, shape, await _fed(connection, remembered))
        for table in shape.sinks:
            await _ensure_sink(connection, table)
        await connection.execute(statements.WRITE_META, (CHECKPOINT_FORMAT, msgspec.json.encode(remembered)))
    return opened


async def _check_settings(connection: Connection) -> None:
    """Exactly-once rests on these: with any of them off, an acknowledged commit can be lost."""
    row = await (await connection.execute(statements.SAFE_SETTINGS)).fetchone()
    assert row is not None
    for name, value in zip(("fsync", "full_page_writes", "synchronous_commit"), row, strict=True):
        if value == "off":
            raise StoreError(f"Postgres runs with {name} = off, which can lose commits; turn it on")


async def _migrate(connection: Connection, schema: str) -> None:
    await connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    cursor = await connection.execute(statements.SCHEMA_TABLES, (schema,))
    tables = {row[0] for row in await cursor.fetchall()}
    if tables and not {"migration", "meta"} <= tables:
        raise IncompatibleStore(f"schema {schema!r} holds tables that are not millwheel's; use another pipeline name")
    applied = await _applied(connection) if tables else 0
    check_formats(applied, CHECKPOINT_FORMAT)
    if applied == STORE_FORMAT:
        return
    from millwheel_storage.schema import MIGRATIONS

    for version, migration in enumerate(MIGRATIONS[applied:], applied):
        for statement in migration:
            await connection.execute(statement)
        await connection.execute(statements.RECORD_MIGRATION, (version + 1,))


async def _applied(connection: Connection) -> int:
    row = await (await connection.execute(statements.APPLIED_MIGRATION)).fetchone()
    assert row is not None
    return int(row[0])


async def _check_stored(connection: Connection, shape: PipelineShape) -> PipelineShape:
    """The shape to remember, after checking it against the one that is stored."""
    row = await (await connection.execute(statements.READ_META)).fetchone()
    if row is None:
        return shape
    check_formats(STORE_FORMAT, row[0])
    stored = msgspec.json.decode(row[1], type=PipelineShape)
    check_compatible(stored, shape)
    return merged_shape(stored, shape)


async def _fed(connection: Connection, remembered: PipelineShape) -> dict[str, str]:
    """Sources that have opened a partition, and the streams that they feed."""
    cursor = await connection.execute(statements.OPENED_SOURCES, (sorted(remembered.streams),))
    return {name: remembered.streams[name] for name in sorted(name for (name,) in await cursor.fetchall())}


async def _register(connection: Connection, shape: PipelineShape, fed: dict[str, str]) -> Opened:
    cursor = await connection.execute(statements.READ_NAMES)
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
        name: known.get(("subscription", name)) or await add_name(connection, "subscription", name)
        for name in sorted(shape.subscriptions)
    }
    return Opened(await _intervals(connection, computations), subscriptions, fed)


async def _intervals(connection: Connection, computations: dict[int, str]) -> tuple[IntervalRow, ...]:
    cursor = await connection.execute(statements.READ_INTERVALS, (list(computations),))
    return tuple(
        IntervalRow(number, computations[computation], low.decode(), None if high is None else high.decode())
        for number, computation, low, high in await cursor.fetchall()
    )


async def add_name(connection: Connection, kind: str, name: str) -> int:
    """The durable number of a name, made when it is new; under the schema lock."""
    cursor = await connection.execute(statements.READ_NAMES)
    for stored_kind, stored_name, number in await cursor.fetchall():
        if (stored_kind, stored_name) == (kind, name):
            return int(number)
    row = await (await connection.execute(statements.ADD_NAME, {"kind": kind, "name": name})).fetchone()
    assert row is not None
    return int(row[0])


async def add_interval(connection: Connection, computation: int, low: str, high: str | None) -> int:
    """A new interval and its ownership row, owned by nobody (sequencer 0)."""
    parameters = (computation, low.encode(), None if high is None else high.encode())
    row = await (await connection.execute(statements.ADD_INTERVAL, parameters)).fetchone()
    assert row is not None
    return int(row[0])


async def _ensure_sink(connection: Connection, table: SinkTable) -> None:
    """Create a sink table, or check that the one that exists can take its rows; it is never altered."""
    relation = f'"{table.name}"'
    cursor = await connection.execute(statements.TABLE_COLUMNS, (relation,))
    stored: dict[str, str] = dict(await cursor.fetchall())
    if not stored:
        from millwheel_storage.schema import sink_creation

        await connection.execute(sink_creation(table))
        return
    for column, kind in table.columns.items():
        wanted = CATALOG_TYPES.get(kind, kind)
        if stored.get(column) != wanted:
            raise IncompatibleStore(
                f"sink table {table.name!r}: column {column!r} is {stored.get(column, 'missing')}, not {wanted}; "
                "alter the table, or declare another one"
            )
    key = [row[0] for row in await (await connection.execute(statements.TABLE_KEY, (relation,))).fetchall()]
    if set(key) != set(table.key):
        raise IncompatibleStore(f"sink table {table.name!r} has primary key {key}, not {list(table.key)}")
