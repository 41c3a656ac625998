"""A sink table, as the user declares it; its rows are dicts, or values of a type.

Lives here: `Table`, and how the type of a row becomes columns.  Never here: checks of values (`millwheel.rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeAlias

import msgspec
from msgspec import inspect
from typing_extensions import TypeVar

from millwheel.errors import WiringError
from millwheel.shape import SinkTable

R = TypeVar("R", default=Mapping[str, Any])

Fields: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""Makes a mapping of column name to value of a row that is a value of a type."""

_KINDS: Final[Mapping[type[inspect.Type], str]] = {
    inspect.StrType: "text",
    inspect.IntType: "bigint",
    inspect.FloatType: "double precision",
    inspect.BoolType: "boolean",
    inspect.DateTimeType: "timestamptz",
    inspect.DateType: "date",
    inspect.DecimalType: "numeric",
    inspect.UUIDType: "uuid",
    inspect.DictType: "jsonb",
    inspect.ListType: "jsonb",
    inspect.StructType: "jsonb",
    inspect.DataclassType: "jsonb",
    inspect.TypedDictType: "jsonb",
    inspect.VarTupleType: "jsonb",
    inspect.TupleType: "jsonb",
    inspect.NamedTupleType: "jsonb",
}


class Table(msgspec.Struct, Generic[R], frozen=True):
    """A sink table in the pipeline's schema: its columns, and the names of those that are its primary key.

    `columns` maps names to SQL types: text, bigint, integer, double precision, boolean, numeric (`Decimal`, int or
    text), uuid (`UUID` or text), timestamptz and date (`datetime` and `date`, or ISO 8601 text), jsonb.  Or `columns` is
    the type of a row: a `TypedDict`, a dataclass or a `msgspec.Struct`, whose fields are the columns.  Type checkers
    then check what is upserted.  `types` names another SQL type for columns of such a row, for example integer.

    >>> class Total(msgspec.Struct):
    ...     word: str
    ...     seen: int
    >>> Table("totals", Total, ("word",)).spec().columns
    {'word': 'text', 'seen': 'bigint'}
    """

    name: str
    columns: type[R] | Mapping[str, str]
    key: tuple[str, ...]
    types: Mapping[str, str] = {}

    def spec(self) -> SinkTable:
        """The store's view of it; raises `WiringError` for a type that has no columns."""
        columns = self.columns
        if not isinstance(columns, Mapping):
            columns = _columns_of(columns, self.name, self.types)
        unknown = sorted(self.types.keys() - columns.keys())
        if unknown:
            raise WiringError(f"sink table {self.name!r}: types for {unknown}, which are not among its columns")
        return SinkTable(self.name, {**columns, **self.types}, tuple(self.key))

    def fields(self) -> Fields | None:
        """None when every row is a mapping."""
        fields = None if isinstance(self.columns, Mapping) else _fields_of(self.columns)
        if fields is None or issubclass(self.columns, dict):  # type: ignore[arg-type]
            return None
        names = [(field.encode_name, field.name) for field in fields]

        def values(row: Any) -> Mapping[str, Any]:
            try:
                return {column: getattr(row, name) for column, name in names}
            except AttributeError:
                raise WiringError(
                    f"row for table {self.name!r} is {row!r:.80}, not {getattr(self.columns, '__name__', self.columns)}"
                ) from None

        return values


def _fields_of(type_: Any) -> tuple[inspect.Field, ...] | None:
    try:
        return getattr(inspect.type_info(type_), "fields", None)
    except TypeError:  # no type at all
        return None


def _columns_of(type_: Any, table: str, given: Mapping[str, str]) -> dict[str, str]:
    fields = _fields_of(type_)
    if fields is None:
        raise WiringError(
            f"sink table {table!r}: columns must map names to SQL types, or be a TypedDict, dataclass or Struct, got "
            f"{type_!r:.80}"
        )
    return {f.encode_name: given.get(f.encode_name) or _kind(f, table) for f in fields}


def _kind(field: inspect.Field, table: str) -> str:
    """The SQL type of a field; None as one of several values of it is NULL."""
    options = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
    kinds = {_plain_kind(option) for option in options if not isinstance(option, inspect.NoneType)}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None:
        raise WiringError(
            f"sink table {table!r}: field {field.name!r} has no SQL type of its own; give types={{{field.encode_name!r}: …}}"
        )
    return kind


def _plain_kind(type_: inspect.Type) -> str | None:
    if isinstance(type_, inspect.LiteralType | inspect.EnumType):
        values = type_.values if isinstance(type_, inspect.LiteralType) else [m.value for m in type_.cls]
        return {str: "text", int: "bigint"}.get(type(values[0])) if len({*map(type, values)}) == 1 else None
    return _KINDS.get(type(type_))
