"""Every SQL statement of the stores, by name.

Lives here: SQL text with bound parameters.  Never here: Python that runs it.  No statement names a schema
(search_path does) and none is built from user text, except sink tables, whose checked names are quoted by
`psycopg.sql`.

The fence.  A write joins rows of `ownership` that it locks FOR SHARE in interval order, in the same
statement.  Under READ COMMITTED a lock that had to wait sees the row as it is after the wait, so a
concurrent new owner makes the join, and the write, empty: *zero rows, not an error*.  FOR KEY SHARE would
not wait; reading first and writing later would race.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from psycopg import sql

from millwheel.ports import SinkTable

# Sessions and creation

CONFIGURE: Final = """
SELECT set_config('search_path', %s, false), set_config('lock_timeout', %s, false),
       set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
       set_config('client_min_messages', 'warning', false), set_config('TimeZone', 'UTC', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('enable_sort', 'off', false),
       set_config('enable_incremental_sort', 'off', false), set_config('jit', 'off', false)
"""
"""Every statement here finds its rows by an index.  Said aloud, because a plan made and kept while a table
was empty would otherwise read all of it, for every fold, once it is not.  Where a table has two, the order that a
statement asks for says which: without sorts only that index can give it."""

SAFE_SETTINGS: Final = """
SELECT current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')
"""

LOCK_SCHEMA: Final = "SELECT pg_advisory_xact_lock(hashtextextended('millwheel ' || %s, 0))"
SCHEMA_TABLES: Final = """
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
"""
APPLIED_MIGRATION: Final = "SELECT coalesce(max(version), 0) FROM migration"
RECORD_MIGRATION: Final = "INSERT INTO migration (version) VALUES (%s)"
READ_META: Final = "SELECT payload_format, shape FROM meta"
WRITE_META: Final = """
INSERT INTO meta (payload_format, shape) VALUES (%s, %s)
ON CONFLICT (singleton) DO UPDATE SET payload_format = excluded.payload_format, shape = excluded.shape
"""
READ_NAMES: Final = "SELECT kind, name, number FROM name"
ADD_NAME: Final = """
INSERT INTO name (kind, name, number)
SELECT %(kind)s, %(name)s, coalesce(max(number), 0) + 1 FROM name WHERE kind = %(kind)s
RETURNING number
"""
ADD_INTERVAL: Final = """
WITH made AS (
    INSERT INTO interval (id, computation, low, high) VALUES (nextval('interval_number'), %s, %s, %s) RETURNING id
)
INSERT INTO ownership (interval_id, sequencer) SELECT id, 0 FROM made RETURNING interval_id
"""
READ_INTERVALS: Final = "SELECT id, computation, low, high FROM interval WHERE computation = ANY(%s) ORDER BY id"
READ_INTERVAL: Final = "SELECT computation, low, high FROM interval WHERE id = %s"
COUNT_HOLDERS: Final = "SELECT count(DISTINCT key) FROM key_state WHERE computation = %s AND cell = %s"
HELD_ENTRIES: Final = "SELECT key, entry FROM key_state WHERE computation = %s AND cell = %s AND key = ANY(%s::bytea[])"
DROP_CELL: Final = "DELETE FROM key_state WHERE computation = %s AND cell = %s"
RENAME: Final = "UPDATE name SET name = %s WHERE kind = %s AND name = %s"
RENAME_WATERMARK: Final = "UPDATE watermark SET name = %s WHERE name = %s"
TABLE_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
TABLE_KEY: Final = """
SELECT a.attname
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY k.place
"""

SNAPSHOT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"
"""All reads of a transaction see one moment, that of its first read."""

# Ownership

ACQUIRE: Final = "UPDATE ownership SET sequencer = nextval('sequencer') WHERE interval_id = %s RETURNING sequencer"
NEXT_SEQUENCER: Final = "SELECT nextval('sequencer')"
REACQUIRE: Final = """
UPDATE ownership SET sequencer = %b WHERE interval_id = %b AND sequencer = ANY(%b::bigint[]) RETURNING sequencer
"""
STILL_OWNED: Final = """
SELECT w.interval_id FROM unnest(%b::bigint[], %b::bigint[]) AS w (interval_id, sequencer)
JOIN ownership o ON o.interval_id = w.interval_id AND o.sequencer = w.sequencer
"""
OWNED: Final = "SELECT 1 FROM ownership WHERE interval_id = %s AND sequencer = %s FOR SHARE"

# Commits

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
"""`COMMIT` of a single checkpoint: at low rates a group is just that, and arrays cost more than their elements."""


def commit_with_sinks(tables: Sequence[tuple[SinkTable, bool]]) -> bytes:
    """`COMMIT` of checkpoints with their sink rows: one round trip where a transaction would take four.

    For each table a JSON array of rows, and an array with the place, from 1, of the checkpoint that each row is from; and
    before them, for a table of which rows are deleted, the same of their keys.
    A row is written only if this very statement inserted its checkpoint: a fenced one has no row in `logged`, and one
    that was there already brought its sink rows then.  The filter keeps the rows in the order in which they are given.
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


def add_column(table: str, column: str, kind: str) -> sql.Composed:
    """A column more in a sink table, null in the rows that are there."""
    return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
        sql.Identifier(table), sql.Identifier(column), sql.SQL(kind)
    )


