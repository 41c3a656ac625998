"""What a run says of itself after it went back to a snapshot: what it had counted before still counts, and counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
        self.back = 0
        pipeline = Pipeline("p", durability=Snapshots(every_ms=10))
        pipeline.inject(IterableSource("early", [(n, n) for n in range(EARLY)]), into=numbers)
        pipeline.inject(self.tap, into=numbers)
        pipeline.add(Write, [subscribe(numbers, key_of)])
        pipeline.sink(ledger)
        self.run = EmbeddedRun(
            pipeline.graph(), self.store, pipeline.tables, tolerance=Tolerance(rejected=rejected)
        )  # fmt: skip

    def _constraint(self, table: str, row: Mapping[str, Any]) -> str | None:
        if row["number"] != 1_000:
            return None
        self.back += 1
        return "no"

    async def __call__(self) -> None:
        running = asyncio.ensure_future(self.run.run())

        async def until(holds: Callable[[], bool]) -> None:
            while not holds():
                await asyncio.sleep(0.002)
                assert not running.done()

        await until(self._early_is_over)
        self.tap.rows += [(number, 100) for number in range(EARLY, EARLY + LATE)]
        await until(lambda: any(source.position == LATE for source in self.store.sources.values()))
        self.tap.rows += [(number, 100) for number in (1_000, UNKEYED, *range(2_000, 2_000 + LATER))]
        self.tap.closed = True
        await running

    def _early_is_over(self) -> bool:
        sources = [source for source in self.store.sources.values() if source.finished]
        return len(sources) == 1 and len(self.run.worker.actors.partitions()) == 1


def test_rows_are_counted_once_and_those_of_partitions_that_had_ended_stay() -> None:
    going = GoingBack()
    asyncio.run(going())
    progress = going.run.progress()
    assert going.back > 0
    assert progress.finished
    assert progress.quarantined == 1
    assert progress.injected == EARLY + LATE + 2 + LATER
    assert progress.rejected == WRONG + 1
    by_source = {source: sum(kinds.values()) for source, kinds in progress.rejections.items()}
    assert by_source == {"early": WRONG, going.tap.name: 1}


def test_rows_that_were_rejected_before_count_for_what_is_allowed() -> None:
    going = GoingBack(rejected=WRONG - 1)
    going.run.worker._tolerance = Tolerance()  # it is only looked at after the going back
    asyncio.run(going())
    assert going.run.progress().stopped == "3 rows are rejected, 2 are allowed"
