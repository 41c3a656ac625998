"""Columns become the values that msgspec would make of rows by name, whatever the type and the order of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel_injectors import SparkOutputSource
from tests.unit.injectors.drain import only, read_all, rows_of

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")


class Plain(msgspec.Struct):
    one: int
    other: int
    name: str


class Turned(msgspec.Struct):
    other: int
    one: int
    name: str


class Keyed(msgspec.Struct, kw_only=True):
    one: int
    other: int
    name: str


class Tagged(msgspec.Struct, tag_field="name", tag="n1"):
    one: int
    other: int


class Floats(msgspec.Struct):
    one: float
    other: int
    name: str


class Wrong(msgspec.Struct):
    one: int
    other: int
    name: int


class Checked(msgspec.Struct):
    one: int
    other: int
    name: str

    def __post_init__(self) -> None:
        if self.one == 1:
            raise ValueError("not this one")


@pytest.mark.parametrize(
    "columns", [None, ["one", "other", "name"], ["name", "other", "one"], ["other", "one", "name"]]
)
@pytest.mark.parametrize("type_", [Plain, Turned, Keyed, Tagged, Floats, Wrong, Checked])
def test_a_row_is_what_msgspec_makes_of_it_by_name(tmp_path: Path, type_: type[Any], columns: list[str] | None) -> None:
    rows = [{"one": n, "other": 10 + n, "name": f"n{n}", "at": 1} for n in range(3)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    source: SparkOutputSource[Any] = SparkOutputSource("s", tmp_path, event_time="at", type=type_, columns=columns)
    expected = {}
    for number, row in enumerate(rows):
        names = ["one", "other"] if type_ is Tagged and columns is None else ["one", "other", "name"]
        try:
            expected[number] = msgspec.convert({name: row[name] for name in names}, type_)
        except msgspec.ValidationError:
            continue
    found = {row: value for row, value, _ in rows_of(read_all(only(source)))}
    assert found == expected
    assert [*map(type, found.values())] == [type_] * len(found)
    assert [type(value.one) for value in found.values()] == [type(value.one) for value in expected.values()]


class Loose(msgspec.Struct):
    one: int
    name: Any


class Maybe(msgspec.Struct):
    one: int
    name: str | None


class Sure(msgspec.Struct):
    one: int
    name: str


@pytest.mark.parametrize("type_", [Loose, Maybe, Sure])
def test_a_field_without_a_value_is_as_msgspec_takes_it(tmp_path: Path, type_: type[Any]) -> None:
    rows = [{"one": n, "name": None if n % 2 else f"n{n}", "at": 1} for n in range(4)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "part-0.parquet")
    (tmp_path / "_SUCCESS").touch()
    source: SparkOutputSource[Any] = SparkOutputSource("s", tmp_path, event_time="at", type=type_)
    found = {row: value for row, value, _ in rows_of(read_all(only(source)))}
    taken = [n for n in range(4) if type_ is not Sure or n % 2 == 0]
    assert found == {n: type_(n, rows[n]["name"]) for n in taken}
