"""Timers in memory and in the store, together, against a plain dict."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from itertools import chain
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.bundles import BEFORE_TIMERS, TimerPlace, TimerWrites
from millwheel.core.keys.timers import TimerQueue
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG

KEYS = ["", "a", "b", "c", "d", "e"]
KINDS = ["watermark", "wall"]
TAGS = ["t", "u"]
Name = tuple[str, str, str]
"""(key, kind, tag)."""


def fill(queue: TimerQueue, timers: dict[Name, int]) -> None:
    for name, time in timers.items():
        queue.set(*name, time)


names = st.tuples(st.sampled_from(KEYS), st.sampled_from(KINDS), st.sampled_from(TAGS))
times = st.integers(-3, 12)


@given(st.dictionaries(names, times), st.integers(1, 4))
def test_each_timer_comes_out_once_in_order_and_never_early(timers: dict[Name, int], limit: int) -> None:
    queue = TimerQueue()
    fill(queue, timers)
    assert len(queue) == len(timers)
    for kind in KINDS:
        expected = sorted((t, (key, tag)) for (key, k, tag), t in timers.items() if k == kind)
        assert queue.pop_due(kind, 0, limit) == [row for row in expected if row[0] <= 0][:limit]
        queue.pop_due(kind, 0, 99)
        assert queue.minimum(kind) == min((t for t, _ in expected if t > 0), default=None)
        assert queue.pop_due(kind, 99, 99) == [row for row in expected if row[0] > 0]
    assert not any(queue.pending(key) for key in KEYS)
    assert len(queue) == 0


def test_timers_of_a_key() -> None:
    queue = TimerQueue()
    fill(queue, {("k", "watermark", "a"): 7, ("k", "wall", "a"): 3, ("other", "wall", "a"): 1})
    queue.set("k", EXPIRY_KIND, EXPIRY_TAG, 1)
    assert dict(queue.of("k")) == {("watermark", "a"): 7, ("wall", "a"): 3}
    assert (queue.next_of(["k"], 99), queue.expiry("k"), queue.expiry("other")) == ([3], 1, None)
    queue.remove("k", "wall", "a")
    queue.remove("k", "wall", "never set")
    assert queue.next_of(["k", "nobody"], 99) == [7, 99]
    assert queue.first("watermark") == ("k", "a")
    queue.remove("k", "watermark", "a")
    assert not queue.pending("k")  # an expiry does not count


@contextlib.contextmanager
def small(page: int, memory: int) -> Iterator[None]:
    with patch.object(limits, "TIMER_PAGE_ROWS", page), patch.object(limits, "TIMERS_IN_MEMORY", memory):
        yield


class Paged:
    """An interval's timers as `IntervalCore` uses them: hooks see keys that are loaded, a fold makes the tables right,
    clean keys are evicted, a page is on its way for a while.

    `truth` is what hooks have set, `tables` what is folded; who is `here` has its state in memory, and is `dirty` when
    something of it is not folded.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.here: set[str] = set()
        self.dirty: set[str] = set()
        self.asleep = set(rng.sample(KEYS, rng.choice([0, 0, 2])))
        self.now = dict.fromkeys([*KINDS, EXPIRY_KIND], -5)
        self.page: tuple[str, TimerWrites, bool] | None = None
        self.queue = TimerQueue()
        places = [(key, kind, tag) for key in KEYS for kind in KINDS for tag in TAGS]
        places += [(key, EXPIRY_KIND, EXPIRY_TAG) for key in KEYS]
        self.tables = {name: self.time() for name in rng.sample(places, rng.randrange(len(places)))}
        self.truth = dict(self.tables)
        pages = {kind: self.read(kind, BEFORE_TIMERS) for kind in self.now}
        columns: list[list[Any]] = [
            [*chain(*parts)] for parts in zip(*(rows_of(p) for p, _ in pages.values()), strict=True)
        ]
        self.queue.restore(TimerWrites(*columns), [kind for kind, (_, more) in pages.items() if more])
        for key in sorted(self.asleep):
            self.queue.sleep(key)

    def time(self) -> int:
        return self.rng.randrange(-3, 30)

    def key(self) -> str:
        return self.rng.choice(KEYS)

    def read(self, kind: str, after: TimerPlace) -> tuple[TimerWrites, bool]:
        """What the store answers."""
        stored = sorted((t, (key, tag)) for (key, k, tag), t in self.tables.items() if k == kind)
        rows = [row for row in stored if row > after][: limits.TIMER_PAGE_ROWS]
        page = TimerWrites(
            [key for _, (key, _) in rows], [tag for _, (_, tag) in rows], [kind] * len(rows), [t for t, _ in rows]
        )
        return page, len(rows) >= limits.TIMER_PAGE_ROWS

    def load(self, key: str) -> None:
        if key in self.here:
            return
        self.here.add(key)
        if not self.queue.complete:
            for (other, kind, tag), time in self.tables.items():
                if other == key:
                    self.queue.recall(key, kind, tag, time)

    def hook(self) -> None:
        """A record of a key comes, whose hook sets or cancels a timer; a timer in the past is due at once."""
        key, kind, tag = name = (self.key(), self.rng.choice(KINDS), self.rng.choice(TAGS))
        self.load(key)
        assert self.known(key) == {name for name in self.truth if name[0] == key}, "it knows all of its timers"
        assert all(time == self.truth[key, *place] for place, time in self.queue.of(key))
        assert self.queue.expiry(key) == self.truth.get((key, EXPIRY_KIND, EXPIRY_TAG))
        self.dirty.add(key)
        if self.rng.random() < 0.4:
            self.queue.remove(*name)
            self.truth.pop(name, None)
        else:
            self.truth[name] = self.time()
            self.queue.set(key, kind, tag, self.truth[name])

    def write(self) -> None:
        """State is written, and the expiry of its key moves."""
        key, time = self.key(), self.time()
        self.load(key)
        self.dirty.add(key)
        self.queue.set(key, EXPIRY_KIND, EXPIRY_TAG, time)
        self.truth[key, EXPIRY_KIND, EXPIRY_TAG] = time

    def fire(self) -> None:
        """Time goes on.  Everything that is due and known to the queue fires, in order, and nothing else."""
        kind, limit = self.rng.choice([*self.now]), self.rng.randrange(1, 4)
        now = self.now[kind] = self.now[kind] + self.rng.randrange(3)
        self.pop(kind, now, limit)

    def pop(self, kind: str, now: int, limit: int) -> None:
        due = self.pending(kind, now)
        least = self.queue.minimum(kind)
        pending = self.pending(kind, 99)
        assert not pending or (least is not None and least <= pending[0][0]), "the watermark is honest"
        self.check_reach(kind, now, pending)
        fired = self.queue.pop_due(kind, now, limit)
        assert fired == due[: len(fired)]
        assert len(fired) == min(limit, len(due)) or self.queue.wanted(kind, now), "what is missing is asked for"
        for _, (key, tag) in fired:
            self.load(key)
            assert (key, kind, tag) not in self.known(key), "what was popped does not come back with its key"
            self.dirty.add(key)
            del self.truth[key, kind, tag]

    def check_reach(self, kind: str, now: int, pending: list[TimerPlace]) -> None:
        """What hooks set to a time before that place may fire at once, so nothing that is pending may come before it."""
        first = min([*pending, (now + 1, ("", ""))])
        reach = self.queue.reach(kind, now)
        assert reach <= first
        assert reach == first or not self.queue.complete, "when all is here, the place is the exact one"

    def check_memory(self) -> None:
        """Beyond the end of what was read there are only timers of keys that are in memory."""
        queue = self.queue
        timers = {(key, kind, tag): time for key in KEYS for (kind, tag), time in queue.of(key)}
        timers |= {(key, EXPIRY_KIND, EXPIRY_TAG): time for key in KEYS if (time := queue.expiry(key)) is not None}
        for (key, kind, tag), time in timers.items():
            assert key in self.here or (time, (key, tag)) <= queue._ends.get(kind, (99, ("", "")))

    def known(self, key: str) -> set[Name]:
        expiry = {(key, EXPIRY_KIND, EXPIRY_TAG)} if self.queue.expiry(key) is not None else set()
        return {(key, *name) for name, _ in self.queue.of(key)} | expiry

    def pending(self, kind: str, until: int) -> list[TimerPlace]:
        rows = ((time, (key, tag)) for (key, other, tag), time in self.truth.items() if other == kind)
        return sorted(row for row in rows if row[0] <= until and (kind == EXPIRY_KIND or row[1][0] not in self.asleep))

    def turn(self) -> None:
        """A page is read; what it says is as old as that when it arrives."""
        if self.page is not None:
            self.queue.add_page(*self.page, self.here)
            self.page = None
            return
        kind = self.rng.choice([*self.now])
        after = self.queue.wanted(kind, self.now[kind])
        if after is not None:
            self.page = (kind, *self.read(kind, after))

    def fold(self) -> None:
        """Dirty keys get into the tables."""
        clean = {name: time for name, time in self.tables.items() if name[0] not in self.dirty}
        self.tables = clean | {name: time for name, time in self.truth.items() if name[0] in self.dirty}
        self.dirty.clear()

    def evict(self) -> None:
        """Clean keys may go, unless a page is on its way."""
        if self.page is None:
            gone = [key for key in KEYS if key in self.here - self.dirty and self.rng.random() < 0.7]
            self.here.difference_update(gone)
            self.queue.shed(gone, self.here.__contains__)
            self.check_memory()

    def poison_or_release(self) -> None:
        key = self.key()
        if key in self.asleep:
            self.asleep.discard(key)
            self.queue.wake(key)
        else:
            self.load(key)
            self.asleep.add(key)
            self.queue.sleep(key)

    def drain(self) -> None:
        """With nothing in the way everything comes out, once."""
        for key in sorted(self.asleep):
            self.asleep.discard(key)
            self.queue.wake(key)
        for kind in self.now:
            self.now[kind] = 99
            for _ in range(100):
                self.pop(kind, 99, 3)
                self.fold()
                self.turn()
        assert not self.truth
        assert len(self.queue) == 0


