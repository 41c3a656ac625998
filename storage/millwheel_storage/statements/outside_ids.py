"""Ids that outside clients chose: folded, found, expired."""

from __future__ import annotations

from typing import Final

FOLD_OUTSIDE_IDS: Final = """
WITH bucket AS (
    INSERT INTO opaque_bucket AS b (interval_id, subscription, expires, count) VALUES (%b, %b, %b, %b)
    ON CONFLICT (interval_id, subscription, expires) DO UPDATE SET count = b.count + excluded.count
    RETURNING number
)
INSERT INTO opaque_id (bucket, id) SELECT bucket.number, w.id FROM bucket CROSS JOIN unnest(%b::bytea[]) AS w (id)
"""
EXPIRE_OUTSIDE_IDS: Final = """
DELETE FROM opaque_id WHERE ctid = ANY (ARRAY(
    SELECT o.place FROM (
        SELECT number FROM opaque_bucket WHERE interval_id = %b AND subscription = %b AND expires <= %b ORDER BY expires
    ) AS b CROSS JOIN LATERAL (
        SELECT ctid AS place FROM opaque_id WHERE bucket = b.number ORDER BY id LIMIT %b
    ) AS o LIMIT %b
))
"""
"""Of the oldest buckets, and not all at once: a fold is a short transaction."""

DROP_OUTSIDE_BUCKETS: Final = """
DELETE FROM opaque_bucket b WHERE b.interval_id = %b AND b.subscription = %b AND b.expires <= %b
  AND NOT EXISTS (SELECT FROM opaque_id o WHERE o.bucket = b.number)
"""
LOAD_OUTSIDE_BUCKETS: Final = """
SELECT subscription, expires, count FROM opaque_bucket WHERE interval_id = %s ORDER BY subscription, expires
"""
FIND_OUTSIDE_IDS: Final = """
SELECT DISTINCT f.id FROM opaque_bucket b CROSS JOIN unnest(%b::bytea[]) AS w (id)
CROSS JOIN LATERAL (SELECT o.id FROM opaque_id o WHERE o.bucket = b.number AND o.id = w.id LIMIT 1) AS f
WHERE b.interval_id = %b AND b.subscription = %b AND b.expires > %b
"""
READ_OUTSIDE_IDS: Final = """
SELECT id FROM opaque_id WHERE bucket = (
    SELECT number FROM opaque_bucket WHERE interval_id = %b AND subscription = %b AND expires = %b
) AND id > %b ORDER BY id LIMIT %b
"""
