"""The states of an iteration: how one is computed, cached and cut off from its lineage.

Lives here: `State`, and `States`, which makes the states of one run. Never here: which state follows which (`engine`),
and when a checkpoint is written (`policies`). The invariant: a `State` is cached whole, its lineage is cut, and it has
the figures of every partition.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from pyspark import RDD, SparkContext

from millwheel.spark.iteration import cells, doors
from millwheel.spark.iteration.cells import Header, Keeping, Model, PartitionCell
from millwheel.spark.iteration.checkpoints import SuperstepCheckpoint
from millwheel.spark.iteration.columns import Part
from millwheel.spark.iteration.errors import IterationError
from millwheel.spark.iteration.partitioned import Partitioned, numbered_partitions

Make = Callable[[Keeping, Any], PartitionCell]
"""Turns an element of what was computed into the cell of the new state; it runs in the executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state after a superstep, cached. `executors` are the block managers that the driver knew by then."""

    superstep: int
    rdd: RDD[PartitionCell]
    headers: Mapping[int, Header]
    executors: frozenset[str]

    @property
    def norm(self) -> float:
        """The infinity norm between this state and the one before; NaN if that of any partition is."""
        return float(np.max([header.norm for header in self.headers.values()]))

    @property
    def active(self) -> int:
        """Rows of the workset."""
        return sum(header.active for header in self.headers.values())

    @property
    def changed(self) -> int:
        """Rows that differ from the state before."""
        return sum(header.changed for header in self.headers.values())

    @property
    def total(self) -> float:
        """The sum of the conserved column; 0 if there is none."""
        return sum(header.total for header in self.headers.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What the pass that makes a state does beside making it.

    `folder`: where it writes the new cells (a tail checkpoint). `head`: where it writes the cells that it reads (a head
    checkpoint). `conserved`: the column that it adds up. None: nothing of the kind.
    """

    folder: str | None = None
    head: str | None = None
    conserved: str | None = None


NOTHING = Beside()


class States:
    """Makes the states of one run. `column` is the one of which the norm is taken; None: of all."""

    def __init__(
        self,
        *,
        name: str,
        initial: Partitioned[Part],
        first: Partitioned[PartitionCell],
        delta: bool,
        column: str | None = None,
    ) -> None:
        self.name, self.initial, self.delta = name, initial, delta
        self._first, self._column = first, column
        self._headers = self.context.accumulator({}, cells.HeaderParam())
        self._tickets = 0

    @property
    def context(self) -> SparkContext:
        """The Spark that everything lies in."""
        return self.initial.source.ctx

    @property
    def partitions(self) -> int:
        """How many partitions every state has."""
        return self.initial.partitions

    @cached_property
    def model(self) -> Model:
        """The columns of the state, and digests of what it begins with. The first look is a Spark job."""
        models = self._first.map(cells.model_of).collect()
        return Model(
            models[0].columns,
            _digest([model.digest for model in models]),
            _digest([model.workset for model in models]),
        )

    @property
    def description(self) -> Mapping[str, Any]:
        """What a checkpoint must have been written by to belong to this iteration."""
        shown = {name: f"{column.dtype.str}{list(column.shape[1:])}" for name, column in self.model.columns.items()}
        return {
            "name": self.name, "kind": "delta" if self.delta else "bulk", "partitions": self.partitions,
            "columns": shown, "initial state": f"{self.model.digest:08x}",
            **({"first workset": f"{self.model.workset:08x}"} if self.delta else {}),
        }  # fmt: skip

    def begun(self, beside: Beside = NOTHING) -> State:
        """The state before the first superstep."""
        return self.materialised(0, self._first.source_of_values(), whole, beside)

    def restored(self, checkpoint: SuperstepCheckpoint) -> State:
        """The state that a checkpoint holds."""
        files = [(file.number, file) for file in checkpoint.files]
        placed = numbered_partitions(self.context.parallelize(files, len(files)), len(files))
        read = placed.map(cells.reading(checkpoint.folder))
        return self.materialised(checkpoint.superstep, read.source_of_values(), whole)

    def materialised(self, superstep: int, source: RDD[Any], make: Make, beside: Beside = NOTHING) -> State:
        """Compute, cache and cut off a state; its figures come with the tasks' results.

        Raises what a Spark job raises (`doors.JobFailed`); nothing stays cached then.
        """
        keeping = self._keeping(beside)
        finish = partial(cells.finished, keeping, partial(make, keeping))
        rdd = doors.kept(source.mapPartitions(finish, preservesPartitioning=True))
        rdd.localCheckpoint()
        try:
            doors.materialise(rdd)
            headers = self._headers_of(rdd, keeping.ticket)
        except BaseException:
            rdd.unpersist()
            raise
        self._headers.value = {}
        return State(superstep=superstep, rdd=rdd, headers=headers, executors=doors.executors(self.context))

    def view(self, state: State) -> Partitioned[Part]:
        """The state's rows."""
        return Partitioned(state.rdd, self.partitions, cells.part_in)

    def given(self, state: State) -> Partitioned[Part]:
        """The state's rows, as a step gets them: to read."""
        return Partitioned(state.rdd, self.partitions, cells.given_in)

    def work(self, state: State) -> Partitioned[Part]:
        """The workset's rows, as a step gets them."""
        return Partitioned(state.rdd, self.partitions, cells.given_work_in)

    def norm_of(self, state: State) -> float:
        """The norm of a superstep; what is not a number can never be small, so it ends the iteration."""
        norm = state.norm
        if np.isnan(norm):
            found = state.rdd.map(partial(cells.not_a_number_in, self._column)).collect()
            where = next((place for place in found if place is not None), "an infinite value came and went")
            raise IterationError(
                f"{self.name}: after superstep {state.superstep} the norm is not a number ({where}): mend the step, name "
                "another column in Converged(column=...), or count with Steps(...)"
            )
        return norm

    def _keeping(self, beside: Beside) -> Keeping:
        self._tickets += 1
        return Keeping(self._tickets, self._headers, self._column, beside.conserved, beside.folder, beside.head)

    def _headers_of(self, rdd: RDD[PartitionCell], wanted: int) -> dict[int, Header]:
        """What the tasks reported. One that died between caching its block and reporting did not: its successor found the
        block, and the figures are read from there."""
        headers = {number: header for (ticket, number), header in self._headers.value.items() if ticket == wanted}
        missing = set(range(self.partitions)) - headers.keys()
        if missing:
            read = doors.only(rdd, missing).map(cells.header_in).collect()
            headers |= {header.number: header for header in read}
        return headers


def _digest(of_partitions: Sequence[int]) -> int:
    return zlib.crc32(np.array(of_partitions, dtype=np.int64).tobytes())


def whole(keeping: Keeping, cell: PartitionCell) -> PartitionCell:
    """The `Make` of what are cells already."""
    return cell
