"""Nexmark's queries: events a second of processor time, beside Bytewax where it has the operators, and Flink's figures.

`python -m benchmarks nexmark` measures; `python -m benchmarks.nexmark publish` writes what was measured last, and the table
of `make nexmark`, into docs/nexmark.md.  Each run is a process of its own.  Flink's figures are those that the authors of
the benchmark published: nobody ran Flink here.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from typing import Any, Final

import psycopg

from benchmarks import common
from benchmarks.common import Reference, Result
from examples.nexmark.__main__ import OUT, Line, table
from examples.nexmark.harness import finish, start
from examples.nexmark.job import NexmarkJob

QUERIES: Final = ("q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q11", "q12")
BYTEWAX: Final = ("q0", "q1", "q2", "q3", "q5", "q7", "q8", "q11", "q12")
"""Those that Bytewax has operators for.  The others need an auction's own length, or an order of its ends."""

FLINK: Final = {
    "q0": 155_020, "q1": 157_940, "q2": 175_210, "q3": 152_120, "q4": 34_330, "q5": 22_140, "q7": 12_330, "q8": 146_140,
    "q11": 39_700, "q12": 75_670,
}  # fmt: skip
"""Events a second and core of Flink 1.13, from the column `Throughput/Cores` of the README of github.com/nexmark/nexmark:
100 million events, 8 task managers, RocksDB, exactly-once checkpoints each 3 minutes, a sink that drops all.
It has no q6."""

EVENTS: Final = common.sized("EVENTS", 100_000)
PER_SECOND: Final = 1_000
"""Of event time."""
ROUNDS: Final = common.sized("ROUNDS", 3)
DOC: Final = common.ROOT / "docs" / "nexmark.md"


def nexmark() -> Result:
    """Benchmark 15: every query alone, one interval, events in order."""
    ours: dict[str, list[dict[str, Any]]] = {query: [] for query in QUERIES}
    theirs: dict[str, list[dict[str, Any]]] = {query: [] for query in BYTEWAX}
    with common.server("nexmark") as url:
        for turn in range(ROUNDS):
            for query in QUERIES:
                ours[query].append(_ours(url, query, turn))
                if query in BYTEWAX:
                    theirs[query].append(_theirs(query))
                    _compared(query, ours[query][-1]["rows"], theirs[query][-1]["rows"])
    rates = {query: _median(runs, "per_core") for query, runs in ours.items()}
    value = statistics.geometric_mean(rates[query] for query in FLINK)
    reference = statistics.geometric_mean(FLINK.values())
    return Result(
        "nexmark", value, "events/s a core",
        Reference("Flink 1.13 as published, without a database, geometric mean of ten queries", reference, "events/s a core"),
        value / reference, "published for each query", True,
        {"millwheel": ours, "bytewax": theirs, "flink": FLINK, "events": EVENTS},
    )  # fmt: skip


def _median(runs: Iterable[dict[str, Any]], what: str) -> float:
    return common.median([run[what] for run in runs])


def _ours(url: str, query: str, turn: int) -> dict[str, Any]:
    job = NexmarkJob(
        url=url, pipeline=f"{query}_{turn}", queries=[query], events=EVENTS, order="ordered", per_second=PER_SECOND
    )  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection:
        before = common.server_cpu_s(connection)
        done = finish(start(job))
        postgres = common.server_cpu_s(connection) - before
        row = connection.execute(f"SELECT count(*) FROM {job.pipeline}.{query}".encode()).fetchone()
        connection.execute(f"DROP SCHEMA {job.pipeline} CASCADE".encode())
    if done.injected != EVENTS or done.quarantined or row is None:
        raise AssertionError(f"{query}: {done}")
    cpu = done.cpu_s + postgres
    return {
        "rate": EVENTS / done.seconds, "per_core": EVENTS / cpu, "per_python_core": EVENTS / done.cpu_s,
        "cpu_seconds": done.cpu_s, "postgres_cpu_seconds": postgres, "rows": row[0],
    }  # fmt: skip


def _theirs(query: str) -> dict[str, Any]:
    with common.work("bytewax") as path:
        return common.call(
            "nexmark_bytewax", query=query, events=EVENTS, per_second=PER_SECOND, path=str(path)
        )  # fmt: skip


def _compared(query: str, ours: int, theirs: int) -> None:
    """Where both sides give the same rows, there are as many."""
    if query in ("q0", "q1", "q2", "q3", "q11") and ours != theirs:
        raise AssertionError(f"{query}: {ours} rows, and Bytewax has {theirs}")


# --- docs/nexmark.md ----------------------------------------------------------------------------------------------


def published(result: dict[str, Any]) -> str:
    """The table of the benchmark, for Markdown."""
    samples = result["samples"]
    lines = [
        "| query | events/s | a core | of that, Python alone | Bytewax, a core | Flink 1.13 as published, a core |",
        "|---|---|---|---|---|---|",
    ]
    for query, runs in samples["millwheel"].items():
        theirs, flink = samples["bytewax"].get(query), samples["flink"].get(query)
        cells = [_median(runs, what) for what in ("rate", "per_core", "per_python_core")]
        cells += [theirs and _median(theirs, "per_core"), flink]
        lines.append(f"| {query} | {' | '.join('–' if cell is None else f'{cell:,.0f}' for cell in cells)} |")
    machine, versions, rounds = result["machine"], result["versions"], max(map(len, samples["millwheel"].values()))
    about = (
        f"{samples['events']:,} events, medians of {rounds}; {versions['system']}, "
        f"Python {versions['python']}, load before {machine.get('load_before', 0):.1f}, processors "
        f"{machine.get('busy', 0):.0%} busy, {machine.get('stolen', 0):.0%} of their time taken by other machines."
    )
    return "\n".join([*lines, "", about])


def written(text: str, name: str, content: str) -> str:
    """`text` with `content` between the markers of `name`."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, found, rest = text.partition(begin)
    _, also, tail = rest.partition(end)
    if not found or not also:
        raise ValueError(f"no markers {begin} and {end}")
    return f"{head}{begin}\n\n{content}\n\n{end}{tail}"


def publish() -> None:
    """Write what was measured last into the page."""
    text = DOC.read_text()
    measured = common.OUT / "nexmark.json"
    if measured.exists() and (result := json.loads(measured.read_text()))["value"] is not None:
        text = written(text, "figures", published(result))
    if OUT.exists():
        text = written(text, "queries", table([Line(**line) for line in json.loads(OUT.read_text())]))
    DOC.write_text(text)
    print(f"nexmark: {DOC.relative_to(common.ROOT)}")


if __name__ == "__main__":
    if sys.argv[1:] != ["publish"]:
        sys.exit("usage: python -m benchmarks.nexmark publish; python -m benchmarks nexmark measures")
    publish()
