"""How much surprise is normal for a key: the tail of its own past.

A forecast with a spread knows how much one window varies. It does not know how often traffic comes in bursts, and how large
they get.  A name that is passed on from reader to reader bursts several times a day, and none of that is news. So each key
remembers how surprising its runs of evidence for a spike were, and an alarm asks for more than such a key shows once in
`RETURN_DAYS` anyway.

This is the method of peaks over a threshold, with a Pareto tail. A run that ended with more than `NOTABLE` nats is a peak.
The mean logarithm of the peaks over `NOTABLE` is the tail's index (Hill's estimator), and their number a day is its rate.
From both follows the level that is passed once in so many days. A key without a past starts from a light tail.

What is an anomaly must not become normal by having happened once.  So a peak may claim `LARGEST_EXCESS` at most, and all of
the past fades with a time constant of `MEMORY_DAYS`.
"""

import math
from typing import Final

import msgspec

from examples.zeitgeist.model import DAY_US

NOTABLE: Final = 3.0
"""Evidence in nats from which a run counts as a peak."""

RETURN_DAYS: Final = 7.0
"""A level that a key's own bursts pass once in so many days, or more often, is no news."""

MEMORY_DAYS: Final = 14.0
"""Time constant with which peaks are forgotten."""

LARGEST_EXCESS: Final = 3.0
"""The most that the logarithm of one peak over `NOTABLE` may claim: 20 times as much evidence."""

PRIOR_PEAKS: Final = 3.0
PRIOR_INDEX: Final = 0.5
PRIOR_DAYS: Final = 4.0
"""Peaks, their mean logarithm, and days without any, that are taken for granted before anything is known."""


class Tail(msgspec.Struct, frozen=True, array_like=True):
    """A key's past peaks, faded to the time `at_us`."""

    at_us: int = 0
    peaks: float = 0.0
    excess: float = 0.0
    """Sum of the logarithms of the peaks over `NOTABLE`."""


NO_TAIL: Final = Tail()


def remember(tail: Tail, nats: float, at_us: int) -> Tail:
    """The tail after a run that ended at `at_us` with `nats` of evidence."""
    if nats < NOTABLE:
        return tail
    left = _left(tail, at_us)
    excess = min(math.log(nats / NOTABLE), LARGEST_EXCESS)
    return Tail(at_us, tail.peaks * left + 1, tail.excess * left + excess)


def level(tail: Tail, first_us: int, at_us: int) -> float:
    """Nats that the key's own bursts pass once in `RETURN_DAYS`; `first_us` is when the key began to be watched."""
    left = _left(tail, at_us)
    watched = MEMORY_DAYS * (1 - math.exp(-max(at_us - first_us, 0) / DAY_US / MEMORY_DAYS))
    rate = tail.peaks * left / (watched + PRIOR_DAYS)
    index = (tail.excess * left + PRIOR_INDEX * PRIOR_PEAKS) / (tail.peaks * left + PRIOR_PEAKS)
    return NOTABLE * math.pow(max(rate * RETURN_DAYS, 1.0), index)


def _left(tail: Tail, at_us: int) -> float:
    return math.exp(-(at_us - tail.at_us) / DAY_US / MEMORY_DAYS)
