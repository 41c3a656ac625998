"""The minimum of very many values that mostly rise: what intervals have reported to the authority.

Lives here: a small heap of the least values, and a bound on all others.  Invariants: `values` is the truth; every value up to
the bound has an entry in the heap, which may hold stale ones.

A value beyond the bound costs a look-up, and not a step in a heap of half a million entries that no cache holds.  When the
heap is used up, one pass over all values finds the next eighth of them, so many reports share the cost of a pass.
"""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, Generic, TypeVar

from millwheel import limits

K = TypeVar("K", bound=Hashable)


class LowestReports(Generic[K]):
    """Mapping of name to value with a cheap minimum.

    >>> reported = LowestReports[str]()
    >>> reported.set("a", 5); reported.set("b", 3); reported.set("b", 9)
    >>> reported.minimum()
    5
    """

    def __init__(self) -> None:
        self.values: dict[K, int] = {}
        self._least: list[tuple[int, Any]] = []
        self._bound: int | None = None
        """None: nothing is in the heap."""

    def set(self, name: K, value: int) -> None:
        """Add or move `name`."""
        self.values[name] = value
        if self._bound is not None and value <= self._bound:
            heappush(self._least, (value, name))
            if len(self._least) > limits.MINIMA_SAMPLE and len(self._least) > 2 * len(self.values):
                self._fill()

    def remove(self, name: K) -> None:
        """Forget `name`; unknown names are fine."""
        self.values.pop(name, None)

    def minimum(self) -> int | None:
        """The smallest value, or None when there is none."""
        values = self.values
        while values:
            least = self._least
            while least and values.get(least[0][1]) != least[0][0]:
                heappop(least)
            if least:
                return least[0][0]
            self._fill()
        self._least, self._bound = [], None
        return None

    def _fill(self) -> None:
        values = self.values
        stride = max(1, len(values) // limits.MINIMA_SAMPLE)
        sample = sorted(islice(values.values(), 0, None, stride))
        self._bound = bound = sample[-1 if stride == 1 else len(sample) // limits.MINIMA_SHARE]
        self._least = [(value, name) for name, value in values.items() if value <= bound]
        heapify(self._least)
