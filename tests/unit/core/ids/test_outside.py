"""Ids that outside clients chose, against plain sets: an id is taken once in its slack, whatever was folded or lost."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from millwheel import limits
from millwheel.bundles import OutsideBucket, OutsideIdWrites, expired_rows
from millwheel.core.durability.epoch_image import EpochImage
from millwheel.core.ids.outside import OutsideIds
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.model import MAX_TIME
from millwheel.ports import IntervalRow
from millwheel_storage.fold import fold
from millwheel_storage.memory.tables import MemoryTables

SLACK = 400
SUBSCRIPTIONS = {SubscriptionId(1): SLACK, SubscriptionId(2): 2 * SLACK}

TINY: dict[str, Any] = {
    "OUTSIDE_FILTER_IDS": 1,
    "OUTSIDE_FILTER_BITS": 1,
    "OUTSIDE_READ_IDS": 3,
    "OUTSIDE_DELETE_ROWS": 2,
}
"""Filters that are wrong half of the time, and everything in small steps."""

subscriptions = st.sampled_from([1, 2])
senders = st.sampled_from([7, 8])
bundles = st.lists(st.integers(0, 9).map(lambda n: b"%d" % n), min_size=1, max_size=4)


class Asked:
    """A bundle that waits: what the store had when it was asked, or will be asked."""

    def __init__(self, subscription: SubscriptionId, ids: list[bytes], answer: set[bytes]) -> None:
        self.subscription = subscription
        self.ids = ids
        self.answer = answer


class Model(RuleBasedStateMachine):
    """One interval: `taken` is the truth, id to the wall time at which it was taken and at which it may be forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self._limits = patch.multiple(limits, **TINY)
        self._limits.start()
        self.now = 1_000
        self.ids = OutsideIds(SUBSCRIPTIONS)
        self.taken: dict[int, dict[bytes, tuple[int, int]]] = {1: {}, 2: {}}
        self.unfolded: list[OutsideIdWrites] = []
        self.store: dict[tuple[SubscriptionId, int], set[bytes]] = {}
        self.counts: dict[tuple[SubscriptionId, int], int] = {}
        self.waiting: dict[int, Asked] = {}

    def teardown(self) -> None:
        self._limits.stop()

    @precondition(lambda self: len(self.waiting) < 2)
    @rule(subscription=subscriptions, sender=senders, ids=bundles)
    def arrive(self, subscription: SubscriptionId, sender: IntervalId, ids: list[bytes]) -> None:
        if sender in self.waiting:
            return
        asked = self.ids.unsure(subscription, ids, self.now)
        if not asked:
            self.take(subscription, ids, set())
            return
        self.ids.asked(sender)
        buckets = (ids for (owner, expires), ids in self.store.items() if owner == subscription and expires > self.now)
        self.waiting[sender] = Asked(subscription, ids, set(asked).intersection(*[set().union(*buckets)]))

    @rule(sender=senders)
    def answer(self, sender: IntervalId) -> None:
        """Much may have happened since the store was asked."""
        if sender in self.waiting:
            asked = self.waiting.pop(sender)
            self.take(asked.subscription, asked.ids, asked.answer)
            self.ids.answered(sender)

    def take(self, subscription: SubscriptionId, ids: list[bytes], stored: set[bytes]) -> None:
        recent = set(self.ids._recent[subscription])  # not folded yet, or only just: remembered as long as that takes
        kept, expires = self.ids.take(subscription, ids, stored, self.now)
        new = ids if kept is None else [ids[i] for i in kept]
        assert len(set(new)) == len(new)
        assert expires - SUBSCRIPTIONS[subscription] > self.now
        taken = self.taken[subscription]
        for id_ in ids:
            at, until = taken.get(id_, (-MAX_TIME, -MAX_TIME))
            if self.now - at <= SUBSCRIPTIONS[subscription]:
                assert id_ not in new, "taken twice within its slack"
            elif self.now >= until and id_ not in recent | stored:
                assert id_ in new, "remembered for longer than its bucket"
        taken.update((id_, (self.now, expires)) for id_ in new)
        if new:
            self.unfolded.append(OutsideIdWrites(subscription, expires, new))

    @rule(checkpoints=st.integers(1, 4))
    def fold(self, checkpoints: int) -> None:
        folded, self.unfolded = self.unfolded[:checkpoints], self.unfolded[checkpoints:]
        self._fold(folded)
        self.ids.folded(folded)

    def _fold(self, folded: list[OutsideIdWrites]) -> None:
        expired = {}
        added = Counter[SubscriptionId]()
        for outside in folded:
            added[outside.subscription] += len(outside.ids)
            place = (outside.subscription, outside.expires)
            if outside.ids:
                self.store.setdefault(place, set()).update(outside.ids)
                self.counts[place] = self.counts.get(place, 0) + len(outside.ids)
            else:
                expired[outside.subscription] = outside.expires
        for subscription, now in expired.items():
            rows = expired_rows(added[subscription])
            for place in sorted(p for p in self.store if p[0] == subscription and p[1] <= now):
                gone = sorted(self.store[place])[:rows]
                rows -= len(gone)
                self.store[place].difference_update(gone)
                if not self.store[place]:
                    del self.store[place], self.counts[place]

    @rule(by=st.integers(1, SLACK // 2))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule()
    def read(self) -> None:
        place = self.ids.unread()
        if place is not None:
            subscription, expires, after = place
            stored = sorted(id_ for id_ in self.store.get((subscription, expires), ()) if id_ > after)
            self.ids.read(subscription, expires, stored[: limits.OUTSIDE_READ_IDS])

    @rule()
    def clean(self) -> None:
        self.unfolded += self.ids.cleaning(self.now)

    @rule()
    def restart(self) -> None:
        """Everything that was committed is folded; bundles that wait come again."""
        self._fold(self.unfolded)
        self.unfolded, self.waiting = [], {}
        self.ids = OutsideIds(SUBSCRIPTIONS, [OutsideBucket(*p, self.counts[p]) for p in sorted(self.store)])

    @precondition(lambda self: self.now > 10 * SLACK)
    @rule()
    def everything_expires(self) -> None:
        """Long after, nothing is left."""
        self.now += 4 * SLACK
        for sender in list(self.waiting):
            self.answer(sender)
        self.now += 4 * SLACK
        for _ in range(200):
            self.unfolded += self.ids.cleaning(self.now)
            if not self.unfolded:
                break
            self.fold(len(self.unfolded))
        assert self.store == {}
        assert self.ids.size() == 0
        assert self.ids.next_expiry == MAX_TIME


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=80)


def take(ids: OutsideIds, *given: bytes, now: int = 0, stored: tuple[bytes, ...] = ()) -> list[bytes]:
    asked = list(given)
    kept, _ = ids.take(SubscriptionId(1), asked, stored, now)
    return asked if kept is None else [asked[i] for i in kept]


def test_of_two_records_with_one_id_in_a_bundle_the_first_is_taken() -> None:
    ids = OutsideIds({SubscriptionId(1): SLACK})
    assert take(ids, b"a", b"b", b"a") == [b"a", b"b"]
    assert take(ids, b"b", b"c") == [b"c"]


def test_an_id_stays_in_memory_until_every_question_that_is_older_than_its_fold_is_answered() -> None:
    ids = OutsideIds({SubscriptionId(1): SLACK})
    ids.asked(IntervalId(7))  # the store is asked before the fold, and answers after it that it has nothing
    assert take(ids, b"a") == [b"a"]
    ids.folded([OutsideIdWrites(SubscriptionId(1), 500, [b"a"])])
    assert take(ids, b"a") == []
    ids.answered(IntervalId(7))
    assert ids.size() == 0


def test_what_memory_knew_when_the_store_was_asked_is_asked_for_too() -> None:
    # It was left out of the question; until the answer came memory had forgotten it, and it was taken again.
    ids = OutsideIds({SubscriptionId(1): SLACK}, [OutsideBucket(SubscriptionId(1), 300, 1)])
    ids.asked(IntervalId(8))
    assert take(ids, b"a") == [b"a"]
    ids.folded(
        [OutsideIdWrites(SubscriptionId(1), 500, [b"a"])]
    )  # it stays in memory, because the question about 8 is older
    asked = ids.unsure(SubscriptionId(1), [b"a", b"b"], 0)
    ids.asked(IntervalId(7))
    ids.answered(IntervalId(8))
    assert asked == [b"a", b"b"]
    assert take(ids, b"a", b"b", stored=(b"a",)) == [b"b"]


def test_after_a_restart_every_id_is_asked_for_until_the_filters_are_filled_again() -> None:
    with patch.multiple(limits, OUTSIDE_READ_IDS=2):
        ids = OutsideIds(
            {SubscriptionId(1): SLACK},
            [OutsideBucket(SubscriptionId(1), 600, 3), OutsideBucket(SubscriptionId(1), 700, 0)],
        )
        assert ids.unsure(SubscriptionId(1), [b"a", b"z"], 0) == [b"a", b"z"]
        assert ids.unread() == (1, 600, b"")
        ids.read(SubscriptionId(1), 600, [b"a", b"b"])
        assert ids.unread() == (1, 600, b"b")
        ids.read(SubscriptionId(1), 600, [b"c"])
        assert ids.unread() == (1, 700, b"")
        ids.read(SubscriptionId(1), 700, [])
        assert ids.unread() is None
        assert ids.unsure(SubscriptionId(1), [b"c", b"z"], 0) == [b"c"]


@pytest.mark.parametrize("now", [99, 100, 450, 499])
def test_an_id_is_remembered_for_its_slack_and_a_bucket_more_at_most(now: int) -> None:
    ids = OutsideIds({SubscriptionId(1): SLACK})
    assert take(ids, b"a", now=99) == [b"a"]
    ids.folded([OutsideIdWrites(SubscriptionId(1), 500, [b"a"])])
    assert ids.unsure(SubscriptionId(1), [b"a"], now) == [b"a"]
    assert ids.unsure(SubscriptionId(1), [b"a"], 500) == []
    assert ids.owes(500)


@pytest.mark.parametrize("unread", [(), (500,), (700,), (800,), (600, 700)])
def test_ids_of_all_buckets_of_their_subscription_are_asked_for(unread: tuple[int, ...]) -> None:
    stored = {500: b"a", 600: b"b", 700: b"c", 800: b"d"}
    owners = {1: stored, 2: {expires: b"other " + id_ for expires, id_ in stored.items()}}
    places = [(SubscriptionId(number), expires) for expires in stored for number in (2, 1)]  # in the order of the slack
    ids = OutsideIds(SUBSCRIPTIONS, [OutsideBucket(*place, 1) for place in places])
    for subscription, expires in places:
        if expires not in unread:
            ids.read(subscription, expires, [owners[subscription][expires]])
    for number, of in owners.items():
        asked = [*owners[3 - number].values(), b"none", *of.values()]
        wanted = asked if unread else [*of.values()]
        assert ids.unsure(SubscriptionId(number), asked, 499) == wanted
        if not unread:
            assert [ids.unsure(SubscriptionId(number), [id_], 499) for id_ in of.values()] == [
                [id_] for id_ in of.values()
            ]


def test_a_subscription_that_has_ids_no_longer_is_only_cleaned() -> None:
    ids = OutsideIds({}, [OutsideBucket(SubscriptionId(9), 600, 1)])
    assert ids.unread() is None
    assert ids.cleaning(599) == []
    assert ids.cleaning(600) == [OutsideIdWrites(SubscriptionId(9), 600, [])]
    assert ids.cleaning(600) == []  # one at a time
    ids.folded([OutsideIdWrites(SubscriptionId(9), 600, [])])
    assert ids.cleaning(600) == []


def test_expired_ids_are_deleted_in_as_many_steps_as_their_number_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTSIDE_DELETE_ROWS", 2)
    ids, subscription = OutsideIds({SubscriptionId(1): SLACK}), SubscriptionId(1)
    taken = [b"a", b"b", b"c", b"d", b"e"]
    assert take(ids, *taken, now=99) == taken
    ids.folded([OutsideIdWrites(subscription, 500, taken)])
    steps = 0
    while ids.cleaning(500):
        ids.folded([OutsideIdWrites(subscription, 500, [])])
        steps += 1
    assert steps == 3


@pytest.mark.parametrize("fold_every", [1, 7, 40], ids=lambda every: f"a fold every {every} steps")
def test_deleting_keeps_up_with_adding_however_seldom_folds_are(
    fold_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under snapshots there is one fold for each epoch.  It added a minute of ids, of many buckets, and deleted 16,384."""
    monkeypatch.setattr(limits, "OUTSIDE_DELETE_ROWS", 2)
    subscription, store, row = SubscriptionId(1), MemoryTables(), IntervalRow(IntervalId(1), "a", "", None)
    ids, image, left = OutsideIds({subscription: SLACK}), list[OutsideIdWrites](), list[int]()
    for now in range(0, 40 * SLACK, 20):
        taken = [b"%d.%d" % (now, n) for n in range(5)]
        _, expires = ids.take(subscription, taken, (), now)
        image += [OutsideIdWrites(subscription, expires, taken), *ids.cleaning(now)]
        if now // 20 % fold_every == 0:
            store.apply(row, fold([msgspec.structs.replace(EpochImage().image(0), outside=image)]), {})
            ids.folded(image)
            image = []
            left.append(sum(map(len, store.outside.values())))
    within = 5 * (SLACK + SLACK // limits.OUTSIDE_BUCKETS) // 20
    assert max(left) <= within + 3 * 5 * fold_every


def test_an_id_stays_in_memory_until_the_oldest_of_several_questions_is_answered() -> None:
    """The newer question would find it in the tables, and the older one has not: its record would be taken again."""
    ids, older, newer = OutsideIds({SubscriptionId(1): SLACK}), IntervalId(7), IntervalId(8)
    ids.asked(older)
    assert take(ids, b"a") == [b"a"]
    ids.folded([OutsideIdWrites(SubscriptionId(1), 500, [b"a"])])
    ids.asked(newer)
    ids.folded([])
    assert take(ids, b"a") == []
    ids.answered(newer)
    assert take(ids, b"a") == []
    ids.answered(older)
    assert ids.size() == 0


def test_of_the_buckets_of_an_earlier_owner_the_first_expires_first() -> None:
    subscription = SubscriptionId(1)
    ids = OutsideIds({subscription: SLACK}, [OutsideBucket(subscription, expires, 1) for expires in (700, 600, 800)])
    assert ids.next_expiry == 600
    assert ids.owes(600)
    assert ids.next_expiry == 700
    assert ids.cleaning(600) == [OutsideIdWrites(subscription, 600, [])]


def test_a_fold_that_adds_many_ids_has_deleted_as_many_more() -> None:
    """What it has deleted is not asked to be deleted again: each time is a row in the log."""
    ids, subscription, count = OutsideIds({SubscriptionId(1): SLACK}), SubscriptionId(1), limits.OUTSIDE_DELETE_ROWS
    old = [b"%d" % n for n in range(count + 1)]
    take(ids, *old, now=99)
    ids.folded([OutsideIdWrites(subscription, 500, old)])
    new = [b"new %d" % n for n in range(count)]
    take(ids, *new, now=500)
    (cleaning,) = ids.cleaning(500)
    ids.folded([OutsideIdWrites(subscription, 900, new), cleaning])
    assert not ids.owes(500)
