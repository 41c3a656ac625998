"""The context a hook runs in: the only way for user code to have an effect (§4.2, §5.1).

Lives here: buffering of effects per record.  Never here: decisions about delivery, I/O.  Invariant: what a hook did
is kept only when it returns; a hook that raises leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from millwheel import limits
from millwheel.api.stream import Stream
from millwheel.api.table import Fields, Table
from millwheel.api.typed import Row
from millwheel.bundles import QuarantineEntry, SinkRow
from millwheel.coders import AS_IT_IS
from millwheel.errors import CoderError, LimitError, RowError, TimestampError, WiringError
from millwheel.limits import VALUE_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME, Timer, TimerKind, format_time, whole_time
from millwheel.rows import check_key as check_row_key
from millwheel.rows import check_row
from millwheel.shape import SinkTable
from millwheel.work import QUARANTINE_HOLD, Cause, Columns, Entries, Known, Outcome, Suspended, Values, Wanted, Work

T = TypeVar("T")
R = TypeVar("R")

MISSING: Final[Any] = object()
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_BYTES: Final = (bytes, bytearray, memoryview)
"""Left as they are in a sink's row, to be refused: nobody who writes them into a text column means base64."""


class NotLoaded(BaseException):
    """A hook has asked for state that is not in memory: it runs again when it is.  No `except Exception` stops it."""


Route = tuple[int, Callable[[Any], str | None]]
"""A subscription and its key extractor."""


class Output(NamedTuple):
    """Where a produced value goes: its encoder and every subscription of the stream."""

    encode: Callable[[Any], bytes]
    routes: tuple[Route, ...]
    plain: type | None = None
    quick: Callable[[Any], bytes] = AS_IT_IS
    """What `encode` does with a value of exactly the type `plain`; for what it refuses, ask `encode` for the reason."""


class Chain(Protocol):
    """Whoever lets timers fire in their order."""

    def add(self, key: str, timers: Mapping[tuple[str, str], int | None]) -> None:
        """A hook of `key` has set, moved or cancelled `timers`, and has returned."""
        ...


class Column:
    """One value per key: what the store holds, under what this invocation has written (None: cleared)."""

    __slots__ = ("_cell", "_context", "base", "written")

    def __init__(self, context: Context, cell: str) -> None:
        self._context = context
        self._cell = cell
        self.base: Mapping[str, bytes] = _NOTHING
        self.written: dict[str, bytes | None] = {}

    def read(self) -> bytes | None:
        """The value of the current key."""
        key = self._context.key
        data: bytes | None = self.written.get(key, MISSING)
        if data is MISSING:
            data = self.base.get(key)
            if data is None and key in self._context._partial:
                self._context._want(self._cell, "")
        return data

    def write(self, data: bytes | None) -> None:
        """Set or clear the value of the current key."""
        context, written = self._context, self.written
        context._journal.append((written, context.key, written.get(context.key, MISSING)))
        written[context.key] = data


class EntryColumn:
    """The same with several entries per key."""

    __slots__ = ("_cell", "_context", "base", "written")

    def __init__(self, context: Context, cell: str) -> None:
        self._context = context
        self._cell = cell
        self.base: Mapping[str, Mapping[str, bytes]] = _NOTHING
        self.written: dict[str, dict[str, bytes | None]] = {}

    def read(self, entry: str) -> bytes | None:
        """The value of one entry of the current key."""
        key = self._context.key
        data: bytes | None = self.written.get(key, _NOTHING).get(entry, MISSING)
        if data is MISSING:
            data = self.base.get(key, _NOTHING).get(entry)
            if data is None and key in self._context._partial:
                self._context._want(self._cell, entry)
        return data

    def need(self, entries: Iterable[str]) -> None:
        """Have all of these in memory, at the price of one wait."""
        key, context = self._context.key, self._context
        if key in context._partial:
            known, written = self.base.get(key, _NOTHING), self.written.get(key, _NOTHING)
            context._want(self._cell, *(entry for entry in entries if entry not in known and entry not in written))

    def write(self, entry: str, data: bytes | None) -> None:
        """Set or remove one entry of the current key."""
        written = self.written.setdefault(self._context.key, {})
        self._context._journal.append((written, entry, written.get(entry, MISSING)))
        written[entry] = data

    def names(self) -> list[str]:
        """Entries of the current key that exist now, sorted."""
        key = self._context.key
        if key in self._context._partial:
            self._context._want(self._cell, None)
        written: Mapping[str, bytes | None] = self.written.get(key, _NOTHING)
        found = {*self.base.get(key, _NOTHING), *written}
        return sorted(entry for entry in found if entry not in written or written[entry] is not None)


