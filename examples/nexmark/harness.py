"""Runs of a job in processes of their own, with or without kills.

Lives here: starting, striking, waiting.  Never here: what is asked or compared.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import psycopg

from examples.nexmark.job import Done, NexmarkJob

ROOT: Final = Path(__file__).resolve().parents[2]
POLL_S: Final = 0.02
LIMIT_S: Final = 600.0


class JobFailed(RuntimeError):
    """A process of a job ended otherwise than it should."""


def start(job: NexmarkJob) -> subprocess.Popen[bytes]:
    """A process that runs `job`."""
    command = [sys.executable, "-m", "examples.nexmark.job", msgspec.json.encode(job).decode()]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> Done:
    """Wait for the end; raises `JobFailed` when it is none in order."""
    out, _ = process.communicate(timeout=LIMIT_S)
    if process.returncode != 0:
        raise JobFailed(f"the job ended with status {process.returncode}")
    return msgspec.json.decode(out.strip().splitlines()[-1], type=Done)


def read_so_far(connection: psycopg.Connection[Any], pipeline: str) -> int:
    """Rows of the source that are durably done with."""
    if connection.execute("SELECT to_regclass(%s)", (f"{pipeline}.source",)).fetchone() == (None,):
        return 0
    row = connection.execute(f"SELECT coalesce(sum(position), 0) FROM {pipeline}.source".encode()).fetchone()
    assert row is not None
    return int(row[0])


def killed(job: NexmarkJob, connection: psycopg.Connection[Any], kills: int, seed: int = 1) -> tuple[Done, int]:
    """Run `job`, end it `kills` times by signal 9 while it makes progress, and let it finish.

    The second value is how many kills there were: a job may be done before.
    """
    dice = random.Random(seed)
    done, process = 0, start(job)
    try:
        while done < kills and _moves(connection, job.pipeline, process):
            time.sleep(dice.uniform(0.0, 0.15))
            if process.poll() is not None:
                break
            process.kill()
            process.communicate()
            done += 1
            process = start(job)
        return finish(process), done
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _moves(connection: psycopg.Connection[Any], pipeline: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until it has done more than before; false when it ends first."""
    before = read_so_far(connection, pipeline)
    while process.poll() is None:
        if read_so_far(connection, pipeline) > before:
            return True
        time.sleep(POLL_S)
    return False


def left_over(connection: psycopg.Connection[Any], pipeline: str) -> dict[str, int]:
    """Computations that hold state, and the number of their rows."""
    rows = connection.execute(
        f"""SELECT name.name, count(*) FROM {pipeline}.key_state
            JOIN {pipeline}.name ON name.kind = 'computation' AND name.number = key_state.computation
            GROUP BY name.name""".encode()
    ).fetchall()
    return dict(rows)
