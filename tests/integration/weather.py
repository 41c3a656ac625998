"""What a storm is made of: rows that a seed draws, runs that are killed, and all that came out of each step.

Lives here: the input, what a kind of step is asked to add and to check, and the storm.  Never here: what the steps mean
(`storm_windows` and others), the store that kills and delays (`mortal`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
import pytest

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    limits,
    subscribe,
)
from millwheel.core.source import injector
from millwheel.library import Chain, Flow, KeyedChain
from millwheel.ports import Store
from millwheel_injectors import BoundedDisorder, IterableSource
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from tests.integration.test_combiner_later import DURABILITIES, kills
from tests.unit.runtime.mortal import NEVER, Delays, run_killed

SIZE, DISORDER = 10 * SECOND, 3 * SECOND
START = 1_774_738_770 * SECOND
"""Half a minute before a Sunday in March 2026 on which Berlin's day has 23 hours."""
SHOPS = ("hot", "hot", "hot", "s", "shop 1", "shop 2", "quiet")


class Item(msgspec.Struct, frozen=True, array_like=True):
    """Number `number` in the order of arrival; one that is late is further behind than its source has promised."""

    shop: str
    number: int
    time: int
    late: bool


class Out(NamedTuple):
    """What came out of a step: its event time, whether it was late, and its text."""

    at: int
    late: bool
    value: Any


Came = dict[str, list[Out]]
"""By what kinds of steps call their results, and `name_dropped` for what they dropped."""

items = Stream("items", MsgpackCoder(Item))


def drawn_items(dice: random.Random, count: int = 90, late_share: float = 0.1) -> list[Item]:
    """In order of arrival, with equal times, the first and the last instants of windows, silences, and late rows."""
    found: list[Item] = []
    clock = START
    for number in range(count):
        step = dice.choice(["none", "us", "some", "some", "some", "edge", "last", "gap"])
        if step == "edge":
            clock += -clock % (5 * SECOND)
        elif step == "last":
            clock += -(clock + 1) % (5 * SECOND)
        else:
            clock += {"none": 0, "us": 1, "some": dice.randrange(2 * SECOND), "gap": 4 * SECOND}[step]
        late = dice.random() < late_share and clock > START + 60 * SECOND
        behind = dice.choice([0, 0, dice.randrange(DISORDER), DISORDER])
        time = clock - (DISORDER + dice.randrange(1, 40 * SECOND) if late else behind)
        found.append(Item(dice.choice(SHOPS), number, time, late))
    return found


def punctual(rows: Iterable[Item]) -> list[Item]:
    return [it for it in rows if not it.late]


def by_shop(rows: Iterable[Item]) -> dict[str, list[Item]]:
    found: dict[str, list[Item]] = defaultdict(list)
    for it in rows:
        found[it.shop].append(it)
    return found


class Seen(Computation[Any]):
    """All that came from a step, in order, under `out`; what it has dropped, under `dropped`."""

    came = ListCell(JsonCoder(list[Any]))

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        it = record.value
        self.came.append([record.timestamp, record.late, it.number if isinstance(it, Item) else it])


class Ground:
    """A pipeline in the making, the run that it is for, and its chains."""

    def __init__(self, pipeline: Pipeline, rows: Sequence[Item], run: int, last: bool, splits: Sequence[str]) -> None:
        self.pipeline, self.flow, self.run, self.last, self.splits = pipeline, Flow(pipeline), run, last, splits
        self.rows = rows
        self.everyone = self.keyed(self.flow.read(items))
        chain = self.flow.read(items).filter(lambda it: not it.late)
        self.punctual = self.keyed(chain)
        self.left, self.right = map(self.keyed, chain.branch(lambda it: is_left(it)))
        chain = self.flow.read(items)
        self.all_left, self.all_right = map(self.keyed, chain.branch(lambda it: is_left(it)))

    def keyed(self, chain: Chain[Item]) -> KeyedChain[Item]:
        return chain.key_by(lambda it: it.shop, self.splits)

    def dropped(self, name: str) -> Stream[Item]:
        return Stream(f"{name}_dropped", MsgpackCoder(Item))

    def gives(self, name: str, chain: Chain[Any], text: Callable[[Any], Any]) -> None:
        """The results of a step, as text that an oracle reads."""
        out = Stream(f"of_{name}", MsgpackCoder[Any](Any))
        chain.map(text).to(out)
        self.seen(name, out)

    def seen(self, name: str, out: Stream[Any], dropped: Sequence[Stream[Any]] = ()) -> None:
        """Write down what comes on streams."""
        self.pipeline.add(
            Seen,
            [subscribe(out, lambda _: "out"), *(subscribe(stream, lambda _: "dropped") for stream in dropped)],
            name=f"Seen_{name}",
        )

    def drops(self, name: str, *streams: Stream[Any]) -> None:
        self.pipeline.add(Seen, [subscribe(s, lambda _: "out") for s in streams], name=f"Seen_{name}_dropped")


