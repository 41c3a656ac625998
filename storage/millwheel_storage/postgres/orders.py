"""What an operator wants of the map, and who may still send.

Lives here: small reads and writes that a leader and the command line share.  Never here: what an order does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from millwheel import limits
from millwheel.cluster import HotKey, MapOrder, Senders, StandsAt, Standstill, in_order
from millwheel.errors import InvariantError, StoreError
from millwheel_storage.decisions import check_order
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import opening, ordering

_decoder = msgspec.json.Decoder(MapOrder)
_stands_decoder = msgspec.json.Decoder(list[Standstill])
_hot_decoder = msgspec.json.Decoder(list[HotKey])


async def senders(connection: Connection) -> Senders:
    """See `ClusterStore.senders`."""
    async with connection.transaction():
        await connection.execute(opening.SNAPSHOT)
        owners = await query.rows(connection, ordering.SENDING_OWNERS)
        channels = await query.rows(connection, ordering.SENDING_CHANNELS)
    return Senders(
        tuple(sorted((interval, sequencer) for interval, sequencer in owners)),
        tuple(sorted((subscription, producer) for subscription, producer in channels)),
    )


async def order(connection: Connection, wanted: MapOrder) -> int:
    """See `ClusterStore.order`; the same order has the same number while it is open."""
    check_order(wanted)
    wish = msgspec.json.encode(wanted)
    async with connection.transaction():
        await connection.execute(ordering.ADD_ORDER, {"wish": wish})
        row = await query.first(connection, ordering.FIND_ORDER, (wish,))
    if row is None or row[0] is None:
        raise InvariantError("the order is not there")
    return int(row[0])


async def orders(connection: Connection) -> list[tuple[int, MapOrder]]:
    """See `ClusterStore.orders`."""
    return [(number, _decoder.decode(wish)) for number, wish in await query.rows(connection, ordering.READ_ORDERS)]


async def settle(connection: Connection, epoch: int, number: int, refusal: str) -> bool:
    """See `ClusterStore.settle_order`; what was said first stays, as long as the order is kept."""
    given = {"epoch": epoch, "number": number, "refusal": refusal, "oldest": number - limits.SETTLED_ORDERS}
    return await query.first(connection, ordering.SETTLE_ORDER, given) is not None


async def note_hot_keys(connection: Connection, incarnation: int, keys: Sequence[HotKey]) -> None:
    """See `ClusterStore.note_hot_keys`; what members said that are gone goes with it."""
    async with connection.transaction():
        await connection.execute(ordering.FORGET_HOT_KEYS)
        given = {"incarnation": incarnation, "keys": msgspec.json.encode(keys)}
        await connection.execute(ordering.NOTE_HOT_KEYS, given)


async def hot_keys(connection: Connection) -> list[HotKey]:
    """See `ClusterStore.hot_keys`."""
    rows = await query.rows(connection, ordering.READ_HOT_KEYS)
    return in_order(key for (keys,) in rows for key in _hot_decoder.decode(keys))


async def note_standstills(connection: Connection, incarnation: int, found: Sequence[Standstill]) -> None:
    """See `ClusterStore.note_standstills`; what members said that are gone goes with it."""
    async with connection.transaction():
        await connection.execute(ordering.FORGET_STANDSTILLS)
        given = {"incarnation": incarnation, "found": msgspec.json.encode(found)}
        await connection.execute(ordering.NOTE_STANDSTILLS, given)


async def standstills(connection: Connection) -> list[StandsAt]:
    """See `ClusterStore.standstills`."""
    return said_of_standstills(await query.rows(connection, ordering.READ_STANDSTILLS))


def said_of_standstills(rows: Iterable[Sequence[Any]]) -> list[StandsAt]:
    """What the rows of `READ_STANDSTILLS` say."""
    return [StandsAt(name, one) for name, found in rows for one in _stands_decoder.decode(found)]


async def refusal(connection: Connection, number: int) -> str | None:
    """See `ClusterStore.refusal`; `StoreError` when there is no such order."""
    row = await query.first(connection, ordering.READ_REFUSAL, (number,))
    if row is None:
        raise StoreError(f"there is no order {number}")
    return None if row[0] is None else str(row[0])
