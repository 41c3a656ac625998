"""The context a hook runs in: the only way for user code to have an effect (§4.2, §5.1).

Lives here: what user code may ask for, with checks.  Never here: buffering of effects (`frame`), decisions about delivery,
I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from millwheel import limits
from millwheel.api.frame import Frame
from millwheel.api.late import Gone
from millwheel.api.stream import Stream
from millwheel.api.table import Fields, Table
from millwheel.api.typed import Row
from millwheel.bundles import SinkRow
from millwheel.coders import AS_IT_IS
from millwheel.errors import CoderError, LimitError, RowError, TimestampError, WiringError
from millwheel.ids import SubscriptionId
from millwheel.limits import HEAVY_VALUE_BYTES, VALUE_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME, TimerKind, format_time, whole_time
from millwheel.rows import check_key as check_row_key
from millwheel.rows import check_row, plain_values
from millwheel.shape import SinkTable
from millwheel.work import QUARANTINE_HOLD

T = TypeVar("T")
R = TypeVar("R")

Route = tuple[SubscriptionId, Callable[[Any], str | None]]
"""A subscription and its key extractor."""


class Output(NamedTuple):
    """Where a produced value goes: its encoder and every subscription of the stream."""

    encode: Callable[[Any], bytes]
    routes: tuple[Route, ...]
    plain: type | None = None
    quick: Callable[[Any], bytes] = AS_IT_IS
    """What `encode` does with a value of exactly the type `plain`; for what it refuses, ask `encode` for the reason."""


class Context:
    """What `ProcessRecord` and `ProcessTimer` may do.  Never keep it: once its hook is over, every call raises `LateCall`."""

    __slots__ = ("_frame", "_looped", "_outputs", "_strict", "_tables")

    def __init__(
        self,
        frame: Frame,
        outputs: Mapping[str, Output],
        tables: Mapping[str, Table[Any]],
        strict: bool,
        looped: bool = False,
    ) -> None:
        self._frame = frame
        self._outputs = outputs
        self._tables = {name: (table.spec(), table.fields()) for name, table in tables.items()}
        self._strict = strict
        self._looped = looped
        """The computation is in a loop, whose floor trusts that nothing older comes of what is there."""

    @property
    def key(self) -> str:
        """The key this hook runs for."""
        return self._frame.key

    @property
    def stream(self) -> str:
        """Name of the stream the record came from; "" in `ProcessTimer`."""
        return self._frame.stream

    @property
    def watermark(self) -> int:
        """Input low watermark, us: no record older than this is expected any more (§4.5)."""
        return self._frame.watermark

    @property
    def wall_time(self) -> int:
        """Wall time of this invocation, us since the epoch; equal for all records of a bundle."""
        return self._frame.wall_time

    def produce(self, stream: Stream[T], value: T, timestamp: int | None = None) -> None:
        """Emit `value` on `stream`, at the time of the current record or timer unless `timestamp` (us) is given.

        Raises `TimestampError` for a time before its cause (the record, timer or an earlier hold), `WiringError` for
        a stream that was not declared in `outputs`, `CoderError` for a value the stream's coder refuses.
        """
        frame = self._frame
        try:
            name = stream.name
            encode, routes, plain, quick = self._outputs[name]
        except KeyError:
            raise WiringError(f"stream {name!r} is not among this computation's outputs {[*self._outputs]}") from None
        except AttributeError:
            raise WiringError(_no_stream(stream)) from None
        if timestamp is None:
            timestamp = frame.cause
        else:
            if type(timestamp) is not int:
                timestamp = whole_time(timestamp, f"production on {name!r}")
            if timestamp < frame.cause or timestamp >= MAX_TIME:
                self._check_time(name, timestamp)
        if type(value) is plain:
            try:
                data: bytes = value if quick is AS_IT_IS else quick(value)  # type: ignore[assignment]  # it is bytes then
            except Exception:
                data = encode(value)  # raises again, with a name and a reason
        else:
            data = encode(value)
        if len(data) > HEAVY_VALUE_BYTES:
            if len(data) > VALUE_LIMIT_BYTES:
                raise LimitError(f"value of {len(data)} bytes on {name!r}; limit {VALUE_LIMIT_BYTES}")
            frame.light = 0
        for subscription, extract in routes:
            key = extract(value)
            if key is not None:
                if type(key) is not str or len(key) > 256 or not key.isascii():
                    check_key(key, name)
                pending = frame.pending
                pending.append(subscription)  # four appends take less time than one `extend` by a tuple
                pending.append(key)
                pending.append(data)
                pending.append(timestamp)
                if len(pending) > frame.light:
                    frame.weigh()

    def set_timer(self, tag: str, timestamp: int, kind: TimerKind = "watermark") -> None:
        """Set, or move, the timer `tag` of this key to `timestamp`, us of event time ("watermark") or wall time.

        A watermark timer fires when the input watermark reaches its time.  One behind the watermark fires at once.  In a
        loop, one before its cause (the record, timer or an earlier hold) is a `TimestampError`.
        """
        if type(timestamp) is not int:
            _check_tag(tag)
            timestamp = whole_time(timestamp, f"timer {tag!r}")
        _check_timer(tag, timestamp, kind)
        if self._looped and kind == "watermark" and timestamp < self._frame.cause:
            self._check_cause(f"timer {tag!r}", timestamp)
        self._frame.effects = True
        self._frame.timers[kind, tag] = timestamp

    def cancel_timer(self, tag: str, kind: TimerKind = "watermark") -> None:
        """Remove the timer `tag` of this key; one that is not set is fine."""
        _check_timer(tag, 0, kind)
        self._frame.effects = True
        self._frame.timers[kind, tag] = None

    def hold(self, timestamp: int) -> None:
        """Keep this computation's low watermark at or below `timestamp` (us) until released: later productions of
        this key may be that old.  It is stored with the state.

        In a loop, a hold before its cause (the record, timer or an earlier hold) is a `TimestampError`.
        """
        if type(timestamp) is not int:
            timestamp = whole_time(timestamp, "hold")
        if not MIN_TIME < timestamp < MAX_TIME:
            raise TimestampError(f"hold at {timestamp} us is out of range")
        if self._looped and timestamp < self._frame.cause:
            self._check_cause("hold", timestamp)
        self._hold(timestamp)

    def release_hold(self) -> None:
        """End this key's hold."""
        self._hold(None)

    def _hold(self, timestamp: int | None) -> None:
        if self._frame.key.endswith(QUARANTINE_HOLD):
            raise LimitError(f"key {self.key!r:.80} cannot have a hold: that name is the hold of another's quarantine")
        self._frame.effects = True
        self._frame.hold = timestamp

    def upsert(self, table: Table[R], row: Row[R]) -> None:
        """Insert or replace `row` in a sink table, in the same transaction as this record's checkpoint.

        A row has exactly the declared columns: a mapping of their names to values, or a value of the type that the table
        was declared with.  Raises `RowError` for a value that its column cannot hold.
        """
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
        self._write(SinkRow(table.name, msgspec.json.encode(checked)))

    def delete(self, table: Table[Any], key: Mapping[str, Any]) -> None:
        """Delete the row with this primary key from a sink table, as `upsert` does; one that is not there is fine.

        `key` maps exactly the columns of the table's key to values.  Of several writes of one row the last one counts.
        """
        known, _ = self._declared(table)
        if not isinstance(key, Mapping) or key.keys() != {*known.key}:
            given = sorted(key, key=str) if isinstance(key, Mapping) else f"{key!r:.80}"
            raise WiringError(f"the key of a row of table {table.name!r} is {given}, declared is {[*known.key]}")
        try:
            checked = check_row_key(known, plain_values(key))
        except ValueError as error:
            raise RowError(f"key of a row of table {table.name!r}: {error}") from None
        self._write(SinkRow(table.name, msgspec.json.encode(checked), deleted=True))

    def _write(self, row: SinkRow) -> None:
        self._frame.grow(len(row.values))
        self._frame.effects = True
        self._frame.sinks.append(row)

    def _declared(self, table: Table[Any]) -> tuple[SinkTable, Fields | None]:
        try:
            return self._tables[table.name]
        except AttributeError:
            raise WiringError(f"{table!r:.80} is {type(table).__name__}: the first argument is a Table") from None
        except KeyError:
            raise WiringError(f"table {table.name!r} is not declared: call pipeline.sink(table)") from None

    def _bound(self) -> int:
        """The oldest time, us, of which the hook may speak."""
        hold = self._frame.input_hold
        return self._frame.cause if hold is None else min(self._frame.cause, hold)

    def _check_cause(self, what: str, timestamp: int) -> None:
        """In a loop the time of what is there bounds what may come of it, timers and holds included."""
        bound = self._bound()
        if timestamp >= bound:
            return
        if self._strict:
            raise TimestampError(
                f"{what} for key {self._frame.key!r} at {format_time(timestamp)} is older than its cause at "
                f"{format_time(bound)}, and this computation is in a loop: set it to the cause's time or later"
            )
        self._frame.effects = True
        self._frame.produced_late += 1

    def _check_time(self, stream: str, timestamp: int) -> None:
        frame = self._frame
        bound = self._bound()
        if not MIN_TIME < timestamp < MAX_TIME:
            raise TimestampError(f"production on {stream!r} for key {frame.key!r}: timestamp {timestamp} out of range")
        if timestamp >= bound:
            return
        if self._strict:
            raise TimestampError(
                f"production on {stream!r} for key {frame.key!r} at {format_time(timestamp)} is older than its cause "
                f"at {format_time(bound)}: set a hold before, or produce at the cause's time or later"
            )
        frame.effects = True
        frame.produced_late += 1


