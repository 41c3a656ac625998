"""What an iteration tells while it runs and when it has ended.

Lives here: frozen values and their one-line text. Never here: anything that decides.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.partitioned import Partitioned

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Superstep:
    """One completed superstep.

    `changed` is how many rows differ from before (bulk), or the size of the next workset (delta). `norm` is the infinity norm
    between the states. `total` is that of the conserved column, or 0. `checkpoint` is the superstep of the newest complete
    checkpoint, or None.
    """

    number: int
    changed: int
    norm: float
    seconds: float
    checkpoint: int | None
    total: float = 0.0

    def __str__(self) -> str:
        last = "-" if self.checkpoint is None else str(self.checkpoint)
        return (
            f"superstep {self.number:>4}  changed {self.changed:>9,}  norm {self.norm:9.3g}  "
            f"{self.seconds:6.2f} s  last checkpoint {last}"
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """One recovery: the superstep that had been completed, what was lost, and from which superstep the run went on."""

    after: int
    lost: tuple[int, ...]
    resumed: int
    how: str
    seconds: float

    def __str__(self) -> str:
        lost = ", ".join(map(str, self.lost)) or "none"
        return (
            f"recovery after superstep {self.after}: partitions lost: {lost}; {self.how}, "
            f"on from superstep {self.resumed} after {self.seconds:.2f} s"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Generic[V]):
    """How an iteration ended. `value` is what `deliver` returned; `executed` counts repeated supersteps too."""

    state: Partitioned[Part]
    value: V
    supersteps: int
    executed: int
    converged: bool
    seconds: float
    resumed_from: int | None
    history: tuple[Superstep, ...] = field(repr=False)
    recoveries: tuple[Recovered, ...]


def show(event: Superstep | Recovered) -> None:
    """The default listener: a line on the terminal, and nothing when errors do not go to one."""
    if sys.stderr.isatty():
        print(event, file=sys.stderr, flush=True)
