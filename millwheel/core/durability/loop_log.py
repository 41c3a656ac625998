"""The log of a cut at the head of a loop: what comes on back edges while the barrier goes round (Carbone et al. 2015).

Lives here: the records of one cut, their numbers, and when they are dropped.  Never here: when a log begins or ends
(`alignment`), or its row (`durable_epochs`).  docs/adr/0036-snapshots-in-loops.md has the reasons.  The log is stored as
productions of the interval to itself, which no receiver has acked.  So a recovery sends it as any production that an earlier
owner has left, and needs nothing of its own.  Invariants:

* a record that was sent before a barrier, and came after the cut, is in the log once, in the order of its subscription;
* the next cut drops the log: all of it has run by then.
"""

from __future__ import annotations

from typing import Final

from millwheel.bundles import Acked, Produced
from millwheel.errors import InvariantError
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.work import BundlePart, Columns

CLOSED: Final = Seq(0)


class LoopLog:
    """Of one interval under one owner, who is `producer`."""

    def __init__(self, producer: ProducerId) -> None:
        self._producer = producer
        self._open: dict[SubscriptionId, Columns] = {}
        self._next: dict[SubscriptionId, int] = {}
        self._kept: list[Acked] = []
        """What the last cut has, and the next one drops."""
        self._dropping: list[Acked] = []
        self._dropped: dict[SubscriptionId, SequenceNumber] = {}
        self.seq = CLOSED
        """Of the row that the open log becomes, or `CLOSED`."""
        self.size_bytes = 0
        """Of what is open."""

    def begin(self, seq: Seq) -> None:
        """The interval has cut."""
        self.seq = seq

    def add(self, part: BundlePart, size_bytes: int) -> None:
        """Records of a bundle that was sent before the barrier."""
        if self.seq == CLOSED:
            raise InvariantError(f"records of subscription {part.subscription} came behind the barrier of their sender")
        columns = self._open.setdefault(part.subscription, Columns([], [], []))
        columns.keys.extend(part.keys)
        columns.values.extend(part.values)
        columns.timestamps.extend(part.timestamps)
        self.size_bytes += size_bytes

    def end(self) -> list[Produced]:
        """The barrier has come round.  Returns the log, which is empty when nothing was on its way."""
        log = []
        for subscription, columns in self._open.items():
            first, count = self._next.get(subscription, 0), len(columns.keys)
            self._next[subscription] = first + count
            run = Produced(
                subscription, self._producer, SequenceNumber(first), columns.keys, columns.values, columns.timestamps
            )
            log.append(run)
            self._kept.append(Acked(subscription, self._producer, sequence_numbers(range(first, first + count))))
        self._open, self.seq, self.size_bytes = {}, CLOSED, 0
        return log

    def drop(self) -> list[Acked]:
        """The next cut: what is no longer needed when it is declared."""
        self._dropping, self._kept = self._kept, []
        return self._dropping

    def declared(self) -> None:
        """The cut is complete: what it drops is gone."""
        for gone in self._dropping:
            self._dropped[gone.subscription] = SequenceNumber(gone.sequences[-1] + 1)
        self._dropping = []

    def frontier(self, subscription: SubscriptionId, producer: ProducerId) -> SequenceNumber:
        """Every number below it is dropped for good."""
        return self._dropped.get(subscription, SequenceNumber(0))

    def __bool__(self) -> bool:
        """Whether a log is open, or waits to be dropped."""
        return bool(self.seq != CLOSED or self._kept)
