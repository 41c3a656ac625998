"""What moves when a combiner of the library comes or goes, beside what does for every combiner.

`computation` is that of the only step, or of the second, and `parts` that of the first.  `subscription` has been the one's
and is now the other's, under its old number; `merged` is the one by which the second step reads.
"""

from __future__ import annotations

from typing import Final

from millwheel_storage.statements import handing_back, handing_over

# Keys are any text, so they are bytes here.  The pattern fits at whole bytes only: it ends at the end, and all in it is even.
_SHARD: Final = "23(?:3[0-9])+$"
_WHOLE_KEY: Final = f"decode(regexp_replace(encode(key, 'hex'), '{_SHARD}', ''), 'hex')"
_SHARD_OF: Final = f"decode(substring(substring(encode(key, 'hex') FROM '{_SHARD}') FROM 3), 'hex')"

MOVE_RECORDS: Final = """
UPDATE quarantine SET computation = %(parts)s, key = key || %(suffix)s::bytea
WHERE computation = %(computation)s AND subscription = ANY(%(subscriptions)s::integer[])
"""
"""The second step cannot read them.  Timers stay."""

WATERMARKS: Final = "SELECT name, value FROM watermark WHERE name = ANY(%(names)s::text[])"

OLDEST: Final = """
SELECT min(p.timestamp) FROM production p JOIN interval i ON i.id = p.interval_id
WHERE p.subscription = ANY(%(subscriptions)s::integer[]) AND i.computation <> ALL(%(senders)s::integer[])
"""
"""Of what no sender has promised anything.  What a sender has sent before its own promise is late."""

BEGIN_AT: Final = "INSERT INTO watermark (name, value) VALUES (%(name)s, %(value)s) ON CONFLICT (name) DO NOTHING"

SENT: Final = "SELECT key, producer, sequence, value FROM production WHERE subscription = %(merged)s"

FRONTIERS: Final = """
SELECT producer, max(frontier) FROM delivered_frontier
WHERE interval_id = ANY(%(new)s::bigint[]) AND subscription = %(merged)s GROUP BY producer
"""
DELIVERED: Final = """
SELECT producer, ids FROM delivered WHERE interval_id = ANY(%(new)s::bigint[]) AND subscription = %(merged)s
"""
WAITING: Final = """
SELECT key, producer, sequence, value FROM quarantine WHERE computation = %(computation)s AND subscription = %(merged)s
"""

TAKE_SENT: Final = """
INSERT INTO key_state (computation, key, cell, entry, value)
SELECT %(computation)s, w.key, %(place)s, w.entry, w.value
FROM unnest(%(keys)s::bytea[], %(entries)s::bytea[], %(values)s::bytea[]) AS w (key, entry, value)
"""
SET_TIMERS: Final = """
INSERT INTO timer (computation, key, kind, tag, timestamp)
SELECT DISTINCT %(computation)s, w.key, 'watermark', %(tag)s::bytea, %(at)s::bigint FROM unnest(%(keys)s::bytea[]) AS w (key)
ON CONFLICT (computation, key, kind, tag) DO NOTHING
"""

TAKE_GATHERED: Final = f"""
INSERT INTO key_state (computation, key, cell, entry, value)
SELECT %(computation)s, {_WHOLE_KEY}, %(place)s, entry || %(tag)s::bytea || {_SHARD_OF} || %(number)s::bytea, value
FROM key_state WHERE computation = %(parts)s AND cell = %(place_of_parts)s
"""
SET_TIMERS_OF_GATHERED: Final = f"""
INSERT INTO timer (computation, key, kind, tag, timestamp)
SELECT DISTINCT %(computation)s, {_WHOLE_KEY}, 'watermark', %(tag)s::bytea, %(at)s::bigint
FROM key_state WHERE computation = %(parts)s AND cell = %(place_of_parts)s
ON CONFLICT (computation, key, kind, tag) DO NOTHING
"""

WHOLE_KEYS: Final = f"UPDATE production SET key = {_WHOLE_KEY} WHERE subscription = %(subscription)s"
"""Without the shard."""

MOVE_ELEMENTS: Final = f"""
WITH gone AS (
    DELETE FROM quarantine WHERE computation = %(parts)s AND subscription = ANY(%(subscriptions)s::integer[])
    RETURNING key, place, subscription, producer, sequence, value, timestamp, tag, kind, error
)
INSERT INTO quarantine (computation, key, subscription, producer, sequence, value, timestamp, tag, kind, error)
SELECT %(computation)s, {_WHOLE_KEY}, subscription, producer, sequence, value, timestamp, tag, kind, error
FROM gone ORDER BY key, place
"""
"""Behind what waits in the computation already.  A timer of the first step has nothing to give any more."""

TAKE_BACK: Final = (
    WHOLE_KEYS,
    handing_over.COPY_FRONTIERS,
    handing_over.COPY_IDS,
    handing_back.COPY_BUCKETS,
    handing_back.COPY_OUTSIDE_IDS,
    handing_back.COUNT_OUTSIDE_IDS,
)
"""Of each subscription of the first step, which is dropped after that with all else that it has (`dropping`)."""
