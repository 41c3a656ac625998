"""Every crash point of small runs under snapshots, with and without a cycle: how one run with one fault, or two, is made.

Each run has some epochs, and in those with a cycle a head has a log.  What a workload expects of each declared cut is checked
in each run (I22, I23, I24), and the end is that of the model.  With `DiedOnce` the process dies before that, right
behind the first declaration.  So the fault strikes while that epoch is recovered, and its log is replayed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec

from millwheel.testing.checks.cuts import CutStore
from millwheel.testing.faults.nemesis import Action, Planned
from millwheel.testing.kit.scripted import Script
from millwheel.testing.world.kernel import Kernel
from millwheel_storage.memory import MemoryStore
from tests.sim.cuts import START_US as CUTS_START_US
from tests.sim.cuts import Stage, run_stage
from tests.sim.hops import EDGES, Hopper, Hops, build_hops
from tests.sim.loop_cuts import loop_simulation, run_loop
from tests.sim.workload.drawing import START_US

UNTIL_US = 60_000
LOOP_EVERY_US = 3_000


class DiedOnce(Planned):
    """The process dies right behind its first declaration, and one fault more strikes later."""

    def strike(self, step: str) -> Action:
        """See `Planned`."""
        action = super().strike(step)
        return "crash after" if step == "declare" and self.steps.count("declare") == 1 else action


def straight(nemesis: Planned) -> Kernel:
    """Lines, their words, and windows: no cycle."""
    return run_stage(Stage(4, lines=3, every_ms=50), Kernel(0, start_us=CUTS_START_US), nemesis, UNTIL_US)


def round_and_round(shape: str) -> Callable[[Planned], Kernel]:
    """Tokens in a loop of a shape, which are there when its head cuts."""

    def ran(nemesis: Planned) -> Kernel:
        kernel, workload = Kernel(0, START_US), hopping(shape)
        assert workload.graph is not None
        store = CutStore(MemoryStore(), workload.graph, kernel)
        return run_loop(loop_simulation(workload.graph, store, nemesis, UNTIL_US), workload, store)

    return ran


def hopping(shape: str) -> Hops:
    """A fresh small workload: two tokens that hop without waiting, so that some are on a back edge when the head cuts."""
    given = [(Hopper(f"h{i}", 40, "a"), 1_000_000 + 20_000 * i) for i in range(2)]
    scripts = {"a": [Script("a.0", given, [START_US + 2_000 * i for i in range(len(given))])]}
    exotic: dict[str, float] = {"FOLD_TRIGGER_CHECKPOINTS": 2, "IDLE_RECORD_DELAY_US": 3_000, "ROUND_DELAY_US": 1_000}
    workload = Hops(EDGES[shape], scripts, False, False, True, exotic)
    graph = build_hops(workload, random.Random(f"few {shape}")).graph()
    workload.graph = msgspec.structs.replace(graph, snapshot_every_us=LOOP_EVERY_US)
    return workload


RUNS: dict[str, Callable[[Planned], Kernel]] = {
    "an epoch without a cycle": straight,
    "an epoch of a loop of itself": round_and_round("itself"),
    "an epoch of a loop of two": round_and_round("two"),
}
