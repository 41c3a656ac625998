"""Files that are replayed at a pace, in virtual time: no row comes before it is due, late rows are late, and a process that
takes over goes on from the row that it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, Pipeline, Record, Stream, ValueCell, subscribe
from millwheel.limits import PACE_STEP_US
from millwheel.source import Ahead, Batch
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Faults, Nemesis, Planned, Seeded
from millwheel.testing.kit.view import Results
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.simulator import Simulation
from millwheel_injectors import BoundedDisorder, FileSource
from millwheel_injectors.paced import PacedTextPartition
from millwheel_storage.memory import MemoryStore

START_US = 1_000 * SECOND
RATE = 600
BOUND_S = 30
TIMES_S = [0, 5, 60, 20, 61, 62, 25, 300, 290, 100, 301, 3_600, 3_500, 3_601]
"""Late by more than the bound: 20, 25, 100, 3,500."""
LATE = 4
SLACK_US = SECOND // 5
"""Of virtual time: what else a read takes, without faults."""

rows = Stream("rows", JsonCoder(str))


class Count(Computation[str]):
    """Rows, and how many were late."""

    seen = ValueCell(JsonCoder(int), default=0)
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)
        self.late.set(self.late.get() + record.late)


class Reads:
    """Every read of a paced partition: rows with when they came, by the process that read them."""

    def __init__(self, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: dict[int, tuple[int, int]] = {}
        """By process: its first row's due time in the file, and when it was first looked at, us."""
        self.given: dict[int, list[tuple[int, int]]] = {}
        """By process: when a row came, and when it was due in the file, us."""
        self.kept: list[PacedTextPartition] = []
        self.resumed: list[PacedTextPartition] = []
        really = PacedTextPartition.read_due

        def read_due(partition: PacedTextPartition, limit: int, upto: int) -> tuple[Batch | None, Ahead | None]:
            if partition not in self.kept:
                self.kept.append(partition)
            number, seen = self.kept.index(partition), partition._given.seen
            batch, ahead = really(partition, limit, upto)
            if batch is None and ahead is not None and number not in self.began:
                self.began[number] = (ahead.due, kernel.now)
            for time in batch.timestamps if batch is not None else ():
                seen = time if seen is None else max(seen, time)
                self.given.setdefault(number, []).append((kernel.now, seen))
            return batch, ahead

        resumes = PacedTextPartition.resume

        def resume(partition: PacedTextPartition, position: int, state: bytes) -> None:
            self.resumed.append(partition)
            resumes(partition, position, state)

        monkeypatch.setattr(PacedTextPartition, "read_due", read_due)
        monkeypatch.setattr(PacedTextPartition, "resume", resume)

    def check(self, slack_us: int | None = None) -> None:
        """No row is early, and without faults none is much later than the replay's clock says."""
        for number, given in self.given.items():
            first, began = self.began[number]
            for at, due in given:
                wanted = began + (due - first) // RATE
                assert at >= wanted, f"process {number}: a row of {due} came {wanted - at} us early"
                assert slack_us is None or at <= wanted + PACE_STEP_US + slack_us


def pipeline_of(directory: Path, rate: float | None) -> Pipeline:
    source = FileSource(
        "log", directory, event_time=lambda line: int(line.split()[0]) * SECOND, watermark=BoundedDisorder(BOUND_S * SECOND),
        pace=rate,
    )  # fmt: skip
    pipeline = Pipeline("replay")
    pipeline.inject(source, into=rows)
    pipeline.add(Count, [subscribe(rows, key=lambda row: "all")])
    return pipeline


def replay(
    directory: Path, reads: Reads, kernel: Kernel, nemesis: Nemesis, files: int = 1, rate: float | None = RATE
) -> tuple[Simulation, dict[str, int]]:
    for number in range(files):
        (directory / f"log{number}").write_text("".join(f"{second} {number}\n" for second in TIMES_S))
    pipeline = pipeline_of(directory, rate)
    graph = pipeline.graph()
    store = WatchedStore(MemoryStore(), graph, kernel)
    simulation = Simulation(
        graph=graph, tables=pipeline.tables, kernel=kernel, nemesis=nemesis, store=store, faults_until_us=20 * SECOND
    )
    simulation.version = lambda: (pipeline_of(directory, rate).graph(), None)  # a process has a source of its own
    try:
        simulation.run()
    finally:
        for partition in reads.resumed:
            partition.close()
    return simulation, Results(graph, store.inner).state("Count", "all")


def test_rows_come_when_they_are_due_and_late_ones_are_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(0, START_US)
    reads = Reads(kernel, monkeypatch)
    simulation, counted = replay(tmp_path, reads, kernel, Planned())
    reads.check(SLACK_US)
    assert (counted["seen"], counted["late"]) == (len(TIMES_S), LATE)
    assert simulation.crashes == 0


def test_without_a_pace_they_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(0, START_US)
    _, counted = replay(tmp_path, Reads(kernel, monkeypatch), kernel, Planned(), rate=None)
    assert (counted["seen"], counted["late"]) == (len(TIMES_S), 0)


def test_a_process_that_takes_over_goes_on_with_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = Faults(crash=0.01, zombie=0.002, refused=0.02, unknown=0.03, duplicate=0.05, slow=0.01, cut=0.002)
    crashes = went_on = 0
    for seed in range(20):
        kernel = Kernel(seed, START_US)
        with monkeypatch.context() as patched:
            reads = Reads(kernel, patched)
            simulation, counted = replay(tmp_path, reads, kernel, Seeded(faults, kernel.rng), files=2)
        reads.check()
        assert counted["seen"] == 2 * len(TIMES_S)
        crashes += simulation.crashes
        went_on += sum(due > TIMES_S[0] * SECOND for due, _ in reads.began.values())
    assert crashes > 20
    assert went_on > 20, "positions from which a process went on"
