"""Tables whose columns come from the type of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest

from millwheel import Computation, Context, MillwheelError, Pipeline, Record, Stream, Table, TextCoder, subscribe
from millwheel.errors import RowError, WiringError
from millwheel.testing import Stepper


class Colour(Enum):
    RED = "red"


class Wide(TypedDict):
    key: str
    count: int
    share: float | None
    open: bool
    at: datetime
    day: date
    tags: list[str]
    more: dict[str, int]
    kind: Literal["a", "b"]
    colour: Colour


COLUMNS = {
    "key": "text", "count": "bigint", "share": "double precision", "open": "boolean", "at": "timestamptz", "day": "date",
    "tags": "jsonb", "more": "jsonb", "kind": "text", "colour": "text",
}  # fmt: skip


@dataclass
class Plain:
    key: str
    count: int


class Renamed(msgspec.Struct, rename="camel"):
    key: str
    row_count: int


class Named(NamedTuple):
    key: str
    number: int


class Odd(msgspec.Struct):
    key: str
    odd: int | str


words = Stream("words", TextCoder())


def test_the_fields_of_a_row_are_the_columns() -> None:
    assert Table("t", Wide, ("key",)).spec().columns == COLUMNS
    assert Table("t", Renamed, ("key",)).spec().columns == {"key": "text", "rowCount": "bigint"}
    assert Table("t", Odd, ("key",), types={"odd": "jsonb"}).spec().columns == {"key": "text", "odd": "jsonb"}


class Every(msgspec.Struct):
    """A field of each kind of type that `Wide` has not."""

    key: UUID
    price: Decimal
    struct: Renamed
    data: Plain
    typed: Typed
    named: Named
    pair: tuple[int, str]
    many: tuple[int, ...]
    number: Literal[1, 2]


class Mixed(msgspec.Struct):
    key: str
    mixed: Literal[1, "a"]


def test_every_kind_of_field_has_its_column() -> None:
    columns = {"key": "uuid", "price": "numeric", "number": "bigint"}
    columns |= dict.fromkeys(["struct", "data", "typed", "named", "pair", "many"], "jsonb")
    assert Table("t", Every, ("key",)).spec().columns == columns
    with pytest.raises(WiringError, match="'mixed' has no SQL type of its own"):
        Table("t", Mixed, ("key",)).spec()


def test_types_that_are_given_count_more_than_those_of_the_columns() -> None:
    assert Table("t", {"key": "text"}, ("key",), types={"key": "uuid"}).spec().columns == {"key": "uuid"}


def written(table: Table[Any], row: Any) -> list[dict[str, Any]]:
    class Write(Computation[str]):
        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            context.upsert(table, row)

    pipeline = Pipeline("p")
    pipeline.add(Write, [subscribe(words, str)], hook_attempts=1)
    pipeline.sink(table)
    stepper = Stepper(pipeline)
    stepper.send(words, "a", 1)
    return stepper.rows(table)


class Typed(TypedDict):
    key: str
    count: int


ROWS: Mapping[str, tuple[Any, Any, dict[str, Any]]] = {
    "typed dict": (Typed, {"key": "a", "count": 5}, {"key": "a", "count": 5}),
    "dataclass": (Plain, Plain("a", 5), {"key": "a", "count": 5}),
    "struct": (Renamed, Renamed("a", 5), {"key": "a", "rowCount": 5}),
    "named tuple": (Named, Named("a", 5), {"key": "a", "number": 5}),
    "dict": ({"key": "text", "count": "bigint"}, {"key": "a", "count": 5}, {"key": "a", "count": 5}),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_row_is_a_value_of_the_type(kind: str) -> None:
    type_, row, found = ROWS[kind]
    assert written(Table("t", type_, ("key",)), row) == [found]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Table("t", Odd, ("key",)).spec(), WiringError, r"'odd' has no SQL type of its own; give types="),
        (lambda: Table("t", 7, ("key",)).spec(), WiringError, r"be a TypedDict, dataclass or Struct, got 7"),  # type: ignore[arg-type]
        (lambda: Table("t", int, ("key",)).spec(), WiringError, r"be a TypedDict, dataclass or Struct"),
        (lambda: Table("t", Plain, ("key",), types={"x": "text"}).spec(), WiringError, r"types for \['x'\]"),
        (lambda: Pipeline("p").sink(Table("t", Plain, ("q",))), WiringError, r"key columns \['q'\]"),
        (lambda: Pipeline("p").sink(Table("t", Odd, ("key",))), WiringError, r"no SQL type of its own"),
        (lambda: written(Table("t", Plain, ("key",)), {"key": "a", "count": 5}), AssertionError, "not Plain"),
        (lambda: written(Table("t", Plain, ("key",)), Plain("a", "b")), AssertionError, "RowError"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_declaration_or_row_is_named(make: Any, error: type[Exception], message: str) -> None:
    assert issubclass(RowError, MillwheelError)
    with pytest.raises(error, match=message):
        make()
