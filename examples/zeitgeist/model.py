"""What traffic a key should have: a small model that learns while it forecasts.

One `Traffic` value holds what is known of one key (a page, or the whole site): a few hundred bytes of
JSON, stepped once per window of five minutes. Two forecasters share it:

* `recent`, an exponential mean of the last hour or so, knows nothing of the clock. It is all there is on
  a key's first day, on its first weekend, and for keys too sparse to have a measurable rhythm.
* the rhythm, 24 hourly means for workdays and 24 for weekend days, scaled by the ratio of the last hours'
  traffic to what the rhythm said. It expects the morning rise instead of chasing it, so its ratio can be
  slow (a half-life of six hours), and a day that climbs threefold over a morning stands out.

A forecast mixes the two by evidence: the rhythm counts for n / (n + k), n being the requests it was
learned from and k the spread over the square of `CLOCK_ERROR`, the relative error made by ignoring the
clock. An hour never seen has n = 0 and falls back on `recent`; cold starts need no other rule.

Counts are over-dispersed (a visit fetches many things), so their variance is taken as a spread times the
mean. The spread is learned from the key's own residuals; where the clock is ignored, the error of doing so
is added to it, for a day-one forecast is right only to `CLOCK_ERROR`.

Learning never stops, but a count is first clipped to about half to twice its forecast: an hour of outage
costs a rhythm little, and a lasting change is still followed. All sums are in the order of the windows and
use only + - * / and `max`/`min`, so equal counts give equal states.

Why five minutes: a disturbance of fifteen minutes then covers two whole windows wherever it begins, while
a page of forty requests an hour still has three or four in each, enough for evidence to add up.

Days are counted in UTC. For a log from another zone the weekend's edges are off by the zone's offset, which
costs a few quiet evening hours twice a week; in exchange the state needs no calendar.
"""

from functools import lru_cache
from typing import Final

import msgspec

WINDOW_US: Final = 300_000_000
"""Length of a window in microseconds; window starts are multiples of it."""

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US
HOUR_WINDOWS: Final = HOUR_US // WINDOW_US
DAY_WINDOWS: Final = DAY_US // WINDOW_US
BUCKETS: Final = 48

FAST_GAIN: Final = 1 - 0.5 ** (1 / HOUR_WINDOWS)
"""Weight of one window in `recent`: a half-life of one hour."""

SLOW_GAIN: Final = 1 - 0.5 ** (1 / (6 * HOUR_WINDOWS))
"""Weight of one window in the rhythm's ratio: a half-life of six hours."""

DAY_GAIN: Final = 1 / DAY_WINDOWS
"""Weight of one window in the spread and in the decay of the mass: a time constant of one day."""

RHYTHM_DAYS: Final = 7
"""Days an hourly mean remembers; before that it is the plain mean of the days seen."""

CLOCK_ERROR: Final = 0.25
"""Relative error of a forecast that ignores the clock."""

CLIP: Final = 2.0
"""The most that one window may claim, as a factor of its forecast, when it is learned from."""

CLIP_FLOOR: Final = 2.0
"""Requests allowed beyond the clip: without them a sparse key's mean would be clipped into a bias."""

SURPRISE: Final = 9.0
"""Variances that a squared residual may claim when the spread learns from it (three deviations)."""

PRIOR_SPREAD: Final = 2.0
"""Variance over mean before anything is known: mild bunching."""

PRIOR_RATE: Final = 0.1
"""Requests per window by which the priors of the spread and the ratio weigh."""

NOTHING_HELD: Final = -1.0
"""Stands for the mean of an hour that was not seen whole."""

FORGET_MASS: Final = 1.0
"""A key whose decayed count of requests is below this has nothing worth remembering."""

FORGET_IDLE: Final = HOUR_WINDOWS
"""Windows without traffic before a key may be forgotten."""


