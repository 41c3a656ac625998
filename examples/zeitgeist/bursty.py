"""Judges the detector on counts that come in bursts: seeded series with events whose times are known.

`python -m examples.zeitgeist.bursty [--seeds 1000 1040]` draws one series a seed, as of a name that is mentioned by people
who read each other, and prints how the detector does. Each has 55 days of five-minute counts with a rhythm of days and weeks
and a level that wanders.  Its noise is wider than Poisson's, and it has bursts with a heavy tail several times a day.  All of
this is normal. Two to four events are added: a surge of hours, a burst larger than a week's largest, or a silence.

The score is the usual one for such data. An event has a window around it, and all windows together are a tenth of the
series. An event that an episode touches counts 1, one that none touches -1, an episode outside all windows -0.11.
The sum is scaled so that 100 is perfect and doing nothing is 0. The first 15% of a series are for learning.

The detector's constants were set with seeds below `HELD_OUT`; the figures that are published are of others.
"""

import argparse
import math
import random
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from examples.zeitgeist import detector, model
from examples.zeitgeist.detector import Episode, KeyState
from examples.zeitgeist.model import DAY_US, DAY_WINDOWS, HOUR_WINDOWS, WINDOW_US

DAYS: Final = 55
WINDOWS: Final = DAYS * DAY_WINDOWS
START_US: Final = 4 * DAY_US
"""A Monday."""

LEARNING: Final = 0.15
"""The part of a series that is not judged."""

LABELLED: Final = 0.1
"""The part of a series that lies in windows of events."""

FALSE_ALARM: Final = 0.11

HELD_OUT: Final = 1000
"""The first seed that no constant was set with."""


class Event(msgspec.Struct, frozen=True):
    """What is to be found, and the window of indices [first, last) in which an episode finds it."""

    kind: str
    first: int
    last: int


class Shape(msgspec.Struct, frozen=True):
    """What a series looks like, drawn anew for each."""

    base: float
    """Mentions a window, on average without bursts."""
    swing: float
    noon: float
    weekend: float
    wander: float
    """Deviation of the level's logarithm."""
    memory: float
    """How much of the level's deviation is left after a window."""
    evenness: float
    """Shape of the gamma distribution that each window's rate is multiplied by."""
    bursts_a_day: float
    tail: float
    """Exponent of the Pareto distribution of bursts' sizes."""
    size: float
    """The least size of a burst, in windows of `base`."""


class Score(msgspec.Struct, frozen=True):
    """How the detector did on some series."""

    hits: int
    events: int
    false_alarms: int
    days: float

    @property
    def points(self) -> float:
        """The windowed score."""
        earned = self.hits - (self.events - self.hits) - FALSE_ALARM * self.false_alarms
        return 100 * (earned + self.events) / (2 * self.events)


def draw(seed: int) -> tuple[list[int], list[Event]]:
    """A series of counts, and the events in it."""
    dice = random.Random(f"bursty {seed}")
    shape = _shape(dice)
    rates, extra = _rates(shape, dice), [0.0] * WINDOWS
    now = dice.expovariate(shape.bursts_a_day / DAY_WINDOWS)
    while now < WINDOWS:
        _burst(
            extra, int(now), shape.base * shape.size * min(dice.paretovariate(shape.tail), 200.0), dice.uniform(0.5, 8)
        )
        now += dice.expovariate(shape.bursts_a_day / DAY_WINDOWS)
    events = _place(dice)
    events = [_happen(event, shape, rates, extra, dice) for event in events]
    noise = (dice.gammavariate(shape.evenness, 1 / shape.evenness) for _ in range(WINDOWS))
    return [_poisson(dice, rate * wide + more) for rate, wide, more in zip(rates, noise, extra, strict=True)], events


