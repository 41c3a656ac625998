"""A pooler that gives sessions to others after each transaction is refused; one in session mode is not."""

from __future__ import annotations

import asyncio

import pytest

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, TextCoder, ValueCell, subscribe
from millwheel.committed import Committed
from millwheel.errors import StoreError
from millwheel.launch import run
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.pooler import pooler
from tests.unit.storage.samples import shape

pytestmark = pytest.mark.postgres

words = Stream("words", TextCoder())


class Count(Computation[str]):
    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.count.set(self.count.get() + 1)


def counting(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("rows", [("a", 1), ("b", 2), ("a", 3)]), into=words)
    pipeline.add(Count, [subscribe(words, str)])
    return pipeline


def test_sessions_that_are_shared_are_refused(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """They carry the schema of one pipeline to another: a checkpoint of the first was found in the log of the second."""
    with pooler(postgres.url, shares=True) as pool, pytest.raises(StoreError, match="pool_mode = session"):
        run(counting(pipeline), pool.url)


def test_a_pooler_whose_sessions_go_round_is_refused_too(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """The other session does not see the mark, but the one that set it does not either."""

    async def opened(url: str) -> None:
        store = PostgresStore(url, pipeline)
        try:
            await store.open_pipeline(shape(pipeline))
        finally:
            await store.close()

    with pooler(postgres.url, shares=True, oldest_first=True) as pool, pytest.raises(StoreError, match="pool_mode"):
        asyncio.run(opened(pool.url))


def test_a_pooler_in_session_mode_is_fine(postgres: EmbeddedPostgres, pipeline: str) -> None:
    with pooler(postgres.url, shares=False) as pool:
        assert run(counting(pipeline), pool.url).records == 3
        with Committed(counting(pipeline), pool.url) as committed:
            assert committed.state("Count", "a") == {"count": 2}
