"""Quarantines under snapshots in the simulator: of the pipeline of `cuts`, `Count` fails for one word until it is mended.

Somebody asks for redrives while it fails, and after it is mended, while processes die and all goes back.  In each declared
epoch, a word of the lines before the stored positions was counted, or waits in quarantine: once (I22).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from millwheel import SECOND, Computation, Context, Record
from millwheel.testing.faults.nemesis import Seeded
from millwheel.testing.world.kernel import Kernel
from tests.sim.cluster_cuts import KEYS, run_cluster_stage
from tests.sim.cuts import START_US, WORDS, Count, Said, Stage, Word, run_stage
from tests.sim.fleets import faults_of_cluster
from tests.sim.harness import ask_redrives, faults_of

UNTIL_US = 6 * SECOND


class PickyCount(Count):
    """It fails for the word of its stage."""

    def __init__(self, stage: PickyStage) -> None:
        self._stage = stage

    def ProcessRecord(self, context: Context, record: Record[Word]) -> None:
        if self._stage.fails(record.value):
            raise RuntimeError("it does not count this")
        super().ProcessRecord(context, record)


class PickyStage(Stage):
    """The pipeline of a seed in which one word cannot be counted at first."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"cut redrives {seed}")
        self.word = self.rng.choice(WORDS)
        self._first = self.rng.choice((0, 3, 10))
        self._failures = self.rng.choice((3, 9, 9, 30, 60))
        """How often its hook raises until it is mended."""
        super().__init__(seed)

    def fails(self, word: Word) -> bool:
        """Whether its hook raises."""
        if word.text != self.word or word.place < self._first or self._failures <= 0:
            return False
        self._failures -= 1
        return True

    def counting(self) -> Callable[[], Computation[Word]]:
        """See `Stage`."""
        return lambda: PickyCount(self)

    def check_count(self, lines: list[Said]) -> None:
        """See `Stage`; what waits in quarantine is not counted yet."""
        truth = self.store.truth
        waits = len(truth.durable["Count"].fifo.get(self.word, ()))
        truth.kernel.probes["cut with a quarantine"] += waits > 0
        if not waits:
            super().check_count(lines)
            return
        spoken = Counter((text, f"{line.who}.{line.place}") for line in lines for text in line.words)
        found = Counter[tuple[str, str]]()
        for text, cells in self.cells("Count").items():
            found.update({(text, entry): number for (cell, entry), number in cells.items() if cell == "seen" and entry})
            if ("disorder", "") in cells:
                truth.fail(f"I17: words {text!r} of a speaker came out of order")
        missing = spoken - found
        if found - spoken or {text for text, _ in missing} != {self.word} or missing.total() != waits:
            truth.fail(f"I22: {missing} are not counted, {found - spoken} too often, and {waits} wait in quarantine")

    def prepare(self, simulation: Any) -> None:
        """Plan redrives, of which the first ones fail."""
        kernel, every_us = simulation.kernel, self.rng.choice((20_000, 100_000, 300_000))

        def ask() -> None:
            ask_redrives(self.store)
            kernel.at(kernel.now + every_us, ask)

        kernel.at(kernel.now + every_us, ask)
        simulation.hold_open = lambda: any(durable.fifo for durable in self.store.truth.durable.values())


def simulate_cut_redrives(seed: int) -> Kernel:
    """One seed on one process; raises `Violation` with the story when an invariant breaks."""
    stage, kernel = PickyStage(seed), Kernel(seed, start_us=START_US)
    faults = msgspec.structs.replace(faults_of(seed), clock_step=0)
    return run_stage(stage, kernel, Seeded(faults, kernel.rng), UNTIL_US, stage.prepare)


def simulate_cut_redrives_on_a_cluster(seed: int) -> Kernel:
    """One seed on a cluster."""
    stage, kernel = PickyStage(seed), Kernel(seed, start_us=START_US)
    roles = {"worker": stage.rng.choice((1, 2, 3)), "controller": stage.rng.choice((1, 2))}

    def prepare(simulation: Any) -> None:
        stage.prepare(simulation)
        for _ in range(stage.rng.choice((0, 2, 5))):
            kernel.at(kernel.now + stage.rng.randrange(UNTIL_US), simulation.order_something, [*KEYS])

    return run_cluster_stage(stage, kernel, Seeded(faults_of_cluster(seed), kernel.rng), UNTIL_US, roles, prepare)
