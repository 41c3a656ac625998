"""Splits and merges of intervals: what lies by interval is copied to the new ones, or becomes that of the one that is left.

What lies by key, as state and timers do, stays where it is.
"""

from __future__ import annotations

from typing import Final

LOCK_INTERVALS: Final = """
SELECT interval_id FROM ownership WHERE interval_id = ANY(%s::bigint[]) ORDER BY interval_id FOR UPDATE
"""
READ_NAMED: Final = """
SELECT i.id, n.name, i.low, i.high, i.computation, p.owner
FROM interval_owner p JOIN interval i ON i.id = p.interval_id
JOIN name n ON n.kind = 'computation' AND n.number = i.computation WHERE p.interval_id = ANY(%s::bigint[])
"""
READ_SIBLINGS: Final = """
SELECT i.id FROM interval i JOIN interval f ON f.computation = i.computation AND f.low <= i.low WHERE f.id = %s
ORDER BY i.low LIMIT %s
"""
"""An interval and those behind it, by key."""

LOGGED: Final = (
    "SELECT interval_id FROM checkpoint_log WHERE interval_id = ANY(%s::bigint[]) ORDER BY interval_id LIMIT 1"
)
END_AT: Final = "UPDATE interval SET high = %s WHERE id = %s"

# A split

COPY_IDS: Final = """
INSERT INTO delivered (interval_id, subscription, producer, first_sequence, last_sequence, ids)
SELECT w.id, d.subscription, d.producer, d.first_sequence, d.last_sequence, d.ids
FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN delivered d WHERE d.interval_id = %(interval)s
"""
COPY_FRONTIERS: Final = """
INSERT INTO delivered_frontier (interval_id, subscription, producer, frontier)
SELECT w.id, f.subscription, f.producer, f.frontier
FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN delivered_frontier f WHERE f.interval_id = %(interval)s
"""
COPY_BUCKETS: Final = """
WITH made AS (
    INSERT INTO opaque_bucket (interval_id, subscription, expires, count)
    SELECT w.id, b.subscription, b.expires, b.count
    FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN opaque_bucket b WHERE b.interval_id = %(interval)s
    RETURNING number, subscription, expires
)
INSERT INTO opaque_id (bucket, id)
SELECT m.number, o.id FROM made m
JOIN opaque_bucket b ON b.interval_id = %(interval)s AND b.subscription = m.subscription AND b.expires = m.expires
JOIN opaque_id o ON o.bucket = b.number
"""
COPY_SUSPICION: Final = """
INSERT INTO suspicion (interval_id, ends, mark)
SELECT w.id, s.ends, s.mark FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN suspicion s
WHERE s.interval_id = %(interval)s
"""
ADD_OWNERS: Final = "INSERT INTO interval_owner (interval_id) SELECT unnest(%(new)s::bigint[])"
FOLLOW: Final = """
UPDATE interval n SET follows = o.follows || ARRAY(SELECT DISTINCT producer FROM production WHERE interval_id = o.id)
FROM interval o WHERE o.id = %(interval)s AND n.id = ANY(%(new)s::bigint[])
"""
"""A merge changes nothing here: what lies between a part and what it was cut from was cut off with it, or is merged too."""

COPY: Final = (COPY_IDS, COPY_FRONTIERS, COPY_BUCKETS, COPY_SUSPICION, ADD_OWNERS, FOLLOW)

# A merge

UNITE_FRONTIERS: Final = """
INSERT INTO delivered_frontier AS f (interval_id, subscription, producer, frontier)
SELECT %(interval)s, o.subscription, o.producer, max(o.frontier) FROM delivered_frontier o
WHERE o.interval_id = ANY(%(others)s::bigint[]) GROUP BY o.subscription, o.producer
ON CONFLICT (interval_id, subscription, producer) DO UPDATE SET frontier = greatest(f.frontier, excluded.frontier)
"""
"""A frontier is the sender's word about a whole channel, so the largest is true for all who have heard one."""

UNITE_IDS: Final = "UPDATE delivered SET interval_id = %(interval)s WHERE interval_id = ANY(%(others)s::bigint[])"
COLLECT_UNITED: Final = """
DELETE FROM delivered WHERE ctid = ANY (ARRAY(
    SELECT s.place FROM delivered_frontier f CROSS JOIN LATERAL (
        SELECT d.ctid AS place FROM delivered d
        WHERE d.interval_id = f.interval_id AND d.subscription = f.subscription AND d.producer = f.producer
          AND d.last_sequence < f.frontier OFFSET 0
    ) AS s WHERE f.interval_id = %(interval)s
))
"""
UNITE_PRODUCTIONS: Final = """
UPDATE production SET interval_id = %(interval)s WHERE interval_id = ANY(%(others)s::bigint[])
"""
UNITE_BUCKETS: Final = """
INSERT INTO opaque_bucket (interval_id, subscription, expires, count)
SELECT DISTINCT %(interval)s::bigint, subscription, expires, 0::bigint FROM opaque_bucket
WHERE interval_id = ANY(%(others)s::bigint[])
ON CONFLICT DO NOTHING
"""
UNITE_OUTSIDE_IDS: Final = """
INSERT INTO opaque_id (bucket, id)
SELECT DISTINCT b.number, o.id FROM opaque_bucket other
JOIN opaque_bucket b ON b.interval_id = %(interval)s AND b.subscription = other.subscription AND b.expires = other.expires
JOIN opaque_id o ON o.bucket = other.number
WHERE other.interval_id = ANY(%(others)s::bigint[])
  AND NOT EXISTS (SELECT FROM opaque_id known WHERE known.bucket = b.number AND known.id = o.id)
"""
COUNT_UNITED: Final = """
UPDATE opaque_bucket b SET count = (SELECT count(DISTINCT o.id) FROM opaque_id o WHERE o.bucket = b.number)
WHERE b.interval_id = %(interval)s AND EXISTS (
    SELECT FROM opaque_bucket other WHERE other.interval_id = ANY(%(others)s::bigint[])
      AND other.subscription = b.subscription AND other.expires = b.expires
)
"""
DROP_OUTSIDE_IDS: Final = """
DELETE FROM opaque_id WHERE bucket = ANY(ARRAY(
    SELECT number FROM opaque_bucket WHERE interval_id = ANY(%(others)s::bigint[])
))
"""
UNITE: Final = (
    UNITE_FRONTIERS,
    UNITE_IDS,
    COLLECT_UNITED,
    UNITE_PRODUCTIONS,
    UNITE_BUCKETS,
    UNITE_OUTSIDE_IDS,
    COUNT_UNITED,
    DROP_OUTSIDE_IDS,
    *(
        f"DELETE FROM {table} WHERE {column} = ANY(%(others)s::bigint[])"
        for table, column in (
            ("opaque_bucket", "interval_id"),
            ("delivered_frontier", "interval_id"),
            ("suspicion", "interval_id"),
            ("interval_owner", "interval_id"),
            ("ownership", "interval_id"),
            ("interval", "id"),
        )
    ),
)
READ_SUSPICIONS: Final = "SELECT ends, mark FROM suspicion WHERE interval_id = ANY(%s::bigint[])"
SET_SUSPICION: Final = """
INSERT INTO suspicion (interval_id, ends, mark) VALUES (%s, %s, %s)
ON CONFLICT (interval_id) DO UPDATE SET ends = excluded.ends, mark = excluded.mark
"""
