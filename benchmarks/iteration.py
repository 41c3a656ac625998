"""Iterations on Spark: what a superstep costs in three forms, what checkpoints cost, and what a kill costs.

They run in a process of their own with a Spark of two executor processes (`local-cluster[2,1,1024]`), those that follow
each other in the same: a start, and the first jobs after it, take a quarter of a minute of a small machine. What is
compared alternates. Kills are signal 9 to an executor, in the middle of a superstep.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import subprocess
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
from benchmarks.common import Reference, Result

EXECUTORS: Final = 2
PARTITIONS: Final = 4
ROUNDS: Final = int(os.environ.get("MILLWHEEL_BENCH_ROUNDS", 1))
STEPS: Final = 12
WARM: Final = 5
SUPERSTEPS: Final = int(os.environ.get("MILLWHEEL_BENCH_SUPERSTEPS", 24))
TIGHT: Final = 1e-12
CHAIN: Final = int(os.environ.get("MILLWHEEL_BENCH_CHAIN", 50))
KILLS: Final = (10, 20, 40, 80, 120)


# --- in the main process: one function a benchmark --------------------------------------------------------------------

_helper: subprocess.Popen[bytes] | None = None


def _asked(what: str) -> dict[str, Any]:
    """What the process with the Spark measured; it is started by the first who asks, and after one that broke it."""
    global _helper
    if _helper is None:
        _helper = common.start("iteration", stdin=subprocess.PIPE)
    assert _helper.stdin is not None
    assert _helper.stdout is not None
    _helper.stdin.write(what.encode() + b"\n")
    _helper.stdin.flush()
    line = _helper.stdout.readline()
    if not line:
        status, _helper = _helper.wait(), None
        raise RuntimeError(f"benchmarks.iteration {what} ended with status {status}")
    found: dict[str, Any] = json.loads(line)
    return found


def close() -> None:
    """End the process with the Spark, if there is one."""
    global _helper
    if _helper is not None:
        _helper.communicate()
        _helper = None


def iteration_forms() -> Result:
    """One PageRank superstep on Hollins as columns, as key-value pairs, and as DataFrames."""
    found = _asked("forms")
    value, pairs, frames = (common.median(found[name]) for name in ("columns", "pairs", "frames"))
    return Result(
        "iteration_forms", value, "s a superstep",
        Reference("the faster of pair RDDs and DataFrames", min(pairs, frames), "s"),
        value / min(pairs, frames), "columns in an RDD faster than pair RDDs and DataFrames", value < min(pairs, frames),
        found,
    )  # fmt: skip


def iteration_overhead_bulk() -> Result:
    """PageRank without a failure: what each policy adds to a superstep."""
    return _overhead("bulk")


def iteration_overhead_delta() -> Result:
    """Connected components of a chain of cliques without a failure: what each policy adds to a superstep."""
    return _overhead("delta")


def _overhead(kind: str) -> Result:
    found = _asked(f"overhead_{kind}")
    work = found.pop("optimistic_work_s")
    plain = np.array(found.pop("restart"))
    ratios = {name: np.array(times) / plain - 1 for name, times in found.items()}
    shares = {name: common.median(ratio.tolist()) for name, ratio in ratios.items()}
    # Of a median of normal samples. A sum over a column is lost in that, so what Optimistic does is timed by itself too.
    errors = {name: float(1.25 * ratio.std() / len(ratio) ** 0.5) for name, ratio in ratios.items()}
    done = work / common.median(plain.tolist())
    met = max(shares["head"], shares["tail"]) < shares["blocking"]
    met = met and done < 0.01 and shares["optimistic"] < 0.01 + 2 * errors["optimistic"]
    target = "Head and Tail below Blocking, Optimistic below 1% (its own work, and the difference within two errors)"
    if kind == "bulk":
        met, target = met and shares["tail"] <= 0.12, target + ", Tail at most 12%"
    return Result(
        f"iteration_overhead_{kind}", shares["tail"], "of a superstep added by Tail, a checkpoint in every superstep",
        Reference("Blocking", shares["blocking"], "of a superstep"), shares["tail"] / shares["blocking"], target, met,
        {"restart": plain.tolist(), **found, "added": shares, "standard_error": errors, "optimistic_work": done},
        ", ".join(f"{name} {share:+.1%} ± {errors[name]:.1%}" for name, share in shares.items())
        + f"; work of Optimistic {done:.3%}",
    )  # fmt: skip


def iteration_ranking() -> Result:
    """PageRank on Hollins, Optimistic (lost rank spread evenly), killed at several supersteps."""
    found = _asked("ranking")
    value = min(one["near"] for one in found["kills"])
    stopped = found["calm"][0]["supersteps"]
    reason = f"threshold 1/(100 N) is reached after {stopped} supersteps; later kills are of a run to {TIGHT}"
    return Result(
        "iteration_ranking", value, "of pages within 10 places, worst kill",
        Reference("undisturbed run against the exact ranking", min(one["near"] for one in found["calm"]), "of pages"),
        None, "at least 95% of pages within 10 places of the undisturbed ranking", value >= 0.95, found, reason,
    )  # fmt: skip


def iteration_recovery_bulk() -> Result:
    """PageRank on Hollins, killed half way: Optimistic against Restart."""
    found = _asked("recovery_bulk")
    return _recovery("bulk", found, "relax", 0.17, 0.36)


def iteration_recovery_delta() -> Result:
    """Connected components of a chain of cliques, killed half way: Optimistic against Restart."""
    return _recovery("delta", _asked("recovery_delta"), "optimistic", 0.24, None)


def _recovery(kind: str, found: dict[str, Any], ours: str, seconds: float, supersteps: float | None) -> Result:
    def saved(name: str, figure: str) -> float:
        own, other = (common.median([one[figure] for one in found[which]]) for which in (name, "restart"))
        return 1 - own / other

    names = [name for name in found if name != "restart"]
    share = {name: {figure: saved(name, figure) for figure in ("seconds", "supersteps")} for name in names}
    met = share[ours]["seconds"] >= seconds and (supersteps is None or share[ours]["supersteps"] >= supersteps)
    met = met and all(one["right"] for runs in found.values() for one in runs)
    target = f"seconds after the kill at least {seconds:.0%} fewer than Restart"
    target += "" if supersteps is None else f", supersteps at least {supersteps:.0%} fewer"
    told = "; ".join(
        f"{n}: {s['seconds']:.0%} of seconds, {s['supersteps']:.0%} of supersteps saved" for n, s in share.items()
    )
    return Result(
        f"iteration_recovery_{kind}", common.median([one["seconds"] for one in found[ours]]), "s from the kill to the end",
        Reference("Restart", common.median([one["seconds"] for one in found["restart"]]), "s"), 1 - share[ours]["seconds"],
        target, met, {**found, "saved": share}, told,
    )  # fmt: skip


def iteration_memory() -> Result:
    """200 supersteps: memory of the driver, Python and JVM."""
    found = _asked("memory")
    heap, python = found["heap_mb"], found["python_mb"]
    half = len(heap) // 2
    growth = max(heap[half:]) / max(heap[:half])
    grown = max(python[half:]) / max(python[:half])
    return Result(
        "iteration_memory", heap[-1], "MB of JVM heap in use after a collection",
        Reference("first half's peak", max(heap[:half]), "MB"),
        growth, "peak of the second 100 supersteps at most 1.15 of the first 100's, Python and JVM",
        growth <= 1.15 and grown <= 1.15, found,
    )  # fmt: skip


# --- in the subprocess ------------------------------------------------------------------------------------------------


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