class Context:
    """What `ProcessRecord` and `ProcessTimer` may do.  One object is reused for all of them: never keep it."""

    __slots__ = (
        "_cause", "_chain", "_columns", "_effects", "_entries", "_entry_columns", "_holds", "_input_hold", "_journal",
        "_lacking", "_outputs", "_partial", "_pending", "_places", "_produced_late", "_sinks", "_strict", "_tables",
        "_timers", "_values", "_wall", "_watermark", "key", "stream",
    )  # fmt: skip

    key: str
    """The key this hook runs for."""
    stream: str
    """Name of the stream the record came from; "" in `ProcessTimer`."""

    def __init__(
        self,
        outputs: Mapping[str, Output],
        tables: Mapping[str, Table[Any]],
        strict: bool,
        places: Mapping[str, str] = _NOTHING,
    ) -> None:
        self._outputs = outputs
        self._places = places
        self._tables = {name: (table.spec(), table.fields()) for name, table in tables.items()}
        self._strict = strict
        self._watermark = MIN_TIME
        self._wall = 0
        self._cause = MIN_TIME
        self._columns: dict[str, Column] = {}
        self._entry_columns: dict[str, EntryColumn] = {}
        self._values: Values = _NOTHING
        self._entries: Entries = _NOTHING
        self._partial: Mapping[str, Known] = _NOTHING
        self._lacking: list[Wanted] = []
        self._journal: list[tuple[dict[str, bytes | None], str, Any]] = []
        self._pending: list[Any] = []
        """Productions, four items each: subscription, key, encoded value, timestamp (flat, so that it costs no tuple)."""
        self._timers: dict[tuple[str, str], int | None] = {}
        self._chain: Chain | None = None
        """Told what the hooks of timers set."""
        self._sinks: list[SinkRow] = []
        self._holds: Any = MISSING
        self._input_hold: int | None = None
        self._produced_late = 0
        self._effects = False
        self.key = ""
        self.stream = ""

    # --- for user code ----------------------------------------------------------------------------------------

    @property
    def watermark(self) -> int:
        """Input low watermark, us: no record older than this is expected any more (§4.5)."""
        return self._watermark

    @property
    def wall_time(self) -> int:
        """Wall time of this invocation, us since the epoch; equal for all records of a bundle."""
        return self._wall

    def produce(self, stream: Stream[T], value: T, timestamp: int | None = None) -> None:
        """Emit `value` on `stream`, at the time of the current record or timer unless `timestamp` (us) is given.

        Raises `TimestampError` for a time before its cause (the record, timer or an earlier hold), `WiringError` for
        a stream that was not declared in `outputs`, `CoderError` for a value the stream's coder refuses.
        """
        try:
            name = stream.name
            encode, routes, plain, quick = self._outputs[name]
        except KeyError:
            raise WiringError(f"stream {name!r} is not among this computation's outputs {[*self._outputs]}") from None
        except AttributeError:
            raise WiringError(_no_stream(stream)) from None
        if timestamp is None:
            timestamp = self._cause
        else:
            if type(timestamp) is not int:
                timestamp = whole_time(timestamp, f"production on {name!r}")
            if timestamp < self._cause or timestamp >= MAX_TIME:
                self._check_time(name, timestamp)
        if type(value) is plain:
            try:
                data = quick(value)
            except Exception:
                data = encode(value)  # raises again, with a name and a reason
        else:
            data = encode(value)
        if len(data) > VALUE_LIMIT_BYTES:
            raise LimitError(f"value of {len(data)} bytes on {name!r}; limit {VALUE_LIMIT_BYTES}")
        for subscription, extract in routes:
            key = extract(value)
            if key is not None:
                if type(key) is not str or len(key) > 256 or not key.isascii():
                    check_key(key, name)
                self._pending.extend((subscription, key, data, timestamp))

    def set_timer(self, tag: str, timestamp: int, kind: TimerKind = "watermark") -> None:
        """Set, or move, the timer `tag` of this key to `timestamp`, us of event time ("watermark") or wall time.

        A low-watermark timer fires when the input watermark reaches it; one behind the watermark fires at once.
        """
        if type(timestamp) is not int:
            _check_tag(tag)
            timestamp = whole_time(timestamp, f"timer {tag!r}")
        _check_timer(tag, timestamp, kind)
        self._effects = True
        self._timers[kind, tag] = timestamp

    def cancel_timer(self, tag: str, kind: TimerKind = "watermark") -> None:
        """Remove the timer `tag` of this key; one that is not set is fine."""
        _check_timer(tag, 0, kind)
        self._effects = True
        self._timers[kind, tag] = None

    def hold(self, timestamp: int) -> None:
        """Keep this computation's low watermark at or below `timestamp` (us) until released: later productions of
        this key may be that old.  It is stored with the state."""
        if type(timestamp) is not int:
            timestamp = whole_time(timestamp, "hold")
        if not MIN_TIME < timestamp < MAX_TIME:
            raise TimestampError(f"hold at {timestamp} us is out of range")
        self._hold(timestamp)

    def release_hold(self) -> None:
        """End this key's hold."""
        self._hold(None)

    def _hold(self, timestamp: int | None) -> None:
        if self.key.endswith(QUARANTINE_HOLD):
            raise LimitError(f"key {self.key!r:.80} cannot have a hold: that name is the hold of another's quarantine")
        self._effects = True
        self._holds = timestamp

    def upsert(self, table: Table[R], row: Row[R]) -> None:
        """Insert or replace `row` in a sink table, in the same transaction as this record's checkpoint.

        A row has exactly the declared columns: a mapping of their names to values, or a value of the type that the table
        was declared with.  Raises `RowError` for a value that its column cannot hold.
        """
        known, fields = self._declared(table)
        values: Any = row
        if fields is not None:
            values = fields(row)
        if values.keys() != known.columns.keys():
            raise WiringError(
                f"row for table {table.name!r} has columns {sorted(values)}, declared are {sorted(known.columns)}"
            )
        try:
            checked = check_row(known, msgspec.to_builtins(values, str_keys=True, builtin_types=_BYTES))
        except ValueError as error:
            raise RowError(f"row for table {table.name!r}: {error}") from None
        self._effects = True
        self._sinks.append(SinkRow(table.name, msgspec.json.encode(checked)))

    def delete(self, table: Table[Any], key: Mapping[str, Any]) -> None:
        """Delete the row with this primary key from a sink table, as `upsert` does; one that is not there is fine.

        `key` maps exactly the columns of the table's key to values.  Of several writes of one row the last one counts.
        """
        known, _ = self._declared(table)
        if not isinstance(key, Mapping) or key.keys() != {*known.key}:
            given = sorted(key) if isinstance(key, Mapping) else f"{key!r:.80}"
            raise WiringError(f"the key of a row of table {table.name!r} is {given}, declared is {[*known.key]}")
        try:
            checked = check_row_key(known, msgspec.to_builtins(key, str_keys=True, builtin_types=_BYTES))
        except ValueError as error:
            raise RowError(f"key of a row of table {table.name!r}: {error}") from None
        self._effects = True
        self._sinks.append(SinkRow(table.name, msgspec.json.encode(checked), deleted=True))

    def _declared(self, table: Table[Any]) -> tuple[SinkTable, Fields | None]:
        try:
            return self._tables[table.name]
        except KeyError:
            raise WiringError(f"table {table.name!r} is not declared: call pipeline.sink(table)") from None

    # --- for state cells --------------------------------------------------------------------------------------

    def _place(self, cell: str) -> str:
        """The name under which the store keeps a cell: its own, or the one that it had at first."""
        return self._places.get(cell, cell)

    def _column(self, cell: str) -> Column:
        """The one value per key of `cell`."""
        column = self._columns.get(cell)
        if column is None:
            column = self._columns[cell] = Column(self, cell)
            column.base = self._values.get(cell, _NOTHING)
        return column

    def _entry_column(self, cell: str) -> EntryColumn:
        """The elements or entries per key of `cell`."""
        column = self._entry_columns.get(cell)
        if column is None:
            column = self._entry_columns[cell] = EntryColumn(self, cell)
            column.base = self._entries.get(cell, _NOTHING)
        return column

    def _want(self, cell: str, *entries: str | None) -> None:
        """The current key, which is in memory in part, is asked for what is not: go on only if nothing is there."""
        known = self._partial[self.key]
        lacking = [(self.key, cell, entry) for entry in entries if known.lacks(cell, entry)]
        if lacking:
            self._effects = True  # a hook that swallows this has not returned in the sense of `_commit`
            self._lacking += lacking
            raise NotLoaded

    # --- for the executor -------------------------------------------------------------------------------------

    # State writes and productions go straight to the invocation's.  The executor notes how long the journal and the
    # productions are when a hook begins: `_rollback` cuts them back to that.

    def _start(self, work: Work) -> None:
        """An invocation begins, or goes on."""
        self._watermark, self._wall = work.watermark, work.wall_time
        self._values, self._entries, self._partial = work.values, work.entries, work.partial
        before = work.suspended
        for cell, column in self._columns.items():
            column.base, column.written = work.values.get(cell, _NOTHING), before.values.get(cell, {}) if before else {}
        for cell, entries in self._entry_columns.items():
            entries.base, entries.written = (
                work.entries.get(cell, _NOTHING),
                before.entries.get(cell, {}) if before else {},
            )
        if before:
            self._pending += before.produced

    def _suspend(self, outcome: Outcome, waiting: list[QuarantineEntry | Timer]) -> Suspended:
        """The invocation waits; until it goes on others may run here."""
        values = {cell: column.written for cell, column in self._columns.items()}
        entries = {cell: column.written for cell, column in self._entry_columns.items()}
        suspended = Suspended(outcome, values, entries, [*self._pending], waiting)
        self._pending.clear()
        self._journal.clear()
        return suspended

    def _commit(self, outcome: Outcome, cause: tuple[Any, ...]) -> None:
        """The hook returned: keep its rarer effects too (only needed when `_effects` is set).

        `cause` is what made it run: a `Cause` without its key.
        """
        if self._lacking:
            raise NotLoaded
        if self._timers:
            outcome.timers.setdefault(self.key, {}).update(self._timers)
            if self._chain is not None:
                self._chain.add(self.key, self._timers)
            self._timers.clear()
        if self._sinks:
            outcome.sinks += self._sinks
            outcome.causes += [Cause(self.key, *cause)] * len(self._sinks)
            self._sinks.clear()
        if self._holds is not MISSING:
            outcome.holds[self.key] = self._input_hold = self._holds
            self._holds = MISSING
        outcome.backdated += self._produced_late
        self._produced_late = 0
        self._effects = False

    def _rollback(self, journal: int, pending: int) -> None:
        """Forget everything the hook that just raised has done; it began at these lengths."""
        for written, name, old in reversed(self._journal[journal:]):
            if old is MISSING:
                del written[name]
            else:
                written[name] = old
        del self._journal[journal:]
        del self._pending[pending:]
        self._timers.clear()
        self._sinks.clear()
        self._holds = MISSING
        self._produced_late = 0
        self._effects = False

    def _finish(self, outcome: Outcome) -> None:
        """The invocation is over: hand over its state writes and its productions, as columns."""
        subscriptions, *columns = (self._pending[column::4] for column in range(4))
        different = sorted(set(subscriptions))
        for subscription in different:
            cut = columns
            if len(different) > 1:
                at = [i for i, found in enumerate(subscriptions) if found == subscription]
                cut = [[column[i] for i in at] for column in columns]
            outcome.produced[subscription] = Columns(*cut)
        self._pending.clear()
        self._journal.clear()
        outcome.values = {cell: column.written for cell, column in self._columns.items() if column.written}
        for cell, entries in self._entry_columns.items():
            kept = {key: written for key, written in entries.written.items() if written}
            if kept:
                outcome.entries[cell] = kept

    def _check_time(self, stream: str, timestamp: int) -> None:
        bound = self._cause
        if self._input_hold is not None:
            bound = min(bound, self._input_hold)
        if not MIN_TIME < timestamp < MAX_TIME:
            raise TimestampError(f"production on {stream!r} for key {self.key!r}: timestamp {timestamp} out of range")
        if timestamp >= bound:
            return
        if self._strict:
            raise TimestampError(
                f"production on {stream!r} for key {self.key!r} at {format_time(timestamp)} is older than its cause "
                f"at {format_time(bound)}: set a hold before, or produce at the cause's time or later"
            )
        self._effects = True
        self._produced_late += 1


