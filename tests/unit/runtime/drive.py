"""Pipelines and sources for tests of whole runs, and the driving of a run that a test stops or cancels.

The workload checks itself: every word carries its place, so that state says which record was applied how often, and
in which order; one extra and one missing record cannot cancel out.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from millwheel import (
    SECOND,
    Checkpoints,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    ValueCell,
)
from millwheel import subscribe as subscribe
from millwheel.host.progress import Progress
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import Batch, Source, SourcePartition, Store
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import wall_clock_us
from millwheel_injectors import IterableSource

VOCABULARY = ("to", "be", "or", "not", "question", "whether", "nobler", "mind", "suffer", "slings", "arrows", "sea")


class Word(msgspec.Struct, frozen=True):
    """A word of a line and its place in the text."""

    text: str
    place: int
    line: str


class Line(msgspec.Struct, frozen=True):
    """A line: which one it is, and its words with their places."""

    name: str
    words: list[tuple[str, int]]


lines = Stream("lines", MsgpackCoder(Line))
words = Stream("words", MsgpackCoder(Word))


class Split(Computation[Line]):
    """Lines to words, per line name."""

    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Line]) -> None:
        self.count.set(self.count.get() + 1)
        for text, place in record.value.words:
            context.produce(words, Word(text, place, record.value.name))


class Count(Computation[Word]):
    """Counts words, and remembers how often each place was seen and whether a line's places ever went back."""

    count = ValueCell(JsonCoder(int), default=0)
    places = MapCell(JsonCoder(int))
    newest = MapCell(JsonCoder(int))
    disorder = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[Word]) -> None:
        word = record.value
        entry = str(word.place)
        self.count.set(self.count.get() + 1)
        self.places.set(entry, (self.places.get(entry) or 0) + 1)
        if word.place < (self.newest.get(word.line) or 0):
            self.disorder.set(self.disorder.get() + 1)
        self.newest.set(word.line, word.place)


Cells = dict[str, dict[str, Any]]
"""Key to {cell, or cell[entry]: value}."""


def text_lines(count: int, seed: int, names: int = 7) -> list[tuple[Line, int]]:
    """`count` rows of (line, event time us), one second apart."""
    dice = random.Random(seed)
    rows, place = [], 0
    for number in range(count):
        found = []
        for _ in range(dice.randrange(1, 6)):
            found.append((dice.choice(VOCABULARY), place))
            place += 1
        rows.append((Line(f"line {dice.randrange(names)}", found), number * SECOND))
    return rows


def expected_counts(rows: Iterable[tuple[Line, int]]) -> tuple[Cells, Cells]:
    """What `Split` and `Count` hold after `rows`, each applied exactly once and in order."""
    by_line: Cells = {}
    by_word: Cells = {}
    for line, _ in rows:
        cells = by_line.setdefault(line.name, {"count": 0})
        cells["count"] += 1
        for text, place in line.words:
            cells = by_word.setdefault(text, {"count": 0})
            cells["count"] += 1
            cells[f"places[{place}]"] = 1
            cells[f"newest[{line.name}]"] = place
    return by_line, by_word


def word_count(
    name: str,
    rows: Sequence[tuple[Line, int]],
    split: Mapping[str, Any] | None = None,
    count: Mapping[str, Any] | None = None,
    durability: Checkpoints | Snapshots | None = None,
) -> Pipeline:
    """Lines are split (computation `Split`), words counted (`Count`); settings of each by keyword."""
    pipeline = Pipeline(name, durability=durability)
    pipeline.inject(IterableSource("text", rows), into=lines)
    pipeline.add(Split, [subscribe(lines, lambda line: line.name)], [words], **(split or {}))
    pipeline.add(Count, [subscribe(words, lambda word: word.text)], **(count or {}))
    return pipeline


class Tap(Source):
    """A source that a test feeds by hand: it stays open until `close`, and promises what `promise` says."""

    def __init__(self, name: str = "tap", rows: Iterable[tuple[Any, int]] = (), promise: int = MIN_TIME) -> None:
        self.name = name
        self.rows = list(rows)
        self.promise = promise
        self.closed = False

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        return [] if "tap" in set(known) else [TapPartition(self)]

    def complete(self) -> bool:
        return True

    def pending_watermark(self) -> int:
        return MAX_TIME


class TapPartition:
    """The one partition of a `Tap`."""

    name = "tap"

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._row = 0

    def fingerprint(self) -> bytes:
        return b"{}"

    def resume(self, position: int, state: bytes) -> None:
        self._row = position

    def read(self, limit: int) -> Batch | None:
        rows = self._tap.rows[self._row : self._row + limit]
        if not rows:
            return None
        first, self._row = self._row, self._row + len(rows)
        return Batch(list(range(first, self._row)), [v for v, _ in rows], [t for _, t in rows], self._row, b"{}")

    def finished(self) -> bool:
        return self._tap.closed and self._row == len(self._tap.rows)

    def watermark(self) -> int:
        if self.finished():
            return MAX_TIME
        # The promise is of the newest row, which may have come before this partition was opened again.
        return min(self._tap.promise, *(at for _, at in self._tap.rows[self._row :]), MAX_TIME)

    def close(self) -> None:
        """Nothing to release."""


Condition = Callable[[EmbeddedRun], bool]


def run_to_end(pipeline: Pipeline, store: Store) -> Progress:
    """Run until the sources are finished."""
    return asyncio.run(_to_end(pipeline, store))


async def _to_end(pipeline: Pipeline, store: Store) -> Progress:
    try:
        progress = await EmbeddedRun(pipeline.graph(), store, pipeline.tables).run()
    finally:
        await store.close()
    assert progress.finished
    return progress


def run_until(
    pipeline: Pipeline, store: Store, condition: Condition, clock: Callable[[], int] | None = None
) -> Progress:
    """Run until `condition`, looked at every few milliseconds, holds; then stop in an orderly way."""
    return asyncio.run(until(pipeline, store, condition, clock))


async def until(
    pipeline: Pipeline, store: Store, condition: Condition, clock: Callable[[], int] | None = None
) -> Progress:
    """As `run_until`, for a test that has an event loop; a run that fails raises here."""
    embedded = EmbeddedRun(pipeline.graph(), store, pipeline.tables, clock or wall_clock_us)
    task = asyncio.ensure_future(embedded.run())
    try:
        async with asyncio.timeout(180):
            while not task.done() and not condition(embedded):
                await asyncio.sleep(0.005)
        embedded.stop()
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def run_cancelled(pipeline: Pipeline, store: Store, after_s: float) -> Progress | None:
    """Cancel the run after `after_s` seconds, wherever it is; its progress if it came to its end before."""
    progress = asyncio.run(_cancelled(pipeline, store, after_s))
    gc.collect()  # here, where a test can say that it does not mind what was left open
    return progress


async def _cancelled(pipeline: Pipeline, store: Store, after_s: float) -> Progress | None:
    embedded = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(after_s):
                return await embedded.run()
        return None
    finally:
        await store.close()
