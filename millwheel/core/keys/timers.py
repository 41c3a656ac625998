"""Pending timers of an interval (§4.6).

Lives here: which timers are pending, and which are due.  Invariants:

* a (key, kind, tag) is pending at most once, and a timer is never due early;
* timers that are due together come out in (timestamp, key, tag) order;
* timers of a key that sleeps are pending, can be set and cancelled, and are not due.

Not every pending timer is in memory.  For each kind there is an *end*.  All timers up to the end are here.  A timer
beyond the end is here only if the state of its key is in memory too.  Otherwise it lies in the store's tables, which are
right about a key that is not in memory.  The next page is read when the timers up to the end run out.  So all timers of
a key are known when a hook of the key runs, and nothing else is due before the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from heapq import nsmallest

from millwheel import limits
from millwheel.bundles import BEFORE_TIMERS, TimerPlace, TimerWrites
from millwheel.core.keys.minheap import MinHeap
from millwheel.errors import InvariantError
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, MAX_TIME, TIMER_KINDS
from millwheel.work import Stall, TimerId

TimerName = tuple[str, str]
"""(key, tag)."""


class TimerQueue:
    """Timers of one interval, by kind.  A key's expiry is one of a kind of its own, under a tag of its own."""

    def __init__(self) -> None:
        self._heaps: dict[str, MinHeap[TimerName]] = {kind: MinHeap() for kind in TIMER_KINDS}
        self._ends: dict[str, TimerPlace] = {}
        """Kinds of which not every timer is here, and the last place up to which all are."""
        self._popped = dict.fromkeys(TIMER_KINDS, 0)
        """Timers that came due since the last page."""
        self._by_key: dict[str, dict[tuple[str, str], int]] = {}
        """Without expiries."""
        self._asleep: set[str] = set()
        self._sweep_at = limits.TIMERS_IN_MEMORY
        self.stalls: dict[TimerId, Stall] = {}
        """Of pending timers that were due already when a hook of another timer set them."""

    # --- what a key's hooks see and do ------------------------------------------------------------------------

    def set(self, key: str, kind: str, tag: str, timestamp: int) -> None:
        """Set or move a timer."""
        if kind == EXPIRY_KIND:
            self._heaps[kind].set((key, tag), timestamp)
            return
        if key not in self._asleep:
            self._heaps[kind].set((key, tag), timestamp)
        self._by_key.setdefault(key, {})[kind, tag] = timestamp

    def remove(self, key: str, kind: str, tag: str) -> None:
        """Cancel a timer; an unknown one is fine."""
        self._heaps[kind].remove((key, tag))
        self._drop(key, kind, tag)

    def _drop(self, key: str, kind: str, tag: str) -> None:
        timers = self._by_key.get(key)
        if timers is not None:
            timers.pop((kind, tag), None)
            if not timers:
                del self._by_key[key]

    def pending(self, key: str) -> bool:
        """True when `key`, whose state is in memory, has any timer but its expiry."""
        return key in self._by_key

    def of(self, key: str) -> Iterator[tuple[tuple[str, str], int]]:
        """((kind, tag), timestamp) of a key's timers without its expiry; of one whose state is in memory: all."""
        return iter(self._by_key.get(key, {}).items())

    def at(self, key: str, kind: str, tag: str) -> int | None:
        """When a timer that is in memory fires, or None."""
        if kind == EXPIRY_KIND:
            return self._heaps[kind].items.get((key, tag))
        return self._by_key.get(key, {}).get((kind, tag))

    def are_awake(self, timers: TimerWrites) -> bool:
        """Whether these are of one kind, and each of them fires at just that time, or not at all (None).

        It takes a tenth of the time of asking for each.
        """
        kind = timers.kinds[0]
        if timers.kinds.count(kind) < len(timers.kinds):
            return False
        return [*map(self._heaps[kind].items.get, zip(timers.keys, timers.tags, strict=True))] == timers.timestamps

    def expiry(self, key: str) -> int | None:
        """When `key`, whose state is in memory, expires."""
        return self._heaps[EXPIRY_KIND].items.get((key, EXPIRY_TAG))

    def next_of(self, keys: Iterable[str], default: int) -> list[int]:
        """The earliest timestamp of each key's timers of any kind that are here, asleep or not."""
        return [min(timers.values()) if timers else default for timers in map(self._by_key.get, keys)]

    def empty(self) -> bool:
        """No key has a timer here but for its expiry, asleep or not."""
        return not self._by_key

    def sleep(self, key: str) -> None:
        """No timer of `key` is due, or counts for `minimum` and `first`, until `wake`."""
        self._asleep.add(key)
        for (kind, tag), _ in self.of(key):
            self._heaps[kind].remove((key, tag))

    def wake(self, key: str) -> None:
        """The timers of `key` count again; what came due meanwhile is due now."""
        self._asleep.discard(key)
        for (kind, tag), timestamp in self.of(key):
            self._heaps[kind].set((key, tag), timestamp)

    # --- what is due ------------------------------------------------------------------------------------------

    def pop_due(
        self, kind: str, until: int, limit: int, alone: Callable[[int, TimerName], bool] | None = None
    ) -> list[tuple[int, TimerName]]:
        """Remove and return at most `limit` timers of `kind` with timestamp <= `until`, in order.

        A timer for which `alone` is true is returned by itself.
        """
        heap = self._heaps[kind]
        if not heap.items:
            return []
        due = heap.pop_due(until, limit, self._ends.get(kind), alone)
        if kind != EXPIRY_KIND:  # those are in the heap alone
            for _, (key, tag) in due:
                self._drop(key, kind, tag)
        self._popped[kind] += len(due)
        return due

    def may_be_due(self, watermark: int, now: int, expiry: int) -> bool:
        """False when no timer that is here is due by the watermark, the wall time or the time of expiry.

        It costs a fraction of taking what is due, and is asked after each event.
        """
        by_watermark, by_wall, by_expiry = self._heaps.values()
        return bool(
            (by_watermark.items and by_watermark.due(watermark))
            or (by_wall.items and by_wall.due(now))
            or (by_expiry.items and by_expiry.due(expiry))
        )

    def reach(self, kind: str, until: int) -> TimerPlace:
        """The first place at which a timer may be pending that was not taken; nothing before it is due by `until`."""
        place = self._heaps[kind].first_place()
        after: TimerPlace = (until + 1, ("", ""))
        return min([after, *([place] if place else []), *([self._ends[kind]] if kind in self._ends else [])])

    def next_place(self, kind: str) -> TimerPlace | None:
        """The place of the earliest timer of a kind in memory that is awake."""
        return self._heaps[kind].first_place()

    def minimum(self, kind: str) -> int | None:
        """A time before which no timer of a kind is pending; None when none is pending at all."""
        heap = self._heaps[kind]
        if not (heap.items or self._ends):
            return None
        least, end = heap.minimum(), self._ends.get(kind)
        if end is None or (least is not None and least <= end[0]):
            return least
        return end[0]

    def first(self, kind: str) -> TimerName | None:
        """The name of the earliest timer of a kind; None when none is pending, or it is not in memory."""
        heap = self._heaps[kind]
        return heap.first() if heap.due(MAX_TIME, self._ends.get(kind)) else None

    # --- pages of the store -----------------------------------------------------------------------------------

    @property
    def complete(self) -> bool:
        """True when every pending timer is here."""
        return not self._ends

    def wanted(self, kind: str, until: int) -> TimerPlace | None:
        """The place after which the next page of `kind` must be read, or None when it need not be read now.

        It is read when half of the last page has fired, or when something beyond the end may be due by `until`.
        """
        end = self._ends.get(kind)
        if end is None:
            return None
        if 2 * self._popped[kind] >= limits.TIMER_PAGE_ROWS:
            return end
        return end if end[0] <= until and not self._heaps[kind].due(until, end) else None

    def add_page(self, kind: str, page: TimerWrites, more: bool, held: Container[str]) -> None:
        """Add the page after the end; with `more`, others follow.  It is ignored about `held` keys, those in memory."""
        end = self._ends.get(kind, BEFORE_TIMERS)
        for key, tag, timestamp in zip(page.keys, page.tags, page.timestamps, strict=True):
            if timestamp is None:
                raise InvariantError("a stored timer has a time")
            if key not in held:
                self.set(key, kind, tag, timestamp)
            end = max(end, (timestamp, (key, tag)))
        self._popped[kind] = 0
        if more:
            self._ends[kind] = end
        else:
            self._ends.pop(kind, None)

    def recall(self, key: str, kind: str, tag: str, timestamp: int) -> None:
        """Add a timer of a key that is being loaded.  One before the end is here already, or was popped and will fire."""
        end = self._ends.get(kind)
        if end is not None and (timestamp, (key, tag)) > end:
            self.set(key, kind, tag, timestamp)

    def shed(self, gone: Iterable[str], held: Callable[[str], bool]) -> None:
        """The state of `gone` keys has left memory.  If there are many timers, those beyond the end leave too."""
        if len(self) > self._sweep_at:
            self._sweep(held)
        elif self._ends:
            for key in gone:
                for (kind, tag), timestamp in list(self.of(key)):
                    self._forget_far(key, kind, tag, timestamp)
                expiry = self.expiry(key)
                if expiry is not None:
                    self._forget_far(key, EXPIRY_KIND, EXPIRY_TAG, expiry)

    def _forget_far(self, key: str, kind: str, tag: str, timestamp: int) -> None:
        if self._is_far(key, kind, tag, timestamp):
            self.remove(key, kind, tag)

    def _is_far(self, key: str, kind: str, tag: str, timestamp: int) -> bool:
        end = self._ends.get(kind)
        return end is not None and (timestamp, (key, tag)) > end

    def _sweep(self, held: Callable[[str], bool]) -> None:
        """Move the end of each kind back to a page's length.  Forget what is then beyond it, except timers of `held` keys."""
        for kind, heap in self._heaps.items():
            if len(heap) > limits.TIMER_PAGE_ROWS:
                places = ((timestamp, name) for name, timestamp in heap.items.items())
                end = nsmallest(limits.TIMER_PAGE_ROWS, places)[-1]
                self._ends[kind] = min(end, self._ends.get(kind, end))
                self._popped[kind] = 0
        for kind, heap in self._heaps.items():
            far = [n for n, at in heap.items.items() if self._is_far(n[0], kind, n[1], at) and not held(n[0])]
            heap.remove_all(far)
            for key, tag in far:
                self._drop(key, kind, tag)
        for key in [key for key in self._asleep if not held(key)]:
            for (kind, tag), timestamp in list(self.of(key)):
                self._forget_far(key, kind, tag, timestamp)
        self._sweep_at = max(limits.TIMERS_IN_MEMORY, 2 * len(self))

    def restore(self, timers: TimerWrites, partial: Collection[str]) -> None:
        """The first page of every kind; of the `partial` kinds there are more."""
        for kind in TIMER_KINDS:
            rows = [i for i, other in enumerate(timers.kinds) if other == kind]
            page = TimerWrites(
                [timers.keys[i] for i in rows], [timers.tags[i] for i in rows], [], [timers.timestamps[i] for i in rows]
            )
            self.add_page(kind, page, kind in partial, ())

    def __len__(self) -> int:
        """Timers in memory, those of sleeping keys not counted."""
        return sum(map(len, self._heaps.values()))
