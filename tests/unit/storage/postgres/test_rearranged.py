"""Intervals of a new version begin at other keys: both stores do the same to their tables, and nobody from before writes."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from millwheel.errors import IncompatibleStore
from millwheel.ids import IntervalId
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore, connection
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.litter import litter
from tests.unit.storage.postgres.test_handover import Story
from tests.unit.storage.samples import gathering, shops

pytestmark = pytest.mark.postgres

NAMES = ("Also", "Total", "Total.parts")


def test_both_stores_recut_alike(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            story = Story(store, pipeline)
            await story.tell()
            wanted = shops(pipeline, split_keys=["c", "t"])
            opened = await store.open_pipeline(wanted)
            total = sorted((row.low, row.high) for row in opened.intervals if row.computation == "Total")
            assert total == [("", "c"), ("c", "t"), ("t", None)]
            assert await store.open_pipeline(wanted) == opened  # the first reply was lost
            assert await story.commit(3, 9) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        new = [id_ for id_, row in memory.intervals.items() if row.computation == "Total"]
        assert new == [3, 6, 7]
        assert tables["delivered"] == sorted(
            [(id_, 1, 5, 3) for id_ in new]
            + [(id_, 2, *known) for id_ in new for known in ((5, 3), (5, 4), (5, 7), (5, 8), (5, 9), (6, 0))]
        )
        assert tables["opaque_id"] == sorted(
            (id_, *known)
            for id_ in new
            for known in (
                *((1, 50, b"p"), (1, 60, b"o")),
                *((2, 50, b"x"), (2, 50, b"y"), (2, 50, b"z"), (2, 60, b"u")),
            )
        )
        assert [row[:5] for row in tables["production"]][-2:] == [(3, 1, 93, 0, "s"), (3, 2, 93, 0, "r")]
        assert tables["checkpoint_log"] == []
        await stored.close()

    asyncio.run(main())


def test_both_stores_recut_intervals_that_were_cut_before_alike(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """Their ids are not in the order of their keys then."""

    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for keys in (["c", "t"], ["b", "c", "t"], ["m", "t"], ["a", "d", "m"]):
            for store in (memory, stored):
                if keys == ["c", "t"]:
                    await Story(store, pipeline).tell()
                opened = await store.open_pipeline(shops(pipeline, split_keys=keys))
                ranges = sorted((row.low, row.high) for row in opened.intervals if row.computation == "Total")
                assert ranges == [*zip(["", *keys], [*keys, None], strict=True)]
            assert memory.tables() == postgres_tables(postgres.url, pipeline)
            assert litter(postgres.url, pipeline) == {}
        await stored.close()

    asyncio.run(main())


@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 2)])
def test_both_stores_change_shards_alike(postgres: EmbeddedPostgres, pipeline: str, before: int, after: int) -> None:
    """While the intervals of the computation itself change, too."""

    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            await Story(store, pipeline).tell()
            await store.open_pipeline(shops(pipeline, gathering(before)))
            opened = await store.open_pipeline(shops(pipeline, gathering(after), split_keys=["q"]))
            lows = {name: sorted(row.low for row in opened.intervals if row.computation == name) for name in NAMES}
            assert lows == {"Also": ["", "k"], "Total": ["", "q"], "Total.parts": ["", *gathering(after).split_keys()]}
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        parts = [id_ for id_, row in memory.intervals.items() if row.computation == "Total.parts"]
        for part in parts:
            assert [row for row in memory.tables()["delivered"] if row[0] == part] == [
                (part, 2, *known) for known in ((5, 3), (5, 4), (5, 7), (5, 8), (5, 9), (6, 0))
            ]
        await stored.close()

    asyncio.run(main())


def test_both_stores_give_a_combiner_and_other_keys_alike_in_one_version(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            await Story(store, pipeline).tell()
            await store.open_pipeline(shops(pipeline, gathering(), split_keys=["c", "t"]))
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        left = litter(postgres.url, pipeline)
        assert left.keys() <= {"ids twice"}, "each interval that was cut off has handed over the same ids of clients"
        await stored.close()

    asyncio.run(main())


def test_what_moves_may_take_longer_than_another_statement(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it waits for somebody's lock."""
    monkeypatch.setattr(connection, "STORE_STATEMENT_TIMEOUT_MS", 100)

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shops(pipeline))
        with psycopg.connect(postgres.url) as holder:
            holder.execute(f'SELECT FROM "{pipeline}".ownership FOR SHARE')
            moved = asyncio.create_task(store.open_pipeline(shops(pipeline, split_keys=["c"])))
            await asyncio.sleep(0.4)
            assert not moved.done()
        await moved
        await store.close()

    asyncio.run(main())


def test_whoever_knows_the_earlier_version_takes_nothing(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        early, late = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        opened = await early.open_pipeline(shops(pipeline))
        owned = await early.acquire([row.id for row in opened.intervals])
        await late.open_pipeline(shops(pipeline, split_keys=["c"]))
        assert await early.still_owned(owned) == set()
        with pytest.raises(IncompatibleStore, match="opened in another version meanwhile"):
            await early.acquire([IntervalId(1)])
        await early.close()
        await late.close()

    asyncio.run(main())
