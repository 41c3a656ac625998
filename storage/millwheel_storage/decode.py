"""Rows of Postgres as the values of `millwheel.bundles`: turned once, here.  Never here: SQL, I/O."""

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


def found_ids(rows: Rows, asked: Sequence[int]) -> set[int]:
    """Which of `asked` are in the segments of `rows`, and not below the frontier that comes with each."""
    wanted = set(asked)
    found = ((wanted.intersection(unpack_ids(packed)), frontier) for packed, frontier in rows)
    return {sequence for sequences, frontier in found for sequence in sequences if sequence >= frontier}


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
