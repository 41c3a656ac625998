"""Every order of {old owner's commit, sequencer bump, new owner's load, new owner's commit} on real Postgres.

Each actor is a connection with an open transaction; a step that Postgres blocks stays pending until a
later step lets it go.  Invariants I5 and I2: nothing of the old owner becomes durable after the bump, and
what became durable before it is in the new owner's load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import permutations
from typing import Any

import psycopg
import pytest
from psycopg.types.numeric import Int8

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
from millwheel.ids import Seq
from millwheel.ports import PipelineShape, SinkTable
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.statements import committing, opening
from millwheel_storage.testing import postgres_tables

pytestmark = pytest.mark.postgres

SINK = SinkTable("out", {"k": "text"}, ("k",))

# An old commit and a bump have a middle: their statement is done, their transaction is not.
STEPS = ("old insert", "old end", "bump", "bump end", "new load", "new commit")
BEFORE = {"old end": "old insert", "bump end": "bump", "new load": "bump end", "new commit": "new load"}


def orders() -> list[tuple[str, ...]]:
    """All interleavings that keep each actor's own order: an owner loads only after its bump is durable."""
    return [
        order
        for order in permutations(STEPS)
        if all(order.index(first) < order.index(then) for then, first in BEFORE.items())
    ]


def image(value: bytes) -> Checkpoint:
    state = StateWrites.of([("k", "c", "", value)])
    return Checkpoint(CHECKPOINT_FORMAT, "", 0, [], [], [], state, TimerWrites(), HoldWrites(), [], [])


class Race:
    """Three connections and the steps they take; a blocked step becomes a task that a later one releases."""

    def __init__(self, url: str, pipeline: str, statement: str) -> None:
        self.url = url
        self.statement = statement
        self.pipeline = pipeline
        self.store = PostgresStore(url, pipeline)
        self.blocked: dict[str, asyncio.Task[Any]] = {}
        self.results: dict[str, Any] = {}

    async def run(self, order: tuple[str, ...]) -> None:
        shape = PipelineShape(self.pipeline, {"a": ()}, {}, {}, (SINK,), ())
        opened = await self.store.open_pipeline(shape)
        self.interval = opened.intervals[0].id
        self.old_sequencer = (await self.store.acquire([self.interval]))[self.interval]
        self.old, self.bump = await self.connect(), await self.connect()
        await self.old.execute("INSERT INTO out VALUES ('there')")
        try:
            for step in order:
                await self.step(step)
            for task in self.blocked.values():
                await asyncio.wait_for(task, 60)
        finally:
            for connection in (self.old, self.bump):
                await connection.close()
            await self.store.close()

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        await connection.execute("SELECT set_config('search_path', %s, false)", (self.pipeline,))
        return connection

    async def step(self, step: str) -> None:
        first = BEFORE.get(step)
        if first in self.blocked:
            # Its own actor is still waiting: it takes this step when it wakes up.
            self.blocked[step] = asyncio.create_task(self.after(self.blocked[first], step))
            return
        task = asyncio.create_task(self.taken(step))
        done, _ = await asyncio.wait({task}, timeout=0.15)
        if done:
            task.result()
        else:
            self.blocked[step] = task  # or it is only slow

    async def after(self, task: asyncio.Task[Any], step: str) -> None:
        await task
        await self.taken(step)

    async def taken(self, step: str) -> None:
        self.results[step] = await self.act(step)

    def act(self, step: str) -> Coroutine[Any, Any, Any]:
        actions: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "old insert": self.old_insert,
            "old end": self.old_end,
            "bump": self.bump_start,
            "bump end": self.bump_end,
            "new load": self.new_load,
            "new commit": self.new_commit,
        }
        return actions[step]()

    async def old_insert(self) -> list[Any]:
        await self.old.execute("BEGIN")
        payload = encode_checkpoint(image(b"old"))
        number = [Int8(self.interval)]
        group = [number, [Int8(self.old_sequencer)], [Int8(1)], [Int8(0)], [payload], number]
        given: dict[str, tuple[Any, list[Any]]] = {
            "alone": (committing.COMMIT_ONE, [*map(Int8, (self.interval, self.old_sequencer, 1, 0)), payload]),
            "group": (committing.COMMIT, group),
            "with a sink row": (committing.commit_with_sinks([(SINK, False)]), [*group, '[{"k": "old"}]', [Int8(1)]]),
            "with a deletion": (
                committing.commit_with_sinks([(SINK, True)]),
                [*group, '[{"k": "there"}]', [Int8(1)], '[{"k": "old"}]', [Int8(1)]],
            ),
        }
        return await (await self.old.execute(*given[self.statement])).fetchall()

    async def old_end(self) -> None:
        await self.old.execute("COMMIT")

    async def bump_start(self) -> None:
        await self.bump.execute("BEGIN")
        row = await (await self.bump.execute(opening.ACQUIRE, (self.interval,))).fetchone()
        assert row is not None
        self.new_sequencer = row[0]

    async def bump_end(self) -> None:
        await self.bump.execute("COMMIT")

    async def new_load(self) -> Any:
        assert await self.store.recover(self.interval, self.new_sequencer) is not None
        loaded = await self.store.load(self.interval, ["k"])
        return loaded[0].cells["c", ""] if loaded else None

    async def new_commit(self) -> Any:
        rows = (SinkRow("out", b'{"k": "new"}'),)
        write = LogWrite(self.interval, self.new_sequencer, Seq(1), 0, encode_checkpoint(image(b"new")), rows)
        return await self.store.commit([write])


