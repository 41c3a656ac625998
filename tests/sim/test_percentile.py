"""A source of which a share of the partitions may be left behind: it goes on, nothing is lost, and what is behind is late."""

from __future__ import annotations

import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Faults, Planned, Seeded
from millwheel.testing.kit.scripted import Script, ScriptedSource
from millwheel.testing.kit.view import Results
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore
from tests.effort import share

START_US = 1_000 * SECOND
ROWS = 20
PARTS = 4
FAULTS = Faults(crash=0.01, zombie=0.002, refused=0.02, unknown=0.03, duplicate=0.05, slow=0.01, cut=0.002)

rows = Stream("rows", JsonCoder(int))


class Count(Computation[int]):
    """Rows, and how many were late."""

    seen = ValueCell(JsonCoder(int), default=0)
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.set(self.seen.get() + 1)
        self.late.set(self.late.get() + record.late)


def counted(seed: int, percentile: float | None, faults: Faults | None) -> dict[str, int]:
    """One of four partitions comes when the others are almost read: a row of each of them is left, so that they are open."""
    times = [(n, n * SECOND) for n in range(ROWS)]
    early = [START_US] * (ROWS - 1) + [START_US + 8 * SECOND]
    scripts = [Script(f"p{n}", times, [*early]) for n in range(1, PARTS)]
    scripts.append(Script("p0", times, [START_US + 6 * SECOND] * ROWS))
    pipeline, kernel = Pipeline("straggling"), Kernel(seed, START_US)
    pipeline.inject(ScriptedSource("rows", scripts), into=rows, percentile=percentile)
    pipeline.add(Count, [subscribe(rows, key=lambda _: "all")])
    graph = pipeline.graph()
    store = WatchedStore(MemoryStore(), graph, kernel)
    nemesis = Planned() if faults is None else Seeded(faults, kernel.rng)
    Simulation(
        graph=graph, tables=pipeline.tables, kernel=kernel, nemesis=nemesis, store=store, faults_until_us=10 * SECOND
    ).run()
    found: dict[str, int] = Results(graph, store.inner).state("Count", "all")
    return found


def test_one_of_four_partitions_does_not_hold_the_others_and_its_rows_are_late() -> None:
    assert counted(0, None, None).get("late", 0) == 0
    found = counted(0, 0.75, None)
    assert found["seen"] == PARTS * ROWS
    assert found["late"] >= ROWS // 2


def test_nothing_is_lost_when_processes_die() -> None:
    for seed in share(range(15), 3):
        assert counted(seed, 0.75, FAULTS)["seen"] == PARTS * ROWS


@pytest.mark.parametrize("percentile", [0.9, 0.99])
def test_with_too_few_partitions_all_are_waited_for(percentile: float) -> None:
    found = counted(0, percentile, None)
    assert (found["seen"], found.get("late", 0)) == (PARTS * ROWS, 0)