def check_key(key: Any, where: str) -> None:
    """A key is a str of at most `limits.KEY_LIMIT_BYTES` UTF-8 bytes; a lone surrogate has none."""
    if not isinstance(key, str):
        raise WiringError(f"key extractor of {where!r} returned {type(key).__name__}, not str: {key!r:.80}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise CoderError(f"key on {where!r} is not valid Unicode: {key!r:.60}: {error.reason}") from error
    if size > limits.KEY_LIMIT_BYTES:
        raise LimitError(f"key of {size} bytes on {where!r}: {key!r:.60}…; limit {limits.KEY_LIMIT_BYTES}")


def _no_stream(given: object) -> str:
    return f"produce({given!r:.60}, …): the first argument is a Stream, not {type(given).__name__}"


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str):
        raise WiringError(
            f"timer {tag!r:.60}: the first argument is a tag, which is text, not {type(tag).__name__}; "
            "for example set_timer('close', 5)"
        )


def _check_timer(tag: str, timestamp: int, kind: str) -> None:
    _check_tag(tag)
    if kind not in ("watermark", "wall"):
        raise WiringError(f"timer kind {kind!r}: use 'watermark' or 'wall'")
    if not MIN_TIME < timestamp < MAX_TIME:
        raise TimestampError(f"timer {tag!r} at {timestamp} us is out of range")
    if len(tag.encode()) > limits.TAG_LIMIT_BYTES or "\0" in tag:
        raise LimitError(f"timer tag {tag!r:.60}: at most {limits.TAG_LIMIT_BYTES} bytes and no NUL")
