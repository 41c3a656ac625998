"""The recovery policies, and what a compensation function is given.

Lives here: plain values. Never here: how they are carried out (`engine`). Terms after Guo et al., 2020: a *blocking*
checkpoint stands between two supersteps, a *tail* checkpoint is written in the pass that produces a state, a *head*
checkpoint in the pass that reads it; *optimistic* recovery writes nothing and asks the user's function for consistent
content in place of what was lost (after Schelter et al., CIKM 2013).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.partitioned import Partitioned


@dataclass(frozen=True, slots=True)
class Restart:
    """Write nothing; after a loss, begin again from the initial data."""


@dataclass(frozen=True, slots=True)
class _Checkpointed:
    path: str | os.PathLike[str]
    every: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every must be 1 or more supersteps, not {self.every!r}")
        place = os.fspath(self.path)
        if "://" in place:
            raise ValueError(f"path {place!r}: a checkpoint is a directory that driver and executors share, not a URL")
        # Executors have working directories of their own.
        object.__setattr__(self, "path", os.path.abspath(place))


@dataclass(frozen=True, slots=True)
class Blocking(_Checkpointed):
    """Write the state after each `every`-th superstep; the next waits until it is written."""


@dataclass(frozen=True, slots=True)
class Tail(_Checkpointed):
    """In each `every`-th superstep, the pass that produces a partition also writes it."""


@dataclass(frozen=True, slots=True)
class Head(_Checkpointed):
    """The pass of a superstep that reads each `every`-th state also writes it; the manifest comes beside the one after."""


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """What a compensation function gets.

    `superstep` is the last completed one. `survivors` is the state after it, in which every lost partition is empty;
    `initial` is the state the iteration began with, all of it; `lost` are the numbers of the lost partitions, ascending.
    For every partition, lost or not, `rows` is how many rows it had and `totals` the sum of its conserved column (0 if
    none is): known to the driver, so that asking costs no pass over the data, each of which would make the recovery longer.
    In a delta iteration the state is the solution, and `pending` is the surviving workset; else it is None.

    A function that runs in the executors may refer to a `Loss`: its plain fields travel, its data is None there.
    """

    superstep: int
    survivors: Partitioned[Part]
    initial: Partitioned[Part]
    lost: tuple[int, ...]
    rows: Mapping[int, int]
    totals: Mapping[int, float]
    pending: Partitioned[Part] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Loss, (self.superstep, None, None, self.lost, self.rows, self.totals, None)


@dataclass(frozen=True, slots=True, eq=False)
class Repair:
    """What the compensation of a delta iteration returns.

    `solution`: the lost partitions' rows, all of them; every other partition empty. `wake`: in any partition, the keys
    that must be in the next workset so that the fixpoint is that of an undisturbed run; their values are taken from the
    repaired solution, so columns of `wake` are not looked at. What survives of the workset stays in it.
    """

    solution: Partitioned[Part]
    wake: Partitioned[Part]


Compensate: TypeAlias = Callable[[Loss], Partitioned[Part]] | Callable[[Loss], Repair]


@dataclass(frozen=True, slots=True)
class Optimistic:
    """Write nothing; after a loss, `compensate` gives the lost partitions content, and the iteration goes on.

    `check(part, initial part)` returns None, or says what is wrong, naming the key; `conserved` names a column whose
    total over all partitions must be what it was at the start, to one part in 10^9.
    """

    compensate: Callable[[Loss], Any]
    check: Callable[[Part, Part], str | None] | None = None
    conserved: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.compensate):
            raise ValueError(f"compensate must be a function of a Loss, not {self.compensate!r:.80}")


Recovery: TypeAlias = Restart | Blocking | Tail | Head | Optimistic
