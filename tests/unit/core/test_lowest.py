"""Lowest reports against a dict, with a sample so small that the heap is filled again and again."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.core.lowest import LowestReports

names = st.integers(0, 30)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), names, st.integers(-9, 9)),
        st.tuples(st.just("rise"), names, st.integers(0, 9)),
        st.tuples(st.just("remove"), names, st.just(0)),
        st.tuples(st.just("ask"), names, st.just(0)),
    ),
    max_size=120,
)


@pytest.fixture(scope="module", autouse=True, params=[2, 5, 1_024])
def sample(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MINIMA_SAMPLE", request.param)
        yield


@given(steps)
def test_lowest_reports_are_a_dict_with_a_minimum(made: list[tuple[str, int, int]]) -> None:
    found, model = LowestReports[int](), dict[int, int]()
    for step, name, value in made:
        if step == "remove":
            found.remove(name)
            model.pop(name, None)
        elif step != "ask":
            model[name] = value if step == "set" else model.get(name, 0) + value
            found.set(name, model[name])
        if step == "ask":
            assert found.minimum() == min(model.values(), default=None)
        assert found.values == model
    assert found.minimum() == min(model.values(), default=None)


def test_what_is_stale_does_not_heap_up() -> None:
    found, dice = LowestReports[int](), random.Random(5)
    for name in range(100):
        found.set(name, 0)
    assert found.minimum() == 0
    for _ in range(50_000):
        found.set(dice.randrange(100), -dice.randrange(1_000_000))
    assert len(found._least) <= max(limits.MINIMA_SAMPLE, 200) + 1
    assert found.minimum() == min(found.values.values())
