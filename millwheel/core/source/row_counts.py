"""How many rows a source partition has read, and how many of them will not be read again.

Lives here: the counts of one partition in one process.  Never here: positions.  Invariant: of a row that is read twice,
because all went back to a snapshot, one reading counts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

import msgspec


class RowCounts(msgspec.Struct, frozen=True):
    """Rows that a source gave, and those of them that could not be encoded or keyed."""

    given: int = 0
    rejected: int = 0
    kinds: Mapping[str, int] = {}
    """Those that were rejected, by kind."""

    def __add__(self, other: RowCounts) -> RowCounts:
        kinds = Counter(self.kinds) + Counter(other.kinds) if other.kinds else self.kinds
        return RowCounts(self.given + other.given, self.rejected + other.rejected, kinds)


class RowCounter:
    """Of one partition.  With `snapshots`, rows behind the last declared epoch are read again when all goes back."""

    def __init__(self, snapshots: bool) -> None:
        self._snapshots = snapshots
        self.read = RowCounts()
        """All that were read since this began to count."""
        self._noted: deque[RowCounts] = deque()
        """What had been read at each position that was noted and is not declared."""
        self._declared = RowCounts()

    def add(self, rows: RowCounts) -> None:
        """Rows were read."""
        self.read += rows

    def note(self) -> None:
        """A position was noted, for an epoch."""
        self._noted.append(self.read)

    def declare(self) -> None:
        """The epoch of the oldest position that was noted is declared."""
        if self._noted:
            self._declared = self._noted.popleft()

    def end(self) -> RowCounts:
        """The partition goes: what of it counts for good.  From now on it counts from 0."""
        kept = self._declared if self._snapshots else self.read
        self.read = self._declared = RowCounts()
        self._noted.clear()
        return kept
