"""Computations of one's own in storms: what the guide says of expiry, names, loops, combiners and quarantine.

Lives here: these kinds, each with an oracle in plain Python.  Never here: steps of the library, the storm (`weather`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel import (
    SECOND,
    Computation,
    Context,
    Gathering,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Record,
    Stream,
    Timer,
    ValueCell,
    subscribe,
)
from tests.integration.storm_daily import in_order
from tests.integration.storm_joins import same
from tests.integration.weather import Came, Ground, Item, Kind, Lair, by_shop, items, punctual


class Counting(Computation[Item]):
    """Each item with how many its key has had."""

    seen = ValueCell(JsonCoder(int), default=0)

    def __init__(self, out: Stream[Any]) -> None:
        self._out = out

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        self.seen.set(self.seen.get() + 1)
        context.produce(self._out, [record.value.number, self.seen.get()])


def lists(name: str) -> Stream[Any]:
    return Stream(f"of_{name}", MsgpackCoder[Any](Any))


def expiry(name: str, dice: random.Random) -> Kind:
    """State is dropped some time after its last write, and never earlier."""
    after = dice.choice([SECOND, 10 * SECOND, 40 * SECOND])

    def add(ground: Ground) -> None:
        out = lists(name)
        ground.pipeline.add(
            lambda: Counting(out), [subscribe(items, lambda it: None if it.late else it.shop)], [out],
            name=f"{name}.step", expire_after=after, split_keys=ground.splits,
        )  # fmt: skip
        ground.seen(name, out)

    def check(rows: Sequence[Item], came: Came) -> None:
        found = {out.value[0]: out.value[1] for out in came[name]}
        assert len(found) == len(came[name]) == len(punctual(rows))
        assert all(out.at == rows[out.value[0]].time for out in came[name])
        for members in by_shop(punctual(rows)).values():
            count, newest = 0, members[0].time
            for it in members:
                if found[it.number] != count + 1:
                    assert found[it.number] == 1, (it, found[it.number], count)
                    assert it.time - newest > after - 2 * 3 * SECOND, (it, newest)
                count, newest = found[it.number], max(newest, it.time)

    return Kind(f"{name}: expiry {after=}", add, check, (f"{name}.step",))


def renames(name: str, dice: random.Random) -> Kind:
    """Each run has another name for its computation and for its cell."""

    def add(ground: Ground) -> None:
        out, run = lists(name), ground.run
        formerly = None if run == 0 else f"r{run - 1}"
        cells = {f"c{run}": ValueCell(JsonCoder(int), default=0, formerly=None if run == 0 else f"c{run - 1}")}

        class Renamed(Computation[Item]):
            def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
                cell = getattr(self, f"c{run}")
                cell.set(cell.get() + 1)
                context.produce(out, [record.value.number, cell.get()])

        made: Any = type("Renamed", (Renamed,), cells)
        ground.pipeline.add(
            made, [subscribe(items, lambda it: it.shop)], [out], name=f"{name}.r{run}",
            formerly=None if formerly is None else f"{name}.{formerly}", split_keys=ground.splits,
        )  # fmt: skip
        ground.seen(name, out)

    def check(rows: Sequence[Item], came: Came) -> None:
        expected = [(it.time, it.number, place + 1) for of in by_shop(rows).values() for place, it in enumerate(of)]
        same(came[name], expected)

    return Kind(f"{name}: renames", add, check, tuple(f"{name}.r{run}" for run in range(5)))


def by_rest(it: list[int]) -> str:
    return str(it[1] % 5)


class Halve(Computation[Any]):
    """[number, what is left of it]: round until it is odd."""

    def __init__(self, loop: Stream[Any], out: Stream[Any]) -> None:
        self._loop, self._out = loop, out

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        it = [record.value.number, record.value.number + 64] if isinstance(record.value, Item) else record.value
        if it[1] % 2 or it[1] == 0:
            context.produce(self._out, it)
        else:
            context.produce(self._loop, [it[0], it[1] // 2])


def loops(name: str, dice: random.Random) -> Kind:
    """Each goes round once for each hop, and what is behind the loop is not late."""

    def add(ground: Ground) -> None:
        out, loop = lists(name), Stream[Any](f"{name}_loop", MsgpackCoder[Any](Any))
        ground.pipeline.add(
            lambda: Halve(loop, out),
            [subscribe(items, lambda it: None if it.late else str(it.number % 7)), subscribe(loop, by_rest)],
            [loop, out], name=f"{name}.step", split_keys=dice_splits,
        )  # fmt: skip
        ground.seen(name, out)

    dice_splits = dice.choice([[], ["3"]])

    def check(rows: Sequence[Item], came: Came) -> None:
        expected = []
        for it in punctual(rows):
            rest = it.number + 64
            while rest % 2 == 0:
                rest //= 2
            expected.append((it.time, it.number, rest))
        same(came[name], expected)
        assert not any(out.late for out in came[name])

    return Kind(f"{name}: loops", add, check)


class Purse(msgspec.Struct, frozen=True, array_like=True):
    shop: str
    numbers: list[int]


class Total(Computation[Purse]):
    """How often each number has come."""

    times = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[Purse]) -> None:
        for number in record.value.numbers:
            self.times.set(str(number), self.times.get(str(number), 0) + 1)


class Pack(Computation[Item]):
    def __init__(self, out: Stream[Purse]) -> None:
        self._out = out

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        context.produce(self._out, Purse(record.value.shop, [record.value.number]))


def merged(a: Purse, b: Purse) -> Purse:
    return Purse(a.shop, [*a.numbers, *b.numbers])


def gatherings(name: str, dice: random.Random) -> Kind:
    """A combiner of one's own, in some of the runs: each number counts once."""
    here = [dice.choice([None, 2, 5]) for _ in range(5)]

    def add(ground: Ground) -> None:
        purses = Stream(f"{name}_purses", MsgpackCoder(Purse))
        ground.pipeline.add(
            lambda: Pack(purses),
            [subscribe(items, lambda it: it.shop)],
            [purses],
            name=f"{name}.pack",
            split_keys=ground.splits,
        )
        shards = here[ground.run]
        ground.pipeline.add(
            Total, [subscribe(purses, lambda it: it.shop)], name=f"{name}.total", split_keys=ground.splits,
            combiner=None if shards is None else Gathering(merged, shards=shards, every=3_000),
        )  # fmt: skip

    def check(rows: Sequence[Item], came: Came) -> None:
        """All is in the store."""

    def look(rows: Sequence[Item], lair: Lair) -> None:
        found: dict[str, dict[int, int]] = {}
        for computation, shop, cell, entry, value in lair.tables()["key_state"]:
            if (computation, cell) == (f"{name}.total", "times") and entry:
                found.setdefault(shop, {})[int(entry)] = msgspec.json.decode(value)
        assert found == {shop: {it.number: 1 for it in of} for shop, of in by_shop(rows).items()}

    return Kind(f"{name}: gatherings {here}", add, check, (f"{name}.total",), look)


