"""The clock of a replay: when it begins, and when a row is due."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.core.source.pace import Pace
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Ahead


def never() -> bool:
    return False


def always() -> bool:
    return True


def row(time: int) -> Ahead:
    return Ahead(time, time, False)


def begun(rate: float, first: int, now: int) -> Pace:
    pace = Pace(rate)
    pace.open(IntervalId(1))
    pace.gathered()
    pace.looked(IntervalId(1), row(first), now, True)
    assert pace.begin(now)
    return pace


def test_the_clock_begins_at_the_oldest_first_row_of_what_is_there() -> None:
    pace = Pace(1)
    pace.open(IntervalId(1))
    assert pace.wait(IntervalId(1), 0, never) == 0, "somebody has to look"
    pace.looked(IntervalId(1), row(500), 0, True)
    assert not pace.begin(0)
    assert pace.wait(IntervalId(1), 0, never) is None
    pace.open(IntervalId(2))
    pace.gathered()
    assert not pace.begin(10)
    assert pace.reached(10) == MIN_TIME
    pace.looked(IntervalId(2), row(400), 20, True)
    assert pace.begin(20)
    assert not pace.begin(30)
    assert pace.reached(20) == 400
    assert pace.wait(IntervalId(2), 20, never) == 0
    assert pace.wait(IntervalId(1), 20, never) == max(limits.PACE_STEP_US, 100)


def test_an_empty_partition_holds_nothing_up() -> None:
    pace = Pace(1)
    pace.open(IntervalId(1))
    pace.gathered()
    pace.looked(IntervalId(1), None, 0, True)
    assert not pace.begin(0)
    pace.open(IntervalId(2))
    pace.looked(IntervalId(2), None, 5, False)  # malformed rows only: the first row is still to come
    assert not pace.begin(5)
    pace.looked(IntervalId(2), row(7), 9, True)
    assert pace.begin(9)
    assert pace.reached(9) == 7


@given(
    rate=st.floats(1e-3, 1e6),
    first=st.integers(-(10**15), 10**15),
    after=st.integers(0, 10**13),
    began=st.integers(0, 10**15),
)
@example(rate=0.7, first=0, after=7_720_811_083_524, began=0)  # as a float, the rate is a us short of this
def test_a_row_is_given_when_it_is_due_and_not_before(rate: float, first: int, after: int, began: int) -> None:
    pace = begun(rate, first, began)
    time = first + after
    pace.looked(IntervalId(1), row(time), began, True)
    wait = pace.wait(IntervalId(1), began, never)
    assert wait is not None
    assert pace.reached(began + wait) >= time
    if wait > limits.PACE_STEP_US:
        assert pace.reached(began + wait - 1) < time


def test_a_clock_that_goes_back_or_never_ends_does_no_harm() -> None:
    pace = begun(1e6, 0, 1_000)
    assert pace.reached(0) < 0
    assert pace.reached(2**62) == MAX_TIME


def test_a_late_row_waits_for_the_watermark_but_not_for_ever() -> None:
    pace = begun(1, 0, 0)
    late = Ahead(10, 100, True)
    pace.looked(IntervalId(1), late, 100, False)
    assert pace.wait(IntervalId(1), 99, always) == limits.PACE_STEP_US, "not due yet"
    assert pace.wait(IntervalId(1), 100, never) == limits.PACE_STEP_US
    assert pace.wait(IntervalId(1), 100, always) == 0
    pace.looked(IntervalId(1), late, 5_000, True)
    assert pace.wait(IntervalId(1), 100 + limits.PACE_LATE_US - 1, never) == limits.PACE_STEP_US
    assert pace.wait(IntervalId(1), 100 + limits.PACE_LATE_US, never) == 0
    pace.looked(IntervalId(1), Ahead(9, 100, True), 100 + limits.PACE_LATE_US, False)
    assert pace.wait(IntervalId(1), 100 + limits.PACE_LATE_US, never) == limits.PACE_STEP_US, (
        "the next one is late as well"
    )
    pace.looked(IntervalId(1), row(200), 200, False)
    pace.looked(IntervalId(1), late, 10**9, False)
    assert pace.wait(IntervalId(1), 10**9, never) == limits.PACE_STEP_US, "another late row"
    pace.forget(IntervalId(1))
    assert not pace.waits()


def test_a_partition_that_has_ended_before_anybody_looked_is_not_waited_for() -> None:
    pace = Pace(1)
    for interval in (IntervalId(1), IntervalId(2)):
        pace.open(interval)
    pace.gathered()
    pace.looked(IntervalId(1), row(500), 0, False)
    assert not pace.begin(0)
    pace.forget(IntervalId(2))
    assert pace.begin(0)


def test_what_stood_next_is_forgotten_once_it_was_given() -> None:
    one, pace = IntervalId(1), begun(1, 500, 0)
    pace.looked(one, row(900), 0, True)
    assert (pace.waits(), pace.next_time(one)) == (True, 900)
    assert pace.wait(one, 0, never) == max(limits.PACE_STEP_US, 400)
    pace.looked(one, None, 400, False)
    assert (pace.waits(), pace.next_time(one), pace.wait(one, 0, never)) == (False, MAX_TIME, 0)
    pace.looked(one, Ahead(400, 900, True), 400, True)
    assert pace.next_time(one) == 400


def test_a_late_row_has_its_own_time_to_wait_whatever_waited_before_it() -> None:
    one, pace = IntervalId(1), begun(1, 500, 0)
    late = Ahead(400, 500, True)
    pace.looked(one, late, 0, True)
    pace.looked(one, row(600), limits.PACE_LATE_US - 1, False)
    pace.looked(one, late, limits.PACE_LATE_US - 1, False)
    assert pace.wait(one, limits.PACE_LATE_US, never) == limits.PACE_STEP_US
    assert pace.wait(one, 2 * limits.PACE_LATE_US, never) == 0


def test_the_clock_of_a_partition_that_goes_on_begins_at_the_newest_row_it_has_given() -> None:
    pace = Pace(1)
    pace.open(IntervalId(1))
    pace.gathered()
    pace.looked(IntervalId(1), Ahead(500, 900, False), 0, True)
    assert pace.begin(0)
    assert (pace.reached(0), pace.wait(IntervalId(1), 0, never)) == (900, 0)
