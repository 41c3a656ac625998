"""What a store holds of a pipeline, asked before it is opened.

Lives here: `examine`, the questions that `open_pipeline` and `millwheel check` ask.  It works with asynchronous and with
blocking connections.  Never here: writes, decisions about shapes (`evolution`).
"""

from __future__ import annotations

from collections.abc import Generator, Set
from typing import Any, Final, TypeAlias

import msgspec
from psycopg import sql

from millwheel.ports import PipelineShape, SinkTable
from millwheel_storage.decode import decode_image
from millwheel_storage.fold import Folded, fold
from millwheel_storage.schema.evolution import Plan, StoredCell, first, holders, plan, touched
from millwheel_storage.schema.shape_checks import STORE_FORMAT, check_formats
from millwheel_storage.schema.side_by_side import differences
from millwheel_storage.statements import loading, opening

Question: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A statement and its parameters; the answer is all its rows."""

Questions: TypeAlias = Generator[Question, list[Any], Any]

CATALOG_TYPES: Final = {"timestamptz": "timestamp with time zone"}
"""How the catalog spells a declared type, where it differs."""


class Examined(msgspec.Struct):
    """A plan for the names and cells, and for the tables: those to create, and statements that add columns."""

    plan: Plan
    numbers: dict[tuple[str, str], int]
    """Of (kind, old name)."""
    new_tables: list[SinkTable] = []
    alterations: list[sql.Composed] = []
    beside: list[str] = []
    """Why processes of the stored version cannot run beside those of this one."""


def examine(shape: PipelineShape) -> Generator[Question, list[Any], Examined]:
    """Ask a store, whose tables are there, what `shape` would change."""
    rows = yield opening.READ_META, ()
    numbers = {(kind, name): number for kind, name, number in (yield opening.READ_NAMES, ())}
    had: set[str] = set()
    if not rows:
        found = Examined(first(shape), numbers)
    else:
        check_formats(STORE_FORMAT, rows[0][0])
        stored = msgspec.json.decode(rows[0][1], type=PipelineShape)
        found = Examined(plan(stored, shape), numbers, beside=differences(stored, shape))
        yield from _count(stored, found)
        had = {table.name for table in stored.sinks}
    for table in shape.sinks:
        yield from _table(table, found)
    found.plan.doubts += [
        f"sink table {table.name!r} is gone, and is made again; the rows that it had do not come back, except where hooks "
        "write them again"
        for table in found.new_tables if table.name in had
    ]  # fmt: skip
    return found


def examine_tables(shape: PipelineShape) -> Generator[Question, list[Any], Examined]:
    """Ask a schema in which millwheel has made nothing yet: there may be sink tables that somebody else has made."""
    found = Examined(first(shape), {})
    for table in shape.sinks:
        yield from _table(table, found)
    return found


def foreign(schema: str, tables: Set[str], shape: PipelineShape) -> str | None:
    """Why a schema with `tables`, in which millwheel has made nothing yet, is not for the pipeline of `shape`."""
    others = sorted(tables - {table.name for table in shape.sinks})
    if not others:
        return None
    return (
        f"schema {schema!r} holds tables that are not millwheel's, for example {others[0]!r}: use another pipeline name; "
        "before the first run only tables may be there that the pipeline declares as sinks"
    )


def _count(stored: PipelineShape, found: Examined) -> Questions:
    """How many keys hold each cell that goes."""
    old = {new: name for name, new in found.plan.renamed.items()}
    counts: dict[StoredCell, int] = {}
    for cell in (*found.plan.dropped, *found.plan.missing):
        number = found.numbers["computation", old.get(cell.computation, cell.computation)]
        logs: list[Folded] = []
        for interval, *_ in (yield opening.READ_INTERVALS, ([number],)):
            rows = yield loading.READ_LOG, (interval,)
            logs.append(fold(decode_image(payload) for _, _, payload in rows))
            if rows and cell in found.plan.dropped:
                found.plan.keep(cell, stored)
        ((total,),) = yield opening.COUNT_HOLDERS, (number, cell.place)
        keys = sorted(key.encode() for key in touched(logs))
        held = yield opening.HELD_ENTRIES, (number, cell.place, keys)
        counts[cell] = holders(total, [(key.decode(), entry.decode()) for key, entry in held], logs, cell.place)
    found.plan.settle(counts)


def _table(table: SinkTable, found: Examined) -> Questions:
    """A sink table is created, gains columns that may be null, or is found unfit."""
    relation = f'"{table.name}"'
    stored: dict[str, str] = dict((yield opening.TABLE_COLUMNS, (relation,)))
    if not stored:
        found.new_tables.append(table)
        found.plan.changes.append(f"sink table {table.name!r} is created")
        return
    key = [row[0] for row in (yield opening.TABLE_KEY, (relation,))]
    if set(key) != set(table.key):
        found.plan.refusals.append(f"sink table {table.name!r} has primary key {key}, not {list(table.key)}")
    for column, kind in table.columns.items():
        wanted = CATALOG_TYPES.get(kind, kind)
        if column not in stored and column not in table.key:
            found.plan.changes.append(f"sink table {table.name!r} gains column {column!r} ({kind}), null in its rows")
            found.alterations.append(opening.add_column(table.name, column, kind))
        elif stored.get(column) != wanted:
            found.plan.refusals.append(
                f"sink table {table.name!r}: column {column!r} is {stored.get(column, 'missing')}, not {wanted}; "
                "alter the table, or declare another one"
            )
