"""What the hooks of one invocation read and do, gathered until they return (§4.2, §5.1).

Lives here: state as the hooks see it, and their buffered effects.  User code reaches it through `Context`.  State cells and
the executor use it directly.  Never here: decisions about delivery, I/O, checks of what user code gives (`context`).
This module may be compiled (ADR 0058).
Invariant: what a hook did is kept only when it returns.  A hook that raises leaves no trace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import get_ident
from types import MappingProxyType, ModuleType
from typing import Any, Final, Protocol

from mypy_extensions import mypyc_attr

from millwheel import limits
from millwheel.api.late import NoKey, late_call
from millwheel.bundles import QuarantineEntry, SinkRow
from millwheel.errors import LateCall, LimitError
from millwheel.limits import GROWTH_SAMPLE, HEAVY_VALUE_BYTES, SLOT_OVERHEAD_BYTES, WRITE_OVERHEAD_BYTES
from millwheel.model import MIN_TIME, Timer
from millwheel.work import Cause, Columns, Entries, InvocationOutcome, Known, Suspended, Values, Wanted, Work

MISSING: Final[Any] = object()
_LIMITS: Final[ModuleType] = limits
"""The bounds as they are when they are looked at: a compiler would put in the numbers, and tests lower them."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class NotLoaded(BaseException):
    """A hook has asked for state that is not in memory, and runs again when it is.  `except Exception` does not catch it."""


class TimerOrder(Protocol):
    """Whoever lets timers fire in their order."""

    def add(self, key: str, timers: Mapping[tuple[str, str], int | None]) -> None:
        """A hook of `key` has set, moved or cancelled `timers`, and has returned."""
        ...


class Column:
    """One value per key: what the store holds, under what this invocation has written (None: cleared)."""

    __slots__ = ("_cell", "_frame", "base", "written")

    def __init__(self, frame: Frame, cell: str) -> None:
        self._frame = frame
        self._cell = cell
        self.base: Mapping[str, bytes] = _NOTHING
        self.written: dict[str, bytes | None] = {}
        """Under snapshots, what all invocations have written since the last cut."""

    def read(self) -> bytes | None:
        """The value of the current key."""
        key = self._frame.here()
        found: Any = self.written.get(key, MISSING)
        data: bytes | None = self.base.get(key) if found is MISSING else found
        if found is MISSING and data is None and key in self._frame.partial:
            self._frame.want(self._cell, "")
        return data

    def write(self, data: bytes | None) -> None:
        """Set or clear the value of the current key."""
        frame, written = self._frame, self.written
        key = frame.here()
        old = written.get(key, MISSING)
        frame.grow_over(frame.own(written, key, old), data, HEAVY_VALUE_BYTES)
        frame.journal.extend((written, key, old))
        written[key] = data


class EntryColumn:
    """The same with several entries per key."""

    __slots__ = ("_cell", "_frame", "base", "written")

    def __init__(self, frame: Frame, cell: str) -> None:
        self._frame = frame
        self._cell = cell
        self.base: Mapping[str, Mapping[str, bytes]] = _NOTHING
        self.written: dict[str, dict[str, bytes | None]] = {}

    def read(self, entry: str) -> bytes | None:
        """The value of one entry of the current key."""
        key = self._frame.here()
        found: Any = self.written.get(key, _NOTHING).get(entry, MISSING)
        data: bytes | None = self.base.get(key, _NOTHING).get(entry) if found is MISSING else found
        if found is MISSING and data is None and key in self._frame.partial:
            self._frame.want(self._cell, entry)
        return data

    def need(self, entries: Iterable[str]) -> None:
        """Have all of these in memory, at the price of one wait."""
        key, frame = self._frame.here(), self._frame
        if key in frame.partial:
            known, written = self.base.get(key, _NOTHING), self.written.get(key, _NOTHING)
            frame.want(self._cell, *(entry for entry in entries if entry not in known and entry not in written))

    def write(self, entry: str, data: bytes | None) -> None:
        """Set or remove one entry of the current key."""
        written = self.written.setdefault(self._frame.here(), {})
        old = written.get(entry, MISSING)
        self._frame.grow_over(old, data)
        self._frame.journal.extend((written, entry, old))
        written[entry] = data

    def names(self) -> list[str]:
        """Entries of the current key that exist now, sorted."""
        key = self._frame.here()
        if key in self._frame.partial:
            self._frame.want(self._cell, None)
        written: Mapping[str, bytes | None] = self.written.get(key, _NOTHING)
        found = {*self.base.get(key, _NOTHING), *written}
        return sorted(entry for entry in found if entry not in written or written[entry] is not None)


