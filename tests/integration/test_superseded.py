"""A process that was superseded while it had nothing to do, on Postgres: it writes nothing any more, finds out, and ends."""

from __future__ import annotations

import asyncio

import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.errors import Fenced, StoreInUse
from millwheel.model import MAX_TIME
from millwheel.ports import WatermarkWrite
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import wall_clock_us
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import Tap

pytestmark = pytest.mark.postgres

SLOW_US = 3 * SECOND
"""How old rows are when they come: more than the disorder that the source declares of silence."""

rows = Stream("rows", JsonCoder(int))


class Count(Computation[int]):
    """How many came, and how many of them late."""

    seen = ValueCell(JsonCoder(int), default=0)
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.set(self.seen.get() + 1)
        self.late.set(self.late.get() + record.late)


class Run:
    """A run with a store of its own, which it closes at its end."""

    def __init__(self, url: str, name: str, tap: Tap) -> None:
        pipeline = Pipeline(name)
        pipeline.inject(tap, into=rows)
        pipeline.add(Count, [subscribe(rows, lambda row: "all")])
        self._store = PostgresStore(url, name)
        self.embedded = EmbeddedRun(pipeline.graph(), self._store, pipeline.tables)
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            await self.embedded.run()
        finally:
            await self._store.close()

    async def serves(self) -> None:
        """It has begun."""
        async with asyncio.timeout(120):
            while not any(who.startswith("interval") for who, *_ in self.embedded.explain("Count")):
                await asyncio.sleep(0.02)

    async def is_fenced(self) -> None:
        """It ends by itself, as it should."""
        with pytest.raises(Fenced, match="another run owns this pipeline's store now"):
            await asyncio.wait_for(self.task, 120)

    async def stop(self) -> None:
        assert not self.task.done()
        self.embedded.stop()
        await self.task


def silent(idle_after_us: int | None) -> Tap:
    """A source that sees nothing, as on a machine that is cut off from where the rows are."""
    tap = Tap()
    tap.idle_after_us = idle_after_us
    return tap


def test_an_idle_process_that_was_superseded_does_not_move_the_watermark(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    # It followed the clock: the store was ahead of the new run, and after one more restart every row came late.
    async def scenario() -> None:
        old = Run(postgres.url, pipeline, silent(20_000))
        await old.serves()
        store = PostgresStore(postgres.url, pipeline)
        while "source:tap" not in await store.watermarks():
            await asyncio.sleep(0.05)
        taken_over = wall_clock_us()
        tap = Tap()
        new = Run(postgres.url, pipeline, tap)
        await old.is_fenced()
        await new.serves()
        assert (await store.watermarks())["source:tap"] <= taken_over + 5 * SECOND
        reached = (await store.watermarks())["source:tap"]
        await asyncio.sleep(0.2)
        assert (await store.watermarks())["source:tap"] == reached
        await new.stop()
        await store.close()

    asyncio.run(scenario())


def test_rows_are_punctual_after_a_rolling_restart_and_one_more(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def scenario() -> None:
        first = wall_clock_us()
        old = Run(postgres.url, pipeline, silent(60_000_000))
        await old.serves()
        tap = Tap(promise=first - SLOW_US)
        for _ in range(2):
            new = Run(postgres.url, pipeline, tap)
            for _ in range(45):
                tap.rows.append((len(tap.rows), wall_clock_us() - SLOW_US))
                tap.promise = tap.rows[-1][1]
                await asyncio.sleep(0.01)
            while new.embedded.progress().records < 45:
                await asyncio.sleep(0.01)
            assert new.embedded.progress().late == 0
            await new.stop()
        await old.is_fenced()

    asyncio.run(scenario())


def test_a_process_that_has_nothing_to_write_finds_out_that_it_was_superseded(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def scenario() -> None:
        old = Run(postgres.url, pipeline, silent(None))
        await old.serves()
        new = Run(postgres.url, pipeline, silent(None))
        await old.is_fenced()
        await new.stop()

    asyncio.run(scenario())


def test_a_watermark_waits_for_a_takeover_that_is_open_and_is_refused_by_it(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def scenario() -> None:
        graph = Pipeline(pipeline)
        graph.inject(Tap(), into=rows)
        graph.add(Count, [subscribe(rows, lambda row: "all")])
        store, other = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        (interval,) = [row.id for row in (await store.open_pipeline(graph.graph().shape())).intervals]
        mine = await store.acquire([interval])
        write = WatermarkWrite("Count", 5, mine)
        assert await store.persist_watermarks([write, WatermarkWrite("free", MAX_TIME, {})]) == {"Count", "free"}

        async def take(connection: object) -> None:
            async with connection.transaction():  # type: ignore[attr-defined]
                await connection.execute(  # type: ignore[attr-defined]
                    "UPDATE ownership SET sequencer = nextval('sequencer') WHERE interval_id = %s", (interval,)
                )
                waiting.append(asyncio.ensure_future(store.persist_watermarks([WatermarkWrite("Count", 9, mine)])))
                await asyncio.sleep(0.2)
                assert not waiting[0].done()

        waiting: list[asyncio.Future[set[str]]] = []
        await other._folds.run(take)
        assert await waiting[0] == set()
        assert (await store.watermarks())["Count"] == 5
        assert await store.still_owned(mine) == set()
        await store.close()
        await other.close()

    asyncio.run(scenario())


def test_a_run_does_not_start_while_members_of_a_cluster_use_its_store(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        first = Run(postgres.url, pipeline, silent(None))
        await first.serves()
        member = PostgresStore(postgres.url, pipeline)
        joined = await member.join("w", "worker", "host:7", 60 * SECOND, b"key")
        await first.stop()
        second = Run(postgres.url, pipeline, silent(None))
        with pytest.raises(StoreInUse, match=r"worker 'w' \(1\) at host:7, whose lease lasts until .* UTC; stop it"):
            await asyncio.wait_for(second.task, 120)
        await member.leave(joined.incarnation)
        third = Run(postgres.url, pipeline, silent(None))
        await third.serves()
        await third.stop()
        await member.close()

    asyncio.run(main())
