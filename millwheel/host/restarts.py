"""Another core for an interval whose soft state is void.

Lives here: the steps from the void core to the next one.  Never here: why a core is void, which it says itself, or the map.
Invariant: the next core has a new sequencer, and is only started while the void one is still the newest of its interval.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import InvariantError
from millwheel.host.actors import Actor
from millwheel.host.messages import Claimed, Expected
from millwheel.host.procedures import Steps
from millwheel.host.requests import Reacquire
from millwheel.ids import IntervalId

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost


class Restarts:
    """Intervals of one worker whose core is void and not yet replaced."""

    def __init__(self, worker: WorkerHost) -> None:
        self._worker = worker
        self.under_way: set[IntervalId] = set()

    def give_up(self, actor: Actor) -> None:
        """Start an interval anew: what it does is right, but its routes are not."""
        if not isinstance(actor.core, IntervalCore):
            raise InvariantError("actor.core is no IntervalCore")
        inherited = actor.core.give_up()
        self._worker.withdraw(actor)
        self.begin(actor, inherited)

    def begin(self, actor: Actor, inherited: ev.Inherited) -> None:
        """The soft state of an interval is void: another core goes on with what is durable."""
        self.under_way.add(actor.interval)
        self._worker.begin(self._replace(actor, inherited))

    def drop(self, interval: IntervalId) -> None:
        """The interval is not this worker's any more."""
        self.under_way.discard(interval)

    def _replace(self, old: Actor, inherited: ev.Inherited) -> Steps:
        """What was not durable comes again after the hello of the next core."""
        worker, interval = self._worker, old.interval
        if not isinstance(old.core, IntervalCore):
            raise InvariantError("core is no IntervalCore")
        sequencer = yield Reacquire(interval, old.sequencer)
        actor = None
        if sequencer is not None and interval in worker.routes.rows:
            yield from worker.ownership.expecting()
            actor = yield from worker.adoption.adopt(worker.routes.rows[interval], sequencer, inherited)
        if actor is None or worker.actors.all.get(interval) is not old:  # or it was dropped meanwhile
            worker.ownership.lost(old)
            return
        self.expect_from(actor)
        worker.inform(Claimed(((actor.owner, interval, actor.sequencer),)))
        worker.start(actor)
        self.under_way.discard(interval)

    def expect_from(self, actor: Actor) -> None:
        """A receiver that has started anew meanwhile may have a newer sequencer, and refuses what it does not expect."""
        worker = self._worker
        worker.announce(Expected(tuple(sorted(worker.routes.sends_on(actor.owner, actor.sequencer)))))
