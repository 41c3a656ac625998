"""Whole clusters of real processes on Postgres: the same rows as an embedded run, whatever is killed, stopped or added."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest.mock import patch

import pytest

from millwheel.overview import ClusterOffice, SeenInterval
from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.observed import Observed
from tests.patience import LEASE_S, WAIT_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

WORDS = """
import os, time
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, TextCoder, ValueCell, subscribe
from millwheel_injectors import FileSource, JsonLines

lines = Stream("lines", TextCoder())
words = Stream("words", TextCoder())
counts = Table("counts", {"word": "text", "seen": "bigint"}, ("word",))

class Split(Computation[str]):
    def ProcessRecord(self, context, record):
        time.sleep(float(os.environ.get("SLEEP_S", 0)))
        for word in record.value.split():
            context.produce(words, word)

class Count(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        self.seen.set(self.seen.get() + 1)
        context.upsert(counts, {"word": record.key, "seen": self.seen.get()})

pipeline = Pipeline(os.environ["PIPELINE"])
source = FileSource(
    "text", "*.jsonl", JsonLines(str), event_time=lambda line: 1_000_000, tail="TAIL" in os.environ
)
pipeline.inject(source, into=lines)
pipeline.add(Split, [subscribe(lines, lambda line: line[:1])], [words], split_keys=("n",), work_limit_records=50)
pipeline.add(Count, [subscribe(words, lambda word: word)], split_keys=("g", "n", "t"))
pipeline.sink(counts)
"""
LINES = 1_500
WORDS_A_LINE = 6


class Place(Observed):
    """A directory with a pipeline and its files, and a pipeline's name on a server."""

    def __init__(self, directory: Path, url: str, name: str) -> None:
        self.directory = directory
        self.url = url
        self.name = name
        self.processes: list[subprocess.Popen[str]] = []
        (directory / "words.py").write_text(WORDS)
        dice = random.Random(5)
        vocabulary = ["".join(dice.choices("abcdefghijklmnopqrstuvwxyz", k=3)) for _ in range(300)]
        self.expected: Counter[str] = Counter()
        for number in range(3):
            with (directory / f"{number}.jsonl").open("w") as file:
                for _ in range(LINES // 3):
                    line = dice.choices(vocabulary, k=WORDS_A_LINE)
                    self.expected.update(line)
                    file.write(json.dumps(" ".join(line)) + "\n")

    def command(
        self, *words: str, sleep_s: float = 0.0, prefix: Sequence[str] = (), **more: str
    ) -> subprocess.Popen[str]:
        """A process of `millwheel`; with a `prefix`, which enters another place, on the other side of it."""
        environment = {
            **os.environ, "PIPELINE": self.name, "MILLWHEEL_STORE": self.url, "SLEEP_S": str(sleep_s),
            "PYTHONUNBUFFERED": "1", **more,
        }  # fmt: skip
        process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "millwheel", *words], cwd=self.directory, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        close(self.processes)
        self.unobserved()

    def up(self, *words: str, sleep_s: float = 0.0, **more: str) -> subprocess.Popen[str]:
        return self.command("up", "words:pipeline", "--lease", f"{LEASE_S:g}", *words, sleep_s=sleep_s, **more)

    def rows(self) -> dict[str, int]:
        there = self.connection.execute("SELECT to_regclass(%s)", (f'"{self.name}".counts',)).fetchone()
        if there is None or there[0] is None:
            return {}
        return dict(self.connection.execute(f'SELECT word, seen FROM "{self.name}".counts').fetchall())

    def owners(self) -> set[str]:
        """The names of the members that own intervals."""
        found = self.connection.execute(
            f'SELECT DISTINCT m.name FROM "{self.name}".interval_owner o JOIN "{self.name}".cluster_member m '
            "ON m.incarnation = o.owner"
        ).fetchall()
        return {name for (name,) in found}

    def until_counted(self, share: float) -> None:
        """Wait until so much of the words is counted."""
        until(lambda: sum(self.rows().values()) >= share * LINES * WORDS_A_LINE)


def office(place: Place) -> ClusterOffice:
    """What `millwheel status` and `millwheel interval` are made of, without a process for each look."""
    with patch.dict(os.environ, PIPELINE=place.name):
        return ClusterOffice(run_path(str(place.directory / "words.py"))["pipeline"], place.url)


def close(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Kill what still runs, and close the pipes of all: those that a test has left would fail a later one."""
    for process in processes:
        if process.stdout is not None and not process.stdout.closed:
            process.kill()
            process.communicate()


def until(true: Callable[[], bool], limit_s: float = WAIT_S) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < limit_s
        time.sleep(0.1)


def children(parent: int, named: str) -> list[int]:
    """Processes of a cluster whose command has this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().decode()
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if above == parent and named in words:
                found.append(int(entry.name))
    return found


def ended(process: subprocess.Popen[str], limit_s: float = WAIT_S) -> tuple[int, str]:
    """Its status, and what it has printed."""
    try:
        out, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=limit_s)
        return -1, f"it did not end:\n{out}"
    return process.returncode, out


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, postgres.url, pipeline)
    yield made
    made.close()


