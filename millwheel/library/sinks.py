"""Sinks: results as rows of tables in Postgres, exactly once, and as the parts that files are made of.

Lives here: operators that end a chain.  Never here: files; `millwheel_storage.part_files` writes them.  Invariant: a row and
its count are committed together.  So after a crash no row is missing, none is there twice, and none has another number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec import inspect

from millwheel.api.context import Context
from millwheel.api.state import ValueCell
from millwheel.api.table import Table
from millwheel.api.typed import Row
from millwheel.coders import JsonCoder
from millwheel.errors import WiringError
from millwheel.library.windows import GLOBAL
from millwheel.library.wiring import Operation, Operator, Wiring
from millwheel.model import Record, Timer

T = TypeVar("T")
R = TypeVar("R")

ROWS: Final = "_rows"
PARTS: Final = "_parts"


class Append(Operator[None]):
    """A row for each record, under the record's key and its number among those of that key, from 0."""

    count = ValueCell[int](JsonCoder(int), default=0)

    def __init__(self, wiring: Wiring[None], table: Table[Any], row: Callable[[Any], Mapping[str, Any]]) -> None:
        super().__init__(wiring)
        self._table = table
        self._row = row

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Number it and write it."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            number = self.count.get()
            self.count.set(number + 1)
            context.upsert(self._table, {**self._row(value), "key": record.key, "number": number})


class Upserts(Operator[None]):
    """Rows of each record."""

    def __init__(self, wiring: Wiring[None], table: Table[Any], rows: Callable[[Any], Iterable[Any]]) -> None:
        super().__init__(wiring)
        self._table = table
        self._rows = rows

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Write them."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            for row in self._rows(value):
                context.upsert(self._table, row)


class Latest(Operator[None]):
    """The row of the newest record of each key, by event time; of two of one time, the one that arrives later."""

    time = ValueCell[int | None](JsonCoder(int | None), default=None)

    def __init__(self, wiring: Wiring[None], table: Table[Any], row: Callable[[Any], Any]) -> None:
        super().__init__(wiring)
        self._table = table
        self._row = row

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """Write it unless a newer one was there."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            newest = self.time.get()
            if newest is None or record.timestamp >= newest:
                self.time.set(record.timestamp)
                context.upsert(self._table, self._row(value))


class Parts(Operator[None]):
    """Rows of one shard, in the order in which they come, cut into parts; a part that is full or old is sealed.

    What `PARTS` names is sealed: all of its rows are committed, and no other will come.
    """

    part = ValueCell[int](JsonCoder(int), default=0)
    count = ValueCell[int](JsonCoder(int), default=0)

    def __init__(self, wiring: Wiring[None], tables: tuple[Table[Any], Table[Any]], rows: int, every_us: int) -> None:
        super().__init__(wiring)
        self._rows, self._parts = tables
        self._limit = rows
        self._every_us = every_us

    def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
        """One row more."""
        for _, value in self.inputs.take(context.stream, record.key, record.value):
            part, place = self.part.get(), self.count.get()
            text = msgspec.json.encode(value, order="deterministic").decode()
            context.upsert(self._rows, {"shard": record.key, "part": part, "place": place, "value": text})
            self.count.set(place + 1)
            if place + 1 >= self._limit:
                self._seal(context)
            elif not place:
                context.set_timer("old", context.wall_time + self._every_us, "wall")
                context.set_timer("end", GLOBAL.end)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        """The part is old, or the input has ended."""
        if self.count.get():
            self._seal(context)

    def _seal(self, context: Context) -> None:
        part = self.part.get()
        context.upsert(self._parts, {"shard": context.key, "part": part, "rows": self.count.get()})
        self.part.set(part + 1)
        self.count.set(0)
        context.cancel_timer("old", "wall")
        context.cancel_timer("end")


def append(name: str, columns: Mapping[str, str], row: Callable[[T], Mapping[str, Any]]) -> Operation[None]:
    """The operation of `KeyedChain.append_to`."""
    taken = sorted({"key", "number"} & columns.keys())
    if taken:
        raise WiringError(f"table {name!r}: columns {taken} are the sink's own; name yours otherwise")
    table: Table[Any] = Table(name, {"key": "text", "number": "bigint", **columns}, ("key", "number"))
    return Operation(kind="append", make=lambda wiring: Append(wiring, table, row), output=None, tables=(table,))


def upserts(table: Table[R], rows: Callable[[T], Iterable[Row[R]]]) -> Operation[None]:
    """The operation of `KeyedChain.upsert_to`."""
    return Operation(kind="upsert", make=lambda wiring: Upserts(wiring, table, rows), output=None, tables=(table,))


def latest(table: Table[R], row: Callable[[T], Row[R]]) -> Operation[None]:
    """The operation of `KeyedChain.latest_to`."""
    return Operation(kind="latest", make=lambda wiring: Latest(wiring, table, row), output=None, tables=(table,))


def parts(name: str, row_type: type[Any], rows: int, every_us: int) -> Operation[None]:
    """The operation of `Chain.to_files`."""
    if rows < 1 or every_us < 1:
        raise WiringError(f"files {name!r}: a part has at least one row, and is sealed after at least one us")
    if not isinstance(inspect.type_info(row_type), inspect.StructType | inspect.DataclassType | inspect.TypedDictType):
        raise WiringError(f"files {name!r}: a row is a TypedDict, a dataclass or a Struct, not {row_type!r:.80}")
    place = {"shard": "text", "part": "bigint", "place": "bigint", "value": "text"}
    tables: tuple[Table[Any], Table[Any]] = (
        Table(name + ROWS, place, ("shard", "part", "place")),
        Table(name + PARTS, {"shard": "text", "part": "bigint", "rows": "bigint"}, ("shard", "part")),
    )
    return Operation(
        kind="parts", make=lambda wiring: Parts(wiring, tables, rows, every_us), output=None, tables=tables
    )
