"""The endurance part of `make iteration-grid`: 200 supersteps and more of every algorithm under every policy.

An executor is killed early, so that all of the recovery is in the first half. What is right is what the oracle says.
That the driver forgets what it must is judged by its memory (JVM heap, Python) and by the RDDs that it keeps cached:
the second half's peak is at most `GROWTH` of the first half's, and of that of the algorithm's first run. All runs are in
one driver, so by the fifth what it kept of each superstep is there some thousand times.

Checkpoints are made in every superstep: whatever the driver might keep of one, it would then keep 200 of.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import SparkContext

from benchmarks.iteration_process import driver_mb
from examples.graphs.graph import WeightedGraph, cliques
from millwheel.spark.iteration import Outcome, Superstep
from tests.chaos.iteration import Case, Kills, clustering, components, pagerank, paths

SUPERSTEPS = 200
EVERY = 20
KILL_AFTER = 25
"""Not a superstep after which memory is looked at: the kill is to hit the middle of the next one."""
GROWTH = 1.15
LENGTH, SIZE = 105, 40
"""Of the chain of cliques: a label needs two supersteps a clique. A state is then some 4200 rows, which 100 supersteps
kept by mistake would show."""


def thin() -> WeightedGraph:
    """The chain, with seeded weights from 1 to 10."""
    chain = cliques(LENGTH, SIZE)
    return replace(chain, weight=np.random.default_rng(7).integers(1, 11, len(chain.source)).astype(np.float64))


CASES: Mapping[str, Callable[[SparkContext], Case]] = {
    "pagerank": partial(pagerank, supersteps=SUPERSTEPS),
    "components": lambda context: components(context, thin()),
    "paths": lambda context: paths(context, thin()),
    "kmeans": partial(clustering, supersteps=SUPERSTEPS),
}


@dataclass
class Memory:
    """A listener that looks at the driver after every `EVERY` supersteps, those that were made again included."""

    context: SparkContext
    samples: dict[str, list[float]] = field(default_factory=lambda: {"heap_mb": [], "python_mb": [], "cached_rdds": []})
    seen: int = 0

    def __call__(self, event: Any) -> None:
        if isinstance(event, Superstep):
            self.seen += 1
            if self.seen % EVERY == 0:
                heap, python = driver_mb(self.context)
                for name, value in zip(
                    self.samples, (heap, python, self.context._jsc.getPersistentRDDs().size()), strict=True
                ):
                    self.samples[name].append(round(value, 2))

    def growth(self, first: Memory) -> dict[str, float]:
        """The second half's peaks, as shares of the first half's of `first`."""
        return {name: _peak(self.samples[name], 1) / _peak(first.samples[name], 0) for name in self.samples}


def _peak(samples: Sequence[float], half: int) -> float:
    middle = len(samples) // 2
    return max(samples[middle:] if half else samples[:middle])


def runs(context: SparkContext, case: Case, policies: Sequence[str]) -> list[dict[str, Any]]:
    """One run a policy; for each a line, and its figures."""
    found: list[dict[str, Any]] = []
    first: Memory | None = None
    for policy in policies:
        memory = Memory(context)
        first = first or memory
        found.append(_run(context, case, policy, memory, first))
    return found


def _run(context: SparkContext, case: Case, policy: str, memory: Memory, first: Memory) -> dict[str, Any]:
    path = Path("build/iteration-endurance").resolve()
    shutil.rmtree(path, ignore_errors=True)
    gc.collect()  # what the run before had cached would else stand in this one's first figures, or later
    kills = Kills(context, after=[KILL_AFTER])

    def listen(event: Any) -> None:
        memory(event)
        kills(event)

    found, seconds = case.timed(case.policy(policy, path), listen)
    grown, since = memory.growth(memory), memory.growth(first)
    wrong = case.judge(found.value) or not_endured(found, grown, since)
    lost = [len(recovery.lost) for recovery in found.recoveries]
    shown = ", ".join(f"{name} {memory.samples[name][-1]:g} ({grown[name]:.3f}, {since[name]:.3f})" for name in grown)
    print(
        f"{case.name:<11}{policy:<11}{found.executed:>4} supersteps {seconds:6.1f} s, partitions lost {lost}, "
        f"{shown}: {wrong or 'right'}", flush=True,
    )  # fmt: skip
    return {
        "algorithm": case.name, "policy": policy, "supersteps": found.executed, "seconds": round(seconds, 2), "lost": lost,
        **memory.samples, "growth": grown, "growth_since_first_run": since, "wrong": wrong,
    }  # fmt: skip


def not_endured(found: Outcome[Any], grown: Mapping[str, float], since: Mapping[str, float]) -> str | None:
    """Why a right answer is not enough, or None. `grown` is since the first half, `since` since the algorithm's first run."""
    reasons = []
    if found.supersteps < SUPERSTEPS:
        reasons.append(f"ended after {found.supersteps} supersteps, which shows nothing of {SUPERSTEPS}")
    if not any(recovery.lost for recovery in found.recoveries):
        reasons.append("the killed executor held nothing, so nothing was recovered")
    for which, shares in (("first half", grown), ("algorithm's first half", since)):
        reasons += [f"{name} {share:.3f} of the {which}'s peak" for name, share in shares.items() if share > GROWTH]
    return ", ".join(reasons) or None