class Relay(Computation[Item]):
    def __init__(self, out: Stream[Any]) -> None:
        self._out = out

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        context.produce(self._out, [record.value.number])


def weak(name: str, dice: random.Random) -> Kind:
    """Nothing is lost; what was sent may be sent again."""
    once = dice.random() < 0.5

    def add(ground: Ground) -> None:
        out = lists(name)
        ground.pipeline.add(
            lambda: Relay(out), [subscribe(items, lambda it: it.shop)], [out], name=f"{name}.step", productions="weak",
            exactly_once=once, split_keys=ground.splits,
        )  # fmt: skip
        ground.seen(name, out)

    def check(rows: Sequence[Item], came: Came) -> None:
        assert {(out.at, out.value[0]) for out in came[name]} == {(it.time, it.number) for it in rows}

    return Kind(f"{name}: weak {once=}", add, check)


def key_versions(name: str, dice: random.Random) -> Kind:
    """Each run has another function for the key, and says so: each item counts once."""
    versions = [dice.randrange(3) for _ in range(5)]

    def add(ground: Ground) -> None:
        out, version = lists(name), versions[ground.run]

        def key(it: Item) -> str:
            return (it.shop, f"z{it.number % 4}", f"a{it.number % 4}")[version]

        ground.pipeline.add(
            lambda: Relay(out), [subscribe(items, key, key_version=str(version))], [out], name=f"{name}.step",
            split_keys=["m", "s"],
        )  # fmt: skip
        ground.seen(name, out)

    def check(rows: Sequence[Item], came: Came) -> None:
        same(came[name], [(it.time, it.number) for it in rows])

    return Kind(f"{name}: key versions {versions}", add, check)


class Touchy(Computation[Item]):
    """Counts; of some numbers it fails, until the last run."""

    numbers = MapCell(JsonCoder(int))
    ticks = ValueCell(JsonCoder(int), default=0)

    def __init__(self, out: Stream[Any], bad: bool) -> None:
        self._out, self._bad = out, bad

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        if self._bad and record.value.number % 17 == 6:
            raise ValueError("bad")
        number = str(record.value.number)
        self.numbers.set(number, self.numbers.get(number, 0) + 1)
        context.set_timer(number, record.timestamp + SECOND)
        context.produce(self._out, [record.value.number, "record"])

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.ticks.set(self.ticks.get() + 1)
        context.produce(self._out, [int(timer.tag), "timer"])


def quarantines(name: str, dice: random.Random) -> Kind:
    """A key whose hook fails waits, with all that comes for it; a redrive runs it in order."""

    def add(ground: Ground) -> None:
        out = lists(name)
        ground.pipeline.add(
            lambda: Touchy(out, not ground.last), [subscribe(items, lambda it: it.shop)], [out], name=f"{name}.step",
            split_keys=ground.splits, first_failures=None, strict_timestamps=False,
        )  # fmt: skip
        ground.seen(name, out)

    def check(rows: Sequence[Item], came: Came) -> None:
        records = [(it.time, it.number, "record") for it in rows]
        timers = [(it.time + SECOND, it.number, "timer") for it in rows]
        same(came[name], records + timers)
        ran = [out for out in came[name] if out.value[1] == "record"]
        in_order(rows, ran, {shop: [it.number for it in of] for shop, of in by_shop(rows).items()})

    return Kind(f"{name}: quarantines", add, check, (f"{name}.step",))


OWN = [expiry, renames, key_versions, loops, gatherings, weak, quarantines]
