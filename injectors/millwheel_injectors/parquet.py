"""One Parquet file as a partition, read by row group with pyarrow.

Lives here: row groups, positions, statistics.  Never here: which files there are.  pyarrow is imported when a file
is opened. Invariant: a row's number is its place in the file, whatever was rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Final

import msgspec

from millwheel.errors import SourceError
from millwheel.limits import FILE_HEAD_LIMIT_BYTES, PARQUET_DECODE_ROWS, PARQUET_SCAN_ROWS, WORK_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import Batch
from millwheel_injectors.identity import digest_of
from millwheel_injectors.rejects import Reject, Rejects, raw_text
from millwheel_injectors.row_columns import RowColumns, RowMaker, us_of
from millwheel_injectors.times import EventTime, stamp, typed_us
from millwheel_injectors.watermarks import Exact, Gauge, Minima, Policy

STATE_VERSION: Final = 1


class ParquetState(msgspec.Struct):
    """A position in a Parquet file, as stored (JSON)."""

    version: int
    path: str
    size: int
    digest: str
    row: int = 0
    seen: int | None = None


class ParquetReading(msgspec.Struct):
    """How a source reads its Parquet files.

    `columns` None means those of `type`, or all.  `event_time` is a column name or a function of a value.
    """

    type: Any
    columns: Sequence[str] | None
    event_time: str | EventTime
    policy: Policy
    rejects: Rejects


class ParquetPartition:
    """One committed Parquet file, which never changes."""

    def __init__(self, name: str, place: Path, reading: ParquetReading, constants: Mapping[str, str | None]) -> None:
        self.name = name
        self._place = place
        self._reading = reading
        self._constants = constants
        self._gauge = Gauge(reading.policy)
        self._file: Any = None
        self._row = 0
        self._batches: Iterator[Any] | None = None
        self._batch: Any = None
        self._next = 0
        self._finished = False
        self._least = MIN_TIME
        """The smallest event time of the file, as its statistics say, us.  They say nothing of later files."""
        self._statistics = False

    def _look(self) -> ParquetState:
        try:
            with open(self._place, "rb") as file:
                head = file.read(FILE_HEAD_LIMIT_BYTES)
                size = file.seek(0, 2)
        except FileNotFoundError as error:
            raise SourceError(f"{self._place}: committed by Spark, but gone; restore it") from error
        return ParquetState(STATE_VERSION, self.name, size, digest_of(head))

    def fingerprint(self) -> bytes:
        """The state before the first row."""
        return msgspec.json.encode(self._look())

    def resume(self, position: int, state: bytes) -> None:
        """Continue at row `position`."""
        try:
            stored = msgspec.json.decode(state, type=ParquetState)
        except msgspec.MsgspecError as error:
            raise SourceError(f"{self.name}: stored position is not of a Parquet file: {error}") from error
        now = self._look()
        if (stored.version, stored.size, stored.digest) != (now.version, now.size, now.digest):
            raise SourceError(
                f"{self._place}: rewritten: {now.size} bytes now, {stored.size} when it was first read, "
                "or another beginning; restore it, and let Spark write each run into a new directory"
            )
        self.close()
        self._row, self._finished = position, False
        self._gauge.seen = stored.seen if position >= stored.row else None

    def _open(self) -> None:
        if self._file is not None:
            return
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ModuleNotFoundError as error:
            raise SourceError(
                f"{self._place}: Parquet needs pyarrow: pip install 'millwheel-streams[spark]'"
            ) from error
        self._state = self._look()
        try:
            self._file = pq.ParquetFile(self._place, coerce_int96_timestamp_unit="us")
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"{self._place}: not a complete Parquet file: {error}") from error
        self._maker = RowMaker(
            self._place, self._file.schema_arrow, self._reading.type, self._reading.columns, self._constants
        )
        time = self._reading.event_time
        self._time_column = time if isinstance(time, str) and time not in self._constants else None
        if self._time_column is not None and self._time_column not in self._file.schema_arrow.names:
            raise SourceError(f"{self._place}: no event time column {time!r}: {self._file.schema_arrow.names}")

    def _start(self) -> Iterator[Any]:
        """Record batches from the row group that holds the next row, which is the first of the first
        batch."""
        groups = [self._file.metadata.row_group(i).num_rows for i in range(self._file.num_row_groups)]
        first, skip = 0, self._row
        while first < len(groups) and skip >= groups[first]:
            skip -= groups[first]
            first += 1
        if skip and first == len(groups):
            raise SourceError(f"{self._place}: has {sum(groups)} rows, but {self._row} were read before")
        columns = list(dict.fromkeys([*self._maker.names, *([self._time_column] if self._time_column else [])]))
        chosen = range(first, len(groups))
        for batch in self._decoded(PARQUET_DECODE_ROWS, row_groups=list(chosen), columns=columns):
            if skip < batch.num_rows:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)

    def _decoded(self, rows: int, **chosen: Any) -> Iterator[Any]:
        """What pyarrow decodes; raises `SourceError` for pages that it cannot."""
        import pyarrow as pa

        try:
            yield from self._file.iter_batches(rows, **chosen)
        except (pa.ArrowException, OSError) as error:
            why = " ".join(str(error).split())
            raise SourceError(f"{self._place}: a damaged Parquet file: {why}; restore it") from error

    def read(self, limit: int) -> Batch | None:
        """At most `limit` rows; a batch may hold no value when every row was rejected."""
        if self._finished:
            return None
        self._open()
        if self._batches is None:
            self._batches = self._start()
        while self._batch is None or self._next >= self._batch.num_rows:
            self._batch, self._next = next(self._batches, None), 0
            if self._batch is None:
                self._finished = True
                self.close()
                return None
        piece = self._batch.slice(self._next, min(limit, affordable(self._batch)))
        self._next += piece.num_rows
        return self._make(piece)

    def _make(self, piece: Any) -> Batch:
        first = self._row
        self._row += piece.num_rows
        columns = self._maker.columns(piece)
        values, bad = self._maker.values(columns)
        times = self._times(columns, values, bad)
        rows = list(range(first, self._row))
        if bad:
            self._reject(columns, first, bad)
            good = [index not in bad for index in range(columns.count)]
            rows, values, times = (list(compress(column, good)) for column in (rows, values, times))
        self._gauge.saw(times)
        self._state.row, self._state.seen = self._row, self._gauge.seen
        return Batch(rows, values, times, self._row, msgspec.json.encode(self._state), len(bad))

    def _times(self, columns: RowColumns, values: list[Any], bad: dict[int, str]) -> list[int]:
        """Event times; reasons for those that have none go to `bad`."""
        time = self._reading.event_time
        inputs = columns.data[time] if isinstance(time, str) and time in columns.data else values
        times, wrong = stamp(inputs, time if callable(time) else typed_us)
        bad.update({index: why for index, why in wrong.items() if index not in bad})
        return times

    def _reject(self, columns: RowColumns, first: int, bad: Mapping[int, str]) -> None:
        rows = columns.dicts(list(columns.data))
        rejects = [Reject(first + index, bad[index], raw_text(rows[index])) for index in sorted(bad)]
        self._reading.rejects.add(self.name, rejects)

    def finished(self) -> bool:
        """True when the last row was read."""
        return self._finished

    def watermark(self) -> int:
        """The policy's promise; before the first row, the time column's smallest value where statistics tell
        it."""
        if self._finished:
            return MAX_TIME
        if isinstance(self._reading.policy, Exact) and self._gauge.minima is None and self._row:
            self._gauge.minima = self._scan()
        if not self._statistics:
            self._statistics = True
            self._least = self._first_bound()
        return max(self._least, self.bound())

    def bound(self) -> int:
        """What the policy promises of this file and of later ones; when finished what was promised last."""
        if isinstance(self._reading.policy, Exact):
            self._gauge.raise_to(self._least)
        return self._gauge.value(self._row)

    def _first_bound(self) -> int:
        """The smallest event time of the whole file, or what can be said of it."""
        self._open()
        smallest = statistics_minimum(self._file, self._time_column)
        if smallest is None and isinstance(self._reading.policy, Exact):
            self._gauge.minima = self._scan()
        if self._batches is None:
            self.close()  # thousands of files may wait to be read
        return MIN_TIME if smallest is None else smallest

    def _scan(self) -> Minima:
        """One pass over the event times."""
        self._open()
        if self._time_column is None or not has_order_of_time(self._file.schema_arrow.field(self._time_column).type):
            return self._scan_values()
        import pyarrow.compute as pc

        starts, minima, row = [], [], 0
        for batch in self._decoded(PARQUET_SCAN_ROWS, columns=[self._time_column]):
            smallest = pc.min(us_of(batch.column(0))).as_py()
            if smallest is not None:
                starts.append(row)
                minima.append(typed_us(smallest))
            row += batch.num_rows
        return Minima(starts, minima)

    def _scan_values(self) -> Minima:
        quiet = msgspec.structs.replace(self._reading, rejects=NoRejects())
        twin = ParquetPartition(self.name, self._place, quiet, self._constants)
        starts, minima = [], []
        while (batch := twin.read(PARQUET_SCAN_ROWS)) is not None:
            if batch.rows:
                starts.append(batch.rows[0])
                minima.append(min(batch.timestamps))
        return Minima(starts, minima)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
        self._file = self._batches = self._batch = None


class NoRejects:
    """Forgets rejects, for a pass that only looks at event times."""

    def add(self, partition: str, rejects: Sequence[Reject]) -> None:
        """Nothing."""


def affordable(batch: Any) -> int:
    """Rows of an Arrow batch whose bytes stay within the limit of one invocation."""
    rows: int = WORK_LIMIT_BYTES * batch.num_rows // max(1, batch.nbytes)
    return max(1, rows)


def has_order_of_time(type_: Any) -> bool:
    """Whether the smallest value of an Arrow column is its earliest time, and every value is one; not so of texts."""
    from pyarrow import types

    return bool(types.is_timestamp(type_) or types.is_integer(type_) or types.is_date(type_))


def statistics_minimum(file: Any, column: str | None) -> int | None:
    """The smallest value of a time column of a Parquet file, from the footer, us; None when it does not say."""
    metadata = file.metadata
    index = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}.get(column)
    if index is None or not has_order_of_time(type_ := file.schema_arrow.field(column).type):
        return None
    smallest = MAX_TIME
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(index).statistics
        if statistics is None or not statistics.has_min_max:
            return None
        # A datetime cannot have nanoseconds.
        is_fine = getattr(type_, "unit", "") == "ns"
        smallest = min(smallest, statistics.min_raw // 1_000 if is_fine else typed_us(statistics.min))
    return smallest
