"""Whole runs under snapshots on Postgres: the same results as under checkpoints, through kills and changes of durability."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import (
    Checkpoints,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    limits,
    subscribe,
)
from millwheel.core.source import injector
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.reader import Reader
from tests.integration.places import Place
from tests.unit.runtime.drive import (
    Line,
    expected_counts,
    run_cancelled,
    run_to_end,
    run_until,
    text_lines,
    word_count,
)

pytestmark = pytest.mark.postgres

ROWS = text_lines(3_000, seed=1)
SPLITS = {"split_keys": ("line 3", "line 5")}, {"split_keys": ("mind", "or")}
OFTEN = Snapshots(every_ms=20)

forgiving = pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")


class Home(Place):
    """Where a word count lives."""

    def check(self, rows: list[tuple[Line, int]] = ROWS) -> None:
        by_line, by_word = expected_counts(rows)
        assert self.cells("Split") == by_line
        assert self.cells("Count") == by_word


@pytest.fixture
def home(postgres: EmbeddedPostgres, pipeline: str) -> Home:
    return Home(postgres.url, pipeline)


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small bundles, so that a cancelled run has many moments to be cancelled at."""
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 100)


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "several intervals": SPLITS,
    "tiny cache": ({"cache_limit_bytes": 1}, {"cache_limit_bytes": 1}),
    "small works": ({"work_limit_records": 7}, {"work_limit_records": 3}),
    "weak productions": ({"productions": "weak"}, {}),
    "not exactly once": ({"exactly_once": False}, {"exactly_once": False}),
    "all": ({**SPLITS[0], "cache_limit_bytes": 1}, {**SPLITS[1], "cache_limit_bytes": 1, "work_limit_records": 50}),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.usefixtures("small_reads")
def test_counts_are_those_of_checkpoints_and_nothing_is_left_behind(
    home: Home, settings: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    progress = run_to_end(word_count(home.name, ROWS, *settings, OFTEN), home.store())
    home.check()
    tables = home.tables()
    for table in ("checkpoint_log", "production", "timer", "hold", "quarantine", "redrive", "delivered"):
        assert tables[table] == [], f"{table} is not empty after the run"
    assert tables["declared_epoch"][0][0] > 1
    assert progress.injected == len(ROWS)
    assert (progress.late, progress.duplicates, progress.rejected, progress.quarantined) == (0, 0, 0, 0)


def test_a_finished_pipeline_does_nothing_more(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS, durability=OFTEN), home.store())
    again = run_to_end(word_count(home.name, ROWS, durability=OFTEN), home.store())
    assert (again.records, again.injected) == (0, 0)
    home.check()


@forgiving
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
@pytest.mark.usefixtures("small_reads")
def test_cancelled_at_random_moments_and_resumed_the_counts_are_exact(home: Home, seed: int) -> None:
    dice, few, rows = random.Random(seed), {"work_limit_records": 60}, text_lines(12_000, seed=1)
    split, count = SPLITS if seed % 2 else ({}, {})
    cancelled = 0
    while cancelled < 6:
        pipeline = word_count(home.name, rows, {**split, **few}, {**count, **few}, OFTEN)
        if run_cancelled(pipeline, home.store(), dice.uniform(0.05, 0.2)):
            break
        cancelled += 1
    run_to_end(word_count(home.name, rows, split, count, OFTEN), home.store())
    assert cancelled > 0
    home.check(rows)


