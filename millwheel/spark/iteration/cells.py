"""What one partition of an iteration's state is in Spark's cache, and everything that runs in the executors on it.

Lives here: functions of one partition. Never here: a SparkContext. The invariant: a `PartitionCell` is whole. One element has
the rows, the workset and the figures of one superstep. So a loss takes all of a partition or nothing of it, and figures are
always those of the content that was kept.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from pyspark import Accumulator, AccumulatorParam

from millwheel.errors import InvariantError
from millwheel.spark.iteration.checkpoints import PartFile, read_parts, write_parts
from millwheel.spark.iteration.columns import (
    Column,
    Part,
    changed_rows,
    check_alike,
    check_home,
    column_of,
    distance,
    merged,
    not_a_number,
    opened,
    sealed,
)
from millwheel.spark.iteration.errors import ColumnsError


@dataclass(frozen=True, slots=True)
class Header:
    """Figures of one partition after a superstep. `active`: size of the workset; `norm`: infinite after a repair.

    `file` is where a tail checkpoint put the partition, `before` where a head checkpoint put what it was before.
    """

    number: int
    rows: int
    changed: int
    norm: float
    active: int
    total: float = 0.0
    file: PartFile | None = None
    before: PartFile | None = None


@dataclass(frozen=True, slots=True)
class PartitionCell:
    """Partition `part.number` after one superstep; `work` are the rows that changed (delta), or None (bulk)."""

    part: Part
    work: Part | None
    header: Header


@dataclass(frozen=True, slots=True)
class Keeping:
    """How the cells of one superstep are finished: what is measured, and where they are written (None: nowhere).

    `folder` is for the new cells (a tail checkpoint), `head` for those that the superstep reads (a head checkpoint).
    """

    ticket: int
    headers: Accumulator[Headers]
    column: str | None
    conserved: str | None
    folder: str | None = None
    head: str | None = None


Headers = dict[tuple[int, int], Header]
"""By (ticket, partition). A ticket is one try to produce one state."""


class HeaderParam(AccumulatorParam[Headers]):
    """Figures travel with the tasks' results. A partition computed twice has one entry."""

    def zero(self, value: Headers) -> Headers:
        """No figures."""
        return {}

    def addInPlace(self, value1: Headers, value2: Headers) -> Headers:
        """The figures of both."""
        value1.update(value2)
        return value1


def part_in(cell: PartitionCell) -> Part:
    """The solution's rows."""
    return cell.part


def work_in(cell: PartitionCell) -> Part:
    """The workset's rows."""
    if cell.work is None:
        raise InvariantError("there is no cell.work")
    return cell.work


def given_in(cell: PartitionCell) -> Part:
    """The solution's rows for a function of the user, which cannot write to them: the next state is compared with them."""
    return sealed(cell.part)


def given_work_in(cell: PartitionCell) -> Part:
    """The same of the workset's rows, which may be the solution's own arrays."""
    return sealed(work_in(cell))


def not_a_number_in(column: str | None, cell: PartitionCell) -> str | None:
    """Where the solution has a NaN, in words."""
    return not_a_number(cell.part, column)


def header_in(cell: PartitionCell) -> Header:
    """The figures."""
    return cell.header


@dataclass(frozen=True, slots=True)
class Model:
    """The columns of a state without its rows, and digests of the rows it began with and of the first workset's keys."""

    columns: Mapping[str, Column] = field(default_factory=dict)
    digest: int = 0
    workset: int = 0


def model_of(cell: PartitionCell) -> Model:
    """Of one partition before the first superstep."""
    part, work = cell.part, cell.work
    digest = zlib.crc32(part.keys.tobytes())
    for name in sorted(part.columns):
        digest = zlib.crc32(part[name].tobytes(), digest)
    first = 0 if work is None else zlib.crc32(work.keys.tobytes())
    return Model({name: column[:0] for name, column in part.columns.items()}, digest, first)


def first_bulk(partitions: int, part: Part) -> PartitionCell:
    """A cell of the initial state."""
    check_home(part, partitions)
    return _cell(part, None, len(part), np.inf)


def first_delta(partitions: int, part: Part, work: Part) -> PartitionCell:
    """A cell of the initial solution with the initial workset's keys."""
    check_home(part, partitions)
    return _cell(part, part.take(part.places(work.keys)), len(work), np.inf)


def next_bulk(keeping: Keeping, pair: tuple[PartitionCell, Part]) -> PartitionCell:
    """The cell after a bulk superstep, from the cell before it and the state after it."""
    old, new = pair[0].part, pair[1]
    check_alike(new, old, "the step's result")
    return _cell(new, None, changed_rows(new, old), distance(new, old, keeping.column))


