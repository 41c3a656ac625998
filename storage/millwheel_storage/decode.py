"""Rows of Postgres as values of `millwheel.bundles`.  This is the only place that converts them.  Never here: SQL, I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Bundle,
    Checkpoint,
    KeyRows,
    QuarantineEntry,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.errors import IncompatibleStore
from millwheel.ids import SequenceNumber
from millwheel.limits import WORK_LIMIT_RECORDS
from millwheel_storage.productions import bundles, unpack_ids

Rows = list[tuple[Any, ...]]


def decode_image(payload: bytes) -> Checkpoint:
    """A log row's checkpoint; `IncompatibleStore` when another version of millwheel wrote it."""
    try:
        image = decode_checkpoint(payload)
    except msgspec.DecodeError as error:
        raise IncompatibleStore(f"a checkpoint in the log cannot be decoded: {error}") from error
    if image.format != CHECKPOINT_FORMAT:
        raise IncompatibleStore(f"a checkpoint in the log has format {image.format}, not {CHECKPOINT_FORMAT}")
    return image


def found_ids(rows: Rows, asked: Sequence[SequenceNumber]) -> set[SequenceNumber]:
    """Which of `asked` are in the segments of `rows`, and not below the frontier that comes with each."""
    wanted = set(asked)
    found = ((wanted.intersection(unpack_ids(packed)), frontier) for packed, frontier in rows)
    return {sequence for sequences, frontier in found for sequence in sequences if sequence >= frontier}


def productions(rows: Rows) -> list[Bundle]:
    """Productions that are not acked, as bundles again."""
    decoded = ((*head, key.decode(), value, time) for *head, key, value, time in rows)
    return bundles(decoded, WORK_LIMIT_RECORDS)


TimerRow = tuple[int, str, str, str]
"""(timestamp, key, tag, kind): in order of coming due within a kind."""


def timer_rows(rows: Rows) -> list[TimerRow]:
    """Stored timers, in the order of the columns of `TimerRow`."""
    return [(time, key.decode(), tag.decode(), kind) for key, kind, tag, time in rows]


def timer_writes(rows: list[TimerRow]) -> TimerWrites:
    """Timers as columns, as a checkpoint has them."""
    return TimerWrites(
        keys=[key for _, key, _, _ in rows],
        tags=[tag for _, _, tag, _ in rows],
        kinds=[kind for _, _, _, kind in rows],
        timestamps=[time for time, _, _, _ in rows],
    )


def key_rows(cells: Rows, timers: Rows, limit: int) -> list[KeyRows]:
    """The rows of each key.  A key with more than `limit` cells was not read to the end."""
    found: dict[bytes, tuple[dict[tuple[str, str], bytes], dict[tuple[str, str], int]]] = {}
    for key, cell, entry, value in cells:
        row = found.get(key) or found.setdefault(key, ({}, {}))
        row[0][cell, entry.decode()] = value
    for key, kind, tag, timestamp in timers:
        row = found.get(key) or found.setdefault(key, ({}, {}))
        row[1][kind, tag.decode()] = timestamp
    return [KeyRows(key.decode(), *found[key], more=len(found[key][0]) > limit) for key in sorted(found)]


def quarantine_entry(row: tuple[Any, ...]) -> QuarantineEntry:
    """A row of `statements.READ_QUARANTINE` as the value that was checkpointed."""
    key, subscription, producer, sequence, value, timestamp, tag, kind, error = row
    return QuarantineEntry(
        key.decode(), subscription, producer, sequence, value, timestamp, tag.decode(), kind, error.decode()
    )
