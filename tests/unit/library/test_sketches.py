"""Sketches: near the truth, small, and read again from what is stored."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from millwheel import MsgpackCoder
from millwheel.errors import CoderError, WiringError
from millwheel.library import Fixed, sketches
from millwheel.testing import NO_FAULTS, Stepper, simulate
from tests.unit.library.pipelines import Score, panes, send, windowed


def itself(value: Any) -> Any:
    return value


def gathered(of: Any, values: list[Any]) -> Any:
    sketch = of.zero()
    for value in values:
        sketch = of.accumulator.decode(of.accumulator.encode(of.add(sketch, value)))
    return sketch


@pytest.mark.parametrize("number", [0, 1, 100, 1_000, 20_000])
def test_distinct_is_near_and_does_not_depend_on_order_or_cut(number: int) -> None:
    of = sketches.distinct(itself)
    values = [f"user {n}" for n in range(number)] * 2
    found = of.result(gathered(of, values))
    assert found == pytest.approx(number, rel=0.05, abs=0.01)
    random.Random(7).shuffle(values)
    parts = of.merge(gathered(of, values[: number // 3]), gathered(of, values[number // 3 :]))
    assert of.result(gathered(of, values)) == found
    assert of.result(parts) == found
    assert len(of.accumulator.encode(parts)) < 5_000


def test_quantiles_are_near() -> None:
    of = sketches.quantiles(itself, at=[0.01, 0.5, 0.99])
    values = [float(n) for n in range(10_000)]
    random.Random(7).shuffle(values)
    whole = of.result(gathered(of, values))
    parts = of.result(of.merge(gathered(of, values[:3_000]), gathered(of, values[3_000:])))
    for result in (whole, parts):
        assert result is not None
        assert result[1] == pytest.approx(5_000, abs=150)
        assert [result[0], result[2]] == pytest.approx([100, 9_900], abs=15)
    assert of.result(of.zero()) is None


def test_sketches_work_in_windows_under_faults() -> None:
    rows = {"scores": [(Score("ann", n % 40), n * 1_000) for n in range(200)]}
    made = [windowed(Fixed(seconds=10), aggregation=sketches.distinct(lambda score: score.points)) for _ in range(2)]
    calm, rough = simulate(made[0], rows, faults=NO_FAULTS), simulate(made[1], rows, seed=3)
    assert calm.outputs(panes) == rough.outputs(panes)
    assert [round(out.value.value) for out in calm.outputs(panes)] == [40]


def test_quantiles_in_a_window() -> None:
    stepper = Stepper(windowed(Fixed(seconds=10), aggregation=sketches.quantiles(lambda score: score.points, at=[0.5])))
    for points in (1, 2, 9):
        send(stepper, "ann", points, 1)
    stepper.finish()
    assert [out.value.value for out in stepper.outputs(panes)] == [[2.0]]


def test_mistakes_are_refused() -> None:
    with pytest.raises(WiringError):
        sketches.distinct(itself, precision=3)
    with pytest.raises(WiringError):
        sketches.quantiles(itself, at=[50])
    with pytest.raises(CoderError):
        sketches.distinct(itself).accumulator.decode(MsgpackCoder(str).encode("no sketch"))


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    with pytest.raises(WiringError, match="sketches"):
        sketches.distinct(itself)