@pytest.mark.parametrize("first", range(0, 1_000, 250))
def test_memory_and_store_together_are_a_dict(first: int) -> None:
    swept = 0
    for seed in range(first, first + 250):
        rng = random.Random(seed)
        with small(rng.randrange(1, 5), rng.randrange(8)):
            paged = Paged(rng)
            steps = [paged.hook, paged.write, paged.fire, paged.turn, paged.fold, paged.evict, paged.poison_or_release]
            for _ in range(150):
                rng.choices(steps, [3, 1, 4, 3, 3, 3, 1])[0]()
                swept += not paged.queue.complete
            paged.drain()
    assert swept > 5_000, "most of the time something was not in memory"


def rows_of(writes: TimerWrites) -> list[list[Any]]:
    return [writes.keys, writes.tags, writes.kinds, writes.timestamps]


def test_memory_holds_a_page_and_the_keys_that_are_in_use() -> None:
    with small(10, 50):
        queue = TimerQueue()
        here: set[str] = set()
        for n in range(1_000):
            key = f"{n:04}"
            queue.set(key, EXPIRY_KIND, EXPIRY_TAG, n)
            here.add(key)
            if len(here) == 20:
                gone = [*here]
                here.clear()
                queue.shed(gone, here.__contains__)
                assert len(queue) <= 50 + 20
        assert not queue.complete
        assert queue.minimum(EXPIRY_KIND) == 0


def test_a_page_of_timers_is_read_when_half_of_the_last_one_has_fired_and_not_before() -> None:
    """What is read early stays in memory: nothing would bound it."""
    queue = TimerQueue()
    with small(page=4, memory=100):
        for page in range(3):
            timers = [(f"k{page}", f"{tag}", 4 * page + tag) for tag in range(4)]
            rows = TimerWrites(
                [key for key, _, _ in timers], [tag for _, tag, _ in timers], [], [at for *_, at in timers]
            )
            queue.add_page("watermark", rows, True, ())
            for tag in range(4):
                assert (queue.wanted("watermark", -1) is not None) is (tag >= 2)
                assert len(queue.pop_due("watermark", 4 * page + tag, 1)) == 1
