"""A computation goes, or an input: both stores do the same to their tables, and nothing is left of it."""

from __future__ import annotations

import asyncio

import msgspec
import psycopg
import pytest

from millwheel import subscribe
from millwheel.bundles import HoldWrites, OutsideIdWrites, StateWrites, TimerWrites
from millwheel.errors import IncompatibleStore
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.ports import PipelineShape, PositionWrite, WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.litter import litter
from tests.unit.storage.postgres.test_handover import Story, ids, produced, waiting
from tests.unit.storage.samples import sales, shops

pytestmark = pytest.mark.postgres

BY_INTERVAL = ("ownership", "production", "delivered", "delivered_frontier", "opaque_bucket", "suspicion")


def only(stays: str, goes: str, pipeline: str, **changes: object) -> PipelineShape:
    """`shops` without one of its two computations."""
    whole = shops(pipeline)
    return msgspec.structs.replace(
        whole,
        computations={stays: whole.computations[stays]},
        subscriptions={f"{stays}<sales": "sales"},
        coders={name: coder for name, coder in whole.coders.items() if not name.startswith(f"cell:{goes}.")},
        gone=(goes,),
        **changes,
    )


async def more(story: Story, url: str) -> None:
    """Both computations have state, timers, holds, ids of clients, a key in quarantine, and somebody wants that redriven."""
    for interval, subscription, key in ((2, story.ALSO, "q"), (4, story.TOTAL, "r")):
        await story.commit(
            interval, 2, quarantined=[waiting(key, subscription)], state=StateWrites.of([(key, "n", "", b"1")]),
            timers=TimerWrites([key], ["tag"], ["watermark"], [9]), holds=HoldWrites([key], [8]),
            outside=[OutsideIdWrites(SubscriptionId(subscription), 60, [b"c"])],
        )  # fmt: skip
    owners = {IntervalId(1): story.owned[IntervalId(1)]}
    await story.store.persist_watermarks([WatermarkWrite("Also", 55, owners), WatermarkWrite("loop:Also", 54, owners)])
    wanted = [("Also", "q"), ("Total", "r")]
    for computation, key in wanted:
        request(story, url, computation, key)
    assert await story.store.redrive_requests(("", ""), 9) == wanted


STRAYS = {
    "computation": ("key_state", "timer", "hold", "quarantine", "redrive", "interval"),
    "subscription": ("production", "delivered", "delivered_frontier", "opaque_bucket"),
    "interval_id": (
        "ownership", "interval_owner", "suspicion", "production", "delivered", "delivered_frontier", "opaque_bucket",
    ),
    "bucket": ("opaque_id",),
}  # fmt: skip
KNOWN = {
    "computation": "SELECT number FROM name WHERE kind = 'computation'",
    "subscription": "SELECT number FROM name WHERE kind = 'subscription'",
    "interval_id": "SELECT id FROM interval UNION SELECT interval_id FROM source",
    "bucket": "SELECT number FROM opaque_bucket",
}


def strays(url: str, schema: str) -> list[str]:
    """Tables with rows of a computation, a subscription, an interval or a bucket that is not there."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        return [
            f"{table}.{column}"
            for column, tables in STRAYS.items()
            for table in tables
            if connection.execute(  # timers' elements came over none
                f"SELECT FROM {table} WHERE {column} NOT IN ({KNOWN[column]})"
            ).fetchall()
        ]


def names(url: str, schema: str) -> set[str]:
    with psycopg.connect(url) as connection:
        connection.execute("SELECT set_config('search_path', %s, false)", (schema,))
        return {
            name for (name,) in connection.execute("SELECT name FROM name WHERE name NOT LIKE 'source:%'").fetchall()
        }


def request(story: Story, url: str, computation: str, key: str) -> None:
    if isinstance(story.store, MemoryStore):
        story.store.request_redrive(computation, key)
    else:
        with Reader(url, story.name) as reader:
            reader.request_redrive(computation, key)


@pytest.mark.parametrize(("stays", "goes"), [("Total", "Also"), ("Also", "Total")])
def test_both_stores_drop_a_computation_alike(postgres: EmbeddedPostgres, pipeline: str, stays: str, goes: str) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            story = Story(store, pipeline)
            await story.tell()
            await more(story, postgres.url)
            shape = only(stays, goes, pipeline)
            with pytest.raises(IncompatibleStore, match="no longer has"):
                await store.open_pipeline(msgspec.structs.replace(shape, gone=()))
            opened = await store.open_pipeline(shape)
            assert {row.computation for row in opened.intervals} == {stays}
            assert await store.open_pipeline(shape) == opened  # the first reply was lost
            assert await store.open_pipeline(msgspec.structs.replace(shape, gone=())) == opened
            for interval in (1, 2, 3, 4):
                assert await story.commit(interval, 9) == set()
            write = PositionWrite(IntervalId(5), story.owned[IntervalId(5)], 10, False, b"{}")
            assert await store.advance([write]) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        assert strays(postgres.url, pipeline) == []
        assert names(postgres.url, pipeline) == {stays, f"{stays}<sales"}
        gone = {1, 2} if goes == "Also" else {3, 4}
        for table in BY_INTERVAL:
            assert not [row for row in tables[table] if row[0] in gone], table
        for table in ("key_state", "timer", "hold", "quarantine", "redrive"):
            assert not [row for row in tables[table] if row[0] == goes], table
        assert not [row for row in tables["watermark"] if row[0].endswith(goes)]
        sent = [row[:5] for row in tables["production"]]
        if goes == "Also":  # what it has sent is the first interval's of the receiver
            assert sent == [(3, 2, 90, 0, "a"), (3, 2, 90, 1, "z"), (3, 2, 91, 0, "b"), (3, 2, 93, 0, "r")]
        else:
            assert sent == [(1, 1, 90, 0, "k"), (1, 1, 93, 0, "s")]
        assert tables["checkpoint_log"] == []
        await stored.close()

    asyncio.run(main())


def test_a_computation_takes_no_name_of_another_kind_that_has_its_number(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Names are numbered by kind: `Also` is the second computation, and the second subscription is one of `Total`."""

    async def main() -> None:
        stored = PostgresStore(postgres.url, pipeline)
        both = shops(pipeline, inputs=[subscribe(sales, str)] * 3)
        total = msgspec.structs.replace(
            both,
            computations={"Total": both.computations["Total"]},
            subscriptions={name: stream for name, stream in both.subscriptions.items() if name.startswith("Total")},
            coders={name: coder for name, coder in both.coders.items() if not name.startswith("cell:Also.")},
        )
        before = await stored.open_pipeline(total)
        await stored.open_pipeline(both)
        after = await stored.open_pipeline(msgspec.structs.replace(total, gone=("Also",)))
        assert after.subscriptions == before.subscriptions
        assert names(postgres.url, pipeline) == {"Total", *before.subscriptions}
        await stored.close()

    asyncio.run(main())


