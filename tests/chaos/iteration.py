"""What the tests and the grid of the iterations share: algorithms with oracles, policies by name, and real kills.

An oracle is scipy or numpy on one machine, and never this library's own undisturbed run alone.
"""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import SparkContext
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, dijkstra

from examples.graphs import kmeans
from examples.graphs.cluster import executor_pids, kill
from examples.graphs.components import Components
from examples.graphs.graph import ATHLETES, HOLLINS, Floats, WeightedGraph, cliques, load, partitioned, scale_free
from examples.graphs.pagerank import PageRank, exact
from examples.graphs.paths import Paths
from examples.graphs.runs import chosen, places, rows_of
from millwheel.spark.iteration import (
    Optimistic,
    Outcome,
    Recovered,
    Recovery,
    Steps,
    Superstep,
    doors,
    iterate,
)

PARTITIONS = 4
LIMIT_S = 600.0


@dataclass(frozen=True)
class Case:
    """An algorithm on its data. `judge` returns None, or says what is wrong with a final state."""

    name: str
    run: Callable[..., Outcome[Any]]
    optimistic: Optimistic
    judge: Callable[[dict[int, Any]], str | None]

    def policy(self, name: str, path: Path, every: int = 1) -> Recovery:
        return chosen(name, path, every, self.optimistic)

    def timed(self, recovery: Recovery, listener: Callable[[Any], None]) -> tuple[Outcome[Any], float]:
        """The outcome and its seconds; a hang (`LIMIT_S`) ends the process with every thread's stack, which says where."""
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        began = time.monotonic()
        try:
            return self.run(recovery, deliver=rows_of, listener=listener), time.monotonic() - began
        finally:
            faulthandler.cancel_dump_traceback_later()


@dataclass
class Kills:
    """A listener that kills an executor `delay_s` after each of some supersteps has ended the first time."""

    context: SparkContext
    after: Sequence[int]
    delay_s: float = 0.1
    events: list[Superstep | Recovered] = field(default_factory=list)
    done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._pids = whole(self.context)

    def __call__(self, event: Superstep | Recovered) -> None:
        self.events.append(event)
        if isinstance(event, Superstep) and event.number in self.after and event.number not in self.done:
            if self.done:
                self._pids = whole(self.context)
            self.done.add(event.number)
            threading.Timer(self.delay_s, kill, [self._pids[len(self.done) % len(self._pids)]]).start()


def whole(context: SparkContext, limit_s: float = 90.0) -> list[int]:
    """Wait until every killed executor has been replaced; the process ids."""
    count = int(str(context.master).split("[")[1].split(",")[0])
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if len(doors.executors(context)) == count + 1:  # the driver is one
            pids = executor_pids(context)
            if len(pids) == count:
                return pids
        time.sleep(0.1)
    raise TimeoutError(f"{count} executors were not there in {limit_s} s: {doors.executors(context)}")


def pagerank(
    context: SparkContext, how: str = "spread", below: float | None = None, supersteps: int | None = None
) -> Case:
    """On Hollins: at least 95% of pages within 10 places of the exact ranking, and a total of 1."""
    graph = load(HOLLINS)
    job = PageRank(partitioned(context, graph, PARTITIONS), len(graph.vertices), below)
    solved = dict(zip(graph.vertices.tolist(), exact(graph.vertices, graph.source, graph.target).tolist(), strict=True))

    def judge(found: dict[int, float]) -> str | None:
        near = float((np.abs(places(found) - places(solved)) <= 10).mean())
        total = sum(found.values())
        return None if near >= 0.95 and abs(total - 1.0) < 1e-9 else f"{near:.1%} within 10 places, total rank {total}"

    run = job.run if supersteps is None else partial(iterate, job.initial(), job.step, Steps(supersteps))
    return Case("pagerank", run, job.optimistic(how), judge)


def components(context: SparkContext, graph: WeightedGraph | None = None) -> Case:
    """On the athletes, or a graph with links both ways: exactly the least id of each of scipy's components."""
    data = load(ATHLETES).undirected() if graph is None else graph
    job = Components(partitioned(context, data, PARTITIONS))
    _, label = connected_components(_matrix(data), directed=False)
    least = np.full(label.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(least, label, data.vertices)
    return Case("components", job.run, job.optimistic(), _equal(data, least[label]))


def paths(context: SparkContext, graph: WeightedGraph | None = None) -> Case:
    """On a weighted scale-free graph: exactly Dijkstra's distances."""
    data = scale_free(3000, 12_000, seed=5) if graph is None else graph
    job = Paths(partitioned(context, data, PARTITIONS), int(data.vertices[0]))
    return Case("paths", job.run, job.optimistic(), _equal(data, dijkstra(_matrix(data), indices=0)))


def clustering(context: SparkContext, supersteps: int | None = None) -> Case:
    """On seeded clouds: every centre is the mean of its points, and no cluster is far from them."""
    points = kmeans.blobs(4000, 6, 3, seed=3)
    job = kmeans.over(context, points, 6, PARTITIONS, seed=3)

    def judge(found: dict[int, list[float]]) -> str | None:
        at: Floats = np.array([found[key] for key in sorted(found)])
        nearest = kmeans.nearest_of(points, at)
        gap = max(
            float(np.abs(points[nearest == place].mean(axis=0) - at[place]).max()) for place in np.unique(nearest)
        )
        return None if len(at) == 6 and gap < 1e-3 else f"{len(at)} centres, {gap} from the means of their points"

    run = job.run if supersteps is None else partial(iterate, job.start, job.step, Steps(supersteps))
    return Case("kmeans", run, job.optimistic(), judge)


def chain(context: SparkContext) -> Case:
    """Components of a long thin graph: many supersteps for a delta iteration."""
    return replace(components(context, cliques(30, 5)), name="chain")


CASES: Mapping[str, Callable[[SparkContext], Case]] = {
    "pagerank": pagerank,
    "components": components,
    "chain": chain,
    "paths": paths,
    "kmeans": clustering,
}


def _matrix(graph: WeightedGraph) -> Any:
    """Sparse weights; of parallel links the lightest, as a path would take."""
    source, target = np.searchsorted(graph.vertices, graph.source), np.searchsorted(graph.vertices, graph.target)
    order = np.lexsort((graph.weight, target, source))
    source, target, weight = source[order], target[order], graph.weight[order]
    first = np.concatenate(([True], (source[1:] != source[:-1]) | (target[1:] != target[:-1])))
    return csr_matrix((weight[first], (source[first], target[first])), shape=(len(graph.vertices),) * 2)


def _equal(graph: WeightedGraph, values: Any) -> Callable[[dict[int, Any]], str | None]:
    expected = dict(zip(graph.vertices.tolist(), values.tolist(), strict=True))

    def judge(found: dict[int, Any]) -> str | None:
        wrong = [key for key in expected if found.get(key) != expected[key]] + [
            key for key in found if key not in expected
        ]
        return f"{len(wrong)} keys differ, {wrong[0]} first: {found.get(wrong[0])}" if wrong else None

    return judge
