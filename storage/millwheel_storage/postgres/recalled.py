"""A store on which a combiner of the library comes or goes: what moves beside what does for every combiner.

Lives here: what waits in quarantine, what shards have aggregated and sent, and the watermark that the first step begins at
(docs/adr/0048-a-combiner-of-the-library-comes-and-goes.md).  Never here: when that is so (`schema.handovers`,
`schema.recalls`), that nobody writes meanwhile (`rearranged`), or SQL text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.types.numeric import Int4, Int8

from millwheel.bundles import OF_TIMER
from millwheel.errors import InvariantError
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.shape import HANDED_BACK, CombinedBy
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.productions import unpack_ids
from millwheel_storage.schema.recalls import Recall, Recalled, sent, taken_at
from millwheel_storage.statements import dropping, opening, regrouping

Names = Mapping[tuple[str, str], int]


async def begin_promised(
    connection: Connection, names: Names, computation: str, combiner: CombinedBy, taken: Sequence[str]
) -> None:
    """The first step begins with what waits in quarantine, and at the watermark that the only step may have seen."""
    numbers = [Int4(names["subscription", name]) for name in taken]
    given = {
        "computation": names["computation", computation],
        "parts": names["computation", combiner.parts],
        "suffix": combiner.suffix.encode(),
        "subscriptions": numbers,
        "senders": [
            Int4(number) for (kind, name), number in names.items() if kind == "computation" and name in combiner.senders
        ],
    }
    for gone in (numbers, [Int4(OF_TIMER)]):  # what stays, and what moves, says why it waits
        await connection.execute(dropping.KEEP_ERRORS, {**given, "gone": gone})
    await connection.execute(regrouping.MOVE_RECORDS, given)
    await connection.execute(dropping.DROP_REQUESTS, given)
    asked = {"names": [computation, *combiner.senders]}
    known: dict[str, int] = dict(await query.rows(connection, regrouping.WATERMARKS, asked))
    found = await query.first(connection, regrouping.OLDEST, given)
    oldest = MAX_TIME if found is None or found[0] is None else found[0]
    seen = min((known.get(sender, MIN_TIME) for sender in combiner.senders), default=MIN_TIME)
    value = max(known.get(computation, MIN_TIME), min(seen, oldest))
    if value > MIN_TIME:
        await connection.execute(regrouping.BEGIN_AT, {"name": combiner.parts, "value": value})


async def recall(connection: Connection, names: Names, it: Recall, old: Sequence[Int8], new: Sequence[Int8]) -> None:
    """What the shards of a combiner have goes to the computation that has none any more."""
    numbered = await query.first(connection, opening.NEXT_SEQUENCER)
    if numbered is None:
        raise InvariantError("there is no sequencer")
    promised: dict[str, int] = dict(await query.rows(connection, regrouping.WATERMARKS, {"names": [it.parts]}))
    given = {
        "old": [*old], "new": [*new],
        "computation": names["computation", it.computation], "parts": names["computation", it.parts],
        "merged": names["subscription", it.merged],
        "place": it.place, "place_of_parts": it.place_of_parts,
        "number": f"/{numbered[0]}".encode(), "tag": HANDED_BACK.encode(),
        "at": Int8(taken_at(promised.get(it.parts, MIN_TIME))),
    }  # fmt: skip
    untaken = await _untaken(connection, given)
    columns = {
        "keys": [one.key.encode() for one in untaken],
        "entries": [one.entry.encode() for one in untaken],
        "values": [one.value for one in untaken],
    }
    for statement in (regrouping.TAKE_SENT, regrouping.SET_TIMERS):
        await connection.execute(statement, {**given, **columns})
    await connection.execute(regrouping.TAKE_GATHERED, given)
    await connection.execute(regrouping.SET_TIMERS_OF_GATHERED, given)
    await connection.execute(dropping.KEEP_ERRORS, {"computation": given["parts"], "gone": [Int4(OF_TIMER)]})
    numbers = [Int4(names["subscription", taken]) for taken in it.subscriptions.values()]
    await connection.execute(regrouping.MOVE_ELEMENTS, {**given, "subscriptions": numbers})
    for number in numbers:
        for statement in regrouping.TAKE_BACK:
            await connection.execute(statement, {**given, "subscription": number})


async def _untaken(connection: Connection, given: Mapping[str, Any]) -> list[Recalled]:
    """What shards have sent and the computation has not run: on its way, or in quarantine."""
    frontiers: dict[int, int] = dict(await query.rows(connection, regrouping.FRONTIERS, given))
    taken = {
        (producer, sequence)
        for producer, ids in await query.rows(connection, regrouping.DELIVERED, given)
        for sequence in unpack_ids(ids)
    }
    rows = [
        row
        for row in await query.rows(connection, regrouping.SENT, given)
        if row[2] >= frontiers.get(row[1], 0) and (row[1], row[2]) not in taken
    ]
    rows += await query.rows(connection, regrouping.WAITING, given)
    return [sent(key.decode(), value, producer, sequence) for key, producer, sequence, value in rows]
