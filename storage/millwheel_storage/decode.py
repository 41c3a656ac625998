"""Rows of Postgres as the values of `millwheel.bundles`: turned once, here.  Never here: SQL, I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Bundle,
    Checkpoint,
    Ids,
    KeyRows,
    QuarantineEntry,
    TimerWrites,
    decode_checkpoint,
)
from millwheel.errors import IncompatibleStore
from millwheel.limits import WORK_LIMIT_RECORDS
from millwheel_storage.fold import Channel
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


def ids(rows: Rows) -> list[Ids]:
    frontiers: dict[Channel, int] = {}
    sequences: dict[Channel, set[int]] = {}
    for subscription, producer, frontier, packed in rows:
        channel = (subscription, producer)
        frontiers[channel] = max(frontier, frontiers.get(channel, 0))
        sequences.setdefault(channel, set()).update([] if packed is None else unpack_ids(packed))
    return [
        Ids(*channel, frontiers[channel], sorted(s for s in sequences[channel] if s >= frontiers[channel]))
        for channel in sorted(frontiers)
    ]


def productions(rows: Rows) -> list[Bundle]:
    decoded = ((*head, key.decode(), value, time) for *head, key, value, time in rows)
    return bundles(decoded, WORK_LIMIT_RECORDS)


def timers(rows: Rows) -> TimerWrites:
    return TimerWrites(
        keys=[key.decode() for key, _, _, _ in rows],
        tags=[tag.decode() for _, _, tag, _ in rows],
        kinds=[kind for _, kind, _, _ in rows],
        timestamps=[time for _, _, _, time in rows],
    )


def key_rows(rows: Rows) -> list[KeyRows]:
    found: dict[bytes, dict[tuple[str, str], bytes]] = {}
    for key, cell, entry, value in rows:
        found.setdefault(key, {})[cell, entry.decode()] = value
    return [KeyRows(key.decode(), found[key]) for key in sorted(found)]


def quarantine_entry(row: tuple[Any, ...]) -> QuarantineEntry:
    """A row of `statements.READ_QUARANTINE` as the value that was checkpointed."""
    key, subscription, producer, sequence, value, timestamp, tag, kind, error = row
    return QuarantineEntry(
        key.decode(), subscription, producer, sequence, value, timestamp, tag.decode(), kind, error.decode()
    )
