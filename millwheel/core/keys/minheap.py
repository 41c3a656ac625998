"""A set of named timestamps with a cheap minimum: timers and holds of an interval.

Lives here: a heap with lazy deletion.  Invariant: `items` is the truth, the heap may hold stale entries, and is
rebuilt when more than half of it is stale, so that memory follows what is pending, not what ever was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class MinHeap(Generic[K]):
    """Mapping of name to timestamp, ordered by (timestamp, name).

    >>> heap = MinHeap[str]()
    >>> heap.set("a", 5); heap.set("b", 3); heap.set("b", 9)
    >>> heap.minimum(), heap.pop_due(5, 10)
    (5, [(5, 'a')])
    """

    def __init__(self) -> None:
        self.items: dict[K, int] = {}
        self._heap: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return len(self.items)

    def set(self, name: K, timestamp: int) -> None:
        """Add or move `name`."""
        if self.items.get(name) == timestamp:
            return
        self.items[name] = timestamp
        heappush(self._heap, (timestamp, name))
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self.items):
            self._rebuild()

    def remove(self, name: K) -> None:
        """Forget `name`; unknown names are fine."""
        self.items.pop(name, None)

    def remove_all(self, names: Iterable[K]) -> None:
        """Forget many names, and what they take in memory."""
        for name in names:
            self.items.pop(name, None)
        self._rebuild()

    def _rebuild(self) -> None:
        self._heap = [(timestamp, name) for name, timestamp in self.items.items()]
        heapify(self._heap)

    def minimum(self) -> int | None:
        """The smallest timestamp, or None when empty."""
        heap, items = self._heap, self.items
        while heap and items.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def first_place(self) -> tuple[int, K] | None:
        """The smallest timestamp with its name, or None when empty."""
        return None if self.minimum() is None else self._heap[0]

    def first(self) -> K | None:
        """The name with the smallest timestamp."""
        name: K | None = None if self.minimum() is None else self._heap[0][1]
        return name

    def due(self, until: int, end: tuple[int, K] | None = None) -> bool:
        """True when there is an entry with timestamp <= `until` that does not come after `end`."""
        timestamp = self.minimum()
        return timestamp is not None and timestamp <= until and (end is None or self._heap[0] <= end)

    def pop_due(
        self,
        until: int,
        limit: int,
        end: tuple[int, K] | None = None,
        alone: Callable[[int, K], bool] | None = None,
    ) -> list[tuple[int, K]]:
        """Remove and return at most `limit` entries with timestamp <= `until` up to `end`, in order.

        An entry that is to be `alone` comes by itself.
        """
        due: list[tuple[int, K]] = []
        heap, items = self._heap, self.items
        while heap and len(due) < limit:
            entry = heap[0]
            timestamp, name = entry
            if items.get(name) != timestamp:
                heappop(heap)  # stale
                continue
            if timestamp > until or (end is not None and entry > end):
                break
            if alone is not None and alone(timestamp, name):
                if due:
                    break
                limit = 1
            heappop(heap)
            del items[name]
            due.append(entry)
        return due
