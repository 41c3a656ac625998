"""The context a hook runs in: the only way for user code to have an effect (§4.2, §5.1).

Lives here: what user code may ask for, with checks.  Never here: buffering of effects (`frame`), decisions about delivery,
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from millwheel import limits
from millwheel.api.frame import Frame
from millwheel.api.producer import Output, Producer
from millwheel.api.stream import Stream
from millwheel.api.table import Fields, Table
from millwheel.api.typed import Row
from millwheel.bundles import SinkRow
from millwheel.errors import CoderError, LimitError, RowError, TimestampError, WiringError
from millwheel.model import MAX_TIME, MIN_TIME, TimerKind, format_time, whole_time
from millwheel.rows import check_key as check_row_key
from millwheel.rows import check_row, plain_values
from millwheel.shape import SinkTable
from millwheel.work import QUARANTINE_HOLD

T = TypeVar("T")
R = TypeVar("R")

Declared = tuple[SinkTable, Fields | None]
"""A sink table as it is declared, and what turns a value of its type into columns."""


class Context(Producer):
    """What `ProcessRecord` and `ProcessTimer` may do.  Never keep it: once its hook is over, every call raises `LateCall`."""

    __slots__ = ("_looped", "_tables")

    def __init__(
        self,
        frame: Frame,
        outputs: dict[str, Output],
        tables: Mapping[str, Declared],
        strict: bool,
        looped: bool,
        computation: str,
    ) -> None:
        super().__init__(frame, outputs, strict, computation)
        self._tables = tables
        self._looped = looped
        """The computation is in a loop, whose floor trusts that nothing older comes of what is there."""

    if TYPE_CHECKING:

        def produce(self, stream: Stream[T], value: T, timestamp: int | None = None) -> None:
            """See `Producer`, which checks what it is given in its own words."""

    @property
    def key(self) -> str:
        """The key this hook runs for."""
        return self._live("key").key

    @property
    def stream(self) -> str:
        """Name of the stream the record came from; "" in `ProcessTimer`."""
        return self._live("stream").stream

    @property
    def watermark(self) -> int:
        """Input low watermark, us: no record older than this is expected any more (§4.5)."""
        return self._live("watermark").watermark

    @property
    def wall_time(self) -> int:
        """Wall time of this invocation, us since the epoch; equal for all records of a bundle."""
        return self._live("wall_time").wall_time

    def set_timer(self, tag: str, timestamp: int, kind: TimerKind = "watermark") -> None:
        """Set, or move, the timer `tag` of this key to `timestamp`, us of event time ("watermark") or wall time.

        A watermark timer fires when the input watermark reaches its time.  One behind the watermark fires at once.  In a
        loop, one before its cause (the record, timer or an earlier hold) is a `TimestampError`.
        """
        frame = self._live("set_timer")
        if type(timestamp) is not int:
            _check_tag(tag)
            timestamp = whole_time(timestamp, f"timer {tag!r}")
        _check_timer(tag, timestamp, kind)
        if self._looped and kind == "watermark" and timestamp < frame.cause:
            self._check_cause(frame, f"timer {tag!r}", timestamp)
        frame.effects = True
        frame.timers[kind, tag] = timestamp

    def cancel_timer(self, tag: str, kind: TimerKind = "watermark") -> None:
        """Remove the timer `tag` of this key; one that is not set is fine."""
        frame = self._live("cancel_timer")
        _check_timer(tag, 0, kind)
        frame.effects = True
        frame.timers[kind, tag] = None

    def hold(self, timestamp: int) -> None:
        """Keep this computation's low watermark at or below `timestamp` (us) until released: later productions of
        this key may be that old.  It is stored with the state.

        In a loop, a hold before its cause (the record, timer or an earlier hold) is a `TimestampError`.
        """
        frame = self._live("hold")
        if type(timestamp) is not int:
            timestamp = whole_time(timestamp, "hold")
        if not MIN_TIME < timestamp < MAX_TIME:
            raise TimestampError(f"hold at {timestamp} us is out of range")
        if self._looped and timestamp < frame.cause:
            self._check_cause(frame, "hold", timestamp)
        _hold(frame, timestamp)

    def release_hold(self) -> None:
        """End this key's hold."""
        _hold(self._live("release_hold"), None)

    def upsert(self, table: Table[R], row: Row[R]) -> None:
        """Insert or replace `row` in a sink table, in the same transaction as this record's checkpoint.

        A row has exactly the declared columns: a mapping of their names to values, or a value of the type that the table
        was declared with.  Raises `RowError` for a value that its column cannot hold.
        """
        frame = self._live("upsert")
        known, fields = self._declared(table)
        values: Any = row
        if fields is not None:
            values = fields(row)
        try:
            columns = values.keys()
        except AttributeError:
            raise WiringError(
                f"row for table {table.name!r} is {row!r:.80}: give a mapping of columns {sorted(known.columns)} to values"
            ) from None
        if columns != known.columns.keys():
            raise WiringError(
                f"row for table {table.name!r} has columns {sorted(columns, key=str)}, declared are {sorted(known.columns)}"
            )
        try:
            checked = check_row(known, plain_values(values))
        except ValueError as error:
            raise RowError(f"row for table {table.name!r}: {error}") from None
        _write(frame, SinkRow(table.name, msgspec.json.encode(checked)))

    def delete(self, table: Table[Any], key: Mapping[str, Any]) -> None:
        """Delete the row with this primary key from a sink table, as `upsert` does; one that is not there is fine.

        `key` maps exactly the columns of the table's key to values.  Of several writes of one row the last one counts.
        """
        frame = self._live("delete")
        known, _ = self._declared(table)
        if not isinstance(key, Mapping) or key.keys() != {*known.key}:
            given = sorted(key, key=str) if isinstance(key, Mapping) else f"{key!r:.80}"
            raise WiringError(f"the key of a row of table {table.name!r} is {given}, declared is {[*known.key]}")
        try:
            checked = check_row_key(known, plain_values(key))
        except ValueError as error:
            raise RowError(f"key of a row of table {table.name!r}: {error}") from None
        _write(frame, SinkRow(table.name, msgspec.json.encode(checked), deleted=True))

    def _succeeded(self) -> Self:
        frame, self._frame = self._live("key"), None
        return type(self)(frame, self._outputs, self._tables, self._strict, self._looped, self._computation)

    def _declared(self, table: Table[Any]) -> Declared:
        try:
            return self._tables[table.name]
        except AttributeError:
            raise WiringError(f"{table!r:.80} is {type(table).__name__}: the first argument is a Table") from None
        except KeyError:
            raise WiringError(f"table {table.name!r} is not declared: call pipeline.sink(table)") from None

    def _check_cause(self, frame: Frame, what: str, timestamp: int) -> None:
        """In a loop the time of what is there bounds what may come of it, timers and holds included."""
        bound = frame.bound()
        if timestamp >= bound:
            return
        if self._strict:
            raise TimestampError(
                f"{what} for key {frame.key!r} at {format_time(timestamp)} is older than its cause at "
                f"{format_time(bound)}, and this computation is in a loop: set it to the cause's time or later"
            )
        frame.effects = True
        frame.produced_late += 1


def succeeded(context: Context) -> Context:
    """Another context in the place of this one, which user code may have kept: from now on each of its calls raises."""
    return context._succeeded()  # noqa: SLF001  # no public method: users would see it


def declared_tables(tables: Mapping[str, Table[Any]]) -> dict[str, Declared]:
    """The sink tables of a pipeline as a context looks them up."""
    return {name: (table.spec(), table.fields()) for name, table in tables.items()}


def _hold(frame: Frame, timestamp: int | None) -> None:
    if frame.key.endswith(QUARANTINE_HOLD):
        raise LimitError(f"key {frame.key!r:.80} cannot have a hold: that name is the hold of another's quarantine")
    frame.effects = True
    frame.hold = timestamp


def _write(frame: Frame, row: SinkRow) -> None:
    frame.grow(len(row.values))
    frame.effects = True
    frame.sinks.append(row)


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
    try:
        size = len(tag.encode())
    except UnicodeEncodeError as error:
        raise CoderError(f"timer tag {tag!r:.60} is not valid Unicode: {error.reason}") from None
    if size > limits.TAG_LIMIT_BYTES or "\0" in tag:
        raise LimitError(f"timer tag {tag!r:.60}: at most {limits.TAG_LIMIT_BYTES} bytes and no NUL")
