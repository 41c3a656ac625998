"""What the benchmarks of iterations measure, in a process of its own with a Spark of two executor processes.

Lives here: what runs with that Spark, `local-cluster[2,1,1024]`.  Never here: targets (`iteration`).  Those that follow each
other run in the same process: a start, and the first jobs after it, take a quarter of a minute of a small machine.  What is
compared alternates.  Kills are signal 9 to an executor, in the middle of a superstep.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
import threading
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks import common

EXECUTORS: Final = 2
PARTITIONS: Final = 4
ROUNDS: Final = int(os.environ.get("MILLWHEEL_BENCH_ROUNDS", 1))
STEPS: Final = 12
WARM: Final = 5
SUPERSTEPS: Final = int(os.environ.get("MILLWHEEL_BENCH_SUPERSTEPS", 24))
TIGHT: Final = 1e-12
CHAIN: Final = int(os.environ.get("MILLWHEEL_BENCH_CHAIN", 50))
KILLS: Final = (10, 20, 40, 80, 120)


@dataclass
class _Kill:
    """Kills an executor some way into the superstep after `at`, and notes when."""

    pids: list[int]
    at: int
    delay_s: float
    when: float = 0.0
    executed_before: int = 0
    seen: int = field(default=0)

    def __call__(self, event: Any) -> None:
        from millwheel.spark.iteration import Superstep

        if not isinstance(event, Superstep):
            return
        self.seen += 1
        if event.number == self.at and not self.when:
            self.executed_before = self.seen
            self.when = time.monotonic() + self.delay_s
            threading.Timer(self.delay_s, _kill, [self.pids[-1]]).start()


def _kill(pid: int) -> None:
    from examples.graphs.cluster import kill

    kill(pid)


def _quiet(event: Any) -> None:
    pass


def _forms(context: Any) -> dict[str, Any]:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    from examples.graphs.graph import HOLLINS, load, partitioned
    from examples.graphs.pagerank import DAMPING, PageRank

    graph = load(HOLLINS)
    n = len(graph.vertices)
    links = list(zip(graph.source.tolist(), graph.target.tolist(), strict=True))
    degree = dict(zip(*(column.tolist() for column in np.unique(graph.source, return_counts=True)), strict=True))

    def columns() -> list[float]:
        job = PageRank(partitioned(context, graph, PARTITIONS), n, below=0.0)
        from millwheel.spark.iteration import Steps, iterate

        return [event.seconds for event in iterate(job.initial(), job.step, Steps(STEPS), listener=_quiet).history]

    def pairs() -> list[float]:
        grouped = context.parallelize(links, PARTITIONS).groupByKey(PARTITIONS).mapValues(list).cache()
        everybody = context.parallelize(graph.vertices.tolist(), PARTITIONS).map(lambda page: (page, 0.0))
        everybody = everybody.partitionBy(PARTITIONS).cache()
        ranks = everybody.mapValues(lambda _: 1.0 / n)
        seconds = []
        for _ in range(STEPS):
            began = time.perf_counter()
            dangling = ranks.subtractByKey(grouped, PARTITIONS).values().sum()
            sent = grouped.join(ranks, PARTITIONS).flatMap(
                lambda kv: [(to, kv[1][1] / len(kv[1][0])) for to in kv[1][0]]
            )
            base = DAMPING * dangling / n + (1 - DAMPING) / n
            summed = everybody.union(sent).reduceByKey(lambda a, b: a + b, PARTITIONS)
            following = summed.mapValues(lambda total, base=base: DAMPING * total + base).cache()
            following.localCheckpoint()
            following.count()
            ranks.unpersist()
            ranks = following
            seconds.append(time.perf_counter() - began)
        return seconds

    def frames() -> list[float]:
        session = SparkSession(context)
        session.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))
        session.conf.set("spark.sql.adaptive.enabled", "false")
        session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
        edges = session.createDataFrame([(a, b, float(degree[a])) for a, b in links], "a long, b long, degree double")
        edges = edges.repartition(PARTITIONS, "a").cache()
        pages = session.createDataFrame(
            [(page, float(degree.get(page, 0))) for page in graph.vertices.tolist()], "a long, d double"
        )
        ranks = pages.select("a", "d", f.lit(1.0 / n).alias("rank")).repartition(PARTITIONS, "a").localCheckpoint()
        seconds = []
        for _ in range(STEPS):
            began = time.perf_counter()
            dangling = ranks.where("d = 0").agg(f.sum("rank")).collect()[0][0]
            base = DAMPING * dangling / n + (1 - DAMPING) / n
            sent = (
                edges.join(ranks, "a")
                .groupBy(f.col("b").alias("a"))
                .agg(f.sum(f.col("rank") / f.col("degree")).alias("got"))
            )
            following = ranks.select("a", "d").join(sent, "a", "left")
            ranks = following.select(
                "a", "d", (f.coalesce("got", f.lit(0.0)) * DAMPING + base).alias("rank")
            ).localCheckpoint()
            seconds.append(time.perf_counter() - began)
        return seconds

    found: dict[str, list[float]] = {"columns": [], "pairs": [], "frames": []}
    for _ in range(ROUNDS):
        for name, form in (("columns", columns), ("pairs", pairs), ("frames", frames)):
            found[name].append(common.median(form()[WARM:]))
    return found


def _seconds_of_sum(part: Any) -> float:
    return min(timeit.repeat(lambda: float(part["rank"].sum()), number=10, repeat=5)) / 10


class _Player:
    """An iteration in a thread of its own, which makes one superstep each time it is told to."""

    def __init__(self, run: Callable[[Callable[[Any], None]], Any]) -> None:
        self._run, self._error, self._over = run, "", False
        self._go, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self._thread.start()

    def superstep(self) -> float:
        """Seconds it took, a head checkpoint's write included: the next superstep would wait for that at once."""
        began = time.perf_counter()
        self._go.set()
        self._done.wait()
        self._done.clear()
        if self._error:
            raise RuntimeError(self._error)
        return time.perf_counter() - began

    def end(self) -> None:
        """No further superstep."""
        self._over = True
        self._go.set()
        self._thread.join()

    def _play(self) -> None:
        self._go.wait()
        self._go.clear()
        try:
            self._run(self._listen)
        except _Enough:
            pass
        except Exception as error:
            self._error = repr(error)
        self._done.set()

    def _listen(self, event: Any) -> None:
        for thread in threading.enumerate():
            if thread.name.startswith("head-"):
                thread.join()
        self._done.set()
        self._go.wait()
        self._go.clear()
        if self._over:
            raise _Enough


