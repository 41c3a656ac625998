"""The processes that benchmarks measure do run, on sizes at which nothing is measured: a benchmark that broke is seen here.

What a benchmark makes of their answers is not tested here, nor are the iterations on Spark, which tests of their own start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks import __main__ as command
from benchmarks import common, files, nexmark, restart
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import fresh_name
from tests.patience import WAIT_S

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(400)]

SIZES = {"RECORDS": "500", "KEYS": "40", "FILES": "4", "EVENTS": "500", "ROUNDS": "1", "BUNDLES": "5", "TRIPS": "5"}
FEW: dict[str, Any] = {"records": 300, "keys": 20}
SHORT: dict[str, Any] = {"workers": 1, "keys": 20, "begin": 0.0, "end": 0.0}
CLUSTER: dict[str, dict[str, Any]] = {
    "counted": {"records": 300, "keys": 20, "reads": True}, "live": {"records": 100, "settings": {}},
    "chained": {"records": 100, "rate": 1_000}, "kept": {"records": 100, "keys": 16, "rate": 1_000},
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "throughput": ("throughput", {"system": "millwheel", **FEW}),
    "throughput, opaque ids": ("throughput", {"system": "opaque", **FEW}),
    "windows, fixed": ("windows", {"system": "fixed"}),
    "windows, by hand": ("windows", {"system": "by_hand"}),
    "windows, sliding": ("windows", {"system": "sliding"}),
    "windows, sessions": ("windows", {"system": "sessions"}),
    "latency": ("latency", {"role": "pipeline", "settings": {}, "begin": 0.0, "records": 100}),
    "repeats": ("repeats", {"again": False}),  # ids that come again have not left memory in so short a run
    "hot_key": ("hot_key", {"combined": True, "hook_us": 10}),
    "redrive": ("redrive", {"broken": False, "keys": 20}),
    "straggler": ("straggler", {"begin": 0.0, "patience_us": 1_000_000, "records": 100}),
    "cache": ("cache", {"workload": "windows", "order": "lru"}),
    "expiry": ("expiry", {}),
    "snapshots of state": ("snapshots_state", {"keys": 20, "rate": 1_000, "shown": True, "steady_s": 0.2}),
    "snapshots, none": ("snapshots", {"role": "embedded", "kind": "none", "every_ms": 0, **SHORT}),
    "snapshots, halting": ("snapshots", {"role": "embedded", "kind": "halting", "every_ms": 50, **SHORT}),
    "channels": ("channels", {"role": "round"}),
    **{
        f"cluster, {kind}": ("cluster_processes", {"role": "embedded", "pipeline": kind, "begin": 0.0, **few})
        for kind, few in CLUSTER.items()
    },
}
BYTEWAX: dict[str, tuple[str, dict[str, Any]]] = {
    "throughput": ("throughput", {"system": "bytewax", **FEW}),
    "windows": ("windows", {"system": "bytewax"}),
    **{
        f"nexmark, {query}": ("nexmark_bytewax", {"query": query, "events": 500, "per_second": 100})
        for query in ("q3", "q5", "q8", "q12")
    },
}
FEW_CASES = {"throughput", "windows, by hand", "latency", "snapshots of state", "cluster, chained"}
"""Of both kinds, for a landing; `make reliability` tries all."""
NOT_HERE = {
    "zeitgeist", "simulator", "nexmark", "iteration", "hosted", "cluster_split", "authority", "many_workers",
}  # fmt: skip
"""What these start has tests of its own; the last two start nothing."""


def environment() -> dict[str, str]:
    return os.environ | {common.SIZES + name: size for name, size in SIZES.items()}


def answer(module: str, **arguments: Any) -> dict[str, Any]:
    """What the process says; it must end in order."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", json.dumps(arguments)], cwd=common.ROOT, env=environment(),
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return said


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW_CASES else [pytest.mark.long]) for name in CASES]
)
def test_a_measured_process_runs(name: str, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    module, given = CASES[name]
    assert answer(module, url=postgres.url, name=fresh_name("bench"), path=str(tmp_path), **given)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FEW_CASES else [pytest.mark.long]) for name in BYTEWAX]
)
def test_a_measured_process_of_bytewax_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("bytewax", reason="it has wheels for Python up to 3.12")
    module, given = BYTEWAX[name]
    assert answer(module, path=str(tmp_path), **given)["cpu_seconds"] > 0


@pytest.mark.long
def test_a_cluster_is_measured_beside_an_embedded_run(tmp_path: Path) -> None:
    """The command itself, on few rows: the processes of a cluster start, count every row, and end."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "cluster_throughput"], cwd=common.ROOT,
        env=environment() | {f"{common.SIZES}OUT": str(tmp_path), f"{common.SIZES}LEAD_S": "3"},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "cluster_throughput.json").read_text())
    assert result["value"] > 0
    assert not result["met"]
    assert len(result["samples"]["cluster"][0]["cpu_s"]) == 2


def test_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "text-4"
    files._make(path, 0)
    assert answer("files", path=str(path))["injected"] == 1


def test_what_is_restarted_shows_rows(tmp_path: Path) -> None:
    given = json.dumps({"path": str(tmp_path), "name": "tiny", "dead": 0, "seen": 0})
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.restart", given],
        cwd=common.ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    try:
        restart._await(
            tmp_path, process, time.monotonic() + WAIT_S, lambda connection: restart._newest(connection, "tiny") > 0
        )
    finally:
        restart._kill(tmp_path, process)


def test_nexmark_is_measured_and_published(tmp_path: Path) -> None:
    """The command itself, on few events, into another directory; a shortened run meets no target."""
    code = (
        "import benchmarks.nexmark as n; n.QUERIES, n.BYTEWAX, n.FLINK = ('q1',), (), {'q1': 1};"
        "import benchmarks.__main__ as m; raise SystemExit(m.main(['nexmark']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=common.ROOT, env=environment() | {f"{common.SIZES}OUT": str(tmp_path)},
        capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "nexmark.json").read_text())
    assert result["value"] > 0
    assert not result["met"]
    (run,) = result["samples"]["millwheel"]["q1"]
    assert run["postgres_cpu_seconds"] > 0
    page = nexmark.written("a\n<!-- figures -->\nold\n<!-- end of figures -->\nz", "figures", nexmark.published(result))
    assert "| q1 |" in page
    assert "old" not in page


def test_every_benchmark_is_here_or_has_a_reason() -> None:
    modules = {run.__module__.removeprefix("benchmarks.") for run in command.BENCHMARKS.values()} - {"others"}
    started = {module for module, _ in CASES.values()} | {"files", "restart", "cluster"}
    assert modules - started <= NOT_HERE


def test_the_servers_processes_are_counted(postgres: EmbeddedPostgres) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        before = common.server_cpu_s(connection)
        with psycopg.connect(postgres.url) as other:
            other.execute("SELECT sum(sqrt(n)) FROM generate_series(1, 2000000) n")
        assert common.server_cpu_s(connection) > before
