"""Rows that no statement will ever look at again, in a store on Postgres."""

from __future__ import annotations

from typing import Final

import psycopg

from millwheel_storage.schema.shape_checks import schema_name

_OF_INTERVALS: Final = (
    *("production", "delivered", "delivered_frontier", "opaque_bucket", "suspicion"),
    *("ownership", "interval_owner", "checkpoint_log"),
)
_OF_COMPUTATIONS: Final = ("key_state", "timer", "hold", "quarantine", "redrive", "interval")
_OF_SUBSCRIPTIONS: Final = ("production", "delivered", "delivered_frontier", "opaque_bucket")


def _left(table: str, owner: str, owns: str) -> str:
    return f"SELECT count(*) FROM {table} t WHERE NOT EXISTS (SELECT FROM {owner} o WHERE {owns})"


_LITTER: Final = {
    "ids of no bucket": _left("opaque_id", "opaque_bucket", "o.number = t.bucket"),
    "ids below their frontier": "SELECT count(*) FROM delivered d JOIN delivered_frontier f "
    "USING (interval_id, subscription, producer) WHERE d.last_sequence < f.frontier",
    "ids twice": "SELECT count(*) - count(DISTINCT (bucket, id)) FROM opaque_id",
    **{f"{table} of no interval": _left(table, "interval", "o.id = t.interval_id") for table in _OF_INTERVALS},
    **{
        f"{table} of no computation": _left(table, "name", "o.kind = 'computation' AND o.number = t.computation")
        for table in _OF_COMPUTATIONS
    },
    **{
        f"{table} of no subscription": _left(table, "name", "o.kind = 'subscription' AND o.number = t.subscription")
        for table in _OF_SUBSCRIPTIONS
    },
}


def litter(url: str, pipeline: str) -> dict[str, int]:
    """How much there is of each kind; nothing of what there is none."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema_name(pipeline),))
        found = {kind: connection.execute(query.encode()).fetchone() for kind, query in _LITTER.items()}
    return {kind: row[0] for kind, row in found.items() if row is not None and row[0]}
