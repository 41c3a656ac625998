"""Skew control (§8.4): partitions wait that have run too far ahead of a chosen low watermark.

Lives here: which partition waits, and how much of another one is read.  Never here: reading.  Invariants:

* what counts is what a partition has promised about the rows that it still has, and not what it has read.  So the partition
  that keeps the chosen watermark back is never one that waits for it;
* a read is expected to stay within the bound, and only one may go beyond it;
* no pause lasts for ever: what everything waits for is read on when the chosen watermark stands (a window that is longer than
  the bound closes only when more is read).
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel import limits
from millwheel.core.source.injector import InjectorCore
from millwheel.errors import InvariantError
from millwheel.graph import Graph
from millwheel.host.actors import Actor
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME, MIN_TIME, SECOND, format_time


class Skews:
    """The sources of a worker that have a bound.  `values` are published watermarks, us."""

    def __init__(self, graph: Graph, values: Mapping[str, int]) -> None:
        self._values = values
        self._bounds: dict[str, tuple[int, set[str]]] = {}
        self._waited_for: dict[str, set[str]] = {}
        for spec in graph.sources.values():
            if spec.skew is not None:
                self._bounds[f"source:{spec.name}"] = (spec.skew.max_ahead_us, graph.skew_marks(spec.skew))
                self._waited_for[f"source:{spec.name}"] = graph.waited_for(spec.name)
        self._stood: dict[str, tuple[int, int]] = {}
        """By source: the watermark that it waits for, and since when it is that, us."""
        self._steps: dict[IntervalId, tuple[int, int]] = {}
        """By partition: how far its promise went, us, with so many rows, in its last read."""

    def room(self, actor: Actor, limit: int, now: int) -> int:
        """How many rows of a partition may be read at wall time `now`, us, at most `limit`; 0: none, for the moment."""
        bound = self._bounds.get(actor.owner)
        if bound is None:
            return limit
        max_ahead_us, marks = bound
        mark = min(self._values.get(name, MIN_TIME) for name in marks)
        left_us = mark + max_ahead_us - _promise(actor)
        if left_us < 0:
            return limit if self._goes_on(actor, mark, now) else 0
        step_us, rows = self._steps.get(actor.interval, (0, 1))
        return min(limit, max(1, left_us * rows // step_us)) if step_us else limit

    def _goes_on(self, actor: Actor, mark: int, now: int) -> bool:
        """Whether the watermark stands, and whatever keeps it waits for rows of this partition."""
        stands, since = self._stood.setdefault(actor.owner, (mark, now))
        if stands != mark:
            self._stood[actor.owner] = (mark, now)
            return False
        others = self._waited_for[actor.owner]
        lowest = min((self._values.get(name, MIN_TIME) for name in others), default=MIN_TIME)
        waited_for = actor.owner in others and _promise(actor) <= lowest
        return waited_for and now - since >= limits.SKEW_PATIENCE_US

    def promise(self, actor: Actor) -> int:
        """What a partition of a source with a bound has promised before a read, us."""
        return _promise(actor) if actor.owner in self._bounds else MIN_TIME

    def arrived(self, actor: Actor, before: int, rows: int) -> None:
        """So many rows were read, and the promise was `before`."""
        if actor.owner in self._bounds and rows and before > MIN_TIME:
            self._steps[actor.interval] = (max(0, _promise(actor) - before), rows)

    def waits(self, actor: Actor, now: int) -> bool:
        """Whether a partition is too far ahead."""
        return self.room(actor, 1, now) == 0

    def forget(self, actor: Actor) -> None:
        """A partition is read to its end, or is another worker's."""
        self._steps.pop(actor.interval, None)

    def any(self) -> bool:
        """Whether a source has a bound."""
        return bool(self._bounds)


def _promise(actor: Actor) -> int:
    if not isinstance(actor.core, InjectorCore):
        raise InvariantError("actor.core is no InjectorCore")
    return actor.core.promised


def too_far_ahead(graph: Graph, values: Mapping[str, int]) -> dict[str, str]:
    """By source, of those that wait as a whole as published watermarks say: how far ahead of what they are."""
    found = {}
    for name, spec in sorted(graph.sources.items()):
        reached = values.get(f"source:{name}", MIN_TIME)
        if spec.skew is None or reached in (MIN_TIME, MAX_TIME):
            continue
        lowest = min(graph.skew_marks(spec.skew), key=lambda mark: (values.get(mark, MIN_TIME), mark))
        mark = values.get(lowest, MIN_TIME)
        if reached > mark + spec.skew.max_ahead_us:
            allowed = f"more than {spec.skew.max_ahead_us / SECOND:g} s ahead of {lowest} at {format_time(mark)}"
            found[name] = f"source {name} is paused: it is {allowed}"
    return found
