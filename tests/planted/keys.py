"""Bugs of keys: which are in memory, and what is known of those that are not."""

from __future__ import annotations

from typing import Any

from millwheel.api.frame import Frame
from millwheel.bundles import QuarantineEntry
from millwheel.core.ids.seen import SeenKeys
from millwheel.core.keys import expiry
from millwheel.core.keys.cache import StateCache
from millwheel.core.keys.dirty import DirtyKeys
from millwheel.core.keys.key_columns import KeyColumns
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.host import cache_shares
from millwheel.host.cache_shares import CacheShares
from millwheel.runtime import memory
from millwheel.runtime.executor import Executor
from millwheel.work import Work
from tests.planted import Patches, mutant, only


@mutant
def evicts_dirty() -> Patches:
    """Dirty keys are evicted."""
    original = StateCache.evict

    def evict(self: StateCache, busy: Any, next_timers: Any) -> list[str]:
        dirty, self._dirty.keys = self._dirty.keys, set()
        try:
            return original(self, busy, next_timers)
        finally:
            self._dirty.keys = dirty

    return {(StateCache, "evict"): evict}


@mutant
def fresh_for_ever() -> Patches:
    """A key that a fold has inserted is inserted again."""
    return {(DirtyKeys, "take_absent"): lambda self, upto: set().union(*(keys for _, keys in self._absent))}


@mutant
def never_seen() -> Patches:
    """The filter of keys says of each that no hook has had it."""
    original = SeenKeys.add

    def add(self: SeenKeys, keys: list[str]) -> list[str]:
        return original(self, keys) if self._filter is None else []

    return {(SeenKeys, "add"): add}


@mutant
def always_blank() -> Patches:
    """An owner takes the keys that another one has stored for new."""
    original = SeenKeys.__init__
    return {(SeenKeys, "__init__"): lambda self, blank: original(self, True)}


@mutant
def removed_comes_back() -> Patches:
    """What was removed from a key that is in memory in part is asked of the store again, which still has it."""
    return {(KeyColumns, "_removed"): lambda self, cell, slots: None}


@mutant
def thin_forgets_removals() -> Patches:
    """A hot key is thinned without a note of what was removed from it and is not folded."""
    original = KeyColumns.thin

    def thin(self: KeyColumns, key: str, dirty: Any) -> None:
        kept = {cell: {entry: value for entry, value in writes.items() if value} for cell, writes in dirty.items()}
        original(self, key, kept)

    return {(KeyColumns, "thin"): thin}


@mutant
def thin_drops_dirty() -> Patches:
    """A hot key is thinned of entries that are not folded."""
    original = KeyColumns.thin
    return {(KeyColumns, "thin"): lambda self, key, dirty: original(self, key, {})}


@mutant
def overtakes_who_waits() -> Patches:
    """A record runs before one of its key that waits for state."""
    original = Executor._waits

    def waits(self: Executor, it: Any) -> bool:
        waiting = original(self, it)
        self._waiting_keys.clear()
        return waiting

    return {(Executor, "_waits"): waits}


@mutant
def forgets_while_waiting() -> Patches:
    """What an invocation did before one of its hooks waited for state is lost."""
    original = Frame.suspend

    def suspend(self: Frame, outcome: Any, waiting: Any) -> Any:
        suspended = original(self, outcome, waiting)
        suspended.entries.clear()
        return suspended

    return {(Frame, "suspend"): suspend}


@mutant
def runs_all_again() -> Patches:
    """An invocation that waited for state begins from the start, and keeps what it did before."""
    original = Executor.run

    def run(self: Executor, work: Any) -> Any:
        if work.suspended is not None:
            again = [QuarantineEntry(k, p.subscription, p.producer, s, v, t) for p in work.parts
                     for k, s, v, t in zip(p.keys, p.sequences, p.values, p.timestamps, strict=True)]  # fmt: skip
            work.suspended.waiting = again or work.suspended.waiting
        return original(self, work)

    return {(Executor, "run"): run}


@mutant
def no_rollback() -> Patches:
    """State that a hook wrote before it raised is kept."""
    original = Frame.rollback

    def rollback(self: Frame, journal: int) -> None:
        self.journal.clear()
        original(self, journal)

    return {(Frame, "rollback"): rollback}


SHARES = "tests/unit/host/test_cache_shares.py"


@only(SHARES)
def share_without_eviction() -> Patches:
    """A share of memory shrinks, and what is in memory stays until the next fold."""
    original = KeyedState.allow

    def allow(self: KeyedState, limit_bytes: int) -> bool:
        original(self, limit_bytes)
        return False

    return {(KeyedState, "allow"): allow}


@only(SHARES)
def share_for_all() -> Patches:
    """A computation with a limit of its own has a share of memory instead."""
    return {
        (CacheShares, "_sharing"): lambda self: [core for _, core in self._actors.intervals()],
    }


@only(SHARES)
def first_come() -> Patches:
    """Intervals that have filled the memory keep it, and one that comes later has next to nothing."""

    def shares(sizes: Any, whole: int) -> list[int]:
        return [max(1, size + whole - sum(sizes)) for size in sizes]

    return {(cache_shares, "shares"): shares}


@only(SHARES)
def shares_for_ever() -> Patches:
    """Shares of memory are made when intervals come and go, and not when they grow."""

    def look(self: CacheShares, now: int) -> None:
        if self._look_at == 0:
            self._look_at = now + 10**18
            self._make()

    return {(CacheShares, "look"): look}


@only("tests/unit/runtime/test_memory.py")
def only_the_machine() -> Patches:
    """A container's limit of memory is not read."""
    return {(memory, "_allowed"): lambda root: iter(())}


@only("tests/unit/core/keys/test_cache.py::test_what_is_known_of_a_key_that_is_here_in_part_is_right")
def removed_and_still_there() -> Patches:
    """What was removed from a key that is in memory in part is asked of the store, which still has it."""
    return {(KeyColumns, "_removed"): lambda self, cell, slots: None}


@only("tests/unit/api/test_frame.py")
def put_back_but_set() -> Patches:
    """What hooks have set stays in the changes of the epoch when their invocation is put back."""
    return {(Frame, "put_back"): lambda self: self.abandon()}


@only("tests/unit/api/test_frame.py")
def put_back_after_a_wait() -> Patches:
    """Of an invocation that is put back, what was set before it waited for state stays in the changes of the epoch."""
    original = Frame.suspend

    def suspend(self: Frame, outcome: Any, waiting: Any) -> Any:
        suspended = original(self, outcome, waiting)
        suspended.journal.clear()
        return suspended

    return {(Frame, "suspend"): suspend}


@only("tests/unit/core/keys/test_cache.py")
def gone_before_the_cut() -> Patches:
    """A key leaves memory that was set since the last cut."""
    return {(StateCache, "_kept"): lambda self, key: key in self._dirty.keys}


@only("tests/unit/core/keys/test_expiry.py")
def lives_by_wall_timers() -> Patches:
    """A wall timer extends the life of its key in event time."""
    original = expiry._newest_by_key

    def newest(work: Work) -> dict[str, int]:
        found = original(work)
        for timer in work.timers:
            found[timer.key] = max(found.get(timer.key, timer.timestamp), timer.timestamp)
        return found

    return {(expiry, "_newest_by_key"): newest}
