"""Many seeds on all cores, and the figures of the run: `python -m tests.sim.ci 500`."""

from __future__ import annotations

import fcntl
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from millwheel.testing.world.kernel import Violation, untold
from tests.sim import aside
from tests.sim.harness import Verdict, simulate_seed

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 500
EVENTS_LIMIT = 1_500
"""Events of a host that reach a core, in the least eventful seed."""
FAULTS_LIMIT = 5

PROBES = (
    "Bloom hit found present",
    "ack delivered twice",
    "ack of a bundle that a void core had sent",
    "applied, reply lost: commit",
    "applied, reply lost: fold",
    "applied, reply lost: advance",
    "applied, reply lost: persist",
    "bundle delivered twice",
    "bundle queued behind a lookup",
    "commit found applied",
    "earlier owner's id found absent",
    "earlier owner's id found present",
    "fenced commit refused",
    "fenced fold refused",
    "fenced position refused",
    "fenced during a restart",
    "fenced during recovery",
    "fenced watermark refused",
    "process asked, and found itself superseded",
    "process rolled",
    "fold",
    "fold of a fresh key",
    "fold used later acks",
    "hook waited for state",
    "key expired",
    "late copy of a bundle",
    "late copy of a retired producer's bundle",
    "later checkpoint known first",
    "key evicted",
    "outside id found absent",
    "outside id found present",
    "outside id in a filter found absent",
    "outside id in a filter found present",
    "outside id repeated",
    "page of timers read",
    "process halted by a fence",
    "process with another version",
    "productions of an earlier version",
    "partition missing after restart",
    "partition waits for its turn",
    "productions resent after restart",
    "duplicate dropped",
    "due timer went back to the queue",
    "quarantine redriven",
    "record quarantined",
    "request of a dead process applied",
    "retried: CommitUnknown",
    "retried: StoreUnavailable",
    "late record",
    "silent partition follows the clock",
    "sink row refused",
    "redrive refused",
    "interval restarted",
    "two groups commit",
    "hook killed the process",
    "invocation marked",
    "idle source follows the clock",
    "invocation waits for a suspect",
    "suspect runs alone",
    "suspect waits for another one",
    "ended in order",
    "timer fired after restart",
    "timer fired in the invocation that set it",
    "timers were a loop",
    "timers restored after restart",
    "input acked after its productions",
    "weak straggler checkpointed",
    "write extended a life",
    "wall timer fired",
    "zombie ended",
    "zombie overtaken",
)
"""What must happen somewhere among the seeds of one CI run."""


def try_seed(seed: int) -> Verdict | str:
    """A verdict, or what broke."""
    try:
        with untold():
            return simulate_seed(seed)
    except Violation as violation:
        return f"seed {seed}: {violation.summary}"


def run_seeds(seeds: range, attempt: Callable[[int], Verdict | str] = try_seed) -> dict[str, Any]:
    """The figures of a range of seeds, on what others leave of all cores."""
    begin, used = time.monotonic(), _children_s()
    found = aside.of_each(attempt, seeds)
    verdicts = [v for v in found if isinstance(v, Verdict)]
    failures = [v for v in found if isinstance(v, str)]
    return figures(verdicts, failures, time.monotonic() - begin, _children_s() - used)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures(verdicts: list[Verdict], failures: list[str], seconds: float, cpu_seconds: float) -> dict[str, Any]:
    """What a run comes to."""
    faults: Counter[str] = Counter()
    probes: Counter[str] = Counter()
    for verdict in verdicts:
        faults.update(verdict.faults)
        probes.update(verdict.probes)
    return {
        "seeds": len(verdicts) + len(failures),
        "failures": failures,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "events": sum(v.events for v in verdicts),
        "events_least": min((v.events for v in verdicts), default=0),
        "faults": faults.total(),
        "faults_least": min((sum(v.faults.values()) for v in verdicts), default=0),
        "faults_by_kind": dict(sorted(faults.items())),
        "probes": {name: probes[name] for name in sorted({*PROBES, *probes})},
        "virtual_hours": round(sum(v.virtual_us - 1_000_000_000 for v in verdicts) / 3.6e9, 2),
    }


def publish(part: str, values: dict[str, Any], more: bool = False) -> None:
    """Write one part of the figures in `build/reliability.json`; `more` keeps what the part has under other names."""
    path = ROOT / "build" / "reliability.json"
    path.parent.mkdir(exist_ok=True)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # tests run in several processes
        file.seek(0)
        known = msgspec.json.decode(file.read() or b"{}")
        known[part] = {**known.get(part, {}), **values} if more else values
        file.truncate(0)
        file.write(msgspec.json.format(msgspec.json.encode(known)) + b"\n")


def published(part: str) -> dict[str, Any]:
    """What runs have left of one part."""
    path = ROOT / "build" / "reliability.json"
    known: dict[str, dict[str, Any]] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    return known.get(part, {})


def main() -> int:
    """Run and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    found = run_seeds(range(first, first + count))
    publish("simulator", found)
    print(msgspec.json.format(msgspec.json.encode(found)).decode())
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
