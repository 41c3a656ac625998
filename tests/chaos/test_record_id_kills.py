"""Rows that clients send again, under `kill -9`: each id counts once, across files, runs and restarts.

The pipeline runs in a process of its own on a Postgres that stays; it is killed at random until it has read everything.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel_storage.testing import temporary_postgres

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MILLWHEEL_KILLS", "5"))
SEED = int(os.environ.get("MILLWHEEL_SEED", "1995"))
FILES = 4
ROWS = 6_000
KEYS = 50

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(900)]

PROGRAM = """
import json, sys, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, ValueCell, limits, subscribe
from millwheel.launch import run
from millwheel_injectors import FileSource, JsonLines
from millwheel.core.source import injector

limits.FOLD_TRIGGER_CHECKPOINTS = 8
limits.OUTSIDE_READ_IDS = 1_000
injector.READ_LIMIT_ROWS = 200
rows = Stream("rows", JsonCoder(dict))
counted = Stream("counted", JsonCoder(dict))
sums = Table("sums", {"key": "text", "count": "bigint", "total": "bigint"}, ("key",))


class Pass(Computation):
    def ProcessRecord(self, context, record):
        time.sleep(0.0001)  # a quick machine would be done before it is killed often enough
        context.produce(counted, record.value)


class Sum(Computation):
    count = ValueCell(JsonCoder(int), default=0)
    total = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.count.set(self.count.get() + 1)
        self.total.set(self.total.get() + record.value["n"])
        context.upsert(sums, {"key": context.key, "count": self.count.get(), "total": self.total.get()})


def key(value):
    return value["key"]


pipeline = Pipeline("clients")
source = FileSource(
    "rows", sys.argv[2], JsonLines(dict), event_time=lambda row: row["at"], record_id=lambda row: row["id"]
)
pipeline.inject(source, into=rows)
pipeline.sink(sums)
pipeline.add(Pass, [subscribe(rows, key=key)], [counted], split_keys=["k25"])
pipeline.add(Sum, [subscribe(counted, key=key)])
progress = run(pipeline, sys.argv[1])
print(json.dumps([progress.injected, progress.repeated, progress.finished]))
"""


def write_rows(directory: Path, dice: random.Random) -> dict[str, tuple[int, int]]:
    """Files in which a tenth of the rows comes again, near or far; by key, (rows, sum) of each id once."""
    files: list[list[dict[str, Any]]] = [[] for _ in range(FILES)]
    wanted: dict[str, tuple[int, int]] = {}
    for number in range(ROWS):
        key = f"k{number % KEYS:02}"
        row = {"id": f"m-{dice.getrandbits(64):x}", "key": key, "n": number, "at": number}
        count, total = wanted.get(key, (0, 0))
        wanted[key] = (count + 1, total + number)
        place = dice.randrange(FILES)
        files[place].append(row)
        if dice.random() < 0.1:
            files[dice.randrange(FILES)].append(row)
        if number > 500 and dice.random() < 0.01:
            files[place].append(dice.choice(files[place][-500:]))
    for place, rows in enumerate(files):
        (directory / f"{place}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return wanted


def start(program: Path, url: str, directory: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(program), url, str(directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, env=environment)


def positions(observer: psycopg.Connection[Any]) -> int:
    """Rows that the source knows to be done."""
    if observer.execute("SELECT to_regclass('clients.source')").fetchone() == (None,):
        return 0
    row = observer.execute("SELECT coalesce(sum(least(position, 1e6)), 0) FROM clients.source").fetchone()
    assert row is not None
    return int(row[0])


def test_killed_again_and_again_every_id_counts_once(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    rows, program = tmp_path / "rows", tmp_path / "program.py"
    rows.mkdir()
    program.write_text(PROGRAM)
    wanted = write_rows(rows, dice)
    kills = 0
    with temporary_postgres() as server, psycopg.connect(server.url, autocommit=True) as observer:
        process = start(program, server.url, rows)
        while process.poll() is None and kills < KILLS:
            before = positions(observer)
            while process.poll() is None and positions(observer) == before:
                time.sleep(0.02)
            time.sleep(dice.uniform(0.0, 0.4))
            if process.poll() is None:
                process.kill()
                process.communicate()
                kills += 1
                process = start(program, server.url, rows)
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert json.loads(out.splitlines()[-1])[2] is True
        found = observer.execute("SELECT key, count, total FROM clients.sums").fetchall()
        ids = observer.execute("SELECT count(DISTINCT id), count(*) FROM clients.opaque_id").fetchone()
    assert {key: (count, total) for key, count, total in found} == wanted
    assert ids == (ROWS, ROWS)
    assert kills >= KILLS // 2, f"only {kills} kills before the end: give it more rows"
