"""`make chaos-loops`: kills at random moments while a ledger with a loop runs under snapshots, embedded and with workers.

Embedded, the one process is ended by signal 9 and started again.  With workers, signal 9 hits workers and controllers of a
cluster that `tests.chaos.cluster` supervises.  Both are judged as there: nothing is lost, doubled or late.

    python -m tests.chaos.loop_kills --kills 60
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg

from millwheel_storage.testing import temporary_postgres
from tests.chaos.cluster import AUDIT, HOPS, Blow, chaos, judged, write_ledger

EVERY_MS = 200
START_LIMIT_S = 60.0
END_LIMIT_S = 600.0


def newest(url: str) -> int:
    """The newest sequencer of any interval: each process that takes over has higher ones."""
    with psycopg.connect(url) as connection:
        there = connection.execute("SELECT to_regclass('ledger.ownership')").fetchone()
        if there is None or there[0] is None:
            return 0
        row = connection.execute("SELECT coalesce(max(sequencer), 0) FROM ledger.ownership").fetchone()
    return 0 if row is None else int(row[0])


def embedded(kills: int, seed: int, wait_s: tuple[float, float], log: Callable[[str], None]) -> dict[str, int]:
    """Kill `millwheel run` so often; counts of what went wrong."""
    dice = random.Random(f"embedded {seed}")
    with temporary_postgres() as postgres, tempfile.TemporaryDirectory(prefix="mw-kills-", dir="/tmp") as directory:
        seconds = kills * (sum(wait_s) / 2) + 5
        expected = write_ledger(Path(directory), seconds, seed, every_ms=EVERY_MS, hops=HOPS)
        process = _start(directory, postgres.url)
        try:
            for number in range(kills):
                _taken_over(postgres.url, process, audit=not number)
                time.sleep(dice.uniform(*wait_s))
                if process.poll() is not None:
                    raise SystemExit(f"the run ended with status {process.returncode} after {number} kills")
                process.kill()
                process.wait()
                process = _start(directory, postgres.url)
            status = process.wait(END_LIMIT_S)
        finally:
            process.kill()
            process.wait()
        found = {**judged(postgres.url, expected), "ended with a status": int(status != 0)}
    log(f"embedded: {kills} kills, {expected.rows:,} rows, {HOPS} more hops each: {found}")
    return found


def _start(directory: str, url: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "MILLWHEEL_STORE": url}
    command = [sys.executable, "-m", "millwheel", "run", "ledger:pipeline"]
    return subprocess.Popen(command, cwd=directory, env=environment, stdout=subprocess.DEVNULL)


def _taken_over(url: str, process: subprocess.Popen[bytes], audit: bool) -> None:
    """Wait until the process has everything; with `audit`, the database counts commits of stale owners from then on."""
    before, until = newest(url), time.monotonic() + START_LIMIT_S
    while newest(url) <= before and process.poll() is None:
        if time.monotonic() > until:
            raise SystemExit("the run does not begin")
        time.sleep(0.02)
    if audit:
        with psycopg.connect(url) as connection, suppress(psycopg.errors.DuplicateTable):
            connection.execute(AUDIT)


def with_workers(kills: int, seed: int, every_s: float, log: Callable[[str], None]) -> dict[str, int]:
    """Kill workers and controllers of a cluster so often; counts of what went wrong."""
    dice, blows, at = random.Random(f"workers {seed}"), [], 0.0
    for number in range(kills):
        at += dice.uniform(0.2, 2 * every_s - 0.2)
        blows.append(
            Blow(round(at, 2), "kill controller" if number % 4 == 3 else "kill worker", dice.randrange(1_000), 0.0)
        )
    return chaos((at + 2) / 60, seed, workers=2, controllers=2, every_ms=EVERY_MS, hops=HOPS, plan=blows, log=log)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.chaos.loop_kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=60, help="of each kind of run (default 60)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the moments (default: drawn)")
    parser.add_argument("--only", choices=("embedded", "workers"))
    given = parser.parse_args()
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {line}", flush=True)

    log(f"seed {given.seed}")
    found = [] if given.only == "workers" else [embedded(given.kills, given.seed, (0.0, 1.5), log)]
    found += [] if given.only == "embedded" else [with_workers(given.kills, given.seed, 5.0, log)]
    return int(any(any(one.values()) for one in found))


if __name__ == "__main__":
    sys.exit(main())
