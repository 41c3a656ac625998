"""Who may still send something new to the intervals of a worker of a cluster, as the store says.

Lives here: the questions about it, and bundles that wait for the answer.  Never here: the map, or who is a sender by its rows
(`routes`).  Invariants:

* no receiver takes records for copies unless the store has said that their producer has nothing left to send;
* a receiver forgets the ids of a producer only after that, also when the frontier was lost in a channel that is cut.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

from millwheel.bundles import Bundle
from millwheel.cluster import Senders
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import Delivery
from millwheel.host.procedures import Steps
from millwheel.host.requests import ListUnfinished, ReadSenders
from millwheel.ids import IntervalId, SequenceNumber, Sequencer
from millwheel.model import MAX_TIME

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost

NOBODY: Final = IntervalId(0)
"""The sender of what no interval says."""

NEVER: Final = Sequencer(0)
"""Before every sequencer."""


class StillSending:
    """Of one worker of a cluster."""

    def __init__(self, worker: WorkerHost) -> None:
        self._worker = worker
        self._doubtful: dict[tuple[IntervalId, IntervalId], list[tuple[str, Delivery]]] = {}
        """By receiver and sender: bundles that wait until the store has said whether the sender may still send."""
        self.swept = -1
        """The version of the map after which ids of producers that are gone were collected."""
        self._sweeping = False

    def _living(self) -> Generator[he.Wish, Any, tuple[Senders, set[Channel]]]:
        """What the store knows of senders, and on which channels something new may come by that."""
        unfinished = yield ListUnfinished()
        senders: Senders = yield ReadSenders()
        return senders, self._worker.routes.living(senders, unfinished)

    def read(self) -> Generator[he.Wish, Any, None]:
        """The store says who may send, whatever was known before."""
        _, living = yield from self._living()
        self._worker.routes.live = living

    # --- bundles of senders that are not known ----------------------------------------------------------------

    def doubts(self, actor: Actor, peer: str, delivery: Delivery) -> bool:
        """Whether a bundle waits, because its sender is not expected, or because one before it waits.

        A sequencer may be given out before that of a receiver, and be seen only after the receiver has asked who sends.
        """
        place, core = (actor.interval, delivery.bundle.sender), actor.core
        waiting = self._doubtful.get(place)
        doubted = not delivery.bundle.barrier and isinstance(core, IntervalCore) and core.doubts(delivery.bundle)
        if waiting is None and doubted:
            waiting = self._doubtful[place] = []
            self._worker.begin(self._verify(place))
        if waiting is not None:  # those behind it wait too, because order is per sender
            waiting.append((peer, delivery))
        return waiting is not None

    def _verify(self, place: tuple[IntervalId, IntervalId]) -> Steps:
        worker = self._worker
        _, living = yield from self._living()
        waiting = self._doubtful.pop(place)
        asked = {(delivery.bundle.subscription, delivery.bundle.producer) for _, delivery in waiting}
        actor = worker.actors.all.get(place[0])
        if actor is not None and not actor.core.halted:
            worker.routes.live |= asked & living
            worker.handle_core(actor, ev.ChannelsExpected(tuple(sorted(asked & living))))
            core = actor.core
            doubted = [d.bundle for _, d in waiting if isinstance(core, IntervalCore) and core.doubts(d.bundle)]
            ended = {(bundle.subscription, bundle.producer) for bundle in doubted}
            worker.handle_core(actor, ev.ChannelsEnded(tuple(sorted(ended))))
        for peer, delivery in waiting:
            worker.hear(peer, delivery)

    # --- producers that are gone ------------------------------------------------------------------------------

    def sweep_once(self, version: int) -> None:
        """Collect the ids of producers that are gone, once for each version of the map."""
        if self.swept != version and not self._sweeping:
            self._sweeping = True
            self._worker.begin(self._sweep(version))

    def _sweep(self, version: int) -> Steps:
        """Forget the ids of producers that will never send again, as the store says.

        What was heard before the store was asked, and is not known to it as a sender, will never be one again.
        """
        worker, routes = self._worker, self._worker.routes
        heard = [(actor, core, core.heard()) for actor, core in worker.actors.intervals()]
        known = {*routes.live}
        senders, living = yield from self._living()
        routes.live -= known - living
        for actor, core, channels in heard:
            if not core.halted and actor.interval not in worker.closed:
                for channel in channels:
                    if channel not in living:
                        self._retire(actor, channel)
        self._sweeping = False
        newest: dict[IntervalId, Sequencer] = {}
        for interval, sequencer in senders.owners:
            newest[interval] = max(sequencer, newest.get(interval, NEVER))
        if all(newest[interval] == sequencer for interval, sequencer in senders.owners):
            self.swept = max(self.swept, version)  # else somebody's log is not folded yet: once more

    def retire_all(self) -> None:
        """Nothing will be sent again, so no id is needed any more.  A frontier may be lost in a channel that is cut."""
        for actor, core in [*self._worker.actors.intervals()]:
            if not core.halted:
                for channel in core.heard():
                    self._retire(actor, channel)
                self._worker.perform(actor, core.flush(self._worker.now))  # the ends are recorded before it leaves

    def _retire(self, actor: Actor, channel: Channel) -> None:
        """Nothing that is new will ever come on a channel: an interval may forget the ids on it."""
        end = Bundle(channel[0], NOBODY, 0, actor.interval, channel[1], SequenceNumber(MAX_TIME), [], [], [], [])
        self._worker.handle_core(actor, ev.BundleArrived(end))
