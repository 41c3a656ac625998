"""What traffic a key should have: a small model that learns while it forecasts.

`Traffic` and `Rhythm` hold what is known of one key (a page, or the whole site). Traffic changes with each window
of five minutes, the rhythm once an hour, so they are kept apart. Two forecasters share them:

* `recent`, an exponential mean of the last hour or so, knows nothing of the clock. It is all there is on
  a key's first day, on its first weekend, and for keys too sparse to have a measurable rhythm.
* the rhythm, 24 hourly means for workdays and 24 for weekend days, scaled by the ratio of the last hours' traffic to what the
  rhythm said. It expects the morning rise instead of chasing it.  So its ratio can be slow, with a half-life of six hours,
  and a day that climbs threefold over a morning stands out.

A forecast mixes the two by evidence: the rhythm counts for n / (n + k).  Here n is the number of requests that it was learned
from, and k the spread over the square of `CLOCK_ERROR`.  `CLOCK_ERROR` is the relative error made by ignoring the clock. An
hour never seen has n = 0 and falls back on `recent`; cold starts need no other rule.

Counts are over-dispersed (a visit fetches many things), so their variance is taken as a spread times the mean. The spread is
learned from the key's own residuals.  Where the clock is ignored, the forecast is right only to `CLOCK_ERROR`, and the
detector gives it the benefit of that doubt.

Learning stops only in an outage (`stand_still`: the detector says when). Else a count is first clipped to about
half to twice its forecast, so that one wild hour costs a rhythm little and a lasting change is still followed.

Empty windows of a key that expects next to nothing are learned by the hour, in one step (`pass_silence`). A key's
steps are cut at its requests and at times that follow from its state, so equal counts give equal states.

Why five minutes: a disturbance of fifteen minutes then covers two whole windows wherever it begins.  A page of forty requests
an hour still has three or four in each, enough for evidence to add up.

Days are counted in UTC. For a log from another zone the weekend's edges are off by the zone's offset.  That costs a few quiet
evening hours twice a week; in exchange the state needs no calendar.
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


PLAIN_WINDOWS: Final = int(1 / FAST_GAIN)
"""Windows of a key's first hours, in which `recent` is their plain mean."""

NEXT_TO_NOTHING: Final = CLIP * CLIP_FLOOR
"""Expected requests per window below which an empty window is within the clip."""

NIGHT: Final = 16 * HOUR_WINDOWS
"""Windows of silence that may be a night. A longer one is none, and teaches nothing."""

NIGHTS_AGE: Final = 2 * DAY_WINDOWS
"""Windows since a key's first in which hours without a request may be its nights."""

FAST_DECAY: Final = tuple((1 - FAST_GAIN) ** windows for windows in range(HOUR_WINDOWS + 1))
SLOW_DECAY: Final = tuple((1 - SLOW_GAIN) ** windows for windows in range(HOUR_WINDOWS + 1))
DAY_DECAY: Final = tuple((1 - DAY_GAIN) ** windows for windows in range(HOUR_WINDOWS + 1))
"""What is left of a mean after so many empty windows."""


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


