"""Data in numbered partitions: one element each, next to its like in every other `Partitioned`, and rows sent between them.

Lives here: what a step is written with (`send`, `receive`, `update`, `map`). Never here: when a step runs and what
happens when a partition is lost. The invariant: partition i of every `Partitioned` holds exactly one element, and it
belongs to the keys that `partition_of` puts there, so that a step moves messages and nothing else.

Why one element of columns and not one per key: `docs/adr/0006-iteration-state-is-columns-in-an-rdd.md`.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Any, Generic, TypeVar

from pyspark import RDD, SparkContext, TaskContext

from millwheel.spark.iteration import doors
from millwheel.spark.iteration.columns import (
    Column,
    Part,
    Rows,
    as_column,
    as_keys,
    check_home,
    joined,
    part_of,
    split,
)
from millwheel.spark.iteration.errors import ColumnsError

T = TypeVar("T")
U = TypeVar("U")


def number_itself(number: int) -> int:
    """The partition function of every RDD here; two RDDs lie together only if they share it."""
    return number


def itself(element: Any) -> Any:
    """The element as it is."""
    return element


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """Rows on their way to the partitions of their keys. Made by `Partitioned.send`, taken once, by a receiver."""

    rdd: RDD[Any]
    partitions: int


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned(Generic[T]):
    """One `T` in each of `partitions` partitions; `pick` finds it in the element of `source`."""

    source: RDD[Any]
    partitions: int
    pick: Callable[[Any], T] = itself
    base: Partitioned[Any] | None = None
    """What this was made from by `receive`; elements of `source` are then (element of base's source, this one's)."""

    def map(self, f: Callable[..., U], *beside: Partitioned[Any]) -> Partitioned[U]:
        """`f(element, *elements beside it)` in every partition; nothing moves.

        When all of them come from one cached RDD, this is only a view of it, and `f` runs wherever the view is read. That
        saves a Python worker in the task. Where none is waiting, a worker takes about half a second to start.
        """
        rdd, slots = _aligned([self, *beside])
        call = _Call(slots, f)
        if slots.width == 1:
            return Partitioned(rdd, self.partitions, _OfOne(call))
        return Partitioned(rdd.mapPartitions(partial(_map, call), preservesPartitioning=True), self.partitions)

    def send(self, f: Callable[..., Rows], *beside: Partitioned[Any]) -> Messages:
        """`f(element, *elements beside it)` in every partition gives rows, which go to the partitions of their keys.

        Totals of the rows go to every partition. A partition that gives no rows and no totals sends nothing.
        """
        rdd, slots = _aligned([self, *beside])
        keyed = rdd.mapPartitionsWithIndex(partial(_send, slots, self.partitions, f))
        return Messages(keyed.partitionBy(self.partitions, number_itself), self.partitions)

    def receive(self, messages: Messages, f: Callable[..., U], *beside: Partitioned[Any]) -> Partitioned[U]:
        """`f(element, rows, *elements beside it)` in every partition, with all rows that were sent to it.

        The rows come in the order of the sending partitions, each sender's in its own order: a partition that is
        computed again is equal to the last bit. Where nothing arrives, the rows are none and have no columns.
        """
        rdd, slots = _aligned([self, *beside], messages)
        received = rdd.mapPartitionsWithIndex(partial(_receive, slots, f), preservesPartitioning=True)
        return Partitioned(received, self.partitions, itemgetter(1), self)

    def update(
        self: Partitioned[Part], messages: Messages, f: Callable[..., Part], *beside: Partitioned[Any]
    ) -> Changes:
        """Like `receive`, but `f` returns the rows that change (`part.take(where).having(...)`), and only those."""
        return Changes(self.receive(messages, f, *beside))

    def kept(self) -> Partitioned[T]:
        """The same, cached. For what every superstep reads and none changes; if lost, Spark computes it again."""
        return Partitioned(doors.kept(self.source_of_values()), self.partitions)

    def with_result(self, result: Partitioned[U]) -> RDD[tuple[Any, U]]:
        """Pairs of an element of `source` and the result's; in no further pass if the result was received by this one."""
        if result.base is self:
            return result.source
        return Partitioned(self.source, self.partitions).map(_pair, result).source_of_values()

    def source_of_values(self) -> RDD[T]:
        """The elements themselves, as an RDD."""
        if self.pick is itself:
            return self.source
        return self.source.mapPartitions(partial(_pick_all, self.pick), preservesPartitioning=True)

    def collect(self) -> list[T]:
        """The elements, in the order of the partitions, at the driver."""
        return list(self.source_of_values().collect())

    def total(self, f: Callable[[T], float]) -> float:
        """The sum of `f(element)` over the partitions."""
        return float(sum(self.map(f).collect()))


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What a delta superstep changes: for each partition the solution it started from, and its changed rows."""

    outcome: Partitioned[Part]


def from_columns(context: SparkContext, partitions: int, keys: Column, **columns: Column) -> Partitioned[Part]:
    """A state from arrays at the driver: distinct integer keys of shape (n,), columns of n rows. For up to some 10^7 rows."""
    arrays = {name: as_column(column) for name, column in columns.items()}
    parts = split(Rows(as_keys(keys), arrays), partitions)
    return from_elements(context, [part_of(number, partitions, rows) for number, rows in enumerate(parts)])


def from_elements(context: SparkContext, elements: Sequence[T]) -> Partitioned[T]:
    """Element i becomes partition i. Whoever builds `Part`s by hand puts each key where `partition_of` says."""
    if not elements:
        raise ColumnsError("a state needs at least one partition")
    for element in elements:
        if isinstance(element, Part):
            check_home(element, len(elements))
    numbered = context.parallelize(list(enumerate(elements)), len(elements))
    return numbered_partitions(numbered, len(elements))


def from_rows(rows: RDD[Rows], partitions: int, build: Callable[[int, Rows], U]) -> Partitioned[U]:
    """Rows from anywhere in the cluster to the partitions of their keys; `build(number, rows)` makes each one's element."""
    sent = rows.mapPartitionsWithIndex(partial(_send_all, partitions)).partitionBy(partitions, number_itself)
    return Partitioned(sent.mapPartitionsWithIndex(partial(_build, build), preservesPartitioning=True), partitions)