CONSTRAINTS_NOW: Final = "SET CONSTRAINTS ALL IMMEDIATE"

# Loads and recovery

LOAD_KEYS: Final = """
SELECT s.key, s.cell, s.entry, s.value FROM unnest(%b::bytea[]) AS w (key) CROSS JOIN LATERAL (
    SELECT k.key, k.cell, k.entry, k.value FROM key_state k WHERE k.computation = %b AND k.key = w.key
    ORDER BY k.cell, k.entry LIMIT %b
) AS s
"""
LOAD_SLOTS: Final = """
SELECT s.* FROM unnest(%b::bytea[], %b::text[], %b::bytea[]) AS w (key, cell, entry) CROSS JOIN LATERAL (
    SELECT k.key, k.cell, k.entry, k.value FROM key_state k
    WHERE k.computation = %b AND k.key = w.key AND k.cell = w.cell AND k.entry = w.entry OFFSET 0
) AS s
"""
LOAD_CELLS: Final = """
SELECT s.* FROM unnest(%b::bytea[], %b::text[]) AS w (key, cell) CROSS JOIN LATERAL (
    SELECT k.key, k.cell, k.entry, k.value FROM key_state k
    WHERE k.computation = %b AND k.key = w.key AND k.cell = w.cell OFFSET 0
) AS s
"""
READ_LOG: Final = """
SELECT sequencer, seq, payload FROM checkpoint_log WHERE interval_id = %s ORDER BY sequencer, seq
"""
DELETE_LOG: Final = "DELETE FROM checkpoint_log WHERE interval_id = %s"
LOAD_CHANNELS: Final = """
SELECT f.subscription, f.producer, f.frontier, coalesce((
    SELECT d.last_sequence FROM delivered d
    WHERE d.interval_id = f.interval_id AND d.subscription = f.subscription AND d.producer = f.producer
      AND d.last_sequence >= f.frontier
    ORDER BY d.last_sequence DESC LIMIT 1
), -1)
FROM delivered_frontier f WHERE f.interval_id = %s ORDER BY f.subscription, f.producer
"""
"""One index probe for each channel, however many ids it has: every channel has a frontier."""

FIND_IDS: Final = """
SELECT d.ids, f.frontier FROM delivered d JOIN delivered_frontier f USING (interval_id, subscription, producer)
WHERE d.interval_id = %b AND d.subscription = %b AND d.producer = %b
  AND d.last_sequence >= %b AND d.first_sequence <= %b
"""
LOAD_PRODUCTIONS: Final = """
SELECT subscription, producer, sequence, key, value, timestamp FROM production WHERE interval_id = %s
ORDER BY subscription, producer, sequence
"""
LOAD_KEY_TIMERS: Final = """
SELECT s.* FROM unnest(%b::bytea[]) AS w (key) CROSS JOIN LATERAL (
    SELECT t.key, t.kind, t.tag, t.timestamp FROM timer t
    WHERE t.computation = %b AND t.key BETWEEN w.key AND w.key ORDER BY t.key, t.kind, t.tag OFFSET 0
) AS s
"""
"""The order is for the planner: of the two indexes of this table only the primary key has it.  By the other, which for
figures from a small table does as well, each key would walk through all timers of the computation.  An equality would
say that all keys are the same, which any index has in order."""

