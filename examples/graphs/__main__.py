"""`python -m examples.graphs ALGORITHM [FILE]`: run it undisturbed, then with a killed executor, and show the recovery.

Algorithms: pagerank (links as they are), components (links in both directions), paths (from --source), kmeans (points,
generated; no file). With `--kill-at 0.5` an executor is killed with signal 9 half way through the supersteps that the
undisturbed run took, in the middle of one. The picture is in `--plot`.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import SparkContext

from examples.graphs import kmeans
from examples.graphs.cluster import executor_pids, kill, spark
from examples.graphs.components import Components
from examples.graphs.graph import HOLLINS, load, partitioned
from examples.graphs.pagerank import PageRank
from examples.graphs.paths import Paths
from examples.graphs.plot import draw
from examples.graphs.runs import POLICIES, chosen, places, rows_of
from millwheel.spark.iteration import (
    IterationError,
    Optimistic,
    Outcome,
    Recovered,
    Recovery,
    Restart,
    Superstep,
    checkpoints,
)

ALGORITHMS = ("pagerank", "components", "paths", "kmeans")

Run = Callable[..., Outcome[Any]]


@dataclass
class Killer:
    """A listener that prints, and kills an executor `delay_s` after superstep `at` has ended, once."""

    pids: Sequence[int] = ()
    at: int = -1
    delay_s: float = 0.15
    quiet: bool = False
    killed: list[int] = field(default_factory=list)

    def __call__(self, event: Superstep | Recovered) -> None:
        """Print it; at the superstep `at`, kill."""
        if not self.quiet:
            print(event, flush=True)
        if isinstance(event, Superstep) and event.number == self.at and self.pids and not self.killed:
            pid = self.pids[-1]
            self.killed.append(pid)
            print(f"kill -9 {pid}: an executor, {self.delay_s} s from now", flush=True)
            threading.Timer(self.delay_s, kill, [pid]).start()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    options = _options(arguments)
    if options.algorithm != "kmeans" and not options.file.is_file():
        print(f"graphs: no file {options.file}: give an edge list, two integers a line", file=sys.stderr)
        return 2
    try:
        with spark(options.executors) as context:
            run, optimistic = prepared(context, options)
            policy = chosen(options.recovery, options.path, options.every, optimistic)
            if options.kill_at is None:
                found = run(policy, deliver=rows_of, listener=Killer())
                _conclude(found)
                draw(options.plot, options.algorithm, {options.recovery: found})
                return 0
            return _with_kill(context, options, run, policy)
    except (IterationError, ValueError, OSError) as error:
        print(f"graphs: {error}", file=sys.stderr)
        return 1


def prepared(context: SparkContext, options: argparse.Namespace) -> tuple[Run, Optimistic]:
    """The algorithm on its data: how to run it under a policy, and its optimistic policy."""
    if options.algorithm == "kmeans":
        job = kmeans.over(context, kmeans.blobs(20_000, 12, 8, options.seed), 12, options.partitions, options.seed)
        return job.run, job.optimistic()
    graph = load(options.file)
    print(f"{options.file.name}: {len(graph.vertices):,} vertices, {len(graph.source):,} links", flush=True)
    if options.algorithm == "pagerank":
        ranks = PageRank(partitioned(context, graph, options.partitions), len(graph.vertices), options.below)
        return ranks.run, ranks.optimistic(options.compensate)
    if options.algorithm == "components":
        components = Components(partitioned(context, graph.undirected(), options.partitions))
        return components.run, components.optimistic()
    source = int(graph.vertices[0]) if options.source is None else options.source
    if source not in graph.vertices:
        raise ValueError(f"--source {source} is not a vertex of {options.file}")
    paths = Paths(partitioned(context, graph, options.partitions), source)
    return paths.run, paths.optimistic()


def _with_kill(context: SparkContext, options: argparse.Namespace, run: Run, policy: Recovery) -> int:
    print("undisturbed:", flush=True)
    calm = run(Restart(), deliver=rows_of, listener=Killer(quiet=True))
    _conclude(calm)
    at = max(1, min(calm.supersteps - 1, round(options.kill_at * calm.supersteps)))
    print(f"{options.recovery}, with an executor killed after superstep {at}:", flush=True)
    killer = Killer(executor_pids(context), at)
    killed = run(policy, deliver=rows_of, listener=killer)
    _conclude(killed)
    if not killed.recoveries:
        print("graphs: the executor that was killed held nothing that was needed", file=sys.stderr)
    if options.algorithm == "pagerank":
        near = float((np.abs(places(calm.value) - places(killed.value)) <= 10).mean())
        gap = sum(abs(calm.value[key] - killed.value[key]) for key in calm.value)
        print(f"{near:.2%} of pages within 10 places of the undisturbed ranking; L1 distance {gap:.2e}")
    elif options.algorithm != "kmeans":
        print(f"equal to the undisturbed result: {'yes' if calm.value == killed.value else 'NO'}")
    draw(options.plot, options.algorithm, {"undisturbed": calm, options.recovery: killed})
    return 0


def _conclude(found: Outcome[Any]) -> None:
    print(
        f"{'converged' if found.converged else 'stopped'} after superstep {found.supersteps} "
        f"({found.executed} executed, {len(found.recoveries)} recoveries) in {found.seconds:.1f} s", flush=True,
    )  # fmt: skip


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.graphs", description=__doc__.splitlines()[0])
    parser.add_argument("algorithm", choices=ALGORITHMS)
    parser.add_argument("file", nargs="?", type=Path, default=HOLLINS, help="edge list, may be .gz (default: Hollins)")
    parser.add_argument("--recovery", choices=POLICIES, default="optimistic")
    parser.add_argument("--kill-at", type=_share, help="share of the supersteps after which an executor is killed")
    parser.add_argument("--compensate", choices=("spread", "relax"), default="spread", help="for pagerank")
    parser.add_argument("--below", type=float, help="pagerank stops below this norm (default 1 / (100 pages))")
    parser.add_argument("--source", type=int, help="for paths (default: the first vertex)")
    parser.add_argument("--every", type=int, default=1, help="supersteps from one checkpoint to the next")
    parser.add_argument("--path", type=Path, default=Path("build/graphs/checkpoints"), help="where checkpoints go")
    parser.add_argument("--executors", type=int, default=2)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=7, help="for kmeans")
    parser.add_argument("--fresh", action="store_true", help="remove checkpoints of an earlier run first")
    parser.add_argument("--plot", type=Path, default=Path("build/graphs/run.png"))
    options = parser.parse_args(arguments)
    if options.kill_at is not None and options.executors < 1:
        parser.error("--kill-at needs --executors of 1 or more")
    options.path = options.path.resolve() / options.algorithm
    if options.fresh:
        checkpoints.remove(str(options.path))
    return options


def _share(text: str) -> float:
    found = float(text)
    if not 0.0 < found < 1.0:
        raise argparse.ArgumentTypeError("must be between 0 and 1")
    return found


if __name__ == "__main__":
    sys.exit(main())
