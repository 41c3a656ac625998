"""Silences that are shorter than a window, of a key whose counts come with those of the window's slots.

A stretch of empty slots is a dip if it is telling enough by itself. So the time that is looked at follows from the
key's rate: it is as long as it takes to expect enough requests, at least `SHORTEST` slots. A busy site is missed after
a minute, one with a request a minute after many.

What is normal is learned here as well: the spread of slots, from neighbours within a window. It is smaller than that
of windows, because what comes in bunches is more even in shorter pieces.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from examples.zeitgeist import model
from examples.zeitgeist.evidence import ALARM, Piece, evidence
from examples.zeitgeist.model import WINDOW_US, Forecast

SLOTS: Final = 30
SLOT_US: Final = WINDOW_US // SLOTS
"""A window has so many slots, of ten seconds each."""

SHORTEST: Final = 5
"""Empty slots that a silence has at least. One of a minute has five, wherever it begins."""


class Hush(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a key's slots."""

    squares: float = 0.0
    """Mean of half the squared differences of neighbours; over `mean`, the spread."""
    mean: float = 0.0
    """Mean of counts."""
    slots: int = 0
    """Empty slots at the end of the last window."""
    expected: float = 0.0
    """Requests that those should have had."""
    told: bool = False
    """Whether they were a dip already."""


NO_HUSH: Final = Hush()

EMPTY: Final = (0,) * SLOTS


def listen(hush: Hush, start_us: int, due: Forecast, slots: Sequence[int]) -> tuple[Hush, list[Piece]]:
    """What is known after the window at `start_us`, and the stretches of silence in it that are dips by themselves.

    A stretch that began in the window before is told from its beginning, if it was not told then. Of the input's last
    window `slots` may be fewer, and `due` is for those.
    """
    mean, spread = due.mean / len(slots), _spread(hush)
    found: list[Piece] = []
    length, expected, told = hush.slots, hush.expected, hush.told
    for at in range(len(slots) + 1):
        if at < len(slots) and not slots[at]:
            length, expected = length + 1, expected + mean
            continue
        stretch = Forecast(expected, spread, due.doubt, 0.0)
        if told and at and expected:
            found.append(Piece(start_us, at * SLOT_US, 0, Forecast(mean * at, spread, due.doubt, 0.0)))
        elif length >= SHORTEST and evidence("dip", 0, stretch) >= ALARM:
            found.append(Piece(start_us + (at - length) * SLOT_US, length * SLOT_US, 0, stretch))
            told = True
        if at < len(slots):
            length, expected, told = 0, 0.0, False
    return Hush(*_learn(hush, slots, due), length, expected, told), found


def _spread(hush: Hush) -> float:
    """Variance over mean of the counts of slots, at least that of a Poisson process."""
    return max(1.0, (hush.squares + model.PRIOR_SPREAD * model.PRIOR_RATE) / (hush.mean + model.PRIOR_RATE))


def _learn(hush: Hush, slots: Sequence[int], due: Forecast) -> tuple[float, float]:
    """The two means behind the spread after one more window; a silent one teaches nothing."""
    if len(slots) < SLOTS or not any(slots):
        return hush.squares, hush.mean
    most = model.SURPRISE * due.spread * (due.mean / SLOTS + 1)
    squares = sum(min((a - b) ** 2 / 2, most) for a, b in pairwise(slots)) / (SLOTS - 1)
    gain = model.DAY_GAIN if hush.mean else 1.0
    return hush.squares + gain * (squares - hush.squares), hush.mean + gain * (sum(slots) / SLOTS - hush.mean)
