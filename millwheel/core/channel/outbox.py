"""Productions on their way: numbering, routing, acks and the frontier (§6.1.1, §6.1.2).

Lives here: the sender's side of exactly-once delivery.  Invariants:

* ids are dense per subscription and producer;
* a bundle stays here, byte for byte, until its receiver has acked it;
* the frontier never passes a production whose ack is not durably recorded;
* under snapshots, what all intervals together have on its way to one receiver is bounded as that of one: it parks what comes
  behind barriers, for as long as the slowest of them takes;
* what is unacked on back edges of a loop does not count for back-pressure.  Otherwise two intervals that send to each other
  could both wait for room, and neither would take what makes room for the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from millwheel import limits
from millwheel.bundles import Acked, Bundle, Produced
from millwheel.core.ids.dedup import Channel
from millwheel.core.ids.ended import ENDED
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.intervals import Ranges
from millwheel.limits import RETIRED_LIMIT_CHANNELS
from millwheel.model import MAX_TIME
from millwheel.work import Columns

UNKNOWN: Final = SequenceNumber(0)
"""The frontier of a bundle until it is sent."""


NO_SUBSCRIPTION: Final = SubscriptionId(0)
"""Of barriers, which are between intervals."""


class Outbox:
    """Unacked bundles of one sending interval."""

    def __init__(
        self,
        sender: IntervalId,
        producer: ProducerId,
        routes: Mapping[SubscriptionId, Ranges],
        back: Collection[SubscriptionId] = (),
        *,
        crowds: Mapping[SubscriptionId, int] | None = None,
    ) -> None:
        """`crowds` says how many intervals share the room of a receiver; None: each has all of it."""
        self._crowds = crowds or {}
        self._waiting: dict[IntervalId, int] = {}
        """Unacked bytes by receiver, where room is shared."""
        self._crowded: set[IntervalId] = set()
        """Receivers of which this interval has used up its share."""
        self._back = frozenset(back)
        self._unacked_back = 0
        """Bundles on back edges."""
        self._sender = sender
        self._producer = producer
        self._routes = routes
        self._next_sequence: dict[SubscriptionId, SequenceNumber] = {}
        # Never the number of a bundle of an earlier owner: acks of those bundles may still arrive.
        self._next_number = (producer << 32) + 1
        self.epoch = 0
        """Of the bundles that are made now."""
        self.unacked: dict[int, Bundle] = {}
        self.unacked_bytes = 0
        """On regular edges."""
        self._oldest: dict[int, int] = {}
        self._unrecorded: dict[int, Bundle] = {}
        self._recording: dict[Seq, list[Bundle]] = {}
        self._abandoned: list[Bundle] = []
        self._live: dict[Channel, dict[int, SequenceNumber]] = {}
        self.frontier_moved = False
        """Receivers have not been told of the newest frontier by a bundle."""

    def number(self, subscription: SubscriptionId, columns: Columns) -> tuple[Produced, list[Bundle]]:
        """Give productions their ids and cut them into one bundle per receiving interval."""
        first = self._next_sequence.get(subscription, SequenceNumber(0))
        count = len(columns.keys)
        self._next_sequence[subscription] = SequenceNumber(first + count)
        produced = Produced(subscription, self._producer, first, columns.keys, columns.values, columns.timestamps)
        sequences = sequence_numbers(range(first, first + count))
        return produced, self._bundles(subscription, self._producer, sequences, columns)

    def adopt(self, bundle: Bundle) -> list[Bundle]:
        """Take over unacked productions of an earlier owner.  They keep their ids and are routed again."""
        columns = Columns(bundle.keys, bundle.values, bundle.timestamps)
        return self._bundles(bundle.subscription, bundle.producer, bundle.sequences, columns)

    def barriers(self, epoch: int, targets: Iterable[IntervalId]) -> list[Bundle]:
        """The barrier of an epoch, for each of `targets`.  It is kept like any bundle, so it keeps its place when all is
        sent again."""
        sent = []
        for target in sorted(targets):
            number = self._next_number
            self._next_number += 1
            barrier = Bundle(
                NO_SUBSCRIPTION, self._sender, number, target, self._producer, UNKNOWN, [], [], [], [], self.epoch,
                barrier=epoch,
            )  # fmt: skip
            self.unacked[number] = barrier
            sent.append(barrier)
        return sent

    def _bundles(
        self, subscription: SubscriptionId, producer: ProducerId, sequences: list[SequenceNumber], columns: Columns
    ) -> list[Bundle]:
        ranges = self._routes[subscription]
        if len(ranges.ids) == 1:
            groups: Iterable[tuple[IntervalId, list[int] | None]] = [(ranges.ids[0], None)]
        else:
            groups = list(ranges.group(columns.keys).items())
        return [self._bundle(subscription, producer, target, at, sequences, columns) for target, at in groups]

    def _bundle(
        self,
        subscription: SubscriptionId,
        producer: ProducerId,
        target: IntervalId,
        positions: list[int] | None,
        sequences: list[SequenceNumber],
        columns: Columns,
    ) -> Bundle:
        keys, values, timestamps = columns.keys, columns.values, columns.timestamps
        if positions is not None:
            sequences = [sequences[i] for i in positions]
            keys = [keys[i] for i in positions]
            values = [values[i] for i in positions]
            timestamps = [timestamps[i] for i in positions]
        number = self._next_number
        self._next_number += 1
        bundle = Bundle(
            subscription,
            self._sender,
            number,
            target,
            producer,
            UNKNOWN,
            sequences,
            keys,
            values,
            timestamps,
            self.epoch,
            inherited=producer != self._producer,
        )
        self.unacked[number] = bundle
        self._count(bundle, 1)
        self._oldest[number] = min(timestamps)
        self._live.setdefault((subscription, producer), {})[number] = sequences[0]
        return bundle

    def sendable(self, bundle: Bundle) -> Bundle:
        """The bundle with the frontier as it is now; what is kept here stays as it was made."""
        if bundle.barrier:
            return bundle
        frontier = self.frontier(bundle.subscription, bundle.producer)
        return bundle if frontier == bundle.frontier else msgspec.structs.replace(bundle, frontier=frontier)

    def ack(self, number: int) -> bool:
        """The receiver made the bundle durable; false for an unknown or repeated ack."""
        bundle = self.unacked.pop(number, None)
        if bundle is None:
            return False
        if bundle.barrier:
            return True
        self._count(bundle, -1)
        del self._oldest[number]
        self._unrecorded[number] = bundle
        return True

    def _count(self, bundle: Bundle, by: int) -> None:
        if bundle.subscription in self._back:
            self._unacked_back += by
        else:
            self.unacked_bytes += by * bundle.size()
            if bundle.subscription in self._crowds:
                self._share(bundle, by)

    def _share(self, bundle: Bundle, by: int) -> None:
        waiting = self._waiting[bundle.target] = self._waiting.get(bundle.target, 0) + by * bundle.size()
        if waiting >= limits.UNACKED_LIMIT_BYTES // max(1, self._crowds[bundle.subscription]):
            self._crowded.add(bundle.target)
        else:
            self._crowded.discard(bundle.target)

    def full(self) -> bool:
        """True when so much is unacked on regular edges that no user code may run."""
        if self._crowded:
            return True
        bundles = len(self.unacked) - self._unacked_back
        return bundles >= limits.OUTBOX_LIMIT_BUNDLES or self.unacked_bytes >= limits.UNACKED_LIMIT_BYTES

    def abandon(self, bundle: Bundle) -> None:
        """Record unacked productions of an earlier owner as acked, because their subscription no longer exists."""
        self._abandoned.append(bundle)

    def has_unrecorded(self) -> bool:
        """True when acks wait to be recorded in a checkpoint."""
        return bool(self._unrecorded or self._abandoned)

    def record_acks(self, seq: Seq) -> list[Acked]:
        """Acks to store in checkpoint `seq`."""
        if not self.has_unrecorded():
            return []
        bundles = self._recording[seq] = list(self._unrecorded.values())
        gone, self._unrecorded, self._abandoned = self._abandoned, {}, []
        return [Acked(b.subscription, b.producer, b.sequences) for b in (*bundles, *gone)]

    def recorded(self, seq: Seq) -> None:
        """Checkpoint `seq` is durable: the frontier may pass the acks it carried."""
        for bundle in self._recording.pop(seq, ()):
            del self._live[bundle.subscription, bundle.producer][bundle.number]
            self.frontier_moved = True

    def forget(self, number: int) -> None:
        """An acked production that no checkpoint ever stored needs no record: the frontier may pass it."""
        bundle = self._unrecorded.pop(number, None)
        if bundle is not None:
            del self._live[bundle.subscription, bundle.producer][number]
            self.frontier_moved = True

    def frontier_notes(self) -> list[Bundle]:
        """Bundles without records that tell every receiver the frontiers."""
        self.frontier_moved = False
        notes = [
            Bundle(sub, self._sender, 0, target, producer, self.frontier(sub, producer), [], [], [], [])
            for sub, producer in self._live
            for target in self._routes[sub].ids
        ]
        # A receiver that restarts is told again that producers of earlier owners have ended.  Only the newest are kept.
        done = [place for place, live in self._live.items() if not live and place[1] != self._producer]
        for place in done[:-RETIRED_LIMIT_CHANNELS]:
            del self._live[place]
        return notes

    def resend(self, target: IntervalId, kept_back: Iterable[int]) -> list[Bundle]:
        """Everything that `target` has not acked, in the order of sending, except the numbers `kept_back`, not sent yet.

        It comes as `sendable` gives it.
        """
        self.frontier_moved = bool(self._live) or self.frontier_moved
        held = set(kept_back)
        return [self.sendable(b) for b in self.unacked.values() if b.target == target and b.number not in held]

    def channels(self) -> list[Channel]:
        """The channels on which this owner has sent anything, in its own name or that of an earlier owner."""
        return [*self._live]

    def retire(self, channels: Iterable[Channel]) -> None:
        """Earlier owners sent on `channels`: once nothing of theirs is unacked, receivers may collect all ids."""
        for subscription, producer in channels:
            if subscription in self._routes:
                self._live.setdefault((subscription, producer), {})
                self.frontier_moved = True

    def frontier(self, subscription: SubscriptionId, producer: ProducerId) -> SequenceNumber:
        """Every id below it is durably acked and will never be sent again."""
        live = self._live.get((subscription, producer))
        if live:
            return min(live.values())
        return self._next_sequence.get(subscription, SequenceNumber(0)) if producer == self._producer else ENDED

    def first_oldest(self) -> Bundle | None:
        """The bundle with that time; None when all is acked."""
        number = min(self._oldest, key=self._oldest.__getitem__, default=None)
        return None if number is None else self.unacked[number]

    def oldest(self) -> int:
        """The smallest event time of an unacked production (§4.5), or MAX_TIME."""
        return min(self._oldest.values(), default=MAX_TIME)
