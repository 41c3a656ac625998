"""Sums that do not depend on the order of what is added, floats included.

Lives here: Shewchuk's partials, as `math.fsum` keeps them: a short list of floats whose exact sum is that of all that
was added.  Integers are added as they are, as long as nothing else comes.
"""

from __future__ import annotations

from math import fsum
from typing import TypeAlias

Exact: TypeAlias = int | list[float]
"""The sum so far: an int, or partials."""


def plus(sum_: Exact, number: float) -> Exact:
    """`sum_` with `number` added, exactly.

    >>> result(plus(plus(plus(0, 1e100), 1.5), -1e100))
    1.5
    """
    if isinstance(sum_, int):
        if isinstance(number, int):
            return sum_ + number
        sum_ = [float(sum_)]
    return _grown(sum_, float(number))


def merged(left: Exact, right: Exact) -> Exact:
    """Both together."""
    if isinstance(right, int):
        return plus(left, right)
    for partial in right:
        left = plus(left, partial)
    return left


def minus(left: Exact, right: Exact) -> Exact:
    """`left` without `right`, which was added to it before.

    >>> result(minus(merged(plus(0, 0.1), plus(0, 1e17)), plus(0, 1e17)))
    0.1
    """
    return merged(left, -right if isinstance(right, int) else [-partial for partial in right])


def result(sum_: Exact) -> float:
    """The sum, rounded once."""
    return sum_ if isinstance(sum_, int) else fsum(sum_)


def _grown(partials: list[float], x: float) -> list[float]:
    grown: list[float] = []
    for y in partials:
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low:
            grown.append(low)
        x = high
    return [*grown, x]
