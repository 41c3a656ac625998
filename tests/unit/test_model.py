"""Times: what is taken, and that every refusal leads to what is."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.errors import TimestampError
from millwheel.model import EPOCH, format_time, to_us, whole_time

NOON_US = 1_785_585_600_000_000
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=ZONES)


@pytest.mark.parametrize(
    "time",
    [
        NOON_US,
        numpy.int64(NOON_US),
        datetime(2026, 8, 1, 12, tzinfo=UTC),
        datetime(2026, 8, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        "2026-08-01T12:00:00Z",
        "2026-08-01 14:00+02:00",
        "20260801T120000Z",
    ],
)
def test_one_instant_has_many_spellings(time: Any) -> None:
    assert (to_us(time), type(to_us(time))) == (NOON_US, int)
    assert format_time(NOON_US) == "2026-08-01T12:00:00+00:00"


@pytest.mark.parametrize("day", [date(2026, 8, 1), "2026-08-01", "20260801"])
def test_a_date_is_its_midnight_in_utc(day: Any) -> None:
    assert to_us(day) == to_us("2026-08-01T00:00Z")


@given(INSTANTS)
def test_no_microsecond_is_lost(instant: datetime) -> None:
    assert EPOCH + timedelta(microseconds=to_us(instant)) == instant
    assert to_us(instant.isoformat()) == to_us(instant)


@given(st.floats(0, 4e9))
def test_who_follows_the_refusal_of_seconds_arrives_at_the_same_instant(seconds: float) -> None:
    with pytest.raises(TimestampError) as refused:
        to_us(seconds)
    advice = re.search(r"for seconds \((.+)\) give (int\(.+\))$", str(refused.value))
    assert advice is not None
    meant, code = advice.groups()
    assert to_us(eval(code, {"int": int, "seconds": seconds})) == to_us(meant)


def test_who_follows_the_refusal_of_a_time_without_a_zone_arrives() -> None:
    naive = datetime(2026, 8, 1, 12)
    with pytest.raises(TimestampError, match=r"has no zone; .* value\.replace\(tzinfo=datetime\.UTC\)$"):
        to_us(naive)
    assert to_us(naive.replace(tzinfo=UTC)) == NOON_US
    with pytest.raises(TimestampError) as refused:
        to_us("2026-08-01T12:00")
    advice = re.search(r"has no zone; write (\S+) if it is UTC", str(refused.value))
    assert advice is not None
    assert to_us(advice[1]) == NOON_US


@pytest.mark.parametrize(
    ("time", "said"),
    [
        (1.785e15, "is a float; an event time is an int of microseconds since 1970$"),
        (float("nan"), "nan is a float"),
        (float("inf"), "inf is a float"),
        (True, r"True \(bool\) is no event time"),
        (None, r"None \(NoneType\) is no event time: give an int of microseconds since 1970, a datetime with a zone, or ISO"),
        (timedelta(1), "is no event time"),
        ("yesterday", "'yesterday' is not ISO 8601, as 2026-08-01T12:00:00Z is"),
        ("1785585600", "is not ISO 8601"),
        ("1785585600000000", "is not ISO 8601"),
        ("", "is not ISO 8601"),
        ("12:00Z", "is not ISO 8601"),
        ("2026-08-01T12", "has no zone"),
    ],
)  # fmt: skip
def test_all_else_is_refused(time: Any, said: str) -> None:
    with pytest.raises(TimestampError, match=said):
        to_us(time)


def test_times_that_hooks_give_are_whole_and_seconds_are_told_the_way() -> None:
    assert whole_time(numpy.int64(5), "hold") == 5
    for wrong in (1.5, True, "5", datetime(2026, 8, 1, tzinfo=UTC)):
        with pytest.raises(
            TimestampError, match=r"^hold at .*an int of microseconds; of seconds that is int\(seconds \* 1_000_000\)"
        ):
            whole_time(wrong, "hold")