@mypyc_attr(allow_interpreted_subclasses=True)
class Frame:
    """One computation's invocation, as its hooks leave it.  One object is reused for all of them.

    State writes and productions go straight to those of the invocation.  The lengths of the journal and of the
    productions are noted when a hook begins, and `rollback` cuts them back to these lengths.

    A cell is the same object for every hook, so it knows its hook by the thread that runs the invocation.  Only the value of
    a `ValueCell` may be read in other threads while a hook runs: to ask for the thread each time would cost too much.

    What hooks make is bounded, a call's and an invocation's.  Not each production is weighed for that: as many as may be made
    without passing a bound, however heavy they are, are weighed together.
    """

    __slots__ = (
        "_changes", "_columns", "_computation", "_earlier_bytes", "_entries", "_entry_columns", "_grown_bytes", "_no_key",
        "_places", "_values", "_weighed", "began", "cause", "chain", "effects", "hold", "input_hold", "journal", "key",
        "lacking", "light", "own_bytes", "partial", "pending", "produced_late", "sinks", "stream", "thread", "timers",
        "wall_time", "watermark",
    )  # fmt: skip

    def __init__(self, places: Mapping[str, str] = _NOTHING, computation: str = "") -> None:
        self._places = places
        self._computation = computation
        self._columns: dict[str, Column] = {}
        self._entry_columns: dict[str, EntryColumn] = {}
        self._values: Values = _NOTHING
        self._changes: dict[str, dict[str, bytes | None]] | None = None
        self._entries: Entries = _NOTHING
        self._no_key: str = NoKey(computation)
        self.key: str = self._no_key
        """The key that a hook runs for."""
        self.thread = 0
        """The thread that runs the invocation; 0 between two of them."""
        self.stream = ""
        """The stream of its record; "" for a timer."""
        self.cause: Any = MIN_TIME
        """Time of the record or timer, us: what the hook produces is not older, unless a hold allows it.  As it is only
        handed on, it stays the object that it is."""
        self.watermark = MIN_TIME
        """Input low watermark, us."""
        self.wall_time = 0
        """Wall time of the invocation, us."""
        self.partial: Mapping[str, Known] = _NOTHING
        """Keys that are in memory in part."""
        self.lacking: list[Wanted] = []
        """What the hook asked for that is not in memory."""
        self.journal: list[Any] = []
        """What each write of the invocation replaced, three items each: the dict that was written, the name in it, and its
        value before (flat, as `pending` is)."""
        self.pending: list[Any] = []
        """Productions, four items each: subscription, key, encoded value, timestamp (flat, so that it costs no tuple)."""
        self.effects = False
        """The hook has had effects of the rarer kinds, which `commit` keeps."""
        self.timers: dict[tuple[str, str], int | None] = {}
        """(kind, tag) to what the hook sets it to, us; None: cancelled."""
        self.sinks: list[SinkRow] = []
        self.hold: Any = MISSING
        """What the hook has made of its key's hold: us, or None for released."""
        self.input_hold: int | None = None
        """The key's hold before that, us."""
        self.produced_late = 0
        """Productions of the hook that are older than their cause."""
        self.chain: TimerOrder | None = None
        """Told what the hooks of timers set."""
        self.began = 0
        """The length of `pending` when the hook began."""
        self.light = 0
        """The length of `pending` up to which no limit can be passed, as long as all values are light."""
        self.own_bytes = 0
        """What the hook has written, and produced before the last weighing."""
        self._earlier_bytes = 0
        """The same of the hooks before it."""
        self._weighed = 0
        """The length of `pending` at the last weighing."""
        self._grown_bytes = 0
        """What `own_bytes` may be before all has to be weighed."""

    # --- for state cells --------------------------------------------------------------------------------------

    def here(self) -> str:
        """The key that a hook runs for, for this hook only: raises `LateCall` for whoever else asks."""
        if get_ident() != self.thread:
            raise self.late()
        return self.key

    def late(self, called: str = "") -> LateCall:
        """The error for a call that no hook has made."""
        return late_call(self._computation, called)

    def bound(self) -> int:
        """The oldest time, us, of which the hook may speak."""
        hold = self.input_hold
        cause: int = self.cause
        return cause if hold is None else min(cause, hold)

    def place(self, cell: str) -> str:
        """The name under which the store keeps a cell: its own, or the one that it had at first."""
        return self._places.get(cell, cell)

    def column(self, cell: str) -> Column:
        """The one value per key of `cell`."""
        column = self._columns.get(cell)
        if column is None:
            column = self._columns[cell] = Column(self, cell)
            column.base = self._values.get(cell, _NOTHING)
            if self._changes is not None:
                column.written = self._changes.setdefault(cell, {})
        return column

    def entry_column(self, cell: str) -> EntryColumn:
        """The elements or entries per key of `cell`."""
        column = self._entry_columns.get(cell)
        if column is None:
            column = self._entry_columns[cell] = EntryColumn(self, cell)
            column.base = self._entries.get(cell, _NOTHING)
        return column

    def want(self, cell: str, *entries: str | None) -> None:
        """Ask for a slot of the current key, which is in memory in part.  Returns only if the slot is known to be empty."""
        known = self.partial[self.key]
        lacking = [(self.key, cell, entry) for entry in entries if known.lacks(cell, entry)]
        if lacking:
            self.effects = True  # a hook that swallows this has not returned in the sense of `commit`
            self.lacking += lacking
            raise NotLoaded

    def own(self, written: dict[str, bytes | None], key: str, old: Any) -> Any:
        """`old` if this invocation has written it.  Only a heavy value is looked for: a light one does not count."""
        if self._changes is None or type(old) is not bytes or len(old) <= HEAVY_VALUE_BYTES:
            return old
        found = zip(self.journal[::3], self.journal[1::3], strict=True)
        return old if any(where is written and name == key for where, name in found) else MISSING

    def grow_over(self, old: Any, data: bytes | None, above_bytes: int = -1) -> None:
        """The hook writes `data` in the place of `old`, which counts only if this invocation has written it.

        Values of up to `above_bytes` do not count.
        """
        if type(old) is bytes and len(old) > above_bytes:
            self.own_bytes -= len(old) + WRITE_OVERHEAD_BYTES
        if data is not None and len(data) > above_bytes:
            self.grow(len(data))

    def grow(self, size_bytes: int) -> None:
        """The hook writes so much; raises `LimitError` when that is more than one call may."""
        self.own_bytes += size_bytes + WRITE_OVERHEAD_BYTES
        if self.own_bytes > self._grown_bytes:
            self.weigh()

    def weigh(self) -> None:
        """Add up what was produced since the last time, and say how much more need not be weighed.

        Raises `LimitError` when the hook has produced and written more than one call may.
        """
        began, pending = self.began, self.pending
        if self._weighed < began:
            self._earlier_bytes += _weight(pending[self._weighed + 2 : began : 4])
            self._weighed = began
        self.own_bytes += _weight(pending[self._weighed + 2 :: 4])
        self._weighed = len(pending)
        room: int = _LIMITS.CALL_LIMIT_BYTES - self.own_bytes
        if room < 0:
            raise LimitError(
                f"a hook produces and writes more than {_LIMITS.CALL_LIMIT_BYTES:,} bytes in one call: spread it over several"
                " records or timers"
            )
        left: int = _LIMITS.OUTCOME_LIMIT_BYTES - self._earlier_bytes - self.own_bytes
        if left >= 0:
            room = min(room, left)
        else:
            self.effects = True  # so that the executor looks whether another hook may run
        # Half of the room is for what is written and half for productions, each as heavy as a light one can be.
        self._grown_bytes = self.own_bytes + room // 2
        self.light = self._weighed + 4 * (room // 2 // (HEAVY_VALUE_BYTES + WRITE_OVERHEAD_BYTES))

    # --- for the executor -------------------------------------------------------------------------------------

    def enter(self) -> None:
        """A hook is called."""
        self.began = len(self.pending)
        if self.own_bytes:
            self.settle()

    def settle(self) -> None:
        """What the last hook has written is that of an earlier one now."""
        self._earlier_bytes += self.own_bytes
        self._grown_bytes -= self.own_bytes
        self.own_bytes = 0

    def written_bytes(self) -> int:
        """What the hooks of the invocation have produced and written so far."""
        return self._earlier_bytes + self.own_bytes + _weight(self.pending[self._weighed + 2 :: 4])

    def full(self) -> bool:
        """Whether hooks have made so much that no other one may run in this invocation."""
        limit: int = _LIMITS.OUTCOME_LIMIT_BYTES
        return self._earlier_bytes + self.own_bytes > limit

    def start(self, work: Work) -> None:
        """An invocation begins, or goes on."""
        self.thread = get_ident()
        self.watermark, self.wall_time = work.watermark, work.wall_time
        self._values, self._entries, self.partial = work.values, work.entries, work.partial
        before, changes = work.suspended, work.changes
        self._changes = changes
        self._earlier_bytes, self.own_bytes = before.outcome.written_bytes if before else 0, 0
        for cell, column in self._columns.items():
            column.base = work.values.get(cell, _NOTHING)
            if changes is not None:
                column.written = changes.setdefault(cell, {})
            else:
                column.written = before.values.get(cell, {}) if before else {}
        for cell, entries in self._entry_columns.items():
            entries.base, entries.written = (
                work.entries.get(cell, _NOTHING),
                before.entries.get(cell, {}) if before else {},
            )
        if before:
            self.pending += before.produced
            self.journal += before.journal
        self.began = self._weighed = len(self.pending)
        self.weigh()

    def suspend(self, outcome: InvocationOutcome, waiting: list[QuarantineEntry | Timer]) -> Suspended:
        """The invocation waits.  Until it goes on, others may use this frame."""
        values = {cell: column.written for cell, column in self._columns.items()}
        entries = {cell: column.written for cell, column in self._entry_columns.items()}
        outcome.written_bytes = self.written_bytes()
        journal = [] if self._changes is None else [*self.journal]
        suspended = Suspended(outcome, values, entries, [*self.pending], waiting, journal)
        self.abandon()
        return suspended

    def commit(self, outcome: InvocationOutcome, cause: Cause) -> None:
        """The hook returned: keep its rarer effects too (only needed when `effects` is set)."""
        if self.lacking:
            raise NotLoaded
        if self.timers:
            outcome.timers.setdefault(self.key, {}).update(self.timers)
            if self.chain is not None:
                self.chain.add(self.key, self.timers)
            self.timers.clear()
        if self.sinks:
            outcome.sinks += self.sinks
            outcome.causes += [cause] * len(self.sinks)
            self.sinks.clear()
        if self.hold is not MISSING:
            outcome.holds[self.key] = self.input_hold = self.hold
            self.hold = MISSING
        outcome.backdated += self.produced_late
        self.produced_late = 0
        self.effects = False

    def rollback(self, journal: int) -> None:
        """Forget everything the hook that just raised has done; the journal had this length when it began."""
        self._undo(journal)
        del self.pending[self.began :]
        self.timers.clear()
        self.sinks.clear()
        self.hold = MISSING
        self.produced_late = 0
        self.effects = False
        self.own_bytes = 0
        self.weigh()

    def _undo(self, journal: int) -> None:
        undone = self.journal[journal:]
        for written, name, old in zip(undone[-3::-3], undone[-2::-3], undone[-1::-3], strict=True):
            if old is MISSING:
                del written[name]
            else:
                written[name] = old
        del self.journal[journal:]

    def put_back(self) -> None:
        """Nothing of the invocation counts: its records run again, fewer at a time."""
        if self._changes is not None:
            self._undo(0)
        self.abandon()

    def abandon(self) -> None:
        """Forget everything that the hooks of the invocation have done: it is over, or waits."""
        self.thread, self.key = 0, self._no_key
        self.pending.clear()
        self.journal.clear()

    def finish(self, outcome: InvocationOutcome) -> None:
        """The invocation is over: hand over its state writes and its productions, as columns."""
        outcome.written_bytes = self.written_bytes()
        subscriptions, *columns = (self.pending[column::4] for column in range(4))
        different = sorted(set(subscriptions))
        for subscription in different:
            cut = columns
            if len(different) > 1:
                at = [i for i, found in enumerate(subscriptions) if found == subscription]
                cut = [[column[i] for i in at] for column in columns]
            outcome.produced[subscription] = Columns(*cut)
        if self._changes is None:
            outcome.values = {cell: column.written for cell, column in self._columns.items() if column.written}
        else:
            outcome.grown_bytes = self._growth()
        self.abandon()
        for cell, entries in self._entry_columns.items():
            kept = {key: written for key, written in entries.written.items() if written}
            if kept:
                outcome.entries[cell] = kept

    def _growth(self) -> int:
        """By how much what was written is larger than what it has replaced, by a sample of the writes of values."""
        grown, columns, step = 0, {id(column.written): column for column in self._columns.values()}, 3 * GROWTH_SAMPLE
        writes = zip(self.journal[::step], self.journal[1::step], self.journal[2::step], strict=True)
        for written, key, old in writes:
            if (column := columns.get(id(written))) is not None:
                before = column.base.get(key) if old is MISSING else old
                after = written[key]
                grown += 0 if after is None else len(after) + SLOT_OVERHEAD_BYTES
                grown -= 0 if before is None else len(before) + SLOT_OVERHEAD_BYTES
        return grown * GROWTH_SAMPLE


def _weight(values: list[bytes]) -> int:
    """What these productions take in a checkpoint, bytes."""
    return sum(map(len, values)) + WRITE_OVERHEAD_BYTES * len(values)
