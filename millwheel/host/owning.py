"""Which intervals and sources are a worker's own: all of them, in an embedded run.

Lives here: what a worker does at its start and at its end, and when it finds that it was superseded, where these depend on
whether it is alone.  Never here: what it does with an interval that is its own.  In a cluster `mapped` takes the place of
`WholeOwnership`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from millwheel import limits
from millwheel.cluster import HotKey, RunEnding
from millwheel.core.ids.dedup import Channel
from millwheel.errors import Fenced, InvariantError
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import Claimed, Delivery, HandOver, Led, MapChanged, RunEnded
from millwheel.host.partitions import positions_of
from millwheel.host.procedures import Steps
from millwheel.host.requests import Acquire, ListUnfinished, OpenPipeline, RewindEpochs, StillOwned
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import Opened

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost

ClusterMessage = MapChanged | HandOver | RunEnded | Led


class Ownership(Protocol):
    """What depends on who else there is."""

    gathers: ClassVar[bool]
    """Whether a little waits for the commit of a little: that is worth while where each bundle wakes another process."""

    def boot(self) -> Steps:
        """Begin."""
        ...

    def hear(self, peer: str, message: ClusterMessage) -> None:
        """A message that only a cluster has."""
        ...

    def look(self) -> None:
        """Find out who else there is, and what is this worker's."""
        ...

    def doubts(self, actor: Actor, peer: str, delivery: Delivery) -> bool:
        """Whether a bundle has to wait until it is known whether its sender may still send; it is given again then."""
        ...

    def expecting(self) -> Generator[he.Wish, Any, None]:
        """Ask on which channels something may still come, before a core starts that would refuse what it does not expect."""
        ...

    def expects(self, channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
        """Which of the channels that a sender names its receivers believe to carry something that is new."""
        ...

    def hot_keys(self) -> tuple[HotKey, ...]:
        """Keys that this worker's intervals get most of; nothing where they are not counted."""
        ...

    def ending(self) -> RunEnding | None:
        """How the run of the cluster has ended; None before that, and where there is no cluster."""
        ...

    def source_lost(self, name: str) -> None:
        """A source has another owner."""
        ...

    def ran(self, interval: IntervalId, elapsed_us: int) -> None:
        """Hooks of an interval took so long."""
        ...

    def sequencers(
        self, source: str, intervals: Sequence[IntervalId]
    ) -> Generator[he.Wish, Any, dict[IntervalId, Sequencer] | None]:
        """New sequencers for partitions of a source; None when the source is not this worker's any more."""
        ...

    def fenced(self, actor: Actor, reason: str) -> None:
        """A write of an interval was fenced: the interval has another owner."""
        ...

    def lost(self, actor: Actor) -> None:
        """An interval was to be restarted, and has another owner."""
        ...

    def disowned(self, owners: dict[IntervalId, Sequencer]) -> None:
        """The store says that not all of these are owners."""
        ...

    def served(self) -> bool:
        """Whether everything that is this worker's is served."""
        ...

    def rested(self) -> None:
        """All input is consumed, committed and folded, as far as this worker knows."""
        ...


class WholeOwnership:
    """Everything is this worker's, until another run takes the store over.  Then this run ends."""

    gathers: ClassVar[bool] = False

    def __init__(self, worker: WorkerHost) -> None:
        self._worker = worker

    def boot(self) -> Steps:
        """See `Ownership`."""
        worker = self._worker
        opened: Opened = yield OpenPipeline(worker.graph.shape())
        rows = worker.routes.open(opened)
        sequencers = yield Acquire(tuple(row.id for row in rows))
        if worker.epochs.enabled:
            declared = yield RewindEpochs(dict(sequencers))
            if declared is None:
                raise Fenced("another run owns this pipeline's store now")
            worker.epochs.base(declared)
        yield he.Prepare(opened.subscriptions, opened.places)
        adopted = []
        for row in rows:
            actor = yield from worker.adoption.adopt(row, sequencers[row.id])
            if actor is None:
                raise Fenced(f"interval {row.id} of {row.computation!r}: another run owns this pipeline's store now")
            adopted.append(actor)
        worker.inform(Claimed(tuple((row.computation, row.id, sequencers[row.id]) for row in rows)))
        # Now that all is claimed: the controller reads what is stored, and nobody is told more than this.
        worker.join()
        known = yield from positions_of(worker.graph)
        worker.routes.expect_partitions((yield ListUnfinished()))
        yield from self._hears(sequencers)
        yield from self._start(adopted)
        worker.begin(worker.redrives.steps())
        worker.begin(self._watch())
        worker.serving = True
        worker.epochs.ready()
        yield from worker.partitions.open(known)

    def _hears(self, sequencers: Mapping[IntervalId, Sequencer]) -> Steps:
        """Wait for watermarks, as long as all is this worker's.  What a successor stores, no controller of its own tells."""
        worker, until = self._worker, 0
        while worker.now >= until:
            if until and len((yield StillOwned(dict(sequencers)))) < len(sequencers):
                raise Fenced("another run owns this pipeline's store now; this run ends")
            until = worker.now + limits.OWNER_CHECK_US
            yield from worker.adoption.hears(worker.graph.computations, partial(self._is_before, until))

    def _start(self, actors: Sequence[Actor]) -> Steps:
        """Start cores.  Those that were cut off come when receivers have taken what was sent before; sources wait as well."""
        worker = self._worker
        while actors:
            waiting = yield from worker.adoption.behind({actor.interval: actor.owner for actor in actors})
            for actor in actors:
                if actor.interval not in waiting:
                    worker.start(actor)
            actors = [actor for actor in actors if actor.interval in waiting]
            if actors:
                yield he.Pause(limits.BEHIND_LOOK_US)
                if len((yield StillOwned({actor.interval: actor.sequencer for actor in actors}))) < len(actors):
                    raise Fenced("another run owns this pipeline's store now; this run ends")

    def _is_before(self, until: int) -> bool:
        return self._worker.now < until

    def hear(self, peer: str, message: ClusterMessage) -> None:
        """See `Ownership`."""
        raise InvariantError(f"an embedded worker was told {type(message).__name__} by {peer}")

    def look(self) -> None:
        """See `Ownership`."""
        raise InvariantError("an embedded worker has heard of another worker")

    def doubts(self, actor: Actor, peer: str, delivery: Delivery) -> bool:
        """See `Ownership`: all senders are this worker's, and it has named them."""
        return False

    def expecting(self) -> Generator[he.Wish, Any, None]:
        """See `Ownership`: this worker knows who sends."""
        yield from ()

    def expects(self, channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
        """See `Ownership`: all, because the sender is of this process, which has not been superseded if it sends."""
        return channels

    def ran(self, interval: IntervalId, elapsed_us: int) -> None:
        """See `Ownership`: there is nobody to share it with."""

    def hot_keys(self) -> tuple[HotKey, ...]:
        """See `Ownership`: a worker that is alone has nobody to tell, and does not count."""
        return ()

    def ending(self) -> RunEnding | None:
        """See `Ownership`: the worker itself knows."""
        return None

    def source_lost(self, name: str) -> None:
        """See `Ownership`."""
        raise InvariantError(f"an embedded worker has lost source {name}")

    def sequencers(
        self, source: str, intervals: Sequence[IntervalId]
    ) -> Generator[he.Wish, Any, dict[IntervalId, Sequencer] | None]:
        """See `Ownership`."""
        taken: dict[IntervalId, Sequencer] = yield Acquire(tuple(intervals))
        return taken

    def fenced(self, actor: Actor, reason: str) -> None:
        """See `Ownership`."""
        self._worker.fail(Fenced(f"{reason}: another run owns this pipeline's store now; this run ends"))

    def lost(self, actor: Actor) -> None:
        """See `Ownership`."""
        raise Fenced(f"interval {actor.interval} of {actor.owner!r}: another run owns this pipeline's store now")

    def served(self) -> bool:
        """See `Ownership`."""
        return True

    def rested(self) -> None:
        """See `Ownership`."""
        self._worker.end()

    # --- being superseded -------------------------------------------------------------------------------------

    def _watch(self) -> Steps:
        """Ask now and then whether this worker was superseded, because an idle worker meets no fence."""
        while True:
            yield he.Pause(limits.OWNER_CHECK_US)
            owners = {actor.interval: actor.sequencer for actor, _ in self._worker.actors.intervals()}
            owned = yield StillOwned(owners)
            self.disowned({interval: sequencer for interval, sequencer in owners.items() if interval not in owned})

    def disowned(self, owners: dict[IntervalId, Sequencer]) -> None:
        """Find out which of these are this worker's, and end if it was superseded."""
        worker = self._worker
        mine = {
            i: s
            for i, s in owners.items()
            if i not in worker.restarts.under_way and worker.actors.current(IntervalId(i), Sequencer(s)) is not None
        }
        if mine:
            worker.begin(self._find_out(mine))

    def _find_out(self, mine: dict[IntervalId, Sequencer]) -> Steps:
        owned, worker = (yield StillOwned(mine)), self._worker
        for interval, sequencer in mine.items():
            actor = worker.actors.current(IntervalId(interval), Sequencer(sequencer))
            if interval not in owned and interval not in worker.restarts.under_way and actor is not None:
                raise Fenced(
                    f"interval {interval} of {actor.owner!r}: another run owns this pipeline's store now; this run ends"
                )
