"""A cluster on Spark's executors: how long its keys stand still when an executor is killed.

Lives here: that figure.  Executors are those of `local-cluster`, real processes beside Postgres on the same processors.  Rows
come at a steady rate to one key of each of 8 intervals.
"""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks import common
from benchmarks.common import Reference, Result
from millwheel import limits
from millwheel.spark import hosting, masters
from tests.chaos.spark import members, parent, send, settings, tree

ROUNDS: Final = common.sized("ROUNDS", 5)
MASTER: Final = "local-cluster[2,1,1024]"
TARGET_S: Final = 10.0
"""More than the lease."""
STEADY_S: Final = 5.0
READY_S: Final = 90.0
BETWEEN_ROWS_S: Final = 0.016
KEYS: Final = "abcdefgh"
PIPELINE: Final = """
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, ValueCell, subscribe
from millwheel_injectors import FileSource, JsonLines

Row = dict[str, int | str]
rows = Stream("rows", JsonCoder(Row))
seen = Table("seen", {"key": "text", "number": "bigint", "count": "bigint"}, ("key",))

class Kept(Computation[Row]):
    count = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.count.set(self.count.get() + 1)
        context.upsert(seen, {"key": record.key, "number": record.value["n"], "count": self.count.get()})

pipeline = Pipeline("ledger")
pipeline.inject(
    FileSource("live", "live.jsonl", JsonLines(Row), event_time=lambda row: row["n"], tail=True), into=rows
)
pipeline.add(Kept, [subscribe(rows, lambda row: row["k"])], split_keys=tuple("bcdefgh"))
pipeline.sink(seen)
"""


def cluster_executor_death() -> Result:
    """An executor with a worker is killed with signal 9: alone, and with all processes below it, as a machine dies."""
    lease_s = limits.LEASE_US / 1e6
    found: dict[str, list[float]] = {"executor": [], "machine": []}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, contextlib.chdir(directory):
        Path("ledger.py").write_text(PIPELINE)
        Path("live.jsonl").write_text("")
        spark = masters.made_session(MASTER, "benchmark", settings())
        spark.sparkContext.setLogLevel("OFF")
        try:
            with (
                common.server("hosted") as url, _fed(), psycopg.connect(url, autocommit=True) as connection,
                hosting.up("ledger:pipeline", url, spark=spark, workers=2),
            ):  # fmt: skip
                for kind, gaps in found.items():
                    for _ in range(ROUNDS):
                        gaps.append(_gap(connection, Path(directory), kind))
        finally:
            spark.stop()
    worst, value = max(max(gaps) for gaps in found.values()), common.median(found["machine"])
    return Result(
        "cluster_executor_death", value, "s", Reference("the lease", lease_s, "s"), value / lease_s,
        f"at most {lease_s + TARGET_S:g} s, the lease and {TARGET_S:g} s", worst <= lease_s + TARGET_S, {**found},
    )  # fmt: skip


@contextlib.contextmanager
def _fed() -> Any:
    """Rows come meanwhile."""
    ended = threading.Event()

    def feed() -> None:
        number = 0
        with open("live.jsonl", "a") as file:
            while not ended.wait(BETWEEN_ROWS_S):
                for key in KEYS:
                    number += 1
                    file.write(json.dumps({"k": key, "n": number}) + "\n")
                file.flush()

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _gap(connection: psycopg.Connection[Any], directory: Path, kind: str) -> float:
    """Seconds from the kill until each key has shown a row that was not there soon after it."""
    source = _ready(connection, directory)
    time.sleep(STEADY_S)
    executor = next(parent(parent(parent(pid))) for name, pid in members(directory, "worker") if name != source)
    killed = time.monotonic()
    send(signal.SIGKILL, tree(executor) if kind == "machine" else [executor])
    time.sleep(0.3)  # what the server has got is committed by then
    newest = max(_numbers(connection).values())
    while min(_numbers(connection).values()) <= newest:
        if time.monotonic() - killed > READY_S:
            raise AssertionError(f"{READY_S:.0f} s after the kill some keys stand still")
        time.sleep(0.01)
    return time.monotonic() - killed


def _ready(connection: psycopg.Connection[Any], directory: Path) -> str:
    """Wait until two live workers own intervals; the name of the one that reads the source."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            owners = connection.execute(
                "SELECT DISTINCT m.name FROM ledger.interval_owner o JOIN ledger.cluster_member m ON m.incarnation = o.owner "
                "JOIN ledger.lease l ON l.incarnation = o.owner WHERE l.expires > clock_timestamp()"
            ).fetchall()
            reader = connection.execute(
                "SELECT m.name FROM ledger.source_owner s JOIN ledger.cluster_member m ON m.incarnation = s.owner"
            ).fetchone()
            ready = len(owners) == len(members(directory, "worker")) == 2 and len(_numbers(connection)) == len(KEYS)
            if ready and reader is not None:
                return str(reader[0])
        time.sleep(0.1)
    raise AssertionError(f"the cluster is not ready after {READY_S:.0f} s")


def _numbers(connection: psycopg.Connection[Any]) -> dict[str, int]:
    return dict(connection.execute("SELECT key, number FROM ledger.seen").fetchall())
