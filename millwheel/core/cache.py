"""Soft state of an interval: what user code reads between load and fold (§8.3).

Lives here: one `StateCache` per interval.  Invariant: a key leaves only when it is clean, that is when everything
written under it has been folded; so a key that is not here is exactly what the store's folded tables say.

State lies in columns, one dict from key to value per cell: what an invocation wrote is applied cell by cell, at the
cost of a dict update, not key by key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Set
from itertools import islice, repeat
from typing import Final

from millwheel.bundles import CellWrites
from millwheel.work import Outcome, Slot

ENTRY_OVERHEAD_BYTES: Final = 200
SLOT_OVERHEAD_BYTES: Final = 64
SAMPLE: Final = 64
EVICTION_SCAN: Final = 65_536
"""Keys that one eviction looks at, four times what a fold makes clean: looking at all of them, most of them dirty, was a
fifth of the time of a pipeline that only made new keys."""


class StateCache:
    """Keys in memory, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.values: dict[str, dict[str, bytes]] = {}
        self.entries: dict[str, dict[str, dict[str, bytes]]] = {}
        self.turns: dict[str, int] = {}
        """Every key that is here, and when it was last read."""
        self._written: dict[str, int] = {}
        """Dirty keys, and the seq of their last write."""
        self._writes: deque[tuple[int, Collection[str]]] = deque()
        """What was written and is not folded: the seq, and its keys."""
        self._forgotten: deque[tuple[int, str]] = deque()
        """Keys that were cleared, and the seq that did it."""
        self._folded = 0
        self._turn = 0
        self._absent: set[str] = set()
        """Keys of which the tables had no state when they were loaded, and no fold has written any since."""
        self._hand: Iterator[str] = iter(())
        """Where eviction goes on: keys that were here when its round began."""

    def missing(self, keys: Mapping[str, None]) -> list[str]:
        """Those of `keys` that must be loaded."""
        turns = self.turns
        if keys.keys() <= turns.keys():
            return []
        return [key for key in keys if key not in turns]

    def insert(self, key: str, cells: Mapping[Slot, bytes]) -> None:
        """Add a loaded key."""
        self.turns[key] = self._turn
        self.size_bytes += ENTRY_OVERHEAD_BYTES
        for (cell, entry), value in cells.items():
            self.size_bytes += len(value) + SLOT_OVERHEAD_BYTES
            if entry:
                self.entries.setdefault(cell, {}).setdefault(key, {})[entry] = value
            else:
                self.values.setdefault(cell, {})[key] = value

    def insert_absent(self, keys: Collection[str]) -> None:
        """Add loaded keys of which the store has no state."""
        self.turns.update(dict.fromkeys(keys, self._turn))
        self.size_bytes += ENTRY_OVERHEAD_BYTES * len(keys)
        self._absent.update(keys)

    def take_absent(self, keys: Iterable[Set[str]]) -> Set[str]:
        """Those of `keys` of which the tables have no state.  They are about to be folded: asked again, they have."""
        if not self._absent:
            return frozenset()  # without a look at the keys: most folds are of old ones
        absent = self._absent.intersection(set().union(*keys))
        self._absent -= absent
        return absent

    def cells(self, key: str) -> dict[Slot, bytes]:
        """Everything stored under `key`, which is here."""
        found: dict[Slot, bytes] = {(cell, ""): column[key] for cell, column in self.values.items() if key in column}
        for cell, by_key in self.entries.items():
            found.update(((cell, entry), value) for entry, value in by_key.get(key, {}).items())
        return found

    def touch(self, keys: Iterable[str]) -> None:
        """`keys`, all of which are here, are about to be read."""
        self._turn += 1
        self.turns.update(zip(keys, repeat(self._turn)))

    def write_all(self, outcome: Outcome, seq: int) -> list[CellWrites]:
        """Apply one checkpoint's writes to keys that are here; returns them as the columns of its log row."""
        log = []
        for cell, writes in outcome.values.items():
            column = self.values.setdefault(cell, {})
            self.size_bytes += _apply(column, writes)
            log.append(CellWrites(cell, list(writes), list(writes.values())))
            self.mark(log[-1].keys, seq)
        for cell, by_key in outcome.entries.items():
            log.append(self._write_entries(cell, by_key))
            self.mark(list(by_key), seq)
        return log

    def _write_entries(self, cell: str, by_key: Mapping[str, Mapping[str, bytes | None]]) -> CellWrites:
        columns = self.entries.setdefault(cell, {})
        log = CellWrites(cell, [], [], [])
        for key, writes in by_key.items():
            column = columns.setdefault(key, {})
            self.size_bytes += _apply(column, writes)
            if not column:
                del columns[key]
            log.keys += repeat(key, len(writes))
            log.entries += writes
            log.values += writes.values()
        return log

    def mark(self, keys: Collection[str], seq: int) -> None:
        """Something of `keys`, all of which are here, was written: they are dirty until it is folded."""
        if keys:
            self._written.update(dict.fromkeys(keys, seq))
            self._writes.append((seq, keys))

    def forget(self, key: str, seq: int) -> None:
        """Clear a key's cells; the removal itself is dirty until it is folded."""
        if key in self.turns:
            self._clear(key)
        self.insert(key, {})
        self.mark((key,), seq)
        self._forgotten.append((seq, key))

    def _clear(self, key: str) -> None:
        size = ENTRY_OVERHEAD_BYTES
        for column in self.values.values():
            value = column.pop(key, None)
            if value is not None:
                size += len(value) + SLOT_OVERHEAD_BYTES
        for columns in self.entries.values():
            for value in columns.pop(key, {}).values():
                size += len(value) + SLOT_OVERHEAD_BYTES
        self.size_bytes -= size

    def folded(self, upto: int) -> None:
        """Writes of checkpoints up to `upto` are in the folded tables."""
        self._folded = upto
        written = self._written
        keys: list[Collection[str]] = []
        while self._writes and self._writes[0][0] <= upto:
            keys.append(self._writes.popleft()[1])
        # A hot key is in many of them, and is looked at once.
        for key in [key for key in set().union(*keys) if written.get(key, upto + 1) <= upto]:
            del written[key]

    @property
    def unfolded(self) -> int:
        """Dirty keys."""
        return len(self._written)

    def dirty(self, key: str) -> bool:
        """True when something written under `key` is not folded yet."""
        return key in self._written

    def over_limit(self) -> bool:
        """True when the cache holds more bytes than it may."""
        return self.size_bytes > self.limit_bytes

    def trim(self, busy: Container[str], next_timer: Callable[[str], int]) -> list[str]:
        """Drop what is empty, and more if there is too much, but not what is `busy`; returns the keys that went."""
        gone = []
        while self._forgotten and self._forgotten[0][0] <= self._folded:
            _, key = self._forgotten.popleft()
            # Nothing was written since, or it is folded as well.
            if key in self.turns and key not in self._written and key not in busy:
                self._drop(key)
                gone.append(key)
        return gone + self.evict(busy, next_timer) if self.over_limit() else gone

    def _drop(self, key: str) -> None:
        self._clear(key)
        del self.turns[key]
        self._absent.discard(key)

    def evict(self, busy: Container[str], next_timer: Callable[[str], int]) -> list[str]:
        """Drop clean keys until there is an eighth of room, for this is not done for each new key; returns those.

        Not LRU: of a sample the half goes that was read longest ago, and among equals whose next timer is furthest
        away, because windowed keys that were just written are read last (§8.3).
        """
        gone: list[str] = []
        scanned, budget = 0, min(2 * len(self.turns), EVICTION_SCAN)
        while self.size_bytes > self.limit_bytes - self.limit_bytes // 8 and scanned < budget:
            sample = list(islice(self._hand, SAMPLE))
            if not sample:
                self._hand = iter(list(self.turns))
                continue
            scanned += len(sample)
            clean = [key for key in sample if key in self.turns and key not in busy and not self.dirty(key)]
            clean.sort(key=lambda key: (self.turns[key], -next_timer(key)))
            keep = 0 if scanned >= budget else len(clean) // 2
            for key in clean[: len(clean) - keep]:
                self._drop(key)
                gone.append(key)
        return gone


def _apply(column: dict[str, bytes], writes: Mapping[str, bytes | None]) -> int:
    """Overlay `writes`; returns by how many bytes the column grew."""
    old = [value for value in map(column.get, writes) if value is not None]
    new = [value for value in writes.values() if value is not None]
    if len(new) == len(writes):
        column.update(writes)  # type: ignore[arg-type]  # none of them is None
    else:
        for name, value in writes.items():
            if value is not None:
                column[name] = value
            else:
                column.pop(name, None)
    return sum(map(len, new)) - sum(map(len, old)) + SLOT_OVERHEAD_BYTES * (len(new) - len(old))
