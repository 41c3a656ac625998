"""State of keys in memory: one dict from key to value for each cell.

Lives here: the columns, what is known of keys that are here in part, and what all of it takes.  Never here: which keys are
here, and when they leave (`cache`).

Of a key with many entries, only some may be here.  Then `partial` says what is known of the others.  What an invocation
wrote is applied cell by cell, at the cost of a dict update, and not key by key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat

from millwheel import limits
from millwheel.bundles import CellWrites, StateRow
from millwheel.limits import ENTRY_OVERHEAD_BYTES, SLOT_OVERHEAD_BYTES
from millwheel.work import Known, Slot, Wanted


class KeyColumns:
    """What keys in memory hold."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.values: dict[str, dict[str, bytes]] = {}
        self.entries: dict[str, dict[str, dict[str, bytes]]] = {}
        self.partial: dict[str, Known] = {}
        """Keys of which only some slots are here."""
        self.big: dict[str, None] = {}
        """Keys with a cell of many entries in memory."""

    def insert(self, key: str, cells: Mapping[Slot, bytes], more: bool) -> None:
        """Add a loaded key.  `more` says that the store has further cells of it."""
        self.size_bytes += ENTRY_OVERHEAD_BYTES
        if more:
            self.partial[key] = Known(set(), set())
        for (cell, entry), value in cells.items():
            self._add(key, cell, entry, value)

    def _add(self, key: str, cell: str, entry: str, value: bytes) -> None:
        self.size_bytes += len(value) + SLOT_OVERHEAD_BYTES
        if entry:
            column = self.entries.setdefault(cell, {}).setdefault(key, {})
            column[entry] = value
            if len(column) > limits.STATE_PAGE_SLOTS:
                self.big[key] = None
        else:
            self.values.setdefault(cell, {})[key] = value

    def insert_empty(self, keys: Collection[str]) -> None:
        """Add keys without state."""
        self.size_bytes += ENTRY_OVERHEAD_BYTES * len(keys)

    def fill(self, wanted: Iterable[Wanted], rows: Iterable[StateRow]) -> None:
        """Add slots of partial keys; `rows` are those of `wanted` that the store has."""
        for key, cell, entry, value in rows:
            if value is not None and self._get(key, cell, entry) is None and self.partial[key].lacks(cell, entry):
                self._add(key, cell, entry, value)
        for key, cell, slot in wanted:
            known = self.partial[key]
            if slot is None:
                known.whole.add(cell)
            elif self._get(key, cell, slot) is None:
                self._know_absent(known, cell, slot)

    def _get(self, key: str, cell: str, entry: str) -> bytes | None:
        if not entry:
            return self.values.get(cell, {}).get(key)
        return self.entries.get(cell, {}).get(key, {}).get(entry)

    def _know_absent(self, known: Known, cell: str, entry: str) -> None:
        if (cell, entry) not in known.absent:
            known.absent.add((cell, entry))
            self.size_bytes += SLOT_OVERHEAD_BYTES

    def of(self, key: str) -> dict[Slot, bytes]:
        """Everything that is here under `key`."""
        found: dict[Slot, bytes] = {(cell, ""): column[key] for cell, column in self.values.items() if key in column}
        for cell, by_key in self.entries.items():
            found.update(((cell, entry), value) for entry, value in by_key.get(key, {}).items())
        return found

    def merge(self, cell: str, writes: Mapping[str, bytes | None]) -> None:
        """Overlay values of `cell`, by key."""
        self.size_bytes += _apply(self.values.setdefault(cell, {}), writes)
        if self.partial:
            self._removed(cell, ((key, "") for key, value in writes.items() if value is None))

    def merge_entries(self, cell: str, by_key: Mapping[str, Mapping[str, bytes | None]]) -> CellWrites:
        """Overlay entries of `cell`; returns them as columns."""
        columns = self.entries.setdefault(cell, {})
        log = CellWrites(cell, [], [], [])
        for key, writes in by_key.items():
            column = columns.setdefault(key, {})
            self.size_bytes += _apply(column, writes)
            if not column:
                del columns[key]
            elif len(column) > limits.STATE_PAGE_SLOTS:
                self.big[key] = None
            log.keys.extend(repeat(key, len(writes)))
            log.entries.extend(writes)
            log.values.extend(writes.values())
        if self.partial:
            self._removed(cell, ((k, name) for k, writes in by_key.items() for name, v in writes.items() if v is None))
        return log

    def _removed(self, cell: str, slots: Iterable[tuple[str, str]]) -> None:
        """The tables still have them."""
        for key, entry in slots:
            if key in self.partial:
                self._know_absent(self.partial[key], cell, entry)

    def clear(self, keys: Sequence[str]) -> None:
        """Cells of `keys` go, column by column: with new keys all the time they are tens of thousands."""
        self.size_bytes -= ENTRY_OVERHEAD_BYTES * len(keys)
        for column in self.values.values():
            self.size_bytes -= _pop(column, keys)
        for columns in self.entries.values():
            self.size_bytes -= sum(_size(columns.pop(key)) for key in keys if key in columns)
        if self.partial:
            known = [self.partial.pop(key) for key in keys if key in self.partial]
            self.size_bytes -= SLOT_OVERHEAD_BYTES * sum(len(one.absent) for one in known)
        if self.big:
            for key in keys:
                self.big.pop(key, None)

    def thin(self, key: str, dirty: Mapping[str, Mapping[str, bytes | None]]) -> None:
        """Of the entries of `key`, keep those that are `dirty`, by cell.  Its values stay."""
        known = self.partial.get(key)
        if known is None:
            # The key was whole, so a slot without a value here has none at all.  This covers the cells that are known.
            absent = {(cell, "") for cell, column in self.values.items() if key not in column}
        else:
            absent = {slot for slot in known.absent if not slot[1]}
            self.size_bytes -= SLOT_OVERHEAD_BYTES * len(known.absent)
        absent |= {(cell, entry) for cell, writes in dirty.items() for entry, value in writes.items() if value is None}
        self.partial[key] = Known(absent, set())
        self.size_bytes += SLOT_OVERHEAD_BYTES * len(absent)
        for cell, columns in self.entries.items():
            column = columns.pop(key, {})
            kept = {entry: column[entry] for entry in dirty.get(cell, ()) if entry in column}
            if kept:
                columns[key] = kept
            self.size_bytes -= _size(column) - _size(kept)
        del self.big[key]


