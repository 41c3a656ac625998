"""Pending timers of an interval (§4.6).

Lives here: which timers are pending, and which are due.  Invariants: a (key, kind, tag) is pending at most once; a
timer is never due early; timers that are due together come out in (timestamp, key, tag) order; those of a key that
sleeps are pending, can be set and cancelled, and are not due.
"""

from __future__ import annotations

from collections.abc import Iterator

from millwheel.core.minheap import MinHeap

TimerName = tuple[str, str]
"""(key, tag)."""


class TimerQueue:
    """Timers of one interval, by kind."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self._heaps: dict[str, MinHeap[TimerName]] = {kind: MinHeap() for kind in kinds}
        self._by_key: dict[str, dict[tuple[str, str], int]] = {}
        self._asleep: set[str] = set()

    def set(self, key: str, kind: str, tag: str, timestamp: int) -> None:
        """Set or move a timer."""
        if key not in self._asleep:
            self._heaps[kind].set((key, tag), timestamp)
        self._by_key.setdefault(key, {})[kind, tag] = timestamp

    def remove(self, key: str, kind: str, tag: str) -> None:
        """Cancel a timer; an unknown one is fine."""
        self._heaps[kind].remove((key, tag))
        self._drop(key, kind, tag)

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

    def _drop(self, key: str, kind: str, tag: str) -> None:
        timers = self._by_key.get(key)
        if timers is not None:
            timers.pop((kind, tag), None)
            if not timers:
                del self._by_key[key]

    def pop_due(self, kind: str, until: int, limit: int) -> list[tuple[int, TimerName]]:
        """Remove and return at most `limit` timers of `kind` with timestamp <= `until`, in order."""
        due = self._heaps[kind].pop_due(until, limit)
        for _, (key, tag) in due:
            self._drop(key, kind, tag)
        return due

    def minimum(self, kind: str) -> int | None:
        """The earliest timestamp of a kind."""
        return self._heaps[kind].minimum()

    def first(self, kind: str) -> TimerName | None:
        """The name of the earliest timer of a kind."""
        return self._heaps[kind].first()

    def pending(self, key: str) -> bool:
        """True when `key` has any timer."""
        return key in self._by_key

    def of(self, key: str) -> Iterator[tuple[tuple[str, str], int]]:
        """((kind, tag), timestamp) of a key's timers."""
        return iter(self._by_key.get(key, {}).items())

    def next_of(self, key: str, default: int) -> int:
        """The earliest timestamp of a key's timers of any kind, asleep or not."""
        timers = self._by_key.get(key)
        return min(timers.values()) if timers else default

    def __len__(self) -> int:
        return sum(map(len, self._by_key.values()))
