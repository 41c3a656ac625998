"""How far a pipeline is: watermarks, source positions, and what each interval is about to run.

Lives here: the small writes between checkpoints.  Never here: effects of records.  Each may be repeated: a watermark only
rises, and a position or a mark says where its owner is, behind the fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg.types.numeric import Int4, Int8

from millwheel.ports import MarkWrite, PositionWrite, SourcePosition, WatermarkWrite
from millwheel_storage import query, statements
from millwheel_storage.arrays import BigintArray, TextArray
from millwheel_storage.creation import add_interval, add_name
from millwheel_storage.prepared import Connection, Statement
from millwheel_storage.shape import SOURCE_PREFIX

_PERSIST_WATERMARKS: Final = Statement(
    statements.PERSIST_WATERMARKS, TextArray, BigintArray, BigintArray, TextArray, BigintArray
)


async def persist_watermarks(connection: Connection, writes: Sequence[WatermarkWrite]) -> set[str]:
    """See `Store.persist_watermarks`."""
    # In the order of intervals, which is that in which everybody locks them.
    owners = sorted((*owner, write.name) for write in writes for owner in write.owners.items())
    parameters = (
        TextArray([name for _, _, name in owners]).data,
        BigintArray([interval for interval, _, _ in owners]).data,
        BigintArray([sequencer for _, sequencer, _ in owners]).data,
        TextArray([write.name for write in writes]).data,
        BigintArray([write.value for write in writes]).data,
    )
    kept = await connection.run(_PERSIST_WATERMARKS, parameters)
    return {(kept.get_value(row, 0) or b"").decode() for row in range(kept.ntuples)}


async def watermarks(connection: Connection) -> dict[str, int]:
    """See `Store.watermarks`."""
    return dict(await query.rows(connection, statements.READ_WATERMARKS))


async def open_source(connection: Connection, schema: str, source: str, partition: str, state: bytes) -> SourcePosition:
    """See `Store.open_source`; a new partition is an interval of its own, so that sequencers fence it too."""
    known = await sources(connection, source, partition)
    if known:
        return known[0]
    async with connection.transaction():
        await connection.execute(statements.LOCK_SCHEMA, (schema,))
        if not await sources(connection, source, partition):
            number = await add_name(connection, "computation", SOURCE_PREFIX + source)
            interval = await add_interval(connection, number, "", None)
            await connection.execute(statements.ADD_SOURCE, (source, partition, interval, state))
    return (await sources(connection, source, partition))[0]


async def sources(connection: Connection, source: str, partition: str | None = None) -> list[SourcePosition]:
    """Positions of one partition, or of all that the source ever opened."""
    rows = await query.rows(connection, statements.READ_SOURCES, {"source": source, "partition": partition})
    return [SourcePosition(*row) for row in rows]


async def unfinished(connection: Connection) -> list[tuple[str, SourcePosition]]:
    """See `Store.unfinished_partitions`."""
    rows = await query.rows(connection, statements.READ_UNFINISHED)
    return [(source, SourcePosition(*row)) for source, *row in rows]


async def advance(connection: Connection, writes: Sequence[PositionWrite]) -> set[int]:
    """See `Store.advance`."""
    intervals = [Int8(write.interval) for write in writes]
    parameters = (
        intervals,
        [Int8(write.sequencer) for write in writes],
        [Int8(write.position) for write in writes],
        [write.finished for write in writes],
        [write.state for write in writes],
        intervals,
    )
    return {interval for (interval,) in await query.rows(connection, statements.ADVANCE, parameters, prepare=True)}


async def mark(connection: Connection, writes: Sequence[MarkWrite]) -> set[int]:
    """See `Store.mark`."""
    intervals = [Int8(write.interval) for write in writes]
    parameters = (
        intervals,
        [Int8(write.sequencer) for write in writes],
        [write.mark for write in writes],
        [None if write.ends is None else Int4(write.ends) for write in writes],
        intervals,
    )
    return {interval for (interval,) in await query.rows(connection, statements.MARK, parameters, prepare=True)}