@forgiving
@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@pytest.mark.usefixtures("small_reads")
def test_a_run_goes_on_under_the_other_durability_wherever_it_was_cut_off(home: Home, seed: int) -> None:
    dice, few = random.Random(seed), {"work_limit_records": 60}
    split, count = SPLITS if seed % 2 else ({}, {})
    ways: list[Checkpoints | Snapshots] = [OFTEN, Checkpoints()]
    for turn in range(8):
        pipeline = word_count(home.name, ROWS, {**split, **few}, {**count, **few}, ways[(seed // 2 + turn) % 2])
        if run_cancelled(pipeline, home.store(), dice.uniform(0.05, 0.15)):
            break
    run_to_end(word_count(home.name, ROWS, split, count, ways[seed % 2]), home.store())
    home.check()
    assert home.tables()["checkpoint_log"] == home.tables()["production"] == []


@pytest.mark.usefixtures("small_reads")
def test_an_epoch_with_too_many_changes_ends_before_its_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """No epoch would end within an hour; sources wait until one has, and go on."""
    rows = text_lines(12_000, seed=1)
    monkeypatch.setattr(limits, "EPOCH_LIMIT_WRITES", 500)
    run_to_end(word_count(home.name, rows, {}, {}, Snapshots(every_ms=3_600_000)), home.store())
    home.check(rows)
    assert home.tables()["declared_epoch"][0][0] > 2  # two end a run of any length


def test_what_is_not_declared_is_not_seen(home: Home) -> None:
    """With an epoch so long that none ends, a stopped run leaves nothing."""

    def some(run: EmbeddedRun) -> bool:
        return sum(core.newest_seq for _, core in run.worker.actors.intervals()) > 4

    run_until(word_count(home.name, ROWS, {"work_limit_records": 7}, durability=Snapshots(60_000)), home.store(), some)
    assert home.cells("Split") == {} == home.cells("Count")
    assert home.tables()["declared_epoch"] == []


KILLED = """
import asyncio, os, signal, sys, threading
from millwheel import Snapshots
from millwheel.core.source import injector
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import text_lines, until, word_count

injector.READ_LIMIT_ROWS = 40
url, name, delay = sys.argv[1:]
killer = threading.Timer(float(delay), os.kill, (os.getpid(), signal.SIGKILL))
killer.daemon = True

def serving(run):
    if run.worker.serving and not killer.is_alive():
        killer.start()
    return False

few = {"work_limit_records": 50}
pipeline = word_count(name, text_lines(20_000, seed=2), few, few, Snapshots(every_ms=20))
asyncio.run(until(pipeline, PostgresStore(url, name), serving))
"""


def test_killed_at_random_moments_nothing_is_lost_or_doubled(home: Home) -> None:
    dice, root = random.Random(5), Path(__file__).resolve().parents[2]
    ends: list[subprocess.CompletedProcess[bytes]] = []
    declared: set[tuple[int, ...]] = set()
    longer = 1.0
    while len(ends) < 8 or (len(declared) < 3 and len(ends) < 24):
        delay = f"{longer * dice.uniform(0.2, 0.6):.3f}"
        ends.append(subprocess.run([sys.executable, "-c", KILLED, home.url, home.name, delay], cwd=root, check=False))
        known = len(declared)
        declared |= {*home.tables()["declared_epoch"]}
        # What may have ended the process runs one by one, and no epoch ends before: a slow machine needs longer for that.
        longer = 1.0 if len(declared) > known else 1.5 * longer
        if not ends[-1].returncode:
            break
    assert sum(end.returncode == -signal.SIGKILL for end in ends) > 3
    assert {end.returncode for end in ends} <= {0, -signal.SIGKILL}
    assert len(declared) > 2
    rows = text_lines(20_000, seed=2)
    run_to_end(word_count(home.name, rows, durability=OFTEN), home.store())
    home.check(rows)


# --- rows that the database refuses -------------------------------------------------------------------------------

numbers = Stream("numbers", JsonCoder(int))
passed = Stream("passed", JsonCoder(int))
ledger = Table("ledger", {"number": "bigint"}, ("number",))


class Pass(Computation[int]):
    """Hands numbers on."""

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        context.produce(passed, record.value)


class Write(Computation[int]):
    """Lists its numbers, and writes a row for each."""

    seen = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.append(record.value)
        context.upsert(ledger, {"number": record.value})


def writing(name: str, direct: bool) -> Pipeline:
    pipeline = Pipeline(name, durability=OFTEN)
    pipeline.inject(IterableSource("rows", [(n, n) for n in range(300)]), into=numbers)
    pipeline.add(Pass, [subscribe(numbers, str)], [passed])
    pipeline.add(Write, [subscribe(numbers if direct else passed, lambda n: f"key {n % 7}")], work_limit_records=9)
    pipeline.sink(ledger)
    return pipeline


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.usefixtures("small_reads")
def test_a_refused_row_sends_its_key_to_quarantine_and_the_rest_goes_on(home: Home, direct: bool) -> None:
    """`direct`: the records have the same ids after the whole pipeline went back; else they have others."""

    async def make() -> None:
        store = home.store()
        await store.open_pipeline(writing(home.name, direct).graph().shape())
        await store.close()

    asyncio.run(make())
    place = sql.Identifier(home.name)
    with psycopg.connect(home.url, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER TABLE {}.ledger ADD CONSTRAINT nope CHECK (number <> 150)").format(place))
        progress = run_to_end(writing(home.name, direct), home.store())
        poisoned = f"key {150 % 7}"
        assert (progress.quarantined, progress.in_quarantine) == (1, 1)
        with Reader(home.url, home.name) as reader:
            assert [key for _, key, _ in reader.quarantined()] == [poisoned]
            waits = [msgspec.json.decode(row.value) for row in reader.quarantine_rows("Write", poisoned)]
            rows = {row["number"] for row in reader.sink_rows("ledger")}
            reader.request_redrive("Write", poisoned)
        assert 150 in waits
        assert rows == {*range(300)} - {*waits}
        connection.execute(sql.SQL("ALTER TABLE {}.ledger DROP CONSTRAINT nope").format(place))
    run_to_end(writing(home.name, direct), home.store())
    with Reader(home.url, home.name) as reader:
        assert {row["number"] for row in reader.sink_rows("ledger")} == {*range(300)}
    seen = [n for cells in home.cells("Write").values() for cell, n in cells.items() if cell.startswith("seen[")]
    assert sorted(seen) == [*range(300)]