def next_delta(keeping: Keeping, pair: tuple[PartitionCell, Part]) -> PartitionCell:
    """The cell after a delta superstep, from the cell before it and the changes, which are the next workset."""
    old, changes = pair[0].part, pair[1]
    if changes.number != old.number:
        raise ColumnsError(f"changes of partition {changes.number} stand where those of {old.number} belong")
    if len(changes):
        check_alike(changes, replace(old.take(old.places(changes.keys)), number=changes.number), "the changes")
    else:
        changes = old.take(np.arange(0))  # no rows may have been given without columns, which the next superstep reads
    new = merged(old, changes)
    places = old.places(changes.keys)
    gap = distance(changes, old.take(places), keeping.column) if len(changes) else 0.0
    return _cell(new, changes, len(changes), gap)


def empty_cell(number: int, columns: Mapping[str, Column], delta: bool) -> PartitionCell:
    """What stands for a lost partition while the others are read."""
    none = Part(number, np.empty(0, np.int64), columns)
    return _cell(none, none if delta else None, 0, np.inf)


def repaired(
    lost: frozenset[int],
    check: Callable[[Part, Part], str | None] | None,
    cell: PartitionCell,
    given: Part,
    initial: Part,
    wake: Part | None = None,
) -> PartitionCell:
    """The surviving cell, or the one that compensation gives; with the woken keys in its workset (delta).

    Raises ColumnsError, which names the partition and the key, when the compensation broke its contract.
    """
    number = cell.part.number
    if number not in lost:
        if len(given):
            raise ColumnsError(
                f"partition {number} was not lost, and compensation gave content for it (key {given.keys[0]} first)"
            )
        part = cell.part
    else:
        check_alike(given, initial, "what compensation gave")
        wrong = check(given, initial) if check is not None else None
        if wrong:
            raise ColumnsError(f"what compensation gave: partition {number}: {wrong}")
        part = given
    if wake is None:
        return _cell(part, None, len(part), np.inf)
    active = np.union1d(work_in(cell).keys, wake.keys) if len(wake) else work_in(cell).keys
    return _cell(part, part.take(part.places(active)), len(part), np.inf)


def finished(keeping: Keeping, make: Callable[[Any], PartitionCell], stream: Iterable[Any]) -> Iterator[PartitionCell]:
    """Make the cell, write what a head or tail checkpoint wants of it, and report its figures.

    A head checkpoint's file is written by a thread while the new cell is made and handed to Spark, so that its waits for
    the disk cost nothing.
    """
    for element in stream:
        head = _Writing(keeping.head, element[0]) if keeping.head is not None else None
        cell = make(element)
        header = cell.header
        if keeping.conserved is not None:
            header = replace(header, total=total_of(keeping.conserved, cell.part))
        if keeping.folder is not None:
            header = replace(header, file=_write(keeping.folder, cell))
        yield replace(cell, header=header)
        if head is not None:
            header = replace(header, before=head.wait())
        keeping.headers.add({(keeping.ticket, header.number): header})


def total_of(column: str, part: Part) -> float:
    """The sum of a column of one partition."""
    return float(column_of(part, column).sum())


class _Writing:
    """One cell on its way to a file, in a thread."""

    def __init__(self, folder: str, cell: PartitionCell) -> None:
        self._file: PartFile | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write, args=(folder, cell))
        self._thread.start()

    def wait(self) -> PartFile | None:
        """The file; raises what writing it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._file

    def _write(self, folder: str, cell: PartitionCell) -> None:
        try:
            self._file = _write(folder, cell)
        except Exception as error:
            self._error = error


def written(folder: str, stream: Iterable[PartitionCell]) -> Iterator[PartFile]:
    """Write the cells of a state that is cached: a blocking checkpoint."""
    for cell in stream:
        yield _write(folder, cell)


def read_cell(folder: str, file: PartFile) -> PartitionCell:
    """A cell from a checkpoint."""
    parts = read_parts(folder, file)
    return _cell(parts["part"], parts.get("work"), len(parts["part"]), np.inf)


def reading(folder: str) -> Callable[[PartFile], PartitionCell]:
    """`read_cell` of one checkpoint."""
    return partial(read_cell, folder)


def _write(folder: str, cell: PartitionCell) -> PartFile:
    parts = {"part": cell.part} if cell.work is None else {"part": cell.part, "work": cell.work}
    return write_parts(folder, cell.part.number, parts)


def _cell(part: Part, work: Part | None, changed: int, norm: float) -> PartitionCell:
    part, work = opened(part), None if work is None else opened(work)
    active = len(work) if work is not None else 0
    return PartitionCell(part, work, Header(part.number, len(part), changed, norm, active))
