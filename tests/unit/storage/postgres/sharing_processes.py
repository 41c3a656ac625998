"""Processes that share a store, each with connections of its own, for tests of membership and placements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import Leader
from millwheel.ports import PipelineShape
from millwheel_storage.postgres import PostgresStore

T = TypeVar("T")


LEASE_US = 3_600_000_000


SHORT_S = 0.3
"""Long enough for whatever does not wait for a lock."""


class Cluster:
    """A store that some processes share; each has connections of its own."""

    def __init__(self, url: str, pipeline: str) -> None:
        self.url = url
        self.pipeline = pipeline
        self.shape = PipelineShape(pipeline, {"a": ("m",), "b": ()}, {}, {}, (), ("src",))
        self.stores: list[PostgresStore] = []

    async def process(self) -> PostgresStore:
        """A store of one more process."""
        store = PostgresStore(self.url, self.pipeline)
        self.stores.append(store)
        await store.open_pipeline(self.shape)
        return store

    async def member(self, name: str, role: str = "worker") -> tuple[PostgresStore, int]:
        store = await self.process()
        return store, (await store.join(name, role, f"{name}:1", LEASE_US, name.encode())).incarnation

    async def leader(self, name: str = "c") -> tuple[PostgresStore, int, Leader]:
        store, incarnation = await self.member(name, "controller")
        leader = await store.lead(incarnation, LEASE_US)
        assert leader is not None
        return store, incarnation, leader

    async def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """From outside."""
        async with await self.connection() as connection:
            cursor = await connection.execute(statement, parameters)
            return await cursor.fetchall() if cursor.description else []

    async def connection(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        connection = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        await connection.execute("SELECT set_config('search_path', %s, false)", (self.pipeline,))
        return connection

    async def expire(self, *incarnations: int) -> None:
        """An hour passes for these members."""
        given = ([*incarnations],)
        await self.execute("UPDATE lease SET expires = expires - interval '1 hour' WHERE incarnation = ANY(%s)", *given)
        await self.execute(
            "UPDATE cluster_leader SET expires = expires - interval '1 hour' WHERE incarnation = ANY(%s)", *given
        )

    @asynccontextmanager
    async def holding(self, statement: str, *parameters: object) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """A transaction that has done `statement` and stays open, until it is committed at the end."""
        connection = await self.connection()
        await connection.execute("BEGIN")
        await connection.execute(statement, parameters)
        try:
            yield connection
            await connection.execute("COMMIT")
        finally:
            await connection.close()


def run(cluster: Cluster, main: Awaitable[T]) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(main, 60)
        finally:
            for store in cluster.stores:
                await store.close()

    return asyncio.run(whole())


async def waits(task: asyncio.Task[Any]) -> bool:
    """Whether something waits for a lock."""
    done, _ = await asyncio.wait({task}, timeout=SHORT_S)
    return not done


def payload() -> bytes:
    state = StateWrites.of([("a", "c", "", b"old")])
    return encode_checkpoint(
        Checkpoint(CHECKPOINT_FORMAT, "", 0, [], [], [], state, TimerWrites(), HoldWrites(), [], [])
    )
