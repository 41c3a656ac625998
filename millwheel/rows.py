"""What a row of a sink table may hold: one strict check per column type.

Lives here: types, checks and the one spelling of each value.  Never here: SQL, I/O.  A row is checked when a hook writes it,
so a value that no column could hold fails in that hook.  The check is strict, so that a key has one spelling: 1 and "1" would
be two keys here and one in Postgres.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import msgspec

from millwheel.errors import WiringError
from millwheel.limits import NUMERIC_FRACTION_DIGITS, NUMERIC_INTEGER_DIGITS
from millwheel.shape import SinkTable

Row = dict[str, Any]

_BYTES: Final = (bytes, bytearray, memoryview)
"""Left as they are in a row, to be refused: nobody who writes them into a text column means base64."""


def _text(value: object) -> str:
    if not isinstance(value, str) or "\x00" in value:
        raise ValueError("not text, or text with a NUL character")
    value.encode()  # a lone surrogate is no text either (UnicodeEncodeError is a ValueError)
    return value


def _integer(bits: int) -> Callable[[object], int]:
    limit = 2 ** (bits - 1)

    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
            raise ValueError(f"not an integer of {bits} bits")
        return value

    return check


def _double(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError("not a finite number")
    return float(value)


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("not a boolean")
    return value


def _timestamp(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("not an ISO 8601 time")
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError("a time without a time zone")
    return time.astimezone(UTC).isoformat()


def _date(value: object) -> str:
    return date.fromisoformat(_text(value)).isoformat()


def _numeric(value: object) -> str:
    """The digits as they are written, 1.50 stays 1.50; `row_key` knows that it equals 1.5."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("not a Decimal, an integer or the text of one")
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError("not a decimal number") from None
    if not number.is_finite():
        raise ValueError("not a finite number")
    if number.adjusted() > NUMERIC_INTEGER_DIGITS - 1 or int(number.as_tuple().exponent) < -NUMERIC_FRACTION_DIGITS:
        raise ValueError("more digits than a numeric has")
    return format(abs(number) if number == 0 else number, "f")


def _uuid(value: object) -> str:
    return str(UUID(_text(value)))


def _json(value: object) -> object:
    _check_json(value)
    return value


def _check_json(value: object) -> None:
    """Refuse what would be written as something else: bytes as base64, a number that JSON has not as null; and NUL, which
    Postgres has not."""
    if isinstance(value, str):
        if "\x00" in value:
            raise ValueError("JSON with a NUL character")
        value.encode()  # as for text
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError("JSON has no bytes: decode them, or encode them as text")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"JSON has no {value}")
    if isinstance(value, dict | list | tuple):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_json(part)


SQL_TYPES: Final[Mapping[str, Callable[[object], object]]] = {
    "text": _text,
    "bigint": _integer(64),
    "integer": _integer(32),
    "double precision": _double,
    "boolean": _boolean,
    "timestamptz": _timestamp,
    "date": _date,
    "jsonb": _json,
    "numeric": _numeric,
    "uuid": _uuid,
}
"""Column types a sink may declare, each with its check.  The list also keeps user text out of DDL."""


def plain_values(values: Mapping[str, Any]) -> Any:
    """Values of columns as JSON has them; raises `ValueError` with the column of one that JSON has not."""
    try:
        return msgspec.to_builtins(values, str_keys=True, builtin_types=_BYTES)
    except TypeError:
        for column, value in values.items():
            try:
                msgspec.to_builtins(value, str_keys=True, builtin_types=_BYTES)
            except TypeError as error:
                raise ValueError(f"column {column!r}: {error}: {value!r:.80}") from None
        raise


def check_types(table: SinkTable) -> None:
    """Each column has one of `SQL_TYPES`; raises `WiringError`."""
    for column, kind in table.columns.items():
        if not isinstance(kind, str) or kind not in SQL_TYPES:
            raise WiringError(
                f"sink table {table.name!r}: column {column!r} has type {kind!r}; use one of {sorted(SQL_TYPES)}"
            )


def check_row(table: SinkTable, values: object) -> Row:
    """A full row of `table`, absent columns None; raises ValueError for what a column cannot hold."""
    if not isinstance(values, dict):
        raise ValueError("not an object of column values")
    if not values.keys() <= table.columns.keys():
        raise ValueError(f"unknown columns {sorted(set(values) - set(table.columns))}")
    return {column: _checked(table, column, values.get(column)) for column in table.columns}


def check_key(table: SinkTable, values: object) -> Row:
    """The primary key of a row of `table`; raises ValueError for anything else."""
    if not isinstance(values, dict) or values.keys() != {*table.key}:
        raise ValueError(f"not an object of the key columns {[*table.key]}")
    return {column: _checked(table, column, values[column]) for column in table.key}


def _checked(table: SinkTable, column: str, value: Any) -> Any:
    kind = table.columns[column]
    if value is None:
        if column in table.key:
            raise ValueError(f"key column {column!r} is null")
        return None
    try:
        return SQL_TYPES[kind](value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {column!r} ({kind}): {error}: {value!r:.80}") from None


def row_key(table: SinkTable, row: Row) -> tuple[Any, ...]:
    """The primary key of a row that was checked: equal, and in the same order, if it is so in the database."""
    return tuple(Decimal(row[c]) if table.columns[c] == "numeric" else row[c] for c in table.key)
