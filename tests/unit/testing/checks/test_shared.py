"""The watched store of a cluster answers whatever processes ask a store."""

from __future__ import annotations

import asyncio
import inspect
from unittest.mock import patch

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.cluster import Leader, Placement, Reshaping
from millwheel.model import SECOND
from millwheel.ports import ClusterStore
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.world.kernel import Kernel, Violation
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from millwheel_storage.memory.agreements import MemoryAgreements


def test_the_watched_store_has_every_method_of_a_cluster_store() -> None:
    asked = {name for name, _ in inspect.getmembers(ClusterStore, inspect.isfunction) if not name.startswith("_")}
    assert {name for name in asked if not hasattr(SharedWatchedStore, name)} == set()


class Keep(Computation[str]):
    """Does nothing."""

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


@pytest.mark.parametrize("what", ["placement", "split"])
def test_a_decision_about_an_older_map_that_a_store_carries_out_is_a_breach(what: str) -> None:
    words = Stream("words", TextCoder())
    pipeline = Pipeline("kept")
    pipeline.inject(IterableSource("text", [("to", 0)]), into=words)
    pipeline.add(Keep, [subscribe(words, key=str)])
    kernel = Kernel(1)
    inner = MemoryStore(lambda: kernel.now)
    store = SharedWatchedStore(inner, pipeline.graph(), kernel)

    async def decide(seen: int) -> None:
        found = await store.cluster_map()
        interval = found.intervals[0].id
        if what == "placement":
            await store.place(Placement(leader.epoch, found.version - seen, {interval: worker}, {}))
        else:
            await store.reshape(Reshaping(leader.epoch, found.version - seen, (interval,), ("m",)))

    async def prepare() -> tuple[Leader, int]:
        await store.open_pipeline(pipeline.graph().shape())
        controller = await store.join("controller", "controller", "here:1", SECOND, b"1")
        member = await store.join("worker", "worker", "here:2", SECOND, b"2")
        leads = await store.lead(controller.incarnation, SECOND)
        assert leads is not None
        return leads, member.incarnation

    leader, worker = asyncio.run(prepare())
    asyncio.run(decide(2))  # refused
    with (
        patch.object(MemoryAgreements, "current", lambda self, decision: True),
        pytest.raises(Violation, match=r"I13: version .* of the map was decided on version .*: what came between"),
    ):
        asyncio.run(decide(2))
