"""Which windows a time lies in."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millwheel import DAY, HOUR, MINUTE, SECOND
from millwheel.errors import TimestampError, WiringError
from millwheel.library import Calendar, EveryWall, Fixed, Global, Sessions, Sliding, Window, minutes
from millwheel.library.calendars import Unit

UNITS: tuple[Unit, ...] = ("day", "week", "month", "year")
TIMES = st.integers(-(10**15), 10**16)
ZONES = [
    "UTC", "Europe/Berlin", "America/New_York", "America/Havana", "America/Sao_Paulo", "America/Goose_Bay", "Asia/Kolkata",
    "Asia/Beirut", "Africa/Cairo", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham", "America/Scoresbysund",
]  # fmt: skip
YEARS = st.integers(-(30 * 365 * DAY), 65 * 365 * DAY)


def us(year: int, month: int, day: int, zone: str = "UTC") -> int:
    return int(datetime(year, month, day, tzinfo=ZoneInfo(zone)).timestamp()) * SECOND


@given(TIMES, st.integers(2, 10**12), st.integers(0, 10**12))
def test_a_time_lies_in_one_fixed_window(time: int, size: int, offset: int) -> None:
    (window,) = Fixed(timedelta(microseconds=size), offset=timedelta(microseconds=offset)).of(time)
    assert window.start <= time <= window.last
    assert window.end - window.start == size
    assert (window.start - offset) % size == 0


@given(TIMES, st.integers(2, 10**12), st.integers(0, 10**12))
def test_an_aligned_pane_is_due_at_the_next_whole_period_of_the_clock(time: int, period: int, offset: int) -> None:
    due = EveryWall(timedelta(microseconds=period), aligned=True, offset=timedelta(microseconds=offset)).due(time)
    assert time < due <= time + period
    assert (due - offset) % period == 0


@given(TIMES, st.integers(2, 10**6), st.integers(1, 50), st.integers(0, 10**6), st.integers(0, 10**5))
def test_a_time_lies_in_all_sliding_windows_that_hold_it(
    time: int, every: int, times: int, offset: int, more: int
) -> None:
    size = timedelta(microseconds=every * times + more % every)
    windows = Sliding(size, every=timedelta(microseconds=every), offset=timedelta(microseconds=offset))
    found = windows.of(time)
    assert all(window.start <= time < window.end for window in found)
    before = Window(found[0].start - every, found[0].end - every)
    after = Window(found[-1].start + every, found[-1].end + every)
    assert before.end <= time < after.start
    assert [b.start - a.start for a, b in pairwise(found)] == [every] * (len(found) - 1)
    assert all((edge - offset) % windows.slice_us == 0 for window in found for edge in window)


@pytest.mark.parametrize("unit", UNITS)
@settings(max_examples=60)
@given(st.sampled_from(ZONES), YEARS)
def test_windows_of_a_calendar_follow_each_other_without_a_gap(unit: Unit, zone: str, time: int) -> None:
    (window,) = Calendar(unit, zone).of(time)
    assert window.start <= time < window.end
    for edge in (window.start, window.last):
        assert Calendar(unit, zone).of(edge) == [window]
    assert Calendar(unit, zone).of(window.end)[0].start == window.end
    assert Calendar(unit, zone).of(window.start - 1)[0].end == window.start


def test_days_of_a_zone_have_the_hours_that_its_clocks_show() -> None:
    hours = {
        (month, day): (window.end - window.start) // HOUR
        for month, day in ((3, 28), (3, 29), (10, 25))
        for window in Calendar("day", "Europe/Berlin").of(us(2026, month, day, "Europe/Berlin"))
    }
    assert hours == {(3, 28): 24, (3, 29): 23, (10, 25): 25}


def test_a_day_that_a_zone_skipped_has_no_window() -> None:
    days = Calendar("day", "Pacific/Apia")
    (before,) = days.of(us(2011, 12, 29, "Pacific/Apia"))
    (after,) = days.of(before.end)
    assert datetime.fromtimestamp(after.start / SECOND, ZoneInfo("Pacific/Apia")).date().isoformat() == "2011-12-31"


def test_a_day_whose_midnight_does_not_exist_begins_when_the_clocks_went_on() -> None:
    (window,) = Calendar("day", "Africa/Cairo").of(us(2026, 4, 24) + 12 * HOUR)
    assert (
        datetime.fromtimestamp(window.start / SECOND, ZoneInfo("Africa/Cairo")).isoformat()
        == "2026-04-24T01:00:00+03:00"
    )
    assert (window.end - window.start) // HOUR == 23


def test_a_day_that_began_twice_begins_once() -> None:
    days = Calendar("day", "America/Goose_Bay")  # one minute after midnight its clocks went back to 23:01
    midnight = us(2010, 11, 7) + 3 * HOUR
    assert days.of(midnight - 1)[0].end == midnight
    assert days.of(midnight + 30 * MINUTE)[0].start == midnight


def test_weeks_begin_on_monday_and_months_on_the_first() -> None:
    time = us(2026, 11, 25)
    found = [datetime.fromtimestamp(Calendar(unit).of(time)[0].start / SECOND, UTC) for unit in UNITS]
    assert [start.date().isoformat() for start in found] == ["2026-11-25", "2026-11-23", "2026-11-01", "2026-01-01"]
    assert Calendar("month").of(us(2026, 12, 31))[0].end == us(2027, 1, 1)


def test_the_global_window_holds_every_time() -> None:
    assert Global().of(0) == Global().of(10**18)


def test_lengths_are_given_as_people_say_them() -> None:
    assert Fixed(minutes=1, seconds=30).size == 90 * SECOND
    assert Fixed(timedelta(hours=1)).size == HOUR
    assert Fixed(minutes(2)).size == 2 * MINUTE
    assert Fixed(timedelta(microseconds=60)).size == 60
    assert Sessions(lambda key: len(key) * SECOND).gap("abc") == 3 * SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Fixed(),
        lambda: Fixed(-SECOND),
        lambda: Fixed(1.5),  # type: ignore[arg-type]
        lambda: Fixed(60),
        lambda: Sliding(minutes=1, every=10),
        lambda: Sliding(minutes=1, every=2 * MINUTE),
        lambda: Calendar("hour"),  # type: ignore[arg-type]
        lambda: Calendar("day", "Europe/Atlantis"),
        lambda: Sessions(lambda key: 0).gap("a"),
    ],
)
def test_windows_that_make_no_sense_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises((WiringError, TimestampError)):
        wrong()


def test_a_time_that_no_calendar_has_is_an_error() -> None:
    with pytest.raises(TimestampError):
        Calendar("day").starts(2**61)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("zone", ["UTC", "Africa/Monrovia", "Asia/Tokyo"])
def test_a_process_that_starts_knows_the_end_of_a_window_that_another_one_began(unit: Unit, zone: str) -> None:
    """Also of the one that begins at 0, in 1970: a timer asks for its end before any record has come."""
    for time in (0, 5, -1, 1_774_742_400_000_000):
        (window,) = Calendar(unit, zone).of(time)
        assert Calendar(unit, zone).end(window.start) == window.end
