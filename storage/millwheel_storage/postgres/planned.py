"""What opening a store would do, found out without writing.

Lives here: `check`.  Never here: the questions (`examine`), decisions (`evolution`).
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import psycopg

from millwheel.bundles import CHECKPOINT_FORMAT
from millwheel.errors import InvariantError
from millwheel.ports import PipelineShape
from millwheel_storage.postgres.blocking import reachable
from millwheel_storage.schema.examine import Examined, Question, examine, examine_tables, foreign
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import (
    STORE_FORMAT,
    check_formats,
    check_shape,
    no_schema,
    no_tables,
    schema_name,
)
from millwheel_storage.statements import opening


class Report(msgspec.Struct, frozen=True):
    """What a start would change, and why it would be refused.  Nothing of it has been done."""

    exists: bool
    """Whether the pipeline has ever run on the store."""
    changes: list[str] = []
    refusals: list[str] = []
    unreadable: list[str] = []
    """Cells with stored values that the code cannot read, which only trying tells."""
    warnings: list[str] = []
    """What a start would do, and warn of: it is a mistake as often."""


def check(url: str, shape: PipelineShape) -> Report:
    """Compare a pipeline with what the store holds of it, in a transaction that cannot write.

    Raises `WiringError` for a shape that no store could hold, `IncompatibleStore` for a store of a later version.
    """
    check_shape(shape, RESERVED_NAMES)
    schema = schema_name(shape.name)
    with reachable(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        tables = {row[0] for row in connection.execute(opening.SCHEMA_TABLES, (schema,))}
        connection.execute("SELECT set_config('search_path', %s, true)", (f'"{schema}"',))
        if not {"migration", "meta"} <= tables:
            refusal = foreign(schema, tables, shape)
            refusals = [refusal] if refusal else _ask(connection, examine_tables(shape)).plan.refusals
            return Report(exists=False, refusals=[*_rights(connection, schema), *refusals])
        applied = connection.execute(opening.APPLIED_MIGRATION).fetchone()
        if applied is None:
            raise InvariantError("there is no applied")
        check_formats(applied[0], CHECKPOINT_FORMAT)  # that of the log is looked at by `examine`
        found = _ask(connection, examine(shape))
    changes = found.plan.changes
    if applied[0] < STORE_FORMAT:
        changes = [f"the store's tables go from format {applied[0]} to {STORE_FORMAT}", *changes]
    return Report(True, changes, found.plan.refusals, warnings=found.plan.doubts)


def _rights(connection: psycopg.Connection[Any], schema: str) -> list[str]:
    """Why the role of the connection could not begin."""
    row = connection.execute(opening.MAY_BEGIN, (schema,)).fetchone()
    if row is None:
        raise InvariantError("there is no row")
    may, there = row
    if may:
        return []
    user = connection.info.user
    return [no_tables(schema, user) if there else no_schema(schema, user)]


def _ask(connection: psycopg.Connection[Any], questions: Generator[Question, list[Any], Examined]) -> Examined:
    try:
        question = next(questions)
        while True:
            question = questions.send(connection.execute(*question).fetchall())
    except StopIteration as answer:
        found: Examined = answer.value
        return found
