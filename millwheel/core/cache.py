"""Soft state of an interval: what user code reads between load and fold (§8.3).

Lives here: one `StateCache` per interval.  Invariant: a key leaves only when it is clean, that is when everything
written under it has been folded; so a key that is not here is exactly what the store's folded tables say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec

from millwheel.bundles import StateWrites
from millwheel.work import Slot

ENTRY_OVERHEAD_BYTES: Final = 200
SLOT_OVERHEAD_BYTES: Final = 64
SAMPLE: Final = 64


class Entry(msgspec.Struct, gc=False):
    """One key's cells, the seq of its last write (0: clean), its size, when it was last read."""

    cells: dict[Slot, bytes]
    dirty_seq: int = 0
    size_bytes: int = ENTRY_OVERHEAD_BYTES
    read_turn: int = 0


def _size(cells: dict[Slot, bytes]) -> int:
    return ENTRY_OVERHEAD_BYTES + sum(len(value) + SLOT_OVERHEAD_BYTES for value in cells.values())


class StateCache:
    """Keys in memory, bounded in bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.entries: dict[str, Entry] = {}
        self._dirty: dict[int, list[str]] = {}
        self._turn = 0

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of `keys` that must be loaded."""
        entries = self.entries
        return [key for key in keys if key not in entries]

    def insert(self, key: str, cells: dict[Slot, bytes]) -> None:
        """Add a loaded key."""
        entry = Entry(cells, 0, _size(cells), self._turn)
        self.entries[key] = entry
        self.size_bytes += entry.size_bytes

    def view(self, keys: Iterable[str]) -> dict[str, dict[Slot, bytes]]:
        """The cells of `keys`, all of which are here."""
        self._turn += 1
        turn, entries, view = self._turn, self.entries, {}
        for key in keys:
            entry = entries[key]
            entry.read_turn = turn
            view[key] = entry.cells
        return view

    def write_all(self, state: Mapping[str, Mapping[Slot, bytes | None]], seq: int, log: StateWrites) -> None:
        """Apply one checkpoint's writes to keys that are here, and add them to its log columns."""
        entries, marked = self.entries, self._dirty.setdefault(seq, [])
        log_key, log_cell = log.keys.append, log.cells.append
        log_entry, log_value = log.entries.append, log.values.append
        total = 0
        for key, writes in state.items():
            entry = entries[key]
            cells, delta = entry.cells, 0
            for slot, value in writes.items():
                old = cells.get(slot)
                if value is not None:
                    cells[slot] = value
                    delta += len(value) - len(old) if old is not None else len(value) + SLOT_OVERHEAD_BYTES
                elif old is not None:
                    del cells[slot]
                    delta -= len(old) + SLOT_OVERHEAD_BYTES
                log_key(key)
                log_cell(slot[0])
                log_entry(slot[1])
                log_value(value)
            if delta:
                entry.size_bytes += delta
                total += delta
            if entry.dirty_seq != seq:
                entry.dirty_seq = seq
                marked.append(key)
        self.size_bytes += total

    def forget(self, key: str, seq: int) -> None:
        """Clear a key's cells; the removal itself is dirty until it is folded."""
        if key not in self.entries:
            self.insert(key, {})
        entry = self.entries[key]
        self.size_bytes += ENTRY_OVERHEAD_BYTES - entry.size_bytes
        entry.size_bytes = ENTRY_OVERHEAD_BYTES
        entry.cells = {}
        self._mark(key, entry, seq)

    def _mark(self, key: str, entry: Entry, seq: int) -> None:
        if entry.dirty_seq != seq:
            entry.dirty_seq = seq
            self._dirty.setdefault(seq, []).append(key)

    def folded(self, upto: int) -> None:
        """Writes of checkpoints up to `upto` are in the folded tables."""
        for seq in [s for s in self._dirty if s <= upto]:
            for key in self._dirty.pop(seq):
                entry = self.entries.get(key)
                if entry is not None and entry.dirty_seq == seq:
                    entry.dirty_seq = 0

    def over_limit(self) -> bool:
        """True when the cache holds more bytes than it may."""
        return self.size_bytes > self.limit_bytes

    def evict(self, next_timer: Callable[[str], int]) -> int:
        """Drop clean keys until the bound holds; returns how many went.

        Not LRU: of a sample the half goes that was read longest ago, and among equals whose next timer is furthest
        away, because windowed keys that were just written are read last (§8.3).
        """
        dropped, scanned, budget = 0, 0, len(self.entries)
        keys = iter(list(self.entries))
        while self.over_limit() and scanned < budget:
            sample = list(islice(keys, SAMPLE))
            scanned += len(sample)
            clean = [k for k in sample if not self.entries[k].dirty_seq]
            clean.sort(key=lambda k: (self.entries[k].read_turn, -next_timer(k)))
            keep = 0 if scanned >= budget else len(clean) // 2
            for key in clean[: len(clean) - keep]:
                self.size_bytes -= self.entries.pop(key).size_bytes
                dropped += 1
        return dropped
