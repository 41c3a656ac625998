"""What an interval reads while it serves: state, timers, ids, quarantined elements.

Lives here: one function for each read of `Store`, with a transaction if it needs one.  Never here: writes, or what only a
recovery reads.  Each read uses an index, and its cost is bounded by what was asked for, not by what is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg.types.numeric import Int4, Int8

from millwheel import limits
from millwheel.bundles import KeyRows, QuarantineEntry, StateRow, TimerPlace, TimerWrites
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId
from millwheel.work import Wanted
from millwheel_storage.decode import (
    TimerRow,
    found_ids,
    key_rows,
    quarantine_entry,
    timer_rows,
    timer_writes,
)
from millwheel_storage.postgres import ownership, query
from millwheel_storage.postgres.arrays import ByteaArray, TextArray
from millwheel_storage.postgres.catalogue import IntervalPlace
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import loading, outside_ids, quarantining


async def load(connection: Connection, place: IntervalPlace, keys: Sequence[str], timers: bool) -> list[KeyRows]:
    """See `Store.load`."""
    number, limit = Int4(place.computation), limits.STATE_PAGE_SLOTS
    encoded = ByteaArray.of_texts(sorted(dict.fromkeys(keys)))  # by code point, which is the order of their UTF-8
    cells = await query.rows(connection, loading.LOAD_KEYS, (encoded, number, Int8(limit + 1)), prepare=True)
    if not timers:
        return key_rows(cells, [], limit)
    pending = await query.rows(connection, loading.LOAD_KEY_TIMERS, (encoded, number), prepare=True)
    return key_rows(cells, pending, limit)


async def load_slots(connection: Connection, place: IntervalPlace, wanted: Sequence[Wanted]) -> list[StateRow]:
    """See `Store.load_slots`."""
    whole = sorted({(key, cell) for key, cell, entry in wanted if entry is None})
    single = sorted({(key, cell, entry) for key, cell, entry in wanted if entry is not None})
    number = Int4(place.computation)
    rows: list[tuple[Any, ...]] = []
    if single:
        keys, cells, entries = zip(*single, strict=True)
        slots = (ByteaArray.of_texts(keys), TextArray(cells), ByteaArray.of_texts(entries), number)
        rows += await query.rows(connection, loading.LOAD_SLOTS, slots, prepare=True)
    if whole:
        keys, cells = zip(*whole, strict=True)
        columns = (ByteaArray.of_texts(keys), TextArray(cells), number)
        rows += await query.rows(connection, loading.LOAD_CELLS, columns, prepare=True)
    return [(key.decode(), cell, entry.decode(), value) for key, cell, entry, value in rows]


async def load_timers(
    connection: Connection, place: IntervalPlace, sequencer: Sequencer, kind: str, after: TimerPlace, limit: int
) -> TimerWrites | None:
    """See `Store.load_timers`."""
    async with connection.transaction():
        if not await ownership.owned(connection, place.row.id, sequencer):
            return None
        return timer_writes(await timer_page(connection, place, kind, after, limit))


async def timer_page(
    connection: Connection, place: IntervalPlace, kind: str, after: TimerPlace, limit: int
) -> list[TimerRow]:
    """The next `limit` timers of a kind after (timestamp, (key, tag)), in that order."""
    timestamp, (key, tag) = after
    start = {"kind": kind, "timestamp": timestamp, "key": key.encode(), "tag": tag.encode(), "limit": limit}
    return timer_rows(await query.rows(connection, loading.LOAD_TIMERS, place.keys() | start))


async def find_ids(
    connection: Connection,
    interval: IntervalId,
    subscription: SubscriptionId,
    producer: ProducerId,
    sequences: Sequence[SequenceNumber],
) -> set[SequenceNumber]:
    """See `Store.find_ids`; reads the segments that lie between the first and the last."""
    parameters = (Int8(interval), Int4(subscription), Int8(producer), Int8(sequences[0]), Int8(sequences[-1]))
    return found_ids(await query.rows(connection, loading.FIND_IDS, parameters, prepare=True), sequences)


async def find_outside_ids(
    connection: Connection, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Sequence[bytes]
) -> set[bytes]:
    """See `Store.find_outside_ids`: an index probe for each id and bucket."""
    parameters = (ByteaArray(ids), Int8(interval), Int4(subscription), Int8(now))
    return {id_ for (id_,) in await query.rows(connection, outside_ids.FIND_OUTSIDE_IDS, parameters, prepare=True)}


async def read_outside_ids(
    connection: Connection, interval: IntervalId, subscription: SubscriptionId, expires: int, after: bytes, limit: int
) -> list[bytes]:
    """See `Store.read_outside_ids`."""
    parameters = (Int8(interval), Int4(subscription), Int8(expires), after, Int8(limit))
    return [id_ for (id_,) in await query.rows(connection, outside_ids.READ_OUTSIDE_IDS, parameters, prepare=True)]


async def quarantined(
    connection: Connection, place: IntervalPlace, keys: Sequence[str], limit: int
) -> list[QuarantineEntry]:
    """See `Store.quarantined`."""
    parameters = (ByteaArray.of_texts(keys), Int4(place.computation), Int8(limit), Int8(limit))
    rows = await query.rows(connection, quarantining.FETCH_QUARANTINE, parameters, prepare=True)
    return [quarantine_entry(row) for row in rows]


async def redrive_requests(connection: Connection, start: tuple[str, str], limit: int) -> list[tuple[str, str]]:
    """See `Store.redrive_requests`."""
    name, key = start
    parameters = {"name": name, "key": key.encode(), "limit": limit}
    return [
        (found, key.decode()) for found, key in await query.rows(connection, quarantining.READ_REDRIVES, parameters)
    ]
