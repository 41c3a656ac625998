"""A pipeline goes on under other `split_keys`, and with other shards: each record counts once, wherever the old run ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from millwheel import (
    Computation,
    Context,
    Gathering,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    subscribe,
)
from millwheel.committed import check
from millwheel.library import Combiner, Fixed, Flow, Pane, count
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from tests.integration.test_combiner_later import (
    DIRECT,
    DURABILITIES,
    TRUTH,
    Shops,
    Total,
    Touchy,
    counted,
    kills,
    merged,
    sales,
    shops,
    small_steps,
)
from tests.unit.runtime.mortal import run_killed

__all__ = ["small_steps"]

CUTS: list[tuple[Sequence[str], Sequence[str]]] = [
    (["4"], ["shop 1"]),
    (["2", "4"], []),
    ([], ["hot", "shop 1", "shop 3"]),
    (["2", "6"], ["bad", "i", "shop 1"]),
]
"""Split keys of `Relay` and of `Total`: some stay from one to the next, some go and some come."""


def version(name: str, at: int, durability: str, total: type[Total] = Total, shards: int = 0) -> Pipeline:
    combiner = Gathering(merged, shards=shards, every=2_000) if shards else None
    return shops(name, combiner, durability, total, *CUTS[at % len(CUTS)])


async def run(pipeline: Pipeline, store: MemoryStore) -> None:
    async with asyncio.timeout(60):
        await EmbeddedRun(pipeline.graph(), store, pipeline.tables).run()


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [*range(0, 120, 16), 3, 21, 45, 57])
def test_each_record_counts_once_wherever_the_run_before_ends(at: int, durability: str) -> None:
    """Three versions one after the other: the first is killed, and every third time the second is, too."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(version("shops", at, durability, Touchy), store, *kills(at))
        if at % 3 == 0:
            await run_killed(version("shops", at + 1, durability, Touchy), store, *kills(at * 7 % 140))
        await run(version("shops", at + 2, durability, Touchy), store)
        assert {place[1] for place in store.quarantine if place[0] == "Total"} == {"bad"}
        store.request_redrive("Total", "bad")
        await run(version("shops", at + 3, durability), store)
        assert not store.quarantine
        assert counted(store.key_state["Total"]) == TRUTH
        for computation, splits in zip(("Relay", "Total"), CUTS[(at + 3) % len(CUTS)], strict=True):
            assert [low for low, _ in store.by_low(computation)] == ["", *splits]
        assert store.tables()["production"] == []

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [*range(0, 120, 16), 3, 21, 45, 57])
def test_a_combiner_gets_other_shards(at: int, durability: str) -> None:
    """A row that is read again may go to another shard than before, which has not run it."""
    few, more, other = ((2, 5, 3), (5, 2, 4), (3, 7, 2))[at % 3]

    async def main() -> None:
        store = MemoryStore()
        await run_killed(version("shops", 0, durability, shards=few), store, *kills(at))
        if at % 2 == 0:
            await run_killed(version("shops", at, durability, shards=more), store, *kills(at * 7 % 140))
        await run(version("shops", 1, durability, shards=other), store)
        assert counted(store.key_state["Total"]) == TRUTH
        assert len(store.by_low("Total.parts")) == other
        assert store.tables()["production"] == []

    asyncio.run(main())


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str) -> Shops:
    return Shops(postgres.url, pipeline)


@pytest.mark.postgres
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("shards", [(0, 0), (3, 5)], ids=["split keys", "shards"])
@pytest.mark.parametrize(("durability", "at"), [("checkpoints", 33), ("checkpoints", 66), ("snapshots", 26)])
def test_on_postgres_too(place: Shops, durability: str, at: int, shards: tuple[int, int]) -> None:
    before, after = shards

    async def main() -> None:
        store = place.store()
        try:
            await run_killed(version(place.name, 0, durability, shards=before), store, *kills(at))
        finally:
            await store.close()
        then = version(place.name, 3, durability, shards=after)
        told = check(then, place.url)
        assert not told.refusals
        shards_told = ["combiner 'Total.parts' has 5 shards instead of 3"] if before else []
        assert sorted(told.changes) == [
            *shards_told,
            "computation 'Relay' is cut into intervals at ['2', '6'] instead of ['4']",
            "computation 'Total' is cut into intervals at ['bad', 'i', 'shop 1'] instead of ['shop 1']",
        ]
        store = place.store()
        try:
            async with asyncio.timeout(60):
                await EmbeddedRun(then.graph(), store, then.tables).run()
        finally:
            await store.close()
        assert check(then, place.url).changes == []
        assert place.times() == TRUTH
        assert place.tables()["production"] == []

    asyncio.run(main())


def keyed(at: int, durability: str, shift: int, key_version: str) -> Pipeline:
    """Each row goes to another key when `shift` is another."""
    pipeline = Pipeline("keyed", durability=DURABILITIES[durability]())
    pipeline.inject(IterableSource("direct", DIRECT), into=sales)
    key = subscribe(sales, lambda sale: f"k{(sale.numbers[0] + shift) % 6}", key_version=key_version)
    pipeline.add(Total, [key], name="Total", split_keys=["k2", "k4"], work_limit_records=8)
    return pipeline


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", range(0, 120, 16))
def test_a_row_counts_under_one_key_when_the_keys_change(at: int, durability: str) -> None:
    """What was read and is not known to be done is read again, and has another key then."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(keyed(at, durability, 0, ""), store, *kills(at))
        if at % 3 == 0:
            await run_killed(keyed(at, durability, 2, "by two"), store, *kills(at * 7 % 140))
        await run(keyed(at, durability, 3, "by three"), store)
        times = [n for entries in counted(store.key_state["Total"]).values() for n in entries.values()]
        assert times == [1] * len(DIRECT)

    asyncio.run(main())


panes = Stream("panes", MsgpackCoder(Pane[int]))


class Sum(Computation[Pane[int]]):
    """All values of a shop, whatever the window."""

    times = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[Pane[int]]) -> None:
        self.times.set("all", (self.times.get("all") or 0) + record.value.value)


def views(durability: str, shards: int) -> Pipeline:
    """Split between the shards of a shop, as a leader does with a hot key."""
    pipeline = Pipeline("views", durability=DURABILITIES[durability]())
    pipeline.inject(IterableSource("direct", DIRECT), into=sales)
    by_shop = Flow(pipeline).read(sales).key_by(lambda sale: sale.shop, ["bad#1", "hot#1", "hot#3", "shop 1#2"])
    by_shop.window(Fixed(minutes=1)).aggregate(count(), name="views", combiner=Combiner(shards=shards)).to(panes)
    pipeline.add(Sum, [subscribe(panes, lambda pane: pane.key)])
    return pipeline


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", range(0, 120, 16))
def test_the_shards_of_a_combiner_of_the_library_change(at: int, durability: str) -> None:
    few, other = ((2, 5), (5, 2), (3, 7))[at % 3]

    async def main() -> None:
        store = MemoryStore()
        await run_killed(views(durability, few), store, *kills(at))
        await run(views(durability, other), store)
        times = {shop: entries["all"] for shop, entries in counted(store.key_state["Sum"]).items()}
        assert times == Counter(sale.shop for sale, _ in DIRECT)

    asyncio.run(main())
