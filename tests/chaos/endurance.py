"""The endurance part of `make iteration-grid`: 200 supersteps and more of every algorithm under every policy.

An executor is killed early, so that all of the recovery is in the first half. What is right is what the oracle says;
that the driver forgets what it must is judged by its memory, JVM and Python: the second half's peak is at most `GROWTH` of
the first half's. All runs are in one driver, one after the other, and its memory at the end of the last is told too.

Checkpoints are made in every superstep: whatever the driver might keep of one, it would then keep 200 of.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark import SparkContext

from benchmarks.iteration import driver_mb
from examples.graphs.graph import Graph, cliques
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


def thin() -> Graph:
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
    """A listener that looks at the driver's memory after every `EVERY` supersteps, those that were made again included."""

    context: SparkContext
    heap_mb: list[float] = field(default_factory=list)
    python_mb: list[float] = field(default_factory=list)
    seen: int = 0

    def __call__(self, event: Any) -> None:
        if isinstance(event, Superstep):
            self.seen += 1
            if self.seen % EVERY == 0:
                heap, python = driver_mb(self.context)
                self.heap_mb.append(round(heap, 2))
                self.python_mb.append(round(python, 2))


def growth(samples: Sequence[float]) -> float:
    """The second half's peak, as a share of the first half's."""
    half = len(samples) // 2
    return max(samples[half:]) / max(samples[:half])


def runs(context: SparkContext, case: Case, policies: Sequence[str]) -> list[dict[str, Any]]:
    """One run a policy; for each a line, and its figures."""
    return [_run(context, case, policy) for policy in policies]


def _run(context: SparkContext, case: Case, policy: str) -> dict[str, Any]:
    path = Path("build/iteration-endurance").resolve()
    shutil.rmtree(path, ignore_errors=True)
    kills, memory = Kills(context, after=[KILL_AFTER]), Memory(context)

    def listen(event: Any) -> None:
        memory(event)
        kills(event)

    found, seconds = case.timed(case.policy(policy, path), listen)
    grown = {"heap": growth(memory.heap_mb), "python": growth(memory.python_mb)}
    wrong = case.judge(found.value) or _not_endured(found, grown)
    lost = [len(recovery.lost) for recovery in found.recoveries]
    print(
        f"{case.name:<11}{policy:<11}{found.executed:>4} supersteps {seconds:6.1f} s, partitions lost {lost}, "
        f"heap {memory.heap_mb[-1]:.1f} MB ({grown['heap']:.3f}), Python {memory.python_mb[-1]:.1f} MB "
        f"({grown['python']:.3f}): {wrong or 'right'}", flush=True,
    )  # fmt: skip
    return {
        "algorithm": case.name, "policy": policy, "supersteps": found.executed, "seconds": round(seconds, 2), "lost": lost,
        "heap_mb": memory.heap_mb, "python_mb": memory.python_mb, "growth": grown, "wrong": wrong,
    }  # fmt: skip


def _not_endured(found: Outcome[Any], grown: Mapping[str, float]) -> str | None:
    """Why a right answer is not enough, or None."""
    if found.supersteps < SUPERSTEPS:
        return f"ended after {found.supersteps} supersteps, which shows nothing of {SUPERSTEPS}"
    if not any(recovery.lost for recovery in found.recoveries):
        return "the killed executor held nothing, so nothing was recovered"
    larger = [f"{which} {ratio:.3f}" for which, ratio in grown.items() if ratio > GROWTH]
    return f"the driver's memory grows, times the first half's peak: {', '.join(larger)}" if larger else None
