"""From process start to the first new output after `kill -9` of everything: Python, Postgres and all its workers.

Two pipelines on one server: one with 1,000,000 live keys, one with as many live and as many that have expired.  They
are filled through the pipelines, at the same time, and each is killed while it updates its live keys, when Postgres has
`REPLAYED_MB` to replay, or after `LOAD_LIMIT_S`.  The clock starts with the new process, `python` itself and Postgres'
own recovery included, and stops when an outside connection sees a sink row that was not there when Postgres came up.

Filling takes minutes, so what was killed is kept in `build/bench`, and the next run of the same code goes on from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import HOUR, Computation, Context, MsgpackCoder, Pipeline, Record, ValueCell, subscribe
from millwheel.launch import run
from millwheel_storage.embedded import EmbeddedPostgres

KEYS: Final = common.sized("KEYS", 1_000_000)
ROUNDS: Final = common.sized("ROUNDS", 7)
RATE: Final = 1_000
REPLAYED_MB: Final = 96
"""WAL for Postgres to replay, at which a pipeline is killed: as much for both, if the load makes it in time."""
LOAD_LIMIT_S: Final = 5.0
EXPIRE_AFTER: Final = HOUR
GAP_S: Final = 4.0
LIVE_AT: Final = 3 * HOUR
FILL_LIMIT_S: Final = 1_200.0
RESTART_LIMIT_S: Final = 60.0
LIMIT_S: Final = 4.0
FILLED: Final = "filled.json"
NOISE: Final = 1.1
"""Two medians that differ by less are the same."""


def restart() -> Result:
    """Benchmark 5."""
    variants = {"live": 0, "live_and_dead": KEYS}
    found: dict[str, list[float]] = {name: [] for name in variants}
    server_up: dict[str, list[float]] = {name: [] for name in variants}
    path = _prepare(variants)
    fills: dict[str, float] = json.loads((path / FILLED).read_text())
    for _ in range(ROUNDS):
        for name, dead in variants.items():
            up, first = _restart(path, name, dead)
            server_up[name].append(up)
            found[name].append(first)
    value, dead_value = common.median(found["live"]), common.median(found["live_and_dead"])
    return Result(
        "restart", value, "s",
        Reference(f"the same with {KEYS:,} more keys that have expired", dead_value, "s"), value / dead_value,
        "first new output within 4 s of process start; not slower (10%) with as many expired keys",
        max(value, dead_value) <= LIMIT_S and dead_value <= value * NOISE and KEYS >= 1_000_000,
        {**found, "postgres_up": server_up, "fill_s": fills, "keys": KEYS},
        "" if KEYS >= 1_000_000 else f"only {KEYS:,} keys",
    )  # fmt: skip


def _prepare(variants: dict[str, int]) -> Path:
    """A directory with both pipelines filled and killed, by this very code; an older one goes."""
    kept = common.OUT / "restart-state"
    path = kept / _digest()
    if not (path / FILLED).exists():
        shutil.rmtree(kept, ignore_errors=True)
        path.mkdir(parents=True)
        (path / FILLED).write_text(json.dumps(_fill(path, variants)))
    return path


def _digest() -> str:
    """Of everything that decides what a filled store looks like."""
    sources = [*(common.ROOT / "millwheel").rglob("*.py"), *(common.ROOT / "storage").rglob("*.py")]
    sources += [Path(__file__), Path(flows.__file__)]
    text = hashlib.sha256(str(KEYS).encode())
    for source in sorted(sources):
        text.update(source.read_bytes())
    return text.hexdigest()[:12]


def _fill(path: Path, variants: dict[str, int]) -> dict[str, float]:
    """Run the pipelines, at the same time, and kill each when its keys are there, the dead ones gone, and it updates; then
    kill Postgres."""
    began = time.monotonic()
    limit = began + FILL_LIMIT_S
    processes = {
        name: common.start("restart", path=str(path), name=name, dead=dead, seen=0) for name, dead in variants.items()
    }
    seconds = {}
    try:
        for name, dead in variants.items():
            base = dead + KEYS
            _await(path, processes[name], limit, lambda connection, n=name, b=base: _newest(connection, n) >= b)  # type: ignore[misc]
            _await(path, processes[name], limit, lambda connection, n=name: _keys(connection, n) == KEYS, 1.0)  # type: ignore[misc]
            seconds[name] = time.monotonic() - began
            _load(path, name)
            processes[name].kill()  # now: it would go on updating its keys, and slow the other one down
    finally:
        for process in processes.values():
            _kill(path, process)
    return seconds


def _restart(path: Path, name: str, dead: int) -> tuple[float, float]:
    """Seconds from process start until Postgres answers, and until the first new output."""
    seen = int((path / f"{name}.seen").read_text())
    began = time.monotonic()
    process = common.start("restart", path=str(path), name=name, dead=dead, seen=seen)
    up: list[float] = []
    before: list[int] = []

    def moved(connection: psycopg.Connection[Any]) -> bool:
        newest = _newest(connection, name)
        if not before:
            up.append(time.monotonic() - began)
            before.append(newest)
        return newest > before[0]

    try:
        _await(path, process, began + RESTART_LIMIT_S, moved)
        first = time.monotonic() - began
        _load(path, name)
    finally:
        _kill(path, process)
    return up[0], first


def _load(path: Path, name: str) -> None:
    """Let the pipeline update its keys until there is enough to replay, and note how far it came."""
    deadline = time.monotonic() + LOAD_LIMIT_S
    with psycopg.connect(EmbeddedPostgres(path / "postgres").url, autocommit=True) as connection:
        while _replayed_mb(connection) < REPLAYED_MB and time.monotonic() < deadline:
            time.sleep(0.05)
        (path / f"{name}.seen").write_text(str(_newest(connection, name)))


def _replayed_mb(connection: psycopg.Connection[Any]) -> float:
    """What Postgres would have to replay if it died now."""
    behind = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), redo_lsn)::float8 FROM pg_control_checkpoint()"
    row = connection.execute(behind).fetchone()
    return float(row[0]) / 2**20 if row else 0.0


def _await(
    path: Path,
    process: subprocess.Popen[bytes],
    deadline: float,
    reached: Callable[[psycopg.Connection[Any]], bool],
    pause_s: float = 0.005,
) -> None:
    url = EmbeddedPostgres(path / "postgres").url
    connection: psycopg.Connection[Any] | None = None
    try:
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise RuntimeError(f"the pipeline ended with status {process.returncode}")
            with contextlib.suppress(psycopg.OperationalError, psycopg.errors.UndefinedTable):
                if connection is None or connection.closed:
                    connection = psycopg.connect(url, autocommit=True)
                if reached(connection):
                    return
            time.sleep(pause_s)
    finally:
        if connection is not None:
            connection.close()
    raise TimeoutError("the pipeline did not get there in time")


def _newest(connection: psycopg.Connection[Any], name: str) -> int:
    row = connection.execute(f"SELECT coalesce(max(number), -1) FROM {name}.seen").fetchone()
    return row[0] if row else -1


def _keys(connection: psycopg.Connection[Any], name: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM {name}.key_state").fetchone()
    return row[0] if row else -1


def _kill(path: Path, process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the pipeline, the postmaster and its workers, and nobody else."""
    postmaster = EmbeddedPostgres(path / "postgres").pid
    victims = [] if postmaster is None else [postmaster, *_children(postmaster)]
    process.kill()
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 10
    while any(_alive(victim) for victim in victims) and time.monotonic() < deadline:
        time.sleep(0.01)


