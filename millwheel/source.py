"""What an injector needs from a source of outside data (§5.2).  Protocols and plain values only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec


class Batch(msgspec.Struct, gc=False):
    """Rows read from one source partition.  Columns; `rows` are raw row numbers within the partition, ascending.

    `next_position` is the raw row number to continue from once all of these are acked, `state` what to store with it.
    """

    rows: list[int]
    values: list[Any]
    timestamps: list[int]
    next_position: int
    state: bytes
    rejected: int = 0


class SourcePartition(Protocol):
    """One readable unit of a source (a file).  Reading is blocking and may be run in a thread."""

    name: str
    """Stable identity across restarts, renames and rotation."""

    def fingerprint(self) -> bytes:
        """Opaque state of a partition that has not been read yet."""
        ...

    def resume(self, position: int, state: bytes) -> None:
        """Continue at raw row `position`; raises `SourceError` when the partition was rewritten."""
        ...

    def read(self, limit: int) -> Batch | None:
        """At most `limit` rows, or None when there is nothing now."""
        ...

    def finished(self) -> bool:
        """True when no row will ever come any more."""
        ...

    def watermark(self) -> int:
        """No row that `read` returns from now on is expected to have a smaller event time, us."""
        ...

    def close(self) -> None:
        """Release files."""
        ...


class Source(Protocol):
    """An injector's outside: discovers partitions (§5.2)."""

    name: str

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """Partitions that are there now, except those whose names are in `known`."""
        ...

    def complete(self) -> bool:
        """True when no new partition will ever appear."""
        ...

    def pending_watermark(self) -> int:
        """Bound on the event time of rows in partitions that are not discovered yet, us."""
        ...
