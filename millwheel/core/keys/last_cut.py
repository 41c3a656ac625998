"""What the last epoch has set, on its way into memory (docs/adr/0055-hooks-write-to-the-epoch.md).

Lives here: the values of the last cut that the columns do not have yet.  Never here: the values of the epoch that runs
(`cache`).  Invariant: a key of an epoch is merged before a hook reads it, before it leaves memory, and before the next cut.

A cut merges a small state only, because nothing else runs meanwhile.  Else each invocation of the next epoch merges the keys
that it reads, and some others, and the fold merges the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from millwheel import limits
from millwheel.bundles import CellWrites
from millwheel.core.keys.key_columns import KeyColumns
from millwheel.ids import Seq


class LastCut:
    """Values of one epoch that are merged into `columns` bit by bit.  Their keys are dirty."""

    def __init__(self, columns: KeyColumns) -> None:
        self._columns = columns
        self._values: dict[str, dict[str, bytes | None]] = {}
        """By cell, all values of the epoch, until the last of them is merged."""
        self._rest: Iterator[tuple[str, dict[str, bytes | None]]] = iter(())
        """The same in pieces, without those that were merged."""
        self._left = 0
        """How many values are in those."""
        self._estimated_bytes = 0
        """What the size of the columns has as an estimate of them."""
        self._seq = Seq(0)

    def begin(
        self,
        seq: Seq,
        values: dict[str, dict[str, bytes | None]],
        log: Sequence[CellWrites],
        estimated_bytes: int,
    ) -> None:
        """Checkpoint `seq` cuts an epoch with these `values`, which are the columns of `log`.  All before is merged."""
        self._values, self._estimated_bytes, self._seq = values, estimated_bytes, seq
        self._rest, self._left = _in_pieces(log), sum(len(column.keys) for column in log)

    def merge_for(self, keys: Collection[str]) -> None:
        """Merge what is here of `keys`, which are about to be read, and some more."""
        if not self._values:
            return
        others = limits.ADOPTED_PER_KEY * len(keys)
        if self._left <= 2 * others:
            self.merge_all()
        else:
            self.merge(keys, others)

    def merge(self, keys: Collection[str], others: int = 0) -> None:
        """Merge what is here of `keys`, and of about so many `others`."""
        for cell, values in self._values.items():
            own = [*filter(values.__contains__, keys)]
            if own:
                self._columns.merge(cell, dict(zip(own, map(values.__getitem__, own), strict=True)))
        for _ in range(-(-others // limits.ADOPTED_AT_ONCE)):
            self._merge_next()

    def merge_all(self) -> None:
        """Merge what is left."""
        while self._values:
            self._merge_next()

    def merge_at_once(self) -> None:
        """Merge all, of which nothing was merged yet, column by column."""
        for cell, values in self._values.items():
            self._columns.merge(cell, values)
        self._end()

    def folded(self, upto: Seq) -> None:
        """Checkpoints up to `upto` are in the tables, so keys of theirs may leave memory."""
        if upto >= self._seq:
            self.merge_all()

    def _merge_next(self) -> None:
        """Merge the next piece.  Some of its keys were merged by `merge`, and nothing has set them since."""
        for cell, values in self._rest:
            self._columns.merge(cell, values)
            self._left -= len(values)
            return
        self._end()

    def _end(self) -> None:
        """All is merged: its size is known."""
        self._values = {}
        self._columns.size_bytes -= self._estimated_bytes
        self._estimated_bytes = 0


def _in_pieces(log: Iterable[CellWrites]) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    size = limits.ADOPTED_AT_ONCE
    for column in log:
        for begin in range(0, len(column.keys), size):
            end = begin + size
            yield column.cell, dict(zip(column.keys[begin:end], column.values[begin:end], strict=True))
