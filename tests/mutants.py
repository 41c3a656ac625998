"""Planted bugs: each is a known way to break a system like this one, and each must be noticed.

`python -m tests.mutants` prints a table: how many seeds from 0 on, or crash points, until an invariant breaks.  That takes
hours.  Each line is added to `build/reliability.json` at once, so a run that was stopped goes on with `--resume`.  A mutant
replaces one piece of the shipping code; what is not noticed within the budget is a hole in the tests.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

from millwheel.model import SECOND
from millwheel.testing.world import fleet, simulator
from millwheel.testing.world.kernel import Violation, untold
from millwheel.testing.world.simulator import CONVERGE_LIMIT_US, Unending
from tests.planted import (
    CLUSTERED,
    CUT,
    LOOP_CUT,
    LOOPED,
    MUTANTS,
    SHARED_CUT,
    SHARED_LOOP_CUT,
    UNIT_ONLY,
    planted,
    unit_test_notices,
)
from tests.planted import accounts as accounts  # they register their own
from tests.planted import agreements as agreements
from tests.planted import announced as announced
from tests.planted import checkpoints as checkpoints
from tests.planted import cluster_cuts as cluster_cuts
from tests.planted import clusters as clusters
from tests.planted import counted as counted
from tests.planted import cut_redrives as cut_redrives
from tests.planted import cuts as cuts
from tests.planted import deaths as deaths
from tests.planted import deliveries as deliveries
from tests.planted import dropped as dropped
from tests.planted import durability as durability
from tests.planted import event_time as event_time
from tests.planted import handed_over as handed_over
from tests.planted import host as host
from tests.planted import ids as ids
from tests.planted import kept as kept
from tests.planted import keys as keys
from tests.planted import last_partitions as last_partitions
from tests.planted import ledger_cuts as ledger_cuts
from tests.planted import loop_cuts as loop_cuts
from tests.planted import loop_fleets as loop_fleets
from tests.planted import loops as loops
from tests.planted import loud as loud
from tests.planted import masters as masters
from tests.planted import quarantined as quarantined
from tests.planted import recut as recut
from tests.planted import refused_rows as refused_rows
from tests.planted import regrouped as regrouped
from tests.planted import replies as replies
from tests.planted import seen as seen
from tests.planted import senders as senders
from tests.planted import superseded as superseded
from tests.planted import timers as timers
from tests.planted import versions as versions
from tests.planted import weak as weak
from tests.planted import zeitgeist as zeitgeist
from tests.sim import ci, harness
from tests.sim.cluster_cuts import simulate_cluster_cuts
from tests.sim.cuts import simulate_cuts
from tests.sim.fleets import simulate_cluster
from tests.sim.harness import simulate_seed
from tests.sim.hops import simulate_hops
from tests.sim.loop_cut_fleets import simulate_loop_cuts_on_a_cluster
from tests.sim.loop_cuts import simulate_loop_cuts
from tests.sim.scenarios import SCENARIOS

WAIT_IN_VAIN = {
    "Nobody looks for partitions any more when all have ended that were found",
    "The owner of a source looks for partitions no more when all have ended that were found",
}
"""Those that keep a run from its end, which two minutes of virtual time say otherwise, in up to 15 s of processor."""

PATIENCE_US = 20 * SECOND
"""Virtual time after the faults that their runs get.  The same run without the bug must end in that time."""

LATE = {
    "An outside id is forgotten when it is folded, while an answer that does not know it is on its way": 3_000,
}
"""Those that show late in a run, and after how many events its sources end for that."""


def seeds_to_detect(name: str, budget: int, first: int = 0) -> tuple[int, str] | None:
    """(seeds tried, what was noticed), or None when nothing was.

    Raises what Python says of a mutant that does not fit the code any more: it is not noticed, it is broken.
    """
    simulate: Callable[[int], object] = (
        simulate_hops if name in LOOPED else simulate_cuts if name in CUT else simulate_seed
    )
    if name in CLUSTERED:
        simulate = simulate_cluster
    if name in SHARED_CUT:
        simulate = simulate_cluster_cuts
    if name in LOOP_CUT:
        simulate = simulate_loop_cuts
    if name in SHARED_LOOP_CUT:
        simulate = simulate_loop_cuts_on_a_cluster
    with patch.object(harness, "EVENTS_ENOUGH", LATE.get(name, harness.EVENTS_ENOUGH)):
        for seed in range(first, first + budget):
            limit_us = PATIENCE_US if name in WAIT_IN_VAIN else CONVERGE_LIMIT_US
            with planted(name):
                violation = _violation(simulate, seed, limit_us)
            if isinstance(violation, Unending) and limit_us == PATIENCE_US and _violation(simulate, seed, limit_us):
                violation = None  # without the bug it takes as long
            if violation is None:
                continue
            if isinstance(violation.__cause__, AttributeError | IndexError | KeyError | NameError | TypeError):
                raise violation.__cause__ from None
            return seed + 1 - first, violation.summary
    return None


def _violation(simulate: Callable[[int], object], seed: int, limit_us: int) -> Violation | None:
    """What breaks; a run that has not ended so long after its faults is `Unending`."""
    limits = [patch.object(module, "CONVERGE_LIMIT_US", limit_us) for module in (fleet, simulator)]
    try:
        with limits[0], limits[1], untold():
            simulate(seed)
    except Violation as violation:
        return violation
    return None


def crash_points_to_detect(name: str) -> tuple[int, str] | None:
    """The same with the crash points."""
    from tests.sim.breaks import breaks
    from tests.sim.test_crash_points import run

    wanted = {scenario: run(scenario) for scenario in SCENARIOS}
    tried = 0
    with planted(name):
        for scenario, (undisturbed, left) in wanted.items():
            for at, action in breaks(undisturbed.steps):
                tried += 1
                try:
                    with untold():
                        if run(scenario, at, action)[1] != left:
                            return tried, f"{scenario}: another end"
                except Violation as violation:
                    return tried, violation.summary
    return None


def _detect(budget: int, name: str) -> tuple[str, str, tuple[int, str] | None, float]:
    """(name, what was tried, how many and what was noticed, seconds)."""
    began = time.monotonic()
    if name in UNIT_ONLY:
        seen = (1, UNIT_ONLY[name]) if unit_test_notices(name) else None
        return name, "unit test", seen, time.monotonic() - began
    try:
        found = seeds_to_detect(name, budget)
        kind = "seeds" if found else "crash points"
        return name, kind, found or crash_points_to_detect(name), time.monotonic() - began
    except (AttributeError, IndexError, KeyError, NameError, TypeError) as error:
        return name, f"BROKEN: {error!r}", None, time.monotonic() - began


def main() -> int:
    """The table; the exit code says whether every mutant was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=350, help="seeds per mutant")
    parser.add_argument("--only", default="", help="part of a mutant's name")
    parser.add_argument("--resume", action="store_true", help="only those that no run has counted yet")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    counted = ci.published("mutants") if arguments.resume else {}
    names = [name for name in MUTANTS if arguments.only in name and not counted.get(name)]
    if not (arguments.only or arguments.resume):
        ci.publish("mutants", {})
    with multiprocessing.Pool() as pool:
        for name, kind, found, took in pool.imap(partial(_detect, arguments.budget), names):
            figures[name] = {"tried": found[0], "kind": kind, "by": found[1].split(":")[0]} if found else {}
            told = f"{found[0]:4} {kind:12} {found[1][:90]}" if found else f"NOT NOTICED ({kind})"
            print(f"{name[:75]:76} {told} ({took:.1f} s)", flush=True)
            ci.publish("mutants", {name: figures[name]}, more=True)
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
