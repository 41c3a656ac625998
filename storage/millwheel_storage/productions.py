"""Packing of ids and productions: what recovery reads back.

Lives here: the delivered-id segment format, and rows of the production table as bundles.  Never here: I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from typing import Final

import msgspec

from millwheel.bundles import Bundle
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId

ProductionRow = tuple[SubscriptionId, ProducerId, SequenceNumber, str, bytes, int]
"""(subscription, producer, sequence, key, value, timestamp), the sort order being the first three."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[SequenceNumber]).decode


def pack_ids(sequences: list[SequenceNumber]) -> bytes:
    """Ascending sequences as one number and then differences: a byte an id while the gaps stay below 128.

    >>> unpack_ids(pack_ids([1000, 1001, 1007]))
    [1000, 1001, 1007]
    """
    return _encode([sequences[0], *(high - low for low, high in pairwise(sequences))])


def unpack_ids(packed: bytes) -> list[SequenceNumber]:
    """What `pack_ids` packed."""
    return list(accumulate(_decode(packed)))


NOBODY: Final = IntervalId(0)
"""Stands for the sender and the receiver of productions until their owner routes them."""


def bundles(rows: Iterable[ProductionRow], limit: int) -> list[Bundle]:
    """Rows in id order as bundles of at most `limit` records, each of one (subscription, producer)."""
    made: list[Bundle] = []
    for (subscription, producer), group in groupby(rows, key=itemgetter(0, 1)):
        while part := [*islice(group, limit)]:
            made.append(_bundle(subscription, producer, part))
    return made


def _bundle(subscription: SubscriptionId, producer: ProducerId, rows: list[ProductionRow]) -> Bundle:
    sequences, keys = [row[2] for row in rows], [row[3] for row in rows]
    values, timestamps = [row[4] for row in rows], [row[5] for row in rows]
    return Bundle(subscription, NOBODY, 0, NOBODY, producer, SequenceNumber(0), sequences, keys, values, timestamps)
