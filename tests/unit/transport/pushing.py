"""A whole pipeline that clients push to, in one event loop, on the memory store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from millwheel import Computation, JsonCoder, MapCell, Pipeline, Stream, ValueCell, subscribe
from millwheel.api.snapshots import Checkpoints, Snapshots
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import PushSource
from millwheel_storage.memory import MemoryStore
from tests.unit.transport.network import until
from tests.unit.transport.test_local import cells

ORDERS: Stream[Any] = Stream("orders", JsonCoder(dict[str, Any]))


class Ledger(Computation[dict[str, Any]]):
    """What was counted, and which records: one too many and one too few cannot cancel out."""

    count = ValueCell(JsonCoder(int), default=0)
    ids = MapCell(JsonCoder(int))

    def ProcessRecord(self, context, record):  # type: ignore[no-untyped-def]
        self.count.set(self.count.get() + 1)
        name = record.value["id"]
        self.ids.set(name, self.ids.get(name, 0) + 1)


def key_of(value: dict[str, Any]) -> str:
    return str(value["key"])


def pipeline_of(source: PushSource[Any], durability: Checkpoints | Snapshots | None = None) -> Pipeline:
    pipeline = Pipeline("pushed", durability=durability)
    pipeline.inject(source, into=ORDERS)
    pipeline.add(Ledger, [subscribe(ORDERS, key=key_of)], split_keys=["k5"])
    return pipeline


@asynccontextmanager
async def running(
    store: MemoryStore, source: PushSource[Any], durability: Checkpoints | Snapshots | None = None
) -> AsyncIterator[EmbeddedRun]:
    """A run that lets clients in at `source.address`."""
    pipeline = pipeline_of(source, durability)
    run = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
    source.address = ""
    task = asyncio.create_task(run.run())
    try:
        await until(lambda: source.address or task.done())
        yield run
    finally:
        run.stop()
        await asyncio.wait([task])
    task.result()


def record(number: int) -> tuple[str, bytes, int]:
    value = f'{{"id":"r{number}","key":"k{number % 10}"}}'
    return f"r{number}", value.encode(), 1_000_000 * number + 1


async def check_ledger(store: MemoryStore, records: int) -> None:
    """Each record has counted once, by its id and in the sum.  A run's start folds what the last one has left."""
    async with running(store, PushSource(ORDERS, "127.0.0.1:0")):
        pass
    found = cells(store, "Ledger")
    assert found.keys() == {f"k{number}" for number in range(min(10, records))}
    ids: dict[str, int] = {}
    for key, ledger in found.items():
        own = {name[4:-1]: count for name, count in ledger.items() if name.startswith("ids[")}
        assert ledger["count"] == len(own), key
        ids |= own
    assert ids == {f"r{number}": 1 for number in range(records)}
