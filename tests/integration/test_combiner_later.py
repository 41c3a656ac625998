"""A computation gets a combiner on a store that has run without one: each record counts once, wherever the old run ended."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import (
    SECOND,
    Checkpoints,
    Computation,
    Context,
    Gathering,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    limits,
    subscribe,
)
from millwheel.committed import check
from millwheel.core.source import injector
from millwheel.errors import Fenced
from millwheel.ports import Store
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from tests.integration.places import Place
from tests.unit.runtime.drive import Tap
from tests.unit.runtime.mortal import run_killed


class Sale(msgspec.Struct, frozen=True):
    """Of a shop; `numbers` are those of the rows in it."""

    shop: str
    numbers: list[int]


bills = Stream("bills", MsgpackCoder(Sale))
sales = Stream("sales", MsgpackCoder(Sale))

ROOT = Path(__file__).parents[2]
ROWS = 240
POISON = 42
"""The number of the row that the first version of the hook does not take: its shop is in quarantine from then on."""


def shop_of(number: int) -> str:
    return "hot" if number % 2 else f"shop {number % 5}" if number % 3 else "bad"


def merged(left: Sale, right: Sale) -> Sale:
    return Sale(left.shop, [*left.numbers, *right.numbers])


class Relay(Computation[Sale]):
    """Sends what it gets: `Total` has a producer that is no source."""

    def ProcessRecord(self, context: Context, record: Record[Sale]) -> None:
        context.produce(sales, record.value)


class Total(Computation[Sale]):
    """How often each row came."""

    times = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[Sale]) -> None:
        for number in record.value.numbers:
            self.times.set(str(number), (self.times.get(str(number)) or 0) + 1)


class Touchy(Total):
    """Does not take one row."""

    pause_s = 0.0003

    def ProcessRecord(self, context: Context, record: Record[Sale]) -> None:
        time.sleep(self.pause_s)  # so that some epochs pass
        if POISON in record.value.numbers:
            raise ValueError("poison")
        super().ProcessRecord(context, record)


# One third comes through `Relay`, from a source of its own.  Two thirds come directly, each with the id of a client, which
# sends every fourth row again, a while later.
RELAYED = [(Sale(shop_of(n), [n]), n * SECOND) for n in range(0, ROWS, 3)]
DIRECT = [(Sale(shop_of(n), [n]), n * SECOND) for n in range(ROWS) if n % 3]
AGAIN = [(sale, at + 20 * SECOND) for sale, at in DIRECT if sale.numbers[0] % 4 == 0]
SENT = sorted([*DIRECT, *AGAIN], key=lambda row: row[1])
TRUTH = {shop: {str(n): 1 for n in range(ROWS) if shop_of(n) == shop} for shop in map(shop_of, range(ROWS))}

DURABILITIES: dict[str, Callable[[], Checkpoints | Snapshots]] = {
    "checkpoints": Checkpoints,
    "snapshots": lambda: Snapshots(every_ms=10),
}


def shops(
    name: str, combiner: Gathering[Sale] | None, durability: str, total: type[Total] = Total,
    relay: Sequence[str] = ("4",), splits: Sequence[str] = ("shop 1",),
) -> Pipeline:  # fmt: skip
    pipeline = Pipeline(name, durability=DURABILITIES[durability]())
    pipeline.inject(IterableSource("relayed", RELAYED), into=bills)
    by_client = IterableSource("direct", SENT, record_id=lambda sale: str(sale.numbers[0]))
    pipeline.inject(by_client, into=sales)
    pipeline.add(Relay, [subscribe(bills, lambda sale: str(sale.numbers[0] % 7))], [sales], split_keys=relay)
    pipeline.add(
        total, [subscribe(sales, lambda sale: sale.shop)], name="Total", split_keys=splits, combiner=combiner,
        work_limit_records=8,
    )  # fmt: skip
    return pipeline


def gathering() -> Gathering[Sale]:
    return Gathering(merged, shards=3, every=2_000)


async def closed(store: Store, what: Any) -> Any:
    try:
        return await what
    finally:
        if isinstance(store, PostgresStore):
            await store.close()


async def run_on(pipeline: Pipeline, store: Store) -> None:
    async with asyncio.timeout(60):
        await closed(store, EmbeddedRun(pipeline.graph(), store, pipeline.tables).run())


def counted(state: dict[str, Any]) -> dict[str, dict[str, int]]:
    return {
        key: {entry: msgspec.json.decode(value) for (cell, entry), value in cells.items() if cell == "times"}
        for key, cells in state.items()
    }


def kills(at: int) -> tuple[int, bool]:
    return 1 + at // 2, bool(at % 2)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Few rows a read, and folds and positions that are near or far behind: there is more that may be on its way."""
    dice = random.Random(request.node.callspec.params["at"])
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", dice.choice([3, 9, 20]))
    monkeypatch.setattr(injector, "FIRST_READ_ROWS", 3)
    monkeypatch.setattr(injector, "ADVANCE_DELAY_US", dice.choice([1_000, 100_000]))
    monkeypatch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", dice.choice([2, 8, 1_000]))


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [*range(0, 120, 8), 3, 21, 45, 57])
def test_each_record_counts_once_wherever_the_run_without_it_ends(at: int, durability: str) -> None:
    """Killed before or after the store has taken a write.  Every third time, the first run with it is killed as well."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(shops("shops", None, durability, Touchy), store, *kills(at))
        if at % 3 == 0:
            await run_killed(shops("shops", gathering(), durability, Touchy), store, *kills(at * 7 % 140))
        await run_on(shops("shops", gathering(), durability, Touchy), store)
        assert {place[1] for place in store.quarantine if place[0] == "Total"} == {"bad"}
        store.request_redrive("Total", "bad")
        await run_on(shops("shops", gathering(), durability), store)
        assert not store.quarantine
        assert counted(store.key_state["Total"]) == TRUTH
        assert store.tables()["production"] == []

    asyncio.run(main())


class Hop(msgspec.Struct, frozen=True):
    """What goes round: (number of a row, rounds that are left)."""

    key: str
    legs: list[tuple[int, int]]


HOPPERS, ROUNDS = 120, 3
hops = Stream("hops", MsgpackCoder(Hop))
sent = Stream("sent", MsgpackCoder(Hop))


class Round(Computation[Hop]):
    """How often each leg came; the head of the loop."""

    times = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[Hop]) -> None:
        time.sleep(0.0003)
        for number, left in record.value.legs:
            leg = f"{number}.{left}"
            self.times.set(leg, (self.times.get(leg) or 0) + 1)
            if left:
                context.produce(sent, Hop(f"k{(number + left) % 5}", [(number, left - 1)]))


class Back(Computation[Hop]):
    def ProcessRecord(self, context: Context, record: Record[Hop]) -> None:
        context.produce(hops, record.value)


def looped(durability: str, combined: bool) -> Pipeline:
    pipeline = Pipeline("loop", durability=DURABILITIES[durability]())
    rows = [(Hop(f"k{n % 5}", [(n, ROUNDS)]), n * SECOND) for n in range(HOPPERS)]
    pipeline.inject(IterableSource("rows", rows), into=hops)
    combiner = Gathering[Hop](lambda left, right: Hop(left.key, [*left.legs, *right.legs]), shards=3, every=2_000)
    pipeline.add(
        Round,
        [subscribe(hops, lambda hop: hop.key)],
        [sent],
        split_keys=["k2"],
        combiner=combiner if combined else None,
    )
    pipeline.add(Back, [subscribe(sent, lambda hop: hop.key)], [hops], split_keys=["k3"])
    return pipeline


def each_leg_came_once(store: MemoryStore) -> None:
    counts: dict[str, int] = {}
    for entries in counted(store.key_state["Round"]).values():
        counts |= entries
    assert counts == {f"{number}.{left}": 1 for number in range(HOPPERS) for left in range(ROUNDS + 1)}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [15, 25, 40, 55])
def test_in_a_loop_too(at: int, durability: str) -> None:
    """Under snapshots its head has stored what was on its way round as sent to itself."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(looped(durability, False), store, *kills(at))
        await run_on(looped(durability, True), store)
        each_leg_came_once(store)

    asyncio.run(main())


