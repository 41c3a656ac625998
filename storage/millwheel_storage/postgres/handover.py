"""A store on which a computation gets a combiner, or loses it: what was on its way to the one goes to the other.

Lives here: what becomes of the rows of a subscription (docs/adr/0043-a-combiner-that-comes-later.md,
docs/adr/0047-a-combiner-that-goes.md).  Never here: when it is done (`schema.handovers`, `schema.handbacks`), that nobody
writes meanwhile (`rearranged`), or SQL text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int4, Int8

from millwheel.bundles import OF_TIMER
from millwheel.errors import IncompatibleStore, InvariantError
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.recalled import begin_promised, recall
from millwheel_storage.schema.handbacks import Handback, refusal
from millwheel_storage.schema.handovers import Handover, watermarks
from millwheel_storage.schema.recalls import Recall
from millwheel_storage.statements import dropping, handing_back, handing_over, opening


async def hand_over(connection: Connection, handovers: Sequence[Handover]) -> None:
    """Give what was on its way to computations to their combiners; all logs are folded."""
    names = {(kind, name): number for kind, name, number in await query.rows(connection, opening.READ_NAMES)}
    for handover in handovers:
        given = await _parameters(connection, handover, names)
        for statement in handing_over.HAND_OVER:
            await connection.execute(statement, given)
        if not handover.combiner.suffix:
            await connection.execute(handing_over.MOVE_QUARANTINE, given)
            await connection.execute(handing_over.COPY_WATERMARKS, given)
    for computation, combiner in {it.computation: it.combiner for it in handovers if it.combiner.suffix}.items():
        taken = [it.taken for it in handovers if it.computation == computation]
        await begin_promised(connection, names, computation, combiner, taken)


async def hand_back(connection: Connection, handbacks: Sequence[Handback]) -> None:
    """Give what combiners have to their computations; all logs are folded, and the combiners go after that."""
    names = {(kind, name): number for kind, name, number in await query.rows(connection, opening.READ_NAMES)}
    for it in handbacks:
        new = await _intervals(connection, names["computation", it.computation])
        parts = names["computation", it.parts]
        numbered = await query.first(connection, opening.NEXT_SEQUENCER)
        if numbered is None:
            raise InvariantError("there is no sequencer")
        given = {
            "old": [*(await _intervals(connection, parts)).values()],
            "new": [*new.values()],
            "first": new[b""],
            "computation": names["computation", it.computation],
            "parts": parts,
            "subscription": names["subscription", it.taken],
            "merged": names["subscription", it.merged],
            "producer": Int8(numbered[0]),
        }
        if await query.first(connection, handing_back.TWICE, given) is not None:
            raise IncompatibleStore(refusal(it))
        await connection.execute(dropping.KEEP_ERRORS, {"computation": parts, "gone": [Int4(OF_TIMER)]})
        for statement in handing_back.HAND_BACK:
            await connection.execute(statement, given)


async def take_back(connection: Connection, recalls: Sequence[Recall]) -> None:
    """Give what combiners of the library have to their computations, which have none any more."""
    names = {(kind, name): number for kind, name, number in await query.rows(connection, opening.READ_NAMES)}
    for it in recalls:
        old, new = [
            [*(await _intervals(connection, names["computation", of])).values()] for of in (it.parts, it.computation)
        ]
        await recall(connection, names, it, old, new)


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
        "suffix": handover.combiner.suffix.encode(),
        "from": [*watermarks(computation)],
        "to": [*watermarks(parts)],
    }


async def _intervals(connection: Connection, computation: int) -> dict[bytes, Int8]:
    """By where they begin."""
    rows = await query.rows(connection, opening.READ_INTERVALS, ([computation],))
    return {low: Int8(interval) for interval, _, low, _ in rows}
