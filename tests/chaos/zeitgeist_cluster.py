"""`make chaos-zeitgeist`: Zeitgeist on a cluster whose workers are killed, byte for byte as in an embedded run.

A part of the log is replayed at a pace, first embedded and then by workers that are killed with signal 9 while rows are read.

    python -m tests.chaos.zeitgeist_cluster --share 8 --kills 3 --seconds 12     # a try, under half a minute
    python -m tests.chaos.zeitgeist_cluster --kills 12 --seconds 120             # all of the carried slice
    python -m tests.chaos.zeitgeist_cluster --durability snapshots               # the embedded run keeps checkpoints
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import psycopg

from examples.zeitgeist import evaluate, observed, pipeline
from examples.zeitgeist.__main__ import SLICE
from examples.zeitgeist.logline import LoggedRequest, is_page_view
from millwheel_storage.testing import temporary_postgres
from tests.chaos.cluster import children, command_of

MODULE = """
import os
from examples.zeitgeist import pipeline as wiring
from millwheel import Checkpoints, Snapshots
from millwheel_injectors import BoundedDisorder, FileSource, JsonLines

source = FileSource(
    "log", "part-*.jsonl", JsonLines(wiring.Request), event_time=lambda request: request.time_us,
    watermark=BoundedDisorder(wiring.DISORDER_US), pace=float(os.environ["PACE"]),
)
pipeline = wiring.build(
    source, int(os.environ["END_US"]), -4 * 3600, ("page /h", "page /s", "site"), os.environ["PIPELINE"],
    Snapshots(int(os.environ["EVERY_MS"])) if int(os.environ["EVERY_MS"]) else Checkpoints(),
)
"""
COLUMNS = "scope, key, kind, start_at, end_at, observed, expected, score, open"
FILES = 2


class Played(NamedTuple):
    """The log as files: how many rows, when the input ends, and how long it is, us of event time."""

    rows: int
    end_us: int
    length_us: int


def write_log(directory: Path, share: int) -> Played:
    """The carried slice, or one in `share` of its paths, in files that end at about the same time."""
    requests = [
        pipeline.Request(row.timestamp_us, row.path if is_page_view(row) else None)
        for row in evaluate.read_log(SLICE)
        if isinstance(row, LoggedRequest) and zlib.crc32(row.path.encode()) % share == 0
    ]
    files = [(directory / f"part-{number}.jsonl").open("wb") for number in range(FILES)]
    for number, request in enumerate(requests):
        files[number % FILES].write(msgspec.json.encode(request) + b"\n")
    for file in files:
        file.close()
    (directory / "zeitgeist_log.py").write_text(MODULE)
    times = [request.time_us for request in requests]
    return Played(len(requests), observed.input_end(max(times)), max(times) - min(times))


class Replay:
    """One run of the pipeline in a process, or in those of `millwheel up`."""

    def __init__(
        self,
        directory: Path,
        url: str,
        name: str,
        played: Played,
        seconds: float,
        command: list[str],
        every_ms: int = 0,
    ) -> None:
        """It takes snapshots every `every_ms`, or checkpoints."""
        self._url, self._name = url, name
        root = str(Path(__file__).resolve().parents[2])
        environment = {
            **os.environ, "MILLWHEEL_STORE": url, "PIPELINE": name, "END_US": str(played.end_us),
            "PACE": str(played.length_us / seconds / 1e6), "EVERY_MS": str(every_ms),
            "PYTHONPATH": os.pathsep.join([root, *sys.path]),
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "millwheel", *command], cwd=directory, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def ended(self, limit_s: float) -> None:
        """It must end in order."""
        try:
            out, _ = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            out, _ = self.process.communicate(timeout=60)
            raise AssertionError(f"it did not end:\n{out[-5_000:]}") from None
        assert self.process.returncode == 0, out[-5_000:]

    def read(self) -> int:
        """Rows that are durably read."""
        with suppress(psycopg.Error), psycopg.connect(self._url) as connection:
            row = connection.execute(f"SELECT coalesce(sum(position), 0) FROM {self._name}.source").fetchone()
            return int(row[0]) if row is not None else 0
        return 0

    def anomalies(self) -> bytes:
        """Its rows as JSON lines in their order, and how many requests came too late."""
        with psycopg.connect(self._url) as connection:
            rows = connection.execute(
                f"SELECT {COLUMNS} FROM {self._name}.anomalies ORDER BY start_at, scope, key, kind"
            )
            found = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
            late = connection.execute(f"SELECT coalesce(sum(count), 0) FROM {self._name}.late_requests").fetchone()
        return found + f"late {late[0] if late else 0}\n".encode()


def kill_workers(replay: Replay, played: Played, kills: int, dice: random.Random, log: Callable[[str], None]) -> int:
    """Kill a worker each time that a share more of the rows is read; how many were killed."""
    killed = 0
    for number in range(kills):
        wanted = played.rows * (number + 1) // (kills + 2)
        while replay.read() < wanted and replay.process.poll() is None:
            time.sleep(0.05)
        workers = [pid for pid in children(replay.process.pid) if b"\0worker\0" in command_of(pid)]
        if workers:
            with suppress(ProcessLookupError):
                os.kill(dice.choice(workers), signal.SIGKILL)
                killed += 1
                log(f"a worker is killed after {replay.read():,} of {played.rows:,} rows")
    return killed


def compared(
    *,
    share: int,
    kills: int,
    seconds: float,
    seed: int,
    lease_s: float,
    workers: int,
    every_ms: int,
    log: Callable[[str], None],
) -> tuple[bytes, bytes, int]:
    """What the embedded run and the cluster have found, and how many workers were killed."""
    with temporary_postgres() as postgres, tempfile.TemporaryDirectory(prefix="mw-zeitgeist-", dir="/tmp") as path:
        directory = Path(path)
        played = write_log(directory, share)
        log(f"seed {seed}: {played.rows:,} requests in about {seconds:g} s")
        embedded = Replay(directory, postgres.url, "embedded", played, 1.0, ["run", "zeitgeist_log:pipeline", "-q"])
        embedded.ended(600)
        up = ["up", "zeitgeist_log:pipeline", "-q", "--workers", str(workers), "--lease", f"{lease_s:g}"]
        cluster = Replay(directory, postgres.url, "cluster", played, seconds, up, every_ms)
        try:
            killed = kill_workers(cluster, played, kills, random.Random(seed), log)
            cluster.ended(seconds + 60 + kills * (lease_s + 10))
        finally:
            if cluster.process.poll() is None:
                cluster.process.kill()
                cluster.process.communicate()
        return embedded.anomalies(), cluster.anomalies(), killed


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.chaos.zeitgeist_cluster", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--share", type=int, default=1, help="one in so many of the log's paths (default 1: all)")
    parser.add_argument("--kills", type=int, default=12, help="workers that are killed (default 12)")
    parser.add_argument("--seconds", type=float, default=120, help="how long the log is replayed (default 120)")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument(
        "--durability", choices=("checkpoints", "snapshots"), default="checkpoints", help="of the cluster"
    )
    parser.add_argument("--every-ms", type=int, default=500, help="between two snapshots (default 500)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the dice (default: drawn)")
    given = parser.parse_args()
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:7.1f} {line}", flush=True)

    expected, found, killed = compared(
        share=given.share, kills=given.kills, seconds=given.seconds, seed=given.seed, lease_s=2.5, workers=given.workers,
        every_ms=given.every_ms if given.durability == "snapshots" else 0, log=log,
    )  # fmt: skip
    same = found == expected
    many = len(expected.splitlines()) - 1
    log(f"{killed} workers killed; {many:,} anomalies: {'the same bytes' if same else 'OTHER bytes'}")
    return int(not same or many == 0 or killed < given.kills)


if __name__ == "__main__":
    sys.exit(main())
