"""Soft state of an interval: what user code reads between load and fold (§8.3).

Lives here: one `StateCache` per interval, which says which keys are in memory, and which may leave.  Invariant: a key leaves
only when it is *clean*, which means that everything written under it is folded.  So a key that is not here is exactly what
the store's folded tables say.

Of a key with many entries, only some may be here.  An entry that is not here was not written since it was folded, so the
tables are right about it.  Under snapshots hooks write to `changes`, which `cut` ends: to merge them after each invocation
took a tenth of all time (docs/adr/0055-hooks-write-to-the-epoch.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence, Set
from itertools import filterfalse
from typing import Any

from millwheel import limits
from millwheel.bundles import CellWrites, StateRow
from millwheel.core.keys.dirty import DirtyKeys
from millwheel.core.keys.eviction import NEVER, Samples, invocations_until_records
from millwheel.core.keys.key_columns import KeyColumns
from millwheel.core.keys.last_cut import LastCut
from millwheel.ids import Seq
from millwheel.limits import EVICTED_ROOM, EVICTED_SHARE
from millwheel.work import InvocationOutcome, Slot, Wanted

NextTimers = Callable[[Sequence[str]], list[float]]
"""In how many invocations the next timer of each of some keys is due."""


class StateCache:
    """Keys in memory, bounded in bytes."""

    def __init__(self, limit_bytes: int, by_epochs: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self.changes: dict[str, dict[str, bytes | None]] | None = {} if by_epochs else None
        """By cell, the values that were set since the last `cut`: `values` do not have them yet.  None: they have."""
        self._estimated_bytes = 0
        """What of `size_bytes` is an estimate of `changes`."""
        self._columns = KeyColumns()
        self._last_cut = LastCut(self._columns)
        self._dirty = DirtyKeys()
        self.values = self._columns.values
        self.entries = self._columns.entries
        self.partial = self._columns.partial
        self.last_read: dict[str, int] = {}
        """Every key that is here, and when it was last read."""
        self._met_new = True
        """A key of the last invocation was not here, so one of the next will not be, probably."""
        self._before: dict[str, int | None] = {}
        """When a key was read before that, noted where keys may have to leave."""
        self._invocation = 0
        self._loaded: Collection[str] = ()
        """Keys of the running invocation without state in the tables."""
        self.by_records = True
        """Whether keys are mostly read again by their records, not by their timers."""
        self._samples = Samples()

    @property
    def size_bytes(self) -> int:
        """What is in memory takes so much, roughly."""
        return self._columns.size_bytes

    # --- what hooks are given ---------------------------------------------------------------------------------

    def missing(self, keys: Mapping[str, Any]) -> list[str]:
        """Those of `keys` that must be loaded."""
        last_read = self.last_read
        if keys.keys() <= last_read.keys():
            return []
        return [*filterfalse(last_read.__contains__, keys)]

    def read(self, keys: Mapping[str, int]) -> list[str]:
        """Those of `keys` that must be loaded.  If none must, all are about to be read, as in `touch`."""
        last_read = self.last_read
        if self._met_new or 2 * self._columns.size_bytes > self.limit_bytes:
            missing = self.missing(keys)
        else:
            # To note that they are read finds what is missing, too: a second look at each key takes a thirtieth of all time.
            known = len(last_read)
            last_read.update(keys)
            missing = [last_read.popitem()[0] for _ in range(len(last_read) - known)]
            if not missing:
                self._last_cut.merge_for(keys)
                return missing
        self._met_new = bool(missing)
        if not missing:
            self.touch(keys)
        return missing

    def insert(self, key: str, cells: Mapping[Slot, bytes], more: bool = False) -> None:
        """Add a loaded key.  `more` says that the store has further cells of it."""
        self.last_read[key] = self._invocation
        self._columns.insert(key, cells, more)

    def fill(self, wanted: Iterable[Wanted], rows: Iterable[StateRow]) -> None:
        """Add slots of partial keys; `rows` are those of `wanted` that the store has."""
        self._columns.fill(wanted, rows)

    def expect_absent(self, keys: Collection[str]) -> None:
        """The store has no state of these keys, which `touch` adds to the cache.  A fold is cheaper if they are sorted."""
        self._columns.insert_empty(keys)
        self._loaded = keys

    def cells(self, key: str) -> dict[Slot, bytes]:
        """Everything stored under `key`, which is here."""
        self._last_cut.merge([key])
        return self._columns.of(key)

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
        self._last_cut.merge_for(keys)
        if 2 * self._columns.size_bytes > self.limit_bytes:
            self._before.update(zip(keys, map(self.last_read.get, keys), strict=True))
        self.last_read.update(keys)

    # --- what hooks have changed ------------------------------------------------------------------------------

    def write_all(self, outcome: InvocationOutcome, seq: Seq) -> list[CellWrites]:
        """Apply one checkpoint's writes to keys that are here; returns them as the columns of its log row."""
        if self._loaded:
            self._dirty.mark_absent(self._loaded, seq)
            self._loaded = ()
        self._columns.size_bytes += outcome.grown_bytes
        self._estimated_bytes += outcome.grown_bytes
        log = []
        for cell, writes in outcome.values.items():
            self._columns.merge(cell, writes)
            log.append(self._logged(cell, writes, seq))
        for cell, by_key in outcome.entries.items():
            log.append(self._columns.merge_entries(cell, by_key))
            self._dirty.mark_entries(cell, by_key, seq)
        return log

    def _logged(self, cell: str, writes: Mapping[str, bytes | None], seq: Seq) -> CellWrites:
        log = CellWrites(cell, list(writes), list(writes.values()))
        self._dirty.mark(log.keys, seq)
        return log

    def cut(self, seq: Seq) -> list[CellWrites]:
        """The values that were set since the last cut, as those of checkpoint `seq`; hooks find them from now on."""
        if self.changes is None:
            return []
        self._last_cut.merge_all()
        values = {cell: writes for cell, writes in self.changes.items() if writes}
        log = [self._logged(cell, writes, seq) for cell, writes in values.items()]
        self._last_cut.begin(seq, values, log, self._estimated_bytes)
        self.changes, self._estimated_bytes = {}, 0
        if len(self.last_read) <= limits.ADOPTED_AT_CUT:
            self._last_cut.merge_at_once()
        return log

    @property
    def changed(self) -> int:
        """Values that were set since the last cut."""
        return sum(map(len, self.changes.values())) if self.changes else 0

    def mark(self, keys: Collection[str], seq: Seq) -> None:
        """Something of `keys`, all of which are here, was written: they are dirty until it is folded."""
        self._dirty.mark(keys, seq)

    def forget(self, keys: Sequence[str], seq: Seq) -> None:
        """Clear the cells of `keys`, which are distinct; the removals themselves are dirty until they are folded."""
        if not keys:
            return
        self._last_cut.merge_all()
        self._columns.clear([key for key in keys if key in self.last_read])
        for changed in (self.changes or {}).values():
            for key in keys:
                changed.pop(key, None)
        self.last_read.update(dict.fromkeys(keys, self._invocation))
        self._columns.insert_empty(keys)
        self._dirty.mark_forgotten(keys, seq)

    # --- folds ------------------------------------------------------------------------------------------------

    def take_absent(self, upto: Seq) -> Set[str]:
        """Keys without state in the tables, for the fold up to `upto`: see `DirtyKeys.take_absent`."""
        return self._dirty.take_absent(upto)

    def folded(self, upto: Seq) -> None:
        """Writes of checkpoints up to `upto` are in the folded tables."""
        self._last_cut.folded(upto)
        self._dirty.folded(upto)

    @property
    def unfolded(self) -> int:
        """Dirty keys."""
        return len(self._dirty.keys)

    # --- what leaves ------------------------------------------------------------------------------------------

    def over_limit(self) -> bool:
        """True when the cache holds more bytes than it may."""
        return self._columns.size_bytes > self.limit_bytes

    def trim(self, busy: Container[str], next_timers: NextTimers | None, suspended: Container[str] = ()) -> list[str]:
        """Drop keys without state, and more if memory is over its limit, but no `busy` ones.  Returns the keys that left.

        `next_timers` says in how many invocations the next timers of keys are due.  None means that no key has one.
        What was loaded for `suspended` keys stays whole.
        """
        ended: dict[str, None] = {}
        for key in self._dirty.take_forgotten():
            if key in self.last_read and not self._kept(key) and key not in busy:
                ended[key] = None
        gone = [*ended]
        self._drop(gone)
        if self.over_limit():
            gone += self.evict(busy, next_timers)
        if self.over_limit() and self._columns.big:
            self._thin(suspended)
        return gone

    def _kept(self, key: str) -> bool:
        """Whether something of `key` was written that is not folded."""
        return key in self._dirty.keys or any(key in column for column in (self.changes or {}).values())

    def _thin(self, suspended: Container[str]) -> None:
        """Drop the clean entries of keys that cannot leave and have many.

        Otherwise a hot key that appends to a list would keep the whole list in memory while it is hot.
        """
        ending = self._dirty.being_forgotten()
        big = [key for key in self._columns.big if key not in suspended and key not in ending]
        self._last_cut.merge(big)
        for key, dirty in self._dirty.entries_of(big).items():
            self._columns.thin(key, dirty)

    def _drop(self, keys: Sequence[str]) -> None:
        self._columns.clear(keys)
        for key in keys:
            del self.last_read[key]
            self._before.pop(key, None)

    def evict(self, busy: Container[str], next_timers: NextTimers | None) -> list[str]:
        """Drop clean keys until one part in `EVICTED_ROOM` is free, so that not each new key evicts.  Returns what is gone.

        This is not LRU: of a sample, the keys whose next use is furthest away are dropped (`eviction`).
        """
        last_read, dirty, gone = self.last_read, self._dirty.keys, list[str]()
        goal, budget = (
            self.limit_bytes - self.limit_bytes // EVICTED_ROOM,
            min(2 * len(last_read), limits.EVICTION_SCAN),
        )
        wanted = len(last_read) * (self.size_bytes - goal) // max(1, self.size_bytes)
        # One key in so many of a sample is dropped.  The choice is better when fewer are, if that frees enough.
        share = max(2, min(EVICTED_SHARE, budget // max(1, 2 * wanted)))
        samples, scanned = self._samples.of(last_read), 0
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
