"""Columns of numpy: what a partition holds, what travels between partitions, and which key lives where.

Lives here: values and arithmetic on them. Never here: Spark, files, clocks. The invariant: the keys of a `Part` are
ascending, distinct and all belong to its partition, and every column is as long as the keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from millwheel.spark.iteration.errors import ColumnsError

Column = NDArray[Any]
Keys = NDArray[np.int64]

_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows by key, in any order; a key may come more than once. `totals` are numbers for every receiving partition.

    `keys` has shape (n,), integers; each column has n rows and may have more axes. Objects are refused, because state
    is written as plain arrays and nothing is ever pickled into a checkpoint.
    """

    keys: Keys
    columns: Mapping[str, Column] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.keys, np.ndarray):
            raise ColumnsError(f"keys must be an array of int64, not a {type(self.keys).__name__}")
        if self.keys.ndim != 1 or self.keys.dtype != np.int64:
            raise ColumnsError(f"keys must be one axis of int64, not {self.keys.ndim} of {self.keys.dtype}")
        for name, column in self.columns.items():
            if not isinstance(column, np.ndarray) or isinstance(column, np.ma.MaskedArray):
                raise ColumnsError(f"column {name!r} is a {type(column).__name__}: give a numpy array, without a mask")
            if column.shape[:1] != self.keys.shape:
                raise ColumnsError(f"column {name!r} has shape {column.shape} beside {len(self.keys)} keys")
            if column.dtype.hasobject:
                raise ColumnsError(f"column {name!r} holds Python objects; a column is of numbers or fixed-size text")

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, where: NDArray[Any]) -> Rows:
        """The rows that a mask, or an array of places, picks; totals stay."""
        return Rows(self.keys[where], {name: column[where] for name, column in self.columns.items()}, self.totals)


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of partition `number` of a state: keys ascending and distinct, shape (n,); columns of n rows each."""

    number: int
    keys: Keys
    columns: Mapping[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        Rows(self.keys, self.columns)
        if len(self.keys) > 1 and not bool(np.all(self.keys[1:] > self.keys[:-1])):
            place = int(np.argmin(self.keys[1:] > self.keys[:-1]))
            raise ColumnsError(
                f"partition {self.number}: keys must be ascending and distinct; "
                f"{self.keys[place + 1]} follows {self.keys[place]}"
            )

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.keys)

    def having(self, **columns: Column) -> Part:
        """The same keys with these columns; a column that is not named is dropped."""
        return Part(self.number, self.keys, columns)

    def take(self, where: NDArray[Any]) -> Part:
        """The rows that a mask, or an ascending array of places, picks."""
        return Part(self.number, self.keys[where], {name: column[where] for name, column in self.columns.items()})

    def places(self, keys: Keys) -> NDArray[np.intp]:
        """Where `keys` are among the part's keys; ColumnsError names the first that is not there."""
        found = np.searchsorted(self.keys, keys)
        inside = found < len(self.keys)
        there = inside.copy()
        there[inside] = self.keys[found[inside]] == keys[inside]
        if not bool(there.all()):
            raise ColumnsError(f"partition {self.number} has no key {keys[~there][0]}")
        return found


def as_column(given: Any) -> Column:
    """An array of what is given, in its order; ColumnsError for what is masked, because a column has a value for each key."""
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise ColumnsError(f"{given!r:.80} has masked values: a column has a value for each key")
    return np.asarray(given)


def as_keys(keys: Any) -> Keys:
    """Integers as keys; ColumnsError for what would not come through whole."""
    given = as_column(keys)
    if given.size == 0:
        return np.empty(0, np.int64)
    if given.dtype.kind not in "iu" or (given.dtype == np.uint64 and given.max() > np.iinfo(np.int64).max):
        raise ColumnsError(f"keys must be integers of at most 64 bits, not {given.dtype} ({given.ravel()[0]!r}, ...)")
    return given.astype(np.int64)


def partition_of(keys: Keys, partitions: int) -> NDArray[np.int64]:
    """The partition of each key, shape (n,). Fibonacci hashing: keys with a common stride do not share a partition."""
    mixed = (keys.astype(np.uint64) * _MIX) >> np.uint64(33)
    return (mixed % np.uint64(partitions)).astype(np.int64)


def sealed(part: Part) -> Part:
    """The part itself, whose arrays nobody can write to from now on."""
    for array in (part.keys, *part.columns.values()):
        array.flags.writeable = False
    return part


def opened(part: Part) -> Part:
    """The part with arrays that may be written to again."""
    return Part(part.number, _open(part.keys), {name: _open(column) for name, column in part.columns.items()})


def _open(array: NDArray[Any]) -> NDArray[Any]:
    try:
        array.flags.writeable = True
    except ValueError:  # a view of one that cannot be written to
        return array.copy()
    return array


def split(rows: Rows, partitions: int) -> list[Rows]:
    """The rows of each partition, in their order; every one of them carries the totals."""
    if partitions < 1:
        raise ColumnsError(f"partitions must be 1 or more, not {partitions}")
    if partitions == 1:
        return [rows]
    where = partition_of(rows.keys, partitions)
    order = np.argsort(where, kind="stable")
    bounds = np.searchsorted(where[order], np.arange(partitions + 1))
    return [rows.take(order[bounds[number] : bounds[number + 1]]) for number in range(partitions)]


