"""Look-up of rows in a table that is no stream: one query per key, whose answer is kept for a while.

Lives here: `LookUp`, and the operator that adds its row to each record.  Invariant: no row is older than `fresh_for` when it
is used, and every result says how old it was.  A look-up is not repeatable like other operators: what a hook sees depends on
when it runs, so a hook that runs again may see a newer row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from millwheel import limits
from millwheel.api.context import Context
from millwheel.coders import Coder, MsgpackCoder
from millwheel.library.durations import Duration, duration
from millwheel.library.matches import FieldsCoder
from millwheel.library.wiring import Operation, Operator, Wiring
from millwheel.model import Record

T = TypeVar("T")
R = TypeVar("R")


class Enriched(msgspec.Struct, Generic[T, R], frozen=True, array_like=True):
    """A value, the row that was found for its key, and how long before, us of wall time, the row was read."""

    value: T
    row: R
    age_us: int


class Query(Protocol):
    """One question to a database; `millwheel_storage.lookup.PostgresQuery` is one."""

    def __call__(self, key: str, /) -> Mapping[str, Any] | None:
        """The row of a key, as column to value; None: there is none."""
        ...

    def close(self) -> None:
        """The run ends."""
        ...


class LookUp(Generic[R]):
    """Asks `query` for a row of `row_type`; an answer, also that there is no row, is used for `fresh_for`, us.

    `query` makes a new `Query`, for each process one.
    """

    def __init__(self, query: Callable[[], Query], row_type: type[R], fresh_for: Duration) -> None:
        self.query = query
        self.row_type = row_type
        self.fresh_us = duration(fresh_for, "how long an answer is used")


class Answers(Generic[R]):
    """What the query has answered, those that were used last."""

    def __init__(self, lookup: LookUp[R]) -> None:
        self._query = lookup.query()
        self._row_type = lookup.row_type
        self._fresh_us = lookup.fresh_us
        self._found: OrderedDict[str, tuple[int, R | None]] = OrderedDict()

    def get(self, key: str, now_us: int) -> tuple[R | None, int]:
        """The row for `key`, and how old it is at the wall time `now_us`."""
        known = self._found.get(key)
        if known is None or not 0 <= now_us - known[0] <= self._fresh_us:
            row = self._query(key)
            known = self._found[key] = (now_us, None if row is None else msgspec.convert(row, self._row_type))
            if len(self._found) > limits.LOOKUP_CACHE_ROWS:
                self._found.popitem(last=False)
        self._found.move_to_end(key)
        return known[1], now_us - known[0]

    def close(self) -> None:
        """The run ends."""
        self._query.close()


class Enrich(Operator[Enriched[T, R | None]], Generic[T, R]):
    """Adds the row of its key to each value."""

    def __init__(self, wiring: Wiring[Enriched[T, R | None]], lookup: LookUp[R]) -> None:
        super().__init__(wiring)
        self._lookup = lookup

    def setup(self) -> None:
        """Nothing is asked before the first record."""
        self._answers = Answers(self._lookup)

    def teardown(self) -> None:
        """End the connection."""
        self._answers.close()

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """A query, if the last answer for this key is too old."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            row, age_us = self._answers.get(record.key, context.wall_time)
            self.emit(context, Enriched(value, row, age_us), None)


def enrich(lookup: LookUp[R], coder: Coder[T] | None) -> Operation[Enriched[T, R | None]]:
    """The operation of `KeyedChain.look_up`."""
    row: Coder[Any] = MsgpackCoder(lookup.row_type)
    output: Coder[Any] | None = None if coder is None else FieldsCoder(Enriched, {"value": coder, "row": row})
    return Operation(kind="look_up", make=lambda wiring: Enrich(wiring, lookup), output=output)
