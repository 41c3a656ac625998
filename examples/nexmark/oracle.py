"""The judge: the same events as tables of the same Postgres, and the queries as SQL.

Lives here: loading, and comparing rows.  Never here: anything of the pipelines but the tables that they write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec
import psycopg

from examples.nexmark.bidwise import side_input
from examples.nexmark.model import Auction, Bid, Event, Person
from examples.nexmark.query import NexmarkQuery

SCHEMA: Final = "nexmark_oracle"

_TYPES: Final = {int: "bigint", str: "text"}


class Difference(NamedTuple):
    """Rows of one side that the other lacks, as often as they do."""

    missing: Counter[tuple[Any, ...]]
    invented: Counter[tuple[Any, ...]]
    rows: int
    """How many the oracle has."""

    def __str__(self) -> str:
        return (
            f"of {self.rows} rows {self.missing.total()} are missing, {self.invented.total()} are too many: "
            f"{list(self.missing)[:3]}, {list(self.invented)[:3]}"
        )


def load(connection: psycopg.Connection[Any], events: Iterable[Event]) -> None:
    """Put `events`, each once, into tables; what was there goes."""
    rows: dict[type[Event], list[Event]] = {Person: [], Auction: [], Bid: []}
    for event in events:
        rows[type(event)].append(event)
    with connection.transaction():
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
        connection.execute(f"CREATE SCHEMA {SCHEMA}")
        for kind, values in rows.items():
            _table(connection, kind, values)
        connection.execute(f"CREATE TABLE {SCHEMA}.side_input (key bigint PRIMARY KEY, value text)")
        with connection.cursor() as cursor, cursor.copy(f"COPY {SCHEMA}.side_input FROM STDIN") as copy:
            for row in side_input().items():
                copy.write_row(row)
    connection.execute("ANALYZE")


def _table(connection: psycopg.Connection[Any], kind: type[Event], values: list[Event]) -> None:
    name = f"{SCHEMA}.{kind.__name__.lower()}"
    fields = msgspec.structs.fields(kind)
    columns = ", ".join(f"{field.name} {_TYPES[field.type]}" for field in fields)
    connection.execute(f"CREATE TABLE {name} ({columns}, PRIMARY KEY (number))")
    with connection.cursor() as cursor, cursor.copy(f"COPY {name} FROM STDIN") as copy:
        for value in values:
            copy.write_row(msgspec.structs.astuple(value))


def difference(connection: psycopg.Connection[Any], query: NexmarkQuery, pipeline: str) -> Difference | None:
    """How what `pipeline` has written differs from SQL's answer; None: it does not, row for row."""
    wanted, found = rows(connection, SCHEMA, query.sql), rows(connection, pipeline, query.written)
    if found == wanted:
        return None
    return Difference(wanted - found, found - wanted, wanted.total())


def rows(connection: psycopg.Connection[Any], schema: str, sql: str) -> Counter[tuple[Any, ...]]:
    """What `sql` gives in `schema`, and how often."""
    with connection.transaction():
        connection.execute(f"SET LOCAL search_path TO {schema}".encode())
        return Counter(connection.execute(sql.encode()).fetchall())
