"""Which dips the log bears out."""

from typing import Literal

from examples.zeitgeist.detector import Anomaly, iso_time
from examples.zeitgeist.founded import unfounded_dips

MINUTE_US = 60_000_000
EVERY_US = 2_000_000
"""Thirty requests a minute."""

TIMES_US = [at for at in range(0, 180 * MINUTE_US, EVERY_US) if not 100 * MINUTE_US < at < 101 * MINUTE_US]
"""With a minute of silence in the hundredth minute."""


def dip(start: float, end: float, scope: Literal["site", "page"] = "site") -> Anomaly:
    first, last = (iso_time(int(at * MINUTE_US), -14400) for at in (start, end))
    return Anomaly(scope, "", "dip", first, last, 0, 30.0, 9.0, False)


def test_a_dip_with_a_silence_is_founded_wherever_it_begins_in_it() -> None:
    assert unfounded_dips([dip(95, 105), dip(100, 101), dip(100.5, 101), dip(100.1, 100.2)], TIMES_US) == []


def test_a_dip_without_a_silence_is_a_false_alarm() -> None:
    """Neither is a page, or a spike, which this does not judge."""
    false = [dip(85, 95), dip(101.1, 110)]
    assert unfounded_dips([*false, dip(85, 95, "page")], TIMES_US) == false


def test_the_same_silence_of_a_site_with_little_traffic_says_nothing() -> None:
    assert unfounded_dips([dip(100, 101)], TIMES_US[::3]) == [dip(100, 101)]
