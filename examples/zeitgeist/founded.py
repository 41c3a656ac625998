"""Judges the site's dips by the log alone: which of them have a silence in the log, and which are false alarms.

A dip is founded if, somewhere in it, the log has no request for so long that `DUE` requests were due at the rate of the
hour before the dip. It knows nothing of windows, slots or forecasts. Of windows drawn at random from July 1995, about one
in twenty-five has such a silence, so a false alarm is seldom taken for a true one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

from examples.zeitgeist.detector import Anomaly

DUE: Final = 20.0
"""Requests that were due in a silence which is no accident."""

HOUR_US: Final = 3_600_000_000


def unfounded_dips(anomalies: Iterable[Anomaly], times_us: Sequence[int]) -> list[Anomaly]:
    """The site's dips that the log does not bear out; `times_us` are those of all its requests, in order."""
    return [row for row in anomalies if row.scope == "site" and row.kind == "dip" and _due(row, times_us) < DUE]


def _due(row: Anomaly, times_us: Sequence[int]) -> float:
    """Requests that were due in the longest silence of a dip, which may begin before it and end behind it."""
    start_us, end_us = (round(datetime.fromisoformat(time).timestamp() * 1e6) for time in (row.start, row.end))
    first, last = bisect_right(times_us, start_us) - 1, bisect_left(times_us, end_us)
    times = times_us[max(first, 0) : last + 1]
    longest_us = max((after - before for before, after in pairwise(times)), default=0)
    hour = bisect_left(times_us, start_us) - bisect_left(times_us, start_us - HOUR_US)
    return hour * longest_us / HOUR_US
