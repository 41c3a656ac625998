"""Columns to values: Arrow record batches become structs or dicts.

Lives here: `RowMaker`.  Never here: files, positions, event time.  pyarrow is imported when it is needed.
Invariant: a struct is built straight from columns only when msgspec would have made the same one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from millwheel.errors import SourceError


class RowColumns(msgspec.Struct):
    """Some consecutive rows, as Python values by column name; `count` of them."""

    data: dict[str, list[Any]]
    count: int

    def dicts(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """One dict per row."""
        if not names:
            return [{} for _ in range(self.count)]
        return [dict(zip(names, row, strict=True)) for row in zip(*(self.data[n] for n in names), strict=True)]


def us_of(column: Any) -> Any:
    """A timestamp column as int64 microseconds; any other column as it is."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
    return column


class RowMaker:
    """Turns columns into values of `type` (dicts when None).

    A struct whose fields are plain scalars of the file's own types is built straight from the columns;
    anything else goes through msgspec, row by row.  Timestamps are int microseconds.
    """

    def __init__(
        self, place: Path, schema: Any, type_: Any, columns: Sequence[str] | None, constants: Mapping[str, str | None]
    ) -> None:
        self._place = place
        self._schema = schema
        self._type = type_
        self._fields = struct_fields(type_)
        self.names = self._wanted(columns, constants)
        self._constants = self._typed(constants)
        self._direct = self._fields is not None and self._is_direct()
        self._required = [] if self._fields is None else [name for name, f in self._fields.items() if not nullable(f)]

    def _wanted(self, columns: Sequence[str] | None, constants: Mapping[str, str | None]) -> list[str]:
        """Columns of the file that a value is made of."""
        there = self._schema.names
        if columns is not None:
            wanted = list(columns)
        elif self._fields is not None:
            wanted = [n for n, f in self._fields.items() if f.required or n in there or n in constants]
        else:
            wanted = [*there, *constants]
        missing = [name for name in wanted if name not in there and name not in constants]
        if missing:
            raise SourceError(
                f"{self._place}: no column {', '.join(missing)}; it has {', '.join(there)}: change the type or columns"
            )
        self._all = wanted
        return [name for name in wanted if name in there]

    def _typed(self, constants: Mapping[str, str | None]) -> dict[str, Any]:
        """Values from the names of Hive partition directories, which are text, as the fields' types."""
        typed: dict[str, Any] = {name: constants[name] for name in self._all if name in constants}
        types = field_types(self._type)
        for name in typed.keys() & types.keys():
            try:
                typed[name] = None if typed[name] is None else msgspec.convert(typed[name], types[name], strict=False)
            except msgspec.ValidationError as error:
                raise SourceError(f"{self._place}: directory column {name}: {error}; change the type") from error
        return typed

    def _is_direct(self) -> bool:
        """True when the struct's constructor may get the columns as they are."""
        fields = self._fields or {}
        if not is_struct(self._type) or list(fields) != self._all or hasattr(self._type, "__post_init__"):
            return False
        if self._type.__struct_config__.tag is not None or is_keyword_only(self._type):
            return False
        return all(self._matches(name, field.type) for name, field in fields.items())

    def _matches(self, name: str, type_: Any) -> bool:
        return name not in self.names or arrow_kind(self._schema.field(name).type) == scalar_kind(type_)

    def columns(self, batch: Any) -> RowColumns:
        """The columns of an Arrow record batch as Python values, constants included."""
        count = batch.num_rows
        data = {name: self._listed(name, batch.column(name)) for name in batch.schema.names}
        for name, value in self._constants.items():
            data[name] = [value] * count
        return RowColumns(data, count)

    def _listed(self, name: str, column: Any) -> list[Any]:
        field = (self._fields or {}).get(name)
        keep = field is not None and isinstance(field.type, msgspec.inspect.DateTimeType)
        values: list[Any] = (column if keep else us_of(column)).to_pylist()
        return values

    def values(self, columns: RowColumns) -> tuple[list[Any], dict[int, str]]:
        """A value per row; and by index, why a row has none (its value is then None)."""
        bad = self._nulls(columns)
        if not bad:
            try:
                return self._all_values(columns), bad
            except msgspec.MsgspecError:
                pass
        values: list[Any] = []
        for index, row in enumerate(columns.dicts(self._all)):
            try:
                values.append(None if index in bad else self._convert(row, self._type))
            except msgspec.MsgspecError as error:
                values.append(None)
                bad[index] = str(error)
        return values, bad

    def _nulls(self, columns: RowColumns) -> dict[int, str]:
        bad: dict[int, str] = {}
        for name in self._required:
            if name in columns.data and None in columns.data[name]:
                nulls = (index for index, value in enumerate(columns.data[name]) if value is None)
                bad.update({index: f"column {name} is null" for index in nulls if index not in bad})
        return bad

    def _all_values(self, columns: RowColumns) -> list[Any]:
        if self._direct:
            return list(map(self._type, *(columns.data[name] for name in self._all)))
        rows = columns.dicts(self._all)
        return rows if self._type is None else self._convert(rows, list[self._type])  # type: ignore[name-defined]

    def _convert(self, data: Any, type_: Any) -> Any:
        return data if type_ is None else msgspec.convert(data, type_)


