"""What a worker reports of its intervals: how busy they are, and where they could be cut."""

from __future__ import annotations

import pytest

from millwheel import limits
from millwheel.host.loads import Loads
from millwheel.host.messages import IntervalLoad
from millwheel.ids import IntervalId

ONE, TWO = IntervalId(1), IntervalId(2)


def reported(loads: Loads, now: int, *mine: IntervalId) -> tuple[IntervalLoad, ...]:
    found = loads.report(now, mine)
    assert found is not None
    return found


def test_loads_are_thousandths_of_a_core_since_the_last_report() -> None:
    loads = Loads()
    assert loads.report(0, [ONE, TWO]) is None
    loads.ran(ONE, limits.LOAD_EVERY_US // 4)
    loads.ran(ONE, limits.LOAD_EVERY_US // 4)
    assert loads.report(limits.LOAD_EVERY_US - 1, [ONE, TWO]) is None
    found = reported(loads, limits.LOAD_EVERY_US, ONE, TWO)
    assert [(load.interval, load.permille) for load in found] == [(1, 500), (2, 0)]
    later = reported(loads, 2 * limits.LOAD_EVERY_US, ONE, TWO)
    assert [load.permille for load in later] == [0, 0]


@pytest.mark.parametrize("late", [0, 4, limits.LOAD_EVERY_US // 4, 7 * limits.LOAD_EVERY_US])
def test_a_load_is_that_of_the_time_since_the_last_report_however_late_it_is(late: int) -> None:
    loads, now = Loads(), 5
    assert loads.report(now, [ONE, TWO]) is None
    for since in (limits.LOAD_EVERY_US + late, limits.LOAD_EVERY_US, limits.LOAD_EVERY_US + late):
        loads.ran(ONE, since)
        loads.ran(TWO, since // 4)
        now += since
        assert [load.permille for load in reported(loads, now, ONE, TWO)] == [1_000, 250]


def test_a_clock_that_is_set_back_begins_anew() -> None:
    loads = Loads()
    loads.report(10 * limits.LOAD_EVERY_US, [ONE])
    assert loads.report(0, [ONE]) is None
    assert reported(loads, limits.LOAD_EVERY_US, ONE)[0].interval == 1


def test_a_worker_without_intervals_says_so() -> None:
    """Else nobody who is busy is relieved, because not all have reported."""
    loads = Loads()
    assert loads.report(0, []) is None
    assert reported(loads, limits.LOAD_EVERY_US) == ()


def test_the_median_is_that_of_what_comes_and_needs_enough_of_it() -> None:
    loads = Loads()
    loads.report(0, [ONE])
    for number in range(16 * limits.LOAD_SAMPLE_BUNDLES):
        loads.came(ONE, [f"k{number % 100:02}"])
    assert reported(loads, limits.LOAD_EVERY_US, ONE)[0].median == ""
    for number in range(limits.LOAD_SAMPLE_KEYS * limits.LOAD_SAMPLE_BUNDLES):
        loads.came(ONE, [f"k{number * 37 % 100:02}", "a", "z"])
    median = reported(loads, 2 * limits.LOAD_EVERY_US, ONE)[0].median
    assert "k00" <= median <= "k99"


def test_what_is_not_this_workers_any_more_is_forgotten() -> None:
    loads = Loads()
    loads.report(0, [ONE])
    loads.came(TWO, ["k"])
    loads.report(limits.LOAD_EVERY_US, [ONE])
    assert not loads._keys
    assert not loads._bundles


@pytest.mark.parametrize(("lacks", "median"), [(0, "k"), (1, "")])
def test_a_quarter_of_the_sample_is_enough_for_a_median_and_less_is_not(lacks: int, median: str) -> None:
    loads = Loads()
    loads.report(0, [ONE])
    for _ in range((limits.LOAD_SAMPLE_KEYS // 4 - lacks) * limits.LOAD_SAMPLE_BUNDLES):
        loads.came(ONE, ["k"])
    assert reported(loads, limits.LOAD_EVERY_US, ONE)[0].median == median