def succeeded(context: Context, computation: str) -> Context:
    """Another context in the place of this one, which user code may have kept: from now on each of its calls raises."""
    other = copy(context)
    context._frame = cast("Frame", Gone(computation))  # noqa: SLF001  # no method: users would see it
    return other


def check_key(key: Any, stream: str = "") -> None:
    """Check a key: a str of at most `limits.KEY_LIMIT_BYTES` bytes of UTF-8.  A lone surrogate has no UTF-8."""
    on = stream and f" on {stream!r}"
    if not isinstance(key, str):
        raise WiringError(f"key extractor{on} returned {type(key).__name__}, not str: {key!r:.80}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError as error:
        raise CoderError(f"key{on} is not valid Unicode: {key[:50]!r}: {error.reason}") from error
    if size > limits.KEY_LIMIT_BYTES:
        raise LimitError(f"key of {size} bytes{on}: {key[:50]!r}…; limit {limits.KEY_LIMIT_BYTES}")


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
    try:
        size = len(tag.encode())
    except UnicodeEncodeError as error:
        raise CoderError(f"timer tag {tag!r:.60} is not valid Unicode: {error.reason}") from None
    if size > limits.TAG_LIMIT_BYTES or "\0" in tag:
        raise LimitError(f"timer tag {tag!r:.60}: at most {limits.TAG_LIMIT_BYTES} bytes and no NUL")
