"""What a worker of a cluster does in an epoch (docs/adr/0035-snapshots-on-a-cluster.md).

Lives here: how an epoch begins where other workers have senders, too.  Never here: what is the same without them
(`barriers`).  Invariants:

* an epoch begins in one step at all partitions of the worker, and only when all that the map gives to it is served;
* what a worker has said of an epoch it says again whenever it hears of its begin.
"""

from __future__ import annotations

from collections.abc import Callable

from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor
from millwheel.host.barriers import Crew, Epochs, WentBack
from millwheel.host.messages import BarriersNamed, EpochOpened, ImageWritten, Message
from millwheel.host.procedures import Steps
from millwheel.host.requests import Leave


class SharedEpochs(Epochs):
    """The epochs of the member `incarnation`.  `serves` says whether all is served that the map gives to it."""

    def __init__(self, worker: Crew, enabled: bool, incarnation: int, serves: Callable[[], bool]) -> None:
        super().__init__(worker, enabled)
        self._incarnation = incarnation
        self._serves = serves
        self._said: list[Message] = []
        """Of the last epoch that has begun here."""
        self._back: WentBack | None = None
        self._named = 0
        """The last epoch of which all barriers were named."""

    def begin(self, epoch: int) -> None:
        """See `Epochs`.  A leader says it again until all have begun."""
        worker = self._worker
        if epoch == self.begun:
            for message in self._said:
                worker.answer(message)
        if epoch != self._declared + 1 or epoch <= self.begun or not self._serves():
            return
        self.begun, self._noted, self._said = epoch, [], []
        self.pressed = self.pressed or self._halted()
        barriers = self._barriers()
        for actor, _ in worker.actors.partitions():
            worker.handle_core(actor, ev.BarrierAsked(epoch))
        positions = tuple(worker.partitions.noted(actor, noted) for actor, noted in self._noted)
        owners = {actor.interval: actor.sequencer for actor, _ in worker.actors.intervals()}
        self._say(EpochOpened(epoch, owners, positions, {sender: to for sender, to in barriers.items() if to}))

    def _say(self, message: Message) -> None:
        self._said.append(message)
        self._worker.inform(message)

    def named(self, message: BarriersNamed) -> None:
        """All workers have begun the epoch, so each interval knows for whose barriers it waits."""
        if message.epoch != self.begun or self._named >= message.epoch:
            return
        self._named = message.epoch
        self._open(message.epoch, message.barriers)

    def written(self, actor: Actor, written: ev.PartWritten) -> None:
        """See `Epochs`."""
        reached = self._worker.heard.before(written.epoch)
        self._say(ImageWritten(written.epoch, actor.interval, actor.sequencer, written.sinks, reached))

    def go_back(self, actor: Actor, inherited: ev.Inherited) -> None:
        """See `Epochs`.  When this member has left, the leader sees places without an owner, and has all go back."""
        self.dismissed().inherited[actor.interval] = inherited
        self._worker.begin(self._leave())

    def dismissed(self) -> WentBack:
        """This member is one no more.  What it knows of intervals that it has had, now or before, is for the next one."""
        if self._back is None:
            cores = {actor.interval: core.give_up() for actor, core in self._worker.actors.intervals()}
            self._back = WentBack({**self._worker.adoption.left, **cores})
        return self._back

    def lost(self) -> None:
        """Something of this member is not its own any more, and no epoch can be declared with it: all goes back."""
        self._worker.begin(self._leave())

    def _leave(self) -> Steps:
        yield Leave(self._incarnation)
        self._worker.fail(self.dismissed())
