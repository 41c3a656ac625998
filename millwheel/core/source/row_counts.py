"""How many rows a source partition has read, and how many of them will not be read again.

Lives here: the counts of one partition in one process.  Never here: positions.  Invariant: of a row that is read twice,
because all went back to a snapshot or its partition was taken again before the row was durable, one reading counts.
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
    """Of one partition.  Rows behind the last position that is durable are read again when the partition is taken again.

    With `snapshots` positions are of epochs, and nobody knows that they are durable before an epoch is declared.
    """

    def __init__(self, snapshots: bool) -> None:
        self._snapshots = snapshots
        self.read = RowCounts()
        """All that were read since this began to count."""
        self._noted: deque[RowCounts] = deque()
        """What had been read at each position that was noted, and is not known to be durable."""
        self._declared = RowCounts()

    def add(self, rows: RowCounts) -> None:
        """Rows were read."""
        self.read += rows

    def note(self, rows: RowCounts) -> None:
        """A position is on its way to the store, for an epoch or by itself; `rows` had been read there."""
        self._noted.append(rows)

    def declare(self) -> None:
        """The oldest position that was noted is durable."""
        if self._noted:
            self._declared = self._noted.popleft()

    def refuse(self) -> None:
        """What was noted does not become durable: another process has the partition."""
        self._noted.clear()

    def end(self) -> RowCounts:
        """The partition goes: what of it counts for good.  From now on it counts from 0.

        A position that is written by itself counts when it is under way: hardly one is refused.
        """
        kept = self._declared if self._snapshots or not self._noted else self._noted[-1]
        self.read = self._declared = RowCounts()
        self._noted.clear()
        return kept
