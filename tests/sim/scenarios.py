"""Fifteen small scenarios for the crash points: each must end the same whatever breaks at whichever step."""

from __future__ import annotations

from typing import Any

from millwheel.model import SECOND
from millwheel.testing.kit.scripted import Script
from tests.sim.workload.drawing import Workload, build, number_tokens
from tests.sim.workload.ledger import StageSpec, Token, World

START_US = 1_000 * SECOND
TINY: dict[str, float] = {
    "OUTSIDE_FILTER_BITS": 2,
    "OUTSIDE_FILTER_IDS": 1,
    "OUTSIDE_READ_IDS": 2,
    "ID_BUCKET_US": 1,
    "FOLD_TRIGGER_CHECKPOINTS": 2,
    "LOG_LIMIT_CHECKPOINTS": 4,
    "IDLE_RECORD_DELAY_US": 20_000,
    "TIMER_PAGE_ROWS": 2,
    "TIMERS_IN_MEMORY": 2,
    "SEEN_FIRST_KEYS": 16,
    "SEEN_BITS_A_KEY": 1,
    "REDRIVE_ELEMENTS": 2,
    "REDRIVE_REQUESTS": 2,
}


def _two(**settings: Any) -> list[StageSpec]:
    return [
        StageSpec(name="a", inputs=[("in0", "left")], output="sa", settings=dict(settings)),
        StageSpec(name="b", inputs=[("sa", "left")], sink=True),
    ]


def _one_by_one() -> list[StageSpec]:
    return _two(work_limit_records=1)


def _all_poison() -> list[StageSpec]:
    """A key for every record, and each is poison."""
    return _two()


def _poison_holds() -> list[StageSpec]:
    return _two(quarantine_holds=True)


def _refused() -> list[StageSpec]:
    stages = _two(work_limit_records=2)
    stages[0].sink = True
    return stages


def _windows() -> list[StageSpec]:
    stages = _two()
    stages[0].windows = stages[0].holds = stages[0].ticks = True
    return stages


def _weak() -> list[StageSpec]:
    stages = _two(productions="weak", straggler_delay_us=1_000)
    stages[1].exact = False
    return stages


def _weak_windows() -> list[StageSpec]:
    stages = _weak()
    stages[0].windows = True
    return stages


def _split() -> list[StageSpec]:
    stages = _two(split_keys=("lb",))
    stages[1].settings["split_keys"] = ("lb", "ln")
    return stages


def _tiny_cache() -> list[StageSpec]:
    stages = _two(cache_limit_bytes=1)
    stages[1].settings["cache_limit_bytes"] = 1
    return stages


def _twice() -> list[StageSpec]:
    stages = _two()
    stages[1].inputs = [("sa", "left"), ("sa", "right")]
    return stages


def _three() -> list[StageSpec]:
    b = StageSpec(name="b", inputs=[("sa", "left")], output="sb", windows=True)
    return [_two()[0], b, StageSpec(name="c", inputs=[("sb", "right")], sink=True)]


def _pages() -> list[StageSpec]:
    """A key for every record, all with a timer for the same moment: more than a page of them."""
    stages = _two(cache_limit_bytes=1)
    stages[0].windows = stages[1].wall = True
    return stages


def _wall() -> list[StageSpec]:
    stages = _two()
    stages[1].wall = True
    return stages


def _outside() -> list[StageSpec]:
    """Two partitions, in which clients have sent some rows twice: `scenario` sees to it."""
    return _two(split_keys=("lb",))


SCENARIOS = {
    "one record at a time": (_one_by_one, False), "windows and holds": (_windows, False), "weak": (_weak, False),
    "weak windows": (_weak_windows, False), "several intervals": (_split, False),
    "tiny caches": (_tiny_cache, False), "subscribed twice": (_twice, False), "three stages": (_three, False),
    "wall timers": (_wall, False), "poison and redrive": (_two, True),
    "many keys redriven at once": (_all_poison, True),
    "poison that holds the watermark": (_poison_holds, True),
    "refused sink rows": (_refused, True), "clients send again": (_outside, False),
    "timers in pages": (_pages, False),
}  # fmt: skip


def scenario(name: str, rows: int = 5) -> Workload:
    """A fresh workload of this name."""
    make, poisoned = SCENARIOS[name]
    stages = make()
    tokens = [Token(f"t{i}", i, "la" if i % 3 else "lz", "rb" if i % 2 else "ry", "") for i in range(rows)]
    world = World()
    if name == "refused sink rows":
        world.refused_of = 3
    elif make is _all_poison:
        for i, token in enumerate(tokens):
            token.left, token.bad = f"l{i}", "raise"
    elif poisoned:
        tokens[1].bad = "raise"
    if make is _pages:
        for i, token in enumerate(tokens):
            token.left = f"l{i}"
    number_tokens(tokens, "p")
    times = [SECOND + (1 if make is _pages else 70_000) * i for i in range(rows)]
    given = list(zip(tokens, times, strict=True))
    scripts = [Script("p", given, [START_US + 4_000 * i for i in range(rows)])]
    if make is _outside:
        scripts = _sent_again(given)
    for stage in stages:
        stage.honest = not poisoned
    pipeline = build(stages, {"in0": scripts}, world)
    return Workload(pipeline.graph(), pipeline.tables, stages, {"in0": scripts}, world, poisoned, TINY)


def _sent_again(given: list[tuple[Token, int]]) -> list[Script]:
    """The rows, of which the first comes again at once and at the end, and all but it in another partition as well."""
    for token, _ in given:
        token.outside = True
        token.left_order = token.right_order = 0  # which copy is taken is open, and with it the order
    first = [given[0], *given, given[0]]
    return [
        Script("p", first, [START_US + 4_000 * i for i in range(len(first))]),
        Script("q", given[1:], [START_US + 6_000 * i for i in range(len(given) - 1)]),
    ]