def _size(column: Mapping[str, bytes]) -> int:
    return sum(map(len, column.values())) + SLOT_OVERHEAD_BYTES * len(column)


def _pop(column: dict[str, bytes], keys: Iterable[str]) -> int:
    """Without `keys`; returns by how many bytes the column shrank."""
    gone = [value for value in map(column.pop, keys, repeat(None)) if value is not None]
    return sum(map(len, gone)) + SLOT_OVERHEAD_BYTES * len(gone)


def _apply(column: dict[str, bytes], writes: Mapping[str, bytes | None]) -> int:
    """Overlay `writes`; returns by how many bytes the column grew."""
    # New keys have no old values.
    old, old_bytes = (0, 0) if column.keys().isdisjoint(writes) else _weigh([*map(column.get, writes)])
    new, new_bytes = _weigh(writes.values())
    if new == len(writes):
        column.update(writes)  # type: ignore[arg-type]  # none of them is None
    else:
        for name, value in writes.items():
            if value is not None:
                column[name] = value
            else:
                column.pop(name, None)
    return new_bytes - old_bytes + SLOT_OVERHEAD_BYTES * (new - old)


def _weigh(values: Collection[bytes | None]) -> tuple[int, int]:
    """How many values there are, and their bytes; mostly there are all."""
    try:
        return len(values), sum(map(len, values))  # type: ignore[arg-type]  # None has no length
    except TypeError:
        present = [value for value in values if value is not None]
        return len(present), sum(map(len, present))
