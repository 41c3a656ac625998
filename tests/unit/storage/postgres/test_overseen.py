"""A look at a whole store shows who does what and what waits, and costs little however much is stored."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg import sql

from millwheel import limits
from millwheel.bundles import LogWrite
from millwheel.cluster import Leader, Member, Placement
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, Seq
from millwheel.model import MAX_TIME
from millwheel.ports import PipelineShape, PositionWrite, WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.statements import overseeing

pytestmark = pytest.mark.postgres

LEASE_US = 3_600_000_000
ONE, TWO = IntervalId(1), IntervalId(2)
PRODUCTIONS = """
INSERT INTO {}.production SELECT 1, 1, 5, n, 'k', repeat('x', 100)::bytea, n FROM generate_series(1, %s) n
"""


def shape(pipeline: str) -> PipelineShape:
    return PipelineShape(pipeline, {"a": ("m",), "b": ()}, {}, {}, (), ("src", "other"))


async def filled(url: str, pipeline: str) -> int:
    """A cluster at work; the version of its map."""
    store = PostgresStore(url, pipeline)
    await store.open_pipeline(shape(pipeline))
    leader = (await store.join("c", "controller", "c:1", LEASE_US, b"c")).incarnation
    worker = (await store.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
    gone = (await store.join("g", "worker", "g:1", -LEASE_US, b"g")).incarnation
    assert not await store.renew(gone, LEASE_US)
    await store.join("late", "worker", "l:1", -LEASE_US, b"l")
    led = await store.lead(leader, LEASE_US)
    assert led is not None
    version = (await store.cluster_map()).version
    placed = await store.place(Placement(led.epoch, version, {ONE: worker, TWO: worker}, {"src": worker}))
    assert placed is not None
    owned = {row.id: row.sequencer for row in (await store.cluster_map()).intervals}
    for seq in (1, 2, 3):
        assert await store.commit([LogWrite(TWO, owned[TWO], Seq(seq), 0, b"x" * 100 * seq)])
    opened = await store.open_source("src", {"p": b"", "q": b"", "r": b""})
    taken = await store.take_partitions("src", worker, [opened[0].interval])
    assert taken is not None
    await store.advance([PositionWrite(opened[0].interval, taken[opened[0].interval], 7, True, b"")])
    now = 1_700_000_000_000_000
    writes = [WatermarkWrite("a", now, {ONE: owned[ONE]}), WatermarkWrite("b", MAX_TIME, {})]
    assert await store.persist_led_watermarks(led.epoch, writes) == {"a", "b"}
    await store.close()
    return placed


def test_it_shows_members_owners_watermarks_and_what_waits(postgres: EmbeddedPostgres, pipeline: str) -> None:
    version = asyncio.run(filled(postgres.url, pipeline))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(sql.SQL(PRODUCTIONS).format(sql.Identifier(pipeline)), (5,))
    with Reader(postgres.url, pipeline) as reader:
        found = reader.overview()
    assert (found.version, found.leader) == (version, Leader(1, 1, "c:1"))
    assert [lease.member for lease in found.members] == [
        Member(1, "c", "controller", "c:1"),
        Member(2, "w", "worker", "w:1"),
        Member(3, "g", "worker", "g:1", alive=False),
        Member(4, "late", "worker", "l:1", alive=False),
    ]
    left = [lease.left_us for lease in found.members]
    assert left[2] is None
    assert left[1] is not None
    assert left[3] is not None
    assert LEASE_US - 60_000_000 < left[1] <= LEASE_US
    assert -LEASE_US - 60_000_000 < left[3] <= -LEASE_US
    assert [(row.placed.id, row.placed.computation, row.placed.owner) for row in found.intervals] == [
        (1, "a", 2), (2, "a", 2), (3, "b", None),
    ]  # fmt: skip
    assert [(row.log_rows, row.log_bytes, row.unacked) for row in found.intervals] == [
        (0, 0, 5),
        (3, 600, 0),
        (0, 0, 0),
    ]
    assert [(row.placed.name, row.placed.owner, row.unfinished) for row in found.sources] == [
        ("other", None, 0), ("src", 2, 2),
    ]  # fmt: skip
    assert found.lag_us("a") == found.now_us - 1_700_000_000_000_000
    assert (found.lag_us("b"), found.lag_us("source:src")) == (None, None)
    assert abs(found.now_us - 1_000_000 * _now(postgres)) < 60_000_000


def _now(postgres: EmbeddedPostgres) -> int:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::bigint").fetchone()
        assert row is not None
        return int(row[0])


def test_a_store_that_ran_embedded_is_shown_too(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        await store.acquire([ONE])
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        found = reader.overview()
        assert (found.leader, found.members) == (None, ())
        assert [row.placed.owner for row in found.intervals] == [None, None, None]
        assert found.intervals[0].placed.sequencer > 0
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"DROP TABLE {pipeline}.interval_owner")
        with pytest.raises(StoreError, match="earlier version of millwheel: start the pipeline once"):
            reader.overview()


def test_what_it_reads_does_not_grow_with_what_is_stored(postgres: EmbeddedPostgres, pipeline: str) -> None:
    asyncio.run(filled(postgres.url, pipeline))
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (pipeline,))
        before = pages(connection)
        connection.execute(sql.SQL(PRODUCTIONS).format(sql.Identifier(pipeline)), (100_000,))
        assert pages(connection) < before + limits.OVERVIEW_ROWS // 10
        connection.execute("VACUUM ANALYZE production")
        assert pages(connection) < before + limits.OVERVIEW_ROWS // 10
    with Reader(postgres.url, pipeline) as reader:
        assert reader.overview().intervals[0].unacked == limits.OVERVIEW_ROWS


def test_all_are_shown_however_few_rows_of_each_are_counted(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(filled(postgres.url, pipeline))
    monkeypatch.setattr(limits, "OVERVIEW_ROWS", 1)
    with Reader(postgres.url, pipeline) as reader:
        found = reader.overview()
    assert len(found.members) == 4
    assert [(row.placed.id, row.log_rows, row.log_bytes) for row in found.intervals] == [
        (1, 0, 0), (2, 1, 100), (3, 0, 0),
    ]  # fmt: skip
    assert [(row.placed.name, row.unfinished) for row in found.sources] == [("other", 0), ("src", 1)]
    assert found.watermarks.keys() == {"a", "b"}


def pages(connection: psycopg.Connection[Any]) -> int:
    """How many pages the backlogs of all intervals cost."""
    with connection.transaction():
        connection.execute(overseeing.BY_INDEX)
        statement = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {overseeing.READ_BACKLOGS}"
        row = connection.execute(statement.encode(), {"limit": limits.OVERVIEW_ROWS}).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
