"""Reading a source as the runtime does, for the injectors' tests."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millwheel.ids import IntervalId, ProducerId
from millwheel.ports import Batch, PositionWrite, Source, SourcePartition, SourcePosition
from millwheel.search import BlockingCall, Find, MoreSigns, Search, Step, Unknown
from millwheel.testing.world.calls import run
from millwheel_injectors.rejects import RejectLine
from millwheel_storage.memory import MemoryStore

SEES_OPEN_FILES = pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="looks at open files as Linux shows them"
)


def opened(place: Path) -> int:
    """How often this process has a file open."""
    return sum(os.path.realpath(entry) == str(place) for entry in Path("/proc/self/fd").iterdir())


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


class Registry:
    """A store that knows of one source's finished partitions, and answers its searches."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._store = MemoryStore()
        self._known: set[str] = set()
        self.steps: list[str] = []
        """Kinds of the steps of all searches."""

    def restart(self, source: Source) -> None:
        """Another process, with a source that knows nothing, goes on."""
        self._source, self._known = source, set()

    def begin(self, partition: str, state: bytes) -> None:
        """A partition was opened, and not read to its end."""
        run(self._store.open_source(self._source.name, {partition: state}))

    def finish(self, partition: str, position: int, state: bytes, signed: bool = True) -> None:
        """A partition was read to its end, by a version that gave it signs or not."""
        (opened,) = run(self._store.open_source(self._source.name, {partition: state}))
        sequencer = run(self._store.acquire([opened.interval]))[opened.interval]
        end = SourcePosition(partition, opened.interval, opened.producer, position, True, state)
        signs = self._source.signs(end) if signed else []
        run(self._store.advance([PositionWrite(opened.interval, sequencer, position, True, state, signs)]))

    def search(self, source: Source | None = None) -> list[SourcePartition]:
        """What one search of the source finds, which is then open."""
        found = self.drive((source or self._source).search(self._known))
        self._known.update(partition.name for partition in found)
        return found

    def drive(self, search: Search, answer: Any = None) -> list[SourcePartition]:
        """The rest of a search, whose last step has this answer."""
        while True:
            try:
                step = search.send(answer)
            except StopIteration as end:
                found: list[SourcePartition] = end.value
                return found
            self.steps.append(type(step).__name__)
            answer = self._answer(step)

    def _answer(self, step: Step) -> Any:
        name = self._source.name
        match step:
            case BlockingCall(call):
                return call()
            case Unknown(signs):
                return run(self._store.unknown_signs(name, signs))
            case Find(signs, names):
                return run(self._store.find_partitions(name, signs, names))
            case MoreSigns(noted):
                return run(self._store.add_signs(name, noted))
        return None


def stored(partition: SourcePartition, position: int, state: bytes, finished: bool = False) -> SourcePosition:
    """What the store would tell of a partition after a restart."""
    return SourcePosition(partition.name, IntervalId(1), ProducerId(1), position, finished, state)


def reject_lines(path: Path) -> list[RejectLine]:
    """The content of a reject file."""
    if not path.exists():
        return []
    return [msgspec.json.decode(line, type=RejectLine) for line in path.read_bytes().splitlines()]
