"""Twelve small scenarios for the crash points: each must end the same whatever breaks at whichever step."""

from __future__ import annotations

from typing import Any

from millwheel.model import SECOND
from millwheel.testing.sources import Script
from tests.sim.workload import StageSpec, Token, Workload, World, _number, build

START_US = 1_000 * SECOND
TINY = {"FOLD_TRIGGER_CHECKPOINTS": 2, "LOG_LIMIT_CHECKPOINTS": 4, "IDLE_RECORD_DELAY_US": 20_000}


def _two(**settings: Any) -> list[StageSpec]:
    return [
        StageSpec(name="a", inputs=[("in0", "left")], output="sa", settings=dict(settings)),
        StageSpec(name="b", inputs=[("sa", "left")], sink=True),
    ]


def _one_by_one() -> list[StageSpec]:
    return _two(work_limit_records=1)


def _poison_holds() -> list[StageSpec]:
    return _two(quarantine_holds=True)


def _windows() -> list[StageSpec]:
    stages = _two()
    stages[0].windows = stages[0].holds = True
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


def _wall() -> list[StageSpec]:
    stages = _two()
    stages[1].wall = True
    return stages


SCENARIOS = {
    "one record at a time": (_one_by_one, ""), "windows and holds": (_windows, ""), "weak": (_weak, ""),
    "weak windows": (_weak_windows, ""), "several intervals": (_split, ""),
    "tiny caches": (_tiny_cache, ""), "subscribed twice": (_twice, ""), "three stages": (_three, ""),
    "wall timers": (_wall, ""), "poison and redrive": (_two, "raise"),
    "poison that holds the watermark": (_poison_holds, "raise"), "refused rows and redrive": (_two, "row"),
}  # fmt: skip
"""How to make the stages, and what the second token's hook does."""


def scenario(name: str, rows: int = 5) -> Workload:
    """A fresh workload of this name."""
    make, bad = SCENARIOS[name]
    stages = make()
    tokens = [Token(f"t{i}", i, "la" if i % 3 else "lz", "rb" if i % 2 else "ry", "") for i in range(rows)]
    tokens[1].bad = bad
    _number(tokens, "p")
    times = [SECOND + 70_000 * i for i in range(rows)]
    script = Script("p", list(zip(tokens, times, strict=True)), [START_US + 4_000 * i for i in range(rows)])
    world = World()
    for stage in stages:
        stage.honest = not bad
    pipeline = build(stages, {"in0": [script]}, world)
    return Workload(pipeline.graph(), pipeline.tables, stages, {"in0": [script]}, world, bool(bad), TINY)
