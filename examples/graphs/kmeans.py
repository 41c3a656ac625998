"""k-means (Lloyd) as a bulk iteration over centres; the points are static and never move between partitions.

The state is small, so a step reads it at the driver and sends it along with the work. Compensation: lost centres go
back to where they began. The result is a valid clustering, but, k-means having many local optima, maybe another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pyspark import SparkContext

from examples.graphs.components import in_lost
from examples.graphs.graph import Floats
from millwheel.spark.iteration import (
    Converged,
    Loss,
    Optimistic,
    Outcome,
    Part,
    Partitioned,
    Recovery,
    Rows,
    from_columns,
    from_elements,
    iterate,
)


@dataclass(frozen=True, slots=True)
class KMeans:
    """`points`: one array of shape (n, d) a partition; `start`: the first centres."""

    points: Partitioned[Floats]
    start: Partitioned[Part]
    below: float = 1e-6

    def step(self, centres: Partitioned[Part]) -> Partitioned[Part]:
        """Every point to its nearest centre, every centre to the mean of its points."""
        known = sorted(((key, at) for part in centres.collect() for key, at in zip(part.keys, part["at"], strict=True)))
        at = np.array([place for _, place in known]) if known else np.empty((0, 0))
        return centres.receive(self.points.send(partial(sums, at)), means)

    def run(self, recovery: Recovery | None = None, **options: Any) -> Outcome[Any]:
        """Iterate."""
        return iterate(self.start, self.step, Converged(self.below, "at"), recovery, name="kmeans", **options)

    def optimistic(self) -> Optimistic:
        """The policy."""
        return Optimistic(self.compensate, check=finite)

    def compensate(self, loss: Loss) -> Partitioned[Part]:
        """The first centres again, for the lost."""
        return loss.initial.map(partial(in_lost, frozenset(loss.lost)))


def over(context: SparkContext, points: Floats, centres: int, partitions: int, seed: int) -> KMeans:
    """k-means of points of shape (n, d), from `centres` of them drawn by `seed`."""
    drawn = np.random.default_rng(seed).choice(len(points), centres, replace=False)
    start = from_columns(context, partitions, np.arange(centres), at=points[drawn])
    return KMeans(from_elements(context, list(np.array_split(points, partitions))).kept(), start)


def sums(at: Floats, points: Floats) -> Rows:
    """For each centre: the sum of the points nearest to it, and how many they are."""
    nearest = nearest_of(points, at)
    keys, slot = np.unique(nearest, return_inverse=True)
    total = np.zeros((len(keys), points.shape[1]))
    np.add.at(total, slot, points)
    return Rows(keys.astype(np.int64), {"sum": total, "count": np.bincount(slot).astype(np.float64)})


def means(part: Part, rows: Rows) -> Part:
    """New centres; one without points stays where it is."""
    if not len(rows):
        return part
    places = part.places(rows.keys)
    total, count = np.zeros_like(part["at"]), np.zeros(len(part))
    np.add.at(total, places, rows["sum"])
    np.add.at(count, places, rows["count"])
    at = np.where(count[:, None] > 0, total / np.maximum(count, 1)[:, None], part["at"])
    return part.having(at=at)


def nearest_of(points: Floats, at: Floats) -> Any:
    """The place of the nearest centre of each point, shape (n,)."""
    gaps = (points**2).sum(axis=1)[:, None] - 2.0 * points @ at.T + (at**2).sum(axis=1)[None, :]
    return gaps.argmin(axis=1)


def finite(part: Part, initial: Part) -> str | None:
    """A centre is somewhere."""
    wrong = np.flatnonzero(~np.isfinite(part["at"]).all(axis=1))
    return f"key {part.keys[wrong[0]]} is nowhere: {part['at'][wrong[0]]}" if len(wrong) else None


def blobs(count: int, centres: int, dimensions: int, seed: int) -> Floats:
    """Seeded clouds of points."""
    random = np.random.default_rng(seed)
    middle = random.uniform(-10, 10, (centres, dimensions))
    return middle[random.integers(0, centres, count)] + random.normal(size=(count, dimensions))