@pytest.mark.parametrize("statement", ["alone", "group", "with a sink row", "with a deletion"])
@pytest.mark.parametrize("order", orders(), ids="/".join)
def test_no_order_lets_an_old_owner_write_unseen(
    postgres: EmbeddedPostgres, pipeline: str, order: tuple[str, ...], statement: str
) -> None:
    race = Race(postgres.url, pipeline, statement)
    asyncio.run(race.run(order))
    old_is_durable = bool(race.results["old insert"])
    if order.index("old end") < order.index("bump"):
        assert old_is_durable
    if order.index("bump end") < order.index("old insert"):
        assert not old_is_durable
    assert race.results["new load"] == (b"old" if old_is_durable else None)
    assert race.results["new commit"] == {(race.interval, 1)}
    with psycopg.connect(postgres.url) as connection:
        sink = {key for (key,) in connection.execute(f"SELECT k FROM {pipeline}.out")}
    writes, deletes = statement.startswith("with") and old_is_durable, statement == "with a deletion" and old_is_durable
    assert sink == {"new"} | ({"old"} if writes else set()) | (set() if deletes else {"there"})
    log = postgres_tables(postgres.url, pipeline)["checkpoint_log"]
    assert [row[:3] for row in log] == [(race.interval, race.new_sequencer, 1)]


def test_the_orders_reach_both_outcomes_and_both_waits() -> None:
    """An order that cannot block or cannot be fenced would prove nothing."""
    found = orders()
    assert len(found) == 15
    assert any(o.index("old insert") < o.index("bump") < o.index("old end") for o in found)
    assert any(o.index("bump") < o.index("old insert") < o.index("bump end") for o in found)


def test_a_group_commit_and_a_bump_of_two_intervals_do_not_deadlock(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store, other = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        shape = PipelineShape(pipeline, {"a": ("h", "p")}, {}, {}, (SINK,), ())
        ids = [row.id for row in (await store.open_pipeline(shape)).intervals]
        await other.open_pipeline(shape)
        owned = await store.acquire(ids)

        async def commit(times: int) -> int:
            fenced = 0
            for seq in range(1, times):
                writes = [LogWrite(i, owned[i], Seq(seq), 0, b"x") for i in reversed(ids)]
                fenced += len(await store.commit(writes)) < len(ids)
            return fenced

        async def bump(times: int) -> None:
            for _ in range(times):
                owned.update(await other.acquire(ids[::-1]))

        fenced, _ = await asyncio.gather(commit(200), bump(100))
        assert fenced < 199
        await store.close()
        await other.close()

    asyncio.run(main())


def test_sink_rows_of_a_fenced_checkpoint_are_not_written(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        shape = PipelineShape(pipeline, {"a": ("m",)}, {}, {}, (SINK,), ())
        first, second = [row.id for row in (await store.open_pipeline(shape)).intervals]
        old = await store.acquire([first, second])
        await store.acquire([first])
        writes = [
            LogWrite(first, old[first], Seq(1), 0, b"x", (SinkRow("out", b'{"k": "fenced"}'),)),
            LogWrite(second, old[second], Seq(1), 0, b"x", (SinkRow("out", b'{"k": "owned"}'),)),
        ]
        assert await store.commit(writes) == {(second, 1)}
        await store.close()

    asyncio.run(main())
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(f'SELECT k FROM "{pipeline}".out').fetchall()
    assert rows == [("owned",)]


@pytest.mark.parametrize("fenced", [False, True])
def test_of_two_intervals_that_write_the_same_row_the_last_owner_wins(
    postgres: EmbeddedPostgres, pipeline: str, fenced: bool
) -> None:
    table = SinkTable("out", {"k": "text", "v": "bigint"}, ("k",))

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        shape = PipelineShape(pipeline, {"a": ("m",)}, {}, {}, (table,), ())
        first, second = [row.id for row in (await store.open_pipeline(shape)).intervals]
        owned = await store.acquire([first, second])
        if fenced:
            await store.acquire([second])
        writes = [
            LogWrite(first, owned[first], Seq(1), 0, b"x", (SinkRow("out", b'{"k": "both", "v": 1}'),)),
            LogWrite(second, owned[second], Seq(1), 0, b"x", (SinkRow("out", b'{"k": "both", "v": 2}'),)),
        ]
        assert await store.commit(writes) == {(first, 1)} | (set() if fenced else {(second, 1)})
        await store.close()

    asyncio.run(main())
    with psycopg.connect(postgres.url) as connection:
        rows = connection.execute(f'SELECT k, v FROM "{pipeline}".out').fetchall()
    assert rows == [("both", 1 if fenced else 2)]
