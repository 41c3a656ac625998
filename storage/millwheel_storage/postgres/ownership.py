"""Who may write: sequencers, taken and checked.

Lives here: the statements on `ownership` that are not part of another write.  Never here: the writes of an owner.  Commits
and positions are fenced in the same statement that writes (`statements`).  Invariant: a sequencer is given out once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from psycopg.types.numeric import Int8

from millwheel.errors import InvariantError, StoreError
from millwheel.ids import IntervalId, Sequencer
from millwheel_storage.decisions import check_opened, check_unused
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.schema.creation import living
from millwheel_storage.statements import opening, placing


async def acquire(
    connection: Connection, schema: str, intervals: Sequence[IntervalId], shape: bytes
) -> dict[IntervalId, Sequencer]:
    """A new sequencer for each interval, in one transaction; `StoreError` when one does not exist.

    It is for somebody who is no member of a cluster, so it is refused while there are live ones (`StoreInUse`).  `shape` is
    as for `membership.join`: whoever has opened another version fences this one, and may have changed what it would go by.
    """
    taken = {}
    async with connection.transaction():
        await connection.execute(placing.LOCK_CLUSTER)
        check_opened(await query.first(connection, placing.READ_SHAPE), shape)
        check_unused(schema, await living(connection))
        await connection.execute(placing.TAKEN_OUTSIDE, ([Int8(interval) for interval in intervals],))
        for interval in sorted(set(intervals)):  # one by one: locks in id order, whatever plan Postgres would choose
            row = await query.first(connection, opening.ACQUIRE, (interval,))
            if row is None:
                raise StoreError(f"interval {interval} does not exist")
            taken[interval] = row[0]
    return taken


async def next_sequencer(connection: Connection) -> Sequencer:
    """A number that nobody has had."""
    row = await query.first(connection, opening.NEXT_SEQUENCER)
    if row is None:
        raise InvariantError("there is no row")
    return Sequencer(row[0])


async def replace(connection: Connection, interval: IntervalId, sequencer: Sequencer, fresh: Sequencer) -> bool:
    """Let `fresh` own what `sequencer` owns; false when another does.  Repeating it is harmless."""
    parameters = (fresh, interval, [Int8(sequencer), Int8(fresh)])
    return await query.first(connection, opening.REACQUIRE, parameters) is not None


async def still_owned(connection: Connection, owners: Mapping[IntervalId, Sequencer]) -> set[IntervalId]:
    """See `Store.still_owned`."""
    parameters = ([Int8(interval) for interval in owners], [Int8(sequencer) for sequencer in owners.values()])
    return {interval for (interval,) in await query.rows(connection, opening.STILL_OWNED, parameters, prepare=True)}


async def behind_others(connection: Connection, intervals: Collection[IntervalId]) -> set[IntervalId]:
    """See `Store.behind_others`."""
    given = ([Int8(interval) for interval in intervals],)
    return {interval for (interval,) in await query.rows(connection, opening.BEHIND_OTHERS, given)}


async def owned(connection: Connection, interval: IntervalId, sequencer: Sequencer) -> bool:
    """Whether `sequencer` owns the interval.  If so, it stays the owner until the transaction around this call ends."""
    return await query.first(connection, opening.OWNED, (interval, sequencer)) is not None
