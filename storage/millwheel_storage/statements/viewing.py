"""What the views of committed state read."""

from __future__ import annotations

from typing import Final

READ_KEY: Final = "SELECT key, cell, entry, value FROM key_state WHERE computation = %s AND key = %s"
SCAN_STATE: Final = """
SELECT key, cell, entry, value FROM key_state
WHERE computation = %(computation)s AND key >= %(low)s AND (%(high)s::bytea IS NULL OR key < %(high)s::bytea)
ORDER BY key, cell, entry
"""
READ_TIMERS: Final = "SELECT key, kind, tag, timestamp FROM timer WHERE computation = %(computation)s"
READ_HOLDS: Final = "SELECT key, timestamp FROM hold WHERE computation = %(computation)s"
LOG_LENGTHS: Final = "SELECT interval_id, count(*) FROM checkpoint_log GROUP BY interval_id"
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
