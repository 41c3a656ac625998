"""A Spark of several executor processes on one machine, and the means to kill one of them.

`local-cluster` is Spark's own mode for tests: a real master, real worker and executor processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import SparkConf, SparkContext

from millwheel.spark import archive
from millwheel.spark.java import LEAN_JVM, ensure_java

ROOT = Path(__file__).resolve().parents[2]
LOGGING = Path(__file__).with_name("log4j2.properties")
"""For executors: in a short task, Spark's own twenty lines at level INFO are a good part of the work."""


@contextlib.contextmanager
def spark(executors: int, *, memory_mb: int = 1024, log_level: str = "OFF") -> Iterator[SparkContext]:
    """A context with `executors` executor processes of one core each; 0: none, all in the driver's JVM."""
    ensure_java()
    archived = archive.options()
    master = f"local-cluster[{executors},1,{memory_mb}]" if executors else "local[2]"
    settings = {
        "spark.app.name": "millwheel iteration",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.executor.memory": f"{memory_mb}m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        # Executors import the same code as the driver.
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), *(path for path in sys.path if path)]),
        # Start when all executors are there, or the first of them gets all partitions.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        # A superstep is shorter than the 3 s for which a task would wait for the executor that it prefers.
        "spark.locality.wait": "200ms",
        # A task that misses a lost block fails each time; Spark's four tries only keep the recovery waiting, up to 6 s.
        "spark.task.maxFailures": "1",
        # A task that fetches from a dead executor would otherwise try three times, 5 s apart, before it says so.
        "spark.shuffle.io.maxRetries": "2",
        "spark.shuffle.io.retryWait": "200ms",
        # A task's small writes over TCP meet Nagle's algorithm and a delayed acknowledgement: 40 ms in every task.
        "spark.python.unix.domain.socket.enabled": "true",
        # These JVMs move bytes for seconds to minutes: the optimising compiler would take a core of few for all that time,
        # and a parallel collector has barriers and threads that a small heap does not need.
        "spark.driver.extraJavaOptions": f"{LEAN_JVM} {archived}",
        "spark.executor.extraJavaOptions": f"{LEAN_JVM} {archived} -Dlog4j2.configurationFile={LOGGING.as_uri()}",
        # Columns of numbers hardly shrink; compressing them is half of the executors' work.
        "spark.rdd.compress": "false",
        "spark.shuffle.compress": "false",
        # What the driver remembers of each finished job; a thousand supersteps are nothing to keep.
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "40",
        "spark.ui.retainedTasks": "400",
        "spark.ui.dagGraph.retainedRootRDDs": "20",
    }
    conf = SparkConf().setMaster(master)
    for name, value in settings.items():
        conf.set(name, value)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    context = SparkContext(conf=conf)
    context.setLogLevel(log_level)
    try:
        yield context
    finally:
        context.stop()


def executor_pids(context: SparkContext) -> list[int]:
    """The executor processes, oldest first: the grandparents of Python workers. Needs executors of their own."""
    slots = 2 * max(context.defaultParallelism, 1)
    found = context.parallelize(range(slots), slots).mapPartitions(_executor_pid).collect()
    return sorted(set(found))


def kill(pid: int) -> None:
    """kill -9."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _executor_pid(numbers: Iterable[int]) -> Iterator[int]:
    list(numbers)  # a worker that leaves input unread is thrown away
    shown = subprocess.run(["ps", "-o", "ppid=", "-p", str(os.getppid())], capture_output=True, text=True, check=True)
    yield int(shown.stdout)
