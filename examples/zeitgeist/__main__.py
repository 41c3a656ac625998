"""`python -m examples.zeitgeist`: from a raw web log to the file of anomalies and its report.

Steps: Spark job (once per log) → pipeline on an embedded Postgres → anomalies.jsonl → report.html.  Killed at any
moment, the same command goes on where it was; after a finished run it only rebuilds the report.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from examples.zeitgeist import evaluate, observed, pipeline
from examples.zeitgeist.detector import Anomaly, Scope, sort_anomalies
from examples.zeitgeist.report import Stat, write_report
from examples.zeitgeist.spark_job import parse_log
from millwheel import Pipeline
from millwheel.errors import MillwheelError
from millwheel.launch import open_store, run
from millwheel.model import format_time
from millwheel.runtime.progress import Progress
from millwheel_injectors import BoundedDisorder, SparkOutputSource
from millwheel_storage.reader import Reader

SLICE = Path(__file__).parent / "data" / "nasa-1995-07-11..14.log.gz"

Windows = Mapping[tuple[Scope, str], dict[int, int]]


class Job(msgspec.Struct, frozen=True):
    """A wired pipeline with what its report needs: figures, and observed windows of the keys asked for."""

    name: str
    out: Path
    wiring: Pipeline
    end_us: int
    figures: Mapping[str, int]
    windows: Callable[[Collection[tuple[Scope, str]]], Windows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or resume; returns the exit status."""
    options = _options(arguments)
    if not options.log.is_file():
        print(f"zeitgeist: no log at {options.log}: give LOG=<file in Common Log Format, may be .gz>", file=sys.stderr)
        return 2
    if options.fresh:
        shutil.rmtree(options.out, ignore_errors=True)
    try:
        began = time.monotonic()
        job = parse(options.log, options.out)
        print(f"zeitgeist: Spark's part took {time.monotonic() - began:.1f} s", flush=True)
        return conclude(job, options.store)
    except MillwheelError as error:
        print(f"zeitgeist: {error}", file=sys.stderr)
        return 1


def parse(log: Path, out: Path) -> Job:
    """Run the Spark job unless it is done, and wire the pipeline on its output."""
    print(f"zeitgeist: parsing {log.name} with Spark", flush=True)
    summary = parse_log(log, out / "parsed")
    end_us = observed.window_end(summary.last_us)
    return Job(
        "zeitgeist",
        out,
        pipeline.build(source(out), end_us, summary.offset_s),
        end_us,
        {"requests": summary.requests, "malformed lines": summary.malformed},
        lambda wanted: observed.windows_by_key(out / "parsed" / "requests", wanted),
    )


def source(out: Path) -> SparkOutputSource:
    """The injector on what the Spark job wrote below `out`."""
    return SparkOutputSource(
        "spark",
        out / "parsed" / "requests",
        "time_us",
        BoundedDisorder(pipeline.DISORDER_US),
        type=pipeline.Request,
        columns=["time_us", "page"],
        ordered=True,
    )


def conclude(job: Job, store: str | None, fresh: bool = False) -> int:
    """Run the pipeline to its end unless an earlier run did, then write the anomalies and their report."""
    out, began = job.out, time.monotonic()
    if fresh:
        shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    finished = out / "finished"
    with open_store(store, out / "store") as url:
        if finished.exists():
            print(f"{job.name}: this run is finished, see {out}; rebuilding the report (FRESH=1 starts over)")
        elif not run(job.wiring, url, on_progress=_show).finished:
            print(f"\n{job.name}: stopped; the same command goes on from here", file=sys.stderr)
            return 130
        rows = read_anomalies(url, job.wiring.name)
    write_anomalies(out / "anomalies.jsonl", rows)
    _report(job, rows)
    finished.touch()
    _print_findings(job, rows, time.monotonic() - began)
    return 0


def read_anomalies(url: str, name: str) -> list[Anomaly]:
    """The committed anomalies, in the order of the output file."""
    with Reader(url, name) as reader:
        rows = [
            Anomaly(
                r["scope"], r["key"], r["kind"], r["start_at"], r["end_at"], r["observed"], r["expected"], r["score"]
            )
            for r in reader.sink_rows("anomalies")
        ]
    return sort_anomalies(rows)


def write_anomalies(path: Path, rows: Sequence[Anomaly]) -> None:
    """One JSON object a line; whole or not there at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    partial.rename(path)


def _report(job: Job, rows: Sequence[Anomaly]) -> None:
    windows = job.windows({(row.scope, row.key) for row in rows})
    stats = [Stat(name, f"{value:,}") for name, value in job.figures.items()]
    stats += [Stat(f"{scope} anomalies", f"{sum(row.scope == scope for row in rows):,}") for scope in ("site", "page")]
    write_report(
        job.out / "report.html",
        rows,
        lambda scope, key: evaluate.series_of(windows[scope, key], job.end_us),
        job.name.capitalize(),
        stats,
    )


def _print_findings(job: Job, rows: Sequence[Anomaly], seconds: float) -> None:
    sites = [row for row in rows if row.scope == "site"]
    figures = ", ".join(f"{value:,} {name}" for name, value in job.figures.items())
    print(
        f"{job.name}: {figures}; {len(sites)} site and {len(rows) - len(sites)} page anomalies; "
        f"the pipeline's part took {seconds:.1f} s\n  {job.out / 'anomalies.jsonl'}\n  {job.out / 'report.html'}"
    )
    for row in sites:
        print(f"  site {row.kind:5} {row.start} to {row.end}  observed {row.observed}, expected {row.expected:.0f}")


def _show(progress: Progress, seconds: float) -> None:
    watermark = format_time(progress.watermarks["WindowCounter"])
    print(
        f"zeitgeist: {progress.injected:,} requests, {progress.injected / max(seconds, 0.1):,.0f}/s, "
        f"watermark {watermark}, late {progress.late}",
        flush=True,
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.zeitgeist", description=__doc__)
    parser.add_argument("--log", type=Path, default=SLICE, help="log in Common Log Format, plain or gzip")
    parser.add_argument("--out", type=Path, default=Path("build/zeitgeist"), help="directory of the results")
    parser.add_argument("--store", help="postgresql:// URL instead of the embedded Postgres")
    parser.add_argument("--fresh", action="store_true", help="drop earlier results and start over")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
