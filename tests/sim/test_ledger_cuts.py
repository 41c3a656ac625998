"""Ledgers under snapshots: ids of outside clients, expiry, timers, holds, versions, either durability, and savepoints."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.effort import some
from tests.sim.ledger_cuts import simulate_ledger_cuts
from tests.sim.quick import quick

OUTSIDE, EXPIRY, CHANGED, PUT_BACK, LEFT = 36, 64, 13, 11, 60_138
SEEDS = some((8, 12, 60), (*range(8), 9, 10, *range(14, 60)))
WANTED = (
    "cell renamed",
    "epoch declared",
    "key expired within an epoch",
    "outside id repeated",
    "outside ids expired",
    "process with another version",
    "quarantine redriven",
    "wall timer fired",
    "watermark timer fired",
    "write extended a life",
)
"""What must happen somewhere among them."""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_seed_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    probes: Counter[str] = Counter()
    for seed in SEEDS:
        probes.update(quick(simulate_ledger_cuts)(seed).probes)
    assert not [name for name in WANTED if not probes[name]]


def test_ids_of_outside_clients_are_in_their_epoch() -> None:
    assert simulate_ledger_cuts(OUTSIDE).probes["outside id repeated"]


def test_a_key_expires_in_its_epoch_and_comes_back() -> None:
    assert simulate_ledger_cuts(EXPIRY).probes["key expired"]


def test_each_run_has_either_durability() -> None:
    probes = simulate_ledger_cuts(CHANGED).probes
    assert probes["other durability"]
    assert probes["epoch declared"]


def test_a_savepoint_is_put_back_under_either_durability() -> None:
    probes = simulate_ledger_cuts(PUT_BACK).probes
    assert probes["savepoint made while an epoch is written"]
    assert probes["savepoint put back"]
    assert probes["other durability"]


def test_a_savepoint_of_a_line_that_was_left_is_put_back() -> None:
    # First an older one was put back, and its partition got another number: the account did not know what the newer one's
    # partition had to read, and took each of its records for one too many.
    assert simulate_ledger_cuts(LEFT).probes["savepoint put back"] == 2
