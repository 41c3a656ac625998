"""`python -m examples.zeitgeist`: from a raw web log to the file of anomalies and its report.

Steps: Spark job (once per log) → pipeline on an embedded Postgres → anomalies.jsonl → report.html.  Killed at any
moment, the same command goes on where it was; after a finished run it only rebuilds the report.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from examples.zeitgeist import evaluate, observed, pipeline, results
from examples.zeitgeist.detector import Anomaly, Scope, sort_anomalies
from examples.zeitgeist.logfile import look_at
from examples.zeitgeist.report import Facts, Stat, write_report
from examples.zeitgeist.spark_job import parse_log
from millwheel import Pipeline
from millwheel.errors import MillwheelError, SourceError
from millwheel.host.progress import Progress
from millwheel.launch import open_store, run
from millwheel.model import format_time
from millwheel_injectors import BoundedDisorder, SparkOutputSource
from millwheel_storage.postgres.reader import Reader

SLICE = Path(__file__).parent / "data" / "nasa-1995-07-11..14.log.gz"

Windows = Mapping[tuple[Scope, str], dict[int, int]]


class WiredPipeline(msgspec.Struct, frozen=True):
    """A wired pipeline with what its report needs: figures, and observed windows of the keys asked for."""

    name: str
    out: Path
    log: str
    wiring: Pipeline
    first_us: int
    end_us: int
    offset_s: int
    figures: Mapping[str, int]
    windows: Callable[[Collection[tuple[Scope, str]]], Windows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or resume; returns the exit status."""
    options = read_options("zeitgeist", "log in Common Log Format, plain or gzip", __doc__, arguments)
    log, out = options.log or SLICE, options.out
    try:
        began = time.monotonic()
        results.claim(out, "zeitgeist", look_at(log), options.store, options.fresh)
        job = parse(log, out)
        print(f"zeitgeist: Spark's part took {time.monotonic() - began:.1f} s", flush=True)
        return conclude(job, options.store)
    except MillwheelError as error:
        print(f"zeitgeist: {error}", file=sys.stderr)
        return 1


def parse(log: Path, out: Path) -> WiredPipeline:
    """Run the Spark job unless it is done, and wire the pipeline on its output."""
    print(f"zeitgeist: parsing {log.name} with Spark", flush=True)
    try:
        summary = parse_log(log, out / results.PARSED)
    except SourceError:
        results.release(out)
        raise
    end_us = observed.input_end(summary.last_us)
    return WiredPipeline(
        "zeitgeist",
        out,
        log.name,
        pipeline.build(source(out), end_us, summary.offset_s),
        summary.first_us,
        end_us,
        summary.offset_s,
        {"requests": summary.requests, "malformed lines": summary.malformed},
        lambda wanted: observed.windows_by_key(out / results.PARSED / "requests", wanted),
    )


def source(out: Path) -> SparkOutputSource:
    """The injector on what the Spark job wrote below `out`."""
    return SparkOutputSource(
        "spark",
        out / results.PARSED / "requests",
        "time_us",
        BoundedDisorder(pipeline.DISORDER_US),
        type=pipeline.Request,
        columns=["time_us", "page", "parts", "late"],
        ordered=True,
    )


def conclude(job: WiredPipeline, store: str | None) -> int:
    """Run the pipeline to its end unless an earlier run did, then write the anomalies and their report."""
    out, began = job.out, time.monotonic()
    finished = out / results.FINISHED
    with open_store(store, out / results.STORE) as url:
        if store is not None:
            results.check_store(out, job.wiring.name, store)
        if finished.exists():
            print(f"{job.name}: this run is finished, see {out}; rebuilding the report (FRESH=1 starts over)")
        elif not run(job.wiring, url, on_progress=_show).finished:
            print(f"\n{job.name}: stopped; the same command goes on from here", file=sys.stderr)
            return 130
        rows = read_anomalies(url, job.wiring.name)
    seconds = time.monotonic() - began
    results.write_whole(out / results.ANOMALIES, b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    _report(job, rows)
    finished.touch()
    _print_findings(job, rows, seconds)
    print(f"{job.name}: the report took {time.monotonic() - began - seconds:.1f} s")
    return 0


def read_anomalies(url: str, name: str) -> list[Anomaly]:
    """The committed anomalies, in the order of the output file."""
    with Reader(url, name) as reader:
        rows = [
            Anomaly(
                r["scope"],
                r["key"],
                r["kind"],
                r["start_at"],
                r["end_at"],
                r["observed"],
                r["expected"],
                r["score"],
                r["open"],
            )
            for r in reader.sink_rows("anomalies")
        ]
    return sort_anomalies(rows)


def _report(job: WiredPipeline, rows: Sequence[Anomaly]) -> None:
    windows = job.windows({("site", ""), *((row.scope, row.key) for row in rows)})
    stats = [Stat(name, f"{value:,}") for name, value in job.figures.items()]
    stats += [Stat(f"{scope} anomalies", f"{sum(row.scope == scope for row in rows):,}") for scope in ("site", "page")]
    facts = Facts(
        title=job.name.capitalize(), log=job.log, first_us=job.first_us, end_us=job.end_us, offset_s=job.offset_s,
        stats=stats,
    )  # fmt: skip
    write_report(
        job.out / results.REPORT, facts, rows, lambda scope, key: evaluate.series_of(windows[scope, key], job.end_us)
    )


def _print_findings(job: WiredPipeline, rows: Sequence[Anomaly], seconds: float) -> None:
    sites = [row for row in rows if row.scope == "site"]
    figures = ", ".join(f"{value:,} {name}" for name, value in job.figures.items())
    print(
        f"{job.name}: {figures}; {len(sites)} site and {len(rows) - len(sites)} page anomalies; "
        f"the pipeline's part took {seconds:.1f} s\n  {job.out / results.ANOMALIES}\n  {job.out / results.REPORT}"
    )
    for row in sites:
        print(f"  site {row.kind:5} {row.start} to {row.end}  observed {row.observed}, expected {row.expected:.0f}"
              f"{', still open at the end of the log' if row.open else ''}")  # fmt: skip


def _show(progress: Progress, seconds: float) -> None:
    watermark = format_time(progress.watermarks["WindowCounter"])
    print(
        f"zeitgeist: {progress.injected:,} rows, {progress.injected / max(seconds, 0.1):,.0f}/s, "
        f"watermark {watermark}, late {progress.late}",
        flush=True,
    )


def read_options(name: str, log: str, doc: str | None, arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of an example; `log` says what its log is.

    Every log has an OUT of its own unless one is given: the next log is another run, not a change of the last one.
    """
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=doc)
    parser.add_argument("--log", type=Path, help=f"{log} (default: the one that the repository carries)")
    parser.add_argument("--out", type=Path, help=f"directory of the results (default: build/{name}, with --log "
                        f"build/{name}-<the log's name>)")  # fmt: skip
    parser.add_argument("--store", help="postgresql:// URL instead of the embedded Postgres")
    parser.add_argument("--fresh", action="store_true", help="drop what an earlier run made, and start over")
    options = parser.parse_args(arguments)
    if options.out is None:
        options.out = Path("build", name if options.log is None else f"{name}-{options.log.name}")
    return options


if __name__ == "__main__":
    sys.exit(main())
