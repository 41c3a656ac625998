"""What savepoints copy, look at and put back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg import sql

from millwheel_storage.statements.opening import IS_WHOLE

ONE_AT_A_TIME: Final = "SET LOCAL lock_timeout = '30s'"
FIND_SAVEPOINTS: Final = """
SELECT n.nspname, obj_description(n.oid, 'pg_namespace'), coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
FROM pg_namespace n LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'r'
WHERE starts_with(n.nspname, %s) GROUP BY n.oid ORDER BY n.nspname
"""
TABLES: Final = f"""
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND {IS_WHOLE} ORDER BY c.relname
"""
COLUMNS: Final = f"""
SELECT c.relname, array_agg(a.attname ORDER BY a.attnum) FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND {IS_WHOLE} AND a.attnum > 0 AND NOT a.attisdropped GROUP BY c.relname
"""
GENERATED: Final = """
SELECT c.relname, array_agg(a.attname) FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND a.attgenerated <> '' GROUP BY c.relname
"""
"""Columns into which nobody can write."""
FILLED: Final = f"""
SELECT c.relname, a.attname, s.name FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL pg_get_serial_sequence(format('%%I.%%I', n.nspname, c.relname), a.attname) AS s (name)
JOIN pg_sequence q ON q.seqrelid = s.name::regclass AND q.seqincrement > 0
WHERE n.nspname = %s AND c.relkind IN ('r', 'p') AND {IS_WHOLE} AND a.attnum > 0 AND NOT a.attisdropped
  AND has_sequence_privilege(s.name, 'UPDATE')
"""
"""Columns that a sequence fills, which counts upwards."""

NUMBERED: Final = {
    "interval_number": {"interval": "max(id)"},
    "sequencer": {
        "ownership": "max(sequencer)", "checkpoint_log": "max(sequencer)", "redrive": "max(sequencer)",
        "production": "max(producer)", "delivered": "max(producer)", "delivered_frontier": "max(producer)",
        "quarantine": "max(producer)", "source": "max(producer)",
        "interval": "max((SELECT max(producer) FROM unnest(follows) AS f (producer)))",
    },
}  # fmt: skip
"""Sequences whose numbers are never given out twice, and the largest that tables have."""

NOW: Final = "SELECT (extract(epoch FROM now()) * 1000000)::bigint"
FENCE_ALL: Final = "UPDATE ownership SET sequencer = nextval('sequencer')"
FORGET_OWNERS: Final = (
    "DELETE FROM interval_owner",
    "DELETE FROM source_owner",
    "DELETE FROM map_order",
    "UPDATE cluster SET version = version + 1, shape = ''",
)
"""Processes that join later place all intervals anew, those that a split or a merge has made or removed since among them."""


def lock(schema: str, tables: Sequence[str], mode: str) -> sql.Composed:
    """Lock tables until the transaction ends.  It must be the first statement that is to see what the lock protects."""
    names = sql.SQL(", ").join(sql.Identifier(schema, table) for table in tables)
    return sql.SQL("LOCK TABLE {} IN {} MODE").format(names, sql.SQL(mode))


def make_schema(schema: str, about: str) -> list[sql.Composed]:
    """The schema of a savepoint, and what it says of itself."""
    name = sql.Identifier(schema)
    return [
        sql.SQL("CREATE SCHEMA {}").format(name),
        sql.SQL("COMMENT ON SCHEMA {} IS {}").format(name, sql.Literal(about)),
    ]


def copy(table: str, schema: str, into: str) -> sql.Composed:
    """A copy of a table, without its indexes, which nobody needs until it is put back."""
    return sql.SQL("CREATE TABLE {} AS TABLE {}").format(sql.Identifier(into, table), sql.Identifier(schema, table))


def empty(schema: str, own: Sequence[str]) -> sql.Composed:
    """Remove all rows of the store's own tables."""
    return sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(sql.Identifier(schema, table) for table in own))


def clear(schema: str, table: str) -> sql.Composed:
    """Remove all rows of a user's table, to which other tables may refer, or which may have triggers."""
    return sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, table))


def put_back(table: str, columns: Sequence[str], kept: str, schema: str) -> sql.Composed:
    """Insert the rows of a copy."""
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    return sql.SQL("INSERT INTO {} ({}) OVERRIDING SYSTEM VALUE SELECT {} FROM {}").format(
        sql.Identifier(schema, table), names, names, sql.Identifier(kept, table)
    )


def go_on(schema: str, sequence: str, largest: Mapping[str, str]) -> sql.Composed:
    """Let a sequence of the store go on behind what tables have: for each of them, an expression for its largest number."""
    found = [
        sql.SQL("(SELECT {} FROM {})").format(sql.SQL(of), sql.Identifier(schema, table))
        for table, of in largest.items()
    ]
    return _behind(sql.Identifier(schema, sequence).as_string(), found)


def fill_on(schema: str, table: str, column: str, sequence: str) -> sql.Composed:
    """The same of the sequence that fills a column."""
    name = sql.Identifier(column)
    return _behind(sequence, [sql.SQL("(SELECT max({}) FROM {})").format(name, sql.Identifier(schema, table))])


def _behind(sequence: str, numbers: Sequence[sql.Composed]) -> sql.Composed:
    return sql.SQL(
        "SELECT setval(s.name, least(q.seqmax, greatest(q.seqmin, pg_sequence_last_value(s.name), {}))) "
        "FROM (SELECT {}::regclass AS name) AS s JOIN pg_sequence q ON q.seqrelid = s.name"
    ).format(sql.SQL(", ").join(numbers), sql.Literal(sequence))


def drop(schema: str) -> sql.Composed:
    """Remove a savepoint."""
    return sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema))