LOAD_TIMERS: Final = """
SELECT key, kind, tag, timestamp FROM timer
WHERE computation = %(computation)s AND kind = %(kind)s
  AND (timestamp, key, tag) > (%(timestamp)s::bigint, %(key)s::bytea, %(tag)s::bytea)
  AND key >= %(low)s AND (%(high)s::bytea IS NULL OR key < %(high)s::bytea)
ORDER BY timestamp, key, tag LIMIT %(limit)s
"""
LOAD_HOLDS: Final = """
SELECT key, timestamp FROM hold
WHERE computation = %(computation)s AND key >= %(low)s AND (%(high)s::bytea IS NULL OR key < %(high)s::bytea)
ORDER BY key
"""
LOAD_QUARANTINED: Final = """
SELECT DISTINCT key FROM quarantine
WHERE computation = %(computation)s AND key >= %(low)s AND (%(high)s::bytea IS NULL OR key < %(high)s::bytea)
ORDER BY key
"""
BLANK: Final = "SELECT pg_relation_size('key_state') = 0 AND pg_relation_size('timer') = 0"
"""Whether nothing was ever stored of any key: of one interval it could take a walk over all rows that are dead."""

READ_WATERMARK: Final = "SELECT value FROM watermark WHERE name = %s"

# Folds.  Each takes columns as arrays: one statement per table however many rows.

FOLD_LOG: Final = """
DELETE FROM checkpoint_log WHERE interval_id = %b AND sequencer = %b AND seq <= %b
"""
FORGET_STATE: Final = "DELETE FROM key_state WHERE computation = %b AND key = ANY(%b::bytea[])"
FORGET_TIMERS: Final = """
DELETE FROM timer WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bytea[]) AS w (key) CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM timer t
        WHERE t.computation = %b AND t.key BETWEEN w.key AND w.key ORDER BY t.key, t.kind, t.tag OFFSET 0
    ) AS s
))
"""
"""By the primary key, as `LOAD_KEY_TIMERS`."""

FORGET_HOLDS: Final = "DELETE FROM hold WHERE computation = %b AND key = ANY(%b::bytea[])"
ADD_VALUES: Final = """
INSERT INTO key_state (computation, key, cell, entry, value)
SELECT %b, w.key, %b, '', w.value FROM unnest(%b::bytea[], %b::bytea[]) AS w (key, value)
"""
ADD_ENTRIES: Final = """
INSERT INTO key_state (computation, key, cell, entry, value)
SELECT %b, w.key, %b, w.entry, w.value
FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[]) AS w (key, value, entry)
"""
_OR_SET: Final = "ON CONFLICT (computation, key, cell, entry) DO UPDATE SET value = excluded.value\n"
SET_VALUES: Final = ADD_VALUES + _OR_SET
SET_ENTRIES: Final = ADD_ENTRIES + _OR_SET
CLEAR_STATE: Final = """
DELETE FROM key_state WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bytea[], %b::bytea[]) AS w (key, entry)
    CROSS JOIN LATERAL (
        SELECT k.ctid AS place FROM key_state k
        WHERE k.computation = %b AND k.key = w.key AND k.cell = %b AND k.entry = w.entry OFFSET 0
    ) AS s
))
"""
"""OFFSET 0 fixes the plan: one index probe for each given row.  The planner, whose figures may be from when
the table was empty, could else walk the whole computation for each of them.  The fence keeps the rows
where they were found."""

