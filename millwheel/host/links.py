"""The channels of a worker: where its intervals are heard, and where what they send goes.

Lives here: hellos, what is sent, receipts and credit, of each interval and each worker that it talks to.  Never here: what
becomes of a bundle that has come.  Invariant: an interval is sent nothing before it has said hello, and its sources send no
more than it has promised to take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.bundles import Bundle
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.errors import InvariantError
from millwheel.host.actors import Actor
from millwheel.host.messages import Delivery, Expected, Hello, Message, Receipt
from millwheel.host.origins import Origins
from millwheel.host.promises import Grants
from millwheel.host.receipts import Receipts
from millwheel.host.receivers import Receivers
from millwheel.host.strangers import Strangers
from millwheel.ids import IntervalId

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost


class Links:
    """Channels to all workers, also to the own one."""

    def __init__(self, worker: WorkerHost) -> None:
        self._worker = worker
        self.receivers = Receivers()
        self._origins = Origins()
        self._grants = Grants()
        self._receipts: Receipts | None = None
        """Those that wait, when other workers are other processes; else each is told at once."""
        self.strangers = Strangers()

    def gather_receipts(self, rest_us: int, together: int) -> None:
        """From now on receipts for other workers wait up to `rest_us` for others."""
        self._receipts = Receipts(rest_us, together)

    # --- who is there -----------------------------------------------------------------------------------------

    def meet(self, peer: str) -> list[Message]:
        """Say hello to a worker that is new.  Returns what it has said already."""
        for actor, _ in self._worker.actors.intervals():
            if not actor.core.halted:
                self._greet(actor, peer)
        return self.strangers.known(peer)

    def part(self, peer: str) -> None:
        """A worker is gone for good."""
        self.receivers.cut(peer)
        self._origins.forget(peer)
        self._grants.part(peer)
        if self._receipts is not None:
            self._receipts.part(peer)

    def reopened(self, peer: str) -> None:
        """The channel to a worker is open again after a cut.  Say again what it must know."""
        self.receivers.cut(peer)
        if self._receipts is not None:  # before it hears what it has to send again
            self._receipts.tell(peer, self._worker.say)
        self._worker.say(peer, Expected(tuple(sorted(self._worker.routes.live))))
        for actor, _ in self._worker.actors.intervals():
            self._greet(actor, peer)

    def drop(self, interval: IntervalId) -> None:
        """An interval is not this worker's any more."""
        self._grants.drop(interval)
        if self._receipts is not None:
            self._receipts.drop(interval, self._worker.say)

    # --- receiving --------------------------------------------------------------------------------------------

    def hello(self, actor: Actor) -> None:
        """An interval is served from now on: say so to every worker."""
        for peer in self._worker.peers:
            self._greet(actor, peer)

    def _greet(self, actor: Actor, peer: str) -> None:
        """Say that an interval is served here, and what its sources may send."""
        round_, row = self._grants.open(actor.interval, peer), self._worker.routes.rows[actor.interval]
        self._worker.say(peer, Hello(actor.interval, actor.sequencer, round_, row.low, row.high))
        self.grant(actor)

    def came(self, peer: str, delivery: Delivery) -> None:
        """A bundle has come, and is taken in."""
        bundle = delivery.bundle
        self._origins.note(peer, bundle)
        if delivery.metered:
            self._grants.received(bundle.target, peer, bundle.size())

    def grant(self, actor: Actor) -> None:
        """Promise what an interval that has said hello takes in now."""
        if not self._grants.low(actor.interval):
            return
        if not isinstance(actor.core, IntervalCore):
            raise InvariantError("actor.core is no IntervalCore")
        for peer, credit in self._grants.due(actor.interval, actor.sequencer, actor.core.inbox_bytes):
            self._worker.say(peer, credit)

    def acknowledge(self, actor: Actor, sender: IntervalId, number: int, epoch: int) -> None:
        """What an interval has got is durable: its sender hears of it."""
        peer = self._origins.of(sender)
        if peer is None:  # its worker is gone, and so is whoever waited for this
            return
        receipt = Receipt(actor.interval, sender, number, epoch)
        if self._receipts is None or peer == self._worker.name:
            self._worker.say(peer, receipt)
        else:
            self._receipts.add(peer, receipt, self._worker.now)

    def flush(self) -> int | None:
        """Tell what has waited long enough; when to look again, wall time, us, or None."""
        if self._receipts is None:
            return None
        self._receipts.due(self._worker.now, self._worker.say)
        return self._receipts.next()

    # --- sending ----------------------------------------------------------------------------------------------

    def greeted(self, peer: str, hello: Hello) -> bool:
        """A receiver has said hello; false for a copy, and for the word of an earlier owner."""
        return self.receivers.greet(peer, hello)

    def send(self, actor: Actor, bundle: Bundle) -> None:
        """Send a bundle of an interval or partition to its receiver, if that is there."""
        worker = self._worker
        row = worker.routes.rows.get(bundle.target)
        place = self.receivers.place(row) if row is not None else None
        if place is None:
            return  # it is kept until it is acked, and sent when its receiver says hello
        peer, sequencer = place
        metered = isinstance(actor.core, InjectorCore)
        if metered:
            worker.partitions.sent(bundle.target, bundle.size())
        worker.say(peer, Delivery(bundle, sequencer, metered))
