"""Storms: a run is killed and goes on, several times, and calls of its store take long by chance; then results are compared.

Lives here: what has state, each against an oracle that plain Python computes from the input.  Never here: the store that
kills and delays (`mortal`).  A seed draws what is killed, how long calls take, which durability and which split keys each run
has.  What threads do is not drawn, so a seed that failed may have to run some times to fail again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

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
    TextCoder,
    Timer,
    limits,
    subscribe,
)
from millwheel.core.source import injector
from millwheel.library import (
    AtWatermark,
    Chain,
    EveryRecords,
    Fixed,
    Flow,
    Interval,
    Sessions,
    Sliding,
    collect,
    seconds,
)
from millwheel_injectors import BoundedDisorder, IterableSource
from millwheel_storage.memory import MemoryStore
from tests.integration import test_library_combiner as combined
from tests.integration.test_combiner_later import DURABILITIES, kills, run_on
from tests.unit.runtime.mortal import NEVER, Delays, Slow, run_killed


class Item(msgspec.Struct, frozen=True):
    shop: str
    number: int


ROWS, SIZE, STEP, GAP = 120, 10 * SECOND, 5 * SECOND, 4 * SECOND
REACH = 2 * SECOND


def shop_of(number: int) -> str:
    return "hot" if number % 2 else f"shop {number % 5}" if number % 3 else "s"


def is_late(number: int) -> bool:
    return number % 7 == 3


def time_of(number: int) -> int:
    return number * SECOND // 3 - (25 * SECOND if is_late(number) else 0)


PUNCTUAL = [n for n in range(ROWS) if not is_late(n)]
LEFT = [n for n in PUNCTUAL if n % 5 < 2]

items = Stream("items", MsgpackCoder(Item))
twice = Stream("twice", MsgpackCoder(Item))
spans = Stream("spans", MsgpackCoder(Item))
late = Stream("late", MsgpackCoder(Item))
behind = Stream("behind", MsgpackCoder(Item))
STEPS = ("fixed", "sliding", "counted", "sessions", "once", "joined", "versions", "held")
OUT = {step: Stream(f"of_{step}", TextCoder()) for step in STEPS}


class Span(Computation[Item]):
    """Keeps items until the watermark is at the end of ten seconds, with a hold at the first of them, and sends them on."""

    kept = ListCell(MsgpackCoder(Item))

    def ProcessRecord(self, context: Context, record: Record[Item]) -> None:
        if not self.kept:
            context.hold(record.timestamp)
            context.set_timer("end", record.timestamp // SIZE * SIZE + SIZE)
        self.kept.append(record.value)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        for item in self.kept:
            context.produce(spans, item, time_of(item.number))
        self.kept.clear()
        context.release_hold()


class Seen(Computation[Any]):
    """All that came from each step."""

    came = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        it = record.value
        self.came.append(str(it.number) if isinstance(it, Item) else it)


def slow(item: Item) -> int:
    time.sleep(0.0003)  # so that some epochs pass
    return item.number


def pane(it: Any) -> str:
    return msgspec.json.encode([it.timing, it.key, it.start, it.end, sorted(it.value)]).decode()


def row(it: Any) -> str:
    return msgspec.json.encode([it.left and it.left.number, it.right and it.right.number]).decode()


def everything(durability: str, splits: list[str]) -> Pipeline:
    pipeline = Pipeline("storm", durability=DURABILITIES[durability]())
    rows = [(Item(shop_of(n), n), time_of(n)) for n in range(ROWS)]
    pipeline.inject(IterableSource("rows", rows, BoundedDisorder()), into=items)
    again = sorted((n + later, n) for n in PUNCTUAL for later in (0, 20))
    pipeline.inject(IterableSource("again", [(Item(shop_of(n), n), time_of(n)) for _, n in again]), into=twice)
    flow = Flow(pipeline)
    everyone = flow.read(items).key_by(lambda item: item.shop, splits)
    punctual = flow.read(items).filter(lambda item: not is_late(item.number))
    by_shop = punctual.key_by(lambda item: item.shop, splits)

    def gives(step: str, chain: Chain[Any], text: Callable[[Any], str] = pane) -> None:
        chain.map(text).to(OUT[step])

    numbers = collect(int, slow)
    gives("fixed", everyone.window(Fixed(SIZE), lateness=seconds(5)).aggregate(numbers, "Fixed", late))
    gives("sliding", by_shop.window(Sliding(SIZE, every=STEP)).aggregate(numbers, "Sliding"))
    counted = by_shop.window(Sliding(SIZE, every=STEP), AtWatermark(EveryRecords(2)))
    gives("counted", counted.aggregate(numbers, "Counted"))
    gives("sessions", by_shop.window(Sessions(GAP)).aggregate(numbers, "Sessions"))
    unique = flow.read(twice).key_by(lambda item: item.shop, splits)
    gives("once", unique.deduplicate(seconds(60), lambda item: str(item.number), "Once"), lambda item: str(item.number))
    left, right = (
        side.key_by(lambda item: item.shop, splits) for side in punctual.branch(lambda it: it.number in LEFT)
    )
    gives("joined", left.join(right, Interval(before=REACH, after=REACH), "outer", name="Joined"), row)
    gives("versions", left.join_as_of(right, "left", name="Versions"), row)
    only = subscribe(items, lambda item: None if is_late(item.number) else item.shop)
    pipeline.add(Span, [only], [spans], split_keys=splits)
    held = flow.read(spans).key_by(lambda item: item.shop, splits)
    gives("held", held.window(Fixed(SIZE)).aggregate(numbers, "Held", behind))
    of_steps = [subscribe(stream, lambda _, step=step: step) for step, stream in OUT.items()]  # type: ignore[misc]
    dropped = [subscribe(late, lambda _: "late"), subscribe(behind, lambda _: "behind")]
    pipeline.add(Seen, [*of_steps, *dropped])
    return pipeline


def windows(numbers: list[int], step: int) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for n in numbers:
        first = time_of(n) // step * step
        for start in range(first, time_of(n) - SIZE, -step):
            found.setdefault((shop_of(n), start), []).append(n)
    return found


def bursts() -> list[list[int]]:
    found: list[list[int]] = []
    for shop in {shop_of(n) for n in PUNCTUAL}:
        of_shop = [n for n in PUNCTUAL if shop_of(n) == shop]
        for before, n in zip([None, *of_shop], of_shop, strict=False):
            if before is None or time_of(n) - time_of(before) >= GAP:
                found.append([])
            found[-1].append(n)
    return found


def joined() -> list[list[int | None]]:
    right = [n for n in PUNCTUAL if n not in LEFT]
    near: list[list[int | None]] = [
        [n, m] for n in LEFT for m in right if shop_of(n) == shop_of(m) and abs(time_of(n) - time_of(m)) <= REACH
    ]
    alone = {n for pair in near for n in pair}
    return near + [[n, None] for n in LEFT if n not in alone] + [[None, m] for m in right if m not in alone]


def versions() -> list[list[int | None]]:
    def version(n: int) -> int | None:
        return max((m for m in PUNCTUAL if m not in LEFT and m <= n and shop_of(m) == shop_of(n)), default=None)

    return [[n, version(n)] for n in LEFT]


def all_is_right(store: MemoryStore) -> None:
    came = {
        key: [msgspec.json.decode(value) for (cell, entry), value in sorted(slots.items()) if cell == "came" and entry]
        for key, slots in store.key_state["Seen"].items()
    }
    panes = {step: [msgspec.json.decode(it) for it in came[step]] for step in STEPS if step != "once"}
    assert sorted(map(int, came["once"])) == PUNCTUAL
    for step, rows in {"joined": joined(), "versions": versions()}.items():
        assert Counter(map(str, panes[step])) == Counter(map(str, rows)), step
    assert sorted(it[4] for it in panes["sessions"]) == sorted(bursts())
    for step, size in {"sliding": STEP, "counted": STEP, "held": SIZE}.items():
        on_time = sorted([*it[1:3], it[4]] for it in panes[step] if it[0] == "on time")
        assert on_time == sorted([*place, numbers] for place, numbers in windows(PUNCTUAL, size).items()), step
    assert "behind" not in came
    dropped = [int(it) for it in came.get("late", [])]
    assert len({*dropped}) == len(dropped)
    assert not {*dropped} & {*PUNCTUAL}
    for (shop, start), numbers in windows([*range(ROWS)], SIZE).items():
        given = [it for it in panes["fixed"] if (it[1], it[2]) == (shop, start)]
        assert [it[0] for it in given].count("on time") <= 1, (shop, start, given)
        last = given[-1][4] if given else []
        assert sorted([*last, *(n for n in numbers if n in dropped)]) == numbers, (shop, start, given, dropped)
        punctual = {n for n in numbers if not is_late(n)}
        assert not punctual or punctual <= {*given[0][4]}, (shop, start, given)


def drawn_limits(patch: pytest.MonkeyPatch, dice: random.Random) -> None:
    patch.setattr(injector, "READ_LIMIT_ROWS", dice.choice([3, 9, 20]))
    patch.setattr(injector, "FIRST_READ_ROWS", 3)
    patch.setattr(injector, "ADVANCE_DELAY_US", dice.choice([1_000, 100_000]))
    patch.setattr(limits, "FOLD_TRIGGER_CHECKPOINTS", dice.choice([2, 8, 1_000]))
    patch.setattr(limits, "TIMER_INVOCATIONS", dice.choice([1, 16]))


async def storm(dice: random.Random) -> None:
    store = MemoryStore()
    durability = dice.choice([*DURABILITIES])
    for last in [False] * dice.randrange(1, 4) + [True]:
        if dice.random() < 0.2:
            durability = dice.choice([*DURABILITIES])
        splits = dice.choice([[], ["s"], ["s", "shop 1"]])
        at, done = (NEVER, True) if last else kills(dice.randrange(300))
        await run_killed(everything(durability, splits), store, at, done, Delays(dice))
    assert not store.quarantine
    all_is_right(store)
    assert store.tables()["production"] == []


@pytest.mark.parametrize("seed", range(8))
def test_what_has_state_is_right_after_a_storm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    drawn_limits(monkeypatch, dice)
    asyncio.run(storm(dice))


async def storm_of_combiners(dice: random.Random) -> None:
    """A combiner comes or goes, and a shard is in quarantine at times."""
    store = MemoryStore()
    kind = dice.choice(["set", "sum", "last", "early"])
    before, after = dice.choice([(None, 3), (3, None)])
    durability, then = dice.choice([*DURABILITIES]), dice.choice([*DURABILITIES])
    versions = [(after, durability)] * dice.randrange(2) + [(before, durability)] + [(after, then)] * dice.randrange(2)
    for shards, lasting in versions:
        pipeline = combined.views("views", shards, lasting, combined.touchy, kind)
        await run_killed(pipeline, store, *kills(dice.randrange(130)), Delays(dice))
    await run_killed(combined.views("views", after, then, combined.touchy, kind), store, NEVER, True, Delays(dice))
    for computation, key in [place for place in store.quarantine if place[0].startswith("views")]:
        store.request_redrive(computation, key)
    await run_on(combined.views("views", after, then, combined.calm, kind), store)
    assert not store.quarantine
    combined.each_counts_once(combined.in_memory(store, "Seen"), combined.in_memory(store, "Sliding"), kind)


@pytest.mark.parametrize("seed", range(8))
def test_a_combiner_comes_or_goes_in_a_storm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(seed)
    drawn_limits(monkeypatch, dice)
    asyncio.run(storm_of_combiners(dice))


CALLS = (
    "open_pipeline", "acquire", "recover", "load", "load_slots", "load_timers", "find_ids", "find_outside_ids", "commit",
    "fold", "rewind", "declare", "persist_watermarks", "still_owned", "watermarks", "open_source", "source_partitions",
    "unfinished_partitions", "advance", "redrive_requests",
)  # fmt: skip
"""Of an embedded run."""


@pytest.mark.parametrize(("number", "kind"), [*enumerate(CALLS)])
def test_one_kind_of_call_may_take_long(number: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has begun again, and does not wait for the answer, does what it should not do yet."""
    drawn_limits(monkeypatch, random.Random(number))
    durability = [*DURABILITIES][number % 2]

    async def main() -> None:
        store = MemoryStore()
        for at in (40, 30, 50):
            await run_killed(everything(durability, []), store, *kills(at), Slow(kind, 0.02))
        await run_killed(everything(durability, []), store, NEVER, True, Slow(kind, 0.02))
        all_is_right(store)

    asyncio.run(main())