FOLD_TIMERS: Final = """
INSERT INTO timer (computation, key, kind, tag, timestamp)
SELECT %b, w.key, w.kind, w.tag, w.timestamp
FROM unnest(%b::bytea[], %b::text[], %b::bytea[], %b::bigint[]) AS w (key, kind, tag, timestamp)
ON CONFLICT (computation, key, kind, tag) DO UPDATE SET timestamp = excluded.timestamp
"""
CLEAR_TIMERS: Final = """
DELETE FROM timer WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bytea[], %b::text[], %b::bytea[]) AS w (key, kind, tag)
    CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM timer t
        WHERE t.computation = %b AND t.key BETWEEN w.key AND w.key AND t.kind = w.kind AND t.tag = w.tag
        ORDER BY t.key OFFSET 0
    ) AS s
))
"""
"""By the primary key, as `LOAD_KEY_TIMERS`: by the other index this walks all timers of a kind for each that goes."""

FOLD_HOLDS: Final = """
INSERT INTO hold (computation, key, timestamp)
SELECT %b, w.key, w.timestamp FROM unnest(%b::bytea[], %b::bigint[]) AS w (key, timestamp)
ON CONFLICT (computation, key) DO UPDATE SET timestamp = excluded.timestamp
"""
FOLD_PRODUCTIONS: Final = """
INSERT INTO production (interval_id, subscription, producer, sequence, key, value, timestamp)
SELECT %b, %b, %b, w.sequence, w.key, w.value, w.timestamp
FROM unnest(%b::bigint[], %b::bytea[], %b::bytea[], %b::bigint[]) AS w (sequence, key, value, timestamp)
"""
FOLD_ACKS: Final = """
DELETE FROM production WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::bigint[], %b::bigint[]) AS w (low, high)
    CROSS JOIN LATERAL (
        SELECT p.ctid AS place FROM production p
        WHERE p.interval_id = %b AND p.subscription = %b AND p.producer = %b AND p.sequence BETWEEN w.low AND w.high
        OFFSET 0
    ) AS s
))
"""
"""By runs of consecutive sequences: most acked productions were acked before a fold could store them, so most runs
find nothing."""
FOLD_IDS: Final = """
INSERT INTO delivered (interval_id, subscription, producer, first_sequence, last_sequence, ids)
SELECT %b, w.subscription, w.producer, w.first_sequence, w.last_sequence, w.ids
FROM unnest(%b::int[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[])
     AS w (subscription, producer, first_sequence, last_sequence, ids)
"""
FOLD_FRONTIERS: Final = """
INSERT INTO delivered_frontier AS f (interval_id, subscription, producer, frontier)
SELECT %b, w.subscription, w.producer, w.frontier
FROM unnest(%b::int[], %b::bigint[], %b::bigint[]) AS w (subscription, producer, frontier)
ON CONFLICT (interval_id, subscription, producer) DO UPDATE SET frontier = excluded.frontier
WHERE f.frontier < excluded.frontier
"""
DROP_FRONTIERS: Final = """
DELETE FROM delivered_frontier WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::int[], %b::bigint[]) AS w (subscription, producer) CROSS JOIN LATERAL (
        SELECT f.ctid AS place FROM delivered_frontier f
        WHERE f.interval_id = %b AND f.subscription = w.subscription AND f.producer = w.producer OFFSET 0
    ) AS s
))
"""
"""For producers that are retired: nobody will be asked about them again."""

COLLECT_IDS: Final = """
DELETE FROM delivered WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM unnest(%b::int[], %b::bigint[], %b::bigint[]) AS w (subscription, producer, frontier)
    CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM delivered d
        WHERE d.interval_id = %b AND d.subscription = w.subscription AND d.producer = w.producer
          AND d.last_sequence < w.frontier OFFSET 0
    ) AS s
))
"""
"""A plain join, planned while the table was small, walks all ids of the interval."""

# Ids that outside clients chose

FOLD_OPAQUE: Final = """
WITH bucket AS (
    INSERT INTO opaque_bucket AS b (interval_id, subscription, expires, count) VALUES (%b, %b, %b, %b)
    ON CONFLICT (interval_id, subscription, expires) DO UPDATE SET count = b.count + excluded.count
    RETURNING number
)
INSERT INTO opaque_id (bucket, id) SELECT bucket.number, w.id FROM bucket CROSS JOIN unnest(%b::bytea[]) AS w (id)
"""
EXPIRE_OPAQUE: Final = """
DELETE FROM opaque_id WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM opaque_id WHERE bucket = (
        SELECT number FROM opaque_bucket WHERE interval_id = %b AND subscription = %b AND expires <= %b
        ORDER BY expires LIMIT 1
    ) ORDER BY id LIMIT %b
))
"""
"""Of the oldest bucket, and not all at once: a fold is a short transaction."""

