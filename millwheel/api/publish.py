"""A published stream: its last records in a table, for `millwheel tail` (docs/adr/0008).

Lives here: the computation behind `Pipeline.publish` and its table.  Invariant: positions are dense, in the order in
which the stream's records were committed; position p is in slot p mod keep until position p + keep replaces it.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from millwheel.api.computation import Computation
from millwheel.api.context import Context
from millwheel.api.state import ValueCell
from millwheel.api.stream import Stream
from millwheel.api.table import Table
from millwheel.coders import JsonCoder
from millwheel.errors import WiringError
from millwheel.model import Record
from millwheel.shape import PUBLISHED_TABLE

TABLE: Final = Table(
    PUBLISHED_TABLE,
    {"stream": "text", "slot": "bigint", "position": "bigint", "timestamp": "bigint", "value": "text"},
    ("stream", "slot"),
)
"""One table for all published streams of a pipeline.  `value` is base64 of the record's encoded value."""


class Publisher(Computation[bytes]):
    """Keeps the last `keep` records of a stream; runs under one key and sees values as the stream's coder left them."""

    count = ValueCell(JsonCoder(int), default=0)

    def __init__(self, stream: str, keep: int) -> None:
        self._stream = stream
        self._keep = keep

    def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
        """Give the record its position, the first one is 1, and its slot."""
        position = self.count.get() + 1
        self.count.set(position)
        row = {
            "stream": self._stream,
            "slot": position % self._keep,
            "position": position,
            "timestamp": record.timestamp,
            "value": base64.b64encode(record.value).decode("ascii"),
        }
        context.upsert(TABLE, row)


def check_keep(stream: Stream, keep: Any) -> None:
    """`keep` is a number of records."""
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise WiringError(f"publish({stream.name!r}, keep={keep!r}): keep is a number of records, at least 1")
