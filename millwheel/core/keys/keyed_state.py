"""What an interval knows of its keys, as one: state in memory, timers, holds, and what of these sleeps.

Lives here: the only writer of the four (a contract of import-linter), and the reads that others need.  Never here: when
something runs, expires or goes into quarantine.  Invariants:

* a timer that is taken is due, awake, and before every other one of its kind that is pending (I8);
* what a checkpoint writes of timers and holds is what is pending after it (I8);
* the timers of a key in memory are all in memory, and what leaves memory is in the store's tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Protocol

from millwheel.bundles import (
    CellWrites,
    HoldWrites,
    KeyRows,
    RecoveredInterval,
    StateRow,
    StateWrites,
    TimerPlace,
    TimerWrites,
)
from millwheel.core.keys.cache import NextTimers, StateCache
from millwheel.core.keys.holds import Holds
from millwheel.core.keys.timers import TimerName, TimerQueue
from millwheel.errors import InvariantError
from millwheel.ids import Seq
from millwheel.model import EXPIRY_KIND, EXPIRY_TAG, Timer
from millwheel.work import InvocationOutcome, Wanted, Work


class PendingTimers(Protocol):
    """The timers of an interval, to look at: see `TimerQueue`."""

    @property
    def complete(self) -> bool:
        """True when every pending timer is in memory."""
        ...

    def pending(self, key: str) -> bool:
        """True when `key`, whose state is in memory, has any timer but its expiry."""
        ...

    def of(self, key: str) -> Iterator[tuple[tuple[str, str], int]]:
        """((kind, tag), timestamp) of a key's timers without its expiry."""
        ...

    def expiry(self, key: str) -> int | None:
        """When `key`, whose state is in memory, expires."""
        ...

    def next_of(self, keys: Iterable[str], default: int) -> list[int]:
        """The earliest timestamp of each key's timers that are in memory."""
        ...

    def empty(self) -> bool:
        """No key has a timer in memory but for its expiry."""
        ...

    def minimum(self, kind: str) -> int | None:
        """A time before which no timer of a kind is pending; None when none is pending at all."""
        ...

    def first(self, kind: str) -> TimerName | None:
        """The name of the earliest timer of a kind, if that is in memory."""
        ...

    def may_be_due(self, watermark: int, now: int, expiry: int) -> bool:
        """False when no timer in memory is due by the watermark, the wall time or the time of expiry."""
        ...

    def reach(self, kind: str, until: int) -> TimerPlace:
        """The first place at which a timer may be pending; nothing before it is due by `until`."""
        ...

    def wanted(self, kind: str, until: int) -> TimerPlace | None:
        """The place after which the next page of `kind` must be read, or None."""
        ...


class KeptHolds(Protocol):
    """The holds of an interval, to look at: see `Holds`."""

    @property
    def all(self) -> Mapping[str, int]:
        """Every hold, asleep or not."""
        ...

    def counting(self, name: str) -> int:
        """The timestamp of a hold that counts, or MAX_TIME."""
        ...

    def minimum(self) -> int:
        """The oldest hold that counts, or MAX_TIME."""
        ...

    def first(self) -> str | None:
        """The name of the oldest hold that counts."""
        ...