DROP_OPAQUE_BUCKETS: Final = """
DELETE FROM opaque_bucket b WHERE b.interval_id = %b AND b.subscription = %b AND b.expires <= %b
  AND NOT EXISTS (SELECT FROM opaque_id o WHERE o.bucket = b.number)
"""
LOAD_OPAQUE_BUCKETS: Final = """
SELECT subscription, expires, count FROM opaque_bucket WHERE interval_id = %s ORDER BY subscription, expires
"""
FIND_OPAQUE: Final = """
SELECT DISTINCT f.id FROM opaque_bucket b CROSS JOIN unnest(%b::bytea[]) AS w (id)
CROSS JOIN LATERAL (SELECT o.id FROM opaque_id o WHERE o.bucket = b.number AND o.id = w.id LIMIT 1) AS f
WHERE b.interval_id = %b AND b.subscription = %b AND b.expires > %b
"""
READ_OPAQUE: Final = """
SELECT id FROM opaque_id WHERE bucket = (
    SELECT number FROM opaque_bucket WHERE interval_id = %b AND subscription = %b AND expires = %b
) AND id > %b ORDER BY id LIMIT %b
"""

# Quarantine

CLEAR_QUARANTINE: Final = "DELETE FROM quarantine WHERE computation = %b AND key = ANY(%b::bytea[])"
CLEAR_REDRIVES: Final = "DELETE FROM redrive WHERE computation = %b AND key = ANY(%b::bytea[])"
APPEND_QUARANTINE: Final = """
INSERT INTO quarantine (computation, key, subscription, producer, sequence, value, timestamp, tag, kind, error)
SELECT %b, e.key, e.subscription, e.producer, e.sequence, e.value, e.timestamp, e.tag, e.kind, e.error
FROM unnest(
    %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bytea[], %b::bytea[], %b::bytea[], %b::bytea[], %b::text[]
) WITH ORDINALITY AS e (subscription, producer, sequence, timestamp, key, tag, error, value, kind, nth)
ORDER BY e.nth
"""
DROP_QUARANTINE: Final = """
DELETE FROM quarantine q USING unnest(%b::bytea[], %b::bigint[]) AS d (key, count) CROSS JOIN LATERAL (
    SELECT f.place FROM quarantine f WHERE f.computation = %b AND f.key = d.key ORDER BY f.place LIMIT d.count
) AS first
WHERE q.computation = %b AND q.key = d.key AND q.place = first.place
"""
FETCH_QUARANTINE: Final = """
SELECT f.key, f.subscription, f.producer, f.sequence, f.value, f.timestamp, f.tag, f.kind, f.error
FROM unnest(%b::bytea[]) AS wanted (key) CROSS JOIN LATERAL (
    SELECT * FROM quarantine q WHERE q.computation = %b AND q.key = wanted.key ORDER BY q.place LIMIT %b
) AS f
ORDER BY f.key, f.place LIMIT %b
"""
COUNT_QUARANTINE: Final = "SELECT key, count(*) FROM quarantine WHERE computation = %s GROUP BY key"
READ_QUARANTINE: Final = """
SELECT key, subscription, producer, sequence, value, timestamp, tag, kind, error FROM quarantine
WHERE computation = %s AND key = %s ORDER BY place LIMIT %s
"""
READ_REDRIVES: Final = """
SELECT n.name, r.key FROM name n CROSS JOIN LATERAL (
    SELECT key FROM redrive
    WHERE computation = n.number AND key >= CASE WHEN n.name = %(name)s THEN %(key)s::bytea ELSE ''::bytea END
    ORDER BY key LIMIT %(limit)s
) AS r
WHERE n.kind = 'computation' AND n.name COLLATE "C" >= %(name)s
ORDER BY n.name COLLATE "C", r.key LIMIT %(limit)s
"""
REQUEST_REDRIVES: Final = """
INSERT INTO redrive (computation, key) SELECT %s, unnest(%s::bytea[]) ON CONFLICT DO NOTHING
"""

