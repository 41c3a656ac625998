"""The paced sources of a worker: when each of their partitions may be read, and up to which event time.

Lives here: what the clock of a replay (`core.source.pace`) needs to know of other parts.  Never here: that clock, or reading.
"""

from __future__ import annotations

from typing import Protocol

from millwheel.core.interval.events import RowsRead
from millwheel.core.source.pace import Pace
from millwheel.graph import Graph
from millwheel.host.actors import Actor, Actors
from millwheel.model import MIN_TIME


class Surroundings(Protocol):
    """The worker, as far as replays need it."""

    actors: Actors
    now: int

    @property
    def values(self) -> dict[str, int]:
        """Published watermarks, us."""
        ...


class Paces:
    """All replays of a worker.  For a source without a pace, every method answers that nothing has to wait."""

    def __init__(self, graph: Graph, around: Surroundings) -> None:
        self._around = around
        self._of = {
            f"source:{name}": Pace(spec.source.pace)
            for name, spec in graph.sources.items()
            if spec.source.pace is not None
        }

    def has(self, actor: Actor) -> bool:
        """Whether a partition is replayed at a pace."""
        return actor.owner in self._of

    def open(self, actor: Actor) -> None:
        """A partition is read from now on."""
        if actor.owner in self._of:
            self._of[actor.owner].open(actor.interval)

    def gathered(self, name: str) -> bool:
        """The first search of a source is over; true when its clock began just now."""
        pace = self._of.get(f"source:{name}")
        if pace is None:
            return False
        pace.gathered()
        return pace.begin(self._around.now)

    def arrived(self, actor: Actor, rows: RowsRead) -> bool:
        """Rows were read, or none were due; true when the clock of the source began just now."""
        pace = self._of.get(actor.owner)
        if pace is None:
            return False
        pace.looked(actor.interval, rows.ahead, self._around.now, not rows.progressed)
        return pace.begin(self._around.now)

    def upto(self, actor: Actor) -> int | None:
        """The newest event time that may be read now, us; None: any."""
        pace = self._of.get(actor.owner)
        return None if pace is None else pace.reached(self._around.now)

    def wait(self, actor: Actor) -> int | None:
        """How long a partition is not to be read, us; None: until the clock of its source begins."""
        pace = self._of.get(actor.owner)
        return 0 if pace is None else pace.wait(actor.interval, self._around.now, lambda: self._overtaken(actor, pace))

    def _overtaken(self, actor: Actor, pace: Pace) -> bool:
        """Whether the watermark has passed the next row of a partition, or another partition keeps it from that."""
        time, around = pace.next_time(actor.interval), self._around
        if around.values.get(actor.owner, MIN_TIME) > time:
            return True
        others = ((other, core) for other, core in around.actors.partitions() if other.owner == actor.owner)
        return any(core.reported <= time for other, core in others if other is not actor and not core.paused)

    def waits(self, name: str) -> bool:
        """Whether rows of a source are there that are not due yet."""
        pace = self._of.get(f"source:{name}")
        return pace is not None and pace.waits()

    def forget(self, actor: Actor) -> None:
        """A partition is read to its end."""
        if actor.owner in self._of:
            self._of[actor.owner].forget(actor.interval)
