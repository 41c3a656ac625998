"""What a count says about a change of traffic, in nats: the unit that the detector and its parts share."""

import math
from typing import Final, Literal

import msgspec

from examples.zeitgeist.model import Forecast

Kind = Literal["spike", "dip"]

FACTORS: Final[dict[Kind, tuple[float, float]]] = {
    "spike": (3.0, math.log(3.0)),
    "dip": (0.1, math.log(0.1)),
}
"""The alternatives that counts are weighed against, as factors of the forecast, and their logarithms."""

ALARM: Final = 5 * math.log(10)
"""Evidence in nats at which a run becomes an anomaly, at least: a likelihood ratio of a hundred thousand."""

TELLING: Final = 1.0
"""Evidence in nats that a window needs to begin or prolong a run."""


class Piece(msgspec.Struct, frozen=True):
    """A window or a stretch of time, with its count and its forecast."""

    start_us: int
    length_us: int
    count: int
    due: Forecast


def evidence(kind: Kind, count: int, due: Forecast) -> float:
    """Nats by which a count speaks for traffic changed by the kind's factor rather than as forecast.

    The forecast has the benefit of its doubt: a spike must stand out from the most that was meant.
    """
    factor, log_factor = FACTORS[kind]
    mean = due.mean * (1 + due.doubt if kind == "spike" else 1 - due.doubt)
    return (count * log_factor - (factor - 1) * mean) / due.spread