# Watermarks and sources

PERSIST_WATERMARKS: Final = """
WITH claim AS MATERIALIZED (
    SELECT c.name, c.sequencer IS NOT DISTINCT FROM o.sequencer AS held
    FROM unnest(%b::text[], %b::bigint[], %b::bigint[]) AS c (name, interval_id, sequencer)
    LEFT JOIN LATERAL (
        SELECT w.sequencer FROM ownership w WHERE w.interval_id = c.interval_id FOR SHARE
    ) AS o ON true
)
INSERT INTO watermark AS m (name, value)
SELECT w.name, w.value FROM unnest(%b::text[], %b::bigint[]) AS w (name, value)
WHERE NOT EXISTS (SELECT FROM claim c WHERE c.name = w.name AND NOT c.held) ORDER BY w.name
ON CONFLICT (name) DO UPDATE SET value = greatest(m.value, excluded.value)
RETURNING name
"""
"""Fenced by all that a value rests on.  Rows of `ownership` are locked one by one, in the order in which they are given."""

READ_WATERMARKS: Final = "SELECT name, value FROM watermark"
READ_UNFINISHED: Final = """
SELECT source, partition, interval_id, producer, position, finished, state FROM source
WHERE NOT finished ORDER BY source, partition
"""
OPENED_SOURCES: Final = """
SELECT w.name FROM unnest(%s::text[]) AS w (name) WHERE EXISTS (SELECT FROM source s WHERE s.source = w.name)
"""
"""One index probe for each name, however many partitions a source has."""

TAKE_UNFINISHED: Final = """
UPDATE ownership o SET sequencer = nextval('sequencer')
FROM (
    SELECT o.interval_id FROM ownership o JOIN source s USING (interval_id)
    WHERE s.source = %(source)s AND NOT s.finished
      AND (%(partitions)s::text[] IS NULL OR s.partition = ANY(%(partitions)s::text[]))
    ORDER BY o.interval_id FOR UPDATE OF o
) AS unfinished WHERE o.interval_id = unfinished.interval_id RETURNING o.interval_id
"""
END_PARTITIONS: Final = """
UPDATE source SET finished = true WHERE interval_id = ANY(%s) RETURNING partition
"""
END_SOURCE: Final = """
INSERT INTO watermark AS m (name, value) VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""

READ_OPEN_SOURCES: Final = """
SELECT partition, interval_id, producer, position, finished, state FROM source
WHERE source = %(source)s AND NOT finished
UNION ALL
SELECT partition, interval_id, producer, position, finished, state FROM source
WHERE source = %(source)s AND finished AND NOT signed
ORDER BY partition
"""
"""Two indexes, which hold nothing of what is finished and signed."""

UNKNOWN_SIGNS: Final = """
SELECT w.sign FROM unnest(%b::bytea[]) AS w (sign)
LEFT JOIN LATERAL (SELECT true AS known FROM source_sign s WHERE s.source = %s AND s.sign = w.sign LIMIT 1) AS f ON true
WHERE f.known IS NULL
"""
"""A probe for each sign, whatever the planner thinks of reading the whole table instead."""

FIND_SOURCES: Final = """
WITH found AS (
    SELECT g.interval_id FROM unnest(%(signs)b::bytea[]) AS w (sign)
    CROSS JOIN LATERAL (
        SELECT s.interval_id FROM source_sign s WHERE s.source = %(source)s AND s.sign = w.sign OFFSET 0
    ) AS g
    UNION
    SELECT g.interval_id FROM unnest(%(names)b::text[]) AS w (name)
    CROSS JOIN LATERAL (
        SELECT s.interval_id FROM source s WHERE s.source = %(source)s AND s.partition = w.name OFFSET 0
    ) AS g
)
SELECT p.partition, p.interval_id, p.producer, p.position, p.finished, p.state FROM found
CROSS JOIN LATERAL (SELECT * FROM source s WHERE s.interval_id = found.interval_id OFFSET 0) AS p
ORDER BY p.partition
"""
ADD_SIGNS: Final = """
INSERT INTO source_sign (source, sign, interval_id)
SELECT s.source, w.sign, s.interval_id
FROM unnest(%b::bytea[], %b::bigint[]) AS w (sign, interval_id) JOIN source s USING (interval_id)
WHERE s.finished ORDER BY s.source, w.sign, s.interval_id
ON CONFLICT DO NOTHING
"""
SIGN_SOURCES: Final = (
    "UPDATE source SET signed = true WHERE interval_id = ANY(%b::bigint[]) AND finished AND NOT signed"
)

ADD_SOURCES: Final = """
WITH numbered AS (
    SELECT p.partition, p.state, nextval('interval_number') AS interval_id, nextval('sequencer') AS producer
    FROM (
        SELECT * FROM unnest(%(names)b::text[], %(states)b::bytea[]) WITH ORDINALITY AS w (partition, state, place)
        ORDER BY w.place OFFSET 0
    ) AS p
), made AS (
    INSERT INTO interval (id, computation, low, high) SELECT interval_id, %(computation)s, ''::bytea, NULL FROM numbered
), owned AS (
    INSERT INTO ownership (interval_id, sequencer) SELECT interval_id, 0 FROM numbered
)
INSERT INTO source (source, partition, interval_id, producer, position, finished, state)
SELECT %(source)s, partition, interval_id, producer, 0, false, state FROM numbered
"""
ADVANCE: Final = """
UPDATE source s SET position = w.position, finished = w.finished, state = w.state
FROM unnest(%b::bigint[], %b::bigint[], %b::bigint[], %b::boolean[], %b::bytea[])
     AS w (interval_id, sequencer, position, finished, state)
