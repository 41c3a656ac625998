"""Zeitgeist under `kill -9` of Python, of the embedded Postgres, or of both: the anomalies stay the same bytes.

`MILLWHEEL_KILLS` sets the number of kills, `MILLWHEEL_SEED` the dice.  A landing kills a run of one day; the run of two days,
and more often, is for `make reliability`.
"""

from __future__ import annotations

import gzip
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from examples.zeitgeist.__main__ import SLICE
from millwheel_storage.embedded import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[2]
KILLS = int(os.environ.get("MILLWHEEL_KILLS", "0"))
SEED = int(os.environ.get("MILLWHEEL_SEED", "1995"))
IN_PIPELINE = 0.75
"""The share of the kills that must hit a pipeline that is running, not one that starts."""
VICTIMS = ("python", "postgres", "both", "postgres", "python", "both")
STARTING = "starting"

DAYS = {"13": 4, "12 and 13": 12}
"""Days of July 1995, and how often their run is killed.  The 13th has the launch and the silence."""

pytestmark = [
    pytest.mark.chaos, pytest.mark.slow, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(900),
]  # fmt: skip


class Run:
    """One process of the command, and what it has printed so far."""

    def __init__(self, log: Path, out: Path) -> None:
        command = [sys.executable, "-m", "examples.zeitgeist", "--log", str(log), "--out", str(out)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=dict(os.environ)
        )
        self.lines: list[str] = []
        self.struck_at = 0
        self._postgres = EmbeddedPostgres(out / "store" / "postgres")
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def injected(self) -> int:
        """Rows of the newest progress line; 0 before the first."""
        found = re.findall(r"zeitgeist: ([\d,]+) rows, [\d,]+/s", "".join(self.lines))
        return int(found[-1].replace(",", "")) if found else 0

    def wait_for_progress(self) -> bool:
        """Until the pipeline has read more than when it was last struck; false when the process ended before."""
        while self.process.poll() is None:
            if self.injected() > self.struck_at:
                return True
            time.sleep(0.01)
        return False

    def kill_postgres(self) -> bool:
        pid = self._postgres.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None

    def kill_python(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        """Wait for the end; the exit status."""
        status = self.process.wait(timeout=300)
        self._listener.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return status

    def check_end(self) -> None:
        status = self.end()
        assert status == 0, "".join(self.lines)
        assert self._postgres.pid is None, "the embedded Postgres outlived its last user"


def log_of(days: str, path: Path) -> Path:
    """The lines of some days of the carried slice, in a file of their own."""
    wanted = re.compile(rb"\[(?:%s)/Jul/1995:" % days.replace(" and ", "|").encode())
    with gzip.open(SLICE, "rb") as lines:
        path.write_bytes(b"".join(line for line in lines if wanted.search(line)))
    return path


def strike(run: Run, victim: str, dice: random.Random) -> bool:
    """Kill what `victim` names; true when the pipeline was running by then."""
    running = run.wait_for_progress() if dice.random() < 0.9 else False
    time.sleep(dice.uniform(0.0, 0.7))
    running = running and run.process.poll() is None and not any("anomalies;" in line for line in run.lines)
    run.struck_at = run.injected()
    if victim != "python":
        running = run.kill_postgres() and running
    if victim != "postgres":
        run.kill_python()
    return running


@pytest.mark.parametrize("days", ["13", pytest.param("12 and 13", marks=pytest.mark.long)])
def test_killed_again_and_again_it_gives_the_same_bytes(days: str, tmp_path: Path) -> None:
    kills = KILLS or DAYS[days]
    log, undisturbed = log_of(days, tmp_path / "access.log"), tmp_path / "undisturbed"
    Run(log, undisturbed).check_end()
    expected = (undisturbed / "anomalies.jsonl").read_bytes()
    assert expected
    dice = random.Random(SEED)
    struck: Counter[str] = Counter()
    rounds = 0
    # A fast machine finishes between kills, and is struck while it starts: it goes on until enough kills hit the pipeline.
    while struck.total() < kills or in_pipeline(struck) < IN_PIPELINE * kills:
        rounds += 1
        out = tmp_path / f"round {rounds}"
        shutil.copytree(undisturbed / "parsed", out / "parsed")
        shutil.copy(undisturbed / "run.json", out)
        run = Run(log, out)
        while run.process.poll() is None and (struck.total() < kills or in_pipeline(struck) < IN_PIPELINE * kills):
            victim = VICTIMS[struck.total() % len(VICTIMS)]
            struck[victim if strike(run, victim, dice) else STARTING] += 1
            if run.process.poll() is not None and victim != "postgres":
                run = Run(log, out)
        run.check_end()
        assert (out / "anomalies.jsonl").read_bytes() == expected, f"round {rounds} of seed {SEED}, {struck}"
    print(f"seed {SEED}: {dict(struck)} in {rounds} rounds")


def in_pipeline(struck: Counter[str]) -> int:
    return struck.total() - struck[STARTING]
