"""Many runs without their stories; the one that breaks an invariant runs again, and tells it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from millwheel.testing.world.kernel import Violation, untold

P = ParamSpec("P")
T = TypeVar("T")


def quick(simulate: Callable[P, T]) -> Callable[P, T]:
    """`simulate`, which gives the same each time, in up to a sixth less time."""

    @functools.wraps(simulate)
    def quickly(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            with untold():
                return simulate(*arguments, **named)
        except Violation as violation:
            simulate(*arguments, **named)
            raise AssertionError("the second run of the same did not break; the first one broke this") from violation

    return quickly
