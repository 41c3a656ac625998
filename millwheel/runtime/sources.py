"""Rows from a source partition to keyed columns: encoding and key extraction at the injector (§5.2).

Lives here: the blocking read of one batch.  Rows that cannot be encoded or keyed are rejected
with a reason, counted, never lost in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, cast

from millwheel import limits
from millwheel.api.producer import Output, check_key
from millwheel.core.interval.events import RowsRead
from millwheel.errors import LimitError, SourceError, TimestampError
from millwheel.ids import SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME, MIN_TIME, format_time, to_us, whole_time
from millwheel.ports import Batch, PacedPartition, RecordId, SourcePartition
from millwheel.work import Columns

Reject = Callable[[str, int, str, Any], None]
"""(partition, raw row, reason, value)."""


def read_rows(
    partition: SourcePartition,
    output: Output,
    limit: int,
    reject: Reject,
    record_id: RecordId | None = None,
    upto: int | None = None,
) -> RowsRead:
    """Read at most `limit` rows and key them for every subscription.

    `upto` is for a paced partition: read only rows that are due up to this event time, us.
    """
    ahead = None
    if upto is None:
        batch = partition.read(limit)
    else:
        batch, ahead = cast(PacedPartition, partition).read_due(limit, upto)
    watermark = whole_time(partition.watermark(), f"watermark of {partition.name!r}")
    if batch is None:
        return RowsRead({}, 0, 0, b"", watermark, partition.finished(), False, ahead=ahead)
    columns, refused = _key_all(partition.name, batch, output, reject, record_id)
    return RowsRead(
        columns,
        len(batch.rows),
        batch.next_position,
        batch.state,
        watermark,
        partition.finished(),
        True,
        batch.rejected + refused,
        ahead,
        full=len(batch.rows) + batch.rejected >= limit,
    )


Keyed = dict[SubscriptionId, tuple[list[SequenceNumber], Columns]]
"""By subscription: raw rows, and their columns."""


def _key_all(
    partition: str, batch: Batch, output: Output, reject: Reject, record_id: RecordId | None
) -> tuple[Keyed, int]:
    """Columns per subscription, and how many rows were rejected."""
    if not len(batch.rows) == len(batch.values) == len(batch.timestamps) == len(batch.outside or batch.rows):
        raise SourceError(f"a batch of {partition!r} has columns of different lengths")
    try:
        return _key_whole(batch, output, record_id), 0
    except Exception:
        return _key_one_by_one(partition, batch, output, reject, record_id)  # some row is at fault: find out which


def _key_whole(batch: Batch, output: Output, record_id: RecordId | None) -> Keyed:
    """The batch column by column; raises if any row of it must be rejected."""
    rows, values, timestamps = sequence_numbers(batch.rows), batch.values, list(batch.timestamps)
    if {*map(type, timestamps)} - {int}:
        timestamps = [to_us(timestamp) for timestamp in timestamps]
    encode = output.quick if {*map(type, values)} == {output.plain} else output.encode
    data = list(map(encode, values))
    if max(map(len, data), default=0) > limits.VALUE_LIMIT_BYTES:
        raise LimitError("a value is too long")
    if timestamps and not MIN_TIME < min(timestamps) <= max(timestamps) < MAX_TIME:
        raise TimestampError("an event time is out of range")
    outside: list[bytes] = []
    if record_id is not None:
        outside = outside_ids(list(batch.outside) if batch.outside else list(map(record_id, values)))
    keyed: Keyed = {}
    for sub, extract in output.routes:
        found = list(map(extract, values))
        keys = [key for key in found if key is not None]
        if {*map(type, keys)} - {str} or max(map(len, keys), default=0) > 256 or not "".join(keys).isascii():
            for key in keys:
                check_key(key)
        if len(keys) == len(found):
            keyed[sub] = (rows, Columns(keys, data, timestamps, outside))
        else:
            at = [i for i, key in enumerate(found) if key is not None]
            columns = Columns(
                keys, [data[i] for i in at], [timestamps[i] for i in at], [outside[i] for i in at] if outside else []
            )
            keyed[sub] = ([rows[i] for i in at], columns)
    return keyed


def outside_ids(ids: list[str | bytes]) -> list[bytes]:
    """Ids of outside clients as they are compared and kept: a text as its UTF-8, a long id as 128 bits of BLAKE2b.

    Two different ids stay different, except for a collision of 128 bits: an id that is kept whole never begins as a digest
    does.  Raises `TypeError` for what is neither text nor bytes, and `LimitError` for an empty or an oversized id.

    >>> outside_ids(["a", b"b"])
    [b'a', b'b']
    """
    if {*map(type, ids)} - {str, bytes}:
        wrong = next(type(id_).__name__ for id_ in ids if type(id_) not in (str, bytes))
        raise TypeError(f"record_id gave {wrong}, not str or bytes")
    made = [id_.encode() if isinstance(id_, str) else id_ for id_ in ids]
    if b"" in made:
        raise LimitError("record_id gave an empty id")
    longest = max(map(len, made), default=0)
    if longest > limits.OUTSIDE_ID_LIMIT_BYTES:
        raise LimitError(f"record_id gave an id of {longest} bytes; limit {limits.OUTSIDE_ID_LIMIT_BYTES}")
    if longest > limits.OUTSIDE_WHOLE_BYTES or b"\0" in {id_[:1] for id_ in made}:
        return [id_ if _is_whole(id_) else b"\0" + blake2b(id_, digest_size=16).digest() for id_ in made]
    return made


def _is_whole(id_: bytes) -> bool:
    return len(id_) <= limits.OUTSIDE_WHOLE_BYTES and id_[0] != 0


def _key_one_by_one(
    partition: str, batch: Batch, output: Output, reject: Reject, record_id: RecordId | None
) -> tuple[Keyed, int]:
    columns: Keyed = {sub: ([], Columns([], [], [])) for sub, _ in output.routes}
    encode = output.encode
    refused = 0
    ids: Sequence[str | bytes | None] = batch.outside or [None] * len(batch.rows)
    rows_of_all = zip(sequence_numbers(batch.rows), batch.values, batch.timestamps, ids, strict=True)
    for row, value, timestamp, id_ in rows_of_all:
        try:
            data = encode(value)
            keyed = [(sub, key) for sub, extract in output.routes if (key := extract(value)) is not None]
            for _, key in keyed:
                if type(key) is not str or len(key) > 256 or not key.isascii():
                    check_key(key)
            if len(data) > limits.VALUE_LIMIT_BYTES:
                raise LimitError(f"value of {len(data)} bytes; limit {limits.VALUE_LIMIT_BYTES}")
            timestamp = to_us(timestamp)
            if not MIN_TIME < timestamp < MAX_TIME:
                raise TimestampError(f"event time {format_time(timestamp)} is out of range")
            outside = outside_ids([record_id(value) if id_ is None else id_]) if record_id is not None else []
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
            target.outside.extend(outside)
    return columns, refused
