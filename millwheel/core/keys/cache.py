"""Soft state of an interval: what user code reads between load and fold (§8.3).

Lives here: one `StateCache` per interval.  Invariant: a key leaves only when it is *clean*, which means that everything
written under it is folded.  So a key that is not here is exactly what the store's folded tables say.

Of a key with many entries, only some may be here.  Then `partial` says what is known of the others.  An entry that is
not here was not written since it was folded, so the tables are right about it.

State lies in columns, one dict from key to value per cell.  What an invocation wrote is applied cell by cell, at the cost of
a dict update, and not key by key.  Under snapshots hooks write to `changes`, which `cut` ends: to merge them after each
invocation took a tenth of all time (docs/adr/0055-hooks-write-to-the-epoch.md).  The cut merges a small state only.  Else
each invocation of the next epoch merges the keys that it reads, and some others, and the fold merges the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from itertools import filterfalse, repeat
from typing import Any

from millwheel import limits
from millwheel.bundles import CellWrites, StateRow
from millwheel.core.keys.eviction import NEVER, invocations_until_records
from millwheel.ids import Seq
from millwheel.limits import (
    ENTRY_OVERHEAD_BYTES,
    EVICTED_ROOM,
    EVICTED_SHARE,
    EVICTION_SAMPLE_KEYS,
    EVICTION_SCAN,
    SLOT_OVERHEAD_BYTES,
)
from millwheel.work import InvocationOutcome, Known, Slot, Wanted

NextTimers = Callable[[Sequence[str]], list[float]]
"""In how many invocations the next timer of each of some keys is due."""


class StateCache:
    """Keys in memory, bounded in bytes."""

    def __init__(self, limit_bytes: int, by_epochs: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self.changes: dict[str, dict[str, bytes | None]] | None = {} if by_epochs else None
        """By cell, the values that were set since the last `cut`: `values` do not have them yet.  None: they have."""
        self._estimated_bytes = 0
        """What of `size_bytes` is an estimate of `changes`."""
        self._behind: dict[str, dict[str, bytes | None]] = {}
        """By cell, what the last `cut` has returned and `values` do not have all of yet.  These keys are dirty."""
        self._rest: Iterator[tuple[str, dict[str, bytes | None]]] = iter(())
        """The same in pieces, without those that were merged."""
        self._left = 0
        """How many values are in those."""
        self._behind_bytes = 0
        """What of `size_bytes` is an estimate of it."""
        self._behind_seq = Seq(0)
        """The seq of that cut."""
        self.values: dict[str, dict[str, bytes]] = {}
        self.entries: dict[str, dict[str, dict[str, bytes]]] = {}
        self.partial: dict[str, Known] = {}
        """Keys of which only some slots are here."""
        self._big: dict[str, None] = {}
        """Keys with a cell of many entries in memory."""
        self._entry_writes: deque[tuple[int, str, Mapping[str, Mapping[str, bytes | None]]]] = deque()
        """Entries that were written and are not folded: the seq, the cell, and by key what was written."""
        self.last_read: dict[str, int] = {}
        """Every key that is here, and when it was last read."""
        self._met_new = True
        """A key of the last invocation was not here, so one of the next will not be, probably."""
        self._before: dict[str, int | None] = {}
        """When a key was read before that, noted where keys may have to leave."""
        self._dirty: set[str] = set()
        """Keys of `_writes`."""
        self._writes: deque[tuple[int, Collection[str], bool]] = deque()
        """What was written and is not folded: the seq, its keys, and whether any of them was dirty already."""
        self._forgotten: deque[tuple[int, Sequence[str]]] = deque()
        """Keys that were cleared, and the seq that did it."""
        self._folded = 0
        self._invocation = 0
        self._loaded: Collection[str] = ()
        """Keys of the running invocation without state in the tables."""
        self._absent: deque[tuple[int, Collection[str]]] = deque()
        """By seq: such keys of checkpoints that are not folded.  No fold has written any of them."""
        self.by_records = True
        """Whether keys are mostly read again by their records, not by their timers."""
        self._phase = 0
        """Where eviction goes on."""
        self._listed: list[str] = []
        """Keys of a large cache in which it goes on: some of them are gone."""

    def missing(self, keys: Mapping[str, Any]) -> list[str]:
        """Those of `keys` that must be loaded."""
        last_read = self.last_read
        if keys.keys() <= last_read.keys():
            return []
        return [*filterfalse(last_read.__contains__, keys)]

    def read(self, keys: Mapping[str, int]) -> list[str]:
        """Those of `keys` that must be loaded.  If none must, all are about to be read, as in `touch`."""
        last_read = self.last_read
        if self._met_new or 2 * self.size_bytes > self.limit_bytes:
            missing = self.missing(keys)
        else:
            # To note that they are read finds what is missing, too: a second look at each key takes a thirtieth of all time.
            known = len(last_read)
            last_read.update(keys)
            missing = [last_read.popitem()[0] for _ in range(len(last_read) - known)]
            if not missing:
                self._adopt_for(keys)
                return missing
        self._met_new = bool(missing)
        if not missing:
            self.touch(keys)
        return missing

    def insert(self, key: str, cells: Mapping[Slot, bytes], more: bool = False) -> None:
        """Add a loaded key.  `more` says that the store has further cells of it."""
        self.last_read[key] = self._invocation
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
                self._big[key] = None
        else:
            self.values.setdefault(cell, {})[key] = value

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

    def expect_absent(self, keys: Collection[str]) -> None:
        """The store has no state of these keys, which `touch` adds to the cache.  A fold is cheaper if they are sorted."""
        self.size_bytes += ENTRY_OVERHEAD_BYTES * len(keys)
        self._loaded = keys

    def take_absent(self, upto: Seq) -> Set[str]:
        """Keys without state in the tables, for the fold up to `upto`.  Each key is returned once, because that fold
        stores it.

        All such keys that the fold writes are among them, except keys that an earlier invocation only read.
        """
        absent: dict[str, None] = {}
        while self._absent and self._absent[0][0] <= upto:
            absent.update(dict.fromkeys(self._absent.popleft()[1]))
        return absent.keys()

    def cells(self, key: str) -> dict[Slot, bytes]:
        """Everything stored under `key`, which is here."""
        self._adopt([key])
        found: dict[Slot, bytes] = {(cell, ""): column[key] for cell, column in self.values.items() if key in column}
        for cell, by_key in self.entries.items():
            found.update(((cell, entry), value) for entry, value in by_key.get(key, {}).items())
        return found

    @property
    def invocation(self) -> int:
        """The number of the newest invocation."""
        return self._invocation

    def next_invocation(self) -> int:
        """What `touch` is to note of keys that are about to be read."""
        self._invocation += 1
        return self._invocation

    def touch(self, keys: Mapping[str, int]) -> None:
        """`keys` are about to be read, in this invocation; all are here, or absent from the store."""
        self._adopt_for(keys)
        if 2 * self.size_bytes > self.limit_bytes:
            self._before.update(zip(keys, map(self.last_read.get, keys), strict=True))
        self.last_read.update(keys)

    def write_all(self, outcome: InvocationOutcome, seq: Seq) -> list[CellWrites]:
        """Apply one checkpoint's writes to keys that are here; returns them as the columns of its log row."""
        if self._loaded:
            self._absent.append((seq, self._loaded))
            self._loaded = ()
        self.size_bytes += outcome.grown_bytes
        self._estimated_bytes += outcome.grown_bytes
        log = []
        for cell, writes in outcome.values.items():
            log.append(self._write_values(cell, writes, seq))
        for cell, by_key in outcome.entries.items():
            log.append(self._write_entries(cell, by_key))
            self.mark(list(by_key), seq)
            self._entry_writes.append((seq, cell, by_key))
            if self.partial:
                removed = ((k, entry) for k, writes in by_key.items() for entry, v in writes.items() if v is None)
                self._removed(cell, removed)
        return log

    def _write_values(self, cell: str, writes: Mapping[str, bytes | None], seq: Seq) -> CellWrites:
        self._merge(cell, writes)
        return self._logged(cell, writes, seq)

    def _merge(self, cell: str, writes: Mapping[str, bytes | None]) -> None:
        self.size_bytes += _apply(self.values.setdefault(cell, {}), writes)
        if self.partial:
            self._removed(cell, ((key, "") for key, value in writes.items() if value is None))

    def _logged(self, cell: str, writes: Mapping[str, bytes | None], seq: Seq) -> CellWrites:
        log = CellWrites(cell, list(writes), list(writes.values()))
        self.mark(log.keys, seq)
        return log

    def cut(self, seq: Seq) -> list[CellWrites]:
        """The values that were set since the last cut, as those of checkpoint `seq`; hooks find them from now on."""
        if self.changes is None:
            return []
        self._adopt_all()
        changes, self.changes = self.changes, {}
        self._behind = {cell: writes for cell, writes in changes.items() if writes}
        self._behind_bytes, self._estimated_bytes, self._behind_seq = self._estimated_bytes, 0, seq
        log = [self._logged(cell, writes, seq) for cell, writes in self._behind.items()]
        if len(self.last_read) <= limits.ADOPTED_AT_CUT:
            for cell, writes in self._behind.items():
                self._merge(cell, writes)
            self._end_merge()
        else:
            self._rest, self._left = _in_pieces(log), sum(len(column.keys) for column in log)
        return log

    def _adopt_for(self, keys: Collection[str]) -> None:
        """Of what the last cut has set, merge that of `keys`, which are about to be read, and some more."""
        if not self._behind:
            return
        others = limits.ADOPTED_PER_KEY * len(keys)
        if self._left <= 2 * others:
            self._adopt_all()
        else:
            self._adopt(keys, others)

    def _adopt(self, keys: Collection[str], others: int = 0) -> None:
        """Merge what the last cut has of `keys`, and of about so many `others`."""
        for cell, behind in self._behind.items():
            own = [*filter(behind.__contains__, keys)]
            if own:
                self._merge(cell, dict(zip(own, map(behind.__getitem__, own), strict=True)))
        for _ in range(-(-others // limits.ADOPTED_AT_ONCE)):
            self._adopt_next()

    def _adopt_next(self) -> None:
        """Merge the next keys of the last cut.  Some are merged by `_adopt`, and nothing has set them since."""
        for cell, writes in self._rest:
            self._merge(cell, writes)
            self._left -= len(writes)
            return
        self._end_merge()

    def _end_merge(self) -> None:
        """All that the last cut has is merged: its size is known."""
        self._behind = {}
        self.size_bytes -= self._behind_bytes
        self._behind_bytes = 0

    def _adopt_all(self) -> None:
        while self._behind:
            self._adopt_next()

    @property
    def changed(self) -> int:
        """Values that were set since the last cut."""
        return sum(map(len, self.changes.values())) if self.changes else 0

    def _kept(self, key: str) -> bool:
        """Whether something of `key` was written that is not folded."""
        return key in self._dirty or any(key in column for column in (self.changes or {}).values())

    def _removed(self, cell: str, slots: Iterable[tuple[str, str]]) -> None:
        """The tables still have them."""
        for key, entry in slots:
            if key in self.partial:
                self._know_absent(self.partial[key], cell, entry)

    def _write_entries(self, cell: str, by_key: Mapping[str, Mapping[str, bytes | None]]) -> CellWrites:
        columns = self.entries.setdefault(cell, {})
        log = CellWrites(cell, [], [], [])
        for key, writes in by_key.items():
            column = columns.setdefault(key, {})
            self.size_bytes += _apply(column, writes)
            if not column:
                del columns[key]
            elif len(column) > limits.STATE_PAGE_SLOTS:
                self._big[key] = None
            log.keys.extend(repeat(key, len(writes)))
            log.entries.extend(writes)
            log.values.extend(writes.values())
        return log

    def mark(self, keys: Collection[str], seq: Seq) -> None:
        """Something of `keys`, all of which are here, was written: they are dirty until it is folded."""
        if keys:
            dirty = len(self._dirty)
            self._dirty.update(keys)
            self._writes.append((seq, keys, len(self._dirty) - dirty < len(keys)))

    def forget(self, keys: Sequence[str], seq: Seq) -> None:
        """Clear the cells of `keys`, which are distinct; the removals themselves are dirty until they are folded."""
        if not keys:
            return
        self._adopt_all()
        self._clear([key for key in keys if key in self.last_read])
        for changed in (self.changes or {}).values():
            for key in keys:
                changed.pop(key, None)
        self.last_read.update(dict.fromkeys(keys, self._invocation))
        self.size_bytes += ENTRY_OVERHEAD_BYTES * len(keys)
        self.mark(keys, seq)
        self._forgotten.append((seq, keys))

    def _clear(self, keys: Sequence[str]) -> None:
        """Cells of `keys` go, column by column: with new keys all the time they are tens of thousands."""
        self.size_bytes -= ENTRY_OVERHEAD_BYTES * len(keys)
        for column in self.values.values():
            self.size_bytes -= _pop(column, keys)
        for columns in self.entries.values():
            self.size_bytes -= sum(_size(columns.pop(key)) for key in keys if key in columns)
        if self.partial:
            known = [self.partial.pop(key) for key in keys if key in self.partial]
            self.size_bytes -= SLOT_OVERHEAD_BYTES * sum(len(one.absent) for one in known)
        if self._big:
            for key in keys:
                self._big.pop(key, None)

    def folded(self, upto: Seq) -> None:
        """Writes of checkpoints up to `upto` are in the folded tables."""
        self._folded = upto
        if upto >= self._behind_seq:
            self._adopt_all()
        while self._entry_writes and self._entry_writes[0][0] <= upto:
            self._entry_writes.popleft()
        gone: list[Collection[str]] = []
        while self._writes and self._writes[0][0] <= upto:
            gone.append(self._writes.popleft()[1])
        if not gone:
            return
        # Where all keys are new, more is left than goes, and nothing of what goes was written again.
        left = sum(len(keys) for _, keys, _ in self._writes)
        if left < sum(map(len, gone)) or any(again for _, _, again in self._writes):
            self._dirty = set().union(*(keys for _, keys, _ in self._writes))
        else:
            self._dirty.difference_update(*gone)

    @property
    def unfolded(self) -> int:
        """Dirty keys."""
        return len(self._dirty)

    def over_limit(self) -> bool:
        """True when the cache holds more bytes than it may."""
        return self.size_bytes > self.limit_bytes

    def trim(self, busy: Container[str], next_timers: NextTimers | None, suspended: Container[str] = ()) -> list[str]:
        """Drop keys without state, and more if memory is over its limit, but no `busy` ones.  Returns the keys that left.

        `next_timers` says in how many invocations the next timers of keys are due.  None means that no key has one.
        What was loaded for `suspended` keys stays whole.
        """
        ended: dict[str, None] = {}
        while self._forgotten and self._forgotten[0][0] <= self._folded:
            # Of these keys nothing was written after the fold, or it is folded too.
            for key in self._forgotten.popleft()[1]:
                if key in self.last_read and not self._kept(key) and key not in busy:
                    ended[key] = None
        gone = [*ended]
        self._drop(gone)
        if self.over_limit():
            gone += self.evict(busy, next_timers)
        if self.over_limit() and self._big:
            self._thin(suspended)
        return gone

    def _thin(self, suspended: Container[str]) -> None:
        """Drop the clean entries of keys that cannot leave and have many.

        Otherwise a hot key that appends to a list would keep the whole list in memory while it is hot.
        """
        forgotten = {key for _, keys in self._forgotten for key in keys}  # the tables are not right about these yet
        big = [key for key in self._big if key not in suspended and key not in forgotten]
        self._adopt(big)
        dirty: dict[str, dict[str, dict[str, bytes | None]]] = {key: {} for key in big}
        for _, cell, by_key in self._entry_writes:
            for key in by_key.keys() & dirty.keys():
                dirty[key].setdefault(cell, {}).update(by_key[key])
        for key in big:
            self._thin_key(key, dirty[key])
            del self._big[key]

    def _thin_key(self, key: str, dirty: Mapping[str, Mapping[str, bytes | None]]) -> None:
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

    def _drop(self, keys: Sequence[str]) -> None:
        self._clear(keys)
        for key in keys:
            del self.last_read[key]
            self._before.pop(key, None)

    def evict(self, busy: Container[str], next_timers: NextTimers | None) -> list[str]:
        """Drop clean keys until one part in `EVICTED_ROOM` is free, so that not each new key evicts.  Returns what is gone.

        This is not LRU: of a sample, the keys whose next use is furthest away are dropped (`eviction`).  A sample is from all
        over the cache, because keys that came together are due together.
        """
        last_read, dirty, gone = self.last_read, self._dirty, list[str]()
        goal, budget = self.limit_bytes - self.limit_bytes // EVICTED_ROOM, min(2 * len(last_read), EVICTION_SCAN)
        wanted = len(last_read) * (self.size_bytes - goal) // max(1, self.size_bytes)
        # One key in so many of a sample is dropped.  The choice is better when fewer are, if that frees enough.
        share = max(2, min(EVICTED_SHARE, budget // max(1, 2 * wanted)))
        samples, scanned = self._samples(), 0
        while self.size_bytes > goal and scanned < budget:
            sample = next(samples)
            scanned += len(sample)
            clean = [key for key in sample if key in last_read and key not in dirty and key not in busy]
            if self.changes:
                clean = [key for key in clean if not self._kept(key)]
            leaving = len(clean) if scanned >= budget else -(-len(clean) // share)
            uses = self._next_uses(clean, next_timers)
            order = sorted(range(len(clean)), key=uses.__getitem__, reverse=True)
            chosen = [clean[place] for place in order[:leaving]]
            self._drop(chosen)
            gone += chosen
        return gone

    def _samples(self) -> Iterator[list[str]]:
        """Samples of keys from all over the cache.  The next call goes on with keys that this one has not taken.

        To list millions of keys takes longer than to look at those that one eviction may look at.  So the list of a large
        cache serves until all of it was taken.
        """
        keys = self._listed or [*self.last_read]
        self._listed = keys if len(keys) > EVICTION_SCAN else []
        stride = max(1, len(keys) // EVICTION_SAMPLE_KEYS)
        while True:
            self._phase = (self._phase + 1) % stride
            if self._phase == 0:
                self._listed = []
            yield keys[self._phase :: stride]

    def _next_uses(self, keys: Sequence[str], next_timers: NextTimers | None) -> list[tuple[float, int]]:
        """In how many invocations each key is read again, and, between equal ones, how many ago it was read.

        To do this for a whole sample at once takes two thirds of the time of one key at a time.
        """
        uses = next_timers(keys) if next_timers is not None else [NEVER] * len(keys)
        if not self.by_records and NEVER not in uses:
            return [(use, 0) for use in uses]  # timers alone say, and all are set
        ages = [self._invocation - last for last in map(self.last_read.__getitem__, keys)]
        if self.by_records:
            uses = [*map(min, uses, invocations_until_records(self._invocation, ages, [*map(self._before.get, keys)]))]
        return [*zip(uses, ages, strict=True)]


def _size(column: Mapping[str, bytes]) -> int:
    return sum(map(len, column.values())) + SLOT_OVERHEAD_BYTES * len(column)


def _pop(column: dict[str, bytes], keys: Iterable[str]) -> int:
    """Without `keys`; returns by how many bytes the column shrank."""
    gone = [value for value in map(column.pop, keys, repeat(None)) if value is not None]
    return sum(map(len, gone)) + SLOT_OVERHEAD_BYTES * len(gone)


def _in_pieces(log: Iterable[CellWrites]) -> Iterator[tuple[str, dict[str, bytes | None]]]:
    size = limits.ADOPTED_AT_ONCE
    for column in log:
        for begin in range(0, len(column.keys), size):
            end = begin + size
            yield column.cell, dict(zip(column.keys[begin:end], column.values[begin:end], strict=True))


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