def _children(pid: int) -> list[int]:
    shown = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in shown.stdout.split()]


def _alive(pid: int) -> bool:
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return bool(shown.stdout.strip()) and not shown.stdout.strip().startswith("Z")


# --- in the subprocess --------------------------------------------------------------------------------------------


def _pipeline(given: dict[str, Any]) -> None:
    dead, base, seen = given["dead"], given["dead"] + KEYS, given["seen"]
    began = time.monotonic()

    class Kept(Computation[bytes]):
        """Counts; shows only what comes after the fill."""

        count = ValueCell(MsgpackCoder(int), default=0)

        def ProcessRecord(self, context: Context, record: Record[bytes]) -> None:
            count = self.count.get() + 1
            self.count.set(count)
            number = flows.number_of(record.value)
            if number >= base:
                context.upsert(flows.SEEN, {"number": number, "count": count})

    def row(number: int) -> flows.Row:
        if number < dead:
            return flows.value_of(KEYS + number, number), 0
        if number < base:
            return flows.value_of(number - dead, number), LIVE_AT
        return flows.value_of(flows.spread(number, KEYS), number), LIVE_AT + 1_000 * (number - base)

    dead_read = float("inf") if dead and not seen else 0.0

    def observed(number: int) -> flows.Row:
        nonlocal dead_read
        if number == dead - 1:
            dead_read = time.monotonic()
        return row(number)

    # A burst may be waiting after the crash; from there on it is an even load.
    burst = max(seen, base) + 2 * RATE if seen else base

    def due(number: int) -> float:
        if number < dead:
            return 0.0
        # Live keys come when the dead are through: in one bundle with them, these would expire as late as they.
        return float(max(dead_read + GAP_S, began + max(0, number - burst) / RATE))

    pipeline = Pipeline(given["name"])
    pipeline.inject(flows.Rows("rows", observed, base + 10**9, due), into=flows.ENTERED)
    pipeline.sink(flows.SEEN)
    pipeline.add(Kept, [subscribe(flows.ENTERED, key=flows.key_of)], name="kept", expire_after=EXPIRE_AFTER)
    run(pipeline, data=given["path"])


if __name__ == "__main__":
    _pipeline(common.arguments())