def test_two_workers_count_what_an_embedded_run_counts(place: Place) -> None:
    status, out = ended(place.up("--workers", "2"))
    assert status == 0, out
    assert place.rows() == place.expected
    assert "worker-1" in out
    assert "worker-2" in out
    assert [line for line in out.splitlines() if "millwheel: error" in line or "Traceback" in line] == []
    # The last line of each says what it has done.  What commits while its interval goes may be in nobody's count.
    last = {line.split()[0]: line.replace(",", "") for line in out.splitlines() if "watermark the end of time" in line}
    found = [re.search(r"(\d+) rows in (\d+) records", line) for line in last.values()]
    rows, records = (sum(int(one[group]) for one in found if one) for group in (1, 2))
    assert sorted(last) == ["worker-1", "worker-2"]
    assert 0.9 * LINES <= rows <= LINES
    assert 0.9 * LINES * (1 + WORDS_A_LINE) <= records <= LINES * (1 + WORDS_A_LINE)
    shown, out = ended(place.command("status", "words:pipeline", "--json"))
    assert (shown, [s["rows"] for s in json.loads(out)["sources"]]) == (0, [LINES]), (
        "what is finished was read all the same"
    )
    again, out = ended(place.command("run", "words:pipeline"))  # nothing is left to do
    assert again == 0, out
    assert out.splitlines()[-1] == "millwheel: 0 rows in, 0 records, watermark the end of time"


# `tests/chaos/test_cluster_kills.py` kills a worker for a landing
@pytest.mark.parametrize(
    "victim", ["controller-1", *(pytest.param(f"worker-{n}", marks=pytest.mark.long) for n in (1, 2))]
)
def test_a_process_that_is_killed_in_the_middle_loses_and_doubles_nothing(place: Place, victim: str) -> None:
    cluster = place.up("--workers", "2", sleep_s=0.008)
    place.until_counted(0.2)
    assert sum(place.rows().values()) < LINES * WORDS_A_LINE
    (process,) = children(cluster.pid, victim)
    os.kill(process, signal.SIGKILL)
    status, out = ended(cluster)
    assert status == 0, out
    assert f"{victim} was killed by SIGKILL; it is started again" in out
    assert place.rows() == place.expected


def test_a_worker_that_was_stopped_for_longer_than_its_lease_writes_nothing_more(place: Place) -> None:
    cluster = place.up("--workers", "2", sleep_s=0.008, TAIL="1")  # it does not end before that worker wakes
    place.until_counted(0.2)
    until(lambda: place.owners() == {"worker-1", "worker-2"})  # who owns nothing yet would lose nothing
    (worker,) = children(cluster.pid, "worker-2")
    os.kill(worker, signal.SIGSTOP)
    until(lambda: place.owners() == {"worker-1"})
    os.kill(worker, signal.SIGCONT)
    until(lambda: place.owners() == {"worker-1", "worker-2"})  # it has joined again, and has its share
    until(lambda: place.rows() == place.expected)
    cluster.send_signal(signal.SIGINT)
    status, out = ended(cluster)
    assert status == 130, out
    assert "the lease of this process has run out" in out or "is not a member of this cluster any more" in out
    assert "worker-2 ended with status 5; it is started again" in out
    assert place.rows() == place.expected


def test_ctrl_c_ends_the_cluster_and_the_next_one_goes_on(place: Place) -> None:
    cluster = place.up("--workers", "2", sleep_s=0.008)
    place.until_counted(0.1)
    cluster.send_signal(signal.SIGINT)
    asked = time.monotonic()
    status, out = ended(cluster)
    assert time.monotonic() - asked < 15
    assert status == 130, out
    assert out.splitlines()[-1] == "millwheel: stopped; run it again to resume"
    assert place.owners() == set()  # they have left, and nobody waits for leases
    assert 0 < sum(place.rows().values()) < LINES * WORDS_A_LINE
    status, out = ended(place.up("--workers", "3"))
    assert status == 0, out
    assert place.rows() == place.expected


