"""What a worker does in an epoch (docs/adr/0032-snapshots-at-barriers.md).

Lives here: the begin of an epoch at all cores of a worker, what they have noted and written, and what becomes of it when the
epoch is declared.  Never here: when one begins or is complete, which the controller decides (`epoch_keeper`).  Invariant: all
partitions of the worker pass a barrier in one step, so that no row is in the epoch of one and not of the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from millwheel.baselines import Baseline
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import InvariantError
from millwheel.graph import Graph
from millwheel.host.actors import Actor, Actors
from millwheel.host.adoption import Adoption
from millwheel.host.heard import Heard
from millwheel.host.messages import BarriersNamed, EpochBased, EpochOpened, EpochWanted, ImageWritten, Message
from millwheel.host.partitions import Partitions
from millwheel.host.procedures import Steps
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId


class WentBack(Exception):
    """The worker is void, and the next one goes on from the last declared epoch.

    The database refuses rows of an epoch, or in a cluster all goes back.

    `inherited` is for its cores: what wrote the rows is not to run again.
    """

    def __init__(self, inherited: dict[IntervalId, ev.Inherited]) -> None:
        super().__init__("all goes back to the last declared epoch")
        self.inherited = inherited


class Crew(Protocol):
    """The worker, as far as its epochs need it."""

    graph: Graph
    actors: Actors
    partitions: Partitions
    routes: Routes
    adoption: Adoption
    heard: Heard

    def handle_core(self, actor: Actor, event: ev.Event) -> None:
        """Give a core an event now."""
        ...

    def inform(self, message: Message) -> None:
        """Send a message to the controller."""
        ...

    def answer(self, message: Message) -> None:
        """Send the controller a message that it need not hear again."""
        ...

    def begin(self, steps: Steps) -> None:
        """Start a procedure."""
        ...

    def fail(self, error: Exception) -> None:
        """End the run by an error."""
        ...


class Epochs:
    """The epochs of one worker.  Without `enabled` there are none."""

    def __init__(self, worker: Crew, enabled: bool) -> None:
        self._worker = worker
        self.enabled = enabled
        self.begun = 0
        """The last epoch that has begun here."""
        self._declared = 0
        self._noted: list[tuple[Actor, ev.PositionNoted]] = []
        self._wanted = -1
        """An epoch is wanted after this one."""
        self.pressed = False
        """No partition is read."""
        self._halts = worker.graph.baseline is Baseline.HALTS
        self._last: int | None = None
        """What had begun when everything was done."""

    def base(self, declared: int) -> None:
        """The store was brought back to this epoch."""
        self.begun = self._declared = declared

    def ready(self) -> None:
        """All intervals are served: epochs may begin."""
        if self.enabled:
            self._worker.inform(EpochBased(self._declared))

    @property
    def label(self) -> int | None:
        """Of partitions that open now; None without snapshots."""
        return self.begun if self.enabled else None

    def begin(self, epoch: int) -> None:
        """An epoch has begun; it may be told several times."""
        if epoch <= self.begun:
            return
        self.begun, self._noted = epoch, []
        self.pressed = self.pressed or self._halted()
        worker = self._worker
        owners = {actor.interval: actor.sequencer for actor, _ in worker.actors.intervals()}
        self._open(epoch, self._barriers())
        for actor, _ in worker.actors.partitions():
            worker.handle_core(actor, ev.BarrierAsked(epoch))
        positions = tuple(worker.partitions.noted(actor, noted) for actor, noted in self._noted)
        worker.inform(EpochOpened(epoch, owners, positions))

    def named(self, message: BarriersNamed) -> None:
        """In a cluster: who sends barriers to whom."""
        raise InvariantError("a worker without others was told of barriers of others")

    def _barriers(self) -> dict[IntervalId, tuple[IntervalId, ...]]:
        """Who gets a barrier from each interval and partition of this worker.

        Partitions that open later have passed it already.
        """
        return {
            actor.interval: tuple(
                sorted(actor.core.sends_to if isinstance(actor.core, IntervalCore) else actor.receivers)
            )
            for actor in self._worker.actors.all.values()
        }

    def _open(self, epoch: int, barriers: Mapping[IntervalId, Iterable[IntervalId]]) -> None:
        """Tell each interval for whose barriers it waits, and whose come round on back edges of a loop."""
        senders: dict[IntervalId, set[IntervalId]] = {}
        back: dict[IntervalId, set[IntervalId]] = {}
        for sender, receivers in barriers.items():
            for receiver in receivers:
                found = back if self._worker.routes.is_back(sender, receiver) else senders
                found.setdefault(receiver, set()).add(sender)
        for actor, _ in [*self._worker.actors.intervals()]:
            waits, rounds = senders.get(actor.interval, set()), back.get(actor.interval, set())
            self._worker.handle_core(actor, ev.EpochBegun(epoch, waits, rounds))

    def noted(self, actor: Actor, noted: ev.PositionNoted) -> None:
        """The effect of a partition."""
        self._noted.append((actor, noted))

    def written(self, actor: Actor, written: ev.PartWritten) -> None:
        """The effect of an interval."""
        self._worker.inform(ImageWritten(written.epoch, actor.interval, actor.sequencer, written.sinks))

    def declared(self, epoch: int) -> None:
        """An epoch is complete; it may be told several times."""
        if epoch <= self._declared or epoch != self.begun:
            return
        self._declared = epoch
        for actor, _ in self._worker.actors.intervals():
            self._worker.handle_core(actor, ev.EpochEnded(epoch))
        noted, self._noted = self._noted, []
        for actor, position in noted:
            self._worker.partitions.advanced(actor, position.position, position.finished)

    def go_back(self, actor: Actor, inherited: ev.Inherited) -> None:
        """Rows of an interval are refused, so its core is void.  All others have gone further than it may become durable."""
        left = {other.interval: core.give_up() for other, core in self._worker.actors.intervals()}
        left[actor.interval] = inherited
        self._worker.fail(WentBack(left))

    def press(self) -> None:
        """After a turn, under snapshots: while an interval has too much in memory, no partition is read."""
        full = any(core.pressed for _, core in self._worker.actors.intervals())
        before, self.pressed = self.pressed, full or self._halted()
        if full:
            self.want()
        if before and not self.pressed:
            self._worker.partitions.go_on()

    def _halted(self) -> bool:
        """For comparisons: whether all stands still, because an epoch has begun and is not declared."""
        return self._halts and self.begun > self._declared

    def want(self) -> None:
        """Have the next epoch begin soon."""
        if self.enabled and self._wanted < self.begun:
            self._wanted = self.begun
            self._worker.inform(EpochWanted(self.begun))

    def settled(self) -> bool:
        """Whether the run may end, when all else is done: an epoch has been declared that began after that."""
        if not self.enabled:
            return True
        if self._last is None:
            self._last = self.begun
        if self._declared <= self._last or any(core.wants_epoch for _, core in self._worker.actors.intervals()):
            self.want()
            return False
        return True

    def hurry(self) -> None:
        """Under snapshots: when all partitions only wait for an epoch to end, do not let them wait long."""
        cores = [core for _, core in self._worker.actors.partitions()]
        if any(core.at_end for core in cores) and all(core.at_end or core.finished for core in cores):
            self.want()
