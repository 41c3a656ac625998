"""What snapshots cost beside no fault tolerance, and beside snapshots for which all stops (Carbone et al., figures 6, 7).

Rows never end, and the count of those that were read within a window of time is the rate.  So neither the start nor the last
fold is in it.  A *pair* is a run under snapshots and one without fault tolerance, one right after the other.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable
from typing import Any, Final

import psycopg

from benchmarks import common, flows
from benchmarks.common import Reference, Result
from millwheel import Pipeline, Snapshots
from millwheel.api.snapshots import Forgotten, HaltingSnapshots
from millwheel.launch import run as run_on
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.processes import ProcessPlan, run_controller, run_worker
from millwheel.source import Batch, Source, SourcePartition

KEYS: Final = common.sized("KEYS", 10_000)
ROUNDS: Final = common.sized("ROUNDS", 3)
WINDOW_S: Final = common.sized("WINDOW_S", 30)
LEAD_S: Final = 6.0
"""From the start of an embedded run until its window begins, unless the start takes longer."""
JOIN_S: Final = 12.0
"""The same for a cluster, whose processes find each other first."""
WARM_S: Final = 2.0
"""From the first row until the window begins.  All processes of a cluster have joined before, or all would begin anew."""
LIMIT_S: Final = 60.0
EVERY_MS: Final = (500, 1_000, 3_000, 10_000)
WORKERS: Final = (1, 2, 4)
AT_MS: Final = 3_000
LIMITS: Final = {500: 0.15, 3_000: 0.05}
FLAT: Final = 0.05
STEP_US: Final = 1_000


def snapshot_overhead() -> Result:
    """Figure 6: by interval, asynchronous and synchronous."""
    runs: dict[str, list[dict[str, Any]]] = {"none": []}
    found: dict[str, list[dict[str, float]]] = {}
    with common.server("snapshot_overhead") as url:
        for turn in range(ROUNDS):
            for every_ms in EVERY_MS[turn % len(EVERY_MS) :] + EVERY_MS[: turn % len(EVERY_MS)]:
                base = _measured(url, "none", 0)
                runs["none"].append(base)
                for kind in ("asynchronous", "halting") if turn % 2 == 0 else ("halting", "asynchronous"):
                    run = _measured(url, kind, every_ms)
                    runs.setdefault(f"{kind} {every_ms}", []).append(run)
                    found.setdefault(f"{kind} {every_ms}", []).append(_overhead(run, base))
    overheads = {name: _middle(pairs) for name, pairs in found.items()}
    value, beside = (overheads[f"{kind} {AT_MS}"]["time"] for kind in ("asynchronous", "halting"))
    return Result(
        "snapshot_overhead", 100 * value, "%", Reference("the same when all stops for it", 100 * beside, "%"),
        value / beside if beside else None, "asynchronous: at most 5% at 3 s, 15% at 0.5 s",
        all(overheads[f"asynchronous {ms}"]["time"] <= limit for ms, limit in LIMITS.items()),
        {**runs, "overheads": overheads, "pairs": found, "keys": KEYS, "window_s": WINDOW_S},
    )  # fmt: skip


def snapshot_workers() -> Result:
    """Figure 7: by workers, at one interval."""
    runs: dict[str, list[dict[str, Any]]] = {}
    found: dict[str, list[dict[str, float]]] = {}
    with common.server("snapshot_workers") as url:
        for turn in range(ROUNDS):
            for workers in WORKERS if turn % 2 == 0 else WORKERS[::-1]:
                base = _measured(url, "none", 0, workers)
                run = _measured(url, "asynchronous", AT_MS, workers)
                runs.setdefault(f"none, {workers} workers", []).append(base)
                runs.setdefault(f"{workers} workers", []).append(run)
                found.setdefault(f"{workers} workers", []).append(_overhead(run, base))
    overheads = {name: _middle(pairs) for name, pairs in found.items()}
    times = [overhead["time"] for overhead in overheads.values()]
    return Result(
        "snapshot_workers", 100 * max(times), "%", Reference("the least of them", 100 * min(times), "%"),
        None, f"flat within {100 * FLAT:.0f} points from 1 to {WORKERS[-1]} workers", max(times) - min(times) <= FLAT,
        {**runs, "overheads": overheads, "pairs": found, "every_ms": AT_MS, "window_s": WINDOW_S},
    )  # fmt: skip


def _overhead(run: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """How much more a record takes: wall time, and processor time of Python and Postgres."""
    cpu = [(one["cpu_s"] + one["server_cpu_s"]) / one["rows"] for one in (run, base)]
    return {"time": base["rate"] / run["rate"] - 1, "cpu": cpu[0] / cpu[1] - 1}


def _middle(pairs: list[dict[str, float]]) -> dict[str, float]:
    return {what: common.median([pair[what] for pair in pairs]) for what in ("time", "cpu")}


def _measured(url: str, kind: str, every_ms: int, workers: int = 0) -> dict[str, Any]:
    """One run; without `workers` it is embedded."""
    begin = time.monotonic() + (JOIN_S if workers else LEAD_S)
    given: dict[str, Any] = {
        "kind": kind, "every_ms": every_ms, "workers": max(1, workers), "keys": KEYS, "url": url, "name": "measured",
        "begin": begin, "end": begin + WINDOW_S,
    }  # fmt: skip
    roles = [f"worker{n}" for n in range(workers)] + ["controller"] if workers else ["embedded"]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS measured CASCADE")
        processes = [common.start("snapshots", role=role, **given) for role in roles]
        try:
            time.sleep(max(0.0, begin - time.monotonic()))
            server_cpu_s = common.server_cpu_s(connection)
            time.sleep(max(0.0, given["end"] - time.monotonic()))
            server_cpu_s = common.server_cpu_s(connection) - server_cpu_s
            answers = [_ended(process) for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    rows = sum(answer["rows"] for answer in answers)
    records, read = (sum(answer[what] for answer in answers) for what in ("records", "read"))
    if not rows or (not workers and records != 2 * read):  # workers of a cluster have given up what counts, at the end
        raise AssertionError(f"{read} rows were read, and the two stages have taken {records} records")
    return {
        "rate": sum(answer["rate"] for answer in answers), "rows": rows, "cpu_s": sum(answer["cpu_s"] for answer in answers),
        "server_cpu_s": server_cpu_s,
    }  # fmt: skip


def _ended(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        raise RuntimeError(f"a measured process ended with status {process.returncode}")
    answer: dict[str, Any] = json.loads(out.decode().strip().splitlines()[-1])
    return answer


# --- in the subprocesses ------------------------------------------------------------------------------------------


class Flood(Source):
    """One partition with rows from now until the end of a window, on the monotonic clock, s."""

    def __init__(self, name: str, keys: int, begin: float, end: float) -> None:
        self.name = name
        self.values = [flows.value_of(flows.spread(n, keys), n) for n in range(keys)]
        self.begin = begin
        self.end = end
        self.read = 0
        """Rows."""
        self.marks: list[tuple[int, float, float]] = []
        """At the begin and at the end: rows that were read before, processor time of the process, s, and when that was."""

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        return [] if "rows" in set(known) else [_FloodPartition(self)]

    def complete(self) -> bool:
        return True

    def pending_watermark(self) -> int:
        return MAX_TIME


class _FloodPartition:
    name = "rows"

    def __init__(self, source: Flood) -> None:
        self._source = source

    def fingerprint(self) -> bytes:
        return b""

    def resume(self, position: int, state: bytes) -> None:
        if position or self._source.read:
            raise AssertionError("a run that is measured was not the first one")

    def read(self, limit: int) -> Batch | None:
        source, now = self._source, time.monotonic()
        if now < source.begin - WARM_S:
            return None
        for at in (source.begin, source.end)[len(source.marks) :]:
            if now >= at:
                source.marks.append((source.read, time.process_time(), now))
        if len(source.marks) == 2 and source.read:
            return None
        values, first = source.values, source.read
        source.read += limit
        rows = range(first, source.read)
        times = [number * STEP_US for number in rows]
        return Batch([*rows], [values[number % len(values)] for number in rows], times, source.read, b"")

    def finished(self) -> bool:
        return len(self._source.marks) == 2 and self._source.read > 0

    def watermark(self) -> int:
        return MAX_TIME if self.finished() else self._source.read * STEP_US if self._source.read else MIN_TIME

    def close(self) -> None:
        pass


def _flooded(given: dict[str, Any]) -> tuple[Pipeline, list[Flood]]:
    """The keyed count in two stages, each cut for the workers, and a source for each of these."""
    keys, workers, every_ms = given["keys"], given["workers"], given["every_ms"]
    durability: Snapshots | Forgotten = Forgotten()
    if given["kind"] != "none":
        durability = {"asynchronous": Snapshots, "halting": HaltingSnapshots}[given["kind"]](every_ms)
    floods = [Flood(f"flood{n}", keys, given["begin"], given["end"]) for n in range(workers)]
    splits = [f"{keys * n // workers:09d}" for n in range(1, workers)]
    pipeline = flows.two_stages(given["name"], floods[0], durability=durability, split_keys=splits)
    for flood in floods[1:]:
        pipeline.inject(flood, into=flows.ENTERED)
    return pipeline, floods


def _main(given: dict[str, Any]) -> None:
    pipeline, floods = _flooded(given)
    if given["role"] == "controller":
        run_controller(ProcessPlan(pipeline=pipeline, url=given["url"], name="controller"))
        common.answer(rows=0, read=0, rate=0.0, records=0, cpu_s=0.0)
        return
    if given["role"] == "embedded":
        progress = run_on(pipeline, given["url"])
    else:
        progress, _ = run_worker(ProcessPlan(pipeline=pipeline, url=given["url"], name=given["role"]))
    windows = [flood.marks for flood in floods if flood.read]
    common.answer(
        rows=sum(end[0] - begin[0] for begin, end in windows), read=sum(flood.read for flood in floods),
        rate=sum((end[0] - begin[0]) / max(end[2] - begin[2], 1e-9) for begin, end in windows),
        records=progress.records, cpu_s=max((end[1] - begin[1] for begin, end in windows), default=0.0),
    )  # fmt: skip


if __name__ == "__main__":
    _main(common.arguments())
