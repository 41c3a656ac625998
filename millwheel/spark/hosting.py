"""Spark hosts a cluster: each worker is a one-task job on an executor, and controllers are children of the driver.

Lives here: which workers there shall be, and what follows when one has ended.  Never here: what runs on an executor
(`hosted`), or anything that MillWheel decides: leases and the map in Postgres do (docs/adr/0034-spark-hosts-the-cluster.md).
Invariants:

* a worker that ends is started again until one of them has seen the end of the run, or it is not wanted any more;
* whatever kills a job's task, its worker is another member when it comes back: its incarnation comes with its lease;
* when the controllers beside the driver have seen the end, workers that come later are not waited for;
* nobody waits for a core without a word, and a worker that fails by itself again and again ends the cluster.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from millwheel import limits
from millwheel.api.pipeline import Pipeline
from millwheel.errors import StoreError, WiringError
from millwheel.host.over import Tolerance
from millwheel.launch import import_pipeline
from millwheel.runtime import memory
from millwheel.runtime.embedded import check_sources
from millwheel.runtime.supervisor import ENDS
from millwheel.spark.controllers import ControllerFamily
from millwheel.spark.hosted import HostedWorker, WorkerEnd, task_of
from millwheel.spark.hosting_plan import HostingPlan, Say, heard_or_not, log_line
from millwheel.spark.masters import check_reachable, is_local
from millwheel.spark.packing import packed
from millwheel_storage.postgres import PostgresStore

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

ME: Final = "up"
"""Whose the driver's own lines are."""

_DEATH: Final = re.compile(
    r"ExecutorLostFailure|Python worker exited unexpectedly|executor .{0,80}(?:lost|exit)|SocketException|EOFException"
    r"|Connection reset|TaskKilled|cancelled",
    re.IGNORECASE,
)
"""What Spark says of a job whose task was killed.  Anything else is an error that the next job would meet, too."""


def up(
    path: str,
    url: str,
    *,
    spark: SparkSession,
    workers: int = 2,
    controllers: int = 1,
    lease_s: float = limits.LEASE_US / 1e6,
    certs: str | None = None,
    py_files: Sequence[str] = (),
    allow_quarantine: int | None = None,
    allow_rejected: int | None = None,
    cache_bytes: int | None = None,
    say: Say = log_line,
) -> SparkCluster:
    """Start a cluster of the pipeline "module:attribute" on the executors of `spark`.  Use as a context manager.

    `url` is of a Postgres that executors reach.  With `controllers=0` no controller is started: one runs elsewhere.
    Executors have the driver's version of millwheel; the pipeline's module is sent to them, and `py_files` (.py, .zip) as
    well.  `allow_quarantine` and `allow_rejected` are as in `launch.run`, for all workers together; a controller elsewhere
    has its own.  `cache_bytes` is as in `launch.run`, for each worker.  Raises `ChannelError` when workers could not reach
    each other, and `WiringError` for what cannot be imported.

    >>> with up("wordcount:pipeline", url, spark=session, workers=2) as cluster:      # doctest: +SKIP
    ...     cluster.scale(4)
    ...     cluster.wait()
    0
    """
    plan = HostingPlan(
        path=path, url=url, controllers=controllers, options=("--lease", f"{lease_s:g}"), certs=certs,
        py_files=tuple(py_files), allowed=Tolerance(allow_quarantine, allow_rejected), cache_bytes=cache_bytes,
    )  # fmt: skip
    cluster = SparkCluster(spark, plan, say)
    cluster.scale(workers)
    return cluster


class _Place:
    """One worker that is wanted, and the thread that runs its jobs, one after the other."""

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.wanted = True
        self.group = ""
        """The job group of the job that runs."""
        self.waits_since = 0.0
        """When its task ran last, or when the job was given to Spark, by the monotonic clock."""
        self.told = False
        """It was said that this job waits."""
        self.deaths = 0
        self.failures = 0
        self.state = "starts"
        self.thread: threading.Thread | None = None


