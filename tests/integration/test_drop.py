"""A computation is taken out of a pipeline that has run: what it has sent counts once, and nothing else of it is left."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

import msgspec
import pytest

from millwheel import Computation, Context, JsonCoder, MsgpackCoder, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.committed import check
from millwheel.errors import IncompatibleStore
from millwheel.model import SECOND
from millwheel.ports import Store
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from tests.integration.places import Place
from tests.integration.test_combiner_later import DURABILITIES, kills, small_steps
from tests.unit.runtime.mortal import run_killed

__all__ = ["small_steps"]


class Item(msgspec.Struct, frozen=True):
    """Row `number`, as `of` has sent it."""

    number: int
    of: str = "source"


rows = Stream("rows", MsgpackCoder(Item))
middle = Stream("middle", MsgpackCoder(Item))
last = Stream("last", MsgpackCoder(Item))

ROWS = 240
ALL = [(Item(number), number * SECOND) for number in range(ROWS)]


def key_of(item: Item) -> str:
    return f"k{item.number % 7}"


class Sender(Computation[Item]):
    """Sends each row on, and rings as long as there are rows."""

    sent = ValueCell(JsonCoder(int), default=0)

    def __init__(self, to: Stream[Item], name: str) -> None:
        self.to, self.name = to, name

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        self.sent.set(self.sent.get() + 1)
        context.produce(self.to, Item(record.value.number, self.name))
        context.set_timer("later", record.timestamp + 50 * SECOND)

    def ProcessTimer(self, context: Context, timer: object) -> None:
        pass


class Sum(Computation[Item]):
    """How often something came of whom, and whether any of it came late."""

    times = ValueCell(JsonCoder(dict[str, int]), default={})

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        late = record.timestamp < context.watermark
        of = f"late {record.value.of}" if late else record.value.of
        self.times.set({**self.times.get(), of: self.times.get().get(of, 0) + 1})


def sender(to: Stream[Item], name: str) -> Callable[[], Sender]:
    return lambda: Sender(to, name)


def version(name: str, durability: str, goes: bool) -> Pipeline:
    """rows -> Relay -> middle -> Extra -> last -> Sum, and rows -> Direct -> last.  `Extra` goes, or it and its sender."""
    pipeline = Pipeline(name, durability=DURABILITIES[durability]())
    pipeline.inject(IterableSource("src", ALL), into=rows)
    pipeline.add(sender(middle, "Relay"), [subscribe(rows, key_of)], [middle], name="Relay", split_keys=["k3"])
    pipeline.add(sender(last, "Direct"), [subscribe(rows, key_of)], [last], name="Direct", work_limit_records=8)
    if goes:
        pipeline.drop("Extra")
    else:
        pipeline.add(sender(last, "Extra"), [subscribe(middle, key_of)], [last], name="Extra", split_keys=["k2", "k5"])
    pipeline.add(Sum, [subscribe(last, key_of)], split_keys=["k4"], work_limit_records=8)
    return pipeline


async def run(pipeline: Pipeline, store: Store) -> None:
    async with asyncio.timeout(60):
        await EmbeddedRun(pipeline.graph(), store, pipeline.tables).run()


def folded(store: MemoryStore) -> MemoryStore:
    """A copy of what counts, of which all logs are folded."""
    found: MemoryStore = copy.deepcopy(store)
    for interval in sorted({place[0] for place in found.log}):
        found.fold_log(found.row(interval))
    return found


def sent(store: MemoryStore, computation: str) -> int:
    state = folded(store).key_state.get(computation, {})
    return sum(msgspec.json.decode(cells["sent", ""]) for cells in state.values() if ("sent", "") in cells)


def came(store: MemoryStore) -> dict[str, int]:
    found: dict[str, int] = {}
    for cells in store.key_state["Sum"].values():
        for of, count in msgspec.json.decode(cells["times", ""]).items():
            found[of] = found.get(of, 0) + count
    return found


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("then", DURABILITIES)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("at", [*range(4, 160, 48), 3, 21, 45])
def test_what_it_has_sent_counts_once_wherever_the_run_before_ends(at: int, durability: str, then: str) -> None:
    """And nothing of it comes late.  Every third time the first run without it is killed, too."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(version("shops", durability, False), store, *kills(at))
        expected = sent(store, "Extra")
        if at % 3 == 0:
            await run_killed(version("shops", then, True), store, *kills(at * 7 % 140))
        await run(version("shops", then, True), store)
        extra = {"Extra": expected} if expected else {}
        assert came(store) == {"Direct": ROWS, **extra}
        assert "Extra" not in store.key_state
        assert not store.by_low("Extra")
        assert store.tables()["production"] == []

    asyncio.run(main())


@pytest.mark.postgres
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(("durability", "at"), [("checkpoints", 40), ("checkpoints", 77), ("snapshots", 30)])
def test_on_postgres_too(postgres: EmbeddedPostgres, pipeline: str, durability: str, at: int) -> None:
    place = Place(postgres.url, pipeline)

    async def with_store(what: Callable[[Store], object]) -> None:
        store = place.store()
        try:
            await what(store)  # type: ignore[misc]
        finally:
            await store.close()

    async def main() -> None:
        await with_store(lambda store: run_killed(version(pipeline, durability, False), store, *kills(at)))
        then = version(pipeline, durability, True)
        told = check(then, place.url)
        assert (told.refusals, told.changes) == (
            [],
            ["computation 'Extra' is dropped, with its state, its timers and what is on its way to it"],
        )
        await with_store(lambda store: run(then, store))
        assert check(then, place.url).changes == []
        found = dict.fromkeys(("Direct", "Extra"), 0)
        for cells in place.cells("Sum").values():
            for of, count in cells["times"].items():
                found[of] += count
        assert found["Direct"] == ROWS
        assert found["Extra"] <= ROWS
        assert place.tables()["production"] == []
        undeclared = Pipeline(pipeline)
        undeclared.inject(IterableSource("src", ALL), into=rows)
        undeclared.add(Sum, [subscribe(rows, key_of)])
        with pytest.raises(IncompatibleStore, match=r"pipeline\.drop\('Direct'\)"):
            await with_store(lambda store: run(undeclared, store))

    asyncio.run(main())
