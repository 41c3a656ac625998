"""Epochs on a real server: what of them can be seen when, and which rows are at fault when one cannot be declared."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import waiting

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    SinkRow,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.errors import RowRefused, StoreError
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import Declaration, PipelineShape, PositionWrite, SinkTable
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader

pytestmark = pytest.mark.postgres

SINK = SinkTable("out", {"k": "text", "n": "bigint"}, ("k",))


def image(epoch: int, key: str, *rows: tuple[str, int]) -> bytes:
    sinks = [SinkRow("out", msgspec.json.encode({"k": k, "n": n})) for k, n in rows]
    state = StateWrites.of([(key, "", "", b"%d" % epoch)])
    keys = [k for k, _ in rows]
    return encode_checkpoint(
        Checkpoint(
            CHECKPOINT_FORMAT, "", epoch, [], [], [], state, TimerWrites(), HoldWrites(), sinks, [], sink_keys=keys
        )
    )


def visible(postgres: EmbeddedPostgres, pipeline: str) -> tuple[list[bytes], list[Any]]:
    """The state of key "a", and the sink table."""
    with Reader(postgres.url, pipeline) as reader, psycopg.connect(postgres.url) as connection:
        rows = connection.execute(f'SELECT k, n FROM "{pipeline}".out ORDER BY k').fetchall()
        return [row.value for row in reader.get_state("left", "a")], rows


async def opened(postgres: EmbeddedPostgres, pipeline: str) -> tuple[PostgresStore, dict[IntervalId, Sequencer]]:
    store = PostgresStore(postgres.url, pipeline)
    await store.open_pipeline(PipelineShape(pipeline, {"left": ("m",)}, {}, {}, (SINK,), ()))
    owned = await store.acquire([IntervalId(1), IntervalId(2)])
    assert await store.rewind(owned) == 0
    return store, owned


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_nothing_of_an_epoch_is_visible_before_it_is_declared(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def work() -> None:
        store, owned = await opened(postgres, pipeline)
        await store.commit(
            [LogWrite(IntervalId(1), Sequencer(owned[IntervalId(1)]), Seq(1), 1, image(1, "a", ("a", 1)))]
        )
        assert visible(postgres, pipeline) == ([], [])
        assert await store.declare(Declaration(epoch=1, owners=owned, sinks=[(1, 1)], watermarks={"left": 7}))
        assert visible(postgres, pipeline) == ([b"1"], [("a", 1)])
        assert await store.watermarks() == {"left": 7}
        await store.commit(
            [LogWrite(IntervalId(1), Sequencer(owned[IntervalId(1)]), Seq(2), 2, image(2, "a", ("a", 2)))]
        )
        assert visible(postgres, pipeline) == ([b"1"], [("a", 1)])
        # Another run goes back, and what the first one does then changes nothing.
        fresh = await store.acquire([IntervalId(1), IntervalId(2)])
        assert await store.rewind(fresh) == 1
        assert await store.recover(IntervalId(1), fresh[IntervalId(1)]) is not None
        assert not await store.declare(Declaration(epoch=2, owners=owned, sinks=[(1, 2)]))
        assert visible(postgres, pipeline) == ([b"1"], [("a", 1)])
        await store.close()

    run(work())


def test_what_comes_of_an_epoch_that_another_run_began_is_gone_when_its_number_comes_again(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def work() -> None:
        store, owned = await opened(postgres, pipeline)
        one = IntervalId(1)
        assert await store.commit([LogWrite(one, Sequencer(owned[one]), Seq(1), 1, image(1, "a"))])
        fresh = await store.acquire([*owned])
        assert await store.rewind(fresh) == 0
        assert await store.declare(Declaration(epoch=1, owners=fresh))
        assert visible(postgres, pipeline) == ([], [])
        await store.close()

    run(work())


@pytest.mark.parametrize("seq", [1, 3])
def test_rows_of_another_epoch_are_not_declared_with_this_one(
    postgres: EmbeddedPostgres, pipeline: str, seq: int
) -> None:
    """Those of an earlier one would be set again, over what came since; those of a later one are not complete."""
    stores: list[MemoryStore | PostgresStore] = [MemoryStore(), PostgresStore(postgres.url, pipeline)]

    async def work() -> None:
        for store in stores:
            await store.open_pipeline(PipelineShape(pipeline, {"left": ()}, {}, {}, (SINK,), ()))
            one = IntervalId(1)
            owned = await store.acquire([one])
            assert await store.rewind(owned) == 0
            for at in (1, 2, 3):
                log = LogWrite(one, owned[one], Seq(at), at, image(at, "a", ("a", at)))
                assert await store.commit([log])
            assert await store.declare(Declaration(epoch=1, owners=owned, sinks=[(one, Seq(1))]))
            with pytest.raises(StoreError, match="epoch 2: not all images with sink rows are there"):
                await store.declare(Declaration(epoch=2, owners=owned, sinks=[(one, Seq(seq))]))
            assert await store.declare(Declaration(epoch=2, owners=owned, sinks=[(one, Seq(2))]))
            await store.close()

    run(work())
    assert visible(postgres, pipeline)[1] == [("a", 2)]


def test_who_goes_back_fences_no_partition_of_a_source(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """A partition is taken by whoever reads it, and its positions are judged by its own owner."""

    async def work() -> None:
        store, owned = await opened(postgres, pipeline)
        (position,) = await store.open_source("rows", {"p": b""})
        taken = await store.acquire([position.interval])
        assert await store.rewind(owned) == 0
        move = PositionWrite(position.interval, taken[position.interval], 1, False, b"s")
        assert await store.advance([move]) == {position.interval}
        await store.close()

    run(work())


@pytest.mark.parametrize("sinks", [[(1, 1), (2, 1)], [(2, 1), (1, 1)]])
def test_of_two_intervals_that_set_a_row_the_later_one_counts(
    postgres: EmbeddedPostgres, pipeline: str, sinks: list[tuple[int, int]]
) -> None:
    """In whatever order they are declared: both stores do the same, and so does one that does it again."""

    async def work() -> None:
        store, owned = await opened(postgres, pipeline)
        for interval in owned:
            written = image(1, "a" if interval == 1 else "z", ("k", int(interval)))
            assert await store.commit([LogWrite(interval, Sequencer(owned[interval]), Seq(1), 1, written)])
        assert await store.declare(Declaration(epoch=1, owners=owned, sinks=sinks))
        assert visible(postgres, pipeline)[1] == [("k", 2)]
        await store.close()

    run(work())


def test_who_goes_back_fences_what_it_does_not_take_and_no_declaration_takes_a_watermark_back(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def work() -> None:
        store, owned = await opened(postgres, pipeline)
        assert await store.declare(Declaration(epoch=1, owners=owned, watermarks={"left": 7}))
        assert await store.declare(Declaration(epoch=2, owners=owned, watermarks={"left": 3, "right": 1}))
        assert await store.declare(Declaration(epoch=2, owners=owned, watermarks={"right": 5})), "its reply was lost"
        assert await store.watermarks() == {"left": 7, "right": 1}
        two = IntervalId(2)
        late = LogWrite(two, Sequencer(owned[two]), Seq(1), 3, image(3, "z"))
        assert await store.commit([late]) == {(two, 1)}
        fresh = await store.acquire([IntervalId(1)])
        assert await store.rewind(owned) is None, "one of them has another owner"
        assert await store.rewind(fresh) == 2
        assert await store.commit([msgspec.structs.replace(late, seq=Seq(2))]) == set(), "all of it went back"
        await store.close()

    run(work())


def test_a_row_that_only_fails_beside_another_intervals_row_is_found(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def work() -> None:
        store, owned = await opened(postgres, pipeline)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f'ALTER TABLE "{pipeline}".out ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED')
        await store.commit(
            [LogWrite(IntervalId(1), Sequencer(owned[IntervalId(1)]), Seq(1), 1, image(1, "a", ("a", 1)))]
        )
        await store.commit(
            [LogWrite(IntervalId(2), Sequencer(owned[IntervalId(2)]), Seq(1), 1, image(1, "z", ("y", 2), ("z", 1)))]
        )
        declaration = Declaration(epoch=1, owners=owned, sinks=[(2, 1), (1, 1)])
        with pytest.raises(RowRefused, match="duplicate key") as refusal:
            await store.declare(declaration)
        assert (refusal.value.interval, refusal.value.seq) == (2, 1)
        assert [place for place, _ in refusal.value.rows] == [1]
        assert visible(postgres, pipeline) == ([], [])
        assert await store.watermarks() == {}
        await store.close()

    run(work())


def test_a_declaration_waits_twice_for_the_server(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While hooks run, each wait lasts for some of their invocations."""
    waits = 0
    wait_async = waiting.wait_async

    def counting(gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        nonlocal waits
        ready = None
        while True:
            try:
                wanted = next(gen) if ready is None else gen.send(ready)
            except StopIteration as end:
                return end.value
            ready = yield wanted
            waits += wanted == waiting.Wait.R or bool(ready & waiting.Ready.R)

    async def waited(gen: Any, *rest: Any, **named: Any) -> Any:
        return await wait_async(counting(gen), *rest, **named)

    async def scenario() -> None:
        nonlocal waits
        store, owned = await opened(postgres, pipeline)
        (position,) = await store.open_source("text", {"p": b""})
        source = await store.acquire([position.interval])

        async def declared(epoch: int) -> bool:
            write = PositionWrite(position.interval, source[position.interval], epoch, False, b"", (), 0)
            return await store.declare(
                Declaration(epoch=epoch, owners=owned, positions=[write], watermarks={"left": epoch})
            )

        assert await declared(1), "a connection is made, and the sequencers of the source are known"
        monkeypatch.setattr(waiting, "wait_async", waited)
        waits = 0
        assert await declared(2)
        assert 1 <= waits <= 2
        assert await declared(2), "the reply was lost"
        assert await store.watermarks() == {"left": 2}
        (position,) = await store.open_source("text", {"p": b""})
        assert position.position == 2
        await store.close()

    run(scenario())


def test_of_a_declaration_whose_position_is_fenced_nothing_stays(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def scenario() -> None:
        store, owned = await opened(postgres, pipeline)
        (position,) = await store.open_source("text", {"p": b""})
        (stale,) = (await store.acquire([position.interval])).values()
        await store.acquire([position.interval])
        write = PositionWrite(position.interval, stale, 9, False, b"", (), 0)
        fenced = Declaration(epoch=1, owners=owned, positions=[write], watermarks={"left": 9})
        assert not await store.declare(fenced)
        assert await store.watermarks() == {}
        assert await store.declare(Declaration(epoch=1, owners=owned, watermarks={"left": 1}))
        await store.close()

    run(scenario())
