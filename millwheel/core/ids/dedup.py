"""Which record ids an interval has already consumed (§6.1.1).

Lives here: one `DeliveredIds` per interval.  Rules:

* an id below its producer's frontier is a duplicate;
* an id that was added is a duplicate until the frontier passes it;
* every other id is new.

Recent ids are exact.  They lie in *runs*: two numbers where the ids are dense, eight bytes an id where they are not.  At the
end of a time bucket, runs whose ids are all in the store's folded tables are *sealed*.  One Bloom filter per bucket then
stands for them in memory.  It holds blocks of 1,024 ids, because one operation on it costs 7 to 9 us.  The store must be
asked where a filter says "maybe", and about ids that an earlier owner consumed: `unsure` says which.  A filter is dropped as
a whole when the frontiers have passed everything in it.

A producer has *ended* when its frontier is `ENDED`.  Then only its number is kept, and whatever still comes in its name is
refused as long as the interval has this owner.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec
from pybloom_live import BloomFilter

from millwheel import limits
from millwheel.bundles import Ids
from millwheel.core.ids.ended import ENDED, EndedProducers
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId
from millwheel.limits import LIST_LIMIT_IDS, LONG_RUN_BLOCKS, SHORT_RUN_IDS

BLOCK_BITS: Final = 10


Channel = tuple[SubscriptionId, ProducerId]
"""(subscription, producer)."""


class IdRun(msgspec.Struct, gc=False):
    """Ids that came one after the other: all from `first` to `last`, or those in `ids`.

    `added` is how many ids the channel had, the newest of these included.  The run is folded when as many are folded.
    """

    first: SequenceNumber
    last: SequenceNumber
    added: int
    ids: array[int] | None = None

    def blocks(self, frontier: SequenceNumber) -> set[int]:
        """Blocks of the ids from `frontier` on."""
        if self.ids is None:
            return set(range(max(self.first, frontier) >> BLOCK_BITS, (self.last >> BLOCK_BITS) + 1))
        return {sequence >> BLOCK_BITS for sequence in self.ids if sequence >= frontier}

    def is_long(self) -> bool:
        """Cheaper as it is than in a filter."""
        return self.ids is None and self.last - self.first >= LONG_RUN_BLOCKS << BLOCK_BITS


class Seen(msgspec.Struct, gc=False):
    """Ids of one (subscription, producer): collected below `frontier`, none above `top`."""

    frontier: SequenceNumber = SequenceNumber(0)
    top: SequenceNumber = SequenceNumber(-1)
    stored: SequenceNumber = SequenceNumber(-1)
    """Up to here an earlier owner may have consumed any id: the store knows."""
    sealed: SequenceNumber = SequenceNumber(-1)
    """The highest id in a filter."""
    added: int = 0
    folded: int = 0
    """How many ids were added, and how many of them, the earliest, are in the store's folded tables."""
    runs: deque[IdRun] = msgspec.field(default_factory=deque)
    """In the order in which they came, which nearly always is ascending."""

    def exact(self, sequences: Sequence[SequenceNumber]) -> set[int]:
        """Every one of the ascending `sequences` that is in a run, and maybe other ids of runs."""
        found: set[int] = set()
        for run in self.runs:
            if run.first > sequences[-1] or run.last < sequences[0]:
                continue
            if run.ids is None:
                found.update(sequences[bisect_left(sequences, run.first) : bisect_right(sequences, run.last)])
            else:
                found.update(run.ids)
        return found

    def add(self, sequences: Sequence[SequenceNumber]) -> None:
        """Ascending `sequences` are consumed now."""
        first, last, count = sequences[0], sequences[-1], len(sequences)
        dense = last - first + 1 == count
        self.added += count
        self.top = max(self.top, last)
        run = self.runs[-1] if self.runs else None
        if run is not None and dense and run.ids is None and first == run.last + 1:
            run.last, run.added = last, self.added
        elif run is not None and _lists(run, count):
            ids = run.ids = array("q", range(run.first, run.last + 1)) if run.ids is None else run.ids
            ids.extend(sequences)
            run.first, run.last, run.added = min(run.first, first), max(run.last, last), self.added
        else:
            self.runs.append(IdRun(first, last, self.added, None if dense else array("q", sequences)))

    def take_folded(self) -> set[int]:
        """The blocks to seal: those of folded runs, which are forgotten here.  Long dense runs stay."""
        kept, blocks = [], set[int]()
        while self.runs and self.runs[0].added <= self.folded:
            run = self.runs.popleft()
            if run.is_long():
                kept.append(run)
            elif run.last >= self.frontier:
                blocks |= run.blocks(self.frontier)
                self.sealed = max(self.sealed, run.last)
        self.runs.extendleft(reversed(kept))
        return blocks