def numbered_partitions(numbered: RDD[tuple[int, T]], partitions: int) -> Partitioned[T]:
    """(number, element) pairs, one a number, in partitions by number: what regains order after a union of pieces."""
    return Partitioned(numbered.partitionBy(partitions, number_itself), partitions, itemgetter(1))


# --- the narrow side: which RDDs to read, and where in the stream of a partition each element comes ------------------


@dataclass(frozen=True, slots=True)
class _Slots:
    """A partition's stream starts with `width` elements; `picks` says which of them, and what of it, is each argument."""

    width: int
    picks: tuple[tuple[int, Callable[[Any], Any]], ...]

    def raw(self, stream: Iterator[Any]) -> list[Any]:
        """The elements as they are, and no more of the stream."""
        return [next(stream) for _ in range(self.width)]

    def picked(self, elements: Sequence[Any]) -> list[Any]:
        return [pick(elements[place]) for place, pick in self.picks]

    def read_all(self, stream: Iterable[Any]) -> list[Any]:
        """To the end of the stream: Spark gives up a Python worker that leaves input unread (0.5 s for a new one)."""
        return self.picked(list(stream))


def _aligned(many: Sequence[Partitioned[Any]], messages: Messages | None = None) -> tuple[RDD[Any], _Slots]:
    if len({one.partitions for one in many} | ({messages.partitions} if messages else set())) != 1:
        raise ValueError(f"data beside each other must have as many partitions: {[one.partitions for one in many]}")
    sources: list[RDD[Any]] = []
    picks = []
    for one in many:
        place = next((place for place, source in enumerate(sources) if source is one.source), len(sources))
        if place == len(sources):
            sources.append(one.source)
        picks.append((place, one.pick))
    slots = _Slots(len(sources), tuple(picks))
    return doors.together(sources if messages is None else [*sources, messages.rdd]), slots


@dataclass(frozen=True, slots=True)
class _Call:
    """`f` of what the slots pick."""

    slots: _Slots
    f: Callable[..., Any]

    def __call__(self, stream: Iterable[Any]) -> Any:
        return self.f(*self.slots.read_all(stream))


@dataclass(frozen=True, slots=True)
class _OfOne:
    """A call on a stream of one element, as a pick of that element."""

    call: _Call

    def __call__(self, element: Any) -> Any:
        return self.call((element,))


def _pair(first: Any, second: Any) -> tuple[Any, Any]:
    return first, second


@cache
def _settled(modules: int) -> None:
    """Exempt what a Python worker has imported from the collection that PySpark makes after each task.

    That collection walks numpy and PySpark, 20 ms of processor time, ten times what a small task takes. Once for each
    number of imported modules, so that what a later job imports is exempted too; garbage in cycles is still found.
    """
    gc.collect()
    gc.freeze()


def _settle() -> None:
    if TaskContext.get() is not None:
        _settled(len(sys.modules))


def _map(call: _Call, stream: Iterable[Any]) -> Iterator[Any]:
    _settle()
    yield call(stream)


def _send(
    slots: _Slots, partitions: int, f: Callable[..., Rows], source: int, stream: Iterable[Any]
) -> Iterator[tuple[int, tuple[int, Rows]]]:
    _settle()
    rows = f(*slots.read_all(stream))
    for number, batch in enumerate(split(rows, partitions)):
        if len(batch) or batch.totals:
            yield number, (source, batch)


def _receive(slots: _Slots, f: Callable[..., Any], _: int, stream: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    _settle()
    rest = iter(stream)
    elements = slots.raw(rest)
    first, *beside = slots.picked(elements)
    yield elements[slots.picks[0][0]], f(first, _joined(rest), *beside)


def _send_all(
    partitions: int, source: int, stream: Iterable[Rows]
) -> Iterator[tuple[int, tuple[tuple[int, int], Rows]]]:
    for place, rows in enumerate(stream):
        for number, batch in enumerate(split(rows, partitions)):
            yield number, ((source, place), batch)


def _build(build: Callable[[int, Rows], Any], number: int, stream: Iterable[Any]) -> Iterator[Any]:
    yield build(number, _joined(stream))


def _joined(pairs: Iterable[Any]) -> Rows:
    arrived = sorted((message for _, message in pairs), key=itemgetter(0))
    return joined(batch for _, batch in arrived)


def _pick_all(pick: Callable[[Any], Any], stream: Iterable[Any]) -> Iterator[Any]:
    for element in stream:
        yield pick(element)
