"""A sink table that has more columns than the pipeline declares, as people add them in SQL."""

from __future__ import annotations

import psycopg
import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, Table, TextCoder, subscribe
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
