"""Rows from a source partition to keyed columns: encoding and key extraction at the injector (§5.2).

Lives here: the blocking read of one batch.  Rows that cannot be encoded or keyed are rejected with a reason, counted,
never lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millwheel import limits
from millwheel.api.context import Output, check_key
from millwheel.core.events import RowsRead
from millwheel.errors import LimitError, TimestampError
from millwheel.model import MAX_TIME, MIN_TIME, format_time
from millwheel.ports import Batch, SourcePartition
from millwheel.work import Columns

Reject = Callable[[str, int, str, Any], None]
"""(partition, raw row, reason, value)."""


def read_rows(partition: SourcePartition, output: Output, limit: int, reject: Reject) -> RowsRead:
    """Read at most `limit` rows and key them for every subscription."""
    batch = partition.read(limit)
    if batch is None:
        return RowsRead({}, 0, 0, b"", partition.watermark(), partition.finished(), False)
    columns, refused = _key_all(partition.name, batch, output, reject)
    return RowsRead(
        columns,
        len(batch.rows),
        batch.next_position,
        batch.state,
        partition.watermark(),
        partition.finished(),
        True,
        batch.rejected + refused,
    )


def _key_all(
    partition: str, batch: Batch, output: Output, reject: Reject
) -> tuple[dict[int, tuple[list[int], Columns]], int]:
    """Columns per subscription, and how many rows were rejected."""
    columns: dict[int, tuple[list[int], Columns]] = {sub: ([], Columns([], [], [])) for sub, _ in output.routes}
    encode = output.encode
    refused = 0
    for row, value, timestamp in zip(batch.rows, batch.values, batch.timestamps, strict=True):
        try:
            data = encode(value)
            keyed = [(sub, key) for sub, extract in output.routes if (key := extract(value)) is not None]
            for _, key in keyed:
                if type(key) is not str or len(key) > 256 or not key.isascii():
                    check_key(key, partition)
            if len(data) > limits.VALUE_LIMIT_BYTES:
                raise LimitError(f"value of {len(data)} bytes; limit {limits.VALUE_LIMIT_BYTES}")
            if not MIN_TIME < timestamp < MAX_TIME:
                raise TimestampError(f"event time {format_time(timestamp)} is out of range")
        except Exception as error:
            reject(partition, row, f"{type(error).__name__}: {error}", value)
            refused += 1
            continue
        for sub, key in keyed:
            rows, target = columns[sub]
            rows.append(row)
            target.keys.append(key)
            target.values.append(data)
            target.timestamps.append(timestamp)
    return columns, refused
