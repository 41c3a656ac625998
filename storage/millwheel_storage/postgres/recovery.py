"""The two transactions that take rows out of the log: fold and recovery.

Lives here: the fold of a prefix by the owner, and the recovery by a new owner, which folds the whole log and loads what
it needs.  Never here: the merge (`fold`), or its statements (`writes`).  Invariant: a log row is deleted by the
interval's owner, or by a decision about an interval that nobody owns, in the transaction that applies it.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg.types.numeric import Int8

from millwheel import limits
from millwheel.bundles import BEFORE_TIMERS, Checkpoint, Delivered, HoldWrites, OutsideBucket, RecoveredInterval
from millwheel.errors import InvariantError
from millwheel.ids import Sequencer
from millwheel.model import MIN_TIME, TIMER_KINDS
from millwheel.ports import FoldWrite
from millwheel_storage.decode import decode_image, productions, timer_writes
from millwheel_storage.fold import Folded, check_prefix, fold
from millwheel_storage.postgres import ownership, query
from millwheel_storage.postgres.catalogue import IntervalPlace
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.reads import timer_page
from millwheel_storage.postgres.writes import answered, fold_steps
from millwheel_storage.releases import LogPlace, Releases, releases
from millwheel_storage.statements import folding, loading, outside_ids, quarantining


async def fold_prefix(connection: Connection, place: IntervalPlace, write: FoldWrite, folded: Folded) -> bool:
    """See `Store.fold`; `folded` is the merge of the images of `write`.

    Folding again what is folded already (its reply was lost) changes nothing.
    """
    async with connection.transaction():
        if not await ownership.owned(connection, write.interval, write.sequencer):
            return False
        prefix = (Int8(write.interval), Int8(write.sequencer), Int8(write.upto))
        released = await _releases(connection, write, prefix)
        deleted = await connection.execute(folding.FOLD_LOG, prefix, prepare=True)
        if deleted.rowcount == 0:
            return True
        check_prefix(write, deleted.rowcount)
        await query.apply(connection, fold_steps(write.interval, place.computation, folded, released, write.fresh))
    return True


async def _releases(connection: Connection, write: FoldWrite, prefix: tuple[Int8, Int8, Int8]) -> Releases:
    """What a fold releases, and where in the log; mostly that is nothing."""
    if not any(image.released for image in write.images):
        return {}
    seqs = [seq for (seq,) in await query.rows(connection, folding.READ_SEQS, prefix)]
    return releases(write.images, [(write.sequencer, seq) for seq in seqs]) if len(seqs) == len(write.images) else {}


async def recover(connection: Connection, place: IntervalPlace, sequencer: Sequencer) -> RecoveredInterval | None:
    """See `Store.recover`.  Its cost follows the log and what is pending, never the number of keys."""
    interval = place.row.id
    async with connection.transaction():
        if not await ownership.owned(connection, interval, sequencer):
            return None
        # The lock keeps every other writer of the interval out until this transaction ends.
        await fold_log(connection, place)
        suspicion = await query.first(connection, quarantining.BEGIN_SUSPICION, (interval,))
        if suspicion is None:
            raise InvariantError("there is no suspicion")
        return await _recovered(connection, place, *suspicion)


async def fold_log(connection: Connection, place: IntervalPlace) -> None:
    """Bring the tables to the end of what counts of an interval's log, in a transaction that keeps all its writers out.

    The log is read in commit order over all its owners, and folded in chunks that bound the memory.  The cursor is one
    of the transaction and not an object of psycopg: it ends with the transaction, also when the connection dies.
    """
    interval = place.row.id
    images: list[Checkpoint] = []
    places: list[LogPlace] = []
    free: set[str] = set()
    size = 0
    await connection.execute(loading.DECLARE_LOG, (interval,))
    while page := await query.rows(connection, loading.FETCH_LOG):
        for sequencer, seq, payload in page:
            images.append(decode_image(payload))
            places.append((sequencer, seq))
            size += len(payload)
            if size >= limits.RECOVERY_CHUNK_BYTES:
                await _fold_chunk(connection, place, images, places, free)
                images, places, size = [], [], 0
    if images:
        await _fold_chunk(connection, place, images, places, free)
    await connection.execute(loading.CLOSE_LOG)
    await connection.execute(loading.DELETE_LOG, (interval,))


async def _fold_chunk(
    connection: Connection,
    place: IntervalPlace,
    images: Sequence[Checkpoint],
    places: Sequence[LogPlace],
    free: set[str],
) -> None:
    """Fold some of a log.  `free` keys were released before, and have not failed again: they answer requests up to here."""
    released = releases(images, places)
    await query.apply(connection, fold_steps(place.row.id, place.computation, fold(images), released))
    for image in images:
        free.update(image.released)
        free.difference_update(entry.key for entry in image.quarantined)
    if free:
        await query.apply(connection, [answered(place.computation, sorted(free), places[-1])])


async def _recovered(connection: Connection, place: IntervalPlace, ends: int, suspicion: bytes) -> RecoveredInterval:
    keys, interval, limit = place.keys(), (place.row.id,), limits.TIMER_PAGE_ROWS
    pages = {kind: await timer_page(connection, place, kind, BEFORE_TIMERS, limit) for kind in TIMER_KINDS}
    holds = await query.rows(connection, loading.LOAD_HOLDS, keys)
    quarantined = await query.rows(connection, loading.LOAD_QUARANTINED, keys)
    watermark = await query.first(connection, loading.READ_WATERMARK, (place.row.computation,))
    channels = await query.rows(connection, loading.LOAD_CHANNELS, interval)
    pending = await query.rows(connection, loading.LOAD_PRODUCTIONS, interval)
    buckets = await query.rows(connection, outside_ids.LOAD_OUTSIDE_BUCKETS, interval)
    blank = await query.first(connection, loading.BLANK)
    return RecoveredInterval(
        ids=[Delivered(*channel) for channel in channels],
        productions=productions(pending),
        timers=timer_writes([timer for page in pages.values() for timer in page]),
        holds=HoldWrites([key.decode() for key, _ in holds], [time for _, time in holds]),
        quarantined=[key.decode() for (key,) in quarantined],
        watermark=MIN_TIME if watermark is None else watermark[0],
        outside=[OutsideBucket(*bucket) for bucket in buckets],
        more_timers=[kind for kind, page in pages.items() if len(page) >= limit],
        ends=ends,
        suspicion=suspicion,
        blank=blank == (True,),
    )