def joined(batches: Iterable[Rows]) -> Rows:
    """All rows one after another, totals added up."""
    given = list(batches)
    totals: dict[str, float] = {}
    for batch in given:
        for name, value in batch.totals.items():
            totals[name] = totals.get(name, 0.0) + value
    filled = [batch for batch in given if len(batch)]
    if not filled:
        return Rows(np.empty(0, np.int64), dict(given[0].columns) if given else {}, totals)
    names = list(filled[0].columns)
    if any(batch.columns.keys() != filled[0].columns.keys() for batch in filled):
        raise ColumnsError(f"messages to one partition differ in columns: {sorted({tuple(b.columns) for b in filled})}")
    columns = {name: np.concatenate([batch.columns[name] for batch in filled]) for name in names}
    return Rows(np.concatenate([batch.keys for batch in filled]), columns, totals)


def combined(rows: Rows, **how: np.ufunc) -> Rows:
    """One row a key, keys ascending: each named column reduced by its ufunc, such as `rank=np.add` or `label=np.minimum`.

    >>> combined(Rows(np.array([7, 2, 7]), {"n": np.array([1, 2, 3])}), n=np.add).columns
    {'n': array([2, 4])}
    """
    if not len(rows):
        return Rows(rows.keys, {name: rows.columns[name] for name in how if name in rows.columns}, rows.totals)
    order = np.argsort(rows.keys, kind="stable")
    keys = rows.keys[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    columns = {name: ufunc.reduceat(rows.columns[name][order], first, axis=0) for name, ufunc in how.items()}
    return Rows(keys[first], columns, rows.totals)


def part_of(number: int, partitions: int, rows: Rows) -> Part:
    """Rows with distinct keys as partition `number`; ColumnsError names a key that is double or belongs elsewhere."""
    order = np.argsort(rows.keys, kind="stable")
    keys = rows.keys[order]
    double = np.flatnonzero(keys[1:] == keys[:-1])
    if len(double):
        raise ColumnsError(f"partition {number}: key {keys[double[0]]} comes more than once")
    part = Part(number, keys, {name: column[order] for name, column in rows.columns.items()})
    check_home(part, partitions)
    return part


def check_home(part: Part, partitions: int) -> None:
    """ColumnsError names the first key that does not belong to the part's partition."""
    home = partition_of(part.keys, partitions)
    strays = np.flatnonzero(home != part.number)
    if len(strays):
        place = strays[0]
        raise ColumnsError(f"partition {part.number}: key {part.keys[place]} belongs to partition {home[place]}")


def check_alike(part: Part, model: Part, what: str) -> None:
    """ColumnsError names a key, or a column, in which `part` differs from `model` in more than values."""
    if part.number != model.number:
        raise ColumnsError(f"{what}: partition {part.number} stands where {model.number} belongs")
    if not np.array_equal(part.keys, model.keys):
        extra = np.setdiff1d(part.keys, model.keys)
        missing = np.setdiff1d(model.keys, part.keys)
        wrong = f"key {extra[0]} is not one of it" if len(extra) else f"key {missing[0]} is missing"
        raise ColumnsError(f"{what}: partition {part.number}: {wrong}")
    shapes = {name: (column.dtype, column.shape[1:]) for name, column in part.columns.items()}
    wanted = {name: (column.dtype, column.shape[1:]) for name, column in model.columns.items()}
    if shapes != wanted:
        raise ColumnsError(f"{what}: partition {part.number} has columns {shapes}, and not {wanted}")


def distance(new: Part, old: Part, column: str | None) -> float:
    """The infinity norm of new - old over one column, or over all; NaN if any of it is not a number.

    An infinite value that stays as it is has not moved.  What is no number moves by 1 if it is true or false, and infinitely
    far if it is anything else.
    """
    names = [*new.columns] if column is None else [column]
    return float(np.max([_gap(column_of(new, name), column_of(old, name)) for name in names] or [0.0]))


def column_of(part: Part, name: str) -> Column:
    """A column that somebody has named; ColumnsError when there is none."""
    if name not in part.columns:
        raise ColumnsError(f"the state has no column {name!r}, but {', '.join(map(repr, part.columns)) or 'none'}")
    return part[name]


def _gap(new: Column, old: Column) -> float:
    if new.dtype.kind in "mM":  # times and lengths of time, in their own unit
        new, old = new.astype(np.int64), old.astype(np.int64)
    moved = new != old
    if not moved.any():
        return 0.0
    if new.dtype.kind == "b":
        return 1.0
    if new.dtype.kind not in "fiuc":
        return float(np.inf)
    wide = np.result_type(new.dtype, np.float64)
    with np.errstate(invalid="ignore"):
        gap = float(np.abs(new[moved].astype(wide) - old[moved].astype(wide)).max())
    # Beyond 2**53, neighbours are one float.
    return max(gap, 1.0) if new.dtype.kind in "iu" else gap


def not_a_number(part: Part, column: str | None) -> str | None:
    """The first key and column with a NaN, in words."""
    for name, values in part.columns.items():
        if values.dtype.kind in "fc" and column in (None, name):
            found = np.isnan(values).reshape(len(part), -1).any(axis=1) if len(part) else np.empty(0, bool)
            if found.any():
                return f"key {part.keys[found][0]}, column {name!r}"
    return None


def changed_rows(new: Part, old: Part) -> int:
    """How many rows differ in any column."""
    if not len(new):
        return 0
    differs = np.zeros(len(new), dtype=bool)
    for name, column in new.columns.items():
        differs |= (column != old[name]).reshape(len(new), -1).any(axis=1)
    return int(differs.sum())


def merged(base: Part, changes: Part) -> Part:
    """`base` with the rows of `changes` in place of its own; ColumnsError names a key that it does not have."""
    if not len(changes):
        return base
    places = base.places(changes.keys)
    columns = {}
    for name, column in base.columns.items():
        columns[name] = column.copy()
        columns[name][places] = changes[name]
    return Part(base.number, base.keys, columns)
