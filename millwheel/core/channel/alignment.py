"""Barriers at the door of an interval: who has sent theirs, and what is held back behind them (Carbone et al. 2015).

Lives here: which bundles belong to the epoch that is being cut, and which to the next one.  Never here: what a cut holds
(`durability`), or what a barrier does to a sender (`outbox`).  Every bundle has the label of its sender: the number of the
last barrier that the sender had passed.  Invariants:

* what has a higher label than the interval waits, in the order of each sender, until the interval has passed that barrier;
* an epoch is cut only when it was opened and every sender that was named has sent its barrier: finished and retired senders
  are not named, and no other sender is forgotten;
* a copy of a barrier that was passed changes nothing;
* barriers on back edges of a loop are not waited for before the cut.  While the rest of the epoch runs, what comes on back
  edges is held, so that a loop that is never empty cannot put the cut off.  After it, this part knows which of those
  barriers have not come round yet (docs/adr/0036-snapshots-in-loops.md).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millwheel.bundles import Bundle
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId


class Alignment:
    """The barriers of one interval, which begins with the label `label`."""

    def __init__(self, label: int = 0) -> None:
        self.label = label
        """Number of the last barrier that was passed."""
        self._opened = 0
        """The epoch that is being cut, or 0."""
        self._senders: frozenset[int] = frozenset()
        self._back: frozenset[int] = frozenset()
        """Those that send on back edges of a loop, in the newest epoch."""
        self._awaited: set[int] = set()
        """Of these: whose barrier has not come round, since the interval has cut."""
        self._held: dict[int, deque[Bundle]] = {}
        """By sender on a back edge: what came before its barrier, and waits for the cut."""
        self._barriers: dict[int, set[int]] = {}
        """By epoch that is not cut yet: senders whose barrier is here.  A barrier may come before the epoch is opened."""
        self._parked: dict[int, deque[Bundle]] = {}
        """By sender: what comes after its barrier."""
        self.size_bytes = 0
        """Of what is parked."""

    def open(self, epoch: int, senders: Iterable[int], back: Iterable[int] = ()) -> bool:
        """An epoch has begun, and these send barriers, those of `back` on back edges of a loop.

        Returns false for one that is known already.
        """
        if epoch <= max(self.label, self._opened):
            return False
        if self._opened:
            raise InvariantError(f"epoch {epoch} begins while {self._opened} is not cut")
        if self._awaited:
            raise InvariantError(f"epoch {epoch} begins while the barriers of {sorted(self._awaited)} go round")
        self._opened, self._senders, self._back = epoch, frozenset(senders), frozenset(back)
        return True

    @property
    def opened(self) -> int:
        """The epoch that is being cut, or 0."""
        return self._opened

    def barrier(self, sender: IntervalId, epoch: int) -> None:
        """A sender has sent all that belongs to `epoch`."""
        if epoch > self.label:
            self._barriers.setdefault(epoch, set()).add(sender)
        elif epoch == self.label:
            self._awaited.discard(sender)

    def parks(self, bundle: Bundle) -> bool:
        """Whether the bundle waits here: it was sent after a barrier that this interval has not passed, or it comes on a back
        edge, and all that comes on others is here."""
        if bundle.epoch <= self.label:
            return bundle.sender in self._back and self.complete() and self._keep(self._held, bundle)
        if not self.has_sent(bundle.sender, bundle.epoch):
            self._check_order(bundle)
        return self._keep(self._parked, bundle)

    def _keep(self, queues: dict[int, deque[Bundle]], bundle: Bundle) -> bool:
        queue = queues.setdefault(bundle.sender, deque())
        if queue and bundle.number <= queue[-1].number:
            return True  # it is here: after a cut of the channel all that is not acked is sent again
        queue.append(bundle)
        self.size_bytes += bundle.size()
        return True

    def _check_order(self, bundle: Bundle) -> None:
        """Only a sender that the epoch does not wait for may send under its label without a barrier."""
        if self._opened == bundle.epoch and bundle.sender in self._senders:
            raise InvariantError(f"interval {bundle.sender} sent under epoch {bundle.epoch} before its barrier")

    def has_sent(self, sender: IntervalId, epoch: int) -> bool:
        """Whether the barrier of a sender is here."""
        return sender in self._barriers.get(epoch, ())

    def complete(self) -> bool:
        """True when an epoch is open and every barrier of it is here."""
        return self._opened > 0 and self._senders <= self._barriers.get(self._opened, frozenset())

    @property
    def heads(self) -> bool:
        """Whether anything comes on back edges: the cut has a log."""
        return bool(self._back)

    def came_round(self) -> bool:
        """True when, since the cut, every barrier has come round on the back edges."""
        return not self._awaited

    def busy(self) -> bool:
        """Whether an epoch is being cut, a barrier goes round, or anything is parked."""
        return bool(self._opened or self._awaited or self._parked)

    def missing(self) -> list[int]:
        """Senders whose barrier the open epoch waits for."""
        return sorted(self._senders - self._barriers.get(self._opened, set())) if self._opened else []

    def cut(self) -> list[Bundle]:
        """Pass the barrier.  Returns what waited and may come in now, in the order of each sender.

        What was held on back edges is the first.  It has a lower label than this interval.
        """
        if not self.complete():
            raise InvariantError("an epoch is cut before all barriers are here")
        self._awaited = {*(self._back - self._barriers.get(self._opened, frozenset()))}
        self.label, self._opened = self._opened, 0
        self._barriers = {epoch: senders for epoch, senders in self._barriers.items() if epoch > self.label}
        freed = [bundle for queue in self._held.values() for bundle in queue]
        self._held.clear()
        for sender, queue in [*self._parked.items()]:
            while queue and queue[0].epoch <= self.label:
                if queue[0].epoch < self.label:
                    raise InvariantError(
                        f"what interval {sender} sent before epoch {self.label} was held back behind it"
                    )
                freed.append(queue.popleft())
            if not queue:
                del self._parked[sender]
        self.size_bytes -= sum(bundle.size() for bundle in freed)
        return freed

    def oldest(self, otherwise: int) -> int:
        """The smallest event time of what is parked, or `otherwise`."""
        times = (bundle.oldest() for queue in self._waiting() for bundle in queue if bundle.timestamps)
        return min(times, default=otherwise)

    def _waiting(self) -> list[deque[Bundle]]:
        return [*self._parked.values(), *self._held.values()]