class Rhythm(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a key's day; empty before the first whole hour."""

    means: tuple[float, ...] = ()
    """Hourly means, requests per window: 24 of workdays, then 24 of weekend days (UTC)."""
    days: tuple[int, ...] = ()
    """Days each hourly mean was learned from, up to `RHYTHM_DAYS`."""


UNKNOWN: Final = Rhythm()
"""The rhythm of a key that has none yet."""


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


def forecast(traffic: Traffic, rhythm: Rhythm, start_us: int) -> Forecast:
    """What the window at `start_us` should have."""
    bunching = spread(traffic)
    said = rhythm_at(rhythm, start_us)
    if said <= 0.0 and not (rhythm.days and rhythm.days[bucket(start_us)]):
        return Forecast(traffic.recent, bunching, CLOCK_ERROR, said)
    # Of an hour that was always empty as much is known as if it had had the requests that were to be expected.
    trust = _trust(rhythm, start_us, said or traffic.recent, bunching)
    mean = trust * said * _ratio(traffic) + (1 - trust) * traffic.recent
    return Forecast(mean, bunching, (1 - trust) * CLOCK_ERROR, said)


def most_expected(traffic: Traffic, rhythm: Rhythm, start_us: int) -> float:
    """At least what any window of the hour that holds `start_us` should have, if no request comes before it."""
    if not rhythm.days:
        return traffic.recent
    here, means = bucket(start_us), rhythm.means
    said = max(means[here], means[bucket(start_us - HOUR_US)], means[bucket(start_us + HOUR_US)])
    # While nothing comes the ratio falls, except that its prior outweighs it when next to nothing was expected.
    return max(traffic.recent, said * max(1.0, _ratio(traffic)))


def spread(traffic: Traffic) -> float:
    """Variance over mean of the key's counts, at least that of a Poisson process."""
    return max(1.0, (traffic.squares + PRIOR_SPREAD * PRIOR_RATE) / (traffic.means + PRIOR_RATE))


def rhythm_at(rhythm: Rhythm, start_us: int) -> float:
    """Hourly means interpolated at the middle of a window; 0 where the rhythm is unknown."""
    days = rhythm.days
    if not days:
        return 0.0
    here, before, after, part = _around(start_us)
    if not days[here]:
        return 0.0
    if not (days[before] and days[after]):
        return rhythm.means[here]
    return (1 - part) * rhythm.means[before] + part * rhythm.means[after]


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


def learn(traffic: Traffic, rhythm: Rhythm, count: int, due: Forecast, hurry: bool) -> tuple[Traffic, Rhythm]:
    """Knowledge after the window at `next_us` had `count` requests where `due` was expected.

    `hurry` makes the slow ratio as fast as `recent`: for a change that has lasted and is no news any more.
    """
    clipped = clip(count, due.mean)
    had, said = _rescale(traffic, clipped, due.said, FAST_GAIN if hurry else SLOW_GAIN)
    learned = Traffic(
        traffic.first_us,
        traffic.next_us + WINDOW_US,
        _recent(traffic, count),
        had,
        said,
        traffic.squares + DAY_GAIN * (_square(traffic, count, due.spread) - traffic.squares),
        traffic.means + DAY_GAIN * (count - traffic.means),
        traffic.mass * (1 - DAY_GAIN) + count,
        count,
        0 if count else traffic.idle + 1,
        traffic.hour_sum + clipped,
        traffic.hour_windows + 1,
        traffic.held,
    )
    return (learned, rhythm) if learned.next_us % HOUR_US else _end_hour(learned, rhythm)


def pass_silence(traffic: Traffic, rhythm: Rhythm, windows: int) -> tuple[Traffic, Rhythm]:
    """Knowledge after `windows` empty windows, all of one hour, of a key that expects less than `NEXT_TO_NOTHING`.

    What `learn` does one by one, except that the rhythm is asked once, for the middle of them.
    """
    slow, day = SLOW_DECAY[windows], DAY_DECAY[windows]
    had, said = traffic.had, traffic.due
    due = rhythm_at(rhythm, traffic.next_us + windows // 2 * WINDOW_US)
    if due > 0.0:
        had, said = (had * slow, due + slow * (said - due)) if said > 0.0 else (due * slow, due)
    square = traffic.squares + DAY_GAIN * (_square(traffic, 0, spread(traffic)) - traffic.squares)
    passed = Traffic(
        traffic.first_us,
        traffic.next_us + windows * WINDOW_US,
        _recent_in_silence(traffic, windows),
        had,
        said,
        square * DAY_DECAY[windows - 1],
        traffic.means * day,
        traffic.mass * day,
        0,
        traffic.idle + windows,
        traffic.hour_sum,
        traffic.hour_windows + windows,
        traffic.held,
    )
    return (passed, rhythm) if passed.next_us % HOUR_US else _end_hour(passed, rhythm)


def stand_still(traffic: Traffic, rhythm: Rhythm) -> tuple[Traffic, Rhythm]:
    """Knowledge after an empty window in an outage: as before, for it says nothing about traffic.

    One thing is learned: hours that a young key has never been seen in. Its first night looks like an outage.
    """
    here, idle = bucket(traffic.next_us), traffic.idle + 1
    is_night = age(traffic) < NIGHTS_AGE and idle <= NIGHT and not (rhythm.days and rhythm.days[here])
    hour_windows = traffic.hour_windows + is_night
    passed = msgspec.structs.replace(traffic, next_us=traffic.next_us + WINDOW_US, idle=idle, hour_windows=hour_windows)
    return (passed, rhythm) if passed.next_us % HOUR_US else _end_hour(passed, rhythm)


def is_spent(traffic: Traffic) -> bool:
    """Whether the key has been idle so long that nothing worth remembering is left."""
    return traffic.idle >= FORGET_IDLE and traffic.mass < FORGET_MASS


def clip(count: int, mean: float) -> float:
    """`count` held to between half and twice the mean, give or take `CLIP_FLOOR`."""
    low, high = mean / CLIP - CLIP_FLOOR, CLIP * mean + CLIP_FLOOR
    return low if count < low else high if count > high else float(count)


def _trust(rhythm: Rhythm, start_us: int, said: float, bunching: float) -> float:
    """Weight of the rhythm in a forecast, 0 to 1, where it is known."""
    requests = rhythm.days[bucket(start_us)] * HOUR_WINDOWS * said
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
    if windows <= PLAIN_WINDOWS:
        return traffic.recent + (count - traffic.recent) / windows
    return traffic.recent + FAST_GAIN * (clip(count, traffic.recent) - traffic.recent)


def _recent_in_silence(traffic: Traffic, windows: int) -> float:
    """`recent` after so many empty windows."""
    young = min(max(PLAIN_WINDOWS - age(traffic), 0), windows)
    plain = traffic.recent * age(traffic) / (age(traffic) + young)
    return plain * FAST_DECAY[windows - young]


def _square(traffic: Traffic, count: int, bunching: float) -> float:
    """Half the squared difference of two counts; a wild window may claim at most `SURPRISE` variances."""
    return min((count - traffic.last) ** 2 / 2, SURPRISE * bunching * (traffic.recent + 1))


def _end_hour(traffic: Traffic, rhythm: Rhythm) -> tuple[Traffic, Rhythm]:
    """Sets the hour that has just ended aside, and learns the one before it.

    An hour's mean is used for interpolation until half an hour after its end. Learned at once, a surge would
    count twice in the forecast: in the rhythm, and in the ratio by which the rhythm is scaled.
    """
    if traffic.held >= 0:
        rhythm = _learn_hour(rhythm, traffic.held, bucket(traffic.next_us - 2 * HOUR_US))
    is_whole = traffic.hour_windows == HOUR_WINDOWS
    held = traffic.hour_sum / HOUR_WINDOWS if is_whole else NOTHING_HELD
    return msgspec.structs.replace(traffic, hour_sum=0.0, hour_windows=0, held=held), rhythm


def _learn_hour(rhythm: Rhythm, held: float, index: int) -> Rhythm:
    """Adds the hour set aside to its hourly mean."""
    means = rhythm.means or (0.0,) * BUCKETS
    days = rhythm.days or (0,) * BUCKETS
    seen = min(days[index] + 1, RHYTHM_DAYS)
    mean = round(means[index] + (held - means[index]) / seen, 3)  # rounded: a short state
    if mean == means[index] and seen == days[index]:
        return rhythm
    return Rhythm((*means[:index], mean, *means[index + 1 :]), (*days[:index], seen, *days[index + 1 :]))
