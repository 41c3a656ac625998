"""A source with a bound on how far it may run ahead keeps it, under faults, and never stops for good (§8.4)."""

from __future__ import annotations

import pytest

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    Pipeline,
    Record,
    Stream,
    Timer,
    ValueCell,
    limits,
    subscribe,
)
from millwheel.limits import SKEW_PATIENCE_US
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Batch, Source
from millwheel.testing.checks.shared import SharedWatchedStore
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Faults, Planned, Seeded
from millwheel.testing.kit.scripted import Script, ScriptedPartition, ScriptedSource
from millwheel.testing.kit.view import Results
from millwheel.testing.world.fleet import ClusterSimulation
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.simulator import Simulation
from millwheel_storage.memory import MemoryStore

START_US = 1_000 * SECOND
ROWS = 40
AHEAD_US = 5 * SECOND
FAULTS = Faults(crash=0.01, zombie=0.002, refused=0.02, unknown=0.03, duplicate=0.05, slow=0.01, cut=0.002)
CLUSTER_FAULTS = Faults(crash=0.002, refused=0.01, unknown=0.01, duplicate=0.02, slow=0.01, cut=0.002)

fast, slow = Stream("fast", JsonCoder(int)), Stream("slow", JsonCoder(int))


class Meet(Computation[int]):
    """Counts rows of both sides."""

    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.set(self.seen.get() + 1)


class Gather(Meet):
    """Holds the watermark at the first row, until a timer fires that is further away than the source may run ahead."""

    held = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.set(self.seen.get() + 1)
        if not self.held.get():
            self.held.set(1)
            context.hold(record.timestamp)
            context.set_timer("close", record.timestamp + 3 * AHEAD_US)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.held.set(0)
        context.release_hold()


def pipeline_of(computation: type[Meet], both: bool = True) -> Pipeline:
    """All rows of the fast side are there from the start; of the slow one a row comes every 100 ms."""
    times = [number * SECOND for number in range(ROWS)]
    quick = [Script(name, [(n, at) for n, at in enumerate(times)], [START_US] * ROWS) for name in ("f0", "f1")]
    late = Script("s0", [(n, at) for n, at in enumerate(times)], [START_US + n * SECOND // 10 for n in range(ROWS)])
    pipeline = Pipeline("skewed")
    pipeline.inject(ScriptedSource("fast", quick), into=fast, max_ahead=AHEAD_US, of=computation)
    inputs = [subscribe(fast, key=lambda _: "all")]
    if both:
        pipeline.inject(ScriptedSource("slow", [late]), into=slow)
        inputs.append(subscribe(slow, key=lambda _: "all"))
    pipeline.add(computation, inputs)
    return pipeline


class Reads:
    """What every read of the fast source found: how far the partition was ahead of the stored watermark."""

    def __init__(self) -> None:
        self.store: WatchedStore | None = None
        self.name = ""
        self.ahead_us: list[int] = []

    def note(self, partition: ScriptedPartition) -> None:
        assert self.store is not None
        promise = partition.watermark()
        if partition.name.startswith("f") and promise < MAX_TIME:
            self.ahead_us.append(promise - self.store.inner.watermark.get(self.name, MIN_TIME))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found = Reads()
    really = ScriptedPartition.read

    def read(partition: ScriptedPartition, limit: int) -> Batch | None:
        found.note(partition)
        return really(partition, limit)

    monkeypatch.setattr(ScriptedPartition, "read", read)
    return found


def embedded(reads: Reads, seed: int, faults: Faults | None, computation: type[Meet] = Meet, both: bool = True) -> int:
    """Run it in one process; how many rows it has counted."""
    pipeline, kernel = pipeline_of(computation, both), Kernel(seed, START_US)
    graph = pipeline.graph()
    store = reads.store = WatchedStore(MemoryStore(), graph, kernel)
    reads.name = computation.__name__
    nemesis = Planned() if faults is None else Seeded(faults, kernel.rng)
    Simulation(
        graph=graph, tables=pipeline.tables, kernel=kernel, nemesis=nemesis, store=store, faults_until_us=10 * SECOND
    ).run()
    found: int = Results(graph, store.inner).state(computation.__name__, "all")["seen"]
    return found


def on_cluster(reads: Reads, seed: int) -> int:
    """The same on two workers."""
    pipeline, kernel = pipeline_of(Meet), Kernel(seed, START_US)
    graph = pipeline.graph()
    store = SharedWatchedStore(MemoryStore(lambda: kernel.now), graph, kernel)
    reads.store, reads.name = store, "Meet"
    ClusterSimulation(
        graph=graph, tables=pipeline.tables, kernel=kernel, nemesis=Seeded(CLUSTER_FAULTS, kernel.rng), store=store,
        roles={"controller": 1, "worker": 2}, faults_until_us=10 * SECOND,
    ).run()  # fmt: skip
    found: int = Results(graph, store.inner).state("Meet", "all")["seen"]
    return found


def test_no_read_begins_beyond_the_bound_and_all_is_read_in_the_end(reads: Reads) -> None:
    assert embedded(reads, 0, None) == 3 * ROWS
    assert max(reads.ahead_us) <= AHEAD_US
    assert max(reads.ahead_us) > AHEAD_US // 2, "it runs ahead as far as it may"


def test_processes_that_die_and_take_over_keep_the_bound(reads: Reads) -> None:
    for seed in range(20):
        assert embedded(reads, seed, FAULTS) == 3 * ROWS
    assert max(reads.ahead_us) <= AHEAD_US


def test_workers_of_a_cluster_keep_the_bound(reads: Reads, monkeypatch: pytest.MonkeyPatch) -> None:
    # While an owner is dead, the watermark stands as behind a long hold, and a source may lose its patience.
    monkeypatch.setattr(limits, "SKEW_PATIENCE_US", 60 * SECOND)
    for seed in range(8):
        assert on_cluster(reads, seed) == 3 * ROWS
    assert max(reads.ahead_us) <= AHEAD_US


@pytest.mark.parametrize("both", [True, False])
def test_a_hold_that_is_longer_than_the_bound_does_not_stop_the_source_for_good(reads: Reads, both: bool) -> None:
    assert embedded(reads, 1, None, Gather, both) == (3 if both else 2) * ROWS
    assert max(reads.ahead_us) > AHEAD_US


def test_sources_that_wait_for_each_other_both_come_to_their_end(reads: Reads) -> None:
    ones = ScriptedSource("one", [Script("a", [(n, n * SECOND) for n in range(ROWS)], [START_US] * ROWS)])
    twos = ScriptedSource("two", [Script("b", [(n, n * SECOND) for n in range(ROWS)], [START_US] * ROWS)])
    pipeline, kernel = Pipeline("skewed"), Kernel(3, START_US)
    sides: list[tuple[Source[int], Stream[int], Source[int]]] = [(ones, fast, twos), (twos, slow, ones)]
    for source, stream, other in sides:
        pipeline.inject(source, into=stream, max_ahead=0, of=other)
    pipeline.add(Meet, [subscribe(fast, key=lambda _: "all"), subscribe(slow, key=lambda _: "all")])
    graph = pipeline.graph()
    store = reads.store = WatchedStore(MemoryStore(), graph, kernel)
    Simulation(
        graph=graph, tables=pipeline.tables, kernel=kernel, nemesis=Planned(), store=store, faults_until_us=SECOND
    ).run()
    assert Results(graph, store.inner).state("Meet", "all")["seen"] == 2 * ROWS
    assert kernel.now - START_US < SKEW_PATIENCE_US, "neither of them had to lose its patience"
