"""A store on which a computation gets a combiner: what was on its way to the one goes to the other.

Lives here: what becomes of the rows of a subscription (docs/adr/0043-a-combiner-that-comes-later.md).  Never here: when it is
done (`schema.handovers`), that nobody writes meanwhile (`rearranged`), or SQL text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int8

from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.schema.handovers import Handover, watermarks
from millwheel_storage.statements import handing_over, opening


async def hand_over(connection: Connection, handovers: Sequence[Handover]) -> None:
    """Give what was on its way to computations to their combiners; all logs are folded."""
    names = {(kind, name): number for kind, name, number in await query.rows(connection, opening.READ_NAMES)}
    for handover in handovers:
        given = await _parameters(connection, handover, names)
        for statement in handing_over.HAND_OVER:
            await connection.execute(statement, given)


async def _parameters(connection: Connection, handover: Handover, names: dict[tuple[str, str], int]) -> dict[str, Any]:
    computation, parts = handover.computation, handover.combiner.parts
    new = await _intervals(connection, names["computation", parts])
    return {
        "old": [*(await _intervals(connection, names["computation", computation])).values()],
        "new": [*new.values()],
        "first": new[b""],
        "computation": names["computation", computation],
        "subscription": names["subscription", handover.taken],
        "merged": names["subscription", handover.merged],
        "prefix": handover.combiner.prefix.encode(),
        "from": [*watermarks(computation)],
        "to": [*watermarks(parts)],
    }


async def _intervals(connection: Connection, computation: int) -> dict[bytes, Int8]:
    """By where they begin."""
    rows = await query.rows(connection, opening.READ_INTERVALS, ([computation],))
    return {low: Int8(interval) for interval, _, low, _ in rows}
