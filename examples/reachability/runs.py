"""Runs in processes of their own, with or without kills.

Lives here: starting, striking, reading what is committed.  Never here: what the answer must be (`oracle`).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from examples.reachability.links import arriving
from examples.reachability.pages import GROWTH, PAGES, build
from millwheel.committed import Committed
from millwheel.launch import run

TOP: Final = Path(__file__).resolve().parents[2]
LIMIT_S: Final = 3_600.0
POLL_S: Final = 0.01
SETTING: Final = "REACHABILITY"
"""The variable that tells the processes of a cluster what to run (`cluster`)."""


class Reachability(msgspec.Struct, frozen=True, kw_only=True):
    """One run: its store, the name of its pipeline, its links, and the keys at which `LinkedPage` is cut into intervals."""

    url: str
    pipeline: str
    links: int
    seed: int = 1
    split_keys: tuple[str, ...] = ()
    snapshot_every_ms: int = 0
    """0: checkpoints."""
    workers: int = 0
    """0: one process that does everything; else a cluster of so many workers."""

    def work(self) -> None:
        """Run, or go on, in this process."""
        made = build(arriving(self.links, self.seed), self.pipeline, self.split_keys, self.snapshot_every_ms)
        progress = run(made, self.url)
        if progress.late or progress.quarantined or not progress.finished:
            raise SystemExit(f"the run has late records or failed hooks, or did not end: {progress}")

    def start(self) -> subprocess.Popen[bytes]:
        """Run it in another process, or in several."""
        told = msgspec.json.encode(self).decode()
        if not self.workers:
            return subprocess.Popen([sys.executable, "-m", __name__, told], cwd=TOP)
        words = ["up", "examples.reachability.cluster:pipeline", "--store", self.url, "--workers", str(self.workers)]
        command = [sys.executable, "-m", "millwheel", *words, "--quiet"]
        return subprocess.Popen(command, cwd=TOP, env={**os.environ, SETTING: told})

    def committed(self) -> Committed:
        """What the store has of it."""
        return Committed(build([], self.pipeline, self.split_keys), self.url)

    def since(self) -> dict[str, int]:
        """Page to the time from when on it is reached, us."""
        with self.committed() as committed:
            return {row["page"]: row["since"] for row in committed.rows(PAGES)}

    def growth(self) -> list[tuple[int, int]]:
        """(end of a second in us, pages that are reached by then) of each second in which any was."""
        with self.committed() as committed:
            return [(row["upto"], row["pages"]) for row in committed.rows(GROWTH)]

    def newest(self, connection: psycopg.Connection[Any]) -> int:
        """The newest owner that has a checkpoint in the log."""
        if connection.execute("SELECT to_regclass(%s)", (f"{self.pipeline}.checkpoint_log",)).fetchone() == (None,):
            return 0
        query = f"SELECT coalesce(max(sequencer), 0) FROM {self.pipeline}.checkpoint_log"
        row = connection.execute(query.encode()).fetchone()
        return int(row[0]) if row is not None else 0


def cut_off(job: Reachability, seed: int = 1) -> bool:
    """Run `job` and end its process by signal 9 once it has committed something.  Returns whether it was still running."""
    dice, process = random.Random(seed), job.start()
    try:
        with psycopg.connect(job.url, autocommit=True) as connection:
            before = job.newest(connection)
            while process.poll() is None and job.newest(connection) <= before:
                time.sleep(POLL_S)
            time.sleep(dice.uniform(0.0, 0.1))
        return process.poll() is None
    finally:
        process.kill()
        process.wait()


def killed(job: Reachability, kills: int, seed: int = 1, wait_s: tuple[float, float] = (0.0, 0.3)) -> int:
    """Run `job` to its end and end its process up to `kills` times by signal 9, each time after it has committed something.

    Of a cluster it is one of its processes, a worker or a controller, which `millwheel up` starts again.  Between the
    commit and the signal, `wait_s` seconds pass, drawn between the two.  Returns how often it was killed.
    """
    dice, done, process = random.Random(seed), 0, job.start()
    try:
        with psycopg.connect(job.url, autocommit=True) as connection:
            while done < kills:
                before = job.newest(connection)
                while process.poll() is None and job.newest(connection) <= before:
                    time.sleep(POLL_S)
                time.sleep(dice.uniform(*wait_s))
                if process.poll() is not None:
                    break
                done += 1
                if job.workers:
                    os.kill(dice.choice(_children(process.pid)), signal.SIGKILL)
                    continue
                process.kill()
                process.wait()
                process = job.start()
        if process.wait(LIMIT_S):
            raise SystemExit(f"the run ended with status {process.returncode}")
        return done
    finally:
        if process.poll() is None:
            process.terminate() if job.workers else process.kill()
            process.wait()


def _children(parent: int) -> list[int]:
    """The processes that another one has started, as Linux lists them."""
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


if __name__ == "__main__":
    msgspec.json.decode(sys.argv[1], type=Reachability).work()
