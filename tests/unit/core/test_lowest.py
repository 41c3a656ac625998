"""Lowest reports against a dict, with so few entries that the stretches begin anew again and again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from heapq import heapify, heapreplace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.core import lowest
from millwheel.core.lowest import LowestReports
from millwheel.model import MAX_TIME, MIN_TIME

names = st.integers(0, 15) | st.integers(500, 530)
values = (
    st.integers(-9, 9)
    | st.integers(-(2**40), 2**40)
    | st.integers(MIN_TIME, MAX_TIME)
    | st.sampled_from([MIN_TIME, MAX_TIME])
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), names, values),
        st.tuples(st.just("rise"), names, values),
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
        elif step == "set":
            found.set(name, value)
            model[name] = value
        elif step == "rise":
            rises = value > model.get(name, MIN_TIME)
            assert found.rise(name, value) == rises
            if rises:
                model[name] = value
        else:
            assert found.minimum() == min(model.values(), default=None)
            assert found.values() == model
        assert (len(found), name in found) == (len(model), name in model)
    assert found.values() == model
    assert found.minimum() == min(model.values(), default=None)


def _entries(found: LowestReports[int]) -> int:
    """All that is kept, stale or not."""
    return len(found._run) + len(found._since) + sum(len(stretch) for stretch in found._stretches.values())


@pytest.mark.parametrize("step", [1, 1_000, 10**9])
def test_what_is_stale_does_not_heap_up(step: int) -> None:
    found, dice = LowestReports[int](), random.Random(5)
    for name in range(100):
        found.set(name, 0)
    assert found.minimum() == 0
    for at in range(20_000):
        found.set(dice.randrange(1, 100), at * step + dice.randrange(1_000_000))
    assert _entries(found) <= max(limits.MINIMA_SAMPLE, 200) + 300
    assert found.minimum() == 0
    found.rise(0, 10**18)
    assert found.minimum() == min(found.values().values())


@pytest.mark.parametrize("spread", [10**5, 10**8, 10**12])
def test_a_stretch_has_as_many_values_as_it_should(spread: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one stretch has all of them, or each value has a stretch of its own."""
    monkeypatch.setattr(limits, "MINIMA_SAMPLE", 1_024)
    found, dice = LowestReports[int](), random.Random(7)
    for name in range(8_000):
        found.set(name, MIN_TIME)
        found.minimum()
    for turn in range(3):
        for name in range(8_000):
            found.rise(name, turn * spread + dice.randrange(spread))
    assert found.minimum() == min(found.values().values())
    sizes = [len(stretch) for stretch in found._stretches.values()]
    assert len(sizes) <= 4 * 8_000 // limits.MINIMA_STRETCH + 8
    assert max(sizes) <= 8 * limits.MINIMA_STRETCH


def test_reports_that_move_the_minimum_do_not_begin_anew_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    found, dice, anew = LowestReports[int](), random.Random(9), Counter[str]()
    begin_anew = found._begin_anew

    def counted() -> None:
        anew["times"] += 1
        begin_anew()

    monkeypatch.setattr(found, "_begin_anew", counted)
    known = [(dice.randrange(10**6), name) for name in range(2_000)]
    for value, name in known:
        found.set(name, value)
    anew.clear()
    heapify(known)
    for _ in range(20_000):
        value, name = known[0]
        assert found.minimum() == value
        then = value + dice.randrange(1, 2 * 10**6)
        heapreplace(known, (then, name))
        found.rise(name, then)
    assert anew["times"] <= 1


def test_pages_of_intervals_that_have_gone_go_too() -> None:
    found = LowestReports[int]()
    for name in range(40_000):
        found.set(name, name)
        found.remove(name - 100)
    assert found.minimum() == 39_900
    assert len(found._pages) < 10


def test_values_over_all_of_time_fit_into_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """They make stretches as long as they can be; an entry is a number of 63 bits."""
    monkeypatch.setattr(limits, "MINIMA_SAMPLE", 2)
    found, dice = LowestReports[int](), random.Random(11)
    model = {name: dice.randrange(MIN_TIME, MAX_TIME) for name in range(500, 600)}
    for name, value in model.items():
        found.set(name, value)
    while model:
        least = min(model, key=model.__getitem__)
        assert found.minimum() == model[least]
        if dice.random() < 0.2:
            found.remove(least)
            del model[least]
        else:
            model[least] = dice.randrange(model[least], MAX_TIME + 1)
            found.set(least, model[least])


def test_more_intervals_than_there_is_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowest, "_PLACE", (1 << 11) - 1)
    found = LowestReports[int]()
    for name in range(3 << 9):
        found.set(name, name)
    with pytest.raises(MemoryError, match="2,047 intervals"):
        found.set(3 << 9, 1)
