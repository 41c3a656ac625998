"""A store from which a computation goes, or an input of one that stays.

Lives here: what becomes of their rows (docs/adr/0046-what-goes-is-declared.md).  Never here: which these are
(`schema.drops`), that nobody writes meanwhile (`rearranged`), or SQL text.  Invariant: what a computation that goes has sent
is delivered, unless its receiver goes too.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.numeric import Int4, Int8

from millwheel.shape import PipelineShape
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.schema.drops import Drop, heir
from millwheel_storage.schema.handovers import watermarks
from millwheel_storage.statements import dropping, opening


async def drop(connection: Connection, drops: Sequence[Drop], shape: PipelineShape) -> None:
    """Delete what is declared to go; all logs are folded, and `shape` is what stays."""
    rows = await query.rows(connection, opening.READ_NAMES)
    computations = {name: number for kind, name, number in rows if kind == "computation"}
    subscriptions = {name: number for kind, name, number in rows if kind == "subscription"}
    gone = [Int4(subscriptions[name]) for drop in drops for name in drop.subscriptions]
    await connection.execute(dropping.DROP_PRODUCTIONS, {"gone": gone})
    for it in drops:
        number = computations[it.computation]
        old = [id_ for _, id_ in await _intervals(connection, number)] if it.whole else []
        given = {"old": old, "gone": gone, "computation": number, "watermarks": [*watermarks(it.computation)]}
        for (orphans,) in await query.rows(connection, dropping.ORPHANS, given):
            names = {number: name for name, number in subscriptions.items()}
            if (receiver := heir(names[orphans], shape)) is not None:
                _, first = min(await _intervals(connection, computations[receiver]))
                await connection.execute(dropping.ADOPT, {"old": old, "first": first, "subscription": orphans})
        for statement in (*dropping.DROP_IDS, *(dropping.DROP_COMPUTATION if it.whole else dropping.DROP_INPUT)):
            await connection.execute(statement, given)
    await connection.execute(dropping.DROP_NAMES, {"gone": gone})


async def _intervals(connection: Connection, computation: int) -> list[tuple[bytes, Int8]]:
    """Where they begin, and their ids."""
    return [
        (low, Int8(id_)) for id_, _, low, _ in await query.rows(connection, opening.READ_INTERVALS, ([computation],))
    ]
