"""`python -m examples.zeitgeist`: from a raw web log to the file of anomalies and its report.

Steps: Spark job (once per log) → pipeline on an embedded Postgres → anomalies.jsonl → report.html.  Killed at any
moment, the same command goes on where it was; after a finished run it only rebuilds the report.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from examples.zeitgeist import evaluate, observed, pipeline
from examples.zeitgeist.detector import Anomaly
from examples.zeitgeist.report import Stat, write_report
from examples.zeitgeist.spark_job import Summary, parse_log
from millwheel.errors import MillwheelError
from millwheel.launch import open_store, run
from millwheel.model import format_time
from millwheel.runtime.embedded import Progress
from millwheel_injectors import BoundedDisorder, SparkOutputSource
from millwheel_storage.reader import Reader

SLICE = Path(__file__).parent / "data" / "nasa-1995-07-11..14.log.gz"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or resume; returns the exit status."""
    options = _options(arguments)
    if not options.log.is_file():
        print(
            f"zeitgeist: no log at {options.log}: give LOG=<file in Common Log Format, may be .gz>",
            file=sys.stderr,
        )
        return 2
    if options.fresh:
        shutil.rmtree(options.out, ignore_errors=True)
    try:
        return _zeitgeist(options.log, options.out, options.store)
    except MillwheelError as error:
        print(f"zeitgeist: {error}", file=sys.stderr)
        return 1


def _zeitgeist(log: Path, out: Path, store: str | None) -> int:
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    summary = _parse(log, out)
    parsed = time.monotonic()
    wiring = pipeline.build(source(out), observed.window_end(summary.last_us), summary.offset_s)
    finished = out / "finished"
    with open_store(store, out / "store") as url:
        if not finished.exists():
            if not run(wiring, url, on_progress=_show).finished:
                print("\nzeitgeist: stopped; the same command goes on from here", file=sys.stderr)
                return 130
        else:
            print(f"zeitgeist: this run is finished, see {out}; rebuilding the report (FRESH=1 starts over)")
        rows = read_anomalies(url)
    write_anomalies(out / "anomalies.jsonl", rows)
    ran = time.monotonic()
    _report(out, rows, summary)
    finished.touch()
    sites = sum(row.scope == "site" for row in rows)
    print(
        f"zeitgeist: {summary.requests:,} requests ({summary.malformed} malformed lines), {sites} site and "
        f"{len(rows) - sites} page anomalies; Spark {parsed - began:.1f} s, pipeline {ran - parsed:.1f} s\n"
        f"  {out / 'anomalies.jsonl'}\n  {out / 'report.html'}"
    )
    for row in rows:
        if row.scope == "site":
            print(
                f"  site {row.kind:5} {row.start} to {row.end}  observed {row.observed}, expected {row.expected:.0f}"
            )
    return 0


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


def read_anomalies(url: str) -> list[Anomaly]:
    """The committed anomalies, in the order of the output file."""
    with Reader(url, "zeitgeist") as reader:
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
            )
            for r in reader.sink_rows("anomalies")
        ]
    return sorted(rows, key=lambda row: (row.start, row.scope, row.key, row.kind))


def write_anomalies(path: Path, rows: Sequence[Anomaly]) -> None:
    """One JSON object a line; whole or not there at all."""
    partial = path.with_suffix(".partial")
    partial.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    partial.rename(path)


def _parse(log: Path, out: Path) -> Summary:
    print(f"zeitgeist: parsing {log.name} with Spark", flush=True)
    return parse_log(log, out / "parsed")


def _report(out: Path, rows: Sequence[Anomaly], summary: Summary) -> None:
    wanted = {(row.scope, row.key) for row in rows}
    windows = observed.windows_by_key(out / "parsed" / "requests", wanted)
    end_us = observed.window_end(summary.last_us)
    stats = [
        Stat("requests", f"{summary.requests:,}"),
        Stat("malformed lines", f"{summary.malformed:,}"),
        Stat("site anomalies", f"{sum(row.scope == 'site' for row in rows):,}"),
        Stat("page anomalies", f"{sum(row.scope == 'page' for row in rows):,}"),
    ]
    write_report(
        out / "report.html",
        rows,
        lambda scope, key: evaluate.series_of(windows[scope, key], end_us),
        "Zeitgeist",
        stats,
    )


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