class _Enough(Exception):
    """As many supersteps as were wanted."""


def _overhead_runs(context: Any, kind: str) -> dict[str, Any]:
    """All policies at once, in turns of one superstep each: whatever else the machine does meets all of them alike."""
    from examples.graphs.components import Components
    from examples.graphs.graph import cliques, partitioned, scale_free
    from examples.graphs.pagerank import PageRank
    from examples.graphs.runs import POLICIES, chosen
    from millwheel.spark.iteration import Steps, iterate

    steps = WARM + 1 + SUPERSTEPS
    if kind == "bulk":
        graph = scale_free(200_000, 1_000_000, seed=11)
        ranks = PageRank(partitioned(context, graph, PARTITIONS), len(graph.vertices), below=0.0)
        optimistic = ranks.optimistic()
        # Two partitions on each core, one after the other.
        own_work = PARTITIONS / EXECUTORS * max(ranks.initial().map(_seconds_of_sum).collect())

        def run(policy: Any, listener: Callable[[Any], None]) -> Any:
            return iterate(ranks.initial(), ranks.step, Steps(steps), policy, listener=listener)
    else:
        labels = Components(partitioned(context, cliques(10_000, 10), PARTITIONS))
        optimistic, own_work = labels.optimistic(), 0.0  # it conserves no column, so it does nothing

        def run(policy: Any, listener: Callable[[Any], None]) -> Any:
            return labels.run(policy, at_most=steps, listener=listener)

    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    random = np.random.default_rng(5)
    with common.work(f"iteration_{kind}") as path:
        players = {name: _Player(partial(run, chosen(name, path / name, 1, optimistic))) for name in POLICIES}
        for turn in range(WARM + SUPERSTEPS):
            for place in random.permutation(len(POLICIES)):
                seconds = players[POLICIES[place]].superstep()
                if turn >= WARM:
                    found[POLICIES[place]].append(seconds)
        for player in players.values():
            player.end()
    return {**found, "optimistic_work_s": own_work}


def _ranking(context: Any) -> dict[str, Any]:
    from examples.graphs.cluster import executor_pids
    from examples.graphs.graph import HOLLINS, load, partitioned
    from examples.graphs.pagerank import PageRank, exact
    from examples.graphs.runs import places, rows_of
    from millwheel.spark.iteration import Restart

    graph = load(HOLLINS)
    n = len(graph.vertices)
    links = partitioned(context, graph, EXECUTORS)  # a kill takes half of the pages in any case; 900 supersteps
    solved = dict(zip(graph.vertices.tolist(), exact(graph.vertices, graph.source, graph.target).tolist(), strict=True))

    def near(one: dict[int, float], other: dict[int, float]) -> float:
        return float((np.abs(places(one) - places(other)) <= 10).mean())

    def gap(one: dict[int, float], other: dict[int, float]) -> float:
        return sum(abs(one[key] - other[key]) for key in other)

    found: dict[str, Any] = {"calm": [], "kills": []}
    for below in (1 / (100 * n), TIGHT):
        job = PageRank(links, n, below)
        calm = job.run(Restart(), deliver=rows_of, listener=_quiet)
        figures = {"below": below, "supersteps": calm.supersteps}
        found["calm"].append({**figures, "near": near(calm.value, solved), "l1_to_exact": gap(calm.value, solved)})
        done = {one["kill_after"] for one in found["kills"]}
        for at in (at for at in KILLS if at < calm.supersteps and at not in done):
            killer = _Kill(_all_pids(context, executor_pids), at, 0.1)
            run = job.run(job.optimistic("spread"), deliver=rows_of, listener=killer)
            lost = [len(recovery.lost) for recovery in run.recoveries]
            found["kills"].append({
                "below": below, "kill_after": at, "supersteps": run.executed, "lost_partitions": lost,
                "near": near(run.value, calm.value), "l1_to_exact": gap(run.value, solved),
            })  # fmt: skip
    return found


