"""Zeitgeist gives exactly the oracle's anomalies: end to end with Spark, and under every order and division of work."""

from __future__ import annotations

import asyncio
import gzip
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
from millwheel import Pipeline, Snapshots
from millwheel.core.source import injector
from millwheel.model import DAY, SECOND
from millwheel.ports import Declaration
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import BoundedDisorder, IterableSource
from millwheel_storage.memory import MemoryStore
from tests.chaos.test_zeitgeist_kills import log_of
from tests.unit.runtime.drive import run_to_end

ROOT = Path(__file__).resolve().parents[2]
OFFSET_S = -4 * 3600
FIRST_US = int(datetime(1995, 7, 12, tzinfo=timezone(timedelta(seconds=OFFSET_S))).timestamp()) * SECOND
DEATHS, SMALL = 4, 20
SPLITS: dict[str, tuple[str, ...]] = {"one": (), "two": ("page /images/",), "four": ("page /h", "page /s", "site")}


def asked(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, which has ended."""
    return subprocess.run(
        [sys.executable, "-m", "examples.zeitgeist", *arguments], cwd=ROOT, env=dict(os.environ),
        capture_output=True, text=True, timeout=540, check=False,
    )  # fmt: skip


def zeitgeist(out: Path, *log: str) -> str:
    """What the command prints; it must succeed."""
    done = asked(*log, "--out", str(out))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def whole(out: Path) -> dict[str, bytes]:
    """The files that a run has made, without those of its store."""
    found = {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if not name.startswith("store")}


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
@pytest.mark.timeout(900)
@pytest.mark.parametrize("days", ["13", pytest.param("all", marks=pytest.mark.long)])
def test_the_command_gives_the_oracles_anomalies_byte_for_byte(days: str, tmp_path: Path) -> None:
    out, log, given = tmp_path / "out", SLICE, list[str]()
    if days != "all":
        log = log_of(days, tmp_path / "access.log")
        given = ["--log", str(log)]
    printed = zeitgeist(out, *given)
    assert "late 0" in printed
    found = (out / "anomalies.jsonl").read_bytes()
    requests = [row for row in evaluate.read_log(log) if isinstance(row, LoggedRequest)]
    assert found == as_lines(evaluate.expected_anomalies(requests, OFFSET_S))
    rows = [msgspec.json.decode(line, type=Anomaly) for line in found.splitlines()]
    assert {row.scope for row in rows} == {"site", "page"}
    if days == "all":  # for a landing, test_detection.py asks the like of the oracle's anomalies of all days
        check_acceptance(rows)

    report = (out / "report.html").read_bytes()
    (out / "anomalies.jsonl").unlink()
    (out / "report.html").unlink()
    assert "this run is finished" in zeitgeist(out, *given)
    assert (out / "anomalies.jsonl").read_bytes() == found
    assert (out / "report.html").read_bytes() == report

    # Of another log, this OUT is refused before Spark starts.
    another = tmp_path / "another.log"
    with gzip.open(SLICE) as lines:
        another.write_bytes(b"".join(lines.readline() for _ in range(1_000)))
    before = whole(out)
    refused = asked("--log", str(another), "--out", str(out))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"{out} holds the results of {log}" in refused.stderr
    assert whole(out) == before


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


def pipeline_of(
    rows: list[LoggedRequest], split: str, durability: Snapshots | None = None
) -> tuple[list[tuple[pipeline.Request, int]], Pipeline]:
    """The rows of the source, and the pipeline on it."""
    values = [
        (pipeline.Request(row.timestamp_us, row.path if is_page_view(row) else None), row.timestamp_us) for row in rows
    ]
    source = IterableSource("log", values, BoundedDisorder(pipeline.DISORDER_US))
    end_us = observed.input_end(max(time_us for _, time_us in values))
    return values, pipeline.build(source, end_us, OFFSET_S, SPLITS[split], durability=durability)


def shown(store: MemoryStore) -> bytes:
    """The anomalies that can be seen."""
    fields = ("scope", "key", "kind", "start_at", "end_at", "observed", "expected", "score", "open")
    return as_lines([Anomaly(*(row[field] for field in fields)) for row in store.sinks["anomalies"].values()])


def positions(store: MemoryStore) -> int:
    """Rows that are durably read."""
    return sum(position.position for position in store.sources.values())


class DyingStore(MemoryStore):
    """Once `goal` rows are durably read, its next epoch never ends: what its run has not heard of may be declared or not."""

    goal = 0
    declared_first = False

    def __init__(self) -> None:
        super().__init__()
        self.dying = asyncio.Event()

    async def declare(self, declaration: Declaration) -> bool:
        """See `Store`."""
        dies = positions(self) >= self.goal
        kept = await super().declare(declaration) if self.declared_first or not dies else False
        if dies:
            self.dying.set()
            await asyncio.Event().wait()
        return kept


async def die(wired: Pipeline, store: DyingStore) -> int:
    """Run until the store says so, and end as by a kill.  Returns how many rows were read."""
    store.dying = asyncio.Event()
    run = EmbeddedRun(wired.graph(), store, wired.tables)
    task = asyncio.ensure_future(run.run())
    async with asyncio.timeout(120):
        await store.dying.wait()
    read = run.progress().injected
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "work_limit", "seed"),
    [
        ("two", 37, None),
        ("four", 111, 3),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (("one", 4_096, None), ("two", 500, 1), ("four", 4_096, 2))
        ),
    ],
)
def test_order_and_division_of_work_do_not_matter(
    requests: list[LoggedRequest], oracle: bytes, split: str, work_limit: int, seed: int | None
) -> None:
    rows = requests if seed is None else shuffled(requests, seed)
    values, wired = pipeline_of(rows, split)
    for name, spec in wired._computations.items():
        settings = msgspec.structs.replace(spec.settings, work_limit_records=work_limit)
        wired._computations[name] = msgspec.structs.replace(spec, settings=settings)
    store = MemoryStore()
    progress = run_to_end(wired, store)
    assert (progress.late, progress.rejected, progress.quarantined) == (0, 0, 0)
    assert progress.injected == len(values)
    assert shown(store) == oracle
    assert store.sinks["late_requests"] == {}


@pytest.mark.timeout(900)
def test_snapshots_and_deaths_between_them_give_the_bytes_of_checkpoints(
    requests: list[LoggedRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row for row in requests if zlib.crc32(row.path.encode()) % SMALL == 0]
    logged = MemoryStore()
    run_to_end(pipeline_of(rows, "two")[1], logged)
    expected = shown(logged)
    assert expected.count(b'"scope":"page"')
    assert expected == as_lines(evaluate.expected_anomalies(rows, OFFSET_S))

    for name, few in {"FIRST_READ_ROWS": 64, "READ_LIMIT_ROWS": 64, "UNACKED_LIMIT_READS": 2}.items():
        monkeypatch.setattr(injector, name, few)  # so that a run has many epochs, however slow it is
    store, repeated = DyingStore(), 0
    for death in range(DEATHS):
        store.goal, store.declared_first = (death + 1) * len(rows) // (DEATHS + 2), death % 2 == 1
        before = positions(store)
        repeated += (
            before + asyncio.run(die(pipeline_of(rows, "two", Snapshots(every_ms=10))[1], store)) - positions(store)
        )
    assert repeated > 0, "what a death loses is read again"
    assert store.goal <= positions(store) < len(rows)
    store.goal = len(rows) + 1
    before = positions(store)
    progress = run_to_end(pipeline_of(rows, "two", Snapshots(every_ms=10))[1], store)
    assert (progress.late, progress.injected) == (0, len(rows) - before)
    assert shown(store) == expected
    assert store.sinks["late_requests"] == {}
