"""Keys in quarantine and rejected rows of a cluster of real processes: the status says so, whichever worker had them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.observed import Observed
from tests.integration.test_cluster_run import children, close, ended, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

LEDGER = """
import os, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, ValueCell, subscribe
from millwheel_injectors import FileSource, JsonLines

orders = Stream("orders", JsonCoder(dict[str, int]))
totals = Table("totals", {"shop": "text", "cents": "bigint"}, ("shop",))

class Total(Computation[dict[str, int]]):
    cents = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        if record.value["cents"] < 0:
            raise ValueError("below zero")
        self.cents.set(self.cents.get() + record.value["cents"])
        context.upsert(totals, {"shop": record.key, "cents": self.cents.get()})

pipeline = Pipeline(os.environ["PIPELINE"])
for name in ("left", "right"):
    source = FileSource(name, name + ".jsonl", JsonLines(dict[str, int]), event_time=lambda order: order["shop"],
                        tail="TAIL" in os.environ)
    pipeline.inject(source, into=orders)
pipeline.add(Total, [subscribe(orders, lambda order: str(order["shop"]))], split_keys=("5",))
pipeline.sink(totals)
"""


class Shops(Observed):
    """A pipeline with two sources and two intervals; so many of their orders are bad."""

    def __init__(self, directory: Path, url: str, name: str) -> None:
        self.directory, self.url, self.name = directory, url, name
        self.processes: list[subprocess.Popen[str]] = []
        (directory / "ledger.py").write_text(LEDGER)

    def write(self, failing: int = 0, broken: int = 0) -> None:
        """Of each file so many lines are no orders; of each interval so many shops have an order on which the hook fails."""
        for name, first in (("left", 1), ("right", 6)):
            good = [{"shop": first * 100 + number, "cents": 5} for number in range(50)]
            bad = [{"shop": first * 100 + number, "cents": -1} for number in range(failing)]
            lines = [*map(json.dumps, [*good, *bad]), *(["no order"] * broken), json.dumps(good[0])]
            (self.directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")

    def up(self, *words: str, **more: str) -> subprocess.Popen[str]:
        environment = {
            **os.environ, "PIPELINE": self.name, "MILLWHEEL_STORE": self.url, "PYTHONUNBUFFERED": "1", **more,
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "millwheel", "up", "ledger:pipeline", "--lease", f"{LEASE_S:g}", "--workers", "2", *words],
            cwd=self.directory, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def query(self, text: str) -> int:
        """A number that a statement gives; 0 before there is a store."""
        try:
            found = self.connection.execute(text.replace("SCHEMA", f'"{self.name}"')).fetchone()
        except psycopg.errors.UndefinedTable:
            return 0
        return int(found[0]) if found is not None else 0


@pytest.fixture
def shops(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Shops]:
    made = Shops(tmp_path, postgres.url, pipeline)
    yield made
    close(made.processes)
    made.unobserved()


def test_what_all_workers_leave_over_together_decides_the_status(shops: Shops) -> None:
    # Every worker judged what it had itself, after it had given it away: keys in quarantine ended with status 0.
    shops.write(failing=1, broken=1)
    status, out = ended(shops.up())
    assert status == 3, out
    assert "2 keys are in quarantine" in out
    assert "2 rows were rejected in all" in out
    # The same store again: what is left over is still there, and two of each are allowed now.
    status, out = ended(shops.up("--allow-quarantine", "2", "--allow-rejected", "2"))
    assert status == 0, out


@pytest.mark.parametrize("option", ["--allow-quarantine", pytest.param("--allow-rejected", marks=pytest.mark.long)])
def test_a_cluster_stops_when_its_workers_together_have_more_than_is_allowed(shops: Shops, option: str) -> None:
    # Each of the two workers has one.  The sources never end.
    shops.write(failing=1, broken=1)
    status, out = ended(shops.up(option, "1", TAIL="yes"))
    assert status == 3, out
    assert "the run is stopped: 2 " in out


def test_rejected_rows_of_a_worker_that_was_killed_count_and_count_once(shops: Shops) -> None:
    shops.write(broken=20)
    up = shops.up("--allow-rejected", "40", TAIL="yes")
    until(lambda: shops.query("SELECT coalesce(sum(rejected), 0) FROM SCHEMA.source") == 40)
    killed = shops.query("SELECT max(incarnation) FROM SCHEMA.cluster_member WHERE role = 'worker'")
    for process in children(up.pid, "worker"):
        os.kill(process, signal.SIGKILL)
    until(lambda: shops.query("SELECT min(owner) FROM SCHEMA.source_owner") > killed)
    up.send_signal(signal.SIGTERM)
    assert ended(up)[0] == 130
    status, out = ended(shops.up("--allow-rejected", "40"))
    assert status == 0, out
    status, out = ended(shops.up("--allow-rejected", "39"))
    assert status == 3, out
