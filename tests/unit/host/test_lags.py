"""The lag of a pipeline is that of its slowest computation behind the sources whose records it has."""

from __future__ import annotations

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.host.lags import lag_us, origins_of
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel_injectors import IterableSource

one, other, between = (Stream(name, TextCoder()) for name in ("one", "other", "between"))


class Pass(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


def test_sources_of_a_computation_are_those_before_it() -> None:
    pipeline = Pipeline("flows")
    pipeline.inject(IterableSource("a", []), into=one)
    pipeline.inject(IterableSource("b", []), into=other)
    pipeline.add(Pass, [subscribe(one, str)], [between], name="x")
    pipeline.add(Pass, [subscribe(between, str)], name="y")
    pipeline.add(Pass, [subscribe(other, str), subscribe(between, str)], name="z")
    pipeline.add(Pass, [subscribe(other, str)], name="w")
    a, b = "source:a", "source:b"
    assert origins_of(pipeline.graph()) == {"x": {a}, "y": {a}, "z": {a, b}, "w": {b}}


def test_those_of_a_loop_end() -> None:
    pipeline = Pipeline("loop")
    pipeline.inject(IterableSource("a", []), into=one)
    pipeline.add(Pass, [subscribe(one, str), subscribe(between, str)], [between], name="x")
    assert origins_of(pipeline.graph()) == {"x": {"source:a"}}


@pytest.mark.parametrize(
    ("a", "b", "x", "w", "lag"),
    [
        (100, 900, 90, 300, 600),  # a source that is far behind hides nothing of the other flow
        (900, 100, 300, 90, 600),
        (MAX_TIME, 900, 300, 890, 10),  # what has all of its input is behind nothing
        (100, 900, 90, MIN_TIME, None),
        (MAX_TIME, MAX_TIME, 300, 300, None),
    ],
)
def test_each_is_compared_with_its_own(a: int, b: int, x: int, w: int, lag: int | None) -> None:
    origins = {"x": frozenset({"source:a"}), "w": frozenset({"source:b"})}
    assert lag_us({"source:a": a, "source:b": b, "x": x, "w": w}, origins) == lag
