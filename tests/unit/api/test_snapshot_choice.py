"""The choice of a durability is checked where it is written."""

from __future__ import annotations

from typing import Any

import pytest

import millwheel
from millwheel import (
    Checkpoints,
    Computation,
    Context,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    TextCoder,
    subscribe,
)
from millwheel.api.snapshots import Forgotten, HaltingSnapshots, snapshot_every_us
from millwheel.baselines import Baseline
from millwheel.errors import WiringError
from millwheel.launch import import_pipeline
from millwheel.shape import PipelineShape
from millwheel_injectors import IterableSource

texts = Stream("texts", TextCoder())
again = Stream("again", TextCoder())


class Echo(Computation[str]):
    """Sends what it gets."""

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.produce(again, record.value)


def pipeline(durability: Any = None) -> Pipeline:
    made = Pipeline("choice", durability=durability)
    made.inject(IterableSource("rows", [("a", 1)]), into=texts)
    return made


def test_checkpoints_are_the_default_and_snapshots_say_how_often() -> None:
    found = []
    for durability in (None, Checkpoints(), Snapshots(), Snapshots(every_ms=20)):
        made = pipeline(durability)
        made.add(Echo, [subscribe(texts, key=str)], [again])
        found.append(made.graph().snapshot_every_us)
    assert found == [0, 0, 1_000_000, 20_000]


@pytest.mark.parametrize("every_ms", [0, -1, 9, 1.5, True, "1000"])
def test_an_interval_that_cannot_be_is_refused(every_ms: Any) -> None:
    with pytest.raises(WiringError, match="whole number of at least 10"):
        Snapshots(every_ms=every_ms)


def test_what_is_no_durability_is_refused() -> None:
    with pytest.raises(WiringError, match=r"use Checkpoints\(\) or Snapshots"):
        pipeline("snapshots")
    with pytest.raises(WiringError, match="durability="):
        snapshot_every_us(1_000)  # type: ignore[arg-type]


def test_the_store_is_told_whether_there_are_epochs_and_not_how_often() -> None:
    """Processes of a cluster must agree on that, or nothing that is declared is a cut of all of them."""

    def shape(durability: Checkpoints | Snapshots) -> PipelineShape:
        made = pipeline(durability)
        made.add(Echo, [subscribe(texts, key=str)], [again])
        return made.graph().shape()

    assert not shape(Checkpoints()).snapshots
    assert shape(Snapshots()).snapshots
    assert shape(Snapshots(every_ms=20)) == shape(Snapshots(every_ms=1_000))


def test_a_loop_may_take_snapshots() -> None:
    made = pipeline(Snapshots())
    made.add(Echo, [subscribe(texts, key=str), subscribe(again, key=str)], [again])
    assert [loop.back_edges for loop in made.graph().loops] == [(("Echo", "Echo"),)]


def test_what_is_for_comparisons_is_no_name_of_the_package_and_no_pipeline_of_a_command() -> None:
    assert not {"Baseline", "Forgotten", "HaltingSnapshots"} & set(dir(millwheel))
    for name in ("halting", "forgetting"):
        with pytest.raises(WiringError, match="is for comparisons in benchmarks"):
            import_pipeline(f"{__name__}:{name}")
    assert import_pipeline(f"{__name__}:exact").baseline is Baseline.NONE


halting, forgetting, exact = pipeline(HaltingSnapshots(every_ms=20)), pipeline(Forgotten()), pipeline(Snapshots())


def test_what_is_for_comparisons_has_no_loops_and_what_forgets_no_sinks() -> None:
    for durability in (HaltingSnapshots(), Forgotten()):
        made = pipeline(durability)
        made.add(Echo, [subscribe(texts, key=str), subscribe(again, key=str)], [again])
        with pytest.raises(WiringError, match="has no loops"):
            made.graph()
    for durability in (HaltingSnapshots(), Forgotten()):
        made = pipeline(durability)
        made.sink(Table("shown", {"word": "text"}, ("word",)))
        made.add(Echo, [subscribe(texts, key=str)], [again])
        if isinstance(durability, HaltingSnapshots):
            assert made.graph().durable
            continue
        with pytest.raises(WiringError, match="would never be seen"):
            made.graph()
