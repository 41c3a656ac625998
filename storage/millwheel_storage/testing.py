"""A throw-away Postgres for tests.  Free of pytest, so that any harness can use it.  Never here: assertions."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.productions import unpack_ids
from millwheel_storage.schema.shape_checks import schema_name

_numbers: Final = itertools.count(1)


@contextmanager
def temporary_postgres() -> Iterator[EmbeddedPostgres]:
    """A server in a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="mw-") as directory, EmbeddedPostgres(directory) as server:
        yield server


def fresh_name(prefix: str = "test") -> str:
    """A pipeline name, and so a schema, that no other test of this server uses.

    >>> fresh_name() != fresh_name()
    True
    """
    return f"{prefix}_{next(_numbers)}"


_NAMED: Final = "JOIN name n ON n.kind = 'computation' AND n.number = t.computation"

_TABLES: Final[dict[str, str]] = {
    "ownership": "SELECT interval_id, sequencer FROM ownership",
    "checkpoint_log": "SELECT interval_id, sequencer, seq, epoch, payload FROM checkpoint_log",
    "key_state": f"SELECT n.name, key, cell, entry, value FROM key_state t {_NAMED}",
    "timer": f"SELECT n.name, key, t.kind, tag, timestamp FROM timer t {_NAMED}",
    "hold": f"SELECT n.name, key, timestamp FROM hold t {_NAMED}",
    "production": "SELECT interval_id, subscription, producer, sequence, key, value, timestamp FROM production",
    "delivered_frontier": "SELECT interval_id, subscription, producer, frontier FROM delivered_frontier",
    "opaque_id": "SELECT DISTINCT interval_id, subscription, expires, id FROM opaque_id "
    "JOIN opaque_bucket ON number = bucket",
    "opaque_bucket": "SELECT interval_id, subscription, expires, count FROM opaque_bucket",
    "quarantine": "SELECT n.name, key, row_number() OVER (PARTITION BY n.name, key ORDER BY place) - 1, "
    f"subscription, producer, sequence, value FROM quarantine t {_NAMED}",
    "redrive": f"SELECT n.name, key, sequencer, seq FROM redrive t {_NAMED}",
    "suspicion": "SELECT interval_id, ends, mark FROM suspicion",
    "declared_epoch": "SELECT number FROM declared_epoch",
    "watermark": "SELECT name, value FROM watermark",
    "source": "SELECT source, partition, interval_id, producer, position, finished, state, rejected, signed "
    "FROM source",
    "cluster": "SELECT version FROM cluster",
    "cluster_leader": "SELECT epoch, incarnation FROM cluster_leader",
    "cluster_member": "SELECT incarnation, name, role, address FROM cluster_member",
    "interval_owner": "SELECT interval_id, owner FROM interval_owner",
    "hot_key": "SELECT incarnation FROM hot_key",
    "standstill": "SELECT incarnation FROM standstill",
    "map_order": "SELECT number, refusal FROM map_order",
    "source_owner": "SELECT source, owner FROM source_owner",
    "source_sign": "SELECT source, sign, interval_id FROM source_sign",
}

_DELIVERED: Final = """
SELECT interval_id, subscription, producer, coalesce(frontier, 0), ids
FROM delivered LEFT JOIN delivered_frontier USING (interval_id, subscription, producer)
"""

_TEXTS: Final = {"key", "entry", "tag"}


def postgres_tables(url: str, pipeline: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows, sorted, in the form of `MemoryStore.tables`: what the twins are compared by."""
    with psycopg.connect(url, autocommit=True) as connection:
        return connected_tables(connection, pipeline)


def connected_tables(
    connection: psycopg.Connection[tuple[Any, ...]], pipeline: str
) -> dict[str, list[tuple[Any, ...]]]:
    """`postgres_tables` on a connection that is there already."""
    connection.execute("SELECT set_config('search_path', %s, false)", (schema_name(pipeline),))
    tables = {table: _rows(connection, query) for table, query in _TABLES.items()}
    delivered = {
        (interval, subscription, producer, sequence)
        for interval, subscription, producer, frontier, ids in connection.execute(_DELIVERED)
        for sequence in unpack_ids(ids)
        if sequence >= frontier
    }
    tables["delivered"] = sorted(delivered)
    return tables


def _rows(connection: psycopg.Connection[tuple[Any, ...]], query: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(query)
    texts = [column.name in _TEXTS for column in cursor.description or ()]
    return sorted(tuple(v.decode() if is_text else v for v, is_text in zip(row, texts, strict=True)) for row in cursor)
