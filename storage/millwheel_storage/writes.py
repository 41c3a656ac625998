"""One fold as statements with array parameters: the write side of `fold.Folded` on Postgres.

Lives here: turning a `Folded` into (statement, parameters) pairs, in an order that is right within one
transaction.  Never here: I/O or transactions.  Only tables that a fold touches get a statement.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any

from psycopg.types.numeric import Int4, Int8

from millwheel_storage import statements
from millwheel_storage.fold import Channel, Folded
from millwheel_storage.productions import pack_ids

Step = tuple[str, tuple[Any, ...] | dict[str, Any]]
"""A statement and its parameters."""


def fold_steps(interval: int, computation: int, folded: Folded) -> list[Step]:
    """Everything that applies `folded` to the tables, in order."""
    number = Int4(computation)
    return [
        *_forget(number, folded),
        *_state(number, folded),
        *_timers(number, folded),
        *_holds(number, folded),
        *_productions(interval, folded),
        *_ids(interval, folded),
        *_quarantine(computation, folded),
    ]


def _forget(computation: Int4, folded: Folded) -> Iterator[Step]:
    if folded.forgotten:
        keys = [key.encode() for key in sorted(folded.forgotten)]
        for statement in (statements.FORGET_STATE, statements.FORGET_TIMERS, statements.FORGET_HOLDS):
            yield statement, (computation, keys)


def _state(computation: Int4, folded: Folded) -> Iterator[Step]:
    kept, cleared = [], []
    for key, cell, entry, value in folded.state_rows():
        if value is not None:
            kept.append((key.encode(), cell, entry.encode(), value))
        elif key not in folded.forgotten:  # a forgotten key is deleted whole already
            cleared.append((key.encode(), cell, entry.encode()))
    if cleared:
        yield statements.CLEAR_STATE, (*_columns(cleared), computation)
    if kept:
        yield statements.FOLD_STATE, (computation, *_columns(kept))


def _timers(computation: Int4, folded: Folded) -> Iterator[Step]:
    kept, cleared = _entries(folded.timers, folded.forgotten)
    if cleared:
        yield statements.CLEAR_TIMERS, (*_columns(cleared), computation)
    if kept:
        yield statements.FOLD_TIMERS, (computation, *_columns(kept))


def _entries(
    written: Mapping[str, Mapping[tuple[str, str], Any]], forgotten: Container[str]
) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """(key, cell, entry, value) to upsert and (key, cell, entry) to delete; (key, kind, tag, …) for timers.

    In key order, which keeps neighbouring rows on one index page.  A forgotten key is deleted whole already.
    """
    kept: list[tuple[Any, ...]] = []
    cleared: list[tuple[Any, ...]] = []
    for key in sorted(written):
        encoded = key.encode()
        for (first, second), value in written[key].items():
            if value is not None:
                kept.append((encoded, first, second.encode(), value))
            elif key not in forgotten:
                cleared.append((encoded, first, second.encode()))
    return kept, cleared


def _holds(computation: Int4, folded: Folded) -> Iterator[Step]:
    kept = sorted((key.encode(), time) for key, time in folded.holds.items() if time is not None)
    cleared = [key.encode() for key, time in folded.holds.items() if time is None and key not in folded.forgotten]
    if cleared:
        yield statements.FORGET_HOLDS, (computation, cleared)
    if kept:
        yield statements.FOLD_HOLDS, (computation, [key for key, _ in kept], [time for _, time in kept])


def _productions(interval: int, folded: Folded) -> Iterator[Step]:
    for (subscription, producer), sequences in sorted(folded.acked.items()):
        parameters = (
            Int8(interval),
            Int4(subscription),
            Int8(producer),
            [Int8(number) for number in sorted(sequences)],
        )
        yield statements.FOLD_ACKS, parameters
    rows = [
        (*channel, sequence, row[0].encode(), row[1], row[2])
        for channel, produced in sorted(folded.productions.items())
        for sequence, row in produced.items()
    ]
    if rows:
        yield statements.FOLD_PRODUCTIONS, (interval, *_columns(rows))


def _ids(interval: int, folded: Folded) -> Iterator[Step]:
    frontiers = {channel: frontier for channel, frontier in folded.frontiers.items() if frontier}
    if frontiers:
        columns = _columns([(*channel, frontier) for channel, frontier in sorted(frontiers.items())])
        yield statements.FOLD_FRONTIERS, (interval, *columns)
        yield statements.COLLECT_IDS, (*columns, interval)
    segments = _segments(folded.new_ids())
    if segments:
        yield statements.FOLD_IDS, (interval, *_columns(segments))


def _segments(ids: Mapping[Channel, list[int]]) -> list[tuple[Any, ...]]:
    return [(*channel, sequences[0], sequences[-1], pack_ids(sequences)) for channel, sequences in sorted(ids.items())]


def _quarantine(computation: int, folded: Folded) -> Iterator[Step]:
    cleared = [key.encode() for key, fifo in sorted(folded.quarantine.items()) if fifo.cleared]
    if cleared:
        yield statements.CLEAR_QUARANTINE, (computation, cleared)
        yield statements.CLEAR_REDRIVES, (computation, cleared)
    for key, fifo in sorted(folded.quarantine.items()):
        for e in fifo.appended:
            row = (key.encode(), e.subscription, e.producer, e.sequence, e.value, e.timestamp)
            yield statements.APPEND_QUARANTINE, (computation, *row, e.tag.encode(), e.kind, e.error.encode())
        if fifo.dropped:
            count = {"computation": computation, "key": key.encode(), "count": fifo.dropped}
            yield statements.DROP_QUARANTINE, count


def _columns(rows: list[tuple[Any, ...]]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]