async def ends_as_it_must(place: Shops, durability: str, combiner: Gathering[Sale] | None) -> None:
    """Another version goes on, the quarantine is redriven, and each row has counted once."""
    await run_on(shops(place.name, combiner, durability, Touchy), place.store())
    with Reader(place.url, place.name) as reader:
        assert [key for _, key, _ in reader.quarantined()] == ["bad"]
        reader.request_redrive("Total", "bad")
    await run_on(shops(place.name, combiner, durability), place.store())
    assert place.times() == TRUTH
    assert place.tables()["production"] == place.tables()["quarantine"] == []


class Shops(Place):
    """Where the pipeline of a test is."""

    def times(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        with Reader(self.url, self.name) as reader:
            for row in reader.scan_state("Total"):
                found.setdefault(row.key, {})[row.entry] = msgspec.json.decode(row.value)
        return found


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str) -> Shops:
    return Shops(postgres.url, pipeline)


ON_POSTGRES = [("checkpoints", 33), ("checkpoints", 66), ("snapshots", 9), ("snapshots", 26)]


@pytest.mark.postgres
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("durability", "at"), [("checkpoints", 33), ("checkpoints", 66), ("snapshots", 9), ("snapshots", 26)]
)
def test_on_postgres_too(place: Shops, durability: str, at: int) -> None:
    async def main() -> None:
        store = place.store()
        await closed(store, run_killed(shops(place.name, None, durability, Touchy), store, *kills(at)))
        told = check(shops(place.name, gathering(), durability), place.url)
        assert told.changes == [
            "computation 'Total' gets a combiner, 'Total.parts', which takes over what is on its way to it"
        ]
        assert not told.refusals
        await ends_as_it_must(place, durability, gathering())

    asyncio.run(main())


