"""How far a pipeline is: watermarks, source positions, and what each interval is about to run.

Lives here: the small writes between checkpoints.  Never here: effects of records.  Each of them may be repeated.  A watermark
only rises, and a position or a mark is written by the current owner only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from psycopg.types.numeric import Int4, Int8

from millwheel.ids import IntervalId
from millwheel.ports import MarkWrite, PositionWrite, SourcePosition, WatermarkWrite
from millwheel_storage.postgres import query
from millwheel_storage.postgres.arrays import BigintArray, ByteaArray, TextArray
from millwheel_storage.postgres.prepared import BIGINT, Connection, Statement, bigint
from millwheel_storage.schema.creation import add_name
from millwheel_storage.schema.shape_checks import SOURCE_PREFIX
from millwheel_storage.statements import advancing, opening, quarantining

_WATERMARK_COLUMNS: Final = (TextArray, BigintArray, BigintArray, TextArray, BigintArray)
_PERSIST_WATERMARKS: Final = Statement(advancing.PERSIST_WATERMARKS, *_WATERMARK_COLUMNS)
_PERSIST_LED_WATERMARKS: Final = Statement(
    advancing.PERSIST_LED_WATERMARKS, *_WATERMARK_COLUMNS[:3], BIGINT, *_WATERMARK_COLUMNS[3:]
)


async def persist_watermarks(connection: Connection, writes: Sequence[WatermarkWrite]) -> set[str]:
    """See `Store.persist_watermarks`."""
    kept = await connection.run(_PERSIST_WATERMARKS, _watermark_columns(writes))
    return {(kept.get_value(row, 0) or b"").decode() for row in range(kept.ntuples)}


async def persist_led_watermarks(
    connection: Connection, epoch: int, writes: Sequence[WatermarkWrite]
) -> set[str] | None:
    """See `ClusterStore.persist_led_watermarks`."""
    columns = _watermark_columns(writes)
    found = await connection.run(_PERSIST_LED_WATERMARKS, (*columns[:3], bigint(epoch), *columns[3:]))
    names = [found.get_value(row, 0) for row in range(found.ntuples)]
    return {name.decode() for name in names if name is not None} if None in names else None


def _watermark_columns(writes: Sequence[WatermarkWrite]) -> tuple[bytes, ...]:
    # In the order of intervals, which is that in which everybody locks them.
    owners = sorted((*owner, write.name) for write in writes for owner in write.owners.items())
    return (
        TextArray([name for _, _, name in owners]).data,
        BigintArray([interval for interval, _, _ in owners]).data,
        BigintArray([sequencer for _, sequencer, _ in owners]).data,
        TextArray([write.name for write in writes]).data,
        BigintArray([write.value for write in writes]).data,
    )


async def watermarks(connection: Connection) -> dict[str, int]:
    """See `Store.watermarks`."""
    return dict(await query.rows(connection, advancing.READ_WATERMARKS))


async def open_source(
    connection: Connection, schema: str, source: str, states: Mapping[str, bytes]
) -> list[SourcePosition]:
    """See `Store.open_source`; a new partition is an interval of its own, so that sequencers fence it too."""
    known = await _named(connection, source, [*states])
    if len(known) < len(states):
        async with connection.transaction():
            await connection.execute(opening.LOCK_SCHEMA, (schema,))
            known = await _named(connection, source, [*states])
            new = [name for name in states if name not in known]
            number = await add_name(connection, "computation", SOURCE_PREFIX + source)
            parameters = {
                "computation": number, "source": source,
                "names": TextArray(new), "states": ByteaArray([states[name] for name in new]),
            }  # fmt: skip
            await connection.execute(advancing.ADD_SOURCES, parameters)
        known = await _named(connection, source, [*states])
    return [known[name] for name in states]


async def _named(connection: Connection, source: str, names: Sequence[str]) -> dict[str, SourcePosition]:
    found = await find_partitions(connection, source, (), names)
    return {position.partition: position for position in found}


async def open_sources(connection: Connection, source: str) -> list[SourcePosition]:
    """See `Store.source_partitions`."""
    rows = await query.rows(connection, advancing.READ_OPEN_SOURCES, {"source": source})
    return [SourcePosition(*row) for row in rows]


async def unfinished(connection: Connection) -> list[tuple[str, SourcePosition]]:
    """See `Store.unfinished_partitions`."""
    rows = await query.rows(connection, advancing.READ_UNFINISHED)
    return [(source, SourcePosition(*row)) for source, *row in rows]


async def unknown_signs(connection: Connection, source: str, signs: Sequence[bytes]) -> set[bytes]:
    """See `Store.unknown_signs`."""
    rows = await query.rows(connection, advancing.UNKNOWN_SIGNS, (ByteaArray(signs), source))
    return {sign for (sign,) in rows}


async def find_partitions(
    connection: Connection, source: str, signs: Sequence[bytes], names: Sequence[str]
) -> list[SourcePosition]:
    """See `Store.find_partitions`."""
    parameters = {"source": source, "signs": ByteaArray(signs), "names": TextArray(names)}
    return [SourcePosition(*row) for row in await query.rows(connection, advancing.FIND_SOURCES, parameters)]


async def add_signs(connection: Connection, signs: Mapping[IntervalId, Sequence[bytes]]) -> None:
    """See `Store.add_signs`."""
    async with connection.transaction():
        await _add_signs(connection, signs)


async def _add_signs(connection: Connection, signs: Mapping[IntervalId, Sequence[bytes]]) -> None:
    intervals = [interval for interval, mine in signs.items() for _ in mine]
    flat = [sign for mine in signs.values() for sign in mine]
    await connection.execute(advancing.ADD_SIGNS, (ByteaArray(flat), BigintArray(intervals)))
    await connection.execute(advancing.SIGN_SOURCES, (BigintArray([*signs]),))


async def advance(connection: Connection, writes: Sequence[PositionWrite]) -> set[IntervalId]:
    """See `Store.advance`; what is finished gets its signs in the same transaction."""
    if not any(write.finished for write in writes):
        return await _advance(connection, writes)
    async with connection.transaction():
        return await advance_within(connection, writes)


async def advance_within(connection: Connection, writes: Sequence[PositionWrite]) -> set[IntervalId]:
    """The same, in the transaction around this call."""
    kept = await _advance(connection, writes)
    signs = {write.interval: write.signs for write in writes if write.finished and write.interval in kept}
    if signs:
        await _add_signs(connection, signs)
    return kept


async def _advance(connection: Connection, writes: Sequence[PositionWrite]) -> set[IntervalId]:
    intervals = [Int8(write.interval) for write in writes]
    parameters = (
        intervals,
        [Int8(write.sequencer) for write in writes],
        [Int8(write.position) for write in writes],
        [write.finished for write in writes],
        [write.state for write in writes],
        [Int8(write.rejected) for write in writes],
        intervals,
    )
    return {interval for (interval,) in await query.rows(connection, advancing.ADVANCE, parameters, prepare=True)}


async def count_rejected(connection: Connection) -> int:
    """See `ClusterStore.count_rejected`."""
    ((count,),) = await query.rows(connection, advancing.COUNT_REJECTED)
    return int(count)


async def count_quarantined(connection: Connection, schema: str) -> int | None:
    """See `ClusterStore.count_quarantined`; a controller with a role of its own may only count."""
    # Logs first: what is folded between the two statements is counted.
    if await query.first(connection, quarantining.UNFOLDED) is not None:
        return None
    counts = await query.first(connection, quarantining.MAY_COUNT_KEYS, (schema,)) is not None
    statement = quarantining.CALL_COUNT_KEYS if counts else quarantining.COUNT_KEYS
    ((count,),) = await query.rows(connection, statement)
    return int(count)


async def mark(connection: Connection, writes: Sequence[MarkWrite]) -> set[IntervalId]:
    """See `Store.mark`."""
    intervals = [Int8(write.interval) for write in writes]
    parameters = (
        intervals,
        [Int8(write.sequencer) for write in writes],
        [write.mark for write in writes],
        [None if write.ends is None else Int4(write.ends) for write in writes],
        intervals,
    )
    return {interval for (interval,) in await query.rows(connection, quarantining.MARK, parameters, prepare=True)}
