"""Calls outlive a server that restarts, and leave no connection behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel.bundles import (
    LogWrite,
    encode_checkpoint,
)
from millwheel.errors import (
    CommitUnknown,
)
from millwheel.ids import Seq
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.testing import fresh_name
from tests.unit.storage.samples import image, shape

pytestmark = pytest.mark.postgres


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        yield Path(directory)


async def commit_for_ever(store: PostgresStore, write: LogWrite) -> None:
    """Until it fails: a session's own process may outlive the killed server by a moment."""
    while True:
        await store.commit([write])


def test_a_call_waits_for_a_server_that_restarts() -> None:
    async def main(server: EmbeddedPostgres) -> None:
        name = fresh_name()
        store = PostgresStore(server.url, name)
        first = (await store.open_pipeline(shape(name))).intervals[0].id
        owned = await store.acquire([first])
        write = LogWrite(first, owned[first], Seq(1), 0, encode_checkpoint(image(["a"])))
        assert await store.commit([write])
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(CommitUnknown):
            await commit_for_ever(store, write)
        restart = asyncio.create_task(asyncio.to_thread(server.ensure_running))
        assert await store.commit([write]) == {(first, 1)}
        await restart
        taken = (await store.acquire([first]))[first]
        assert taken > owned[first]
        assert await store.recover(first, taken) is not None
        assert [rows.key for rows in await store.load(first, ["a"])] == ["a"]
        await store.close()

    with short_directory() as directory, EmbeddedPostgres(directory) as server:
        asyncio.run(main(server))


def test_a_call_that_is_cancelled_while_it_connects_leaves_no_connection_behind(postgres: EmbeddedPostgres) -> None:
    """A run that fails cancels whatever is under way, the first use of a connection too."""

    async def main() -> None:
        for step in range(16):
            store = PostgresStore(postgres.url, fresh_name("cancelled"))
            task = asyncio.ensure_future(store.watermarks())
            for _ in range(step):  # one turn of the event loop at a time: no await is left out
                await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.close()

    asyncio.run(main())
    gc.collect()  # where psycopg warns of a connection that nobody closed
