"""What a combiner has goes back to its computation, when this has no combiner any more.

`old` are the intervals of the combiner, `new` those of the computation, of which `first` is the first.  `subscription` has
been the one's and is now the other's, under its old number; `merged` is the one by which the computation has read.
"""

from __future__ import annotations

from typing import Final

from millwheel_storage.statements import handing_over

_WHOLE_KEY: Final = "substring(key FROM position('#'::bytea IN key) + 1)"

TWICE: Final = """
WITH taken AS (
    SELECT producer FROM production WHERE subscription = %(subscription)s
    UNION SELECT producer FROM delivered_frontier WHERE subscription = %(subscription)s
), merged AS (
    SELECT producer FROM production WHERE subscription = %(merged)s
    UNION SELECT producer FROM delivered_frontier WHERE subscription = %(merged)s
)
SELECT FROM taken JOIN merged USING (producer) LIMIT 1
"""
"""Whether a producer has sent on both.  It has numbered each of them from 0 on, so two records would have one id."""

WHOLE_KEYS: Final = f"UPDATE production SET key = {_WHOLE_KEY} WHERE subscription = %(subscription)s"
"""Without the prefix of the shard."""

TAKE_MERGED: Final = """
UPDATE production SET interval_id = %(first)s, subscription = %(subscription)s WHERE subscription = %(merged)s
"""
"""What the combiner has sent and is not taken, under the ids that it has."""

GIVE_GATHERED: Final = f"""
INSERT INTO production (interval_id, subscription, producer, sequence, key, value, timestamp)
SELECT %(first)s, %(subscription)s, %(producer)s, row_number() OVER (ORDER BY key, entry) - 1, {_WHOLE_KEY},
       substring(value FROM 9), ('x' || encode(substring(value FOR 8), 'hex'))::bit(64)::bigint
FROM key_state WHERE computation = %(parts)s
"""
"""What the combiner has gathered, as if it had sent it: see `millwheel.shape.GATHERED_TIME`."""

MOVE_ELEMENTS: Final = f"""
UPDATE quarantine SET computation = %(computation)s, key = {_WHOLE_KEY}
WHERE computation = %(parts)s AND subscription = %(subscription)s
"""
"""A key that waits in the combiner waits in the computation.  A timer of the combiner has nothing to give any more."""

# Shards that were cut from one another, or that have taken over from the computation, know the same ids.
COPY_BUCKETS: Final = """
INSERT INTO opaque_bucket (interval_id, subscription, expires, count)
SELECT DISTINCT w.id, b.subscription, b.expires, 0::bigint
FROM unnest(%(new)s::bigint[]) AS w (id) CROSS JOIN opaque_bucket b
WHERE b.interval_id = ANY(%(old)s::bigint[]) AND b.subscription = %(subscription)s
"""
COPY_OUTSIDE_IDS: Final = """
INSERT INTO opaque_id (bucket, id)
SELECT DISTINCT n.number, o.id FROM opaque_bucket b
JOIN opaque_bucket n ON n.interval_id = ANY(%(new)s::bigint[]) AND n.subscription = b.subscription AND n.expires = b.expires
JOIN opaque_id o ON o.bucket = b.number
WHERE b.interval_id = ANY(%(old)s::bigint[]) AND b.subscription = %(subscription)s
"""
COUNT_OUTSIDE_IDS: Final = """
UPDATE opaque_bucket b SET count = (SELECT count(*) FROM opaque_id o WHERE o.bucket = b.number)
WHERE b.interval_id = ANY(%(new)s::bigint[]) AND b.subscription = %(subscription)s
"""

_RELABEL: Final = tuple(
    f"UPDATE {table} SET subscription = %(subscription)s WHERE subscription = %(merged)s"
    for table in ("delivered", "delivered_frontier")
)
_REQUALIFY: Final = """
UPDATE quarantine SET subscription = %(subscription)s WHERE computation = %(computation)s AND subscription = %(merged)s
"""

HAND_BACK: Final = (
    WHOLE_KEYS,
    TAKE_MERGED,
    GIVE_GATHERED,
    handing_over.COPY_FRONTIERS,
    handing_over.COPY_IDS,
    COPY_BUCKETS,
    COPY_OUTSIDE_IDS,
    COUNT_OUTSIDE_IDS,
    *_RELABEL,
    _REQUALIFY,
    MOVE_ELEMENTS,
)
"""In this order: what is copied is that of the subscription alone, before anything else is called so.  What the combiner has
sent goes to the computation when the combiner is dropped, and all else that it still has goes with it (`dropping`)."""
