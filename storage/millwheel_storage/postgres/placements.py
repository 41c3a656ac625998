"""The map of a cluster: what a leader decides, and what everybody reads of it.

Lives here: the calls of `ClusterStore` about ownership.  Never here: leases (`membership`), or the writes of an owner.
Invariant: an owner changes only together with the sequencer, in a transaction that holds the row of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg.types.numeric import Int8

from millwheel.cluster import ClusterMap, Leader, Member, PlacedInterval, PlacedSource, Placement
from millwheel.errors import InvariantError, StoreError
from millwheel.ids import IntervalId, Sequencer
from millwheel_storage.decisions import digest
from millwheel_storage.postgres import query
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import declaring, opening, placing


async def cluster_map(connection: Connection) -> ClusterMap:
    """See `ClusterStore.cluster_map`."""
    async with connection.transaction():
        await connection.execute(opening.SNAPSHOT)
        first = await query.first(connection, placing.READ_CLUSTER)
        members = await query.rows(connection, placing.READ_MEMBERS)
        intervals = await query.rows(connection, placing.READ_PLACED)
        sources = await query.rows(connection, placing.READ_PLACED_SOURCES)
        declared = await query.first(connection, declaring.READ_DECLARED)
    if first is None:
        raise InvariantError("there is no row")
    version, *leader = first
    return ClusterMap(
        version=version,
        leader=None if leader[0] is None else Leader(*leader),
        members=tuple(Member(*row) for row in members),
        intervals=tuple(
            PlacedInterval(id_, name, low.decode(), None if high is None else high.decode(), owner, sequencer)
            for id_, name, low, high, owner, sequencer in intervals
        ),
        sources=tuple(PlacedSource(*row) for row in sources),
        declared=0 if declared is None else int(declared[0]),
    )


async def place(connection: Connection, placement: Placement) -> int | None:
    """See `ClusterStore.place`.  When its reply was lost and nothing was decided since, it knows its own decision again."""
    decision = digest(placement)
    version: int | None = None
    async with connection.transaction() as transaction:
        found = await query.first(connection, placing.LOCK_EPOCH, (placement.epoch,))
        if found == (placement.version + 1, decision):
            return placement.version + 1
        if found is None or found[0] != placement.version or not await _all_alive(connection, placement):
            return None
        await _own(connection, placement)
        parameters = {"intervals": [Int8(id_) for id_ in placement.intervals], "sources": [*placement.sources]}
        await connection.execute(placing.FENCE_OWNERS, parameters)
        if placement.back:  # no earlier owner writes any more
            await connection.execute(declaring.DROP_UNDECLARED)
        row = await query.first(connection, placing.DECIDED, (placement.epoch, decision))
        if row is None:  # a new leader came while this waited for an interval
            raise psycopg.Rollback(transaction)
        version = int(row[0])
    return version


async def _all_alive(connection: Connection, placement: Placement) -> bool:
    owners = {*placement.intervals.values(), *placement.sources.values()} - {None}
    row = await query.first(connection, placing.COUNT_ALIVE, ([Int8(owner) for owner in owners if owner is not None],))
    return row == (len(owners),)


async def _own(connection: Connection, placement: Placement) -> None:
    sources = ([*placement.sources], [_number(owner) for owner in placement.sources.values()])
    intervals = ([Int8(id_) for id_ in placement.intervals], [_number(owner) for owner in placement.intervals.values()])
    placed: set[object] = {name for (name,) in await query.rows(connection, placing.PLACE_SOURCES, sources)}
    placed |= {id_ for (id_,) in await query.rows(connection, placing.PLACE_INTERVALS, intervals)}
    for asked in (*placement.sources, *placement.intervals):
        if asked not in placed:
            raise StoreError(f"{asked!r} is no interval and no source of the map")


def _number(owner: int | None) -> Int8 | None:
    return None if owner is None else Int8(owner)


async def take_partitions(
    connection: Connection, source: str, incarnation: int, intervals: Sequence[IntervalId]
) -> dict[IntervalId, Sequencer] | None:
    """See `ClusterStore.take_partitions`; the source keeps its owner until the transaction ends."""
    asked = sorted(set(intervals))
    async with connection.transaction():
        if await query.first(connection, placing.OWNS_SOURCE, (source, incarnation)) is None:
            return None
        parameters = ([Int8(interval) for interval in asked], source)
        taken: dict[IntervalId, Sequencer] = dict(await query.rows(connection, placing.FENCE_PARTITIONS, parameters))
        for interval in asked:
            if interval not in taken:
                raise StoreError(f"interval {interval} is no partition of source {source!r}")
    return taken
