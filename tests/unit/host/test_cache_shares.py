"""What the intervals of a process have together is shared: who grows gets what nobody has, and the largest gives way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.bundles import HoldWrites, RecoveredInterval, TimerWrites
from millwheel.core.interval.config import Config
from millwheel.core.interval.machine import IntervalCore
from millwheel.graph import Settings
from millwheel.host.actors import Actor, Actors
from millwheel.host.cache_shares import CacheShares, shares
from millwheel.ids import IntervalId, Sequencer
from millwheel.limits import CACHE_GROWTH_SHARE, CACHE_LEAST_BYTES, CACHE_LOOK_US
from millwheel.model import MIN_TIME

SIZES = st.lists(st.integers(0, 10**12), min_size=1, max_size=40)
WHOLE = st.integers(10**6, 10**12)


@given(SIZES, WHOLE)
def test_while_all_fit_each_may_have_whatever_nobody_has(sizes: list[int], whole: int) -> None:
    given_ = shares(sizes, whole)
    growth = whole // (CACHE_GROWTH_SHARE * len(sizes))
    if sum(sizes) + growth * len(sizes) <= whole:
        assert {share - size for size, share in zip(sizes, given_, strict=True)} == {
            whole - sum(sizes) - growth * (len(sizes) - 1)
        }


@given(SIZES, WHOLE)
def test_when_they_do_not_fit_the_shares_are_the_whole_and_nobody_has_more_than_the_largest(
    sizes: list[int], whole: int
) -> None:
    given_ = shares(sizes, whole)
    growth = whole // (CACHE_GROWTH_SHARE * len(sizes))
    if sum(sizes) + growth * len(sizes) <= whole:
        return
    assert whole - len(sizes) < sum(given_) <= whole
    for size, share in zip(sizes, given_, strict=True):
        assert share in (size + growth, max(given_)), "each has what it wants, or as much as anybody"
    assert min(given_) >= min(whole // len(sizes), min(sizes) + growth)


def test_nobody_has_nothing() -> None:
    assert shares([10**9, 10**9], 1) == [1, 1]
    assert shares([], 10**9) == []


class Intervals:
    """Cores that share `whole` bytes, and a clock."""

    def __init__(self, whole: int) -> None:
        self.actors = Actors()
        self.shared = CacheShares(self.actors, whole)
        self.now = 0

    def add(self, number: int, keys: int, **settings: Any) -> IntervalCore:
        config = Config(IntervalId(number), Sequencer(1), "c", "1", Settings(**settings), {})
        core = IntervalCore(config, RecoveredInterval([], [], TimerWrites(), HoldWrites(), [], MIN_TIME))
        core.start(0)
        for key in range(keys):
            core._keyed._cache.insert(str(key), {("c", ""): bytes(736)})
        self.actors.put(Actor(interval=config.interval, sequencer=config.sequencer, owner="c", core=core))
        self.shared.changed()
        return core

    def look(self) -> None:
        self.shared.look(self.now)

    def limit(self, core: IntervalCore) -> int:
        return core._keyed._cache.limit_bytes


def test_an_interval_that_comes_takes_from_the_largest_which_evicts_at_once() -> None:
    intervals = Intervals(1_000_000)
    large = intervals.add(1, 900)
    intervals.look()
    assert large.cache_bytes == 900_000
    small = intervals.add(2, 200)
    intervals.look()
    assert intervals.limit(small) == 200_000 + 1_000_000 // (2 * CACHE_GROWTH_SHARE)
    assert large.cache_bytes <= intervals.limit(large) == 1_000_000 - intervals.limit(small)
    assert small.cache_bytes == 200_000, "whoever has less than an equal part keeps all of it"
    assert intervals.shared.used_bytes == large.cache_bytes + small.cache_bytes


def test_what_an_interval_had_that_is_gone_is_for_the_others() -> None:
    intervals = Intervals(1_000_000)
    stays, goes = intervals.add(1, 500), intervals.add(2, 500)
    intervals.look()
    assert intervals.limit(stays) == 500_000
    intervals.actors.drop(intervals.actors.all[IntervalId(2)])
    intervals.shared.changed()
    intervals.look()
    assert intervals.limit(stays) == 1_000_000
    assert goes.cache_bytes > 0


def test_shares_are_made_anew_after_a_while_and_not_each_turn() -> None:
    intervals = Intervals(1_000_000)
    grows, other = intervals.add(1, 0), intervals.add(2, 0)
    intervals.look()
    before = intervals.limit(other)
    grows._keyed._cache.insert("a", {("c", ""): bytes(800_000)})
    intervals.now = CACHE_LOOK_US - 1
    intervals.look()
    assert intervals.limit(other) == before
    intervals.now = CACHE_LOOK_US
    intervals.look()
    assert intervals.limit(other) < before


def test_an_interval_with_a_limit_of_its_own_has_that_and_takes_no_part() -> None:
    intervals = Intervals(1_000_000)
    own, shares_ = intervals.add(1, 900, cache_limit_bytes=950_000), intervals.add(2, 900)
    intervals.look()
    assert (intervals.limit(own), intervals.limit(shares_)) == (950_000, 1_000_000)
    assert (own.cache_bytes, shares_.cache_bytes) == (900_000, 900_000)


@pytest.mark.parametrize("settings", [{}, {"cache_limit_bytes": 1}])
def test_until_shares_are_made_there_is_a_little(settings: dict[str, int]) -> None:
    core = Intervals(10**12).add(1, 0, **settings)
    assert core._keyed._cache.limit_bytes == settings.get("cache_limit_bytes", CACHE_LEAST_BYTES)