def test_processes_of_a_cluster_are_started_one_by_one_and_end_at_the_end_of_the_run(place: Place) -> None:
    processes = [place.command("controller", "words:pipeline", "--name", f"c-{n}") for n in range(2)]
    processes += [place.command("worker", "words:pipeline", "--name", f"w-{n}", sleep_s=0.004) for n in range(2)]
    place.until_counted(0.1)
    leaver = processes[3]
    leaver.send_signal(signal.SIGTERM)  # the other one goes on with what it had
    status, out = ended(leaver)
    assert status == 130, out
    assert out.splitlines()[-1] == "millwheel: stopped; others go on with what it had"
    said = [ended(process) for process in (processes[2], *processes[:2])]
    assert [status for status, _ in said] == [0, 0, 0], said
    assert place.rows() == place.expected


def test_status_shows_the_cluster_and_intervals_are_split_moved_and_merged_while_it_runs(place: Place) -> None:
    cluster = place.up("--workers", "2", sleep_s=0.008, TAIL="1")  # it does not end by itself
    place.until_counted(0.1)

    def ask(*words: str) -> tuple[int, str]:
        return ended(place.command(*words))

    def intervals() -> list[SeenInterval]:
        with office(place) as looking:
            return [*looking.look().intervals]

    status, out = ask("status", "words:pipeline", "--json")
    assert status == 0, out
    found: dict[str, Any] = json.loads(out)
    assert sorted((m["name"], m["role"], m["leads"]) for m in found["members"]) == [
        ("controller-1", "controller", True), ("worker-1", "worker", False), ("worker-2", "worker", False),
    ]  # fmt: skip
    assert {i["computation"] for i in found["intervals"]} == {"Split", "Count"}
    assert {i["owner"] for i in found["intervals"]} <= {"worker-1", "worker-2", None}
    assert [source["name"] for source in found["sources"]] == ["text"]
    whole = next(i for i in found["intervals"] if i["computation"] == "Count" and i["low"] == "g")

    status, out = ask("interval", "split", "words:pipeline", str(whole["id"]), "j")
    assert (status, out) == (0, f"millwheel: interval {whole['id']} is split\n")
    parts = [i for i in intervals() if i.computation == "Count" and "g" <= i.low < "n"]
    assert [(i.low, i.high) for i in parts] == [("g", "j"), ("j", "n")]
    until(lambda: all(i.owner is not None for i in intervals()))

    first = next(i for i in intervals() if i.id == parts[0].id)
    other = "worker-1" if first.owner == "worker-2" else "worker-2"
    status, out = ask("interval", "move", "words:pipeline", str(first.id), "--to", other)
    assert (status, out) == (0, f"millwheel: {first.id} moved to {other}\n")

    numbers = [str(i.id) for i in parts]
    status, out = ask("interval", "merge", "words:pipeline", *numbers)
    assert (status, out) == (0, f"millwheel: {', '.join(numbers)} are one interval now\n")
    assert [i.high for i in intervals() if i.computation == "Count" and i.low == "g"] == ["n"]

    status, out = ask("interval", "split", "words:pipeline", str(parts[0].id), "zebra")
    assert status == 1
    assert "the leader refuses: split keys lie inside of the interval" in out
    status, out = ask("interval", "move", "words:pipeline", "999", "--to", other)
    assert status == 1
    assert "there is no interval 999" in out
    status, out = ask("interval", "merge", "words:pipeline", str(parts[0].id))
    assert (status, "merge makes one interval of two or more neighbours" in out) == (1, True)
    status, out = ask("interval", "merge", "words:pipeline", str(parts[0].id), str(parts[0].id))
    assert (status, f"interval {parts[0].id} is named twice" in out) == (1, True)

    cluster.send_signal(signal.SIGINT)
    status, out = ended(cluster)
    assert status == 130, out
    status, out = ended(place.up("--workers", "2"))
    assert status == 0, out
    assert place.rows() == place.expected
    status, out = ask("status", "words:pipeline")  # while nothing runs
    assert status == 0
    assert "nobody" in out
    assert "watermark\tCount\tthe end of time" in out
    assert out.splitlines()[-1] == "lag\t-"