class SparkCluster:
    """Workers on the executors of one Spark application.  Its methods may be called from any thread."""

    def __init__(self, spark: SparkSession, plan: HostingPlan, say: Say) -> None:
        """Nothing runs on executors before `scale`."""
        if not hasattr(spark, "_jsc") and not hasattr(spark, "_jsparkSession"):
            raise WiringError("this session is a Spark Connect client, which has no jobs of its own: use a classic one")
        self._context: SparkContext = spark.sparkContext
        self._master = str(self._context.master)
        check_reachable(self._master, plan.certs is not None)
        self._pipeline: Pipeline = import_pipeline(plan.path)
        check_sources(self._pipeline.graph())
        self._plan = plan
        self._label = plan.label()
        self._say = heard_or_not(say)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._places: dict[int, _Place] = {}
        self._over = False
        """A worker, or all controllers, have seen the end of the run."""
        self._over_at = 0.0
        self._stopping = False
        self._broken: int | None = None
        """The status that ended the cluster before its time."""
        self._is_lost = False
        """The store is gone: nobody commits, and nobody can be asked who has left."""
        self._worst = 0
        for file in (*plan.py_files, *packed(plan.path.partition(":")[0], Path.cwd())):
            self._context.addPyFile(str(file))
        host = None if is_local(self._master) else str(self._context.getConf().get("spark.driver.host"))
        self._controllers = ControllerFamily(plan, host, self._say)
        self._watch = threading.Thread(target=self._watching, name="millwheel-spark", daemon=True)
        self._watch.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- what is wanted ---------------------------------------------------------------------------------------

    def scale(self, workers: int) -> None:
        """From now on there shall be so many workers.  Those that are too many leave in order, the last ones first."""
        if workers < 0:
            raise WiringError(f"{workers} workers cannot be: give 0 or more")
        with self._lock:
            if self._stopping or self._over:
                return
            for place in self._places.values():
                if place.number > workers:
                    place.wanted = False
            for number in range(1, workers + 1):
                place = self._places.get(number) or _Place(number, f"{self._label}-{number}")
                place.wanted = True
                self._places[number] = place
                if place.thread is None:
                    place.thread = threading.Thread(
                        target=self._keep, args=(place,), name=f"millwheel-{place.name}", daemon=True
                    )
                    place.thread.start()

    @property
    def wanted(self) -> int:
        """How many workers there shall be."""
        with self._lock:
            return sum(place.wanted for place in self._places.values())

    def workers(self) -> dict[str, str]:
        """By name: "starts", "waits for a core", "runs" or "leaves"."""
        with self._lock:
            return {
                place.name: place.state if place.wanted else "leaves"
                for _, place in sorted(self._places.items())
                if place.thread is not None
            }

    @property
    def done(self) -> bool:
        """The run is over, or was stopped, and no worker runs."""
        with self._lock:
            return self._is_done()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end of the run; the largest exit status of who saw it, or None: stopped, or not over in time."""
        with self._changed:
            self._changed.wait_for(self._is_done, timeout_s)
            if self._broken is not None:
                return self._broken
            return self._worst if self._over and self._is_done() else None

    def give_up(self, why: str) -> None:
        """Stop, because no worker can go on; the status is 1.  Whoever holds the cluster ends it with `stop`, as ever."""
        with self._changed:
            if self._over or self._stopping:
                return
            self._say(ME, True, f"{why}: the cluster is stopped")
            self._broken, self._stopping, self._is_lost = 1, True, True
            self._changed.notify_all()

    def stop(self) -> None:
        """Have all workers commit and leave, and end the controllers."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._threads(), limits.UP_STOP_LIMIT_S)
        if not self._over and not self._is_lost:
            self._wait_for_leavers()
        self._controllers.stop(self._over)
        self._watch.join(limits.UP_STOP_LIMIT_S)

    def _is_done(self) -> bool:
        return (self._over or self._stopping) and not self._threads()

    def _threads(self) -> list[_Place]:
        return [place for place in self._places.values() if place.thread is not None]

    def _wait_for_leavers(self) -> None:
        """A cancelled job is over before its worker is: that one still commits what its hooks have done."""
        until, ours = time.monotonic() + limits.UP_STOP_LIMIT_S, {place.name for place in self._places.values()}
        with suppress(StoreError, TimeoutError):
            while time.monotonic() < until and ours & asyncio.run(_alive(self._plan.url, self._pipeline.name)):
                time.sleep(limits.HOSTING_LOOK_S)

    # --- one worker -------------------------------------------------------------------------------------------

    def _keep(self, place: _Place) -> None:
        while True:
            began = time.monotonic()
            end = self._run_job(place)
            with self._changed:
                lived_s = end.lived_s if end is not None else time.monotonic() - began
                self._note(place, end, lived_s >= limits.RESTART_YOUNG_S)
                if self._over or self._stopping or not place.wanted:
                    place.thread = None
                    self._changed.notify_all()
                    return
                place.state = "starts"
                delay_s = limits.RESTART_FIRST_DELAY_S * 2 ** min(place.deaths, 10)
                self._changed.wait_for(
                    lambda: self._stopping or self._over, min(delay_s, limits.RESTART_LONGEST_DELAY_S)
                )

    def _run_job(self, place: _Place) -> WorkerEnd | None:
        """One job, to its end.  None: something has killed it, or it was cancelled."""
        context, plan = self._context, self._plan
        with self._lock:
            if self._stopping or self._over or not place.wanted:
                return None
            place.group, place.waits_since, place.told = f"millwheel-{uuid.uuid4().hex}", time.monotonic(), False
        try:
            context.setJobGroup(place.group, f"millwheel {place.name} of {plan.path}", interruptOnCancel=True)
            task = task_of(self._hosted(place))
            ((status, lived_s, lines),) = context.parallelize([0], 1).mapPartitions(task).collect()
            return WorkerEnd(status, lived_s, lines)
        except Exception as error:  # of Spark, py4j or the executor: whatever it is, the worker does not run
            if self._context._jsc is None or not _is_up(self._context):
                return WorkerEnd(1, 0.0, ("Spark has ended",))
            text = str(error)
            return None if _DEATH.search(text) else WorkerEnd(1, 0.0, (_reason(text),))
        finally:
            place.group = ""

    def _hosted(self, place: _Place) -> HostedWorker:
        plan, local = self._plan, is_local(self._master)
        options = [*plan.options]
        if plan.certs is not None:
            options += ["--certs", os.path.abspath(plan.certs)]
        # Workers on this machine are all there are on it; of another one nobody knows here how many it has.
        cache_bytes = memory.cache_bytes(len(self._places)) if local and not plan.cache_bytes else plan.cache_bytes
        if cache_bytes:
            options += ["--cache", str(cache_bytes)]
        return HostedWorker(
            name=place.name, path=plan.path, url=plan.url, options=tuple(options),
            directory=os.getcwd() if local else None, beyond=not local,
        )  # fmt: skip

    def _note(self, place: _Place, end: WorkerEnd | None, old: bool) -> None:
        """A worker has ended."""
        if end is not None and end.status in ENDS.finished:
            self._end(end.status)
            return
        if self._stopping or not place.wanted or self._over:
            return
        place.deaths = 1 if old else place.deaths + 1
        doubtful = end is not None and end.status in ENDS.doubtful
        place.failures = int(doubtful) + (0 if old else place.failures)
        how = _how(end)
        if end is not None and (end.status in ENDS.hopeless or place.failures >= limits.RESTART_FAILURES):
            for line in end.lines:
                self._say(place.name, True, line)
            self._say(ME, True, f"{place.name} {how}: the cluster is stopped")
            self._broken = self._broken or end.status
            self._stopping = True
        else:
            if end is not None and end.lines:
                self._say(place.name, True, end.lines[-1])
            self._say(ME, True, f"{place.name} {how}; it is started again")

    def _end(self, status: int) -> None:
        """Somebody has seen the end of the run."""
        if not self._over:
            self._over, self._over_at = True, time.monotonic()
            self._changed.notify_all()
        self._worst = max(self._worst, status)

    # --- looking after them -----------------------------------------------------------------------------------

    def _watching(self) -> None:
        """Cancel jobs that are not wanted, say who waits for a core, and see whether controllers can go on."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._over, limits.HOSTING_LOOK_S)
                places = self._threads()
                if not places and (self._stopping or self._over):
                    return
                if self._controllers.failed is not None and not (self._stopping or self._over):
                    self._broken, self._stopping = self._controllers.failed, True
                if self._controllers.seen is not None:
                    # Workers that join now would wait for ever: there is nobody left who tells them.
                    self._end(self._controllers.seen)
                late = self._over and time.monotonic() > self._over_at + limits.UP_STOP_LIMIT_S
            for place in places:
                self._look_after(place, late)
            time.sleep(limits.HOSTING_LOOK_S)

    def _look_after(self, place: _Place, late: bool) -> None:
        group = place.group
        if not group:
            return
        runs = self._runs(group)
        if runs:
            place.waits_since, place.told = time.monotonic(), False
        if self._stopping or not place.wanted or late or (self._over and not runs):
            with suppress(Exception):  # Spark may have ended
                self._context.cancelJobGroup(group)
            return
        waits = not runs and time.monotonic() > place.waits_since + limits.HOSTING_PATIENCE_S
        with self._lock:
            place.state = "runs" if runs else "waits for a core" if waits else place.state
        if waits and not place.told:
            place.told = True
            self._say(
                ME,
                True,
                f"{place.name} waits for a free core of Spark: its executors have fewer than there are workers, or none has "
                "come yet; see Spark's own pages, or ask for fewer workers",
            )

    def _runs(self, group: str) -> bool:
        """Whether the task of this job runs on an executor."""
        tracker = self._context.statusTracker()
        with suppress(Exception):  # Spark may have ended
            for job in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job)
                for stage in info.stageIds if info is not None else ():
                    found = tracker.getStageInfo(stage)
                    if found is not None and found.numActiveTasks:
                        return True
        return False


def _how(end: WorkerEnd | None) -> str:
    if end is None:
        return "was killed, or its executor was"
    return f"was killed by signal {-end.status}" if end.status < 0 else f"ended with status {end.status}"


def _reason(text: str) -> str:
    """The end of what Spark says of a failed job: without the stack of its scheduler."""
    told = text.partition("Driver stacktrace:")[0].strip().splitlines()
    return " ".join(line.strip() for line in told[-3:])


def _is_up(context: SparkContext) -> bool:
    try:
        return not context._jsc.sc().isStopped()
    except Exception:  # py4j: the JVM is gone
        return False


async def _alive(url: str, pipeline: str) -> set[str]:
    """The names of workers that have not left."""
    store = PostgresStore(url, pipeline)
    try:
        found = await store.cluster_map()
        return {member.name for member in found.members if member.alive and member.role == "worker"}
    finally:
        await store.close()
