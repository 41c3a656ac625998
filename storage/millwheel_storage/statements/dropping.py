"""What a computation that goes leaves nothing of, and what of an input that goes.

`old` are the intervals of the computation, `computation` is its number, and `gone` are all subscriptions that nobody has any
more.
"""

from __future__ import annotations

from typing import Final

DROP_PRODUCTIONS: Final = "DELETE FROM production WHERE subscription = ANY(%(gone)s::integer[])"
"""What is on its way to what goes."""

ORPHANS: Final = """
SELECT DISTINCT subscription FROM production WHERE interval_id = ANY(%(old)s::bigint[]) ORDER BY subscription
"""
"""Subscriptions on which something is on its way that intervals which go have sent."""

ADOPT: Final = """
UPDATE production SET interval_id = %(first)s
WHERE interval_id = ANY(%(old)s::bigint[]) AND subscription = %(subscription)s
"""
"""An interval of the receiver sends it to itself and its like, as the head of a loop does with its log."""

DROP_IDS: Final = (
    """
DELETE FROM opaque_id WHERE bucket = ANY(ARRAY(
    SELECT number FROM opaque_bucket
    WHERE interval_id = ANY(%(old)s::bigint[]) OR subscription = ANY(%(gone)s::integer[])
))
""",
    *(
        f"DELETE FROM {table} WHERE interval_id = ANY(%(old)s::bigint[]) OR subscription = ANY(%(gone)s::integer[])"
        for table in ("opaque_bucket", "delivered", "delivered_frontier")
    ),
)

DROP_COMPUTATION: Final = (
    *(
        f"DELETE FROM {table} WHERE computation = %(computation)s"
        for table in ("key_state", "hold", "timer", "quarantine", "redrive")
    ),
    *(
        f"DELETE FROM {table} WHERE {column} = ANY(%(old)s::bigint[])"
        for table, column in (
            ("production", "interval_id"),
            ("suspicion", "interval_id"),
            ("ownership", "interval_id"),
            ("interval", "id"),
        )
    ),
    "DELETE FROM watermark WHERE name = ANY(%(watermarks)s::text[])",
    "DELETE FROM name WHERE kind = 'computation' AND number = %(computation)s",
)

DROP_NAMES: Final = "DELETE FROM name WHERE kind = 'subscription' AND number = ANY(%(gone)s::integer[])"

KEEP_ERRORS: Final = """
UPDATE quarantine q SET error = f.error FROM quarantine f
WHERE f.computation = %(computation)s AND f.subscription = ANY(%(gone)s::integer[])
  AND f.place = (SELECT min(place) FROM quarantine a WHERE a.computation = f.computation AND a.key = f.key)
  AND q.computation = f.computation AND q.key = f.key AND q.error = ''
  AND q.place = (
      SELECT min(place) FROM quarantine b
      WHERE b.computation = f.computation AND b.key = f.key AND b.subscription <> ALL(%(gone)s::integer[])
  )
"""
"""The first element of a key says why it is in quarantine; the one that becomes the first says so then."""

DROP_ELEMENTS: Final = """
DELETE FROM quarantine WHERE computation = %(computation)s AND subscription = ANY(%(gone)s::integer[])
"""
DROP_REQUESTS: Final = """
DELETE FROM redrive r WHERE computation = %(computation)s AND NOT EXISTS (
    SELECT FROM quarantine q WHERE q.computation = r.computation AND q.key = r.key
)
"""
DROP_INPUT: Final = (KEEP_ERRORS, DROP_ELEMENTS, DROP_REQUESTS)