GONE: Final = Seen(ENDED)
"""Of every channel on which nothing is new any more; it is shared, and never changed."""


def _lists(run: IdRun, count: int) -> bool:
    """Whether `count` more ids, which do not go on where the run ends, are listed with it."""
    if run.ids is None:
        return run.last - run.first + 1 < SHORT_RUN_IDS and count <= LIST_LIMIT_IDS
    return len(run.ids) + count <= LIST_LIMIT_IDS


class Sealed(msgspec.Struct, gc=False):
    """The filter of one time bucket; `tops` has the highest id of each channel that it still stands for."""

    filter: BloomFilter
    tops: dict[Channel, SequenceNumber]


class DeliveredIds:
    """The ids one interval has consumed, per (subscription, producer).

    A channel is retired when its producer is numbered below `horizon` and the channel is not in `live`.  Whatever still
    comes on a retired channel is refused.  So is what comes on a channel whose
    producer has ended.
    """

    def __init__(self, live: Collection[Channel] = (), horizon: int = 0) -> None:
        self._channels: dict[Channel, Seen] = {}
        self._ended = EndedProducers()
        self._sealed: list[Sealed] = []
        self._bucket: int | None = None
        self._live = {*live}
        self._horizon = horizon

    def restore(
        self, subscription: SubscriptionId, producer: ProducerId, frontier: SequenceNumber, top: SequenceNumber
    ) -> None:
        """An earlier owner consumed ids up to `top`; which, the store knows."""
        seen = self._seen((subscription, producer))
        if seen is not GONE:
            seen.stored = max(seen.stored, top)
            seen.top = max(seen.top, top)
            self.advance(subscription, producer, frontier)

    def _seen(self, channel: Channel) -> Seen:
        """What is known of a channel, which is new if nothing is; `GONE` if nothing may come on it any more."""
        seen = self._channels.get(channel)
        if seen is None:
            seen = GONE if self._is_gone(channel) else self._channels.setdefault(channel, Seen())
        return seen

    def _is_gone(self, channel: Channel) -> bool:
        return channel in self._ended or (channel[1] < self._horizon and channel not in self._live)

    def fresh(
        self,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
        stored: Collection[int] = (),
    ) -> list[int] | None:
        """Positions of new ids in ascending `sequences`; None when all are new (the fast path).

        `stored` is what the store has of the ids that `unsure` named.  Before it was asked, they count as new.
        """
        seen = self._channels.get((subscription, producer)) or self._seen((subscription, producer))
        frontier = seen.frontier
        if not sequences or (sequences[0] > seen.top and sequences[0] >= frontier):
            return None
        known = seen.exact(sequences)
        known.update(stored)
        return [i for i, sequence in enumerate(sequences) if sequence >= frontier and sequence not in known]

    def unsure(
        self, subscription: SubscriptionId, producer: ProducerId, sequences: Sequence[SequenceNumber]
    ) -> list[SequenceNumber]:
        """Those of `sequences` about which the store must be asked; `fresh` takes them for new."""
        channel = (subscription, producer)
        seen = self._seen(channel)
        maybe: dict[int, bool] = {}
        found = []
        for sequence in sequences:
            block = sequence >> BLOCK_BITS
            if sequence <= seen.stored:
                found.append(sequence)
            elif sequence <= seen.sealed:
                if block not in maybe:
                    maybe[block] = self._maybe(channel, block)
                if maybe[block]:
                    found.append(sequence)
        return found

    def _maybe(self, channel: Channel, block: int) -> bool:
        return any(channel in sealed.tops and _name(channel, block) in sealed.filter for sealed in self._sealed)

    def restored(self, subscription: SubscriptionId, producer: ProducerId) -> SequenceNumber:
        """Up to here the store is asked because of an earlier owner, above it because of a filter."""
        return self._seen((subscription, producer)).stored

    def add(self, subscription: SubscriptionId, producer: ProducerId, sequences: Sequence[SequenceNumber]) -> None:
        """Mark ascending `sequences`, which were fresh, as consumed."""
        if sequences:
            self._seen((subscription, producer)).add(sequences)

    def advance(self, subscription: SubscriptionId, producer: ProducerId, frontier: SequenceNumber) -> None:
        """The sender will never retry below `frontier`: collect those ids."""
        if frontier <= 0:
            return
        channel = (subscription, producer)
        seen = self._seen(channel)
        if frontier <= seen.frontier:
            return
        in_filters = seen.sealed >= seen.frontier
        seen.frontier = frontier
        while seen.runs and seen.runs[0].last < frontier:
            seen.runs.popleft()
        if in_filters:
            self._drop_filters(channel, frontier)
        if frontier == ENDED:
            self._ended.add(*channel)
            del self._channels[channel]
            self._live.discard(channel)

    def _drop_filters(self, channel: Channel, frontier: SequenceNumber) -> None:
        for sealed in self._sealed:
            if sealed.tops.get(channel, frontier) < frontier:
                del sealed.tops[channel]
        self._sealed = [sealed for sealed in self._sealed if sealed.tops]

    def doubts(self, channel: Channel) -> bool:
        """Whether everything on a channel is refused only because nobody has named it, and nothing of it is known."""
        if channel in self._channels or channel in self._live:
            return False
        return channel[1] < self._horizon and channel not in self._ended

    def end_all(self, channels: Iterable[Channel]) -> None:
        """Nothing on these channels is new, whatever `expect` says later."""
        for channel in channels:
            self.end(channel)

    def end(self, channel: Channel) -> None:
        """Nothing on this channel is new, whatever `expect` says later."""
        self._ended.add(*channel)
        self._live.discard(channel)

    def expect(self, channels: Iterable[Channel]) -> None:
        """On these something may still come after all."""
        self._live |= {*channels}

    def frontier(self, subscription: SubscriptionId, producer: ProducerId) -> SequenceNumber:
        """The highest frontier advertised on this channel; `ENDED` if nothing may come on it any more."""
        seen = self._channels.get((subscription, producer))
        if seen is not None:
            return seen.frontier
        return ENDED if self._is_gone((subscription, producer)) else SequenceNumber(0)

    def folded(self, checkpointed: Iterable[Ids]) -> None:
        """The ids of one more checkpoint are folded.  Those of a channel come in the order in which they were added."""
        for ids in checkpointed:
            seen = self._channels.get((ids.subscription, ids.producer))
            if seen is not None:  # else its producer has ended since
                seen.folded += len(ids.sequences)

    def seal(self, now: int) -> None:
        """When the bucket of wall time `now`, us, is another one: put what is folded into a filter.

        Time only paces this: an id is never sealed before the store can be asked for it.
        """
        bucket = now // limits.ID_BUCKET_US
        if bucket == self._bucket:
            return
        turned, self._bucket = self._bucket is not None, bucket
        if not turned:
            return
        blocks = {channel: found for channel, seen in self._channels.items() if (found := seen.take_folded())}
        if not blocks:
            return
        filter_ = BloomFilter(sum(map(len, blocks.values())), limits.ID_FILTER_ERROR_RATE)
        for channel, numbers in blocks.items():
            for number in sorted(numbers):
                filter_.add(_name(channel, number), skip_check=True)
        self._sealed.append(Sealed(filter_, {channel: self._channels[channel].sealed for channel in blocks}))

    def channels(self) -> list[Channel]:
        """Those on which ids were consumed, and whose producers have not ended."""
        return [*self._channels]

    def size(self) -> int:
        """Ids that are listed in memory one by one."""
        return sum(len(run.ids) for seen in self._channels.values() for run in seen.runs if run.ids is not None)

    def filters(self) -> int:
        """Filters in memory."""
        return len(self._sealed)


def _name(channel: Channel, block: int) -> str:
    return f"{channel[0]}.{channel[1]}.{block}"
