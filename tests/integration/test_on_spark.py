"""A cluster on Spark's executors, which are real processes here: whatever is killed, each word counts once."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millwheel.errors import WiringError
from millwheel.spark import hosting, masters
from millwheel.spark.hosting import SparkCluster
from millwheel_storage.embedded import EmbeddedPostgres
from tests.chaos.spark import KINDS, chaos, parent, plan_of, settings
from tests.integration.observed import Observed
from tests.patience import LEASE_S, WAIT_S

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.chaos, pytest.mark.timeout(900)]

WORDS = """
import time
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, TextCoder, ValueCell, subscribe
from millwheel_injectors import FileSource, JsonLines

lines = Stream("lines", TextCoder())
words = Stream("words", TextCoder())
counts = Table("counts", {{"word": "text", "seen": "bigint"}}, ("word",))

class Split(Computation[str]):
    def ProcessRecord(self, context, record):
        time.sleep({sleep_s})
        for word in record.value.split():
            context.produce(words, word)

class Count(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        if {broken}:
            raise RuntimeError("this hook is broken")
        self.seen.set(self.seen.get() + 1)
        context.upsert(counts, {{"word": record.key, "seen": self.seen.get()}})

pipeline = Pipeline("{name}")
source = FileSource("text", "{directory}/*.jsonl", JsonLines(str), event_time=lambda line: 1_000_000, tail={tail})
pipeline.inject(source, into=lines)
pipeline.add(Split, [subscribe(lines, lambda line: line[:1])], [words], split_keys=("n",), work_limit_records=50)
pipeline.add(Count, [subscribe(words, lambda word: word)], split_keys=("g", "n", "t"))
pipeline.sink(counts)
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    made = masters.made_session("local-cluster[2,1,1024]", "tests", settings())
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


class Place(Observed):
    """A directory with a pipeline and its files."""

    def __init__(self, directory: Path, url: str, name: str) -> None:
        self.directory = directory
        self.url = url
        self.name = name
        self.module = f"words_{name}"
        self.path = f"{self.module}:pipeline"
        self.expected: Counter[str] = Counter()
        self._dice = random.Random(5)
        self._vocabulary = ["".join(self._dice.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(300)]

    def write(self, *, tail: bool = False, sleep_s: float = 0.0, broken: bool = False) -> None:
        text = WORDS.format(name=self.name, directory=self.directory, tail=tail, sleep_s=sleep_s, broken=broken)
        (self.directory / f"{self.module}.py").write_text(text)

    def add(self, lines: int) -> None:
        """Append lines to three files."""
        for number in range(3):
            with (self.directory / f"{number}.jsonl").open("a") as file:
                for _ in range(lines // 3):
                    line = self._dice.choices(self._vocabulary, k=6)
                    self.expected.update(line)
                    file.write(json.dumps(" ".join(line)) + "\n")

    def rows(self) -> dict[str, int]:
        return self._pairs("counts", f'SELECT word, seen FROM "{self.name}".counts')

    def alive(self) -> dict[str, int]:
        """The incarnations of members that have not left, by name."""
        return self._pairs(
            "cluster_member",
            f'SELECT m.name, m.incarnation FROM "{self.name}".cluster_member m '
            f'JOIN "{self.name}".lease l USING (incarnation) WHERE l.expires > clock_timestamp()',
        )

    def _pairs(self, table: str, query: str) -> dict[str, int]:
        """By name; nothing while the table is not there."""
        there = self.connection.execute("SELECT to_regclass(%s)", (f'"{self.name}".{table}',)).fetchone()
        return dict(self.connection.execute(query.encode()).fetchall()) if there and there[0] else {}

    def process(self, worker: str) -> int | None:
        """The process of a worker on an executor."""
        wanted = ["-m", "millwheel", "worker", self.path, "--name", worker]
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    words = (entry / "cmdline").read_bytes().decode().split("\0")
                except OSError:
                    continue
                if words[1:7] == wanted:
                    return int(entry.name)
        return None


def until(true: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit_s
        time.sleep(0.1)


@pytest.fixture
def place(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made = Place(tmp_path, postgres.url, pipeline)
    yield made
    made.unobserved()


def up(place: Place, spark: SparkSession, workers: int = 2) -> SparkCluster:
    return hosting.up(place.path, place.url, spark=spark, workers=workers, lease_s=LEASE_S)


def test_a_session_of_its_own_is_not_another_one_that_is_there(spark: SparkSession) -> None:
    with pytest.raises(
        WiringError, match=r"this process has a session of Spark already: hand it to .*hosting\.up, or stop it"
    ):
        masters.made_session("local[1]", "another", {})


PYTHON, EXECUTOR = 1, 3
"""How far above a worker's process Spark's Python worker is, and the executor, with which that dies."""


@pytest.mark.parametrize(
    "killed", [(EXECUTOR,), pytest.param((PYTHON, EXECUTOR), marks=pytest.mark.long)], ids=["executor", "both"]
)
def test_whatever_is_killed_under_a_worker_it_comes_back_as_another_member_and_each_word_counts_once(
    place: Place, spark: SparkSession, killed: tuple[int, ...]
) -> None:
    place.write(tail=True)
    place.add(300)
    with up(place, spark, workers=1) as cluster:
        until(lambda: place.rows() == place.expected)
        cluster.scale(2)
        for above in killed:
            until(lambda: {"worker-1", "worker-2"} <= place.alive().keys())
            before, found = place.alive()["worker-2"], place.process("worker-2")
            assert found is not None
            for _ in range(above):
                found = parent(found)
            if above == EXECUTOR:
                assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{found}/cmdline").read_bytes()
            place.add(300)
            os.kill(found, signal.SIGKILL)
            until(lambda: place.rows() == place.expected)
            until(lambda before=before: place.alive().get("worker-2", 0) > before)  # type: ignore[misc]
        until(lambda: cluster.workers() == {"worker-1": "runs", "worker-2": "runs"})
        cluster.scale(1)
        place.add(300)
        until(lambda: "worker-2" not in place.alive() and place.rows() == place.expected)
        assert cluster.workers() == {"worker-1": "runs"}
        assert cluster.wait(0) is None
    assert place.rows() == place.expected
    assert place.alive() == {}  # all have left in order


def test_hooks_that_always_fail_end_the_cluster_with_what_the_worker_said(place: Place, spark: SparkSession) -> None:
    place.write(broken=True)
    place.add(300)
    said: list[str] = []
    with hosting.up(
        place.path, place.url, spark=spark, workers=2, lease_s=LEASE_S, say=lambda name, _, line: said.append(line)
    ) as cluster:
        assert cluster.wait(WAIT_S) == 4
    assert any("Count.ProcessRecord has failed" in line for line in said), said
    assert any(line.endswith("ended with status 4: the cluster is stopped") for line in said), said


@pytest.mark.long
def test_a_driver_that_is_killed_leaves_nobody_behind_and_another_one_goes_on(
    place: Place, spark: SparkSession
) -> None:
    place.write(sleep_s=0.004)
    place.add(1_500)
    command = [sys.executable, "-m", "millwheel", "up", place.path, "--on", "local-cluster[1,1,1024]", "--workers", "1"]
    given = [word for name, value in settings().items() for word in ("--conf", f"{name}={value}")]
    driver = subprocess.Popen(
        [*command, "--lease", f"{LEASE_S}", *given, "--store", place.url],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=place.directory,
    )  # fmt: skip
    threading.Thread(target=driver.communicate, daemon=True).start()
    until(lambda: sum(place.rows().values()) > 500)
    driver.kill()
    until(lambda: place.process("worker-1") is None and place.alive() == {})
    assert sum(place.rows().values()) < sum(place.expected.values())
    with up(place, spark) as cluster:
        assert cluster.wait(WAIT_S) == 0
    assert place.rows() == place.expected


def test_a_plan_is_drawn_from_its_seed() -> None:
    plan = plan_of(7, 20, 2.5, 8.0, KINDS)
    assert plan == plan_of(7, 20, 2.5, 8.0, KINDS)
    assert plan != plan_of(8, 20, 2.5, 8.0, KINDS)
    assert {blow.kind for blow in plan} == KINDS.keys()


def test_a_ledger_is_exact_after_kills_and_stops_of_whole_executors(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short form of `make chaos-spark`."""
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    kinds = {kind: KINDS[kind] for kind in ("kill worker", "kill daemon", "kill machine", "stop machine")}
    found = chaos(
        0.1, 34, spark=spark, directory=tmp_path, workers=2, every_s=2.0, kinds=kinds, log=said.append
    )  # fmt: skip
    assert not any(found.values()), "\n".join(said)
