"""When an iteration ends. Never here: anything that runs a superstep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol

from millwheel.spark.iteration.states import State

NormOf = Callable[[State], float]
"""The norm of a superstep; raises IterationError when it is not a number."""


class Ending(Protocol):
    """What the engine asks after each superstep."""

    @property
    def limit(self) -> int:
        """The superstep after which the iteration stops in any case."""
        ...

    @property
    def column(self) -> str | None:
        """The column of which the norm is taken; None: of all."""
        ...

    def reached(self, state: State, norm_of: NormOf) -> bool:
        """Whether the iteration may stop after this state."""
        ...


@dataclass(frozen=True, slots=True)
class Converged:
    """Stop when the infinity norm between two states is below `below`, in `column` or in all; or after `at_most`.

    With `below=0` it stops when nothing has changed.
    """

    below: float
    column: str | None = None
    at_most: int = 10_000

    def __post_init__(self) -> None:
        if not self.below >= 0:
            raise ValueError(f"below must be 0 or more, not {self.below!r}")
        _check_count("at_most", self.at_most)

    @property
    def limit(self) -> int:
        """`at_most`."""
        return self.at_most

    def reached(self, state: State, norm_of: NormOf) -> bool:
        """Whether the norm is small. It is infinite in the first state and after a repair."""
        norm = norm_of(state)
        return norm < self.below or norm == 0


@dataclass(frozen=True, slots=True)
class Steps:
    """Stop after `count` supersteps."""

    count: int

    def __post_init__(self) -> None:
        _check_count("count", self.count)

    @property
    def limit(self) -> int:
        """`count`."""
        return self.count

    @property
    def column(self) -> None:
        """The norm is reported and decides nothing: it is taken of all columns."""

    def reached(self, state: State, norm_of: NormOf) -> bool:
        """Whether there were enough."""
        return state.superstep >= self.count


@dataclass(frozen=True, slots=True)
class NothingChanges:
    """The end of a delta iteration: its workset is empty. It stops after `limit` supersteps in any case."""

    limit: int

    def __post_init__(self) -> None:
        _check_count("at_most", self.limit)

    @property
    def column(self) -> None:
        """As for `Steps`."""

    def reached(self, state: State, norm_of: NormOf) -> bool:
        """Whether the workset is empty."""
        return state.active == 0


def _check_count(what: str, count: object) -> None:
    if isinstance(count, bool) or not isinstance(count, Integral) or count < 0:
        raise ValueError(f"{what} must be 0 or more supersteps, a whole number, and not {count!r:.80}")
