"""A database as its site has set it up: other encodings, collations and session defaults change nothing that is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    Pipeline,
    Record,
    Stream,
    Table,
    TextCoder,
    Timer,
    subscribe,
)
from millwheel.committed import Committed
from millwheel.launch import run
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.testing import fresh_name
from tests.unit.storage.samples import shape

pytestmark = pytest.mark.postgres

WORDS = ["Größe", "naïve", "it's", "Zoë", 'a"b', "back\\slash", "Ærø", "a", "Z", "_"]
ROWS = [(word, second * SECOND) for second, word in enumerate(WORDS * 3)]

words = Stream("wörter", TextCoder())
again = Stream("again", TextCoder())
seen = Table(
    "seen",
    {
        "word": "text", "count": "bigint", "share": "double precision", "at": "timestamptz", "day": "date",
        "price": "numeric", "whole": "jsonb", "is_long": "boolean",
    },
    ("word",),
)  # fmt: skip
AT = datetime(2026, 3, 29, 1, 30, 0, 123_456, tzinfo=UTC)


class Note(Computation[str]):
    """Counts, writes rows, and sends each word on when the watermark is beyond it."""

    counts = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        count = self.counts.get(record.value, 0) + 1
        self.counts.set(record.value, count)
        context.set_timer(record.value, record.timestamp + SECOND)
        context.upsert(
            seen,
            {
                "word": record.value, "count": count, "share": 0.1 + 0.2, "at": AT, "day": date(2026, 1, 31),
                "price": Decimal("12345678901234567890.123456789"), "whole": {"ö": [record.value]},
                "is_long": len(record.value) > 3,
            },
        )  # fmt: skip

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        context.produce(again, timer.tag)


class Count(Computation[str]):
    counts = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.counts.set(record.value, self.counts.get(record.value, 0) + 1)


def build(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("quellwörter", ROWS), into=words)
    pipeline.add(Note, [subscribe(words, str)], [again], name="Nöte")
    pipeline.add(Count, [subscribe(again, lambda word: word[:1])])
    pipeline.sink(seen)
    pipeline.publish(again, keep=5)
    return pipeline


def check(url: str, name: str) -> None:
    """Run it twice, the second time over what is there, and look at everything that can be read."""
    pipeline = build(name)
    first = run(pipeline, url)
    assert (first.injected, first.in_quarantine, first.rejected) == (len(ROWS), 0, 0)
    assert run(build(name), url).injected == 0
    with Committed(pipeline, url) as committed:
        assert {word: committed.state("Nöte", word) for word in WORDS} == {
            word: {"counts": {word: 3}} for word in WORDS
        }
        rows = {row["word"]: row for row in committed.rows(seen)}
        assert [*rows] == sorted(WORDS)
        assert rows == {
            word: {
                "word": word, "count": 3, "share": 0.1 + 0.2, "at": AT, "day": date(2026, 1, 31),
                "price": Decimal("12345678901234567890.123456789"), "whole": {"ö": [word]}, "is_long": len(word) > 3,
            }
            for word in WORDS
        }  # fmt: skip
        assert sorted(row.value for row in committed.tail(again, 5)) == sorted(w for w, _ in ROWS[-5:])
        assert committed.sources() == [("quellwörter", "rows", len(ROWS), True)]


SETTINGS = {
    "encoding of the client": {"client_encoding": "LATIN1"},
    "serializable": {"default_transaction_isolation": "serializable"},
    "repeatable read": {"default_transaction_isolation": "repeatable\\ read"},
    "how times look": {"DateStyle": "German", "IntervalStyle": "sql_standard", "TimeZone": "Asia/Kathmandu"},
    "how numbers and bytes look": {"extra_float_digits": "-5", "bytea_output": "escape"},
    "impatient": {"statement_timeout": "2s", "lock_timeout": "1s", "idle_session_timeout": "200ms"},
    "names": {"search_path": "pg_temp", "quote_all_identifiers": "on"},
    "texts and nulls": {"array_nulls": "off", "transform_null_equals": "on", "backslash_quote": "on"},
    "plans": {"plan_cache_mode": "force_generic_plan", "enable_indexscan": "off", "enable_bitmapscan": "off"},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_session_defaults_of_the_site_change_nothing(postgres: EmbeddedPostgres, pipeline: str, name: str) -> None:
    options = " ".join(f"-c {key}={value}" for key, value in SETTINGS[name].items())
    check(make_conninfo(postgres.url, options=options), pipeline)


def test_the_environment_of_a_process_changes_nothing(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    check(postgres.url, pipeline)


DATABASES = {
    "latin1": "ENCODING 'LATIN1' LOCALE 'C'",
    "no encoding": "ENCODING 'SQL_ASCII' LOCALE 'C'",
    "icu": "ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'de-DE' LOCALE 'C'",
    "icu, digits as numbers": "ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US-u-kn-true' LOCALE 'C'",
}


@pytest.fixture
def database(postgres: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    name = fresh_name("site")
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        made: Any = f'CREATE DATABASE "{name}" TEMPLATE template0 {DATABASES[request.param]}'
        try:
            connection.execute(made)
        except psycopg.errors.FeatureNotSupported as error:
            pytest.skip(f"this server has no such databases: {error}")
        yield make_conninfo(postgres.url, dbname=name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_encoding_and_collation_of_the_database_change_nothing(database: str, pipeline: str) -> None:
    check(database, pipeline)


@pytest.mark.parametrize("level", ["serializable", "repeatable\\ read"])
def test_two_may_begin_at_once_whatever_the_isolation(postgres: EmbeddedPostgres, pipeline: str, level: str) -> None:
    """Whoever waits for the lock must see what the other one has made meanwhile."""
    url = make_conninfo(postgres.url, options=f"-c default_transaction_isolation={level}")

    async def begin() -> None:
        store = PostgresStore(url, pipeline)
        try:
            await store.open_pipeline(shape(pipeline))
        finally:
            await store.close()

    async def begin_all() -> None:
        await asyncio.gather(*[begin() for _ in range(4)])

    asyncio.run(begin_all())


def test_a_commit_is_flushed_though_the_role_would_not_wait_for_it(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """The setting of a role may change while a pipeline runs: what was looked at when it began says nothing."""
    url = make_conninfo(postgres.url, options="-c synchronous_commit=off")

    async def shown() -> list[Any]:
        store = PostgresStore(url, pipeline)
        try:
            await store.open_pipeline(shape(pipeline))
            pools = [pool for pool in vars(store).values() if hasattr(pool, "run")]
            return [await pool.run(show) for pool in pools]
        finally:
            await store.close()

    async def show(connection: Any) -> Any:
        return await (await connection.execute("SHOW synchronous_commit")).fetchone()

    found = asyncio.run(shown())
    assert len(found) > 3
    assert {*found} == {("on",)}


@pytest.mark.parametrize("database", ["latin1"], indirect=True)
def test_a_text_that_the_database_has_no_letters_for_stops_its_key_alone(database: str, pipeline: str) -> None:
    given = Pipeline(pipeline)
    given.inject(IterableSource("rows", [("a", 1), ("日本", 2), ("b", 3)]), into=words)
    given.add(Note, [subscribe(words, str)], [again])
    given.sink(seen)
    assert run(given, database).in_quarantine == 1
    with Committed(given, database) as committed:
        assert [row["word"] for row in committed.rows(seen)] == ["a", "b"]
        ((_, key, _),) = committed.quarantined()
        assert key == "日本"
        assert "has no equivalent in encoding" in committed.quarantine("Note", key)[0].error
