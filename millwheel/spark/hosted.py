"""A worker on an executor: the one task of a Spark job, which starts `millwheel worker` as its child and waits for it.

Lives here: what runs in Spark's Python worker.  Never here: what runs on the driver (`hosting`), or what a worker does.
Invariants:

* the worker ends with the task: its standard input ends, whatever kills the task, and then it commits and leaves;
* the task never fails because the worker did: it returns how the worker ended, and the driver judges that;
* an executor without millwheel says so, and does not fail again and again.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import IO, Any

import msgspec

from millwheel.limits import HOSTED_LOOK_S, HOSTED_TAIL_LINES, LAST_LINES_S
from millwheel.runtime.supervisor import ENDS


class HostedWorker(msgspec.Struct, frozen=True):
    """What travels to an executor, as plain values."""

    name: str
    path: str
    """module:attribute of the pipeline."""
    url: str
    """Of the store."""
    options: tuple[str, ...]
    directory: str | None
    """Where it runs; None: where the executor does."""
    beyond: bool
    """Others reach it from other machines."""


class WorkerEnd(msgspec.Struct, frozen=True):
    """How a worker ended."""

    status: int
    """Its exit status, or minus the signal."""
    lived_s: float
    lines: tuple[str, ...]
    """The last that it printed."""


def task_of(worker: HostedWorker) -> Callable[[Iterable[int]], Iterator[tuple[int, float, tuple[str, ...]]]]:
    """The function for `mapPartitions`.  It is sent by value: it must start where millwheel cannot be imported."""
    fields = msgspec.structs.asdict(worker)
    hopeless = min(ENDS.hopeless)

    def task(rows: Iterable[int]) -> Iterator[tuple[int, float, tuple[str, ...]]]:
        list(rows)  # a Python worker that leaves input unread is thrown away
        try:
            from millwheel.spark import hosted
        except ImportError as error:
            yield hopeless, 0.0, (f"an executor cannot import millwheel: {error}; install the driver's version there",)
            return
        yield hosted.serve(fields)

    return task


def serve(fields: dict[str, Any]) -> tuple[int, float, tuple[str, ...]]:
    """Run a worker to its end; the fields of a `WorkerEnd`."""
    worker = HostedWorker(**fields)
    began = time.monotonic()
    tail: deque[str] = deque(maxlen=HOSTED_TAIL_LINES)
    child = subprocess.Popen(
        command_of(worker, os.environ, socket.gethostname()), cwd=worker.directory, env=_environment(worker),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    reader = threading.Thread(target=_pass_on, args=(worker.name, child.stdout, tail), daemon=True)
    reader.start()
    try:
        status = _ended(child)
    finally:
        if child.stdin is not None:
            child.stdin.close()
        child.wait()
    # A process that a hook has left may keep the pipe open for ever.  To close it here would mean to wait for that process.
    reader.join(LAST_LINES_S)
    return status, time.monotonic() - began, tuple(tail)


def _ended(child: subprocess.Popen[str]) -> int:
    """Wait for the end.  This process ends, too, when Spark's daemon above it does: nothing else would end it when the
    executor dies, and Spark would give it the next task.
    """
    above = os.getppid()
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(HOSTED_LOOK_S)
        if os.getppid() != above:
            if child.stdin is not None:
                child.stdin.close()
            child.wait()
            os._exit(1)


def command_of(worker: HostedWorker, environment: os._Environ[str] | dict[str, str], host: str) -> list[str]:
    """The worker's command on a machine that is called `host`."""
    command = [sys.executable, "-m", "millwheel", "worker", worker.path, "--name", worker.name, "--with-parent"]
    if worker.beyond:
        command += ["--listen", "0.0.0.0:0"]
        if "MILLWHEEL_ADVERTISE" not in environment:
            command += ["--advertise", environment.get("SPARK_LOCAL_HOSTNAME") or host]
    return [*command, *worker.options]


def _environment(worker: HostedWorker) -> dict[str, str]:
    """Spark has put what travels with the job on the path; the URL is in no command line, which others can read."""
    path = os.pathsep.join(place for place in sys.path if place)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "MILLWHEEL_STORE": worker.url}


def _pass_on(name: str, stream: IO[str], tail: deque[str]) -> None:
    """To the executor's log, which Spark keeps and shows."""
    with stream:
        for line in stream:
            tail.append(line.rstrip("\n"))
            with suppress(OSError):  # the executor is dead; the worker has something to say until it has left
                # An object of --log-format json names the worker itself.
                print(tail[-1] if line.startswith("{") else f"{name} | {tail[-1]}", file=sys.stderr, flush=True)
