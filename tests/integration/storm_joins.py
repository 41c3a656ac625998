"""Joins in storms: what docs/library.md says of rows, against all that came.

Lives here: kinds of joins, each with an oracle in plain Python.  Never here: the storm (`weather`).
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise, product
from typing import Any

from millwheel import SECOND
from millwheel.library import Interval, KeyedChain, Match, Running, Sessions, collect
from tests.integration.storm_sessions import GAP, bursts, gap_of
from tests.integration.storm_windows import WINDOWINGS
from tests.integration.weather import Came, Ground, Item, Kind, Out, by_shop, is_left, items, punctual

Row = tuple[int, int | None, int | None]
"""Event time and the two numbers."""
HOWS = ("inner", "left", "right", "outer")


def us(number: int) -> timedelta:
    return timedelta(microseconds=number)


def numbers(it: Match[Any, Any]) -> list[Any]:
    return [it.left and it.left.number, it.right and it.right.number]


def sides(rows: Sequence[Item]) -> Iterator[tuple[list[Item], list[Item]]]:
    """Of each shop."""
    for of_shop in by_shop(rows).values():
        yield [it for it in of_shop if is_left(it)], [it for it in of_shop if not is_left(it)]


def same(outs: Sequence[Out], expected: Sequence[tuple[Any, ...]]) -> None:
    """Exactly these, and none of them late."""
    found = Counter((out.at, *out.value) for out in outs)
    wanted = Counter(expected)
    assert found == wanted, {"more": found - wanted, "fewer": wanted - found}


def with_late(
    rows: Sequence[Item], outs: Sequence[Out], dropped: Sequence[Out], expected: Sequence[tuple[Any, ...]]
) -> None:
    """What is late is dropped, or counts as if it were not.  `expected` are the rows of what was not dropped."""
    gone = [out.value for out in dropped]
    assert len({*gone}) == len(gone), gone
    assert not {*gone} & {it.number for it in punctual(rows)}, gone
    same(outs, expected)


def taken(rows: Sequence[Item], dropped: Sequence[Out]) -> list[Item]:
    gone = {out.value for out in dropped}
    return [it for it in rows if it.number not in gone]


def numbers_of(rows: Sequence[Item]) -> list[int | None]:
    """None for none."""
    return [it.number for it in rows] or [None]


def alone(
    how: str, left: Sequence[Item], right: Sequence[Item], met: set[int], until: Callable[[int, Item], int]
) -> list[Row]:
    """Rows without a partner."""
    found: list[Row] = []
    if how in ("left", "outer"):
        found += [(until(0, it), it.number, None) for it in left if it.number not in met]
    if how in ("right", "outer"):
        found += [(until(1, it), None, it.number) for it in right if it.number not in met]
    return found


def at(time: int) -> Callable[[int, Item], int]:
    """The same for all."""
    return lambda side, it: time


def interval(name: str, dice: random.Random) -> Kind:
    """Pairs that are near each other, and what has no partner."""
    how, everyone = dice.choice(HOWS), dice.random() < 0.5
    before, after = (dice.choice([0, 1, SECOND, 8 * SECOND]) for _ in "ba")
    lateness = dice.choice([0, 5 * SECOND, 30 * SECOND])

    def add(ground: Ground) -> None:
        left, right = (ground.all_left, ground.all_right) if everyone else (ground.left, ground.right)
        dropped = ground.dropped(name)
        step: Any = left.join(
            right, Interval(before=us(before), after=us(after)), how, lateness=lateness, name=f"{name}.step",  # type: ignore[call-overload]
            dropped=dropped, other_dropped=dropped,
        )  # fmt: skip
        ground.gives(name, step, numbers)
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        used = taken(rows if everyone else punctual(rows), came[f"{name}_dropped"])
        expected: list[Row] = []
        for left, right in sides(used):
            near = [(a, b) for a in left for b in right if -before <= b.time - a.time <= after]
            expected += [(max(a.time, b.time), a.number, b.number) for a, b in near]
            met = {it.number for pair in near for it in pair}
            expected += alone(how, left, right, met, lambda side, it: it.time + (before if side else after))
        with_late(rows, came[name], came[f"{name}_dropped"], expected)
        assert everyone or not any(out.late for out in came[name])

    return Kind(f"{name}: interval {how} {before=} {after=} {lateness=} {everyone=}", add, check)


def window_join(name: str, dice: random.Random) -> Kind:
    """Pairs of one window, for each window; a late item may be in time for the later ones of its windows only."""
    how, windowing, everyone = dice.choice(HOWS), dice.choice(WINDOWINGS), dice.random() < 0.5
    lateness = dice.choice([0, 5 * SECOND, 30 * SECOND])

    def add(ground: Ground) -> None:
        left, right = (ground.all_left, ground.all_right) if everyone else (ground.left, ground.right)
        dropped = ground.dropped(name)
        step: Any = left.join(
            right, windowing.windows, how, lateness=lateness, name=f"{name}.step", dropped=dropped,  # type: ignore[call-overload]
            other_dropped=dropped,
        )  # fmt: skip
        ground.gives(name, step, lambda it: [*numbers(it), it.start, it.end])
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        gone = came[f"{name}_dropped"]
        used = taken(rows if everyone else punctual(rows), gone)
        expected = rows_of_windows(how, used, windowing.of)
        several = windowing.name in ("sliding", "uneven", "gaps")
        blurred = late_places(used, windowing.of) if everyone and several else set()
        shops = {it.number: it.shop for it in rows}

        def sharp(row: tuple[Any, ...]) -> bool:
            return (shops[next(n for n in row[1:3] if n is not None)], row[3]) not in blurred

        with_late(rows, [out for out in came[name] if sharp((out.at, *out.value))], gone, [*filter(sharp, expected)])
        if blurred:
            late = {it.number for it in used if it.late}
            given = [(out.at, *out.value) for out in came[name]]
            assert len({*given}) == len(given)
            assert {row for row in expected if not {*row[1:3]} & late and None not in row[1:3]} <= {*given}
            assert {row for row in given if None not in row[1:3]} <= {*expected}
        assert everyone or not any(out.late for out in came[name])

    return Kind(f"{name}: join in {windowing.name} {how} {lateness=} {everyone=}", add, check)


def late_places(rows: Sequence[Item], of: Callable[[int], list[tuple[int, int]]]) -> set[tuple[str, int]]:
    """Shop and start of windows that a late item is in: it may be in time for the later ones of its windows only."""
    return {(it.shop, start) for it in rows if it.late for start, _ in of(it.time)}


def rows_of_windows(
    how: str, rows: Sequence[Item], of: Callable[[int], list[tuple[int, int]]]
) -> list[tuple[int, int | None, int | None, int, int]]:
    found: list[tuple[int, int | None, int | None, int, int]] = []
    for both in sides(rows):
        groups: dict[tuple[int, int], tuple[list[Item], list[Item]]] = defaultdict(lambda: ([], []))
        for side, members in enumerate(both):
            for it in members:
                for window in of(it.time):
                    groups[window][side].append(it)
        for (start, end), (left, right) in groups.items():
            found += [(max(a.time, b.time), a.number, b.number, start, end) for a, b in product(left, right)]
            if not left or not right:
                found += [(*row, start, end) for row in alone(how, left, right, set(), at(end - 1))]
    return found


def session_join(name: str, dice: random.Random) -> Kind:
    """Pairs of one session, when it is over."""
    how, per_key, lateness = dice.choice(HOWS), dice.random() < 0.5, dice.choice([0, 5 * SECOND])
    everyone = dice.random() < 0.5

    def add(ground: Ground) -> None:
        left, right = (ground.all_left, ground.all_right) if everyone else (ground.left, ground.right)
        dropped = ground.dropped(name)
        step: Any = left.join(
            right, Sessions(gap_of if per_key else GAP), how, lateness=lateness, name=f"{name}.step", dropped=dropped,  # type: ignore[call-overload]
            other_dropped=dropped,
        )  # fmt: skip
        ground.gives(name, step, lambda it: [*numbers(it), it.start, it.end])
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        gone = came[f"{name}_dropped"]
        used = taken(rows if everyone else punctual(rows), gone)
        by_number = {it.number: it for it in used}
        expected = []
        for (_, start, end), members in bursts(used, gap_of if per_key else lambda _: GAP).items():
            left = [by_number[n] for n in members if is_left(by_number[n])]
            right = [by_number[n] for n in members if not is_left(by_number[n])]
            expected += [(end - 1, a.number, b.number, start, end) for a, b in product(left, right)]
            if not left or not right:
                expected += [(*row, start, end) for row in alone(how, left, right, set(), lambda *_, end=end: end - 1)]  # type: ignore[misc]
        late = [it for it in used if it.late]
        shops = {it.number: it.shop for it in rows}

        def sharp(row: tuple[Any, ...]) -> bool:
            """No late item touches this session, so it has one form only."""
            shop = shops[next(n for n in row[1:3] if n is not None)]
            gap = gap_of(shop) if per_key else GAP
            return not any(it.shop == shop and row[3] - gap <= it.time < row[4] for it in late)

        given = [out for out in came[name] if sharp((out.at, *out.value))]
        same(given, [*filter(sharp, expected)])
        assert not any(out.late for out in given)
        if not everyone:
            return
        assert all(out.at == out.value[3] - 1 for out in came[name])
        for out in came[name]:
            times = [by_number[n].time for n in out.value[:2] if n is not None]
            assert out.value[2] <= min(times), out
            assert max(times) < out.value[3], out
        # What is late may come when the session that it would have been in is over: then it has one of its own.
        pairs = [tuple(out.value[:2]) for out in came[name] if None not in out.value[:2]]
        assert len({*pairs}) == len(pairs), pairs
        assert {*pairs} <= {row[1:3] for row in expected}
        timely = {it.number for it in punctual(rows)}
        whole = bursts(punctual(rows), gap_of if per_key else lambda _: GAP).values()
        sure = {(a, b) for of in whole for a in of for b in of if is_left(by_number[a]) and not is_left(by_number[b])}
        assert sure <= {*pairs}, sure - {*pairs}
        assert not {out.value for out in gone} & timely

    return Kind(f"{name}: join in sessions {how} {lateness=} {everyone=}", add, check)


def join_all(name: str, dice: random.Random) -> Kind:
    """Three chains in one window."""
    outer = dice.random() < 0.5
    windowing = dice.choice(WINDOWINGS[:5])

    def add(ground: Ground) -> None:
        def third(of: int) -> KeyedChain[Item]:
            return ground.keyed(ground.flow.read(items).filter(lambda it: not it.late and it.number % 3 == of))

        chains = [third(of) for of in range(3)]
        step = ground.flow.join_all(chains, windowing.windows, outer=outer, name=f"{name}.step")
        ground.gives(name, step, lambda it: [*(v and v.number for v in it.values), it.start, it.end])

    def check(rows: Sequence[Item], came: Came) -> None:
        expected: list[tuple[Any, ...]] = []
        for members in by_shop(punctual(rows)).values():
            groups: dict[tuple[int, int], list[list[Item]]] = defaultdict(lambda: [[], [], []])
            for it in members:
                for window in windowing.of(it.time):
                    groups[window][it.number % 3].append(it)
            for (start, end), thirds in groups.items():
                if all(thirds):
                    expected += [
                        (max(it.time for it in row), *(it.number for it in row), start, end) for row in product(*thirds)
                    ]
                elif outer:
                    expected += [
                        (end - 1, *row, start, end) for row in product(*(numbers_of(third) for third in thirds))
                    ]
        same(came[name], expected)
        assert not any(out.late for out in came[name])

    return Kind(f"{name}: join of three in {windowing.name} {outer=}", add, check)


def versions(name: str, dice: random.Random) -> Kind:
    """Each left item with the newest right one that is not newer."""
    how, lateness = dice.choice(["inner", "left"]), dice.choice([0, 5 * SECOND])

    def add(ground: Ground) -> None:
        step: Any = ground.left.join_as_of(ground.right, how, lateness=lateness, name=f"{name}.step")  # type: ignore[call-overload]
        ground.gives(name, step, numbers)

    def check(rows: Sequence[Item], came: Came) -> None:
        expected: list[Row] = []
        for left, right in sides(punctual(rows)):
            for it in left:
                version = max((v for v in right if v.time <= it.time), key=lambda v: (v.time, v.number), default=None)
                if version is not None or how == "left":
                    expected.append((it.time, it.number, None if version is None else version.number))
        same(came[name], expected)
        assert not any(out.late for out in came[name])

    return Kind(f"{name}: versions {how} {lateness=}", add, check)


def ones(name: str, dice: random.Random) -> Kind:
    """Each left item with the one of its shop, which is any right item; it is kept at least for `forget_after`."""
    forget_after = dice.choice([None, 8 * SECOND, 30 * SECOND])
    of = dice.choice(["first", "late"])

    def one(rows: Sequence[Item]) -> set[int]:
        found = [right[0 if of == "first" else len(right) // 2] for _, right in sides(punctual(rows)) if right]
        return {it.number for it in found}

    def add(ground: Ground) -> None:
        the = one(ground.rows)
        right = ground.keyed(ground.flow.read(items).filter(lambda it: it.number in the and not it.late))
        step = ground.left.join_one(right, forget_after=forget_after, name=f"{name}.step")
        ground.gives(name, step, numbers)

    def check(rows: Sequence[Item], came: Came) -> None:
        the, expected, sure = one(rows), [], []
        for left, right in sides(punctual(rows)):
            for partner in (it for it in right if it.number in the):
                pairs = [(max(it.time, partner.time), it.number, partner.number) for it in left]
                expected += pairs
                newest = sorted(it.time for it in [*left, partner])
                for it, pair in zip(left, pairs, strict=True):
                    first, last = sorted((it.time, partner.time))
                    between = [time for time in newest if first <= time <= last]
                    if forget_after is None or all(b - a < forget_after - 3 * SECOND for a, b in pairwise(between)):
                        sure.append(pair)
        found = Counter((out.at, *out.value) for out in came[name])
        assert found <= Counter(expected), found - Counter(expected)
        assert Counter(sure) <= found, Counter(sure) - found
        assert forget_after is not None or found == Counter(expected)
        assert not any(out.late for out in came[name])

    return Kind(f"{name}: join of one {forget_after=} {of}", add, check, (f"{name}.step",))


def aggregates(name: str, dice: random.Random) -> Kind:
    """Each left item with all right ones near it."""
    how = dice.choice(["inner", "left"])
    before, after = dice.choice([0, SECOND, 8 * SECOND]), dice.choice([0, 2 * SECOND])
    own = dice.random() < 0.4
    everyone, lateness = dice.random() < 0.4, dice.choice([0, 5 * SECOND])

    def reach(it: Item) -> int:
        return it.number % 4 * SECOND

    def span(it: Item) -> tuple[int, int]:
        return (it.time, it.time + reach(it)) if own else (it.time - before, it.time + after)

    def add(ground: Ground) -> None:
        left, right = (ground.all_left, ground.all_right) if everyone else (ground.left, ground.right)
        dropped = ground.dropped(name)
        within: Any = reach if own else Interval(before=us(before), after=us(after))
        step = left.join_aggregate(
            right, within, collect(int, lambda it: it.number), how, name=f"{name}.step", lateness=lateness,  # type: ignore[call-overload]
            dropped=dropped, other_dropped=dropped,
        )  # fmt: skip
        ground.gives(name, step, lambda it: [it.left.number, str(sorted(it.right)), it.start, it.end])
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        gone = came[f"{name}_dropped"]
        expected = []
        for left, right in sides(taken(rows if everyone else punctual(rows), gone)):
            for it in left:
                first, last = span(it)
                partners = [p.number for p in right if first <= p.time <= last]
                if partners or how == "left":
                    expected.append((last, it.number, str(sorted(partners)), first, last + 1))
        same(came[name], expected)
        assert not {out.value for out in gone} & {it.number for it in punctual(rows)}
        assert everyone or not any(out.late for out in came[name])

    return Kind(f"{name}: aggregates {how} {before=} {after=} {own=} {lateness=} {everyone=}", add, check)


def running(name: str, dice: random.Random) -> Kind:
    """Up to each item, in order of event time."""
    last, lateness, everyone = dice.choice([None, 1, 3]), dice.choice([0, 5 * SECOND]), dice.random() < 0.5

    def add(ground: Ground) -> None:
        keyed, dropped = ground.everyone if everyone else ground.punctual, ground.dropped(name)
        step: Any = keyed.running(
            collect(int, lambda it: it.number), last=last, lateness=lateness, order=lambda it: it.number,
            name=f"{name}.step", dropped=dropped,
        )  # fmt: skip

        def text(it: Running[Item, list[int]]) -> list[Any]:
            return [it.value.number, str(sorted(it.result))]

        ground.gives(name, step, text)
        ground.drops(name, dropped)

    def check(rows: Sequence[Item], came: Came) -> None:
        gone = came[f"{name}_dropped"]
        used, expected, order = taken(rows if everyone else punctual(rows), gone), [], {}
        for shop, members in by_shop(used).items():
            members.sort(key=lambda it: (it.time, it.number))
            order[shop] = [it.number for it in members]
            for place, it in enumerate(members):
                first = 0 if last is None else max(0, place + 1 - last)
                expected.append((it.time, it.number, str(sorted(m.number for m in members[first : place + 1]))))
        same(came[name], expected)
        shops = {it.number: it.shop for it in rows}
        for shop, wanted in order.items():
            found = [out.value[0] for out in came[name] if shops[out.value[0]] == shop]
            assert found == wanted, (shop, {it.number: it.time for it in used}, found, wanted)
        assert not {out.value for out in gone} & {it.number for it in punctual(rows)}
        assert everyone or not any(out.late for out in came[name])

    return Kind(f"{name}: running {last=} {lateness=} {everyone=}", add, check)


JOINS = [interval, interval, window_join, window_join, session_join, join_all, versions, ones, aggregates, running]
