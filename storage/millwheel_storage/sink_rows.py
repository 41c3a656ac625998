"""Sink rows: their check against the table, their merge by primary key in lock order, and the search for refused ones.

Lives here: what both stores must do alike before a row reaches a table.  Never here: SQL, I/O.  The check of a row is in
`millwheel.rows`, and the context makes it first.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from millwheel.bundles import LogWrite, SinkRow
from millwheel.errors import RowRefused, WiringError
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import SinkTable
from millwheel.rows import Row, check_key, check_row, check_types, row_key

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def check_table(table: SinkTable, reserved: frozenset[str]) -> None:
    """Refuse a sink table that cannot be created safely (`WiringError`)."""
    for name in (table.name, *table.columns):
        if not _IDENTIFIER.fullmatch(name):
            raise WiringError(f"sink table {table.name!r}: {name!r} is not a plain identifier of up to 63 letters")
    if table.name.lower() in reserved or table.name.lower().startswith("pg_"):
        raise WiringError(f"sink table {table.name!r}: the name is reserved for millwheel's own tables; rename it")
    check_types(table)
    _check_key(table)


def _check_key(table: SinkTable) -> None:
    if not table.key or len(set(table.key)) != len(table.key):
        raise WiringError(f"sink table {table.name!r} needs a primary key without repeats")
    for column in table.key:
        if table.columns.get(column, "jsonb") == "jsonb":
            raise WiringError(f"sink table {table.name!r}: key column {column!r} is not declared, or is jsonb")


class Placed(NamedTuple):
    """The last write of a row: the number of its checkpoint, from 1, and all columns, or the key if it was deleted."""

    place: int
    row: Row
    deleted: bool


class SinkRows(msgspec.Struct, frozen=True):
    """Writes to one table, one per primary key, in key order."""

    table: SinkTable
    rows: dict[tuple[Any, ...], Row]
    """Rows to upsert."""
    places: list[int]
    """By row: the number of the checkpoint that wrote it, counted from 1."""
    deleted: dict[tuple[Any, ...], Row]
    """Keys of rows to delete, as key columns to values; none is in `rows`."""
    deleted_places: list[int]
    contested: bool
    """Several owners write the same row, so the fences decide whose it is."""


def coalesce(tables: Mapping[str, SinkTable], writes: Sequence[LogWrite]) -> list[SinkRows]:
    """All sink rows of `writes`, last write wins, sorted by (table, key) against deadlocks; raises
    `RowRefused`."""
    grouped: dict[str, dict[tuple[Any, ...], Placed]] = {}
    contested: set[str] = set()
    for place, write in enumerate(writes, 1):
        for sink in write.sinks:
            table, row = _checked(tables, write, sink)
            rows = grouped.setdefault(table.name, {})
            key = row_key(table, row)
            if key in rows and _owner(writes[rows[key].place - 1]) != _owner(write):
                contested.add(table.name)
            rows[key] = Placed(place, row, sink.deleted)
    return [_sorted(tables[name], grouped[name], name in contested) for name in sorted(grouped)]


def _owner(write: LogWrite) -> tuple[IntervalId, Sequencer]:
    return write.interval, write.sequencer


def parts(writes: Sequence[LogWrite]) -> list[list[LogWrite]]:
    """Cut `writes` that were refused together: one part per owner, or, of a single owner, one per checkpoint.

    Within the group, another owner's row of the same key may hide a row that would be refused.
    """
    owners: dict[tuple[IntervalId, Sequencer], list[LogWrite]] = {}
    for write in writes:
        owners.setdefault(_owner(write), []).append(write)
    return list(owners.values()) if len(owners) > 1 else [[write] for write in writes]


def _sorted(table: SinkTable, rows: dict[tuple[Any, ...], Placed], contested: bool) -> SinkRows:
    ordered = sorted(rows.items(), key=itemgetter(0))
    kept, gone = ([(key, at) for key, at in ordered if at.deleted is deleted] for deleted in (False, True))
    return SinkRows(
        table,
        {key: at.row for key, at in kept}, [at.place for _, at in kept],
        {key: at.row for key, at in gone}, [at.place for _, at in gone],
        contested,
    )  # fmt: skip


def _checked(tables: Mapping[str, SinkTable], write: LogWrite, sink: SinkRow) -> tuple[SinkTable, Row]:
    try:
        table = tables[sink.table]
        check = check_key if sink.deleted else check_row
        return table, check(table, msgspec.json.decode(sink.values))
    except KeyError:
        raise RowRefused(f"sink table {sink.table!r} is not declared", write.interval, write.seq) from None
    except (ValueError, msgspec.DecodeError) as error:
        message = f"sink table {sink.table!r} refuses a row: {error}"
        raise RowRefused(message, write.interval, write.seq) from error


def blame(keys: Sequence[str]) -> Generator[list[int], str | None, tuple[tuple[int, str], ...]]:
    """Find out which rows of a refused checkpoint are at fault; `keys` are those whose hooks wrote them, in order.

    It is a generator, so that stores with and without waiting use the same search.  It yields the indices of rows to
    write on top of all that were accepted before, and is sent the answer of the table (None: accepted).  It returns
    (index, answer) of the first refused row of each key.  Later rows of such a key are not tried, because they will wait
    behind it in quarantine.  With k of n rows at fault this takes about k log n questions.
    """
    refused: list[tuple[int, str]] = []
    stopped: set[str] = set()
    open_: list[list[int]] = [list(range(len(keys)))]
    while open_:
        rows = [row for row in open_.pop() if keys[row] not in stopped]
        answer = (yield rows) if rows else None
        if answer is None:
            continue
        if len(rows) == 1:
            refused.append((rows[0], answer))
            stopped.add(keys[rows[0]])
        else:
            open_ += [rows[len(rows) // 2 :], rows[: len(rows) // 2]]
    return tuple(refused)


def sink_intervals(writes: Sequence[LogWrite]) -> set[IntervalId]:
    """Intervals that write sink rows.  All their checkpoints commit apart, so that none commits past a refused one."""
    return {write.interval for write in writes if write.sinks}
