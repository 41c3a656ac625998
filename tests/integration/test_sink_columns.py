"""What people do to a sink table in SQL: they add columns to it, or drop it."""

from __future__ import annotations

import logging

import psycopg
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table, TextCoder, committed, subscribe
from millwheel.launch import run
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres

pytestmark = pytest.mark.postgres

words = Stream("words", TextCoder())
seen = Table("seen", {"word": "text"}, ("word",))


class Note(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.upsert(seen, {"word": record.value})


def noting(name: str, source: str, word: str) -> Pipeline:
    pipeline = Pipeline(name)
    for given, row in {"first": "a", source: word}.items():
        pipeline.inject(IterableSource(given, [(row, 1)]), into=words)
    pipeline.add(Note, [subscribe(words, str)])
    pipeline.sink(seen)
    return pipeline


@pytest.mark.parametrize(
    ("column", "kept", "refused"),
    [("note text", None, 0), ("note text DEFAULT 'none'", "none", 0), ("note text NOT NULL", None, 1)],
)
def test_a_further_column_is_left_alone_and_one_that_must_have_a_value_refuses_rows(
    postgres: EmbeddedPostgres, pipeline: str, column: str, kept: str | None, refused: int
) -> None:
    assert run(noting(pipeline, "first", "a"), postgres.url).in_quarantine == 0
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        table = f'"{pipeline}".seen'
        if refused:
            connection.execute(f"DELETE FROM {table}")
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
        assert run(noting(pipeline, "second", "b"), postgres.url).in_quarantine == refused
        found = connection.execute(f"SELECT word, note FROM {table} WHERE word = 'b'").fetchall()
    assert found == ([] if refused else [("b", kept)])


def test_a_table_that_is_gone_is_made_again_and_whoever_starts_the_run_is_told_that_its_rows_are_not(
    postgres: EmbeddedPostgres, pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    again = noting(pipeline, "second", "b")
    run(noting(pipeline, "first", "a"), postgres.url)
    assert told() == []
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'DROP TABLE "{pipeline}".seen')
        found = committed.check(again, postgres.url)
        assert "sink table 'seen' is created" in found.changes
        run(again, postgres.url)
        (warning,) = told()
        assert [warning] == found.warnings
        assert "sink table 'seen' is gone" in warning
        assert "the rows that it had do not come back" in warning
        assert connection.execute(f'SELECT word FROM "{pipeline}".seen').fetchall() == [("b",)]
        run(again, postgres.url)
    assert told() == [warning]
