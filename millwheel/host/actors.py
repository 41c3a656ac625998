"""A core with what a host must know to perform its effects."""

from __future__ import annotations

import msgspec

from millwheel.core.interval.counters import Counters
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.core.source.row_counts import RowCounts
from millwheel.host.tally import Tally
from millwheel.ids import IntervalId, Sequencer


class Actor(msgspec.Struct, eq=False, kw_only=True):
    """One owned interval: of a computation, or a source partition."""

    interval: IntervalId
    sequencer: Sequencer
    owner: str
    """The computation, or "source:name"."""
    core: IntervalCore | InjectorCore
    receivers: frozenset[IntervalId] = frozenset()
    """Intervals that it sends to."""


class Actors:
    """The owned intervals of a worker; the newest core of each.  `tally` has what cores that are gone have counted."""

    def __init__(self, tally: Tally | None = None) -> None:
        self.tally = tally or Tally()
        self.all: dict[IntervalId, Actor] = {}
        self._of: dict[str, dict[IntervalId, Actor]] = {}

    def put(self, actor: Actor) -> None:
        """Add it, in the place of an earlier core of its interval."""
        self.all[actor.interval] = actor
        self._of.setdefault(actor.owner, {})[actor.interval] = actor

    def drop(self, actor: Actor) -> None:
        """There is no core of its interval any more."""
        del self.all[actor.interval]
        del self._of[actor.owner][actor.interval]
        self.tally.take(actor.owner, actor.core)

    def add_up(self) -> None:
        """The worker goes: whatever its cores have counted is in the tally."""
        for actor in self.all.values():
            self.tally.take(actor.owner, actor.core)

    def counted(self) -> list[tuple[str, Counters]]:
        """What cores have counted, those that are gone included, with the computations that they are of."""
        here = ((actor.owner, core.counters) for actor, core in self.intervals())
        return [*self.tally.by_computation.items(), *here]

    def rows(self) -> RowCounts:
        """Rows of all partitions, those that are gone included."""
        return sum(self.rows_by_source().values(), RowCounts())

    def rows_by_source(self) -> dict[str, RowCounts]:
        """The same for each source, by "source:name"."""
        found = dict(self.tally.by_source)
        for actor, core in self.partitions():
            found[actor.owner] = found.get(actor.owner, RowCounts()) + core.rows.read
        return found

    def of(self, owner: str) -> list[Actor]:
        """Those of one computation or source."""
        return [*self._of.get(owner, {}).values()]

    def current(self, interval: IntervalId, sequencer: Sequencer) -> Actor | None:
        """The actor, unless its core has been replaced or is void."""
        actor = self.all.get(interval)
        return actor if actor is not None and actor.sequencer == sequencer and not actor.core.halted else None

    def intervals(self) -> list[tuple[Actor, IntervalCore]]:
        """Those of computations, with their cores."""
        return [(actor, actor.core) for actor in self.all.values() if isinstance(actor.core, IntervalCore)]

    def partitions(self) -> list[tuple[Actor, InjectorCore]]:
        """Source partitions, with their cores."""
        return [(actor, actor.core) for actor in self.all.values() if isinstance(actor.core, InjectorCore)]
