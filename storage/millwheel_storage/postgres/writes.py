"""One fold as statements with array parameters: the write side of `fold.Folded` on Postgres.

Lives here: the (statement, parameters) pairs of a `Folded`, in an order that is right within one transaction.  Never here:
I/O or transactions.  Only tables that a fold touches get a statement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any

from psycopg.types.numeric import Int4, Int8

from millwheel.bundles import expired_rows
from millwheel.ids import IntervalId, SequenceNumber
from millwheel.model import MAX_TIME
from millwheel_storage.fold import Channel, Folded
from millwheel_storage.postgres.arrays import BigintArray, ByteaArray, TextArray
from millwheel_storage.productions import pack_ids
from millwheel_storage.releases import LogPlace, Releases
from millwheel_storage.statements import folding, outside_ids, quarantining

Step = tuple[str, tuple[Any, ...] | dict[str, Any]]
"""A statement and its parameters."""


def fold_steps(
    interval: IntervalId, computation: int, folded: Folded, released: Releases, fresh: Set[str] = frozenset()
) -> Iterator[Step]:
    """The steps that apply `folded` to the tables, in order.  Each step is packed when it is asked for.

    `released` has the keys that it releases.  State of `fresh` keys is inserted and not upserted, which costs nearly half.
    """
    number = Int4(computation)
    yield from _forget(number, folded)
    yield from _state(number, folded, sorted(fresh))
    yield from _timers(number, folded)
    yield from _holds(number, folded)
    yield from _productions(Int8(interval), folded)
    yield from _ids(interval, folded)
    yield from _outside_ids(Int8(interval), folded)
    yield from _quarantine(number, folded, released)


def _forget(computation: Int4, folded: Folded) -> Iterator[Step]:
    if folded.forgotten:
        keys = ByteaArray.of_texts(sorted(folded.forgotten))
        yield folding.FORGET_STATE, (computation, keys)
        yield folding.FORGET_TIMERS, (keys, computation)
        yield folding.FORGET_HOLDS, (computation, keys)


# Columns go in key order, which keeps neighbouring rows on one index page.  A forgotten key is deleted whole already.


def _state(computation: Int4, folded: Folded, fresh: Sequence[str]) -> Iterator[Step]:
    for cell, column in folded.values.items():
        for keys, added in _parts(column, fresh):
            values: list[Any] = [column[key] for key in keys]
            if None in values:
                rows = list(zip(keys, values, strict=True))
                yield from _cleared(computation, cell, [(key, "") for key, value in rows if value is None], folded)
                keys, values = _columns([row for row in rows if row[1] is not None], 2)
            if keys:
                statement = folding.ADD_VALUES if added else folding.SET_VALUES
                yield statement, (computation, cell, ByteaArray.of_texts(keys), ByteaArray(values))
    for cell, by_key in folded.entries.items():
        for keys, added in _parts(by_key, fresh):
            places: list[tuple[Any, ...]] = [
                (key, entry, value) for key in keys for entry, value in by_key[key].items()
            ]
            yield from _cleared(computation, cell, [place[:2] for place in places if place[2] is None], folded)
            keys, entries, values = _columns([place for place in places if place[2] is not None], 3)
            if keys:
                statement = folding.ADD_ENTRIES if added else folding.SET_ENTRIES
                written = (ByteaArray.of_texts(keys), ByteaArray(values), ByteaArray.of_texts(entries))
                yield statement, (computation, cell, *written)


def _parts(column: Mapping[str, Any], fresh: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """Keys that are inserted (true) and those that are upserted, each in order; `fresh` is."""
    added = [*filter(column.__contains__, fresh)]
    if added:
        yield added, True
    if len(added) < len(column):
        yield sorted(column.keys() - added), False


def _cleared(computation: Int4, cell: str, places: list[tuple[str, str]], folded: Folded) -> Iterator[Step]:
    """Values of (key, entry) go."""
    places = [place for place in places if place[0] not in folded.forgotten]
    if places:
        columns = (ByteaArray.of_texts(column) for column in _columns(places, 2))
        yield folding.CLEAR_STATE, (*columns, computation, cell)


def _timers(computation: Int4, folded: Folded) -> Iterator[Step]:
    rows = [(key, *name, time) for key in sorted(folded.timers) for name, time in folded.timers[key].items()]
    cleared = [row[:3] for row in rows if row[3] is None and row[0] not in folded.forgotten]
    kept = [row for row in rows if row[3] is not None]
    if cleared:
        keys, kinds, tags = _columns(cleared, 3)
        places = (ByteaArray.of_texts(keys), TextArray(kinds), ByteaArray.of_texts(tags))
        yield folding.CLEAR_TIMERS, (*places, computation)
    if kept:
        keys, kinds, tags, times = _columns(kept, 4)
        columns = (ByteaArray.of_texts(keys), TextArray(kinds), ByteaArray.of_texts(tags), BigintArray(times))
        yield folding.FOLD_TIMERS, (computation, *columns)


def _holds(computation: Int4, folded: Folded) -> Iterator[Step]:
    kept = sorted((key, time) for key, time in folded.holds.items() if time is not None)
    cleared = sorted(key for key, time in folded.holds.items() if time is None and key not in folded.forgotten)
    if cleared:
        yield folding.FORGET_HOLDS, (computation, ByteaArray.of_texts(cleared))
    if kept:
        keys, times = _columns(kept, 2)
        yield folding.FOLD_HOLDS, (computation, ByteaArray.of_texts(keys), BigintArray(times))


def _productions(interval: Int8, folded: Folded) -> Iterator[Step]:
    for (subscription, producer), sequences in sorted(folded.acked.items()):
        lows, highs = _runs(sorted(sequences))
        channel = (interval, Int4(subscription), Int8(producer))
        yield folding.FOLD_ACKS, (BigintArray(lows), BigintArray(highs), *channel)
    for (subscription, producer), rows in sorted(folded.productions.items()):
        if rows:
            keys, values, times = _columns(rows.values(), 3)
            columns = (BigintArray([*rows]), ByteaArray.of_texts(keys), ByteaArray(values), BigintArray(times))
            yield folding.FOLD_PRODUCTIONS, (interval, Int4(subscription), Int8(producer), *columns)


def _runs(sequences: Sequence[SequenceNumber]) -> tuple[list[int], list[int]]:
    """First and last of every run of consecutive numbers in ascending `sequences`: mostly there is one.

    >>> _runs([3, 4, 5, 9])
    ([3, 9], [5, 9])
    """
    if sequences[-1] - sequences[0] < len(sequences):
        return [sequences[0]], [sequences[-1]]
    gaps = [(low, high) for low, high in pairwise(sequences) if high > low + 1]
    return [sequences[0], *(high for _, high in gaps)], [*(low for low, _ in gaps), sequences[-1]]


def _ids(interval: IntervalId, folded: Folded) -> Iterator[Step]:
    # Every channel gets a frontier, 0 as well: by its frontier recovery finds it.  A retired one keeps nothing.
    kept = [(*channel, frontier) for channel, frontier in sorted(folded.frontiers.items()) if frontier < MAX_TIME]
    retired = [channel for channel, frontier in sorted(folded.frontiers.items()) if frontier >= MAX_TIME]
    if kept:
        yield folding.FOLD_FRONTIERS, (interval, *_columns(kept, 3))
    if retired:
        yield folding.DROP_FRONTIERS, (*_columns(retired, 2), interval)
    moved = [(*channel, frontier) for channel, frontier in sorted(folded.frontiers.items()) if frontier]
    if moved:
        yield folding.COLLECT_IDS, (*_columns(moved, 3), interval)
    segments = _segments(folded.new_ids())
    if segments:
        yield folding.FOLD_IDS, (interval, *_columns(segments, 5))


def _outside_ids(interval: Int8, folded: Folded) -> Iterator[Step]:
    for (subscription, expires), ids in sorted(folded.outside.items()):
        bucket = (interval, Int4(subscription), Int8(expires), Int8(len(ids)))
        yield outside_ids.FOLD_OUTSIDE_IDS, (*bucket, ByteaArray(ids))
    for subscription, now in sorted(folded.expired.items()):
        added = sum(len(ids) for (of, _), ids in folded.outside.items() if of == subscription)
        passed, rows = (interval, Int4(subscription), Int8(now)), Int8(expired_rows(added))
        yield outside_ids.EXPIRE_OUTSIDE_IDS, (*passed, rows, rows)
        yield outside_ids.DROP_OUTSIDE_BUCKETS, passed


def _segments(ids: Mapping[Channel, list[SequenceNumber]]) -> list[tuple[Any, ...]]:
    return [(*channel, sequences[0], sequences[-1], pack_ids(sequences)) for channel, sequences in sorted(ids.items())]


def _quarantine(computation: Int4, folded: Folded, released: Releases) -> Iterator[Step]:
    fifos = sorted(folded.quarantine.items())
    cleared = [key for key, fifo in fifos if fifo.cleared]
    if cleared:
        keys = ByteaArray.of_texts(cleared)
        yield quarantining.CLEAR_QUARANTINE, (computation, keys)
        places = map(BigintArray, _columns((released[key] for key in cleared), 2))
        yield quarantining.CLEAR_REDRIVES, (keys, *places, computation)
    appended = [
        (e.key, e.subscription, e.producer, e.sequence, e.value, e.timestamp, e.tag, e.kind, e.error)
        for _, fifo in fifos
        for e in fifo.appended
    ]
    if appended:
        keys_, subscriptions, producers, sequences, values, times, tags, kinds, errors = _columns(appended, 9)
        numbers = map(BigintArray, (subscriptions, producers, sequences, times))
        texts = map(ByteaArray.of_texts, (keys_, tags, errors))
        yield quarantining.APPEND_QUARANTINE, (computation, *numbers, *texts, ByteaArray(values), TextArray(kinds))
    dropped = [(key, fifo.dropped) for key, fifo in fifos if fifo.dropped]
    if dropped:
        names, counts = _columns(dropped, 2)
        yield quarantining.DROP_QUARANTINE, (ByteaArray.of_texts(names), BigintArray(counts), computation, computation)


def answered(computation: int, free: Sequence[str], end: LogPlace) -> Step:
    """Requests go that were made before or at the `end` of a log which leaves these keys free."""
    keys = ByteaArray.of_texts(free)
    sequencers, seqs = BigintArray([end[0]] * len(free)), BigintArray([end[1] + 1] * len(free))
    return quarantining.CLEAR_REDRIVES, (keys, sequencers, seqs, Int4(computation))


def _columns(rows: Iterable[tuple[Any, ...]], count: int) -> list[list[Any]]:
    """Rows of `count` fields as that many lists, also when there are none."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in range(count)]
