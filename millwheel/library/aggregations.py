"""Aggregations: what a window computes from its records, as (zero, add, merge, result), with the coder of the accumulator.

Lives here: the protocol, and the aggregations that need no other library.  `sketches` has the approximate ones.
Invariant: the result depends on the records and their times, never on the order in which they came or were merged.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import chain, groupby
from typing import Any, Generic, TypeVar, overload

from millwheel.coders import Coder, JsonCoder, MsgpackCoder
from millwheel.errors import WiringError
from millwheel.library import exact
from millwheel.library.exact import Exact

T = TypeVar("T")
A = TypeVar("A")
R = TypeVar("R")
V = TypeVar("V")
N = TypeVar("N", int, float)

_NUMBER: Any = int | float


class Aggregation(Generic[T, A, R]):
    """Subclass it, or call `aggregation` with four functions.

    `add` and `merge` may change and return their first argument, because it is not used again.  `results` is the type of what
    `result` gives, for the coder of the stream that follows.  `name` is kept in the store, so that the state of one
    aggregation is never read as that of another.
    """

    name: str
    accumulator: Coder[A]
    results: Any
    bounded = False
    """Accumulators do not grow with the number of records, so that sliding windows may keep many of them."""
    of_parts = False
    """Its values come of the shards of a combiner, which have judged already what is too late."""

    def zero(self) -> A:
        """The accumulator of no record."""
        raise NotImplementedError

    def add(self, accumulator: A, value: T) -> A:
        """The accumulator with one more record."""
        raise NotImplementedError

    def add_at(self, accumulator: A, value: T, timestamp: int) -> A:
        """The same, for an aggregation that looks at event time."""
        return self.add(accumulator, value)

    def merge(self, left: A, right: A) -> A:
        """The accumulator of the records of both."""
        raise NotImplementedError

    def merge_all(self, parts: Sequence[A]) -> A:
        """The same of one or more parts: those of a sliding window, which may be hundreds."""
        return reduce(self.merge, parts)

    def subtract(self, accumulator: A, part: A) -> A | None:
        """The accumulator without a part that was merged into it; without this, sliding windows merge all their slices.

        None: the two do not say what is left, so the slices of the next window are merged.
        """
        raise NotImplementedError

    def result(self, accumulator: A) -> R:
        """What a pane shows."""
        raise NotImplementedError

    @property
    def subtracts(self) -> bool:
        """Whether it has `subtract`."""
        return type(self).subtract is not Aggregation.subtract or "subtract" in vars(self)


def aggregation(
    name: str,
    zero: Callable[[], A],
    add: Callable[[A, T], A],
    merge: Callable[[A, A], A],
    result: Callable[[A], R],
    accumulator: Coder[A],
    results: Any,
    subtract: Callable[[A, A], A | None] | None = None,
    *,
    bounded: bool = False,
) -> Aggregation[T, A, R]:
    """An aggregation of four functions, or of five; `bounded` says that accumulators do not grow with their records.

    >>> product = aggregation("product", lambda: 1, lambda a, v: a * v, lambda a, b: a * b, lambda a: a, JsonCoder(int), int)
    >>> product.result(product.merge(product.add(product.zero(), 6), 7))
    42
    """
    if not hasattr(accumulator, "encode") or isinstance(accumulator, type):
        raise WiringError(
            f"aggregation({name!r}): accumulator={accumulator!r:.80}: give its coder, for example JsonCoder(int)"
        )
    if hasattr(results, "encode") and not isinstance(results, type):
        raise WiringError(f"aggregation({name!r}): results={results!r:.80}: give the type of the results, not a coder")
    made: Aggregation[T, A, R] = Aggregation()
    made.name, made.accumulator, made.results = name, accumulator, results
    made.__dict__.update(zero=zero, add=add, merge=merge, result=result, bounded=bounded)
    if subtract is not None:
        made.__dict__["subtract"] = subtract
    return made


class _Count(Aggregation[Any, int, int]):
    name = "count"
    accumulator = JsonCoder(int)
    results = int

    def zero(self) -> int:
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        return accumulator + 1

    def merge(self, left: int, right: int) -> int:
        return left + right

    def subtract(self, accumulator: int, part: int) -> int:
        return accumulator - part

    def result(self, accumulator: int) -> int:
        return accumulator


def count() -> Aggregation[Any, int, int]:
    """How many records."""
    return _Count()


def sum_of(of: Callable[[T], N]) -> Aggregation[T, Exact, N]:
    """The sum of a number of each record; sums of floats are exact until they are rounded once."""

    def result(sum_: Exact) -> Any:
        return exact.result(sum_)

    return aggregation(
        "sum", lambda: 0, lambda sum_, value: exact.plus(sum_, of(value)), exact.merged, result,
        MsgpackCoder[Exact](Exact), _NUMBER, exact.minus,
    )  # fmt: skip


def mean(of: Callable[[T], float]) -> Aggregation[T, tuple[Exact, int], float | None]:
    """The arithmetic mean; None of no record."""
    return aggregation(
        "mean", lambda: (0, 0), lambda a, value: (exact.plus(a[0], of(value)), a[1] + 1),
        lambda a, b: (exact.merged(a[0], b[0]), a[1] + b[1]),
        lambda a: exact.result(a[0]) / a[1] if a[1] else None,
        MsgpackCoder[tuple[Exact, int]](tuple[Exact, int]), float | None,
        lambda a, b: None if (rest := exact.minus(a[0], b[0])) is None else (rest, a[1] - b[1]),
    )  # fmt: skip


def _no_number(value: Any) -> bool:
    """Whether it is the float NaN, which is not even equal to itself."""
    return bool(value != value)


def _best(
    name: str, of: Callable[[T], V], type_: Any, better: Callable[[Any, Any], bool]
) -> Aggregation[T, list[V], V | None]:
    def best(left: list[V], right: list[V]) -> list[V]:
        return right if not left or (right and better(right[0], left[0])) else left

    return aggregation(
        name, list, lambda a, value: best(a, [of(value)]), best, lambda a: a[0] if a else None,
        MsgpackCoder[list[V]](list[type_]), type_ | None, bounded=True,
    )  # fmt: skip


@overload
def minimum(of: Callable[[T], N]) -> Aggregation[T, list[N], N | None]: ...
@overload
def minimum(of: Callable[[T], V], type_: type[V]) -> Aggregation[T, list[V], V | None]: ...
def minimum(of: Callable[[T], Any], type_: Any = _NUMBER) -> Aggregation[T, list[Any], Any]:
    """The smallest; None of no record.  Values that are no numbers need their `type_`; NaN is larger than all numbers."""
    return _best("minimum", of, type_, lambda a, b: a < b or (b != b and a == a))


@overload
def maximum(of: Callable[[T], N]) -> Aggregation[T, list[N], N | None]: ...
@overload
def maximum(of: Callable[[T], V], type_: type[V]) -> Aggregation[T, list[V], V | None]: ...
def maximum(of: Callable[[T], Any], type_: Any = _NUMBER) -> Aggregation[T, list[Any], Any]:
    """The largest; None of no record.  Values that are no numbers need their `type_`; NaN is larger than all numbers."""
    return _best("maximum", of, type_, lambda a, b: a > b or (a != a and b == b))


class _InTime(Aggregation[T, list[tuple[int, V]], R]):
    """Keeps (time, value) in order of time; equal times in order of the encoded value, so that arrival does not matter."""

    def __init__(
        self, name: str, of: Callable[[T], V], type_: Any, keep: slice, result: Callable[[list[V]], R], results: Any
    ) -> None:
        self.name = name
        self.results = results
        self.accumulator: Coder[list[tuple[int, V]]] = MsgpackCoder(list[tuple[int, type_]])
        self._of, self._keep, self._result = of, keep, result
        self.bounded = keep != slice(None)
        self._coder = MsgpackCoder[V](type_)

    def zero(self) -> list[tuple[int, V]]:
        return []

    def _place(self, entry: tuple[int, V]) -> tuple[int, bytes]:
        return entry[0], self._coder.encode(entry[1])

    def add_at(self, accumulator: list[tuple[int, V]], value: T, timestamp: int) -> list[tuple[int, V]]:
        # As it will be read again: an int where floats are kept is a float then, and must be sorted as one.
        entry = timestamp, self._coder.decode(self._coder.encode(self._of(value)))
        if not accumulator or timestamp > accumulator[-1][0]:
            accumulator.append(entry)
        else:
            insort(accumulator, entry, key=self._place)
        return accumulator[self._keep]

    def merge(self, left: list[tuple[int, V]], right: list[tuple[int, V]]) -> list[tuple[int, V]]:
        return sorted([*left, *right], key=self._place)[self._keep]

    def merge_all(self, parts: Sequence[list[tuple[int, V]]]) -> list[tuple[int, V]]:
        return sorted(chain.from_iterable(parts), key=self._place)[self._keep]

    def result(self, accumulator: list[tuple[int, V]]) -> R:
        return self._result([value for _, value in accumulator])


def _itself(value: Any) -> Any:
    return value


def first(type_: type[V], of: Callable[[T], V] = _itself) -> Aggregation[T, list[tuple[int, V]], V | None]:
    """The value of the earliest record by event time; None of no record."""
    return _InTime("first", of, type_, slice(0, 1), lambda found: found[0] if found else None, type_ | None)


def last(type_: type[V], of: Callable[[T], V] = _itself) -> Aggregation[T, list[tuple[int, V]], V | None]:
    """The value of the latest record by event time; None of no record."""
    return _InTime("last", of, type_, slice(-1, None), lambda found: found[-1] if found else None, type_ | None)


def collect(type_: type[V], of: Callable[[T], V] = _itself) -> Aggregation[T, list[tuple[int, V]], list[V]]:
    """Every value, in order of event time.  The whole list is read and written for each record: for short ones."""
    return _InTime("collect", of, type_, slice(None), lambda found: found, list[type_])  # type: ignore[valid-type]


def top(
    n: int, by: Callable[[V], Any], type_: type[V], of: Callable[[T], V] = _itself
) -> Aggregation[T, list[V], list[V]]:
    """The `n` values for which `by` is largest, that one first; of equal ones those that are encoded smaller."""
    if type(n) is not int or n < 1:
        raise WiringError(f"top({n!r:.80}): give a number of values, at least 1")
    encode = MsgpackCoder[V](type_).encode

    def rank(value: V) -> tuple[bool, Any]:
        of_value = by(value)
        return (True, 0) if _no_number(of_value) else (False, of_value)

    def best(values: list[V]) -> list[V]:
        found: list[V] = []
        for _, equal in groupby(sorted(values, key=rank, reverse=True), key=rank):
            group = list(equal)
            found += group if len(group) == 1 else sorted(group, key=encode)
            if len(found) >= n:
                break
        return found[:n]

    made: Aggregation[T, list[V], list[V]] = aggregation(
        f"top {n}", list, lambda a, value: best([*a, of(value)]), lambda a, b: best(a + b), lambda a: a,
        MsgpackCoder[list[V]](list[type_]), list[type_],  # type: ignore[valid-type]
        bounded=True,
    )  # fmt: skip
    made.__dict__["merge_all"] = lambda parts: best([*chain.from_iterable(parts)])
    return made


def distinct(of: Callable[[T], V], type_: type[V]) -> Aggregation[T, set[V], int]:
    """How many different values, exactly: all of them are kept.  `sketches.distinct` keeps a few kB."""

    def add(seen: set[V], value: T) -> set[V]:
        found = of(value)
        if not _no_number(found) or not any(map(_no_number, seen)):
            seen.add(found)
        return seen

    def number(seen: set[V]) -> int:
        return len(seen) - max(0, sum(map(_no_number, seen)) - 1)

    coder: Coder[set[V]] = MsgpackCoder(set[type_])  # type: ignore[valid-type]
    made: Aggregation[T, set[V], int] = aggregation("distinct", set, add, lambda a, b: a | b, number, coder, int)
    made.__dict__["merge_all"] = lambda parts: set[V]().union(*parts)
    return made
