"""Connected components as a delta iteration: every vertex takes the least id that reaches it.

Compensation: a lost vertex goes back to its own id, and it and all its neighbours tell their labels again. That is exact:
at every superstep's end, of any two linked vertices the one with the smaller label is in the workset or has been heard.
A surviving pair still has that, and every pair with a lost vertex in it is woken.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from examples.graphs.graph import Adjacency, lower, to_reached
from millwheel.spark.iteration import Changes, Loss, Optimistic, Outcome, Part, Partitioned, Recovery, Repair, Rows
from millwheel.spark.iteration import iterate_delta as iterate


@dataclass(frozen=True, slots=True)
class Components:
    """Of an undirected graph: each link is there in both directions."""

    links: Partitioned[Adjacency]

    def initial(self) -> Partitioned[Part]:
        """Every vertex its own id."""
        return self.links.map(_own)

    def step(self, labels: Partitioned[Part], changed: Partitioned[Part]) -> Changes:
        """Who changed tells its neighbours; who hears a smaller label takes it."""
        return labels.update(changed.send(told, self.links), partial(lower, "label"))

    def run(self, recovery: Recovery | None = None, **options: Any) -> Outcome[Any]:
        """Iterate."""
        labels = self.initial()
        return iterate(labels, labels, self.step, recovery, name="components", **options)

    def optimistic(self) -> Optimistic:
        """The policy."""
        return Optimistic(self.compensate, check=valid)

    def compensate(self, loss: Loss) -> Repair:
        """Own ids for the lost, and everybody beside a lost vertex wakes."""
        lost = frozenset(loss.lost)
        return Repair(loss.initial.map(partial(in_lost, lost)), self.links.map(partial(beside, lost)))


def told(changed: Part, links: Adjacency) -> Rows:
    """The labels of the changed vertices, to their neighbours."""
    index, owner = links.links_of(np.searchsorted(links.keys, changed.keys))
    return to_reached(links, index, changed["label"][owner], "label")


def valid(part: Part, initial: Part) -> str | None:
    """A component's id is the id of one of its vertices, and the least: never above the vertex' own."""
    wrong = np.flatnonzero((part["label"] > part.keys) | (part["label"] < 0))
    return f"key {part.keys[wrong[0]]} has component {part['label'][wrong[0]]}" if len(wrong) else None


def in_lost(lost: frozenset[int], part: Part) -> Part:
    """The part if it is a lost one, else none of it."""
    return part if part.number in lost else part.take(np.empty(0, np.intp))


def beside(lost: frozenset[int], links: Adjacency) -> Part:
    """The vertices that are lost or have a link to a lost one."""
    return Part(links.number, links.keys if links.number in lost else links.leading_to(lost))


def _own(links: Adjacency) -> Part:
    return Part(links.number, links.keys, {"label": links.keys.copy()})
