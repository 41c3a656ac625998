"""What snapshots cost beside no fault tolerance, and beside snapshots for which all stops (Carbone et al., figures 6, 7).

What is compared runs side by side and takes turns: while the rows of one come, the others have none.  A turn is a few seconds
long, so a machine that is faster in one minute than in the next favours none of them.  Rows never end within a turn.  The
count of those that were read between its begin and its end is the rate, so neither a start nor the last fold is in it.  What
is compared is the sum of all turns.  A *pair*, which shows the noise, is a turn under snapshots and the turn without fault
tolerance of the same cycle.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
CYCLES: Final = common.sized("ROUNDS", 8)
"""In which each kind has one turn."""
TURN_S: Final = float(common.sized("WINDOW_S", 6))
"""What is measured of a turn.  It is longer where snapshots are rarer, for one falls into each."""
LEAD_S: Final = 8.0
"""From the start of embedded runs until the first turn begins."""
JOIN_S: Final = 40.0
"""The same for clusters, whose processes find each other first.  All have joined before, or all would begin anew."""
WARM_S: Final = 0.6
"""From the first row of a turn until its count begins: what is read ahead has been read by then."""
REST_S: Final = 0.5
"""From the end of a turn until the first row of the next one, and as long as a snapshot may be away besides: what was read
ahead has run by then, and the last snapshot of the turn takes nothing from the next one."""
LIMIT_S: Final = 60.0
EVERY_MS: Final = (500, 1_000, 3_000, 10_000)
WORKERS: Final = (1, 2, 4)
AT_MS: Final = 3_000
LIMITS: Final = {500: 0.15, 3_000: 0.05}
FLAT: Final = 0.05
STEP_US: Final = 1_000


def snapshot_overhead() -> Result:
    """Figure 6: by interval, asynchronous and synchronous."""
    runs: dict[str, list[dict[str, Any]]] = {}
    overheads: dict[str, dict[str, float]] = {}
    found: dict[str, list[dict[str, float]]] = {}
    with common.server("snapshot_overhead") as url:
        for every_ms in EVERY_MS:
            turns = _in_turns(url, ("none", "asynchronous", "halting"), every_ms)
            for kind, taken in turns.items():
                runs[f"{kind} {every_ms}"] = taken
                if kind != "none":
                    overheads[f"{kind} {every_ms}"] = _overhead(_all(taken), _all(turns["none"]))
                    found[f"{kind} {every_ms}"] = [*map(_overhead, taken, turns["none"])]
    value, beside = (overheads[f"{kind} {AT_MS}"]["time"] for kind in ("asynchronous", "halting"))
    return Result(
        "snapshot_overhead", 100 * value, "%", Reference("the same when all stops for it", 100 * beside, "%"),
        value / beside if beside else None, "asynchronous: at most 5% at 3 s, 15% at 0.5 s",
        all(overheads[f"asynchronous {ms}"]["time"] <= limit for ms, limit in LIMITS.items()),
        {**runs, "overheads": overheads, "pairs": found, "keys": KEYS, "turn_s": TURN_S, "cycles": CYCLES},
    )  # fmt: skip


def snapshot_workers() -> Result:
    """Figure 7: by workers, at one interval."""
    runs: dict[str, list[dict[str, Any]]] = {}
    overheads: dict[str, dict[str, float]] = {}
    found: dict[str, list[dict[str, float]]] = {}
    with common.server("snapshot_workers") as url:
        for workers in WORKERS:
            turns = _in_turns(url, ("none", "asynchronous"), AT_MS, workers)
            runs[f"none, {workers} workers"] = turns["none"]
            runs[f"{workers} workers"] = turns["asynchronous"]
            overheads[f"{workers} workers"] = _overhead(_all(turns["asynchronous"]), _all(turns["none"]))
            found[f"{workers} workers"] = [*map(_overhead, turns["asynchronous"], turns["none"])]
    times = [overhead["time"] for overhead in overheads.values()]
    return Result(
        "snapshot_workers", 100 * max(times), "%", Reference("the least of them", 100 * min(times), "%"),
        None, f"flat within {100 * FLAT:.0f} points from 1 to {WORKERS[-1]} workers", max(times) - min(times) <= FLAT,
        {**runs, "overheads": overheads, "pairs": found, "every_ms": AT_MS, "turn_s": TURN_S, "cycles": CYCLES},
    )  # fmt: skip


def _overhead(run: dict[str, Any], base: dict[str, Any]) -> dict[str, float]:
    """How much more a record takes: wall time, and processor time of Python and Postgres."""
    cpu = [(one["cpu_s"] + one["server_cpu_s"]) / one["rows"] for one in (run, base)]
    return {"time": base["rate"] / run["rate"] - 1, "cpu": cpu[0] / cpu[1] - 1}


def _all(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """All turns of a kind as one.  Turns differ by a fifth on a shared machine, and a median of few pairs by as much."""
    return {what: sum(turn[what] for turn in turns) for what in turns[0]}


def _turns(kinds: Sequence[str], begin: float, every_s: float) -> dict[str, list[tuple[float, float]]]:
    """When the turns of each kind begin and end, monotonic clock, s.  Each cycle begins with another kind."""
    turn_s = max(TURN_S, every_s)
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    at = begin
    for cycle in range(CYCLES):
        first = cycle % len(kinds)
        for kind in (*kinds[first:], *kinds[:first]):
            found[kind].append((at + WARM_S, at + WARM_S + turn_s))
            at += WARM_S + turn_s + REST_S + every_s
    return found


def _in_turns(url: str, kinds: Sequence[str], every_ms: int, workers: int = 0) -> dict[str, list[dict[str, Any]]]:
    """What each kind did in each of its turns.  Without `workers` they are embedded runs."""
    turns = _turns(kinds, time.monotonic() + (JOIN_S if workers else LEAD_S), every_ms / 1e3)
    roles = [f"worker{n}" for n in range(workers)] + ["controller"] if workers else ["embedded"]
    with psycopg.connect(url, autocommit=True) as connection:
        for kind in kinds:
            connection.execute(f"DROP SCHEMA IF EXISTS measured_{kind} CASCADE")
        processes = {
            (kind, role): common.start(
                "snapshots", role=role, kind=kind, every_ms=every_ms, workers=max(1, workers), keys=KEYS, url=url,
                name=f"measured_{kind}", turns=turns[kind],
            )
            for kind in kinds
            for role in roles
        }  # fmt: skip
        try:
            spent = _server_cpu_s(connection, turns)
            answers = {
                kind: [_ended(process) for (whose, _), process in processes.items() if whose == kind] for kind in kinds
            }
        finally:
            for process in processes.values():
                if process.poll() is None:
                    process.kill()
                    process.communicate()
    for kind, theirs in answers.items():
        records, read = (sum(answer[what] for answer in theirs) for what in ("records", "read"))
        if not workers and records != 2 * read:  # workers of a cluster have given up what counts, at the end
            raise AssertionError(f"{kind}: {read} rows were read, and the two stages have taken {records} records")
    return {
        kind: [
            _turn([answer["turns"][n] for answer in theirs if answer["turns"]], spent[kind][n]) for n in range(CYCLES)
        ]
        for kind, theirs in answers.items()
    }


def _server_cpu_s(
    connection: psycopg.Connection[Any], turns: Mapping[str, list[tuple[float, float]]]
) -> dict[str, list[float]]:
    """Processor time of Postgres in each turn, s.  Returns after the last one."""
    found: dict[str, list[float]] = {kind: [] for kind in turns}
    for begin, end, kind in sorted((*turn, kind) for kind, theirs in turns.items() for turn in theirs):
        time.sleep(max(0.0, begin - time.monotonic()))
        before = common.server_cpu_s(connection)
        time.sleep(max(0.0, end - time.monotonic()))
        found[kind].append(common.server_cpu_s(connection) - before)
    return found


def _turn(parts: list[dict[str, float]], server_cpu_s: float) -> dict[str, Any]:
    """One turn of all processes of a kind."""
    rows = sum(part["rows"] for part in parts)
    if not rows:
        raise AssertionError("no row was read in a turn")
    return {
        "rate": sum(part["rate"] for part in parts), "rows": rows, "cpu_s": sum(part["cpu_s"] for part in parts),
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
    """One partition with rows in each of its turns, which begin and end on the monotonic clock, s."""

    announces = True

    def __init__(self, name: str, keys: int, turns: Iterable[tuple[float, float]]) -> None:
        self.name = name
        self.values = [flows.value_of(flows.spread(n, keys), n) for n in range(keys)]
        self.edges = [edge for turn in turns for edge in turn]
        self.read = 0
        """Rows."""
        self.marks: list[tuple[int, float, float]] = []
        """At each edge: rows that were read before, processor time of the process, s, and when that was."""

    def open(self, now: float) -> bool:
        """Whether there are rows."""
        while len(self.marks) < len(self.edges) and now >= self.edges[len(self.marks)]:
            self.marks.append((self.read, time.process_time(), now))
        if self.over():
            return False
        return len(self.marks) % 2 == 1 or now >= self.rests_until()

    def rests_until(self) -> float:
        """When it has rows again."""
        return self.edges[len(self.marks)] - WARM_S

    def over(self) -> bool:
        """Whether the last turn has ended."""
        return len(self.marks) == len(self.edges)

    def counts(self) -> list[dict[str, float]]:
        """What each turn had."""
        pairs = zip(self.marks[::2], self.marks[1::2], strict=True)
        return [
            {"rows": end[0] - begin[0], "rate": (end[0] - begin[0]) / (end[2] - begin[2]), "cpu_s": end[1] - begin[1]}
            for begin, end in pairs
        ]

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
        self._wake: Callable[[], None] | None = None

    def announce_to(self, wake: Callable[[], None]) -> None:
        """What rests is not looked at, for that would take from those whose turn it is."""
        self._wake = wake
        self._rest()

    def _rest(self) -> None:
        if self._wake is not None and not self._source.over():
            rest_s = self._source.rests_until() - time.monotonic()
            asyncio.get_running_loop().call_later(max(0.0, rest_s), self._wake)

    def fingerprint(self) -> bytes:
        return b""

    def resume(self, position: int, state: bytes) -> None:
        if position or self._source.read:
            raise AssertionError("a run that is measured was not the first one")

    def read(self, limit: int) -> Batch | None:
        source = self._source
        if not source.open(time.monotonic()):
            self._rest()
            return None
        values, first = source.values, source.read
        source.read += limit
        rows = range(first, source.read)
        times = [number * STEP_US for number in rows]
        return Batch([*rows], [values[number % len(values)] for number in rows], times, source.read, b"")

    def finished(self) -> bool:
        return self._source.over()

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
    floods = [Flood(f"flood{n}", keys, given["turns"]) for n in range(workers)]
    splits = [f"{keys * n // workers:09d}" for n in range(1, workers)]
    pipeline = flows.two_stages(given["name"], floods[0], durability=durability, split_keys=splits)
    for flood in floods[1:]:
        pipeline.inject(flood, into=flows.ENTERED)
    return pipeline, floods


def _main(given: dict[str, Any]) -> None:
    pipeline, floods = _flooded(given)
    if given["role"] == "controller":
        run_controller(ProcessPlan(pipeline=pipeline, url=given["url"], name="controller"))
        common.answer(read=0, records=0, turns=[])
        return
    if given["role"] == "embedded":
        progress = run_on(pipeline, given["url"])
    else:
        progress, _ = run_worker(ProcessPlan(pipeline=pipeline, url=given["url"], name=given["role"]))
    mine = [flood for flood in floods if flood.read]
    turns = [
        {
            "rows": sum(part["rows"] for part in parts), "rate": sum(part["rate"] for part in parts),
            "cpu_s": max(part["cpu_s"] for part in parts),
        }
        for parts in zip(*(flood.counts() for flood in mine), strict=True)
    ]  # fmt: skip
    common.answer(read=sum(flood.read for flood in mine), records=progress.records, turns=turns)


if __name__ == "__main__":
    _main(common.arguments())
