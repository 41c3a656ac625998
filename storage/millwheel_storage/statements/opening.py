"""What a session sets, what opening a schema asks and writes, who owns an interval."""

from __future__ import annotations

from typing import Final

from psycopg import sql

SETTLE: Final = """
SELECT set_config('default_transaction_isolation', 'read committed', false),
       set_config('synchronous_commit', coalesce(nullif(current_setting('synchronous_commit'), 'off'), 'on'), false),
       set_config('DateStyle', 'ISO', false), set_config('bytea_output', 'hex', false),
       set_config('extra_float_digits', '1', false), set_config('quote_all_identifiers', 'off', false)
"""
"""What a site may have set for a role or a database, and what every session here rests on.  Whoever waits for a lock has to
see what was written meanwhile.  What was acknowledged has to be on disk.  The others decide how values look as text."""

CONFIGURE: Final = f"""
{SETTLE.strip()},
       set_config('search_path', %s, false), set_config('lock_timeout', %s, false),
       set_config('statement_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
       set_config('idle_session_timeout', '0', false),
       set_config('client_min_messages', 'warning', false), set_config('TimeZone', 'UTC', false),
       set_config('enable_seqscan', 'off', false), set_config('enable_hashjoin', 'off', false),
       set_config('enable_mergejoin', 'off', false), set_config('enable_sort', 'off', false),
       set_config('enable_incremental_sort', 'off', false), set_config('jit', 'off', false),
       set_config('plan_cache_mode', 'force_generic_plan', false)
"""
"""Every statement here finds its rows by an index.  These settings enforce it.  Otherwise a plan that was made and kept
while a table was empty would read all of it in every fold later.  Where a table has two indexes, the order that a
statement asks for chooses one: without sorts, only that index can give it.

So a plan depends on no value, and is made once.  Left to itself, Postgres plans a statement with arrays anew each time,
because it takes short arrays for cheaper.  A third of what it did for a group of two checkpoints was that."""

SAFE_SETTINGS: Final = """
SELECT current_setting('fsync'), current_setting('full_page_writes')
"""

MARK_SESSION: Final = "SELECT pg_backend_pid(), set_config('millwheel.session', %s, false)"
READ_MARK: Final = "SELECT current_setting('millwheel.session', true)"

LOCK_SCHEMA: Final = "SELECT pg_advisory_xact_lock(hashtextextended('millwheel ' || %s, 0))"
FIND_SCHEMA: Final = "SELECT FROM pg_namespace WHERE nspname = %s"
"""`CREATE SCHEMA IF NOT EXISTS` asks for the right to create one also when it is there."""

MAY_BEGIN: Final = """
SELECT CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
    ELSE has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END, n.oid IS NOT NULL
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s
"""
"""Whether the role may make the schema, or tables in the one that is there; and whether it is there."""

IS_WHOLE: Final = """NOT EXISTS (
    SELECT FROM pg_partition_ancestors(c.oid) AS a (oid) JOIN pg_class t ON t.oid = a.oid
    WHERE t.oid <> c.oid AND t.relnamespace = c.relnamespace
)"""
"""A partition is a part of its table, and goes with it wherever tables are counted, copied and put back."""

SCHEMA_TABLES: Final = f"""
SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND {IS_WHOLE}
"""
PIPELINES: Final = """
SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = 'checkpoint_log' AND c.relkind IN ('r', 'p') AND strpos(n.nspname, '@') = 0
ORDER BY n.nspname LIMIT 5
"""
"""Schemas of pipelines, without those of savepoints."""
APPLIED_MIGRATION: Final = "SELECT coalesce(max(version), 0) FROM migration"
RECORD_MIGRATIONS: Final = "INSERT INTO migration (version) SELECT generate_series(%s::int, %s::int)"
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
BEGIN_SEQUENCERS: Final = "SELECT setval('sequencer', 1 + (random() * (1 << 28))::bigint)"
"""Owners of a store that was dropped may still be there.  They are fenced because the new store begins with other sequencers,
by chance.  There are 2^31 of them: numbers of bundles have 32 bits below the sequencer, and are sent as int64."""
FORGET_WATERMARK: Final = "DELETE FROM watermark WHERE name = %s"
"""What an earlier computation of a name has left there is nobody's: the floor of a loop was not always taken along."""
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


def add_column(table: str, column: str, kind: str) -> sql.Composed:
    """A column more in a sink table, null in the rows that are there."""
    return sql.SQL("ALTER TABLE {} ADD COLUMN {} {}").format(
        sql.Identifier(table), sql.Identifier(column), sql.SQL(kind)
    )


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
BEHIND_OTHERS: Final = """
SELECT i.id FROM interval i WHERE i.id = ANY(%s::bigint[]) AND i.follows <> '{}' AND EXISTS (
    SELECT FROM interval o JOIN production p ON p.interval_id = o.id AND p.producer = ANY(i.follows)
    WHERE o.computation = i.computation AND o.id <> i.id
)
"""
OWNED: Final = "SELECT 1 FROM ownership WHERE interval_id = %s AND sequencer = %s FOR SHARE"