def _recovery_runs(context: Any, kind: str) -> dict[str, Any]:
    from examples.graphs.cluster import executor_pids
    from examples.graphs.components import Components
    from examples.graphs.graph import HOLLINS, cliques, load, partitioned
    from examples.graphs.pagerank import PageRank
    from examples.graphs.runs import places, rows_of
    from millwheel.spark.iteration import Restart

    if kind == "bulk":
        graph = load(HOLLINS)
        job: Any = PageRank(partitioned(context, graph, PARTITIONS), len(graph.vertices))
        policies = {"restart": Restart(), "spread": job.optimistic("spread"), "relax": job.optimistic("relax")}
        calm = job.run(Restart(), deliver=rows_of, listener=_quiet)
        expected, supersteps = calm.value, calm.supersteps
    else:
        graph = cliques(CHAIN, 10)
        job = Components(partitioned(context, graph, PARTITIONS))
        policies = {"restart": Restart(), "optimistic": job.optimistic()}
        # One component, whose label needs two supersteps a clique: known without an undisturbed run.
        expected, supersteps = dict.fromkeys(graph.vertices.tolist(), 0), 2 * CHAIN
    half = supersteps // 2
    found: dict[str, Any] = {name: [] for name in policies}
    for _ in range(ROUNDS):
        for name, policy in policies.items():
            killer = _Kill(_all_pids(context, executor_pids), half, 0.1)
            run = job.run(policy, deliver=rows_of, listener=killer)
            ended = time.monotonic()
            if kind == "bulk":
                right = bool((np.abs(places(run.value) - places(expected)) <= 10).mean() >= 0.95)
            else:
                right = bool(run.value == expected)
            found[name].append({
                "seconds": ended - killer.when, "supersteps": run.executed - killer.executed_before, "right": right,
                "recovery_s": [recovery.seconds for recovery in run.recoveries],
                "lost": [len(recovery.lost) for recovery in run.recoveries],
                "undisturbed_supersteps": supersteps, "killed_after": half,
            })  # fmt: skip
    return found


def _memory(context: Any) -> dict[str, Any]:
    from examples.graphs.graph import HOLLINS, load, partitioned
    from examples.graphs.pagerank import PageRank
    from millwheel.spark.iteration import Steps, Superstep, iterate

    graph = load(HOLLINS)
    job = PageRank(partitioned(context, graph, PARTITIONS), len(graph.vertices))
    found: dict[str, list[float]] = {"superstep": [], "heap_mb": [], "python_mb": [], "seconds": []}

    def note(event: Any) -> None:
        if isinstance(event, Superstep) and event.number % 20 == 0:
            heap, python = driver_mb(context)
            found["superstep"].append(event.number)
            found["heap_mb"].append(heap)
            found["python_mb"].append(python)
            found["seconds"].append(event.seconds)

    iterate(job.initial(), job.step, Steps(200), listener=note)
    return {**found, "peak_python_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def driver_mb(context: Any) -> tuple[float, float]:
    """What the driver needs, MB: (JVM heap in use after a collection, resident memory of this Python)."""
    context._jvm.java.lang.System.gc()
    time.sleep(0.5)  # the context cleaner works off what the collection found
    context._jvm.java.lang.System.gc()
    runtime = context._jvm.java.lang.Runtime.getRuntime()
    return (runtime.totalMemory() - runtime.freeMemory()) / 2**20, common.resident_mb(os.getpid())


def _all_pids(context: Any, ask: Callable[[Any], list[int]]) -> list[int]:
    deadline = time.monotonic() + 120
    while len(pids := ask(context)) < EXECUTORS:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(pids)} executors of {EXECUTORS}")
        time.sleep(0.2)
    return pids


def _cleared(context: Any, ask: Callable[[Any], list[int]]) -> None:
    """Nothing of what was measured last stays cached, and an executor that it killed has a successor."""
    for rdd in context._jsc.getPersistentRDDs().values():
        rdd.unpersist()
    gc.collect()
    context._jvm.java.lang.System.gc()
    _all_pids(context, ask)


def _main() -> None:
    from examples.graphs.cluster import executor_pids, spark

    parts: dict[str, Callable[[Any], dict[str, Any]]] = {
        "forms": _forms,
        "overhead_bulk": lambda context: _overhead_runs(context, "bulk"),
        "overhead_delta": lambda context: _overhead_runs(context, "delta"),
        "ranking": _ranking,
        "recovery_bulk": lambda context: _recovery_runs(context, "bulk"),
        "recovery_delta": lambda context: _recovery_runs(context, "delta"),
        "memory": _memory,
    }
    with spark(EXECUTORS) as context:
        for line in sys.stdin:
            found = parts[line.strip()](context)
            _cleared(context, executor_pids)
            common.answer(**found)


if __name__ == "__main__":
    _main()
    sys.exit(0)
