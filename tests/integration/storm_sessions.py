"""Windows in storms whose ends depend on what comes: sessions, windows of validity, and those of the clock on the wall.

Lives here: these kinds, each with an oracle in plain Python.  Never here: other windows (`storm_windows`), the storm
(`weather`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from millwheel import SECOND
from millwheel.library import AtWatermark, EveryRecords, EveryWall, Sessions, Validity, Wall
from millwheel.library.triggers import Trigger
from millwheel.library.windows import GLOBAL
from tests.integration.storm_windows import AGGREGATIONS, Place, pane, panes, shown
from tests.integration.weather import Came, Ground, Item, Kind, by_shop, punctual

GAP = 4 * SECOND


def bursts(rows: Sequence[Item], gap_of: Callable[[str], int]) -> dict[Place, list[int]]:
    found: dict[Place, list[int]] = {}
    for shop, of_shop in by_shop(rows).items():
        gap, burst = gap_of(shop), list[Item]()
        for it in [*sorted(of_shop, key=lambda it: it.time), None]:
            if burst and (it is None or it.time >= burst[-1].time + gap):
                found[shop, burst[0].time, burst[-1].time + gap] = sorted(b.number for b in burst)
                burst = []
            if it is not None:
                burst.append(it)
    return found


def gap_of(shop: str) -> int:
    return GAP if shop == "hot" else 2 * GAP


def sessions(name: str, dice: random.Random) -> Kind:
    """Sessions with any trigger; exact where no item is late."""
    everyone, per_key, lateness = dice.random() < 0.5, dice.random() < 0.5, dice.choice([0, 5 * SECOND, 30 * SECOND])
    trigger: Trigger = dice.choice([AtWatermark(), AtWatermark(EveryRecords(2)), AtWatermark(EveryWall(seconds=0.004))])
    accumulates, time = dice.random() < 0.7, dice.choice(["end", "end", "earliest"])

    how_stored = dice.choice([*AGGREGATIONS])

    def add(ground: Ground) -> None:
        keyed, dropped = ground.everyone if everyone else ground.punctual, ground.dropped(name)
        of = Sessions(gap_of if per_key else GAP)
        how = keyed.window(of, trigger, lateness, "accumulating" if accumulates else "discarding", time)  # type: ignore[arg-type]
        ground.gives(name, how.aggregate(AGGREGATIONS[how_stored](), f"{name}.step", dropped), pane)
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        used = rows if everyone else punctual(rows)
        given, dropped = panes(came[name]), [out.value for out in came[f"{name}_dropped"]]
        found = {n for of in given.values() for p in of for n in p.values}
        assert not found & {*dropped}
        assert len(dropped) == len({*dropped})
        assert found | {*dropped} == {it.number for it in used}
        assert not {*dropped} & {it.number for it in punctual(rows)}
        for place, of in given.items():
            assert [p.number for p in of] == [*range(len(of))], (place, of)
            for p in of:
                assert p.timing == "late" or not p.late, (place, p)
                assert p.at == place[2] - 1 if time == "end" else place[1] <= p.at < place[2], (place, p)
                assert len({*p.values}) == len(p.values)
        whole = bursts(punctual(rows), gap_of if per_key else lambda _: GAP)
        if not any(it.late for it in used):
            on_time = {place: [p for p in of if p.timing == "on time"] for place, of in given.items()}
            assert {place for place, of in on_time.items() if of} == {*whole}
            for place, numbers in whole.items():
                assert len(on_time[place]) == 1, on_time[place]
                if accumulates:
                    assert sorted(on_time[place][0].values) == numbers, (place, given[place])
                if time == "earliest":
                    assert on_time[place][0].at == place[1], (place, given[place])
            if not accumulates:
                every = Counter(n for of in given.values() for p in of for n in p.values)
                assert {*every.values()} <= {1}, every
        elif accumulates:
            for (shop, start, end), numbers in whole.items():
                holds = [
                    p for place, of in given.items() for p in of
                    if place[0] == shop and place[1] <= start and place[2] >= end
                    and p.timing == "on time" and {*numbers} <= {*p.values}
                ]  # fmt: skip
                assert holds, (shop, start, end, numbers, {p: of for p, of in given.items() if p[0] == shop})

    return Kind(
        f"{name}: sessions {shown(trigger)} {lateness} {accumulates=} {time} {everyone=} {how_stored}", add, check
    )


def validity(name: str, dice: random.Random) -> Kind:
    """Until the next record of the key."""

    def add(ground: Ground) -> None:
        step = ground.punctual.window(Validity()).aggregate(
            AGGREGATIONS["collect"](), f"{name}.step", ground.dropped(name)
        )
        ground.gives(name, step, pane)
        ground.drops(name, ground.dropped(name))

    def check(rows: Sequence[Item], came: Came) -> None:
        expected = {}
        for shop, of_shop in by_shop(punctual(rows)).items():
            times = sorted({it.time for it in of_shop})
            for start, end in zip(times, [*times[1:], GLOBAL.end], strict=True):
                expected[shop, start, end] = sorted(it.number for it in of_shop if it.time == start)
        given = panes(came[name])
        assert {place: [sorted(p.values) for p in of] for place, of in given.items()} == {
            p: [v] for p, v in expected.items()
        }
        wrong = {place: of for place, of in given.items() for p in of if p.at != place[2] - 1 or not p.last}
        assert not wrong, wrong
        assert not came[f"{name}_dropped"]

    return Kind(f"{name}: validity", add, check)


def wall(name: str, dice: random.Random) -> Kind:
    """Windows of the clock: each record once, whatever its time."""
    size = dice.choice([2_000, 60 * SECOND])

    def add(ground: Ground) -> None:
        step = ground.everyone.window(Wall(size)).aggregate(AGGREGATIONS["bag"](), f"{name}.step")
        ground.gives(name, step, pane)

    def check(rows: Sequence[Item], came: Came) -> None:
        given = panes(came[name])
        shops = {it.number: it.shop for it in rows}
        assert sorted(n for of in given.values() for p in of for n in p.values) == [*range(len(rows))]
        assert all(shops[n] == place[0] for place, of in given.items() for p in of for n in p.values)
        assert all(place[1] % size == 0 and place[2] - place[1] == size for place in given)

    return Kind(f"{name}: wall {size}", add, check)


SESSIONS = [sessions, validity, wall]
