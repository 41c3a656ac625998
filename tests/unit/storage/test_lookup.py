"""Rows for keys: the first of several, none for a key without one, also after the server has cut the connection."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.lookup import PostgresQuery

pytestmark = pytest.mark.postgres

MINE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid()"


@pytest.fixture
def table(postgres: EmbeddedPostgres, pipeline: str) -> Iterator[str]:
    name = f"{pipeline}_pages"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {name} (page text, title text, place int)".encode())
        connection.execute(f"INSERT INTO {name} VALUES ('a', 'second', 2), ('a', 'first', 1), ('b', NULL, 3)".encode())
        yield name
        connection.execute(f"DROP TABLE {name}".encode())


def test_a_key_has_the_first_of_its_rows_or_none(postgres: EmbeddedPostgres, table: str) -> None:
    query = PostgresQuery(postgres.url, f"SELECT title, place FROM {table} WHERE page = %s ORDER BY place")
    assert query("a") == {"title": "first", "place": 1}
    assert query("b") == {"title": None, "place": 3}
    assert query("c") is None
    query.close()


def test_a_connection_that_was_cut_is_made_again(postgres: EmbeddedPostgres, table: str) -> None:
    query = PostgresQuery(postgres.url, f"SELECT title FROM {table} WHERE page = %s ORDER BY place")
    query("a")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        cut = connection.execute(MINE, (f"%FROM {table} WHERE%",)).fetchall()
    assert cut == [(True,)]
    assert query("a") == {"title": "first"}
    query.close()
    query.close()
    assert query("a") == {"title": "first"}, "a query that was closed may be asked again"
    query.close()


def test_what_postgres_says_of_a_wrong_query_reaches_whoever_asks(postgres: EmbeddedPostgres, table: str) -> None:
    query = PostgresQuery(postgres.url, f"SELECT nothing FROM {table} WHERE page = %s")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        query("a")
    query.close()
