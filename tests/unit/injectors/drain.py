"""Reading a source as the runtime does, for the injectors' tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from millwheel.ports import Batch, Source, SourcePartition, SourcePosition
from millwheel_injectors.rejects import RejectLine


class Clock:
    """A wall clock that stands until it is set."""

    def __init__(self, now: int) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


def read_all(partition: SourcePartition, limit: int = 1000) -> list[Batch]:
    """Every batch that can be read now."""
    batches = []
    while (batch := partition.read(limit)) is not None:
        batches.append(batch)
    return batches


def rows_of(batches: Iterable[Batch]) -> list[tuple[int, Any, int]]:
    """(raw row, value, event time) of all batches."""
    return [row for b in batches for row in zip(b.rows, b.values, b.timestamps, strict=True)]


def values_of(source: Source) -> dict[str, list[Any]]:
    """All values by partition name, in discovery order."""
    return {p.name: [v for b in read_all(p) for v in b.values] for p in source.discover(())}


def only(source: Source) -> SourcePartition:
    """The one partition of a source."""
    (partition,) = source.discover(())
    return partition


def stored(partition: SourcePartition, position: int, state: bytes, finished: bool = False) -> SourcePosition:
    """What the store would tell of a partition after a restart."""
    return SourcePosition(partition.name, 1, 1, position, finished, state)


def reject_lines(path: Path) -> list[RejectLine]:
    """The content of a reject file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=RejectLine) for line in path.read_bytes().splitlines()]
