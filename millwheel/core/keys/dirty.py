"""What of an interval's state in memory is not in the folded tables.

Lives here: the keys with such writes, the entries, and the keys that the tables do not have at all.  Never here: the state
itself (`key_columns`), and what is to be folded when (`millwheel.core.durability`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence, Set

from millwheel.ids import Seq

EntryWrites = Mapping[str, Mapping[str, bytes | None]]
"""By key, what was written by entry."""


class DirtyKeys:
    """Keys under which something was written that is not folded."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.upto = Seq(0)
        """Checkpoints up to this one are folded."""
        self._writes: deque[tuple[Seq, Collection[str], bool]] = deque()
        """What was written and is not folded: the seq, its keys, and whether any of them was dirty already."""
        self._entries: deque[tuple[Seq, str, EntryWrites]] = deque()
        """Entries that were written and are not folded: the seq, the cell, and by key what was written."""
        self._forgotten: deque[tuple[Seq, Sequence[str]]] = deque()
        """Keys that were cleared, and the seq that did it."""
        self._absent: deque[tuple[Seq, Collection[str]]] = deque()
        """By seq: keys of checkpoints that are not folded, without state in the tables.  No fold has written any of them."""

    def mark(self, keys: Collection[str], seq: Seq) -> None:
        """Something of `keys` was written: they are dirty until it is folded."""
        if keys:
            dirty = len(self.keys)
            self.keys.update(keys)
            self._writes.append((seq, keys, len(self.keys) - dirty < len(keys)))

    def mark_entries(self, cell: str, by_key: EntryWrites, seq: Seq) -> None:
        """Entries of `cell` were written."""
        self.mark(list(by_key), seq)
        self._entries.append((seq, cell, by_key))

    def mark_forgotten(self, keys: Sequence[str], seq: Seq) -> None:
        """All cells of `keys`, which are distinct, were removed."""
        self.mark(keys, seq)
        self._forgotten.append((seq, keys))

    def mark_absent(self, keys: Collection[str], seq: Seq) -> None:
        """Checkpoint `seq` is of `keys` without state in the tables."""
        self._absent.append((seq, keys))

    def folded(self, upto: Seq) -> None:
        """Writes of checkpoints up to `upto` are in the folded tables."""
        self.upto = upto
        while self._entries and self._entries[0][0] <= upto:
            self._entries.popleft()
        gone: list[Collection[str]] = []
        while self._writes and self._writes[0][0] <= upto:
            gone.append(self._writes.popleft()[1])
        if not gone:
            return
        # Where all keys are new, more is left than goes, and nothing of what goes was written again.
        left = sum(len(keys) for _, keys, _ in self._writes)
        if left < sum(map(len, gone)) or any(again for _, _, again in self._writes):
            self.keys = set().union(*(keys for _, keys, _ in self._writes))
        else:
            self.keys.difference_update(*gone)

    def take_absent(self, upto: Seq) -> Set[str]:
        """Keys without state in the tables, for the fold up to `upto`.  Each key is returned once, because that fold
        stores it.

        All such keys that the fold writes are among them, except keys that an earlier invocation only read.
        """
        absent: dict[str, None] = {}
        while self._absent and self._absent[0][0] <= upto:
            absent.update(dict.fromkeys(self._absent.popleft()[1]))
        return absent.keys()

    def take_forgotten(self) -> Iterator[str]:
        """Keys that were forgotten, when that is folded.  Of these nothing was written after the fold, or it is dirty."""
        while self._forgotten and self._forgotten[0][0] <= self.upto:
            yield from self._forgotten.popleft()[1]

    def entries_of(self, keys: Collection[str]) -> dict[str, dict[str, dict[str, bytes | None]]]:
        """The entries of `keys` that are dirty: by key and cell."""
        dirty: dict[str, dict[str, dict[str, bytes | None]]] = {key: {} for key in keys}
        for _, cell, by_key in self._entries:
            for key in by_key.keys() & dirty.keys():
                dirty[key].setdefault(cell, {}).update(by_key[key])
        return dirty

    def being_forgotten(self) -> set[str]:
        """Forgotten keys whose end is not folded: the tables are not right about these yet."""
        return {key for _, keys in self._forgotten for key in keys}
