"""A schema is made once, found again with the same numbers, and never taken from somebody else."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millwheel.bundles import (
    Delivered,
    Ids,
    LogWrite,
    SinkRow,
    StateWrites,
    encode_checkpoint,
)
from millwheel.errors import (
    IncompatibleStore,
    StoreError,
    WiringError,
)
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.ports import FoldWrite, SinkTable, WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.planned import check
from millwheel_storage.postgres.reader import Reader, reset
from millwheel_storage.schema.creation import _check_settings
from millwheel_storage.schema.shape_checks import STORE_FORMAT
from millwheel_storage.statements import opening
from tests.unit.storage.samples import image, shape

pytestmark = pytest.mark.postgres


class Answering:
    """A connection to a server that has these settings."""

    def __init__(self, *settings: str) -> None:
        self._settings = settings

    async def execute(self, statement: object) -> Answering:
        assert statement == opening.SAFE_SETTINGS
        return self

    async def fetchone(self) -> tuple[str, ...]:
        return self._settings


@pytest.mark.parametrize(
    ("settings", "off"), [(("off", "on"), "fsync"), (("on", "off"), "full_page_writes"), (("on", "on"), "")]
)
def test_a_server_that_could_lose_a_commit_is_refused(
    postgres: EmbeddedPostgres, settings: tuple[str, str], off: str
) -> None:
    connection: Any = Answering(*settings)
    if off:
        with pytest.raises(StoreError, match=f"runs with {off} = off, which can lose commits; turn it on"):
            asyncio.run(_check_settings(connection))
        return
    asyncio.run(_check_settings(connection))
    with psycopg.connect(postgres.url) as real:
        assert real.execute(opening.SAFE_SETTINGS).fetchone() == settings


def test_a_store_reopens_with_the_same_numbers(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        opened = await store.open_pipeline(shape(pipeline))
        more = shape(pipeline, computations={"0": (), "a": ("m",)}, subscriptions={"0<s": "s", "a<s": "s"})
        again = await store.open_pipeline(more)
        assert [r for r in again.intervals if r.computation == "a"] == list(opened.intervals)
        assert again.subscriptions == {"a<s": 1, "0<s": 2}
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_a_computation_keeps_its_watermark_under_another_name(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)

    async def main() -> None:
        first = await store.open_pipeline(shape(pipeline))
        promised = {"a": 7, "loop:a": 5, "loop:b": 9, "aa": 3}
        assert await store.persist_watermarks([WatermarkWrite(name, at, {}) for name, at in promised.items()])
        named = {"computations": {"b": ("m",)}, "subscriptions": {"b<s": "s"}, "formerly": {"computation:b": "a"}}
        found = await store.open_pipeline(shape(pipeline, **named))
        assert await store.watermarks() == {"b": 7, "loop:b": 5, "aa": 3}, "and the floor of a loop that begins at it"
        assert found.subscriptions == {"b<s": first.subscriptions["a<s"]}, "what is on its way has this number"
        assert [row.id for row in found.intervals] == [row.id for row in first.intervals]
        await store.close()

    asyncio.run(main())


def test_the_map_of_a_cluster_has_what_the_pipeline_has_and_nothing_else(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    stores: list[MemoryStore | PostgresStore] = [MemoryStore(), PostgresStore(postgres.url, pipeline)]

    async def main() -> None:
        for store in stores:
            versions = []
            for sources, published in ((("text",), True), (("more", "text"), False), (("more",), True)):
                computations = {"a": ("m",), **({"published:s": ()} if published else {})}
                await store.open_pipeline(shape(pipeline, sources=sources, computations=computations))
                agreed = await store.cluster_map()
                assert tuple(source.name for source in agreed.sources) == sources
                assert {interval.computation for interval in agreed.intervals} == computations.keys()
                versions.append(agreed.version)
            assert len({*versions}) == 3, "whoever has read an earlier map reads it again"
            await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"coders": {"stream:s": "json"}}, IncompatibleStore),
        ({"computations": {"b": ()}}, IncompatibleStore),
        ({"streams": {"text": "other"}}, IncompatibleStore),
        ({"subscriptions": {}}, IncompatibleStore),
        ({"sinks": (SinkTable("out", {"k": "text", "n": "text"}, ("k",)),)}, IncompatibleStore),
        ({"sinks": (SinkTable("out", {"k": "text", "n": "bigint"}, ("n",)),)}, IncompatibleStore),
        ({"sinks": (SinkTable("timer", {"k": "text"}, ("k",)),)}, WiringError),
        ({"sinks": (SinkTable("o", {"k": "text; DROP"}, ("k",)),)}, WiringError),
    ],
)
def test_an_incompatible_shape_is_refused_before_any_write(
    postgres: EmbeddedPostgres, pipeline: str, changes: dict[str, object], error: type[Exception]
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        with pytest.raises(error):
            await store.open_pipeline(shape(pipeline, **changes))
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        assert reader.shape() == shape(pipeline)


def test_a_schema_of_somebody_else_is_left_alone(postgres: EmbeddedPostgres, pipeline: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {pipeline}")
        connection.execute(f"CREATE TABLE {pipeline}.precious (x int)")

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        with pytest.raises(IncompatibleStore, match="not millwheel's"):
            await store.open_pipeline(shape(pipeline))
        await store.close()

    asyncio.run(main())
    with pytest.raises(StoreError, match="not touched"):
        reset(postgres.url, pipeline)


@pytest.mark.parametrize("name", ["precious", "meta", "migration", "checkpoint_log"])
def test_a_plan_and_a_start_refuse_tables_of_somebody_else_whatever_they_are_called(
    postgres: EmbeddedPostgres, pipeline: str, name: str
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        with pytest.raises(IncompatibleStore, match=said):
            await store.open_pipeline(shape(pipeline))
        await store.close()

    said = f"tables that are not millwheel's, for example '{name}'"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {pipeline}")
        connection.execute(f"CREATE TABLE {pipeline}.{name} (x int)")
    (refusal,) = check(postgres.url, shape(pipeline)).refusals
    assert said in refusal
    asyncio.run(main())


@pytest.mark.parametrize(("columns", "key"), [("kan", "k"), ("nka", "na"), ("ank", "kna")])
def test_a_sink_table_has_its_columns_and_its_key_in_the_order_of_their_declaration(
    postgres: EmbeddedPostgres, pipeline: str, columns: str, key: str
) -> None:
    types = {"k": "text", "a": "bigint", "n": "numeric"}
    table = SinkTable("out", {column: types[column] for column in columns}, tuple(key))

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline, sinks=(table,)))
        await store.close()

    asyncio.run(main())
    with psycopg.connect(postgres.url) as connection:
        made = connection.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            (f'"{pipeline}".out',),
        ).fetchall()
        indexed = connection.execute(
            "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k (attnum, place) "
            "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum "
            "WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY k.place",
            (f'"{pipeline}".out',),
        ).fetchall()
    assert made == [(column, types[column], column in key) for column in columns]
    assert indexed == [(column,) for column in key]


def test_a_sink_table_may_be_there_before_the_first_run(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """A table that somebody has made, with columns and defaults of their own, is written to as it is."""
    fits = shape(pipeline, sinks=(SinkTable("out", {"k": "text", "n": "bigint"}, ("k",)),))

    async def opened() -> None:
        store = PostgresStore(postgres.url, pipeline)
        try:
            await store.open_pipeline(fits)
        finally:
            await store.close()

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {pipeline}")
        connection.execute(f"CREATE TABLE {pipeline}.out (k text PRIMARY KEY, n text, at timestamptz DEFAULT now())")
        report = check(postgres.url, fits)
        assert (report.exists, report.changes) == (False, [])
        assert report.refusals == [
            "sink table 'out': column 'n' is text, not bigint; alter the table, or declare another one"
        ]
        with pytest.raises(IncompatibleStore, match="column 'n' is text, not bigint"):
            asyncio.run(opened())
        connection.execute(f"ALTER TABLE {pipeline}.out ALTER n TYPE bigint USING n::bigint")
        connection.execute(f"CREATE INDEX ON {pipeline}.out (n)")  # it is no part of the key
        assert check(postgres.url, fits).refusals == []
        connection.execute(f"CREATE TABLE {pipeline}.precious (x int)")
        (refusal,) = check(postgres.url, fits).refusals
        assert refusal == (
            f"schema {pipeline!r} holds tables that are not millwheel's, for example 'precious': use another pipeline name; "
            "before the first run only tables may be there that the pipeline declares as sinks"
        )
        with pytest.raises(IncompatibleStore, match="for example 'precious'"):
            asyncio.run(opened())
        connection.execute(f"DROP TABLE {pipeline}.precious")
        asyncio.run(opened())
        connection.execute(f"INSERT INTO {pipeline}.out (k, n) VALUES ('a', 1)")
    with Reader(postgres.url, pipeline) as reader:
        (row,) = reader.sink_rows("out")
    assert row["at"] is not None


def test_a_sink_table_with_partitions_may_be_there_before_the_first_run(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """The partitions are no tables of somebody else, wherever they lie below it."""
    fits = shape(pipeline, sinks=(SinkTable("out", {"k": "text", "n": "bigint"}, ("k",)),))
    row = SinkRow("out", b'{"k": "b", "n": 1}')

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(fits)).intervals[0].id
        owned = (await store.acquire([first]))[first]
        payload = encode_checkpoint(image([]))
        assert await store.commit([LogWrite(first, owned, Seq(1), 0, payload, (row,))]) == {(first, Seq(1))}
        await store.close()

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {pipeline}")
        connection.execute("SELECT set_config('search_path', %s, false)", (pipeline,))
        for statement in (
            "CREATE TABLE out (k text PRIMARY KEY, n bigint) PARTITION BY LIST (k)",
            "CREATE TABLE low PARTITION OF out FOR VALUES IN ('a', 'b') PARTITION BY LIST (k)",
            "CREATE TABLE half PARTITION OF low FOR VALUES IN ('b')",
        ):
            connection.execute(statement)
        assert check(postgres.url, fits).refusals == []
        asyncio.run(main())
        assert connection.execute("SELECT k, n FROM half").fetchall() == [("b", 1)]


def test_a_start_warns_of_what_is_allowed_and_a_mistake_as_often(
    postgres: EmbeddedPostgres, pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        for source in ("one", "other"):
            assert not caplog.messages
            await store.open_pipeline(shape(pipeline, sources=(source,), streams={source: "s"}))
        await store.close()

    asyncio.run(main())
    (said,) = caplog.messages
    assert said.startswith("source 'other' feeds what 'one' fed, which is left out")


def test_a_start_warns_of_sink_tables_that_are_gone_and_not_of_new_ones(
    postgres: EmbeddedPostgres, pipeline: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept, gone, new = (SinkTable(name, {"k": "text"}, ("k",)) for name in ("kept", "gone", "new"))
    warnings: dict[str, list[str]] = {}

    async def opened(*tables: SinkTable) -> None:
        store, now = PostgresStore(postgres.url, pipeline), shape(pipeline, sinks=tables)
        planned = check(postgres.url, now).warnings
        caplog.clear()
        await store.open_pipeline(now)
        assert caplog.messages == planned, "a plan says what a start does"
        warnings[" ".join(table.name for table in tables)] = [words.partition(",")[0] for words in planned]
        await store.close()

    asyncio.run(opened(kept, gone))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'DROP TABLE "{pipeline}".gone')
    asyncio.run(opened(kept, new, gone))
    assert warnings == {"kept gone": [], "kept new gone": ["sink table 'gone' is gone"]}


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_what_feeds_a_stream_is_told_once_it_was_opened(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)

    async def main() -> None:
        both = shape(pipeline, sources=("one", "two"), streams={"one": "s", "two": "s"})
        assert not (await store.open_pipeline(both)).fed
        await store.open_source("two", {"p": b""})
        without = shape(pipeline, sources=("one",), streams={"one": "s"})
        for opened in (both, without):
            assert (await store.open_pipeline(opened)).fed == {"two": "s"}, "also when the source is left out"
        await store.close()

    asyncio.run(main())


def test_a_role_that_may_make_no_schema_is_told_who_makes_it(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def opened() -> None:
        store = PostgresStore(make_conninfo(postgres.url, user="narrow"), pipeline)
        try:
            await store.open_pipeline(shape(pipeline))
        finally:
            await store.close()

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE narrow LOGIN")
        narrow = make_conninfo(postgres.url, user="narrow")
        with pytest.raises(StoreError) as refused:
            asyncio.run(opened())
        assert check(narrow, shape(pipeline)).refusals == [str(refused.value)]
        assert str(refused.value) == (
            f"there is no schema {pipeline!r}, and this role may make none: let somebody who may run "
            f'CREATE SCHEMA "{pipeline}" AUTHORIZATION "narrow"'
        )
        connection.execute(f'CREATE SCHEMA "{pipeline}"')
        with pytest.raises(
            StoreError, match="this role may make no tables in it: let its owner run ALTER SCHEMA"
        ) as refused:
            asyncio.run(opened())
        assert check(narrow, shape(pipeline)).refusals == [str(refused.value)]
        connection.execute(f'ALTER SCHEMA "{pipeline}" OWNER TO "narrow"')
        assert check(narrow, shape(pipeline)).refusals == []
        asyncio.run(opened())
        connection.execute("DROP OWNED BY narrow")
        connection.execute("DROP ROLE narrow")


def test_two_openers_at_once_make_one_schema(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        stores = [PostgresStore(postgres.url, pipeline) for _ in range(4)]
        opened = await asyncio.gather(*[store.open_pipeline(shape(pipeline)) for store in stores])
        assert all(one == opened[0] for one in opened)
        partitions = await asyncio.gather(*[store.open_source("s", {"p": b"", "q": b""}) for store in stores])
        assert all(one == partitions[0] for one in partitions)
        for store in stores:
            await store.close()

    asyncio.run(main())
    assert reset(postgres.url, pipeline)
    assert not reset(postgres.url, pipeline)


def test_a_store_of_the_first_format_gets_what_came_later(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """There a channel whose sender had not advertised a frontier had ids, but no frontier; tables came, and an index."""
    tables = ("opaque_bucket", "opaque_id", "suspicion", "cluster", "cluster_leader", "cluster_member", "lease")
    later = dict.fromkeys((*tables, "interval_owner", "source_owner", "map_order", "hot_key", "standstill"), "TABLE")
    later |= {"timer_by_time": "INDEX", "incarnation": "SEQUENCE"}

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        one = image([])
        one.ids[:] = [
            Ids(SubscriptionId(1), ProducerId(5), SequenceNumber(0), sequence_numbers([3, 4])),
            Ids(SubscriptionId(1), ProducerId(6), SequenceNumber(2), sequence_numbers([7])),
        ]
        await store.commit([LogWrite(first, sequencer, Seq(1), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), [one]))
        await store.close()
        with psycopg.connect(postgres.url) as connection:
            connection.execute(f'DELETE FROM "{pipeline}".delivered_frontier WHERE frontier = 0')
            connection.execute(f'DELETE FROM "{pipeline}".migration WHERE version > 1')
            for name, kind in later.items():
                connection.execute(f'DROP {kind} "{pipeline}".{name}')
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        sequencer = (await store.acquire([first]))[first]
        recovered = await store.recover(first, sequencer)
        assert recovered is not None
        assert recovered.ids == [
            Delivered(SubscriptionId(1), ProducerId(5), SequenceNumber(0), SequenceNumber(4)),
            Delivered(SubscriptionId(1), ProducerId(6), SequenceNumber(2), SequenceNumber(7)),
        ]
        assert (await store.join("w", "worker", "h:1", 1_000_000, b"key")).incarnation == 1
        assert [row.id for row in (await store.cluster_map()).intervals] == [1, 2]
        await store.close()
        with psycopg.connect(postgres.url) as connection:
            for name in later:
                found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{pipeline}".{name}',)).fetchone()
                assert found == (True,), name

    asyncio.run(main())


LATER: dict[int, tuple[str, ...]] = {
    3: ("TABLE opaque_bucket", "TABLE opaque_id"),
    4: ("INDEX timer_by_time",),
    5: ("TABLE suspicion",),
    7: ("COLUMN source.signed", "TABLE source_sign", "INDEX source_unfinished", "INDEX source_unsigned"),
    8: ("TABLE declared_epoch",),
    9: (
        "SEQUENCE incarnation", "TABLE cluster", "TABLE cluster_leader", "TABLE cluster_member", "TABLE lease",
        "TABLE interval_owner", "TABLE source_owner",
    ),
    10: ("TABLE map_order",),
    11: ("COLUMN cluster.shape",),
    12: ("TABLE hot_key",),
    13: ("TABLE standstill",),
    14: ("COLUMN source.rejected", "INDEX source_rejected"),
    15: ("COLUMN redrive.sequencer", "COLUMN redrive.seq"),
    16: ("COLUMN interval.follows",),
}  # fmt: skip
"""By format: what came with it."""
CATALOGUE = """
SELECT c.relname, c.relkind::text, c.reloptions::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.attidentity::text, co.collname, a.attstorage::text,
       translate(split_part(pg_get_expr(d.adbin, d.adrelid), '::', 1), '''', ''), i.indexdef
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_collation co ON co.oid = a.attcollation LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
LEFT JOIN pg_indexes i ON i.schemaname = %(schema)s AND i.indexname = c.relname
WHERE c.relnamespace = to_regnamespace(%(schema)s) ORDER BY c.relname, a.attname
"""


def test_a_store_of_any_earlier_format_becomes_what_a_new_one_is(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def opened() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        await store.close()

    asyncio.run(opened())
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (pipeline,))
        new = connection.execute(CATALOGUE, {"schema": pipeline}).fetchall()
        for found in range(STORE_FORMAT - 1, 0, -1):
            for kind, _, name in (what.partition(" ") for at, came in LATER.items() if at > found for what in came):
                table, _, column = name.partition(".")
                drop = f"ALTER TABLE IF EXISTS {table} DROP {column}" if column else f"DROP {kind} IF EXISTS {name}"
                connection.execute(drop.encode())
            connection.execute("DELETE FROM migration WHERE version > %s", (found,))
            asyncio.run(opened())
            assert connection.execute(CATALOGUE, {"schema": pipeline}).fetchall() == new, f"of format {found}"
            versions = connection.execute("SELECT version FROM migration ORDER BY version").fetchall()
            assert versions == [(version,) for version in range(1, STORE_FORMAT + 1)]


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_a_cell_that_was_renamed_before_it_is_dropped_leaves_nothing(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    """Its values lie where it was made, and a cell that has come since under its first name lies elsewhere."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    both = {"stream:s": "bytes", "cell:a.new": "int", "cell:a.old": "int"}

    async def main() -> None:
        await store.open_pipeline(shape(pipeline, coders={"stream:s": "bytes", "cell:a.old": "int"}))
        renamed = {"stream:s": "bytes", "cell:a.new": "int"}
        await store.open_pipeline(shape(pipeline, coders=renamed, formerly={"cell:a.new": "old"}))
        opened = await store.open_pipeline(shape(pipeline, coders=both))
        assert opened.places == {"a": {"new": "old", "old": "old#2"}}
        interval = opened.intervals[0].id
        owned = (await store.acquire([interval]))[interval]
        rows: list[tuple[str, str, str, bytes | None]] = [("a", "old", "", b"1"), ("a", "old#2", "", b"2")]
        written = encode_checkpoint(msgspec.structs.replace(image([]), state=StateWrites.of(rows)))
        await store.commit([LogWrite(interval, owned, Seq(1), 0, written)])
        await store.recover(interval, owned)
        left = {"stream:s": "bytes", "cell:a.old": "int"}
        await store.open_pipeline(shape(pipeline, coders=left, dropped=("a.new",)))
        (found,) = await store.load(interval, ["a"])
        assert found.cells == {("old#2", ""): b"2"}
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_a_computation_may_be_renamed_and_lose_a_cell_at_once(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)

    async def main() -> None:
        coders = {"stream:s": "bytes", "cell:a.gone": "int", "cell:a.kept": "int"}
        interval = (await store.open_pipeline(shape(pipeline, coders=coders))).intervals[0].id
        owned = (await store.acquire([interval]))[interval]
        rows: list[tuple[str, str, str, bytes | None]] = [("a", "gone", "", b"1"), ("a", "kept", "", b"2")]
        written = encode_checkpoint(msgspec.structs.replace(image([]), state=StateWrites.of(rows)))
        await store.commit([LogWrite(interval, owned, Seq(1), 0, written)])
        await store.recover(interval, owned)
        named = {"computations": {"b": ("m",)}, "subscriptions": {"b<s": "s"}, "formerly": {"computation:b": "a"}}
        left = {"stream:s": "bytes", "cell:b.kept": "int"}
        await store.open_pipeline(shape(pipeline, coders=left, dropped=("b.gone",), **named))
        (found,) = await store.load(interval, ["a"])
        assert found.cells == {("kept", ""): b"2"}
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
@pytest.mark.parametrize("unfolded", ["", "a", "m", "am"])
def test_what_the_logs_bring_of_a_dropped_cell_goes_with_the_start_after(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore], unfolded: str
) -> None:
    """Whichever of the computation's two intervals has a log that is not folded when the cell is dropped."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    left = shape(pipeline, coders={"stream:s": "bytes", "cell:a.kept": "int"}, dropped=("a.gone",))

    async def main() -> None:
        coders = {"stream:s": "bytes", "cell:a.gone": "int", "cell:a.kept": "int"}
        rows = (await store.open_pipeline(shape(pipeline, coders=coders))).intervals
        intervals = dict(zip("am", [row.id for row in sorted(rows, key=lambda row: row.low)], strict=True))
        owned = await store.acquire([*intervals.values()])
        for key, interval in intervals.items():
            cells: list[tuple[str, str, str, bytes | None]] = [(key, "gone", "", b"1"), (key, "kept", "", b"2")]
            written = encode_checkpoint(msgspec.structs.replace(image([]), state=StateWrites.of(cells)))
            await store.commit([LogWrite(interval, owned[interval], Seq(1), 0, written)])
            if key not in unfolded:
                await store.recover(interval, owned[interval])
        await store.open_pipeline(left)
        for key in unfolded:
            await store.recover(intervals[key], owned[intervals[key]])
        await store.open_pipeline(left)
        for key, interval in intervals.items():
            (found,) = await store.load(interval, [key])
            assert found.cells == {("kept", ""): b"2"}, key
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_whoever_opens_a_store_is_told_the_intervals_that_it_has_made(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)

    async def main() -> None:
        await store.open_pipeline(shape(pipeline))
        for keys in (("g", "t"), ()):
            found = (await store.open_pipeline(shape(pipeline, computations={"a": keys}))).intervals
            assert sorted((row.low, row.high) for row in found) == [*zip(("", *keys), (*keys, None), strict=True)]
            assert {row.id for row in found} == {row.id for row in (await store.cluster_map()).intervals}
        await store.close()

    asyncio.run(main())


def test_a_store_of_a_later_format_is_refused(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        with psycopg.connect(postgres.url) as connection:
            connection.execute(f'INSERT INTO "{pipeline}".migration (version) VALUES ({STORE_FORMAT + 1})')
        with pytest.raises(IncompatibleStore, match=f"has format {STORE_FORMAT + 1}, .*; upgrade millwheel"):
            await store.open_pipeline(shape(pipeline))
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("place", ["words", "before"], ids=["as named", "renamed before"])
def test_keys_that_hold_a_cell_are_counted_and_not_their_entries(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore], folded: bool, place: str
) -> None:
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    stays = {"stream:s": "bytes", "cell:a.tags": "map:int"}

    async def main() -> None:
        await store.open_pipeline(shape(pipeline, coders={**stays, f"cell:a.{place}": "map:int"}))
        coders, formerly = {**stays, "cell:a.words": "map:int"}, {"cell:a.words": place} if place != "words" else {}
        interval = (await store.open_pipeline(shape(pipeline, coders=coders, formerly=formerly))).intervals[0].id
        owned = (await store.acquire([interval]))[interval]
        rows: list[tuple[str, str, str, bytes | None]] = [
            (key, cell, entry, b"1")
            for cell, keys in ((place, "ab"), ("tags", "bcd"))
            for key in keys
            for entry in ("x", "y", "z")
        ]
        state = StateWrites.of(rows)
        written = encode_checkpoint(msgspec.structs.replace(image([]), state=state))
        await store.commit([LogWrite(interval, owned, Seq(1), 0, written)])
        if folded:
            await store.recover(interval, owned)
        with pytest.raises(IncompatibleStore, match=r"'a\.words' is not in the code any more, and 2 keys hold it"):
            await store.open_pipeline(shape(pipeline))
        await store.close()

    asyncio.run(main())
