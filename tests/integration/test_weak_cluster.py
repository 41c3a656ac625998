"""Weak productions between real processes: a receiver that is slow elsewhere does not hold up the sender's sender."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from millwheel_storage.embedded import EmbeddedPostgres
from tests.integration.test_cluster_run import Place, ended, until
from tests.patience import LEASE_S

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(900)]

STEPS = """
import os, time
from pathlib import Path
from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, TextCoder, ValueCell, subscribe
from millwheel_injectors import FileSource, JsonLines

lines = Stream("lines", TextCoder())
words = Stream("words", TextCoder())
counts = Table("counts", {"word": "text", "seen": "bigint"}, ("word",))

class Pass(Computation[str]):
    def ProcessRecord(self, context, record):
        context.produce(words, record.value)

class Slow(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context, record):
        Path("begun").touch()
        while not Path("go").exists():
            time.sleep(0.01)
        self.seen.set(self.seen.get() + 1)
        context.upsert(counts, {"word": record.key, "seen": self.seen.get()})

pipeline = Pipeline(os.environ["PIPELINE"])
pipeline.inject(FileSource("text", "*.jsonl", JsonLines(str), event_time=lambda line: 1_000_000, tail=True), into=lines)
pipeline.add(Pass, [subscribe(lines, lambda line: line)], [words], productions="weak",
             straggler_delay_us=int(os.environ["DELAY_US"]))
pipeline.add(Slow, [subscribe(words, lambda word: word)])
pipeline.sink(counts)
"""
WORDS = [f"w{number}" for number in range(20)]


class Steps(Place):
    """Two computations and a source, each on a worker of its own."""

    def __init__(self, directory: Path, url: str, name: str) -> None:
        super().__init__(directory, url, name)
        for file in directory.glob("*.jsonl"):
            file.unlink()
        (directory / "steps.py").write_text(STEPS)

    def start(self, delay_us: int) -> subprocess.Popen[str]:
        return self.command("up", "steps:pipeline", "--workers", "3", "--lease", f"{LEASE_S:g}", DELAY_US=str(delay_us))

    def spread(self) -> bool:
        """Whether three workers own something."""
        if self.connection.execute("SELECT to_regclass(%s)", (f'"{self.name}".source_owner',)).fetchone() == (None,):
            return False
        found = self.connection.execute(
            f'SELECT owner FROM "{self.name}".interval_owner UNION ALL SELECT owner FROM "{self.name}".source_owner'
        ).fetchall()
        owners = {owner for (owner,) in found}
        return len(found) == 3 and len(owners) == 3 and None not in owners

    def acked(self) -> int:
        """Rows of the source whose delivery is durable."""
        row = self.connection.execute(f'SELECT coalesce(sum(position), 0) FROM "{self.name}".source').fetchone()
        return int(row[0]) if row is not None else 0


@pytest.fixture
def steps(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> Iterator[Steps]:
    made = Steps(tmp_path, postgres.url, pipeline)
    yield made
    (tmp_path / "go").touch()
    made.close()


def test_the_sender_of_a_slow_receiver_on_another_worker_acks_before_it_is_acked(steps: Steps) -> None:
    up = steps.start(delay_us=200_000)
    until(steps.spread)
    (steps.directory / "text.jsonl").write_text("".join(f"{json.dumps(word)}\n" for word in WORDS))
    until(lambda: (steps.directory / "begun").exists())
    # The hook of the receiver has not returned, so it acks nothing.  A checkpoint of the sender holds the productions.
    until(lambda: steps.acked() == len(WORDS))
    assert steps.rows() == {}
    assert not (steps.directory / "go").exists()
    (steps.directory / "go").touch()
    until(lambda: steps.rows() == dict.fromkeys(WORDS, 1))
    up.send_signal(signal.SIGINT)
    assert ended(up)[0] == 130
