"""Watermark holds of an interval (§4.5).

Lives here: which holds there are, and which of them count.  Invariant: there is one hold per name.  The hold of a name that
sleeps is kept, and can be moved and released, but it does not count for the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.core.keys.minheap import MinHeap
from millwheel.model import MAX_TIME


class Holds:
    """Holds by name: a key, or a key's quarantine."""

    def __init__(self) -> None:
        self._counting: MinHeap[str] = MinHeap()
        self._all: dict[str, int] = {}
        self._asleep: set[str] = set()

    @property
    def all(self) -> Mapping[str, int]:
        """Every hold, asleep or not."""
        return self._all

    def set(self, name: str, timestamp: int) -> None:
        """Set or move a hold."""
        self._all[name] = timestamp
        if name not in self._asleep:
            self._counting.set(name, timestamp)

    def remove(self, name: str) -> None:
        """Release a hold; an unknown one is fine."""
        self._all.pop(name, None)
        self._counting.remove(name)

    def sleep(self, name: str) -> None:
        """A hold of this name does not count until `wake`."""
        self._asleep.add(name)
        self._counting.remove(name)

    def wake(self, name: str) -> None:
        """It counts again."""
        self._asleep.discard(name)
        if name in self._all:
            self._counting.set(name, self._all[name])

    def counting(self, name: str) -> int:
        """The timestamp of a hold that counts, or MAX_TIME."""
        return self._counting.items.get(name, MAX_TIME)

    def minimum(self) -> int:
        """The oldest hold that counts, or MAX_TIME."""
        oldest = self._counting.minimum()
        return MAX_TIME if oldest is None else oldest

    def first(self) -> str | None:
        """The name of the oldest hold that counts."""
        return self._counting.first()
