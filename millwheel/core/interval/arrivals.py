"""The door of an interval: which records of a bundle are new, and in which order they come in (§6.1.1).

Lives here: bundles until they are items of the inbox, and the ids that their checkpoints carry.  Invariants:

* a record is taken once, by the dense id of its producer and, where outside clients chose ids, by that id too;
* bundles of one sender keep their order, also while one of them waits for the store's answer about its ids;
* records on a retired channel are neither taken nor acked.  No owner waits for such an ack but one that was superseded and
  does not know it yet.  Its weak productions are in no store, and its next owner makes them again.  If they were acked, it
  could ack an input whose effect is nowhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

import msgspec

from millwheel import limits
from millwheel.bundles import Bundle, Checkpoint, Delivered, Ids, OutsideBucket, OutsideIdWrites
from millwheel.core.ids.dedup import Channel, DeliveredIds
from millwheel.core.ids.ended import ENDED
from millwheel.core.ids.outside import OutsideIds
from millwheel.core.interval import events as ev
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId, SequenceNumber, SubscriptionId
from millwheel.model import MAX_TIME
from millwheel.work import BundlePart


class Item(msgspec.Struct, gc=False):
    """A delivered bundle waiting to run: its fresh part (None: all duplicates) and the ack it owes.

    `dropped` has the dense ids of records whose outside id was taken before.  These records do not run.  They are
    checkpointed as delivered, so that they are also dropped when they come again.
    """

    part: BundlePart | None
    sender: IntervalId
    number: int
    oldest: int
    size_bytes: int
    dropped: list[SequenceNumber] = []
    inherited: bool = False
    """See `Bundle.inherited`."""
    epoch: int = 0
    """The label of its sender."""


class Arrivals:
    """The ids of one interval, and the bundles that wait for an answer about theirs.

    `slacks` maps the subscriptions on which outside clients choose ids to how long these are remembered, us.  Without
    `durable_ids`, ids of records that would be sent again under another id after a crash, or not at all, are not stored.
    """

    def __init__(
        self,
        counters: ev.Counters,
        exactly_once: bool,
        slacks: Mapping[SubscriptionId, int],
        stored: Iterable[OutsideBucket],
        *,
        durable_ids: bool = True,
    ) -> None:
        self._durable_ids = durable_ids
        self._stored: set[Channel] = set()
        """Without `durable_ids`: channels of which the store has something all the same."""
        self._counters = counters
        self.exactly_once = exactly_once
        """Without it, a copy is taken in like what is new."""
        self.ids = DeliveredIds()
        self.outside = OutsideIds(slacks if exactly_once else {}, stored)
        self._queues: dict[IntervalId, deque[Bundle]] = {}
        """Sender to the bundles that wait for the store's answer about the first one's ids."""
        self._known: dict[IntervalId, list[SequenceNumber]] = {}
        """By sender: ids that were duplicates when the store was asked.  Their runs may be sealed before the answer comes."""
        self._frontiers: dict[Channel, SequenceNumber] = {}
        """Frontiers that no checkpoint has recorded yet."""
        self._reading = False

    def begin(self, delivered: Iterable[Delivered], live: Collection[Channel] | None, horizon: int) -> None:
        """Begin with what an earlier owner had delivered.  `live`, if it is known, and `horizon` are for `DeliveredIds`."""
        if live is not None:
            self.ids = DeliveredIds(live, horizon)
        for known in delivered:
            channel = (known.subscription, known.producer)
            if live is not None and channel not in live:
                self._frontiers[channel] = ENDED
                self.ids.end(channel)
            else:
                self.ids.restore(*channel, known.frontier, known.top)
                self._stored.add(channel)

    def doubts(self, channel: Channel) -> bool:
        """Whether records on a channel would be taken for copies, and nobody knows whether they are."""
        return self.exactly_once and self.ids.doubts(channel)

    def hear_of_channels(self, event: ev.ChannelsExpected | ev.ChannelsEnded) -> None:
        """On these something may still come after all, or nothing that is new."""
        if isinstance(event, ev.ChannelsExpected):
            self.ids.expect(event.channels)
        else:
            self.ids.end_all(event.channels)

    # --- in -----------------------------------------------------------------------------------------------------

    def arrive(self, bundle: Bundle, now: int, effects: list[ev.Effect]) -> list[Item]:
        """Take a bundle in.  Returns what may run now: nothing when it must wait, or when it only brought a frontier."""
        if not bundle.sequences and bundle.number:  # a partition has ended: its worker forgets it when all have acked
            effects.append(ev.Ack(bundle.sender, bundle.number))
        if not self.exactly_once:
            return [_item(bundle, None)] if bundle.sequences else []
        self._note_frontier(bundle)
        if not bundle.sequences:
            return []
        if self._queues and bundle.sender in self._queues:
            self._counters.queued += 1
            self._queues[bundle.sender].append(bundle)  # order is per sender, whatever the producer
            return []
        fresh = self.ids.fresh(bundle.subscription, bundle.producer, bundle.sequences)
        if self._ask(bundle, fresh, now, effects):
            self._queues[bundle.sender] = deque([bundle])
            return []
        return self._accept(bundle, fresh, (), now)

    def found(self, answer: ev.IdsFound, now: int, effects: list[ev.Effect]) -> list[Item]:
        """The store has answered for the first bundle of a queue.  Those behind it follow, until one needs an answer."""
        queue = self._queues.get(answer.sender)
        if queue is None:
            raise InvariantError(f"the store has answered for bundles of sender {answer.sender}, and nothing was asked")
        bundle = queue.popleft()
        known = answer.found.union(self._known.pop(answer.sender))
        fresh = self.ids.fresh(bundle.subscription, bundle.producer, bundle.sequences, known)
        items = self._accept(bundle, fresh, answer.outside, now)
        self.outside.answered(answer.sender)
        while queue:
            bundle = queue[0]
            fresh = self.ids.fresh(bundle.subscription, bundle.producer, bundle.sequences)
            if self._ask(bundle, fresh, now, effects):
                return items
            items += self._accept(queue.popleft(), fresh, (), now)
        del self._queues[answer.sender]
        return items

    def _note_frontier(self, bundle: Bundle) -> None:
        sub, producer = bundle.subscription, bundle.producer
        if bundle.frontier > self.ids.frontier(sub, producer):
            self.ids.advance(sub, producer, bundle.frontier)
            if self._durable_ids or (sub, producer) in self._stored:
                self._frontiers[sub, producer] = bundle.frontier

    def _ask(self, bundle: Bundle, fresh: list[int] | None, now: int, effects: list[ev.Effect]) -> bool:
        """Ask the store for ids that memory is unsure of; false when there are none."""
        sub, producer = bundle.subscription, bundle.producer
        unsure: list[SequenceNumber] = []
        outside: list[bytes] = []
        if fresh:
            unsure = self.ids.unsure(sub, producer, [bundle.sequences[i] for i in fresh])
        if bundle.outside and fresh != []:
            ids = bundle.outside if fresh is None else [bundle.outside[i] for i in fresh]
            outside = self.outside.unsure(sub, ids, now)
        if not unsure and not outside:
            return False
        new = set(range(len(bundle.sequences)) if fresh is None else fresh)
        self._known[bundle.sender] = [sequence for i, sequence in enumerate(bundle.sequences) if i not in new]
        if outside:
            self.outside.asked(bundle.sender)
        self._counters.lookups += 1
        effects.append(ev.LookupIds(bundle.sender, sub, producer, unsure, outside, now))
        return True

    def _accept(self, bundle: Bundle, fresh: list[int] | None, stored: Collection[bytes], now: int) -> list[Item]:
        """Consume the records of a bundle at the positions `fresh`, or all (None).  What is not acked is no item."""
        if fresh is not None:
            self._counters.duplicates += len(bundle.sequences) - len(fresh)
        if fresh == [] and self.ids.frontier(bundle.subscription, bundle.producer) == ENDED:
            return []
        item = _item(bundle, fresh)
        part = item.part
        if part is None:
            return [item]
        if bundle.inherited:
            item.inherited = True
            self._stored.add((part.subscription, part.producer))
        self.ids.add(part.subscription, part.producer, part.sequences)
        if part.outside:
            kept, expires = self.outside.take(part.subscription, part.outside, stored, now)
            item.part = part = msgspec.structs.replace(part, expires=expires)
            if kept is not None:
                item = self._without(item, part, kept)
        return [item]

    def _without(self, item: Item, part: BundlePart, kept: list[int]) -> Item:
        """The item without the records whose outside id was taken before."""
        stays = {*kept}
        dropped = [sequence for i, sequence in enumerate(part.sequences) if i not in stays]
        self._counters.repeated += len(dropped)
        left = pick(part, kept)
        return Item(left, item.sender, item.number, oldest_of(left), size_of(left), dropped, item.inherited, item.epoch)

    # --- out ----------------------------------------------------------------------------------------------------

    def checkpointed(
        self, items: Iterable[Item], now: int, idle: bool = False
    ) -> tuple[list[Ids], list[OutsideIdWrites]]:
        """The ids that a checkpoint of `items` records, and the frontiers.  An `idle` checkpoint records frontiers only."""
        if not self.exactly_once:
            return [], []
        ids: list[Ids] = []
        outside: list[OutsideIdWrites] = []
        for item in items:
            part = item.part
            if part is None:
                continue
            channel = (part.subscription, part.producer)
            sequences = part.sequences + item.dropped if item.dropped else part.sequences
            # This is the newest frontier, which may have come after the records, and it is written once.  An older
            # one would bring back a channel that the store has dropped since, and nothing would drop it again.
            self._frontiers.pop(channel, None)
            if self._durable_ids or item.inherited:
                ids.append(Ids(*channel, self.ids.frontier(*channel), sequences))
            elif channel in self._stored:
                ids.append(Ids(*channel, self.ids.frontier(*channel), []))
            if part.outside:
                outside.append(OutsideIdWrites(part.subscription, part.expires, part.outside))
        if ids or idle or not self._durable_ids:
            ids += [Ids(*channel, frontier, []) for channel, frontier in self._frontiers.items()]
            self._frontiers.clear()
            outside += self.outside.cleaning(now)
        return ids, outside

    def recordable(self, now: int) -> bool:
        """True when there is something that an idle interval should record."""
        return bool(self._frontiers) or self.outside.owes(now)

    def folded(self, images: Collection[Checkpoint]) -> None:
        """What these checkpoints say of ids is in the folded tables, by one more fold."""
        self.ids.folded([ids for image in images for ids in image.ids])
        self.outside.folded([outside for image in images for outside in image.outside])

    def read(self, effects: list[ev.Effect]) -> None:
        """Go on with filling filters from what an earlier owner has taken."""
        place = None if self._reading else self.outside.unread()
        if place is not None:
            self._reading = True
            effects.append(ev.ReadOutsideIds(*place, limits.OUTSIDE_READ_IDS))

    def was_read(self, event: ev.OutsideIdsRead) -> None:
        """An answer to `read`."""
        self._reading = False
        self.outside.read(event.subscription, event.expires, event.ids)

    @property
    def waiting(self) -> bool:
        """Whether bundles wait for an answer of the store."""
        return bool(self._queues)

    def quiet(self) -> bool:
        """Nothing waits, and no frontier is unrecorded."""
        return not self._queues and not self._frontiers

    @property
    def asking(self) -> bool:
        """True while a bundle waits for the store's answer about its ids."""
        return bool(self._queues)

    def size_bytes(self) -> int:
        """Bytes of the bundles that wait."""
        return sum(bundle.size() for queue in self._queues.values() for bundle in queue)

    def oldest(self) -> int:
        """The smallest event time among the bundles that wait, or MAX_TIME."""
        return min((bundle.oldest() for queue in self._queues.values() for bundle in queue), default=MAX_TIME)


