"""Records that a program pushes, under `kill -9` of the pipeline and of the program: each counts once.

Both are processes of their own, on a Postgres that stays.  The program begins again where it knows that all was durable, as a
program with a file or a queue behind it would.
"""

from __future__ import annotations

import os
import random
import socket
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
RECORDS = 4_000
KEYS = 20

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.postgres, pytest.mark.timeout(900)]

PIPELINE = """
import sys
from millwheel import Computation, JsonCoder, MapCell, Pipeline, Stream, Table, ValueCell, limits, subscribe
from millwheel.launch import run
from millwheel_injectors import PushSource

limits.FOLD_TRIGGER_CHECKPOINTS = 8
orders = Stream("orders", JsonCoder(dict))
sums = Table("sums", {"key": "text", "count": "bigint", "total": "bigint"}, ("key",))
seen = Table("seen", {"id": "text", "times": "bigint"}, ("id",))


class Ledger(Computation):
    count = ValueCell(JsonCoder(int), default=0)
    total = ValueCell(JsonCoder(int), default=0)
    ids = MapCell(JsonCoder(int))

    def ProcessRecord(self, context, record):
        self.count.set(self.count.get() + 1)
        self.total.set(self.total.get() + record.value["n"])
        name = record.value["id"]
        self.ids.set(name, self.ids.get(name, 0) + 1)
        context.upsert(sums, {"key": context.key, "count": self.count.get(), "total": self.total.get()})
        context.upsert(seen, {"id": name, "times": self.ids.get(name)})


pipeline = Pipeline("pushed")
pipeline.inject(PushSource(orders, sys.argv[2]), into=orders)
pipeline.sink(sums)
pipeline.sink(seen)
pipeline.add(Ledger, [subscribe(orders, key=lambda value: value["key"])], split_keys=["k1"])
run(pipeline, sys.argv[1])
"""

PROGRAM = """
import json, sys, time
from pathlib import Path
from millwheel.push import Pusher

address, records, keys, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
begin = int(place.read_text() or 0) if place.exists() else 0
with Pusher(address, "orders") as pusher:
    for number in range(begin, records):
        value = {"id": f"r{number}", "key": f"k{number % keys:02}", "n": number}
        pusher.push(f"r{number}", json.dumps(value).encode(), 1_000 * number + 1)
        if number % 500 == 499:
            pusher.flush()
            beside = place.with_suffix(".new")
            beside.write_text(str(number + 1))
            beside.replace(place)
        if number % 10 == 0:
            time.sleep(0.02)
"""


def start(program: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, str(program), *arguments], cwd=ROOT, env=environment)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def taken(observer: psycopg.Connection[Any]) -> int:
    """Records that are in the sink table."""
    if observer.execute("SELECT to_regclass('pushed.seen')").fetchone() == (None,):
        return 0
    row = observer.execute("SELECT count(*) FROM pushed.seen").fetchone()
    assert row is not None
    return int(row[0])


def test_killed_again_and_again_every_pushed_record_counts_once(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    pipeline, program = tmp_path / "pipeline.py", tmp_path / "program.py"
    pipeline.write_text(PIPELINE)
    program.write_text(PROGRAM)
    address, kills, began_again = f"127.0.0.1:{free_port()}", 0, 0
    given = (address, str(RECORDS), str(KEYS), str(tmp_path / "place"))
    with temporary_postgres() as server, psycopg.connect(server.url, autocommit=True) as observer:
        serving, pushing = start(pipeline, server.url, address), start(program, *given)
        try:
            while pushing.poll() is None:
                before, until = taken(observer), time.monotonic() + 30
                while pushing.poll() is None and taken(observer) <= before and time.monotonic() < until:
                    time.sleep(0.02)
                assert serving.poll() is None, "the pipeline has ended by itself"
                time.sleep(dice.uniform(0.0, 0.8))
                if kills >= KILLS:
                    continue
                kills += 1
                if dice.random() < 0.6:
                    serving.kill()
                    serving.wait()
                    serving = start(pipeline, server.url, address)
                elif pushing.poll() is None:
                    pushing.kill()
                    pushing.wait()
                    began_again += 1
                    pushing = start(program, *given)
            assert pushing.returncode == 0
            sums = observer.execute("SELECT key, count, total FROM pushed.sums").fetchall()
            times = observer.execute("SELECT id, times FROM pushed.seen").fetchall()
        finally:
            for process in (serving, pushing):
                process.kill()
                process.wait()
    numbers = [range(first, RECORDS, KEYS) for first in range(KEYS)]
    assert dict(times) == {f"r{number}": 1 for number in range(RECORDS)}
    assert {key: (count, total) for key, count, total in sums} == {
        f"k{place:02}": (len(own), sum(own)) for place, own in enumerate(numbers)
    }
    assert kills >= KILLS // 2, f"only {kills} kills before the end: give it more records"
    assert 0 < began_again < kills
