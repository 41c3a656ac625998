"""Daily steps, services and sinks in storms: what docs/library.md says of them, against all that came.

Lives here: kinds of steps that are neither windows nor joins, each with an oracle in plain Python.  Never here: the storm
(`weather`).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel import (
    SECOND,
    JsonCoder,
    MsgpackCoder,
    Table,
)
from millwheel.library import LookUp, Reply, Service, seconds
from tests.integration.storm_joins import same
from tests.integration.weather import Came, Ground, Item, Kind, Lair, by_shop, items, punctual


def passed(it: Item) -> list[Any]:
    return [it.number]


def in_order(rows: Sequence[Item], came: Sequence[Any], expected: dict[str, list[int]]) -> None:
    """The numbers of each shop, in this order."""
    shops = {it.number: it.shop for it in rows}
    found: dict[str, list[int]] = defaultdict(list)
    for out in came:
        assert out.at == rows[out.value[0]].time, out
        found[shops[out.value[0]]].append(out.value[0])
    assert found == {shop: numbers for shop, numbers in expected.items() if numbers}


def deduplicate(name: str, dice: random.Random) -> Kind:
    """The first of each id, and no other less than `within` apart."""
    within, ids = dice.choice([1_000, SECOND, 5 * SECOND, 60 * SECOND]), dice.choice([1, 3])

    def add(ground: Ground) -> None:
        step = ground.punctual.deduplicate(within, lambda it: str(it.number % ids), name=f"{name}.step")
        ground.gives(name, step, passed)

    def check(rows: Sequence[Item], came: Came) -> None:
        expected = []
        for members in by_shop(punctual(rows)).values():
            through: dict[int, list[int]] = defaultdict(list)
            for it in members:
                times = through[it.number % ids]
                if all(abs(it.time - time) >= within for time in times):
                    times.append(it.time)
                    expected.append((it.time, it.number))
        same(came[name], expected)
        assert not any(out.late for out in came[name])

    return Kind(f"{name}: deduplicate {within=} {ids=}", add, check)


def throttle(name: str, dice: random.Random) -> Kind:
    """The first of each span of time; the rest is dropped."""
    most, per = dice.choice([1, 2, 5]), dice.choice([SECOND, 10 * SECOND])

    def add(ground: Ground) -> None:
        ground.gives(name, ground.punctual.throttle(most, per, ground.dropped(name), f"{name}.step"), passed)
        ground.drops(name, ground.dropped(name))

    def check(rows: Sequence[Item], came: Came) -> None:
        through, rest, counts = list[tuple[int, int]](), list[tuple[int, int]](), Counter[tuple[str, int]]()
        for it in punctual(rows):
            counts[it.shop, it.time // per] += 1
            (through if counts[it.shop, it.time // per] <= most else rest).append((it.time, it.number))
        same(came[name], through)
        assert sorted((out.at, out.value) for out in came[f"{name}_dropped"]) == sorted(rest)

    return Kind(f"{name}: throttle {most=} {per=}", add, check)


def changes(name: str, dice: random.Random) -> Kind:
    """Those that differ from the one before."""
    forget_after = dice.choice([None, 30 * SECOND, 1_000 * SECOND])

    def add(ground: Ground) -> None:
        step = ground.punctual.distinct_until_changed(
            lambda it: it.number % 3, JsonCoder(int), forget_after=forget_after, name=f"{name}.step"
        )
        ground.gives(name, step, passed)

    def check(rows: Sequence[Item], came: Came) -> None:
        expected: dict[str, list[int]] = {}
        may: set[int] = set()
        for shop, members in by_shop(punctual(rows)).items():
            newest = members[0].time
            for before, it in zip([None, *members], members, strict=False):
                if before is None or before.number % 3 != it.number % 3:
                    expected.setdefault(shop, []).append(it.number)
                elif forget_after is not None and it.time - newest > forget_after - 3 * SECOND:
                    may.add(it.number)
                newest = max(newest, it.time)
        more = {out.value[0] for out in came[name]} - {n for numbers in expected.values() for n in numbers}
        assert more <= may, more - may
        in_order(rows, [out for out in came[name] if out.value[0] not in more], expected)

    return Kind(f"{name}: distinct until changed {forget_after=}", add, check, (f"{name}.step",))


class Flaky:
    """Fails at every fourth the first time that a process asks, and at every eleventh always."""

    def __init__(self) -> None:
        self.asked = Counter[int]()

    def __call__(self, it: Item) -> int:
        self.asked[it.number] += 1
        if it.number % 11 == 5 or (it.number % 4 == 0 and self.asked[it.number] == 1):
            raise ConnectionError("busy")
        return it.number * 2


def calls(name: str, dice: random.Random) -> Kind:
    """One reply for each value, at its own time."""
    at_once, everyone = dice.choice([0, 1, 4]), dice.random() < 0.5

    def add(ground: Ground) -> None:
        service = Service(Flaky, int, at_once=at_once, attempts=7, pause=seconds(0.001))
        step = (ground.everyone if everyone else ground.punctual).call(service, f"{name}.step")

        def text(it: Reply[Item, int]) -> list[Any]:
            return [it.value.number, it.answer, it.error, it.attempts]

        ground.gives(name, step, text)

    def check(rows: Sequence[Item], came: Came) -> None:
        used = rows if everyone else punctual(rows)
        assert sorted((out.at, out.value[0]) for out in came[name]) == sorted((it.time, it.number) for it in used)
        for out in came[name]:
            number, answer, error, attempts = out.value
            if number % 11 == 5:
                assert (answer, "busy" in error, attempts) == (None, True, 7), out
            else:
                assert (answer, error, 1 <= attempts <= 7) == (number * 2, "", True), out
        assert everyone or not any(out.late for out in came[name])

    return Kind(f"{name}: call {at_once=} {everyone=}", add, check)


class City(msgspec.Struct, frozen=True):
    name: str


class Cities:
    """A query."""

    def __call__(self, key: str) -> dict[str, str] | None:
        return None if key == "quiet" else {"name": key.upper()}

    def close(self) -> None:
        """Nothing."""


def look_ups(name: str, dice: random.Random) -> Kind:
    """Each value with the row of its key."""
    fresh = dice.choice([0.001, 60.0])

    def add(ground: Ground) -> None:
        step = ground.everyone.look_up(LookUp(Cities, City, seconds(fresh)), f"{name}.step")
        ground.gives(name, step, lambda it: [it.value.number, it.row and it.row.name, 0 <= it.age_us <= fresh * SECOND])

    def check(rows: Sequence[Item], came: Came) -> None:
        expected = [(it.time, it.number, None if it.shop == "quiet" else it.shop.upper(), True) for it in rows]
        same([out._replace(late=False) for out in came[name]], expected)

    return Kind(f"{name}: look up", add, check)


class Line(msgspec.Struct, frozen=True):
    shop: str
    number: int


def span(it: Item) -> str:
    """A key of few items, some of which have one time."""
    return f"{it.shop} {it.time // (5 * SECOND)}"


def sinks(name: str, dice: random.Random) -> Kind:
    """Rows of tables, and parts of files."""
    shards, limit = dice.choice([1, 3]), dice.choice([1, 7, 1_000])
    every = dice.choice([seconds(0.003), seconds(60)])

    def add(ground: Ground) -> None:
        ground.everyone.append_to(f"{name}_log", {"item": "bigint"}, lambda it: {"item": it.number})
        spans = ground.flow.read(items).key_by(span, ground.splits)
        spans.latest_to(Table(f"{name}_latest", Line, ("shop",)), lambda it: Line(span(it), it.number))
        ground.everyone.upsert_to(
            Table(f"{name}_rows", {"number": "bigint", "shop": "text"}, ("number",)),
            lambda it: [{"number": it.number * 2 + k, "shop": it.shop} for k in range(it.number % 3)],
        )
        chain = ground.flow.read(items).map(lambda it: Line(it.shop, it.number), MsgpackCoder(Line))
        chain.to_files(f"{name}_files", Line, shards=shards, rows=limit, every=every)

    def check(rows: Sequence[Item], came: Came) -> None:
        """All is in the store."""

    def look(rows: Sequence[Item], lair: Lair) -> None:
        def table(of: str) -> list[dict[str, Any]]:
            return [dict(row) for row in lair.rows(f"{name}_{of}")]

        log = [(shop, number, it.number) for shop, of in by_shop(rows).items() for number, it in enumerate(of)]
        assert sorted((row["key"], row["number"], row["item"]) for row in table("log")) == sorted(log)
        newest = {span(it): it.number for it in sorted(rows, key=lambda it: (it.time, it.number))}
        assert {row["shop"]: row["number"] for row in table("latest")} == newest
        expected = {it.number * 2 + k: it.shop for it in rows for k in range(it.number % 3)}
        assert {row["number"]: row["shop"] for row in table("rows")} == expected
        lines = table("files_rows")
        assert sorted(msgspec.json.decode(row["value"])["number"] for row in lines) == [*range(len(rows))]
        parts = Counter((row["shard"], row["part"]) for row in lines)
        assert parts == Counter({(row["shard"], row["part"]): row["rows"] for row in table("files_parts")})
        assert all(count <= limit for count in parts.values())
        for place, count in parts.items():
            assert sorted(row["place"] for row in lines if (row["shard"], row["part"]) == place) == [*range(count)]
        for shard in {shard for shard, _ in parts}:
            assert sorted(part for of, part in parts if of == shard) == [*range(sum(of == shard for of, _ in parts))]

    keeps = (f"{name}_log.append", f"{name}_latest.latest", f"{name}_files.parts")
    return Kind(f"{name}: sinks {shards=} {limit=}", add, check, keeps, look)


DAILY = [deduplicate, throttle, changes, calls, look_ups, sinks]
