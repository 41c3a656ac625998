"""Single-source shortest paths as a delta iteration over non-negative weights.

Compensation: a lost vertex is infinitely far again (the source: 0), and who links to a lost vertex tells its distance
again. Every surviving distance is the length of a real path, so nothing has to be taken back: the fixpoint is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from examples.graphs.components import beside, in_lost
from examples.graphs.graph import Adjacency, lower, to_reached
from millwheel.spark.iteration import Changes, Loss, Optimistic, Outcome, Part, Partitioned, Recovery, Repair, Rows
from millwheel.spark.iteration import iterate_delta as iterate


@dataclass(frozen=True, slots=True)
class Paths:
    """Distances from `source`; a vertex that cannot be reached stays infinitely far."""

    links: Partitioned[Adjacency]
    source: int

    def initial(self) -> Partitioned[Part]:
        """Only the source is reached."""
        return self.links.map(partial(_far, self.source))

    def step(self, distances: Partitioned[Part], changed: Partitioned[Part]) -> Changes:
        """Who came nearer tells those that it links to."""
        return distances.update(changed.send(told, self.links), partial(lower, "distance"))

    def run(self, recovery: Recovery | None = None, **options: Any) -> Outcome[Any]:
        """Iterate."""
        distances = self.initial()
        return iterate(distances, distances.map(_reached), self.step, recovery, name="paths", **options)

    def optimistic(self) -> Optimistic:
        """The policy."""
        return Optimistic(self.compensate, check=valid)

    def compensate(self, loss: Loss) -> Repair:
        """Initial distances for the lost, and everybody beside a lost vertex wakes."""
        lost = frozenset(loss.lost)
        return Repair(loss.initial.map(partial(in_lost, lost)), self.links.map(partial(beside, lost)))


def told(changed: Part, links: Adjacency) -> Rows:
    """The distances of the changed vertices plus a link's weight, to where the link leads."""
    finite = changed.take(np.isfinite(changed["distance"]))
    index, owner = links.links_of(np.searchsorted(links.keys, finite.keys))
    return to_reached(links, index, finite["distance"][owner] + links.weight[index], "distance")


def valid(part: Part, initial: Part) -> str | None:
    """No distance is negative or above the initial one."""
    wrong = np.flatnonzero(~((part["distance"] >= 0.0) & (part["distance"] <= initial["distance"])))
    return f"key {part.keys[wrong[0]]} has distance {part['distance'][wrong[0]]}" if len(wrong) else None


def _far(source: int, links: Adjacency) -> Part:
    return Part(links.number, links.keys, {"distance": np.where(links.keys == source, 0.0, np.inf)})


def _reached(part: Part) -> Part:
    return part.take(np.isfinite(part["distance"]))
