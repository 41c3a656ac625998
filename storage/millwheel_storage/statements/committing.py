"""Checkpoints into the log, alone, in groups, and with their sink rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from psycopg import sql

from millwheel.ports import SinkTable

COMMIT: Final = """
INSERT INTO checkpoint_log (interval_id, sequencer, seq, epoch, payload)
SELECT w.interval_id, w.sequencer, w.seq, w.epoch, w.payload
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[])
     AS w (interval_id, sequencer, seq, epoch, payload)
JOIN (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
) AS owned USING (interval_id, sequencer)
ON CONFLICT (interval_id, sequencer, seq) DO UPDATE SET seq = excluded.seq
RETURNING interval_id, seq
"""
"""One round trip for a group of checkpoints.  A row that is there already (a commit whose reply was lost) is
a success, and waits for the attempt that may still be open."""


COMMIT_ONE: Final = """
WITH owned AS (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = %b AND o.sequencer = %b FOR SHARE
)
INSERT INTO checkpoint_log (interval_id, sequencer, seq, epoch, payload)
SELECT o.interval_id, o.sequencer, %b, %b, %b FROM owned o
ON CONFLICT (interval_id, sequencer, seq) DO UPDATE SET seq = excluded.seq
RETURNING interval_id, seq
"""
"""`COMMIT` of a single checkpoint.  At low rates a group is one checkpoint, and arrays cost more than their elements."""


def commit_with_sinks(tables: Sequence[tuple[SinkTable, bool]]) -> bytes:
    """`COMMIT` of checkpoints with their sink rows: one round trip where a transaction would take four.

    Each table takes a JSON array of rows, and an array with the number, from 1, of the checkpoint of each row.  A table
    of which rows are deleted takes the same of their keys before that.  A row is written only if this statement inserted
    its checkpoint.  A fenced checkpoint has no row in `logged`, and one that was there already has brought its sink rows
    then.  The filter keeps the rows in the given order.
    """
    parts = [_sink(number, table, deletes) for number, (table, deletes) in enumerate(tables)]
    return sql.SQL(COMMIT_WITH_SINKS).format(sql.SQL("").join(parts)).as_bytes()


def _sink(number: int, table: SinkTable, deletes: bool) -> sql.Composed:
    rows = sql.SQL(
        'ROWS FROM (jsonb_to_recordset(%b::jsonb) AS ({types}), unnest(%b::bigint[])) AS r ({names}, "#") '
        'WHERE "#" = ANY((SELECT places FROM fresh)::bigint[]) '
    )
    upserted = rows.format(types=_types(table, table.columns), names=_names(table.columns))
    if not deletes:
        return sql.SQL(", {} AS ({})").format(sql.Identifier(f"sink_{number}"), _upsert(table, upserted))
    # Asking how many rows were deleted makes Postgres delete them first: one that is inserted may have the value of one
    # that goes in a unique column.
    gone = sql.Identifier(f"gone_{number}")
    upserted += sql.SQL("AND (SELECT count(*) FROM {}) >= 0 ").format(gone)
    deleted = rows.format(types=_types(table, table.key), names=_names(table.key))
    return sql.SQL(", {} AS ({} RETURNING 1), {} AS ({})").format(
        gone, _delete(table, deleted), sql.Identifier(f"sink_{number}"), _upsert(table, upserted)
    )


COMMIT_WITH_SINKS: Final = """
WITH given AS MATERIALIZED (
    SELECT * FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[])
    WITH ORDINALITY AS w (interval_id, sequencer, seq, epoch, payload, place)
), owned AS (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
), logged AS (
    INSERT INTO checkpoint_log (interval_id, sequencer, seq, epoch, payload)
    SELECT interval_id, sequencer, seq, epoch, payload FROM given JOIN owned USING (interval_id, sequencer)
    ON CONFLICT (interval_id, sequencer, seq) DO UPDATE SET seq = excluded.seq
    RETURNING interval_id, sequencer, seq, xmax = 0 AS inserted
), fresh AS (
    SELECT array_agg(place) AS places FROM given JOIN logged USING (interval_id, sequencer, seq) WHERE inserted
){} SELECT interval_id, seq FROM logged
"""


def sink_upsert(table: SinkTable) -> bytes:
    """Upsert a JSON array of rows into a sink table."""
    rows = sql.SQL("jsonb_to_recordset(%b::jsonb) AS r ({}) ").format(_types(table, table.columns))
    return _upsert(table, rows).as_bytes()


def sink_delete(table: SinkTable) -> bytes:
    """Delete the rows of a JSON array of keys from a sink table."""
    rows = sql.SQL("jsonb_to_recordset(%b::jsonb) AS r ({}) ").format(_types(table, table.key))
    return _delete(table, rows).as_bytes()


def _delete(table: SinkTable, rows: sql.Composed) -> sql.Composed:
    return sql.SQL("DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {rows})").format(
        table=sql.Identifier(table.name), key=_names(table.key), rows=rows
    )


def _upsert(table: SinkTable, rows: sql.Composed) -> sql.Composed:
    others = [sql.Identifier(column) for column in table.columns if column not in table.key]
    sets = [sql.SQL("{0} = excluded.{0}").format(name) for name in others]
    return sql.SQL("INSERT INTO {table} ({names}) SELECT {names} FROM {rows}ON CONFLICT ({key}) DO {action}").format(
        table=sql.Identifier(table.name),
        names=_names(table.columns),
        rows=rows,
        key=_names(table.key),
        action=sql.SQL("UPDATE SET ") + sql.SQL(", ").join(sets) if sets else sql.SQL("NOTHING"),
    )


def _names(columns: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, columns))


def _types(table: SinkTable, columns: Iterable[str]) -> sql.Composed:
    typed = (sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(table.columns[name])) for name in columns)
    return sql.SQL(", ").join(typed)


CONSTRAINTS_NOW: Final = "SET CONSTRAINTS ALL IMMEDIATE"
