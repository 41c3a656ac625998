"""Readers of a store that is not of this version say what it is, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel.errors import IncompatibleStore, StoreError
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.part_files import PartFiles
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.copies import Savepoints
from millwheel_storage.postgres.reader import Reader, reset
from tests.unit.runtime.drive import expected_counts, run_to_end, text_lines, word_count

pytestmark = pytest.mark.postgres

ROWS = text_lines(50, seed=1)


def ran(postgres: EmbeddedPostgres, pipeline: str) -> None:
    run_to_end(word_count(pipeline, ROWS), PostgresStore(postgres.url, pipeline))


def test_readers_of_an_older_store_are_told_what_to_do_and_doing_it_helps(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    ran(postgres, pipeline)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'DELETE FROM "{pipeline}".migration WHERE version > 7')
        connection.execute(f'DROP TABLE "{pipeline}".declared_epoch')
    with pytest.raises(
        IncompatibleStore, match=r"has format 7, this version reads \d+: start the pipeline once with this"
    ):
        Reader(postgres.url, pipeline)
    ran(postgres, pipeline)
    with Reader(postgres.url, pipeline) as reader:
        keys = {row.key for row in reader.scan_state("Count")}
    assert keys == expected_counts(ROWS)[1].keys()


def test_readers_of_a_newer_store_are_told_to_upgrade(postgres: EmbeddedPostgres, pipeline: str) -> None:
    ran(postgres, pipeline)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'INSERT INTO "{pipeline}".migration (version) VALUES (99)')
    with pytest.raises(IncompatibleStore, match=r"format 99, this version knows .*; upgrade millwheel"):
        Reader(postgres.url, pipeline)


def test_who_asks_for_a_pipeline_that_is_not_there_is_told_where_it_is_not_and_what_is(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    ran(postgres, pipeline)
    Savepoints(postgres.url, pipeline).create("kept")
    with pytest.raises(StoreError, match=r"no pipeline 'other' in database 'postgres' at .*; run it first") as told:
        Reader(postgres.url, "other")
    with psycopg.connect(postgres.url) as connection:
        assert connection.info.host in str(told.value)
        rows = connection.execute(
            "SELECT table_schema FROM information_schema.tables WHERE table_name = 'checkpoint_log'"
        )
        known = {row[0] for row in rows}
    named = re.findall(r"'([a-z0-9_@]+)'", str(told.value).partition("has the schemas of")[2])
    assert named == sorted(name for name in known if "@" not in name)[:5]


def test_a_schema_of_somebody_else_is_not_read(postgres: EmbeddedPostgres, pipeline: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{pipeline}"')
        connection.execute(f'CREATE TABLE "{pipeline}".theirs (n int)')
    with pytest.raises(StoreError, match="not a millwheel pipeline's"):
        Reader(postgres.url, pipeline)


ELSEWHERE: dict[str, Callable[[str, str], Any]] = {
    "read": Reader,
    "reset": reset,
    "savepoint": lambda url, name: Savepoints(url, name).create("one"),
    "restore": lambda url, name: Savepoints(url, name).restore("mine"),
    "drop": lambda url, name: Savepoints(url, name).drop("mine"),
    "files": lambda url, name: PartFiles(url, name, "dump", Path()).write(),
}


@pytest.mark.parametrize("what", ELSEWHERE)
def test_a_pipeline_whose_name_makes_the_same_schema_is_another_one(
    postgres: EmbeddedPostgres, pipeline: str, what: str
) -> None:
    name, other = f"{pipeline}_a", f"{pipeline}-a"
    ran(postgres, name)
    Savepoints(postgres.url, name).create("mine")
    with pytest.raises(
        StoreError, match=rf"is that of pipeline '{name}', not of '{other}'|there is no savepoint 'mine'"
    ):
        ELSEWHERE[what](postgres.url, other)
    with Reader(postgres.url, name) as reader:
        assert {row.key for row in reader.scan_state("Count")} == expected_counts(ROWS)[1].keys()
    assert [one.name for one in Savepoints(postgres.url, name).found()] == ["mine"]
    assert Savepoints(postgres.url, other).found() == []
