"""`python -m examples.nexmark`: every query, alone, in every order of arrival, cut and killed, judged by SQL; and timed.

Lives here: the matrix, and its table.  Latency is that of a run at a steady rate, below what the query can take.  It goes
from a result's event time, or the end of its window, to the commit of its row.  Events may be out of order for 2 s, so the
latency of a result that waits for them includes these 2 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from examples.nexmark import oracle
from examples.nexmark.harness import JobFailed, finish, killed, left_over, start
from examples.nexmark.job import NexmarkJob
from examples.nexmark.queries import QUERIES
from millwheel import DAY, SECOND
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.testing import temporary_postgres

ORDERS: Final = (
    ("ordered", 1),
    ("shuffled", 2),
    ("late", 3),
    ("shuffled", 4),
    ("late", 5),
    ("doubled", 6),
    ("late", 7),
)
"""With 1 to 7 intervals."""
KILLS: Final = 5
LEAD_S: Final = 6.0
"""From the start of a process to its first event, so that the event times of a timed run are those of the clock."""

OUT: Final = Path("build/nexmark.json")
HEAD: Final = ("query", "events/s", "a core", "p50 ms", "p99 ms", "rows", "equal in", "killed", "state left")


class Line(msgspec.Struct, frozen=True):
    """What was found of one query."""

    query: str
    events_per_s: float
    events_per_cpu_s: float
    p50_ms: float | None
    p99_ms: float | None
    rows: int
    equal: int
    runs: int
    kills: int
    left: int
    differences: list[str]

    def cells(self) -> list[str]:
        """As text."""
        p50, p99 = ("" if ms is None else f"{ms:,.0f}" for ms in (self.p50_ms, self.p99_ms))
        return [
            self.query, f"{self.events_per_s:,.0f}", f"{self.events_per_cpu_s:,.0f}", p50, p99, f"{self.rows:,}",
            f"{self.equal} of {self.runs} runs", f"{self.kills} × the process", str(self.left),
        ]  # fmt: skip


class Matrix:
    """All runs of one query on one server."""

    def __init__(self, url: str, connection: psycopg.Connection[Any], options: argparse.Namespace) -> None:
        self._url, self._connection, self._options = url, connection, options
        self._numbers = iter(range(1_000_000))

    def line(self, query: str) -> Line:
        """Run the matrix."""
        differences: list[str] = []
        runs, kills, left = 0, 0, 0
        for order, intervals in ORDERS:
            job = self.job(query, order=order, intervals=intervals, arrival_seed=intervals)
            finish(start(job))
            runs += 1
            left = max(left, sum(left_over(self._connection, job.pipeline).values()))
            differences += self._judged(job, f"{order}, {intervals} intervals")
            self._drop(job)
        job = self.job(query, order="doubled", intervals=3, batch=200, rate=self._options.events / 3)
        _, kills = killed(job, self._connection, KILLS)
        differences += self._judged(job, f"killed {kills} times")
        self._drop(job)
        job = self.job(query, order="ordered", events=self._options.timed)
        done, rows = finish(start(job)), self._count(job)
        self._drop(job)
        per_s, per_cpu = done.injected / done.seconds, done.injected / done.cpu_s
        p50, p99 = self._latency(query)
        return Line(
            query, per_s, per_cpu, p50, p99, rows, runs + 1 - len(differences), runs + 1, kills, left, differences
        )  # fmt: skip

    def job(self, query: str, **more: Any) -> NexmarkJob:
        """A job of this run, under a pipeline name of its own."""
        pipeline = f"{query}_{next(self._numbers)}"
        given = {"events": self._options.events, "seed": self._options.seed, **more}
        return NexmarkJob(url=self._url, pipeline=pipeline, queries=[query], **given)

    def _judged(self, job: NexmarkJob, what: str) -> list[str]:
        found = oracle.difference(self._connection, QUERIES[job.queries[0]], job.pipeline)
        return [] if found is None else [f"{job.queries[0]}, {what}: {found}"]

    def _count(self, job: NexmarkJob) -> int:
        row = self._connection.execute(f"SELECT count(*) FROM {job.pipeline}.{job.queries[0]}".encode()).fetchone()
        assert row is not None
        return int(row[0])

    def _drop(self, job: NexmarkJob) -> None:
        self._connection.execute(f"DROP SCHEMA {job.pipeline} CASCADE".encode())

    def _latency(self, query: str) -> tuple[float | None, float | None]:
        """p50 and p99, ms, of rows that were committed while events came; None: the query gives none before the end."""
        rate, seconds = self._options.rate, self._options.seconds
        # Days change when a third of the events has come; the clock is the event time's, but for whole days and more.
        begin_us = round((time.time() + LEAD_S) * SECOND)
        start_us = 20_000 * DAY - round(seconds / 3) * SECOND
        job = self.job(
            query, order="ordered", events=round(rate * seconds), rate=rate, per_second=rate, start_us=start_us,
            begin_s=begin_us / SECOND,
        )  # fmt: skip
        finish(start(job))
        end_us = start_us + round(seconds * SECOND)
        shift_us = begin_us - start_us
        row = self._connection.execute(
            f"""SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY ms) FROM (
                    SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin)) * 1000 - (at + {shift_us}) / 1000.0 AS ms
                    FROM {job.pipeline}.{query} WHERE at BETWEEN {start_us} AND {end_us - 3 * SECOND}) timed""".encode()
        ).fetchone()
        self._drop(job)
        found = None if row is None else row[0]
        return (None, None) if found is None else (float(found[0]), float(found[1]))


def table(lines: Sequence[Line]) -> str:
    """For Markdown."""
    rows = [list(HEAD), ["---"] * len(HEAD), *(line.cells() for line in lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def timed(server: EmbeddedPostgres) -> None:
    """Have the server remember when each transaction was committed, by which rows are timed."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET track_commit_timestamp = on")
    server.stop()
    server.start()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; the status is 1 if any row of any run differs, or a job fails."""
    parser = argparse.ArgumentParser(prog="nexmark", description=__doc__)
    parser.add_argument("queries", nargs="*", default=[], metavar="query", help="q0 to q20; default: all")
    parser.add_argument("--events", type=int, default=5_000, help="of each run that is judged")
    parser.add_argument("--timed", type=int, default=50_000, help="of the run in order whose events/s are printed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=500, help="events/s of the run whose latency is printed")
    parser.add_argument("--seconds", type=float, default=12.0, help="how long it takes")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.queries if name not in QUERIES]
    if unknown:
        parser.error(f"no such query: {', '.join(unknown)}; there are {', '.join(QUERIES)}")
    lines: list[Line] = []
    began = time.monotonic()
    with temporary_postgres() as server:
        timed(server)
        with psycopg.connect(server.url, autocommit=True) as connection:
            matrix = Matrix(server.url, connection, options)
            oracle.load(connection, matrix.job("q0").made())
            for query in options.queries or QUERIES:
                try:
                    lines.append(matrix.line(query))
                except JobFailed as error:
                    print(f"nexmark: {query}: {error}", file=sys.stderr)
                    return 1
                print(table(lines[-1:]).splitlines()[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([msgspec.to_builtins(line) for line in lines], indent=1) + "\n")
    print(f"\n{table(lines)}\n\nnexmark: {(time.monotonic() - began) / 60:.1f} minutes")
    differences = [difference for line in lines for difference in line.differences]
    for difference in differences:
        print(f"nexmark: {difference}", file=sys.stderr)
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
