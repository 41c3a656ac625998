"""What was on its way to a computation goes to its combiner.

`old` are the intervals of the computation, `new` those of the combiner.  `subscription` has been the one's and is now the
other's, under its old number.
"""

from __future__ import annotations

from typing import Final

NO_TIMEOUT: Final = "SET LOCAL statement_timeout = 0"
"""Ids are copied to each interval of a combiner, and there may be many."""

FENCE_ALL: Final = """
WITH locked AS MATERIALIZED (
    SELECT interval_id FROM ownership ORDER BY interval_id FOR UPDATE
), numbered AS MATERIALIZED (
    SELECT interval_id, nextval('sequencer') AS sequencer FROM locked
)
UPDATE ownership o SET sequencer = n.sequencer FROM numbered n WHERE o.interval_id = n.interval_id
"""
"""Partitions of sources too.  Locks are in the order of the ids, as those of commits."""

DISOWN_ALL: Final = """
WITH intervals AS (
    UPDATE interval_owner SET owner = NULL WHERE owner IS NOT NULL RETURNING 1
), sources AS (
    UPDATE source_owner SET owner = NULL WHERE owner IS NOT NULL RETURNING 1
)
UPDATE cluster SET version = version + 1 WHERE EXISTS (SELECT FROM intervals) OR EXISTS (SELECT FROM sources)
"""
"""A member whose lease has run out takes nothing any more: it may live, and knows the earlier version."""

LOGGED: Final = "SELECT DISTINCT interval_id FROM checkpoint_log ORDER BY interval_id"

PREFIX_KEYS: Final = """
UPDATE production SET key = %(prefix)s::bytea || key || %(suffix)s::bytea WHERE subscription = %(subscription)s
"""
"""Whatever sends them, and under the ids that they have."""

MOVE_LOGS: Final = """
UPDATE production SET interval_id = %(first)s
WHERE interval_id = ANY(%(old)s::bigint[]) AND subscription = %(subscription)s
"""
"""What an interval sends to itself, as the head of a loop does with its log (docs/adr/0036-snapshots-in-loops.md), goes to
the first interval of the combiner, which has the keys with that prefix.  So that one sends it to itself, and what a producer
has sent stays with one interval."""

COPY_FRONTIERS: Final = """
INSERT INTO delivered_frontier (interval_id, subscription, producer, frontier)
SELECT w.id, f.subscription, f.producer, max(f.frontier)
FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN delivered_frontier f
WHERE f.interval_id = ANY(%(old)s::bigint[]) AND f.subscription = %(subscription)s
GROUP BY w.id, f.subscription, f.producer
"""
"""A frontier is the sender's word about a whole channel, so the largest is true for all."""

COPY_IDS: Final = """
INSERT INTO delivered (interval_id, subscription, producer, first_sequence, last_sequence, ids)
SELECT DISTINCT f.interval_id, d.subscription, d.producer, d.first_sequence, d.last_sequence, d.ids
FROM delivered_frontier f CROSS JOIN unnest(%(old)s::bigint[]) AS w (id) JOIN delivered d
  ON d.interval_id = w.id AND d.subscription = f.subscription AND d.producer = f.producer
 AND d.last_sequence >= f.frontier
WHERE f.interval_id = ANY(%(new)s::bigint[]) AND f.subscription = %(subscription)s
"""
COPY_BUCKETS: Final = """
INSERT INTO opaque_bucket (interval_id, subscription, expires, count)
SELECT w.id, b.subscription, b.expires, sum(b.count)::bigint
FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN opaque_bucket b
WHERE b.interval_id = ANY(%(old)s::bigint[]) AND b.subscription = %(subscription)s
GROUP BY w.id, b.subscription, b.expires
"""
COPY_OUTSIDE_IDS: Final = """
INSERT INTO opaque_id (bucket, id)
SELECT n.number, o.id FROM opaque_bucket b
JOIN opaque_bucket n ON n.interval_id = ANY(%(new)s::bigint[]) AND n.subscription = b.subscription AND n.expires = b.expires
JOIN opaque_id o ON o.bucket = b.number
WHERE b.interval_id = ANY(%(old)s::bigint[]) AND b.subscription = %(subscription)s
"""
DROP_OUTSIDE_IDS: Final = """
DELETE FROM opaque_id WHERE bucket = ANY(ARRAY(
    SELECT number FROM opaque_bucket WHERE interval_id = ANY(%(old)s::bigint[]) AND subscription = %(subscription)s
))
"""
MOVE_QUARANTINE: Final = """
UPDATE quarantine SET subscription = %(merged)s WHERE computation = %(computation)s AND subscription = %(subscription)s
"""
"""What waits in quarantine was taken: it goes to the hook as it is, as what the combiner makes does."""

COPY_WATERMARKS: Final = """
INSERT INTO watermark (name, value)
SELECT w.new, m.value FROM unnest(%(from)s::text[], %(to)s::text[]) AS w (old, new) JOIN watermark m ON m.name = w.old
ON CONFLICT (name) DO NOTHING
"""
"""Nothing older is to come for the computation, so nothing older is to come for its combiner.  If a loop begins at the one,
it begins at the other."""

HAND_OVER: Final = (
    PREFIX_KEYS,
    MOVE_LOGS,
    COPY_FRONTIERS,
    COPY_IDS,
    COPY_BUCKETS,
    COPY_OUTSIDE_IDS,
    DROP_OUTSIDE_IDS,
    *(
        f"DELETE FROM {table} WHERE interval_id = ANY(%(old)s::bigint[]) AND subscription = %(subscription)s"
        for table in ("opaque_bucket", "delivered", "delivered_frontier")
    ),
)