def judge(seeds: Iterable[int]) -> Score:
    """The detector's score on the series of these seeds."""
    hits = total = false_alarms = 0
    days = 0.0
    for seed in seeds:
        counts, events = draw(seed)
        found = [(e.start_us, e.end_us) for e in episodes_of(counts)]
        spans = [((start - START_US) // WINDOW_US, (end - START_US) // WINDOW_US) for start, end in found]
        judged = [(start, end) for start, end in spans if end > LEARNING * WINDOWS]
        hits += sum(any(start < event.last and end > event.first for start, end in judged) for event in events)
        false_alarms += sum(not any(start < e.last and end > e.first for e in events) for start, end in judged)
        total += len(events)
        days += DAYS * (1 - LEARNING)
    return Score(hits, total, false_alarms, days)


def episodes_of(counts: Sequence[int]) -> list[Episode]:
    """The episodes of a key with these counts, the first at `START_US`."""
    state: KeyState | None = None
    rhythm = model.UNKNOWN
    found: list[Episode] = []
    for at, count in enumerate(counts):
        if count:
            step = detector.advance(state, rhythm, START_US + at * WINDOW_US, count)
            state, rhythm = step.state, step.rhythm
            found += step.anomalies
    return [*found, *detector.finish(state, rhythm, START_US + len(counts) * WINDOW_US)]


def _shape(dice: random.Random) -> Shape:
    return Shape(
        base=math.exp(dice.uniform(math.log(1.5), math.log(100))),
        swing=dice.uniform(0.2, 0.9),
        noon=dice.random(),
        weekend=dice.uniform(0.4, 1.1),
        wander=dice.uniform(0.15, 0.5),
        memory=0.5 ** (1 / dice.uniform(2, 36)),
        evenness=dice.uniform(1.0, 8.0),
        bursts_a_day=dice.uniform(1.0, 12.0),
        tail=dice.uniform(1.1, 2.2),
        size=dice.uniform(1.0, 5.0),
    )


def _rates(shape: Shape, dice: random.Random) -> list[float]:
    """Rates without bursts: the rhythm, times a level that wanders."""
    rates, level = [], 0.0
    for at in range(WINDOWS):
        level = shape.memory * level + math.sqrt(1 - shape.memory**2) * shape.wander * dice.gauss(0, 1)
        day = 1 + shape.swing * math.cos(2 * math.pi * (at / DAY_WINDOWS - shape.noon))
        week = shape.weekend if at // DAY_WINDOWS % 7 >= 5 else 1.0
        rates.append(shape.base * day * week * math.exp(level))
    return rates


def _burst(extra: list[float], at: int, size: float, decay: float) -> None:
    """Adds `size` mentions from window `at` on, fading with a time constant of `decay` windows."""
    left = math.exp(-1 / decay)
    rate = size * (1 - left)
    while at < WINDOWS and rate > 0.05:
        extra[at] += rate
        rate, at = rate * left, at + 1


def _place(dice: random.Random) -> list[Event]:
    """Events whose windows do not meet, after the time for learning; what they are is drawn later."""
    number = dice.choice([2, 3, 3, 4, 4])
    width = int(LABELLED * WINDOWS / number)
    places: list[int] = []
    while len(places) < number:
        place = dice.randrange(int(LEARNING * WINDOWS) + width // 2, WINDOWS - width)
        if all(abs(place - other) > 1.2 * width for other in places):
            places.append(place)
    return [Event("", place - width // 2, place - width // 2 + width) for place in sorted(places)]


def _happen(event: Event, shape: Shape, rates: list[float], extra: list[float], dice: random.Random) -> Event:
    """Lets an event happen in the middle of its window."""
    at = (event.first + event.last) // 2
    kind = dice.choice(["surge", "surge", "burst", "burst", "burst", "silence"])
    if kind == "silence" and shape.base < 8:  # nobody would miss it
        kind = "burst"
    if kind == "burst":
        largest = shape.base * shape.size * (shape.bursts_a_day * 7) ** (1 / shape.tail)
        _burst(extra, at, largest * dice.uniform(1.5, 6), dice.uniform(2, 12))
    else:
        factor = dice.uniform(3, 8) if kind == "surge" else 0.0
        for late in range(at, min(at + dice.randrange(HOUR_WINDOWS, 10 * HOUR_WINDOWS), WINDOWS)):
            rates[late] *= factor
            extra[late] *= 1 if factor else 0
    return msgspec.structs.replace(event, kind=kind)


def _poisson(dice: random.Random, mean: float) -> int:
    """A Poisson count: by products of chances, and by the normal distribution where that is as good."""
    if mean > 30:
        return max(0, round(dice.gauss(mean, math.sqrt(mean))))
    count, chance, least = -1, 1.0, math.exp(-mean)
    while chance > least or count < 0:
        count, chance = count + 1, chance * dice.random()
    return count


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the score of some seeds; see the module's description."""
    parser = argparse.ArgumentParser(prog="python -m examples.zeitgeist.bursty")
    parser.add_argument("--seeds", type=int, nargs=2, default=(HELD_OUT, HELD_OUT + 40), metavar=("FIRST", "END"))
    score = judge(range(*parser.parse_args(arguments).seeds))
    print(
        f"{score.hits} of {score.events} events found, {score.false_alarms} false alarms "
        f"({score.false_alarms / score.days:.2f} a day and series), score {score.points:.1f}"
    )


if __name__ == "__main__":
    main()