def is_left(it: Item) -> bool:
    return it.number % 5 < 2


class Lair(Protocol):
    """Where a pipeline lives."""

    def store(self) -> Store:
        """As after a restart."""
        ...

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """All that is stored."""
        ...

    def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        """Of a sink table."""
        ...

    def redrive(self) -> bool:
        """All keys that are in quarantine; whether there are any."""
        ...


class InMemory:
    """A store in memory, which outlives its processes."""

    def __init__(self) -> None:
        self.inner = MemoryStore()

    def store(self) -> Store:
        return self.inner

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        return self.inner.tables()

    def rows(self, table: str) -> Sequence[Mapping[str, Any]]:
        return [*self.inner.sinks.get(table, {}).values()]

    def redrive(self) -> bool:
        for computation, key in self.inner.quarantine:
            self.inner.request_redrive(computation, key)
        return bool(self.inner.quarantine)


class Kind(NamedTuple):
    """A kind of step: what adds it, and the oracle, which raises.  `keeps` are its computations whose state stays."""

    name: str
    add: Callable[[Ground], None]
    check: Callable[[Sequence[Item], Came], None]
    keeps: tuple[str, ...] = ()
    look: Callable[[Sequence[Item], Lair], None] | None = None
    """An oracle of what lies in the store."""


def build(
    kinds: Sequence[Kind],
    rows: Sequence[Item],
    durability: str,
    run: int,
    last: bool,
    splits: Sequence[str],
    name: str = "storm",
) -> Pipeline:
    pipeline = Pipeline(name, durability=DURABILITIES[durability]())
    given = [(it, it.time) for it in rows]
    pipeline.inject(IterableSource("rows", given, BoundedDisorder(DISORDER)), into=items)
    ground = Ground(pipeline, rows, run, last, splits)
    for kind in kinds:
        kind.add(ground)
    return pipeline


def came(lair: Lair) -> Came:
    found: Came = defaultdict(list)
    for computation, key, cell, entry, value in sorted(lair.tables()["key_state"]):
        if computation.startswith("Seen_") and (key, cell) == ("out", "came") and entry:
            found[computation.removeprefix("Seen_")].append(Out(*msgspec.json.decode(value)))
    return found


def nothing_is_left(kinds: Sequence[Kind], lair: Lair) -> None:
    """A library's step stores nothing when the input has ended, unless it says so."""
    keeps = {name for kind in kinds for name in kind.keeps}
    tables = lair.tables()
    for what in ("key_state", "timer", "hold"):
        left = [row for row in tables[what] if not row[0].startswith("Seen_") and row[0] not in keeps]
        assert not left, left
    assert tables["quarantine"] == []
    assert tables["production"] == []


def drawn_limits(patch: pytest.MonkeyPatch, dice: random.Random) -> None:
    """Few rows a read, folds and positions that are near or far behind, and records that run before timers that are due."""
    patch.setattr(injector, "READ_LIMIT_ROWS", dice.choice([1, 3, 9, 20]))
    patch.setattr(injector, "FIRST_READ_ROWS", dice.choice([1, 3]))
    patch.setattr(injector, "ADVANCE_DELAY_US", dice.choice([1_000, 100_000]))
    patch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", dice.choice([2, 8, 1_000]))
    patch.setattr(limits, "TIMER_INVOCATIONS", dice.choice([1, 16]))


async def once(lair: Lair, pipeline: Pipeline, at: int, done: bool, delays: Delays | None = None) -> None:
    """One process, until it is killed or has finished."""
    store = lair.store()
    try:
        await run_killed(pipeline, store, at, done, delays)
    finally:
        if isinstance(store, PostgresStore):
            await store.close()


async def storm(
    dice: random.Random, kinds: Sequence[Kind], rows: Sequence[Item], lair: Lair, name: str = "storm"
) -> Came:
    durability = dice.choice([*DURABILITIES])
    runs = dice.randrange(2, 5)
    for run in range(runs):
        if dice.random() < 0.2:
            durability = dice.choice([*DURABILITIES])
        splits: list[str] = dice.choice([[], ["s"], ["s", "shop 1"]])
        last = run == runs - 1
        at, done = (NEVER, True) if last else kills(dice.randrange(300))
        await once(lair, build(kinds, rows, durability, run, last, splits, name), at, done, Delays(dice))
    if lair.redrive():
        await once(lair, build(kinds, rows, durability, runs - 1, True, splits, name), NEVER, True)
    nothing_is_left(kinds, lair)
    found = came(lair)
    for kind in kinds:
        kind.check(rows, found)
        if kind.look is not None:
            kind.look(rows, lair)
    return found
