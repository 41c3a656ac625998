"""A new owner takes the locks of one that is stopped in a transaction."""

from __future__ import annotations

import asyncio

import pytest

from millwheel.bundles import (
    LogWrite,
)
from millwheel.errors import (
    CommitUnknown,
)
from millwheel.ids import Seq
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore, ownership
from millwheel_storage.postgres import connection as connection_module
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.reader import reset
from millwheel_storage.statements import opening
from tests.unit.storage.samples import shape

pytestmark = pytest.mark.postgres


def test_a_zombie_in_a_transaction_loses_its_locks(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "STORE_IDLE_TRANSACTION_TIMEOUT_MS", 300)

    async def main() -> None:
        zombie, successor = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        first = (await zombie.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await zombie.acquire([first])
        stuck = asyncio.Event()

        async def freeze(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM ownership WHERE interval_id = %s FOR SHARE", (first,))
                stuck.set()
                await asyncio.sleep(1)
                await connection.execute("SELECT 1")

        frozen = asyncio.create_task(zombie._groups.run(freeze, repeatable=False))
        await stuck.wait()
        taken = await asyncio.wait_for(successor.acquire([first]), 60)
        assert taken[first] > owned[first]
        with pytest.raises(CommitUnknown):
            await frozen
        assert await zombie.commit([LogWrite(first, owned[first], Seq(1), 0, b"x")]) == set()
        await zombie.close()
        await successor.close()

    asyncio.run(main())


def test_whoever_takes_over_again_after_a_lost_reply_has_what_it_took(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = (await store.acquire([first]))[first]
        fresh, other = [await store._folds.run(ownership.next_sequencer) for _ in range(2)]
        for sequencer, taken in ((fresh, True), (fresh, True), (other, False)):
            done = store._folds.run(lambda connection, s=sequencer: ownership.replace(connection, first, owned, s))  # type: ignore[misc]
            assert await done is taken
        assert await store.still_owned({first: fresh}) == {first}
        await store.close()

    asyncio.run(main())


def test_an_owner_from_before_a_reset_writes_nothing_into_what_is_made_after_it(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch, sequencers_from_one: str
) -> None:
    """As a run that was stopped by Ctrl-Z: it wakes beside the run that was started after `millwheel reset`."""
    monkeypatch.setattr(opening, "BEGIN_SEQUENCERS", sequencers_from_one)

    async def main() -> None:
        zombie, successor = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        first = (await zombie.open_pipeline(shape(pipeline))).intervals[0].id
        old = (await zombie.acquire([first]))[first]
        reset(postgres.url, pipeline)
        assert (await successor.open_pipeline(shape(pipeline))).intervals[0].id == first
        new = (await successor.acquire([first]))[first]
        assert new != old
        assert (new + 1_000_000_000) << 32 < 1 << 63, "the numbers of its bundles are int64"
        assert await zombie.commit([LogWrite(first, old, Seq(1), 0, b"x")]) == set()
        assert await zombie.still_owned({first: old}) == set()
        assert await successor.still_owned({first: new}) == {first}
        assert await successor.commit([LogWrite(first, new, Seq(1), 0, b"y")]) == {(first, Seq(1))}
        await zombie.close()
        await successor.close()

    asyncio.run(main())
