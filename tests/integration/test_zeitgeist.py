"""Zeitgeist gives exactly the oracle's anomalies: end to end with Spark, and under every order and division of work."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import msgspec
import pytest

from examples.zeitgeist import evaluate, observed, pipeline
from examples.zeitgeist.__main__ import SLICE
from examples.zeitgeist.detector import Anomaly
from examples.zeitgeist.logline import LoggedRequest, is_page_view
from millwheel.model import DAY, SECOND
from millwheel_injectors import BoundedDisorder, IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import run_to_end

ROOT = Path(__file__).resolve().parents[2]
OFFSET_S = -4 * 3600
FIRST_US = int(datetime(1995, 7, 12, tzinfo=timezone(timedelta(seconds=OFFSET_S))).timestamp()) * SECOND
SPLITS: dict[str, tuple[str, ...]] = {"one": (), "two": ("page /images/",), "four": ("page /h", "page /s", "site")}


def zeitgeist(out: Path) -> str:
    """What the command prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "examples.zeitgeist", "--out", str(out)], cwd=ROOT, env=dict(os.environ),
        capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def as_lines(rows: list[Anomaly]) -> bytes:
    ordered = sorted(rows, key=lambda row: (row.start, row.scope, row.key, row.kind))
    return b"".join(msgspec.json.encode(row) + b"\n" for row in ordered)


def overlapping(rows: list[Anomaly], kind: str, start: str, end: str) -> list[Anomaly]:
    """Anomalies of a kind that share some time with [start, end), local times of July 1995 as "13T07:00:00"."""
    low, high = (f"1995-07-{time}-04:00" for time in (start, end))
    return [row for row in rows if row.kind == kind and row.start < high and row.end > low]


def check_acceptance(rows: list[Anomaly]) -> None:
    """What the log is known to hold."""
    launch = overlapping(rows, "spike", "13T07:00:00", "13T12:00:00")
    assert any(row.scope == "site" for row in launch)
    for part in ("/countdown/countdown", "/video/livevideo", "/liftoff"):
        assert any(part in row.key for row in launch), f"no page with {part} spikes at the launch"
    silence = overlapping(rows, "dip", "13T19:48:59", "13T20:11:05")
    assert any(row.scope == "site" for row in silence)
    per_day = evaluate.alarms_per_day(rows)
    ordinary: list[dict[str, int]] = [per_day.get(day, Counter[str]()) for day in ("1995-07-11", "1995-07-12")]
    assert sum(day["site spike"] + day["site dip"] for day in ordinary) <= 3
    assert all(day["page spike"] + day["page dip"] <= 40 for day in ordinary)


@pytest.mark.spark
@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_gives_the_oracles_anomalies_byte_for_byte(tmp_path: Path) -> None:
    out = tmp_path / "out"
    printed = zeitgeist(out)
    assert "late 0" in printed
    found = (out / "anomalies.jsonl").read_bytes()
    requests = [row for row in evaluate.read_log(SLICE) if isinstance(row, LoggedRequest)]
    assert found == as_lines(evaluate.expected_anomalies(requests, OFFSET_S))
    check_acceptance([msgspec.json.decode(line, type=Anomaly) for line in found.splitlines()])

    report = (out / "report.html").read_bytes()
    (out / "anomalies.jsonl").unlink()
    (out / "report.html").unlink()
    assert "this run is finished" in zeitgeist(out)
    assert (out / "anomalies.jsonl").read_bytes() == found
    assert (out / "report.html").read_bytes() == report


@pytest.fixture(scope="module")
def requests() -> list[LoggedRequest]:
    """12 and 13 July, a quarter of the paths: enough for episodes of both scopes, quick enough to run often."""
    return [
        row
        for row in evaluate.read_log(SLICE)
        if isinstance(row, LoggedRequest)
        and FIRST_US <= row.timestamp_us < FIRST_US + 2 * DAY
        and zlib.crc32(row.path.encode()) % 4 == 0
    ]


@pytest.fixture(scope="module")
def oracle(requests: list[LoggedRequest]) -> bytes:
    rows = evaluate.expected_anomalies(requests, OFFSET_S)
    assert {row.scope for row in rows} == {"site", "page"}
    return as_lines(rows)


def shuffled(requests: list[LoggedRequest], seed: int) -> list[LoggedRequest]:
    """Out of order by less than the declared disorder."""
    dice = random.Random(seed)
    first = sorted(requests, key=lambda row: row.timestamp_us)
    places = [row.timestamp_us + dice.randrange(pipeline.DISORDER_US) for row in first]
    return [first[i] for i in sorted(range(len(first)), key=places.__getitem__)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "work_limit", "seed"),
    [("one", 4_096, None), ("two", 37, None), ("two", 500, 1), ("four", 4_096, 2), ("four", 111, 3)],
)
def test_order_and_division_of_work_do_not_matter(
    requests: list[LoggedRequest], oracle: bytes, split: str, work_limit: int, seed: int | None
) -> None:
    rows = requests if seed is None else shuffled(requests, seed)
    values = [
        (pipeline.Request(row.timestamp_us, row.path if is_page_view(row) else None), row.timestamp_us) for row in rows
    ]
    source = IterableSource("log", values, BoundedDisorder(pipeline.DISORDER_US))
    end_us = observed.input_end(max(time_us for _, time_us in values))
    wired = pipeline.build(source, end_us, OFFSET_S, SPLITS[split])
    for name, spec in wired._computations.items():
        settings = msgspec.structs.replace(spec.settings, work_limit_records=work_limit)
        wired._computations[name] = msgspec.structs.replace(spec, settings=settings)
    store = MemoryStore()
    progress = run_to_end(wired, store)
    assert (progress.late, progress.rejected, progress.quarantined) == (0, 0, 0)
    assert progress.injected == len(values)
    found = [
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
        for r in store.sinks["anomalies"].values()
    ]
    assert as_lines(found) == oracle
    assert store.sinks["late_requests"] == {}