def test_it_may_come_again_and_begins_anew(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            await Story(store, pipeline).tell()
            await store.open_pipeline(only("Total", "Also", pipeline))
            opened = await store.open_pipeline(shops(pipeline))
            new = [row.id for row in opened.intervals if row.computation == "Also"]
            assert min(new) > 4
            number = opened.subscriptions["Also<sales"]
            assert number != opened.subscriptions["Total<sales"]
            owned = await store.acquire(new)
            for interval in new:
                found = await store.recover(interval, owned[interval])
                assert found is not None
                assert (found.ids, found.productions, found.quarantined, found.watermark < 0) == ([], [], [], True)
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        await stored.close()

    asyncio.run(main())


def test_both_stores_drop_an_input_alike(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """Of a key in quarantine, what came on it goes, and the first that is left says why the key waits."""

    def shape(times: int, *gone: str) -> PipelineShape:
        return msgspec.structs.replace(shops(pipeline, inputs=[subscribe(sales, str)] * times), gone=gone)

    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            story = Story(store, pipeline)
            await story.tell()
            await store.open_pipeline(shape(2))  # subscription 3
            third = SubscriptionId(3)
            story.owned = await store.acquire([*map(IntervalId, (1, 2, 3, 4))])
            for interval in story.owned:
                await store.recover(interval, story.owned[interval])
            first, second = waiting("b", third), msgspec.structs.replace(waiting("b", story.TOTAL), error="")
            last = msgspec.structs.replace(first, error="")  # as all behind the first
            other = msgspec.structs.replace(waiting("d", story.TOTAL), error="its own")
            await story.commit(
                3, 1, quarantined=[first, second, waiting("c", third), last, waiting("d", third), other],
                outside=[OutsideIdWrites(third, 70, [b"d"])], ids=[ids(3, 8, 0, 2)],
            )  # fmt: skip
            for key in ("b", "c"):
                request(story, postgres.url, "Total", key)
            await store.open_pipeline(shape(1, "Total<sales"))
            assert await story.commit(3, 9) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        assert strays(postgres.url, pipeline) == []
        assert names(postgres.url, pipeline) == {"Total", "Also", "Total<sales", "Also<sales"}
        assert [row[:4] for row in tables["quarantine"]] == [
            ("Total", "a", 0, 2), ("Total", "a", 1, 1), ("Total", "b", 0, 2), ("Total", "d", 0, 2),
        ]  # fmt: skip
        with Reader(postgres.url, pipeline) as reader:
            for key, error in (("b", "e"), ("d", "its own")):
                assert [entry.error for entry in memory.quarantine["Total", key]] == [error]
                assert [entry.error for entry in reader.quarantine_rows("Total", key)] == [error]
        assert [row[:2] for row in tables["redrive"]] == [("Total", "b")]
        assert not [row for table in ("opaque_id", "delivered") for row in tables[table] if row[1] == 3]
        await stored.close()

    asyncio.run(main())


def test_what_it_has_sent_on_a_stream_that_is_not_published_any_more_goes(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        published = "published:sales"
        for store in (memory, stored):
            story = Story(store, pipeline)
            await story.tell()
            shape = shops(pipeline)
            computations = {**shape.computations, published: ()}
            subscriptions = {**shape.subscriptions, f"{published}<sales": "sales"}
            await store.open_pipeline(
                msgspec.structs.replace(shape, computations=computations, subscriptions=subscriptions)
            )
            await story.commit(1, 3, produced=[produced(3, 90, "p")])
            await store.open_pipeline(only("Total", "Also", pipeline))
        assert strays(postgres.url, pipeline) == []
        assert memory.tables() == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        await stored.close()

    asyncio.run(main())