class Traffic(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one key's traffic before the window `next_us`. Counts are requests per window."""

    first_us: int
    """Start of the key's first window."""
    next_us: int
    """Start of the window to be learned next."""
    recent: float
    """Mean count of the last hour or so."""
    had: float
    """Slow mean of clipped counts in hours whose rhythm is known."""
    due: float
    """Slow mean of what the rhythm said for the same windows."""
    squares: float
    """Mean of half the squared differences between consecutive counts; over `means`, the spread."""
    means: float
    """Mean of counts."""
    mass: float
    """Requests ever seen, each fading with a time constant of one day."""
    last: int
    """The last window's count."""
    idle: int = 0
    """Windows since the last request."""
    hour_sum: float = 0.0
    """Clipped counts of the hour in progress."""
    hour_windows: int = 0
    """Windows learned of the hour in progress."""
    held: float = NOTHING_HELD
    """Mean of the hour before, not yet part of the rhythm; `NOTHING_HELD` if it was not seen whole."""
    rhythm: tuple[float, ...] = ()
    """Hourly means: 24 of workdays, then 24 of weekend days (UTC); empty before the first whole hour."""
    days: tuple[int, ...] = ()
    """Days each hourly mean was learned from, up to `RHYTHM_DAYS`."""


class Forecast(msgspec.Struct, frozen=True):
    """What a window should have. Counts are requests per window."""

    mean: float
    """Expected count."""
    spread: float
    """Variance of the count over its mean, at least 1."""
    doubt: float
    """Relative error that the mean may have for ignoring the clock."""
    said: float
    """What the rhythm alone says, before scaling by the ratio; 0 where it is unknown."""


def begin(start_us: int, count: int) -> Traffic:
    """The first knowledge of a key: one window with `count` requests."""
    rate = float(count)
    return Traffic(start_us, start_us + WINDOW_US, rate, 0.0, 0.0, 0.0, 0.0, rate, count, 0, rate, 1)


def age(traffic: Traffic) -> int:
    """Windows since the key was first seen."""
    return (traffic.next_us - traffic.first_us) // WINDOW_US


def forecast(traffic: Traffic, start_us: int) -> Forecast:
    """What the window at `start_us` should have."""
    bunching = spread(traffic)
    said = rhythm_at(traffic, start_us)
    if said <= 0.0:
        return Forecast(traffic.recent, bunching, CLOCK_ERROR, said)
    trust = _trust(traffic, start_us, said, bunching)
    mean = trust * said * _ratio(traffic) + (1 - trust) * traffic.recent
    return Forecast(mean, bunching, (1 - trust) * CLOCK_ERROR, said)


def spread(traffic: Traffic) -> float:
    """Variance over mean of the key's counts, at least that of a Poisson process."""
    return max(1.0, (traffic.squares + PRIOR_SPREAD * PRIOR_RATE) / (traffic.means + PRIOR_RATE))


def rhythm_at(traffic: Traffic, start_us: int) -> float:
    """Hourly means interpolated at the middle of a window; 0 where the rhythm is unknown."""
    days = traffic.days
    if not days:
        return 0.0
    here, before, after, part = _around(start_us)
    if not days[here]:
        return 0.0
    if not (days[before] and days[after]):
        return traffic.rhythm[here]
    return (1 - part) * traffic.rhythm[before] + part * traffic.rhythm[after]


@lru_cache(maxsize=8_192)  # every key comes with the same times
def _around(start_us: int) -> tuple[int, int, int, float]:
    """Buckets of a window, and of the two hours whose middles its own lies between; and how far, 0 to 1."""
    middle = start_us + WINDOW_US // 2 - HOUR_US // 2
    return bucket(start_us), bucket(middle), bucket(middle + HOUR_US), middle % HOUR_US / HOUR_US


@lru_cache(maxsize=8_192)
def bucket(time_us: int) -> int:
    """Index of the hourly mean of a time: hour of the day, plus 24 on Saturdays and Sundays (UTC)."""
    hours = time_us // HOUR_US
    weekend = (hours // 24 + 3) % 7 >= 5  # 1 January 1970 was a Thursday
    return hours % 24 + 24 * weekend


def learn(traffic: Traffic, count: int, forecast: Forecast, hurry: bool) -> Traffic:
    """Knowledge after the window at `next_us` had `count` requests where `forecast` was expected.

    `hurry` makes the slow ratio as fast as `recent`: for a change that has lasted and is no news any more.
    """
    clipped = clip(count, forecast.mean)
    had, due = _rescale(traffic, clipped, forecast.said, FAST_GAIN if hurry else SLOW_GAIN)
    learned = Traffic(
        traffic.first_us,
        traffic.next_us + WINDOW_US,
        _recent(traffic, count),
        had,
        due,
        traffic.squares + DAY_GAIN * (_square(traffic, count, forecast.spread) - traffic.squares),
        traffic.means + DAY_GAIN * (count - traffic.means),
        traffic.mass * (1 - DAY_GAIN) + count,
        count,
        0 if count else traffic.idle + 1,
        traffic.hour_sum + clipped,
        traffic.hour_windows + 1,
        traffic.held,
        traffic.rhythm,
        traffic.days,
    )
    return learned if learned.next_us % HOUR_US else _end_hour(learned, traffic.next_us)


def is_spent(traffic: Traffic) -> bool:
    """Whether the key has been idle so long that nothing worth remembering is left."""
    return traffic.idle >= FORGET_IDLE and traffic.mass < FORGET_MASS


def clip(count: int, mean: float) -> float:
    """`count` held to between half and twice the mean, give or take `CLIP_FLOOR`."""
    low, high = mean / CLIP - CLIP_FLOOR, CLIP * mean + CLIP_FLOOR
    return low if count < low else high if count > high else float(count)


def _trust(traffic: Traffic, start_us: int, said: float, bunching: float) -> float:
    """Weight of the rhythm in a forecast, 0 to 1, where it is known."""
    requests = traffic.days[bucket(start_us)] * HOUR_WINDOWS * said
    return requests / (requests + bunching / (CLOCK_ERROR * CLOCK_ERROR))


def _ratio(traffic: Traffic) -> float:
    """Traffic of the last hours over what the rhythm said for them."""
    return (traffic.had + PRIOR_RATE) / (traffic.due + PRIOR_RATE)


def _rescale(traffic: Traffic, count: float, said: float, gain: float) -> tuple[float, float]:
    """The two means behind the ratio after one more window, unchanged where the rhythm is unknown."""
    if said <= 0.0:
        return traffic.had, traffic.due
    if traffic.due <= 0.0:  # the first hours of a rhythm are believed, not rescaled by their first window
        return said, said
    return traffic.had + gain * (count - traffic.had), traffic.due + gain * (said - traffic.due)


def _recent(traffic: Traffic, count: int) -> float:
    """`recent` after one more window: the plain mean at first, taking everything as it comes."""
    windows = age(traffic) + 1
    if windows * FAST_GAIN < 1:
        return traffic.recent + (count - traffic.recent) / windows
    return traffic.recent + FAST_GAIN * (clip(count, traffic.recent) - traffic.recent)


def _square(traffic: Traffic, count: int, bunching: float) -> float:
    """Half the squared difference of two counts; a wild window may claim at most `SURPRISE` variances."""
    return min((count - traffic.last) ** 2 / 2, SURPRISE * bunching * (traffic.recent + 1))


def _end_hour(traffic: Traffic, start_us: int) -> Traffic:
    """Sets the hour aside whose last window began at `start_us`, and learns the one before it.

    An hour's mean is used for interpolation until half an hour after its end. Learned at once, a surge would
    count twice in the forecast: in the rhythm, and in the ratio by which the rhythm is scaled.
    """
    learned = _learn_hour(traffic, bucket(start_us - HOUR_US)) if traffic.held >= 0 else traffic
    is_whole = traffic.hour_windows == HOUR_WINDOWS
    held = traffic.hour_sum / HOUR_WINDOWS if is_whole else NOTHING_HELD
    return msgspec.structs.replace(learned, hour_sum=0.0, hour_windows=0, held=held)


def _learn_hour(traffic: Traffic, index: int) -> Traffic:
    """Adds the hour set aside to its hourly mean."""
    rhythm = traffic.rhythm or (0.0,) * BUCKETS
    days = traffic.days or (0,) * BUCKETS
    seen = min(days[index] + 1, RHYTHM_DAYS)
    mean = round(rhythm[index] + (traffic.held - rhythm[index]) / seen, 3)  # rounded: a short state
    return msgspec.structs.replace(
        traffic,
        rhythm=(*rhythm[:index], mean, *rhythm[index + 1 :]),
        days=(*days[:index], seen, *days[index + 1 :]),
    )
