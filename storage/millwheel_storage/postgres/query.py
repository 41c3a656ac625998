"""One statement on one connection, and its rows.

Lives here: running statements whose answer is read as a whole, with rows of binary values.  Never here: SQL text, or
transactions.  With `prepare`, a statement is prepared at its first use and not at its fifth, for the hot path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.writes import Step

Parameters = Sequence[Any] | Mapping[str, Any]


async def first(connection: Connection, statement: str, parameters: Parameters = ()) -> tuple[Any, ...] | None:
    """The first row, None when there is none."""
    cursor = await connection.execute(statement, parameters, binary=True)
    return await cursor.fetchone()


async def rows(
    connection: Connection, statement: str | bytes, parameters: Parameters = (), *, prepare: bool | None = None
) -> list[tuple[Any, ...]]:
    """All rows."""
    cursor = await connection.execute(statement, parameters, prepare=prepare, binary=True)
    return await cursor.fetchall()


async def apply(connection: Connection, steps: Iterable[Step]) -> None:
    """Writes without an answer, in order."""
    for statement, parameters in steps:
        await connection.execute(statement, parameters, prepare=True)