JOIN (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
) AS owned USING (interval_id, sequencer)
WHERE s.interval_id = w.interval_id
RETURNING s.interval_id
"""

# Suspicions

BEGIN_SUSPICION: Final = """
INSERT INTO suspicion AS s (interval_id, ends, mark) VALUES (%s, 1, '')
ON CONFLICT (interval_id) DO UPDATE SET ends = s.ends + 1 RETURNING s.ends - 1, s.mark
"""
MARK: Final = """
UPDATE suspicion s SET mark = w.mark, ends = coalesce(w.ends, s.ends)
FROM unnest(%b::bigint[], %b::bigint[], %b::bytea[], %b::int[]) AS w (interval_id, sequencer, mark, ends)
JOIN (
    SELECT o.interval_id, o.sequencer FROM ownership o WHERE o.interval_id = ANY(%b::bigint[])
    ORDER BY o.interval_id FOR SHARE
) AS owned USING (interval_id, sequencer)
WHERE s.interval_id = w.interval_id
RETURNING s.interval_id
"""

# Views

READ_KEY: Final = "SELECT key, cell, entry, value FROM key_state WHERE computation = %s AND key = %s"
SCAN_STATE: Final = """
SELECT key, cell, entry, value FROM key_state
WHERE computation = %(computation)s AND key >= %(low)s AND (%(high)s::bytea IS NULL OR key < %(high)s::bytea)
ORDER BY key, cell, entry
"""
READ_TIMERS: Final = "SELECT key, kind, tag, timestamp FROM timer WHERE computation = %(computation)s"
READ_HOLDS: Final = "SELECT key, timestamp FROM hold WHERE computation = %(computation)s"
PENDING_PRODUCTIONS: Final = """
SELECT subscription, producer, sequence, key, timestamp FROM production WHERE interval_id = %s
"""
TAIL: Final = """
SELECT position, timestamp, decode(value, 'base64') FROM millwheel_published
WHERE stream = %s AND position > %s ORDER BY position LIMIT %s
"""
TAIL_END: Final = """
SELECT coalesce(max(position), 0) FROM millwheel_published WHERE stream = %s
"""
TABLE_BYTES: Final = """
SELECT c.relname, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r' ORDER BY c.relname
"""
