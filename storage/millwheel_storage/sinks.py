"""Sink rows: checked against their table, coalesced by primary key, in lock order.

Lives here: what both stores must agree on before a row reaches a table.  Never here: SQL, I/O. A row is
checked strictly, so that one key has one spelling (1 and "1" would be two keys here and one in Postgres)
and a row that cannot be stored is refused before anything is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec

from millwheel.bundles import LogWrite, SinkRow
from millwheel.errors import RowRefused, WiringError
from millwheel.ports import SinkTable

Row = dict[str, Any]

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def _text(value: object) -> str:
    if not isinstance(value, str) or "\x00" in value:
        raise ValueError("not text, or text with a NUL character")
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


def _json(value: object) -> object:
    if b"\\u0000" in msgspec.json.encode(value):
        raise ValueError("JSON with a NUL character")
    return value


SQL_TYPES: Final[Mapping[str, Callable[[object], object]]] = {
    "text": _text,
    "bigint": _integer(64),
    "integer": _integer(32),
    "double precision": _double,
    "boolean": _boolean,
    "timestamptz": _timestamp,
    "date": _date,
    "jsonb": _json,
}
"""Column types a sink may declare, each with its check.  The list also keeps user text out of DDL."""


def check_table(table: SinkTable, reserved: frozenset[str]) -> None:
    """Refuse a sink table that cannot be created safely (`WiringError`)."""
    for name in (table.name, *table.columns):
        if not _IDENTIFIER.fullmatch(name):
            raise WiringError(f"sink table {table.name!r}: {name!r} is not a plain identifier of up to 63 letters")
    if table.name.lower() in reserved or table.name.lower().startswith("pg_"):
        raise WiringError(f"sink table {table.name!r}: the name is reserved for millwheel's own tables; rename it")
    for column, kind in table.columns.items():
        if kind not in SQL_TYPES:
            raise WiringError(
                f"sink table {table.name!r}: column {column!r} has type {kind!r}; use one of {sorted(SQL_TYPES)}"
            )
    _check_key(table)


def _check_key(table: SinkTable) -> None:
    if not table.key or len(set(table.key)) != len(table.key):
        raise WiringError(f"sink table {table.name!r} needs a primary key without repeats")
    for column in table.key:
        if table.columns.get(column, "jsonb") == "jsonb":
            raise WiringError(f"sink table {table.name!r}: key column {column!r} is not declared, or is jsonb")


class SinkRows(msgspec.Struct, frozen=True):
    """Rows for one table, one per primary key, in key order."""

    table: SinkTable
    rows: dict[tuple[Any, ...], Row]


def coalesce(tables: Mapping[str, SinkTable], writes: Iterable[LogWrite]) -> list[SinkRows]:
    """All sink rows of `writes`, last write wins, sorted by (table, key) against deadlocks; raises
    `RowRefused`."""
    grouped: dict[str, dict[tuple[Any, ...], Row]] = {}
    for write in writes:
        for sink in write.sinks:
            table, row = _checked(tables, write, sink)
            grouped.setdefault(table.name, {})[tuple(row[column] for column in table.key)] = row
    return [SinkRows(tables[name], dict(sorted(grouped[name].items()))) for name in sorted(grouped)]


def _checked(tables: Mapping[str, SinkTable], write: LogWrite, sink: SinkRow) -> tuple[SinkTable, Row]:
    try:
        table = tables[sink.table]
        return table, check_row(table, msgspec.json.decode(sink.values))
    except KeyError:
        raise RowRefused(f"sink table {sink.table!r} is not declared", write.interval, write.seq) from None
    except (ValueError, msgspec.DecodeError) as error:
        message = f"sink table {sink.table!r} refuses a row: {error}"
        raise RowRefused(message, write.interval, write.seq) from error


def check_row(table: SinkTable, values: object) -> Row:
    """A full row of `table`, absent columns None; raises ValueError for what a column cannot hold."""
    if not isinstance(values, dict):
        raise ValueError("not an object of column values")
    unknown = sorted(set(values) - set(table.columns))
    if unknown:
        raise ValueError(f"unknown columns {unknown}")
    row = {column: _check_value(column, kind, values.get(column)) for column, kind in table.columns.items()}
    missing = [column for column in table.key if row[column] is None]
    if missing:
        raise ValueError(f"key columns {missing} are null")
    return row


def _check_value(column: str, kind: str, value: object) -> object:
    if value is None:
        return None
    try:
        return SQL_TYPES[kind](value)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {column!r} ({kind}): {error}: {value!r:.80}") from None


def sink_intervals(writes: Sequence[LogWrite]) -> set[int]:
    """Intervals that write sink rows: all their checkpoints commit apart, so that none commits past a refused
    one."""
    return {write.interval for write in writes if write.sinks}