class KeyedState:
    """The keys of one interval; `limit_bytes` bounds their state in memory.

    With `by_epochs`, hooks write values to the changes of an epoch, which `cut` ends.
    """

    def __init__(self, limit_bytes: int, by_epochs: bool = False) -> None:
        self._cache = StateCache(limit_bytes, by_epochs)
        self._timers = TimerQueue()
        self._holds = Holds()
        self._asleep: set[str] = set()
        """Keys whose timers sleep."""
        self.timers: PendingTimers = self._timers
        self.holds: KeptHolds = self._holds

    def restore(self, recovered: RecoveredInterval) -> None:
        """Begin with what an earlier owner has left."""
        self._timers.restore(recovered.timers, recovered.more_timers)
        for key, hold in zip(recovered.holds.keys, recovered.holds.timestamps, strict=True):
            if hold is not None:
                self._holds.set(key, hold)

    # --- what hooks are given ---------------------------------------------------------------------------------

    def work(self, watermark: int, now: int) -> Work:
        """An invocation without anything to do yet, on the state that is in memory."""
        cache = self._cache
        return Work(
            [], [], cache.values, cache.entries, {}, watermark, now, partial=cache.partial, changes=cache.changes
        )

    def take_due(
        self, kind: str, until: int, limit: int, alone: Callable[[int, TimerName], bool] | None = None
    ) -> list[tuple[int, TimerName]]:
        """Take at most `limit` timers of `kind` that are due by `until`, in order.

        A timer for which `alone` is true is taken by itself.
        """
        due = self._timers.pop_due(kind, until, limit, alone)
        if due:
            self._check_due(kind, until, due)
        return due

    def _check_due(self, kind: str, until: int, due: list[tuple[int, TimerName]]) -> None:
        last = due[-1]
        if last[0] > until:
            raise InvariantError(f"I8: a {kind} timer of {last} is taken at {until}, before it is due")
        following = self._timers.next_place(kind)
        if due != sorted(due) or (following is not None and following <= last):
            raise InvariantError(f"I8: a {kind} timer of {last} is taken before an earlier one")
        if self._asleep and kind != EXPIRY_KIND and not self._asleep.isdisjoint(key for _, (key, _) in due):
            raise InvariantError(f"I8: a {kind} timer is taken whose key sleeps")

    def take_stalls(self, work: Work) -> None:
        """Give `work` what is known of its timers that were due already when they were set."""
        stalls = self._timers.stalls
        if stalls:
            names = [(timer.key, timer.kind, timer.tag) for timer in work.timers]
            work.stalls = {name: stalls.pop(name) for name in names if name in stalls}

    def put_back(self, timer: Timer) -> None:
        """A timer that was taken does not fire now: it is pending as before."""
        self._timers.set(timer.key, timer.kind, timer.tag, timer.timestamp)

    def holds_of(self, keys: Iterable[str]) -> dict[str, int]:
        """The holds of those of `keys` that have one."""
        holds = self._holds.all
        return {key: holds[key] for key in keys if key in holds} if holds else {}

    # --- what hooks have changed ------------------------------------------------------------------------------

    def apply(
        self, work: Work, outcome: InvocationOutcome, seq: Seq, timers: TimerWrites, holds: HoldWrites
    ) -> StateWrites:
        """What an invocation did becomes what is known, as checkpoint `seq`; the writes say the same to the store."""
        self._apply_timers(work, outcome, timers)
        self._cache.mark([*(timer.key for timer in work.timers), *outcome.timers], seq)
        self._apply_holds(outcome, holds)
        return StateWrites(self._cache.write_all(outcome, seq))

    def cut(self, seq: Seq) -> list[CellWrites]:
        """An epoch ends with checkpoint `seq`: the values that hooks have set in it."""
        return self._cache.cut(seq)

    @property
    def changed(self) -> int:
        """Values that were set since the last cut."""
        return self._cache.changed

    def _apply_timers(self, work: Work, outcome: InvocationOutcome, writes: TimerWrites) -> None:
        for timer in work.timers:
            if (timer.kind, timer.tag) not in outcome.timers.get(timer.key, ()):
                writes.add(timer.key, timer.tag, timer.kind, None)
        stalls = self._timers.stalls
        for key, changes in outcome.timers.items():
            for (kind, tag), at in changes.items():
                if stalls:
                    stalls.pop((key, kind, tag), None)
                if at is None:
                    self._timers.remove(key, kind, tag)
                else:
                    self._timers.set(key, kind, tag, at)
                writes.add(key, tag, kind, at)
        stalls.update(outcome.stalls)

    def _apply_holds(self, outcome: InvocationOutcome, writes: HoldWrites) -> None:
        for key, at in outcome.holds.items():
            if at is None:
                self._holds.remove(key)
            else:
                self._holds.set(key, at)
            writes.add(key, at)

    def check_written(self, timers: TimerWrites, holds: HoldWrites) -> None:
        """Raise `InvariantError` unless what a checkpoint writes is what is pending after it (I8)."""
        if timers.keys and not self._timers.are_awake(timers):
            names = zip(timers.keys, timers.kinds, timers.tags, strict=True)
            for (key, kind, tag), at in dict(zip(names, timers.timestamps, strict=True)).items():
                if self._timers.at(key, kind, tag) != at:
                    raise InvariantError(
                        f"I8: the {kind} timer {tag!r} of {key!r} is written at {at}, and is not there"
                    )
        for name, at in dict(zip(holds.keys, holds.timestamps, strict=True)).items():
            if self._holds.all.get(name) != at:
                raise InvariantError(f"I8: the hold of {name!r} is written at {at}, and is not there")

    # --- expiry -----------------------------------------------------------------------------------------------

    def set_expiry(self, key: str, at: int, writes: TimerWrites) -> None:
        """`key` expires at `at`, us."""
        self._timers.set(key, EXPIRY_KIND, EXPIRY_TAG, at)
        writes.add(key, EXPIRY_TAG, EXPIRY_KIND, at)

    def keep(self, key: str, seq: Seq) -> None:
        """A key that was to expire stays; checkpoint `seq` says so."""
        self._cache.mark((key,), seq)

    def forget(self, keys: Sequence[str], seq: Seq) -> None:
        """The state of `keys`, which have neither timers nor holds, ends with checkpoint `seq`."""
        self._cache.forget(keys, seq)

    # --- quarantine -------------------------------------------------------------------------------------------

    def sleep(self, key: str, keeps_hold: bool) -> None:
        """The timers of `key` are not due until it wakes, and its hold does not count, unless the key keeps it."""
        self._asleep.add(key)
        self._timers.sleep(key)
        if not keeps_hold:
            self._holds.sleep(key)

    def wake(self, key: str) -> None:
        """The timers and the hold of `key` count again."""
        self._asleep.discard(key)
        self._timers.wake(key)
        self._holds.wake(key)

    def hold(self, name: str, at: int, writes: HoldWrites) -> None:
        """Something else than a hook holds the watermark at `at`, us, under `name`."""
        self._holds.set(name, at)
        writes.add(name, at)

    def release(self, name: str, writes: HoldWrites) -> None:
        """It holds the watermark no more, if it did."""
        if name in self._holds.all:
            self._holds.remove(name)
            writes.add(name, None)

    # --- what is in memory ------------------------------------------------------------------------------------

    @property
    def invocation(self) -> int:
        """The number of the newest invocation."""
        return self._cache.invocation

    def next_invocation(self) -> int:
        """The number of an invocation that begins."""
        return self._cache.next_invocation()

    def missing(self, keys: Mapping[str, Any]) -> list[str]:
        """Those of `keys` that must be loaded."""
        return self._cache.missing(keys)

    def read(self, keys: Mapping[str, int]) -> list[str]:
        """Those of `keys` that must be loaded.  If none must, all are about to be read, as in `touch`."""
        return self._cache.read(keys)

    def load(self, asked: Collection[str], rows: Iterable[KeyRows], expiring: Mapping[str, int]) -> None:
        """`rows` are all that the store has of the keys that were `asked` for; `expiring` keys are read next."""
        if asked:
            stored = {row.key for row in rows if row.cells}
            self._cache.expect_absent([key for key in asked if key not in stored] if stored else asked)
            self._cache.touch(expiring)
        for row in rows:
            if row.cells:
                self._cache.insert(row.key, row.cells, row.more)
            for (kind, tag), timestamp in row.timers.items():
                self._timers.recall(row.key, kind, tag, timestamp)

    def touch(self, keys: Mapping[str, int]) -> None:
        """`keys` are about to be read, in the newest invocation; all are here, or absent from the store."""
        self._cache.touch(keys)

    def fill(self, wanted: Iterable[Wanted], rows: Iterable[StateRow]) -> None:
        """Add state of keys that are here in part."""
        self._cache.fill(wanted, rows)

    def add_page(self, kind: str, page: TimerWrites, more: bool) -> None:
        """Add a page of the store's timers; with `more`, others follow."""
        self._timers.add_page(kind, page, more, self._cache.last_read)

    def trim(
        self,
        busy: Container[str],
        suspended: Container[str],
        *,
        by_records: bool,
        next_timers: NextTimers,
        sheds_timers: bool,
    ) -> None:
        """Let keys leave memory, but no `busy` ones, and with `sheds_timers` their timers; see `StateCache.trim`."""
        self._cache.by_records = by_records
        gone = self._cache.trim(busy, None if self._timers.empty() else next_timers, suspended)
        if sheds_timers:
            self._timers.shed(gone, self._cache.last_read.__contains__)

    # --- folds ------------------------------------------------------------------------------------------------

    @property
    def size_bytes(self) -> int:
        """What the state in memory takes, roughly."""
        return self._cache.size_bytes

    def allow(self, limit_bytes: int) -> bool:
        """State in memory may take so much from now on.  True when it takes more."""
        self._cache.limit_bytes = limit_bytes
        return self._cache.over_limit()

    @property
    def unfolded(self) -> int:
        """Keys with changes that are not folded."""
        return self._cache.unfolded

    def over_limit(self) -> bool:
        """True when there is more in memory than there may be."""
        return self._cache.over_limit()

    def take_absent(self, upto: Seq) -> Set[str]:
        """Keys without state in the tables, for the fold up to `upto`: see `StateCache.take_absent`."""
        return self._cache.take_absent(upto)

    def folded(self, upto: Seq) -> None:
        """Checkpoints up to `upto` are in the tables."""
        self._cache.folded(upto)
