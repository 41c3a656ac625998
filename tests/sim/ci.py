"""Many seeds on all cores, and the figures of the run: `python -m tests.sim.ci 500`."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from millwheel.testing.story import Violation
from tests.sim.harness import Verdict, simulate_seed

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 500
EVENTS_LIMIT = 2_000
FAULTS_LIMIT = 5

PROBES = (
    "ack delivered twice",
    "applied, reply lost: commit",
    "applied, reply lost: fold",
    "applied, reply lost: advance",
    "applied, reply lost: persist",
    "bundle delivered twice",
    "commit found applied",
    "fenced commit refused",
    "fenced fold refused",
    "fenced position refused",
    "fenced during recovery",
    "fold",
    "fold used later acks",
    "key expired",
    "key evicted",
    "process halted by a fence",
    "productions resent after restart",
    "duplicate dropped",
    "quarantine redriven",
    "sink row refused",
    "interval restarted",
    "record quarantined",
    "request of a dead process applied",
    "retried: CommitUnknown",
    "retried: StoreUnavailable",
    "late record",
    "timer fired after restart",
    "timers restored after restart",
    "weak straggler checkpointed",
    "wall timer fired",
    "zombie ended",
    "zombie overtaken",
)
"""What must happen somewhere among the seeds of one CI run."""


def try_seed(seed: int) -> Verdict | str:
    """A verdict, or what broke."""
    try:
        return simulate_seed(seed)
    except Violation as violation:
        return f"seed {seed}: {violation.summary}"


def run_seeds(seeds: range, processes: int | None = None) -> tuple[list[Verdict], list[str]]:
    """Verdicts and failures of a range of seeds."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes or os.cpu_count()) as pool:
        found = pool.map(try_seed, seeds, chunksize=5)
    return [v for v in found if isinstance(v, Verdict)], [v for v in found if isinstance(v, str)]


def figures(verdicts: list[Verdict], failures: list[str], seconds: float) -> dict[str, Any]:
    """The figures of a run."""
    faults: Counter[str] = Counter()
    probes: Counter[str] = Counter()
    for verdict in verdicts:
        faults.update(verdict.faults)
        probes.update(verdict.probes)
    return {
        "seeds": len(verdicts) + len(failures),
        "failures": failures,
        "seconds": round(seconds, 1),
        "events": sum(v.events for v in verdicts),
        "events_least": min((v.events for v in verdicts), default=0),
        "faults": faults.total(),
        "faults_least": min((sum(v.faults.values()) for v in verdicts), default=0),
        "faults_by_kind": dict(sorted(faults.items())),
        "probes": {name: probes[name] for name in sorted({*PROBES, *probes})},
        "virtual_hours": round(sum(v.virtual_us - 1_000_000_000 for v in verdicts) / 3.6e9, 2),
    }


def publish(part: str, values: dict[str, Any]) -> None:
    """Add figures to `build/reliability.json`."""
    path = ROOT / "build" / "reliability.json"
    path.parent.mkdir(exist_ok=True)
    known = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    known[part] = values
    path.write_bytes(msgspec.json.format(msgspec.json.encode(known)) + b"\n")


def main() -> int:
    """Run and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    begin = time.monotonic()
    verdicts, failures = run_seeds(range(first, first + count))
    found = figures(verdicts, failures, time.monotonic() - begin)
    publish("simulator", found)
    print(msgspec.json.format(msgspec.json.encode(found)).decode())
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
