"""Windows under crashes, lost replies, duplicates and zombies: the same final panes, and nothing is left."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import SECOND
from millwheel.library import (
    AtWatermark,
    EveryRecords,
    EveryWall,
    Fixed,
    Repeat,
    Sessions,
    Sliding,
    Validity,
    collect,
    seconds,
)
from millwheel.library.panes import Timing
from millwheel.testing import NO_FAULTS, Results, simulate
from tests.unit.library.pipelines import Score, left, panes, windowed

ROWS = [(Score("abcdefg"[n * 5 % 7], n), (n * 13 % 60) * SECOND) for n in range(60)]
SETTINGS: dict[str, dict[str, Any]] = {
    "fixed": {"windows": Fixed(seconds=10)},
    "sliding": {"windows": Sliding(seconds=20, every=seconds(5))},
    "sliding, counted": {
        "windows": Sliding(seconds=20, every=seconds(10)),
        "trigger": AtWatermark(early=EveryRecords(2)),
    },
    "sessions": {"windows": Sessions(seconds=12)},
    "validity": {"windows": Validity()},
    "earliest": {"windows": Fixed(seconds=10), "time": "earliest"},
    "late": {"windows": Fixed(seconds=10), "lateness": seconds(20), "trigger": AtWatermark(late=EveryRecords(2))},
    "early, by the wall": {"windows": Fixed(seconds=10), "trigger": AtWatermark(early=EveryWall(seconds=0.05))},
    "late, by the wall": {
        "windows": Fixed(seconds=10),
        "lateness": seconds(20),
        "trigger": AtWatermark(late=EveryWall(seconds=0.05)),
    },
    "repeat, by the wall": {
        "windows": Fixed(seconds=10),
        "lateness": seconds(20),
        "trigger": Repeat(EveryWall(seconds=0.05)),
    },
    "repeat": {"windows": Fixed(seconds=10), "trigger": Repeat(EveryRecords(3)), "lateness": seconds(20)},
}


def points(score: Score) -> int:
    return score.points


def final(results: Results) -> dict[Any, Any]:
    """The last pane of each window: how many came before it may differ."""
    return {(out.value.key, out.value.window): (out.value.value, out.timestamp) for out in results.outputs(panes)}


@pytest.mark.parametrize("name", SETTINGS)
def test_faults_change_nothing(name: str) -> None:
    def made() -> Any:
        return windowed(aggregation=collect(int, points), **SETTINGS[name])

    calm = simulate(made(), {"scores": ROWS}, faults=NO_FAULTS)
    assert len(final(calm)) > 10
    for seed in range(5):
        rough = simulate(made(), {"scores": ROWS}, seed)
        assert rough.faults
        assert final(rough) == final(calm)
        assert left(rough, ["panes.collect"]) == {}


@pytest.mark.parametrize(("name", "timing"), [("early, by the wall", "early"), ("repeat, by the wall", "late")])
def test_triggers_of_wall_time_do_fire_in_a_simulation(name: str, timing: Timing) -> None:
    given = []
    for seed in range(5):
        outcome = simulate(windowed(aggregation=collect(int, points), **SETTINGS[name]), {"scores": ROWS}, seed)
        given += [out.value.timing for out in outcome.outputs(panes)]
    assert given.count(timing) > (5 if timing == "early" else 0)