def _item(bundle: Bundle, fresh: list[int] | None) -> Item:
    if fresh == []:
        return Item(None, bundle.sender, bundle.number, MAX_TIME, 0)
    part = BundlePart(
        bundle.subscription, bundle.producer, bundle.frontier, bundle.sequences, bundle.keys, bundle.values,
        bundle.timestamps, bundle.outside,
    )  # fmt: skip
    if fresh is not None:
        part = pick(part, fresh)
    size = bundle.size() if fresh is None else size_of(part)
    return Item(part, bundle.sender, bundle.number, oldest_of(part), size, epoch=bundle.epoch)


def pick(part: BundlePart, at: list[int]) -> BundlePart:
    """The records of a part at these positions."""
    return BundlePart(
        part.subscription, part.producer, part.frontier, [part.sequences[i] for i in at], [part.keys[i] for i in at],
        [part.values[i] for i in at], [part.timestamps[i] for i in at],
        [part.outside[i] for i in at] if part.outside else [], part.expires,
    )  # fmt: skip


def cut(part: BundlePart, first: int, end: int) -> BundlePart:
    """The records of a part from `first` to before `end`."""
    return BundlePart(
        part.subscription, part.producer, part.frontier, part.sequences[first:end], part.keys[first:end],
        part.values[first:end], part.timestamps[first:end], part.outside[first:end], part.expires,
    )  # fmt: skip


def oldest_of(part: BundlePart) -> int:
    """The smallest event time of a part, or MAX_TIME."""
    return min(part.timestamps, default=MAX_TIME)


def size_of(part: BundlePart) -> int:
    """Bytes of a part that waits, roughly."""
    return sum(map(len, part.values)) + limits.RECORD_OVERHEAD_BYTES * len(part.values)
