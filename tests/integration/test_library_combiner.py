"""An aggregation gets a combiner of the library, or loses it, on a store that has run: each record counts once in each of its
windows, wherever the old run ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from millwheel import (
    MAX_TIME,
    SECOND,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    subscribe,
)
from millwheel.committed import check
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Combiner,
    EveryRecords,
    Fixed,
    Flow,
    Pane,
    Sliding,
    collect,
    last,
    seconds,
    sum_of,
)
from millwheel.library.aggregations import aggregation
from millwheel.library.panes import PaneTime
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres.reader import Reader
from tests.integration.places import Place
from tests.integration.test_combiner_later import DURABILITIES, closed, kills, run_on, small_steps
from tests.unit.runtime.mortal import PassedAndNotTold, SentAndNotTaken, run_killed, run_mortal

__all__ = ["small_steps"]


class Sale(msgspec.Struct, frozen=True):
    """Of a shop, with the number of its row."""

    shop: str
    number: int


raw = Stream("raw", MsgpackCoder(Sale))
sales = Stream("sales", MsgpackCoder(Sale))
relayed = Stream("relayed", MsgpackCoder(Sale))
late = Stream("late", MsgpackCoder(Sale))
fixed = Stream("fixed", MsgpackCoder(Pane[Any]))
sliding = Stream("sliding", MsgpackCoder(Pane[Any]))

ROWS, SIZE, STEP = 120, 10 * SECOND, 5 * SECOND
POISON = 42
"""The number of the row that the first version does not take: its shop is in quarantine from then on."""


def shop_of(number: int) -> str:
    return "hot" if number % 2 else f"shop {number % 5}" if number % 3 else "bad"


def is_late(number: int) -> bool:
    return number % 7 == 3


def time_of(number: int) -> int:
    return number * SECOND // 3 - (12 * SECOND if is_late(number) else 0)


SALES = [(Sale(shop_of(n), n), time_of(n)) for n in range(ROWS)]
# A third comes through `Relay`, from a source of its own.  The others come directly, each with the id of a client, which
# sends every fourth row again, a while later.
RELAYED = [row for row in SALES if row[0].number % 3 == 0]
DIRECT = [row for row in SALES if row[0].number % 3]
AGAIN = [(n + 20, row) for n, row in enumerate(DIRECT) if row[0].number % 4 == 0]
SENT = [row for _, row in sorted([*enumerate(DIRECT), *AGAIN], key=lambda placed: placed[0])]


class Relay(Computation[Sale]):
    """Sends what it gets: the aggregation has a producer that is no source."""

    def ProcessRecord(self, context: Context, record: Record[Sale]) -> None:
        context.produce(relayed, record.value)


class Seen(Computation[Any]):
    """All that came, in order."""

    came = ListCell(JsonCoder(list[Any]))

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        it = record.value
        self.came.append([it.timing, it.value] if isinstance(it, Pane) else ["dropped", it.number])


def window_of(pane: Pane[Any]) -> str:
    return f"{pane.key} {pane.start}"


def touchy(sale: Sale) -> int:
    time.sleep(0.0003)  # so that some epochs pass
    if sale.number == POISON:
        raise ValueError("poison")
    return sale.number


def calm(sale: Sale) -> int:
    return sale.number


AGGREGATIONS: dict[str, Callable[[], Aggregation[Sale, Any, Any]]] = {
    "sum": lambda: sum_of(lambda sale: sale.number),
    "last": lambda: last(int, lambda sale: sale.number),
    "set": lambda: aggregation(
        "set", set, lambda a, sale: a | {sale.number}, lambda a, b: a | b, sorted, MsgpackCoder(set[int]), list[int]
    ),
}
"""Of sliding windows: one subtracts, one is kept in two stacks, one is merged anew for each window."""
AGGREGATIONS["early"] = AGGREGATIONS["sum"]
"""With a trigger that counts, so that each window has an accumulator."""
RESULTS: dict[str, Callable[[list[int]], Any]] = {"sum": sum, "last": max, "set": sorted, "early": sum}


def views(
    name: str, shards: int | None, durability: str, of: Callable[[Sale], int] = calm, kind: str = "sum",
    stamp: PaneTime = "end",
) -> Pipeline:  # fmt: skip
    """Windows with late records of all that is sold, and sliding windows of what is punctual."""
    pipeline = Pipeline(name, durability=DURABILITIES[durability]())
    by_client = IterableSource("direct", lambda: SENT, record_id=lambda sale: str(sale.number))
    pipeline.inject(by_client, into=sales)
    pipeline.inject(IterableSource("relayed", lambda: RELAYED), into=raw)
    pipeline.add(Relay, [subscribe(raw, lambda sale: str(sale.number % 7))], [relayed], split_keys=["4"])
    flow = Flow(pipeline)
    both = flow.read(sales).union(flow.read(relayed))
    combiner = None if shards is None else Combiner(shards)
    keyed = both.key_by(lambda sale: sale.shop, ["shop 1"])
    keyed.window(Fixed(SIZE), lateness=seconds(5), time=stamp).aggregate(
        collect(int, of), name="views", dropped=late, combiner=combiner
    ).to(fixed)
    punctual = both.filter(lambda sale: not is_late(sale.number)).key_by(lambda sale: sale.shop, ["shop 1"])
    trigger = AtWatermark(EveryRecords(2) if kind == "early" else None)
    punctual.window(Sliding(SIZE, every=STEP), trigger).aggregate(
        AGGREGATIONS[kind](), name="last", combiner=combiner
    ).to(sliding)
    pipeline.add(Seen, [subscribe(fixed, window_of), subscribe(late, lambda sale: sale.shop)])
    pipeline.add(Seen, [subscribe(sliding, window_of)], name="Sliding")
    return pipeline


Came = dict[str, list[Any]]


def in_memory(store: MemoryStore, computation: str) -> Came:
    return {
        key: [msgspec.json.decode(value) for (cell, entry), value in sorted(slots.items()) if cell == "came" and entry]
        for key, slots in store.key_state[computation].items()
    }


def starts(at: int, step: int = SIZE) -> Iterator[int]:
    """Of the windows that an event time is in."""
    first = at // step * step
    yield from (start for start in (first - SIZE + step, first) if start <= at < start + SIZE)


def truth(rows: Mapping[int, int], step: int) -> dict[str, list[int]]:
    """The numbers in each window of each shop, by `window_of`."""
    found: dict[str, list[int]] = {}
    for number, at in rows.items():
        for start in dict.fromkeys(starts(at, step)):
            found.setdefault(f"{shop_of(number)} {start}", []).append(number)
    return found


ALL = {n: time_of(n) for n in range(ROWS)}
PUNCTUAL = {n: at for n, at in ALL.items() if not is_late(n)}


def each_counts_once(came: Came, of_sliding: Came, kind: str) -> None:
    """In its window, or as dropped; and at the end of the window already, if it was not late."""
    dropped = [number for panes in came.values() for timing, number in panes if timing == "dropped"]
    assert len({*dropped}) == len(dropped)
    for window, numbers in truth(ALL, SIZE).items():
        panes = [(timing, value) for timing, value in came.get(window, []) if timing != "dropped"]
        late = {*numbers}.intersection(dropped)
        assert [timing for timing, _ in panes].count("on time") <= 1, window
        if window.startswith("bad"):  # a shard that was in quarantine gives what it has had by itself
            assert {n for _, value in panes for n in value} == {*numbers} - late, window
        else:
            assert sorted([*(panes[-1][1] if panes else ()), *late]) == numbers, (window, panes, late)
            assert {n for n in numbers if not is_late(n)} <= {*(panes[0][1] if panes else ())}, window
    expected = {window: [["on time", RESULTS[kind](rows)]] for window, rows in truth(PUNCTUAL, STEP).items()}
    found = {
        window: [pane for pane in panes if pane[0] != "early"]
        for window, panes in of_sliding.items()
        if not window.startswith("bad")
    }
    assert found == {window: panes for window, panes in expected.items() if not window.startswith("bad")}


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("then", DURABILITIES)
@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("comes", [False, True])
# First those in which each planted bug is seen.
@pytest.mark.parametrize(
    ("at", "kind"), [(123, "sum"), (74, "sum"), (5, "set"), (18, "sum"), (51, "last"), (33, "early")]
)
def test_each_record_counts_once_wherever_the_run_before_ends(
    at: int, kind: str, comes: bool, durability: str, then: str
) -> None:
    """Every second time it has gone or come before; every third time, the first run after the change is killed as well."""

    async def main() -> None:
        store = MemoryStore()
        before, after = (None, 3) if comes else (3, None)
        if at % 2:  # it has been as it is going to be
            await run_killed(views("views", after, durability, touchy, kind), store, *kills(at * 5 % 70))
        await run_killed(views("views", before, durability, touchy, kind), store, *kills(at))
        if at % 3 == 0:
            await run_killed(views("views", after, then, touchy, kind), store, *kills(at * 7 % 140))
        await run_on(views("views", after, then, touchy, kind), store)
        for computation, key in [place for place in store.quarantine if place[0].startswith("views")]:
            store.request_redrive(computation, key)
        await run_on(views("views", after, then, calm, kind), store)
        assert not store.quarantine
        each_counts_once(in_memory(store, "Seen"), in_memory(store, "Sliding"), kind)
        for step in ("views", "last", "views.parts", "last.parts"):
            assert (store.key_state.get(step, {}), store.folded.timers.get(step, {})) == ({}, {}), step
        assert comes or not store.by_low("views.parts")
        assert store.tables()["production"] == []

    asyncio.run(main())


@pytest.mark.parametrize("step", ["views", "last"])
def test_what_shards_have_sent_and_nobody_has_taken_counts_when_the_combiner_goes(step: str) -> None:
    async def main() -> None:
        store = MemoryStore()
        mortal = SentAndNotTaken(store, f"{step}.parts")
        assert await run_mortal(views("views", 3, "checkpoints"), mortal)
        assert store.tables()["production"] or store.log
        await run_on(views("views", None, "checkpoints"), store)
        each_counts_once(in_memory(store, "Seen"), in_memory(store, "Sliding"), "sum")

    asyncio.run(main())


@pytest.mark.parametrize("at", [2 * SIZE, MAX_TIME])
def test_what_a_shard_has_had_in_time_is_in_time_although_the_watermark_has_passed_when_the_combiner_goes(
    at: int,
) -> None:
    async def main() -> None:
        store = MemoryStore()
        mortal = PassedAndNotTold(store, ["source:direct", "Relay"], at)
        assert await run_mortal(views("views", 3, "checkpoints"), mortal)
        assert store.tables()["timer"] or store.log, "the windows that have ended wait for their timers"
        await run_on(views("views", None, "checkpoints"), store)
        each_counts_once(in_memory(store, "Seen"), in_memory(store, "Sliding"), "sum")

    asyncio.run(main())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("stamp", ["earliest", "latest"])
@pytest.mark.parametrize(("at", "durability"), [(18, "checkpoints"), (34, "snapshots"), (52, "checkpoints")])
def test_a_combiner_may_come_and_go_with_another_time_of_panes(stamp: PaneTime, at: int, durability: str) -> None:
    """With a combiner panes have the time of the end.  Nothing keeps the watermark for what had another time."""

    async def main() -> None:
        store = MemoryStore()
        await run_killed(views("views", None, durability, touchy, stamp=stamp), store, *kills(at))
        await run_killed(views("views", 3, durability, touchy), store, *kills(at))
        await run_killed(views("views", None, durability, touchy, stamp=stamp), store, *kills(at))
        await run_on(views("views", 3, durability, touchy), store)
        for computation, key in [place for place in store.quarantine if place[0].startswith("views")]:
            store.request_redrive(computation, key)
        await run_on(views("views", 3, durability), store)
        each_counts_once(in_memory(store, "Seen"), in_memory(store, "Sliding"), "sum")
        for step in ("views", "last", "views.parts", "last.parts"):
            assert (store.key_state.get(step, {}), store.folded.timers.get(step, {})) == ({}, {}), step

    asyncio.run(main())


class Views(Place):
    """Where the pipeline of a test is."""

    def came(self, computation: str) -> Came:
        found: Came = {}
        with Reader(self.url, self.name) as reader:
            for row in reader.scan_state(computation):
                if row.cell == "came" and row.entry:
                    found.setdefault(row.key, []).append(msgspec.json.decode(row.value))
        return found


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str) -> Views:
    return Views(postgres.url, pipeline)


@pytest.mark.postgres
@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize(
    ("comes", "durability", "at"), [(True, "checkpoints", 33), (False, "checkpoints", 66), (False, "snapshots", 26)]
)
def test_on_postgres_too(place: Views, comes: bool, durability: str, at: int) -> None:
    async def main() -> None:
        before, after = (None, 3) if comes else (3, None)
        store = place.store()
        await closed(store, run_killed(views(place.name, before, durability, touchy), store, *kills(at)))
        told = check(views(place.name, after, durability), place.url)
        assert not told.refusals
        assert told.changes == [
            f"computation {name!r} "
            + (
                f"gets a combiner, '{name}.parts', which takes over what is on its way to it"
                if comes
                else f"has no combiner any more, and takes over what '{name}.parts' has"
            )
            for name in ("last", "views")
        ]
        await run_on(views(place.name, after, durability, touchy), place.store())
        with Reader(place.url, place.name) as reader:
            for name in ("views", "views.parts"):
                for _, key, _ in [row for row in reader.quarantined() if row[0] == name]:
                    reader.request_redrive(name, key)
        await run_on(views(place.name, after, durability), place.store())
        each_counts_once(place.came("Seen"), place.came("Sliding"), "sum")
        assert place.tables()["production"] == place.tables()["quarantine"] == []

    asyncio.run(main())