def struct_fields(type_: Any) -> dict[str, msgspec.inspect.Field] | None:
    """The fields of a struct or dataclass by name; None for no type."""
    if type_ is None:
        return None
    fields = getattr(msgspec.inspect.type_info(type_), "fields", None)
    if fields is None:
        raise ValueError(f"{type_!r} has no fields: rows of columns need a msgspec.Struct, a dataclass, or type=None")
    return {field.encode_name: field for field in fields}


def field_types(type_: Any) -> dict[str, Any]:
    """The annotations of a struct's or dataclass's fields, by the name they are read by."""
    if is_struct(type_):
        return {field.encode_name: field.type for field in msgspec.structs.fields(type_)}
    return {} if type_ is None else get_type_hints(type_, include_extras=True)


def is_struct(type_: Any) -> bool:
    """True for a msgspec struct class."""
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def is_keyword_only(type_: Any) -> bool:
    """True when a struct's constructor takes no positional values in the fields' order."""
    parameters = inspect.signature(type_).parameters.values()
    return any(parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters)


def nullable(field: msgspec.inspect.Field) -> bool:
    """True when a field takes None."""
    return (
        scalar_kind(field.type) == "any"
        or is_optional(field.type)
        or isinstance(field.type, msgspec.inspect.CustomType)
    )


def is_optional(type_: Any) -> bool:
    """True for None and unions with it."""
    return isinstance(type_, msgspec.inspect.NoneType) or (
        isinstance(type_, msgspec.inspect.UnionType) and type_.includes_none
    )


def scalar_kind(type_: Any) -> str | None:
    """The kind of an unconstrained scalar type, or of its union with None."""
    i = msgspec.inspect
    if isinstance(type_, i.UnionType) and len(type_.types) == 2 and type_.includes_none:
        return scalar_kind(next(t for t in type_.types if not isinstance(t, i.NoneType)))
    # Compared by equality, not by hash: msgspec's types are unhashable, and constraints make them differ.
    plain = ((i.IntType(), "int"), (i.FloatType(), "float"), (i.StrType(), "str"), (i.BytesType(), "bytes"))
    for known, kind in (*plain, (i.BoolType(), "bool"), (i.AnyType(), "any")):
        if type_ == known:
            return kind
    return None


def arrow_kind(type_: Any) -> str:
    """The kind of an Arrow column's Python values."""
    from pyarrow import types

    kinds: dict[str, Callable[[Any], bool]] = {
        "int": lambda t: types.is_integer(t) or types.is_timestamp(t),
        "float": types.is_floating,
        "str": lambda t: types.is_string(t) or types.is_large_string(t),
        "bytes": lambda t: types.is_binary(t) or types.is_large_binary(t),
        "bool": types.is_boolean,
    }
    return next((kind for kind, test in kinds.items() if test(type_)), "other")
