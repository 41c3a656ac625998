"""The simulator's seeds: exactly-once, order, honest watermarks and convergence under everything that can go wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import common, others
from tests.sim import ci
from tests.sim.harness import simulate_seed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_seed_keeps_every_invariant_and_together_they_reach_every_probe() -> None:
    begin = time.monotonic()
    verdicts, failures = ci.run_seeds(range(ci.SEEDS))
    found = ci.figures(verdicts, failures, time.monotonic() - begin)
    ci.publish("simulator", found)
    assert not failures
    assert found["events_least"] >= ci.EVENTS_LIMIT
    assert found["faults_least"] >= ci.FAULTS_LIMIT
    assert not [name for name in ci.PROBES if not found["probes"][name]]


def test_the_benchmark_reads_the_figures_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ci, "ROOT", tmp_path)
    monkeypatch.setattr(common, "ROOT", tmp_path)
    ci.publish("simulator", ci.figures([simulate_seed(3)], [], 2.0))
    assert others.simulator().value == 150
    assert not others.simulator().met


@pytest.mark.parametrize("seed", [3, 17])
def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed(seed: int) -> None:
    here = simulate_seed(seed).trace_hash
    assert simulate_seed(seed).trace_hash == here
    code = f"from tests.sim.harness import simulate_seed; print(simulate_seed({seed}).trace_hash)"
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        answer = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=ci.ROOT, capture_output=True, text=True, check=True
        )
        assert answer.stdout.strip() == here
