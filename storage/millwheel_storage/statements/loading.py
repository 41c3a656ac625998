"""What an interval reads when it starts, and for keys that are not in memory."""

from __future__ import annotations

from typing import Final

from millwheel.limits import WORK_LIMIT_RECORDS

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
SELECT sequencer, seq, payload FROM checkpoint_log
WHERE interval_id = %s AND epoch <= coalesce((SELECT number FROM declared_epoch), 0) ORDER BY sequencer, seq
"""
"""What counts of an interval's log: rows of an epoch that is not complete do not."""

DECLARE_LOG: Final = f"DECLARE millwheel_log NO SCROLL CURSOR FOR {READ_LOG}"
FETCH_LOG: Final = f"FETCH FORWARD {WORK_LIMIT_RECORDS} FROM millwheel_log"
CLOSE_LOG: Final = "CLOSE millwheel_log"
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
"""The order is for the planner: of the two indexes of this table only the primary key has it.  By the other index, each key
would walk through all timers of the computation, and with statistics from a small table the planner takes either.  An
equality instead would say that all keys are the same, and any index has that order."""

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
"""Whether nothing was ever stored of any key.  The same question about one interval could walk over all its dead rows."""

READ_WATERMARK: Final = "SELECT value FROM watermark WHERE name = %s"
