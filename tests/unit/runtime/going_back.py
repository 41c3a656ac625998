"""A run that goes back to a snapshot, because the database refuses a row that comes late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Snapshots, Stream, Table
from millwheel.host.over import Tolerance
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Tap, subscribe

numbers = Stream("numbers", JsonCoder(int))
ledger = Table("ledger", {"number": "bigint"}, ("number",))

EARLY, LATE, LATER, WRONG = 40, 30, 20, 3
"""Rows of a source that ends before the run goes back, of one that does not, before and after that, and rows of the first
that have no key."""

UNKEYED = -1
"""A row without a key that is read before and after the run goes back."""


def key_of(number: int) -> str:
    if number < WRONG:
        raise ValueError("no key")
    return f"k{number % 7}"


class Write(Computation[int]):
    """Writes a row for each number."""

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        context.upsert(ledger, {"number": record.value})


class GoingBack:
    """The database refuses a row that comes after the end of the first source is declared."""

    def __init__(self, rejected: int | None = None) -> None:
        self.tap = Tap(promise=0)
        self.store = MemoryStore()
        self.store.constraint = self._constraint
        self.back = self.fed = 0
        pipeline = Pipeline("p", durability=Snapshots(every_ms=10))
        pipeline.inject(IterableSource("early", [(n, n) for n in range(EARLY)]), into=numbers)
        pipeline.inject(self.tap, into=numbers)
        pipeline.add(Write, [subscribe(numbers, key_of)])
        pipeline.sink(ledger)
        self.run = EmbeddedRun(
            pipeline.graph(), self.store, pipeline.tables, tolerance=Tolerance(rejected=rejected)
        )  # fmt: skip
        self._first = self.run.worker

    def _constraint(self, table: str, row: Mapping[str, Any]) -> str | None:
        if row["number"] != 1_000:
            return None
        self.back += 1
        return "no"

    def feed(self) -> bool:
        """Give the rows whose turn it is; call it again and again.  Whether the run has gone back."""
        if not self.fed and self._early_is_over():
            self.tap.rows += [(number, 100) for number in range(EARLY, EARLY + LATE)]
            self.fed = 1
        elif self.fed == 1 and any(source.position == LATE for source in self.store.sources.values()):
            self.tap.rows += [(number, 100) for number in (1_000, UNKEYED, *range(2_000, 2_000 + LATER))]
            self.tap.closed = True
            self.fed = 2
        return self.run.worker is not self._first

    async def __call__(self) -> None:
        running = asyncio.ensure_future(self.run.run())
        while not self.feed():
            await asyncio.sleep(0.002)
            assert not running.done()
        await running

    def _early_is_over(self) -> bool:
        sources = [source for source in self.store.sources.values() if source.finished]
        return len(sources) == 1 and len(self.run.worker.actors.partitions()) == 1
