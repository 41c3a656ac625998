"""Ids that outside clients chose: which of them one interval has taken within their slack.

Lives here: one `OutsideIds` per interval.  Rule: of the records with one id on one subscription, the first is taken and
every later one is dropped, until the slack has passed.  Whole ids are compared, and never hashes of them.

Ids are kept in time buckets, a quarter of the slack long.  A bucket has a filter in memory and its exact ids in the store.
It is dropped as a whole, when all its ids are older than the slack.  Ids that may not be in the store's folded tables yet
are in a set.  An id that no filter holds is new.  When a filter says "maybe", the store is asked.  After a restart the
filters are filled again while work goes on, and until then the store is asked about every id.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from millwheel import limits
from millwheel.bundles import OutsideBucket, OutsideIdWrites, expired_rows
from millwheel.core.ids.filters import Digests, NameFilter, filter_of_ids
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.model import MAX_TIME


class Bucket(msgspec.Struct):
    """The ids of one subscription that expire together.  `unread`: an earlier owner's are not in the filter yet, but
    for those up to `after`; `count` is how many rows it has in the store, at most."""

    filter: NameFilter
    count: int = 0
    unread: bool = False
    after: bytes = b""


class OutsideIds:
    """The ids that one interval has taken.  `slacks` maps a subscription to its slack, us."""

    def __init__(self, slacks: Mapping[SubscriptionId, int], stored: Iterable[OutsideBucket] = ()) -> None:
        self._slacks = slacks
        self._buckets: dict[tuple[SubscriptionId, int], Bucket] = {
            (bucket.subscription, bucket.expires): Bucket(
                filter_of_ids(bucket.count), bucket.count, bucket.subscription in slacks
            )
            for bucket in stored
        }
        self._to_read = deque(place for place, bucket in self._buckets.items() if bucket.unread)
        self._recent: dict[SubscriptionId, set[bytes]] = {subscription: set() for subscription in slacks}
        """Ids that were taken, and may not be in the store's folded tables yet."""
        self._folds = 0
        self._asked: dict[IntervalId, int] = {}
        """Sender to the number of folds when the store was asked for ids of its bundle."""
        self._leaving: deque[tuple[int, SubscriptionId, list[bytes]]] = deque()
        self._debts: dict[SubscriptionId, int] = {}
        """How many expired ids the store still has, at most, with one more for each bucket."""
        self._deleting: dict[SubscriptionId, int] = {}
        """What of that the fold may delete that is to come."""
        self._hashed: tuple[Sequence[bytes], Digests] | None = None
        self.next_expiry = min((expires for _, expires in self._buckets), default=MAX_TIME)
        """Wall time at which a bucket goes next, us."""

    # --- arrivals ---------------------------------------------------------------------------------------------

    def unsure(self, subscription: SubscriptionId, ids: Sequence[bytes], now: int) -> list[bytes]:
        """Those of `ids` about which the store must be asked; none if memory knows all of them.

        The question also names ids that memory knows, because memory may forget them before the answer comes.
        """
        self.expire(now)
        hashes = self._hash(ids)
        maybe: set[int] = set()
        for (owner, _), bucket in self._buckets.items():
            if owner != subscription:
                continue
            if bucket.unread:
                maybe.update(range(len(ids)))
                break
            maybe.update(bucket.filter.maybe(hashes))
        found = [ids[i] for i in sorted(maybe)]
        return [] if self._recent[subscription].issuperset(found) else found

    def _hash(self, ids: Sequence[bytes]) -> Digests:
        if self._hashed is None or self._hashed[0] is not ids:
            self._hashed = (ids, Digests(ids))
        return self._hashed[1]

    def asked(self, sender: IntervalId) -> None:
        """The store is asked about a bundle of `sender`."""
        self._asked[sender] = self._folds

    def answered(self, sender: IntervalId) -> None:
        """The store has answered, and the ids of the bundle have been taken."""
        self._asked.pop(sender, None)
        self._leave()

    def take(
        self, subscription: SubscriptionId, ids: Sequence[bytes], stored: Collection[bytes], now: int
    ) -> tuple[list[int] | None, int]:
        """Take what is new of `ids`, given what the store has of the unsure ones.

        Returns the positions of what is new, or None for all of it, and the wall time, us, at which it may be forgotten.
        """
        recent = self._recent[subscription]
        expires, bucket = self._bucket(subscription, now)
        bucket.filter.add(self._hash(ids))  # those that turn out to be taken as well: they are in one already
        kept: list[int] | None = None
        if stored or len(set(ids)) < len(ids) or not recent.isdisjoint(ids):
            known = set(stored)
            kept = []
            for i, id_ in enumerate(ids):
                if id_ not in known and id_ not in recent:
                    known.add(id_)
                    kept.append(i)
            ids = [ids[i] for i in kept]
        recent.update(ids)
        bucket.count += len(ids)
        return kept, expires

    def _bucket(self, subscription: SubscriptionId, now: int) -> tuple[int, Bucket]:
        slack = self._slacks[subscription]
        length = -(-slack // limits.OUTSIDE_BUCKETS)
        expires = (now // length + 1) * length + slack
        bucket = self._buckets.get((subscription, expires))
        if bucket is None:
            expected = max((b.count for (owner, _), b in self._buckets.items() if owner == subscription), default=0)
            bucket = self._buckets[subscription, expires] = Bucket(filter_of_ids(expected))
            self.next_expiry = min(self.next_expiry, expires)
        return expires, bucket

    # --- what the store has -----------------------------------------------------------------------------------

    def folded(self, checkpointed: Iterable[OutsideIdWrites]) -> None:
        """One more fold is done: these ids are in the tables.  It has deleted expired ids if it was to do so."""
        self._folds += 1
        added = Counter[SubscriptionId]()
        deleted: dict[SubscriptionId, None] = {}
        for outside in checkpointed:
            if outside.ids:
                self._leaving.append((self._folds, outside.subscription, outside.ids))
                added[outside.subscription] += len(outside.ids)
            else:
                deleted[outside.subscription] = None
        for subscription in deleted:
            self._deleted(subscription, expired_rows(added[subscription]))
        self._leave()

    def _leave(self) -> None:
        """Forget ids that every answer that is still to come will have seen in the tables."""
        oldest = min(self._asked.values(), default=self._folds)
        while self._leaving and self._leaving[0][0] <= oldest:
            _, subscription, ids = self._leaving.popleft()
            self._recent[subscription].difference_update(ids)

    def unread(self) -> tuple[SubscriptionId, int, bytes] | None:
        """(subscription, expires, after): of which bucket to read the next ids, those after one that was read."""
        while self._to_read:
            place = self._to_read[0]
            bucket = self._buckets.get(place)
            if bucket is not None and bucket.unread:
                return *place, bucket.after
            self._to_read.popleft()
        return None

    def read(self, subscription: SubscriptionId, expires: int, ids: Sequence[bytes]) -> None:
        """The next ids of a bucket, fewer than `OUTSIDE_READ_IDS` when these are the last."""
        bucket = self._buckets.get((subscription, expires))
        if bucket is None:
            return  # it expired meanwhile
        if ids:
            bucket.filter.add(Digests(ids))
            bucket.after = ids[-1]
        bucket.unread = len(ids) >= limits.OUTSIDE_READ_IDS

    # --- expiry -----------------------------------------------------------------------------------------------

    def expire(self, now: int) -> int:
        """Drop buckets whose time has passed; returns when the next one goes.  Their ids in the store are deleted later."""
        if now < self.next_expiry:
            return self.next_expiry
        for subscription, expires in [place for place in self._buckets if place[1] <= now]:
            count = self._buckets.pop((subscription, expires)).count
            self._debts[subscription] = self._debts.get(subscription, 0) + 1 + count
        self.next_expiry = min((expires for _, expires in self._buckets), default=MAX_TIME)
        return self.next_expiry

    def owes(self, now: int) -> bool:
        """True when the store has ids of dropped buckets, and is not deleting any."""
        if now >= self.next_expiry:
            self.expire(now)
        return not self._debts.keys() <= self._deleting.keys()

    def cleaning(self, now: int) -> list[OutsideIdWrites]:
        """What to put in a checkpoint so that its fold deletes expired ids, a bounded number of them."""
        if not self.owes(now):
            return []
        owed = sorted(self._debts.keys() - self._deleting.keys())
        self._deleting.update((subscription, self._debts[subscription]) for subscription in owed)
        return [OutsideIdWrites(subscription, now, []) for subscription in owed]

    def _deleted(self, subscription: SubscriptionId, rows: int) -> None:
        """Up to so many of those are gone that had expired when the fold was told to delete some."""
        self._debts[subscription] -= min(rows, self._deleting.pop(subscription))
        if not self._debts[subscription]:
            del self._debts[subscription]

    def size(self) -> int:
        """Ids in memory one by one."""
        return sum(map(len, self._recent.values()))
