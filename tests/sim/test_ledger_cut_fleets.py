"""Ledgers under snapshots on clusters: whoever dies, freezes or leads, and wherever intervals are split."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.effort import some
from tests.sim.ledger_cut_fleets import simulate_ledger_cuts_on_a_cluster
from tests.sim.quick import quick

SEEDS = some((11, 19, 20, 22), (*range(11), *range(12, 19), 21, *range(23, 40)))
"""In 11 a worker hears of an epoch before it has read what it owns.  In 19 and 22 a leader dies in the midst of an epoch.
In 20 the barrier of a partition that has ended is lost with its channel."""
WANTED = ("epoch declared", "leader changed", "worker died", "watermark timer fired")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_seed_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    probes: Counter[str] = Counter()
    for seed in SEEDS:
        probes.update(quick(simulate_ledger_cuts_on_a_cluster)(seed).probes)
    assert not [name for name in WANTED if not probes[name]]
