"""Windows in storms: what docs/library.md says of panes, against all that came.

Lives here: kinds of aggregation over windows, each with an oracle in plain Python.  Never here: the storm (`weather`).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from millwheel import SECOND, MsgpackCoder
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Calendar,
    Combiner,
    EveryRecords,
    EveryWall,
    Fixed,
    Global,
    Once,
    Pane,
    Repeat,
    Sliding,
    aggregation,
    collect,
    top,
)
from millwheel.library.triggers import Trigger
from millwheel.library.windows import GLOBAL
from tests.integration.weather import SIZE, Came, Ground, Item, Kind, Out, punctual

BERLIN = ZoneInfo("Europe/Berlin")
Place = tuple[str, int, int]
"""A shop, and a window."""


class Given(NamedTuple):
    """A pane: its event time, whether it was late, and its fields."""

    at: int
    late: bool
    timing: str
    number: int
    punctual: int
    last: bool
    values: list[int]


def pane(it: Pane[Any]) -> list[Any]:
    return [it.key, it.start, it.end, it.timing, it.number, it.punctual, it.last, it.value]


def panes(outs: Sequence[Out]) -> dict[Place, list[Given]]:
    found: dict[Place, list[Given]] = defaultdict(list)
    for at, late, (key, start, end, timing, number, of_punctual, last, values) in outs:
        found[key, start, end].append(Given(at, late, timing, number, of_punctual, last, values))
    return found


# --- aggregations that give all numbers, each stored in another way ----------------------------------------------


def _bag() -> Aggregation[Item, list[int], list[int]]:
    """Of all numbers, and it can subtract."""
    return aggregation(
        "bag", list, lambda a, it: [*a, it.number], lambda a, b: [*a, *b], sorted, MsgpackCoder(list[int]), list[int],
        lambda a, b: sorted((Counter(a) - Counter(b)).elements()),
    )  # fmt: skip


AGGREGATIONS: dict[str, Callable[[], Aggregation[Item, Any, list[int]]]] = {
    "collect": lambda: collect(int, lambda it: it.number),
    "bag": _bag,
    "top": lambda: top(1_000, lambda n: n, int, lambda it: it.number),
}


# --- which windows an item is in, in the words of the page ----------------------------------------------------------


def _aligned(size: int, every: int, offset: int) -> Callable[[int], list[tuple[int, int]]]:
    def of(time: int) -> list[tuple[int, int]]:
        start = (time - offset) // every * every + offset
        found = []
        while start > time - size:
            found.append((start, start + size))
            start -= every
        return found

    return of


def _day(time: int) -> list[tuple[int, int]]:
    day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).astimezone(BERLIN).date()

    def begin(of: Any) -> int:
        return int(datetime(of.year, of.month, of.day, tzinfo=BERLIN).timestamp()) * SECOND

    return [(begin(day), begin(day + timedelta(days=1)))]


class Windowing(NamedTuple):
    """How the library is asked for windows, and which ones an item is in."""

    name: str
    windows: Any
    of: Callable[[int], list[tuple[int, int]]]


WINDOWINGS = [
    Windowing("fixed", Fixed(SIZE), _aligned(SIZE, SIZE, 0)),
    Windowing("shifted", Fixed(7 * SECOND, offset=3 * SECOND), _aligned(7 * SECOND, 7 * SECOND, 3 * SECOND)),
    Windowing("sliding", Sliding(SIZE, every=5 * SECOND), _aligned(SIZE, 5 * SECOND, 0)),
    Windowing("uneven", Sliding(SIZE, every=4 * SECOND), _aligned(SIZE, 4 * SECOND, 0)),
    Windowing("gaps", Sliding(12 * SECOND, every=2 * SECOND, offset=SECOND), _aligned(12 * SECOND, 2 * SECOND, SECOND)),
    Windowing("global", Global(), lambda time: [GLOBAL]),
    Windowing("days", Calendar("day", "Europe/Berlin"), _day),
]


def floor(time: int) -> int:
    """An event time of a pane: the second before."""
    return time // SECOND * SECOND


class Setting(NamedTuple):
    """What `window` is asked for."""

    windowing: Windowing
    trigger: Trigger
    lateness: int
    accumulates: bool
    time: str
    everyone: bool
    """Late items too."""
    aggregation: str
    combiner: bool


def shown(trigger: Trigger) -> str:
    """With its periods, for a report."""
    parts = [getattr(trigger, it) for it in trigger.__struct_fields__]
    return f"{type(trigger).__name__}({', '.join('wall' if isinstance(it, EveryWall) else str(it) for it in parts)})"


def drawn_trigger(dice: random.Random) -> Trigger:
    kind = dice.choice(["plain", "plain", "at", "at", "at", "repeat", "once"])
    if kind == "plain":
        return AtWatermark()
    every: Any = dice.choice([EveryRecords(1), EveryRecords(2), EveryRecords(3), EveryWall(seconds=0.004)])
    if kind == "repeat":
        return Repeat(every)
    if kind == "once":
        return Once(every)
    return AtWatermark(
        dice.choice([every, every, None]),
        dice.choice([EveryRecords(1), EveryRecords(2), EveryWall(seconds=0.004), None]),
    )


def drawn_setting(dice: random.Random) -> Setting:
    trigger = drawn_trigger(dice)
    time = dice.choice(["end", "end", "end", "earliest", "latest", "floor"])
    combiner = isinstance(trigger, AtWatermark) and time == "end" and dice.random() < 0.25
    return Setting(
        dice.choice(WINDOWINGS), trigger, dice.choice([0, 5 * SECOND, 30 * SECOND]), dice.random() < 0.6, time,
        dice.random() < 0.5, dice.choice([*AGGREGATIONS]), combiner,
    )  # fmt: skip


def windows(name: str, dice: random.Random) -> Kind:
    """Aligned windows with any trigger."""
    it = drawn_setting(dice)

    def add(ground: Ground) -> None:
        keyed, dropped = ground.everyone if it.everyone else ground.punctual, ground.dropped(name)
        chain = keyed.window(
            it.windowing.windows,
            it.trigger,
            it.lateness,
            "accumulating" if it.accumulates else "discarding",
            floor if it.time == "floor" else it.time,  # type: ignore[arg-type]
        ).aggregate(AGGREGATIONS[it.aggregation](), f"{name}.step", dropped, Combiner(3) if it.combiner else None)
        ground.gives(name, chain, pane)
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        _Check(it, rows if it.everyone else punctual(rows), came[name], came[f"{name}_dropped"]).all()

    said = f"{it.windowing.name} {shown(it.trigger)} {it.lateness=} {it.accumulates=} {it.time=} {it.everyone=}"
    return Kind(f"{name}: {said} {it.aggregation} {it.combiner=}", add, check)


class _Check:
    """All that is said of panes."""

    def __init__(self, it: Setting, rows: Sequence[Item], outs: Sequence[Out], dropped: Sequence[Out]) -> None:
        self.it, self.rows = it, rows
        self.panes = panes(outs)
        self.blurred = any(row.late for row in rows)
        """What becomes of late items depends on the watermark, which no oracle knows."""
        self.dropped = [out.value for out in dropped]
        self.members: dict[Place, list[Item]] = defaultdict(list)
        for row in rows:
            for start, end in it.windowing.of(row.time):
                self.members[row.shop, start, end].append(row)

    @property
    def early(self) -> Any:
        return self.it.trigger.early if isinstance(self.it.trigger, AtWatermark) else self.it.trigger.every

    @property
    def late(self) -> Any:
        return self.it.trigger.late if isinstance(self.it.trigger, AtWatermark) else self.it.trigger.every

    @property
    def lateness(self) -> int:
        return 0 if self.late is None else self.it.lateness

    def all(self) -> None:
        assert {*self.panes} <= {*self.members}, "windows that no item is in"
        for place, given in self.panes.items():
            self.of_each(place, given)
        for place, members in self.members.items():
            self.of_window(place, members, self.panes.get(place, []))
        self.of_dropped()

    def of_each(self, place: Place, given: Sequence[Given]) -> None:
        """Numbers, timings and times."""
        assert [pane.number for pane in given] == [*range(len(given))], (place, given)
        numbers = [pane.punctual for pane in given if pane.timing != "early"]
        assert numbers == [*range(len(numbers))], (place, given)
        assert [p.timing for p in given] == sorted((p.timing for p in given), key=["early", "on time", "late"].index), (
            given
        )
        assert all(not pane.last for pane in given[:-1]), (place, given)
        assert [p.timing for p in given].count("on time") <= 1 or not isinstance(self.it.trigger, AtWatermark)
        for pane in given:
            assert len({*pane.values}) == len(pane.values), (place, given)
            # A function gives times before those of records, and the watermark may move on while a record's hook runs.
            assert pane.timing == "late" or not pane.late or self.it.time == "floor", (place, pane, "came late")
            if self.it.time == "end":
                assert pane.at == place[2] - 1, (place, pane)
            elif self.it.time == "floor":
                times = [it.time for it in self.members[place]]
                assert floor(min(times)) <= pane.at <= max(times) or pane.at == place[2] - 1, (place, pane)
            else:
                assert pane.at in {place[2] - 1, *(it.time for it in self.members[place])}, (place, pane)
        if self.lateness == 0:
            assert all(pane.timing != "late" for pane in given), (place, given)

    def of_window(self, place: Place, members: Sequence[Item], given: Sequence[Given]) -> None:
        ours = [it.number for it in members]
        found = [*(given[-1].values if given else [])] if self.it.accumulates else [n for p in given for n in p.values]
        assert {*found} <= {*ours}, (place, ours, given)
        assert len({*found}) == len(found), (place, given, "twice")
        if self.it.accumulates:
            for before, after in pairwise(given):
                assert {*before.values} <= {*after.values}, (place, given)
        missing = {*ours} - {*found}
        if isinstance(self.it.trigger, Once):
            self.of_once(members, given)
            return
        assert not missing & {it.number for it in members if not it.late}, (place, missing, given)
        if len(self.it.windowing.of(members[0].time)) == 1:
            assert missing <= {*self.dropped}, (place, missing, self.dropped)
        timely = [it for it in members if not it.late]
        if isinstance(self.it.trigger, AtWatermark):
            self.at_watermark(place, members, timely, given)
        elif isinstance(self.early, EveryRecords) and not self.blurred:
            self.counted(members, [p.values for p in given], self.early.records, True)

    def at_watermark(
        self, place: Place, members: Sequence[Item], timely: Sequence[Item], given: Sequence[Given]
    ) -> None:
        until = [p for p in given if p.timing != "late"]
        if timely:
            assert until, (place, given)
            assert until[-1].timing == "on time", (place, given)
            held = {*until[-1].values} if self.it.accumulates else {n for p in until for n in p.values}
            assert {it.number for it in timely} <= held, (place, given)
            if self.it.time != "end" and not self.it.combiner:
                self.of_time(timely, members, until[-1])
        if self.early is None:
            assert all(p.timing != "early" for p in given), (place, given)
        if self.lateness == 0 and until and until[-1].timing == "on time":
            assert until[-1].last, (place, given)
        if isinstance(self.early, EveryRecords) and not self.blurred and not self.it.combiner:
            self.counted(members, [p.values for p in until[:-1]], self.early.records, False)
        if isinstance(self.late, EveryRecords) and not self.it.combiner:
            self.of_late(given)

    def of_time(self, timely: Sequence[Item], members: Sequence[Item], on_time: Given) -> None:
        if self.it.time == "floor":
            assert on_time.at <= min(it.time for it in timely), (timely, on_time)
            return
        pick = min if self.it.time == "earliest" else max
        if not self.blurred:
            assert on_time.at == pick(it.time for it in timely), (timely, on_time)
        else:
            assert on_time.at in {it.time for it in members}, (timely, on_time)
            assert on_time.at <= pick(it.time for it in timely) or self.it.time == "latest"

    def of_late(self, given: Sequence[Given]) -> None:
        """So many more each; the last may have fewer, when the window was over."""
        sizes = [len(p.values) for p in given]
        if self.it.accumulates:
            sizes = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
        late = [(size, p) for size, p in zip(sizes, given, strict=True) if p.timing == "late"]
        for size, p in late:
            assert size == self.late.records or (p.last and size < self.late.records), given

    def counted(self, members: Sequence[Item], values: list[list[int]], records: int, rest: bool) -> None:
        """The panes of so many records each, in the order of arrival."""
        numbers = [it.number for it in members]
        ends = [*range(records, len(numbers) + 1, records)]
        if rest and len(numbers) % records:
            ends.append(len(numbers))
        expected = [
            numbers[0 if self.it.accumulates else max(0, before) : end]
            for before, end in zip([0, *ends], ends, strict=False)
        ]
        assert [sorted(v) for v in values] == expected, (values, expected)

    def of_once(self, members: Sequence[Item], given: Sequence[Given]) -> None:
        timely = [it for it in members if not it.late]
        assert len(given) <= 1, given
        assert not timely or given, members
        assert all(p.last for p in given), given
        if isinstance(self.early, EveryRecords) and not self.blurred:
            assert sorted(given[0].values) == [it.number for it in members][: self.early.records], (members, given)
        if given and len(self.it.windowing.of(members[0].time)) == 1:
            assert {*given[0].values} | {*self.dropped} >= {it.number for it in members}, (members, given, self.dropped)

    def of_dropped(self) -> None:
        assert len({*self.dropped}) == len(self.dropped), self.dropped
        found = {n for given in self.panes.values() for p in given for n in p.values}
        assert not found & {*self.dropped}, found & {*self.dropped}
        assert found | {*self.dropped} == {it.number for it in self.rows}
        if not isinstance(self.it.trigger, Once):
            assert not {*self.dropped} & {it.number for it in self.rows if not it.late}


def changing(name: str, dice: random.Random) -> Kind:
    """Trigger, lateness and the panes' time are others in each run, also while windows are open."""
    it = dice.choice([it for it in WINDOWINGS if it.name in ("fixed", "shifted", "global", "days")])
    everyone, settings = dice.random() < 0.5, [changed(dice) for _ in range(5)]

    def add(ground: Ground) -> None:
        trigger, lateness, time = settings[ground.run]
        keyed, dropped = ground.everyone if everyone else ground.punctual, ground.dropped(name)
        step = keyed.window(it.windows, trigger, lateness, time=time).aggregate(  # type: ignore[arg-type]
            AGGREGATIONS["collect"](), f"{name}.step", dropped
        )
        ground.gives(name, step, pane)
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        used, gone = rows if everyone else punctual(rows), [out.value for out in came[f"{name}_dropped"]]
        given = panes(came[name])
        found = {n for of in given.values() for p in of for n in p.values}
        assert len({*gone}) == len(gone)
        assert not found & {*gone}
        assert found | {*gone} == {row.number for row in used}
        assert not {*gone} & {row.number for row in punctual(rows)}
        members: dict[Place, set[int]] = defaultdict(set)
        for row in punctual(rows):
            members[(row.shop, *it.of(row.time)[0])].add(row.number)
        for place, numbers in members.items():
            on_time = [p for p in given[place] if p.timing == "on time"]
            assert len(on_time) == 1, (place, given[place])
            assert numbers <= {*on_time[0].values}, (place, numbers, given[place])
        for place, of in given.items():
            assert all(len({*p.values}) == len(p.values) for p in of), (place, of)
            assert all(place[1] <= p.at < place[2] for p in of), (place, of)
            assert not any(p.late for p in of if p.timing != "late"), (place, of)

    said = [(shown(trigger), lateness, time) for trigger, lateness, time in settings]
    return Kind(f"{name}: {it.name} changing {everyone=} {said}", add, check)


def changed(dice: random.Random) -> tuple[Trigger, int, str]:
    """What a version of a pipeline may have."""
    wall = EveryWall(seconds=0.004)
    triggers = [
        AtWatermark(), AtWatermark(EveryRecords(2)), AtWatermark(EveryRecords(1), EveryRecords(2)), AtWatermark(wall),
        AtWatermark(late=None), AtWatermark(late=wall),
    ]  # fmt: skip
    return dice.choice(triggers), dice.choice([0, 5 * SECOND, 30 * SECOND]), dice.choice(["end", "earliest", "latest"])


WINDOWS = [windows, windows, windows, windows, changing]
