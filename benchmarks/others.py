"""The whole example as a user starts it, and the volume of simulated faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import common
from benchmarks.common import Reference, Result

ZEITGEIST_LIMIT_S: Final = 90.0
SEEDS: Final = 500
EVENTS: Final = 2_000
SIMULATOR_LIMIT_S: Final = 300.0


def zeitgeist() -> Result:
    """Benchmark 7: `make zeitgeist` on the carried slice, Spark job included."""
    out = common.WORK / "zeitgeist"
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "examples.zeitgeist", "--out", str(out)],
        cwd=common.ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    tail = (done.stdout + done.stderr).strip().splitlines()[-8:]
    wrote = (out / "anomalies.jsonl").exists() and (out / "report.html").exists()
    shutil.rmtree(out, ignore_errors=True)
    if done.returncode != 0 or not wrote:
        raise RuntimeError(f"examples.zeitgeist ended with status {done.returncode}: {' | '.join(tail)}")
    return Result(
        "zeitgeist", seconds, "s", Reference("the limit", ZEITGEIST_LIMIT_S, "s"), seconds / ZEITGEIST_LIMIT_S,
        "at most 90 s", seconds <= ZEITGEIST_LIMIT_S, {"seconds": [seconds], "said": tail},
    )  # fmt: skip


def simulator() -> Result:
    """Benchmark 8: 500 seeds of at least 2,000 core events each within five minutes.

    `tests/sim` writes the figures to `build/reliability.json`; it is run when they are not there.
    """
    path = common.ROOT / "build" / "reliability.json"
    if "simulator" not in _figures(path):
        subprocess.run([sys.executable, "-m", "tests.sim.ci", str(SEEDS)], cwd=common.ROOT, check=False, timeout=1_200)
    report = _figures(path)["simulator"]
    seeds = report["seeds"]
    seconds = report["cpu_seconds"] / (os.cpu_count() or 1)  # others may have had the processors meanwhile
    enough = seeds >= SEEDS and report["events_least"] >= EVENTS and not report["failures"]
    rate = seeds * SIMULATOR_LIMIT_S / seconds
    return Result(
        "simulator", rate, "seeds in 300 s", Reference("seeds wanted", SEEDS, "seeds"), rate / SEEDS,
        f"at least {SEEDS} seeds of at least {EVENTS} core events each within 300 s",
        enough and rate >= SEEDS, {"report": report},
    )  # fmt: skip


def _figures(path: Path) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return figures
