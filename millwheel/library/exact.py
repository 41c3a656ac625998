"""Sums that do not depend on the order of what is added, floats included.

Lives here: Shewchuk's partials, as `math.fsum` keeps them: a short list of floats whose exact sum is that of all that
was added.  Integers are added as they are, as long as nothing else comes.  Where their sum is too large for a coder, it is
kept as partials with a mark, so that it is an integer still when others bring it back.
"""

from __future__ import annotations

from math import fsum, inf, isfinite
from typing import Final, TypeAlias

from millwheel.limits import LEAST_CODED_INT, MOST_CODED_INT

Exact: TypeAlias = int | list[float]
"""The sum so far: an int, or partials.  The last one is infinite or NaN once such a number, or an overflow, has come.

If the first one is `_LARGE_INT`, the others are those of an int that is not within `LEAST_CODED_INT` and `MOST_CODED_INT`.
"""

_LARGE_INT: Final = inf
"""Other partials do not begin with that: an infinite one is the last of at least two."""


def plus(sum_: Exact, number: float) -> Exact:
    """`sum_` with `number` added, exactly.

    >>> result(plus(plus(plus(0, 1e100), 1.5), -1e100))
    1.5
    """
    sum_ = _unmarked(sum_)
    if isinstance(sum_, int):
        if isinstance(number, int):
            return _marked(sum_ + number)
        sum_ = _floats(sum_)
    for part in _floats(number) if isinstance(number, int) else [float(number)]:
        sum_ = _grown(sum_, part)
    return sum_


def merged(left: Exact, right: Exact) -> Exact:
    """Both together."""
    right = _unmarked(right)
    if isinstance(right, int):
        return plus(left, right)
    for partial in right:
        left = plus(left, partial)
    return left


def minus(left: Exact, right: Exact) -> Exact | None:
    """`left` without `right`, which was added to it before; None where `left` does not say what is left of it.

    >>> result(minus(merged(plus(0, 0.1), plus(0, 1e17)), plus(0, 1e17)))
    0.1
    """
    left, right = _unmarked(left), _unmarked(right)
    if not isinstance(left, int) and not isfinite(_beyond(left)):
        return None
    return merged(left, -right if isinstance(right, int) else [-partial for partial in right])


def result(sum_: Exact) -> float:
    """The sum, rounded once; an int only where a coder takes it."""
    if isinstance(sum_, int):
        return sum_
    if sum_[0] == _LARGE_INT:
        return fsum(sum_[1:])
    beyond = _beyond(sum_)
    return fsum(sum_) if isfinite(beyond) else beyond


def _marked(number: int) -> Exact:
    """An int as it can be stored; what no float can be is infinite."""
    if LEAST_CODED_INT <= number <= MOST_CODED_INT:
        return number
    partials = _floats(number)
    return [_LARGE_INT, *partials] if isfinite(partials[-1]) else [0.0, *partials]


def _unmarked(sum_: Exact) -> Exact:
    """Partials that are no int, or an int, however large."""
    if isinstance(sum_, int) or sum_[0] != _LARGE_INT:
        return sum_
    return sum(map(int, sum_[1:]))


def _beyond(partials: list[float]) -> float:
    """The sum of those that are infinite or no numbers; 0 when all are finite."""
    return sum((partial for partial in partials if not isfinite(partial)), 0.0)


def _floats(number: int) -> list[float]:
    """Partials of an int."""
    partials: list[float] = []
    while number:
        try:
            part = float(number)
        except OverflowError:
            return [float("inf") if number > 0 else float("-inf")]
        partials = _grown(partials, part)
        number -= int(part)
    return partials


def _grown(partials: list[float], x: float) -> list[float]:
    beyond = 0.0 if isfinite(x) else x
    x = 0.0 if beyond else x
    grown: list[float] = []
    for y in partials:
        if not isfinite(y):
            beyond += y
            continue
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        if not isfinite(high):
            beyond += high
            x = 0.0
            continue
        low = y - (high - x)
        if low:
            grown.append(low)
        x = high
    return [*grown, x, beyond] if beyond else [*grown, x]