@pytest.mark.postgres
@pytest.mark.chaos
@pytest.mark.parametrize("durability", DURABILITIES)
def test_after_kill_9(place: Shops, durability: str) -> None:
    started = subprocess.Popen([sys.executable, "-m", __name__, place.url, place.name, durability], cwd=ROOT)
    with psycopg.connect(place.url, autocommit=True) as connection:
        while not _has_begun(connection, place.name):
            assert started.poll() is None
            time.sleep(0.01)
    started.kill()
    started.wait()
    asyncio.run(ends_as_it_must(place, durability, gathering()))


def _has_begun(connection: psycopg.Connection[Any], schema: str, rows: int = 40) -> bool:
    """Whether the run has gone past so many rows of its sources."""
    try:
        query = sql.SQL("SELECT sum(position) >= %s FROM {}.source").format(sql.Identifier(schema))
        return connection.execute(query, (rows,)).fetchone() == (True,)
    except psycopg.errors.UndefinedTable:
        return False


@pytest.mark.postgres
def test_a_run_without_it_that_is_still_there_writes_nothing_any_more(place: Shops) -> None:
    def tapped(tap: Tap, combiner: Gathering[Sale] | None) -> Pipeline:
        pipeline = Pipeline(place.name)
        pipeline.inject(tap, into=sales)
        pipeline.add(Total, [subscribe(sales, lambda sale: sale.shop)], combiner=combiner)
        return pipeline

    async def main() -> None:
        tap = Tap(rows=DIRECT[:20])
        old, store = tapped(tap, None), place.store()
        zombie = asyncio.ensure_future(EmbeddedRun(old.graph(), store, old.tables).run())
        with psycopg.connect(place.url, autocommit=True) as connection:
            while not _has_begun(connection, place.name, 1):
                await asyncio.sleep(0.01)
        other = place.store()
        await other.open_pipeline(tapped(tap, gathering()).graph().shape())
        await other.close()
        tap.rows += DIRECT[20:40]
        with pytest.raises(Fenced):
            await asyncio.wait_for(zombie, 120)
        await store.close()
        tap.closed = True
        await run_on(tapped(tap, gathering()), place.store())

    asyncio.run(main())
    counts = [n for entries in place.times().values() for n in entries.values()]
    assert counts == [1] * 40


if __name__ == "__main__":
    Touchy.pause_s = 0.005
    vars(injector).update(FIRST_READ_ROWS=3, READ_LIMIT_ROWS=9)
    asyncio.run(run_on(shops(sys.argv[2], None, sys.argv[3], Touchy), PostgresStore(sys.argv[1], sys.argv[2])))
