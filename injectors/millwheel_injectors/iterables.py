"""Rows that are already in Python, for tests and first steps.

Lives here: `IterableSource`.  Never here: files.  Invariant: the rows can be produced again, in the same
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeAlias

import msgspec
from typing_extensions import TypeVar

from millwheel.errors import SourceError, TimestampError
from millwheel.limits import LONG_ROWS, OUTSIDE_SLACK_US, READ_LIMIT_BYTES
from millwheel.model import MAX_TIME, MIN_TIME, Time, to_us
from millwheel.ports import Batch, RecordId, Source, SourcePartition, SourcePosition
from millwheel.search import Find, Search
from millwheel.wording import counted
from millwheel_injectors.arguments import check_functions, check_lengths_us
from millwheel_injectors.watermarks import BoundedDisorder, Exact, FileCreation, Gauge, Minima, Policy, checked_policy

T = TypeVar("T", default=Any)

Row: TypeAlias = tuple[T, Time]
"""(value, event time)."""

PARTITION = "rows"


class IterableSource(Source[T]):
    """`rows` of (value, event time): a sequence, or a function that makes the same iterable at every call.

    An event time is an int of microseconds since 1970, a datetime with a zone, or ISO 8601 text with one.

    The watermark is exact for a sequence, `BoundedDisorder(0)` for a function, unless given.  `record_id` and
    `id_slack` are those of `FileSource`.

    >>> source = IterableSource("words", [("to", 1), ("be", 2)])
    >>> source.discover(())[0].read(10).values
    ['to', 'be']
    """

    kind = "an iterable"
    grows = False

    def __init__(
        self,
        name: str,
        rows: Sequence[Row[T]] | Callable[[], Iterable[Row[T]]],
        watermark: Policy | None = None,
        *,
        record_id: RecordId[T] | None = None,
        id_slack: int = OUTSIDE_SLACK_US,
    ) -> None:
        check_functions(name, "a value", record_id=record_id)
        check_lengths_us(name, id_slack=id_slack)
        if watermark is not None:
            checked_policy(name, watermark)
        if isinstance(watermark, FileCreation) or (isinstance(watermark, Exact) and callable(rows)):
            raise ValueError(f"source {name}: {watermark} needs {'a sequence' if callable(rows) else 'files'}")
        if not callable(rows):
            _check_rows(name, rows)
            _check_order(name, rows)
        self.name = name
        self.record_id = record_id
        self.id_slack = id_slack
        self._rows = rows
        self._policy = watermark or (BoundedDisorder() if callable(rows) else Exact())
        self.disorder_us = self._policy.bound_us if isinstance(self._policy, BoundedDisorder) else 0
        self._discovered = False

    def search(self, known: set[str]) -> Search:
        """The one partition; raises `SourceError` for rows behind the end that an earlier run met, for its watermark has
        passed everything."""
        found = self.discover(known)
        positions: list[SourcePosition] = (yield Find(names=[PARTITION])) if found else []
        for position in positions:
            if position.finished:
                self._refuse_more(position.position)
                known.add(PARTITION)
                return []
        return found

    def _refuse_more(self, read: int) -> None:
        rows = self._rows() if callable(self._rows) else self._rows
        if any(True for _ in islice(rows, read, None)):
            raise SourceError(
                f"source {self.name}: it ended after {counted(read, 'row')} in an earlier run, and has more now; "
                "give them to a source of another name, or reset the pipeline"
            )

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        """The one partition, "rows"."""
        self._discovered = True
        return [] if PARTITION in set(known) else [IterablePartition(self._rows, self._policy)]

    def complete(self) -> bool:
        """True once `discover` was called."""
        return self._discovered

    def pending_watermark(self) -> int:
        """Nothing appears later."""
        return MAX_TIME if self._discovered else MIN_TIME


class IterablePartition:
    """All rows of an `IterableSource`."""

    name = PARTITION

    def __init__(self, rows: Sequence[Row] | Callable[[], Iterable[Row]], policy: Policy) -> None:
        self._rows = rows
        self._gauge = Gauge(policy)
        if isinstance(policy, Exact) and not callable(rows):
            known = (time if type(time) is int else MAX_TIME for time in _times(rows))
            self._gauge.minima = Minima(list(range(len(rows))), list(known))
        self._start(0)

    def _start(self, row: int) -> None:
        self._row = row
        self._finished = False
        self._next: Iterator[Row] | None = None

    def fingerprint(self) -> bytes:
        """The state before the first row."""
        return msgspec.json.encode({"seen": None})

    def resume(self, position: int, state: bytes) -> None:
        """Continue at row `position`."""
        self._gauge.seen = msgspec.json.decode(state, type=dict[str, int | None]).get("seen")
        self._start(0)
        skipped = sum(1 for _ in islice(self._rest(), position))
        if skipped < position:
            raise SourceError(f"rows: there are {skipped}, but {position} were read before; give the same rows again")
        self._row = position

    def _rest(self) -> Iterator[Row]:
        if self._next is None:
            self._next = iter(self._rows() if callable(self._rows) else self._rows)
        return self._next

    def read(self, limit: int) -> Batch | None:
        """The next rows; fewer when they are long texts or bytes, for all of a read are in memory at once."""
        rows: list[Row] = []
        size = 0
        while len(rows) < limit and size < READ_LIMIT_BYTES:
            piece = list(islice(self._rest(), min(LONG_ROWS, limit - len(rows))))
            if not piece:
                break
            rows += piece
            size += sum(len(value) for value, _ in piece if type(value) is str or type(value) is bytes)
        if not rows:
            self._finished = True
            return None
        first = self._row
        self._row += len(rows)
        times = _times(rows)
        self._gauge.saw(time for time in times if type(time) is int)
        state = msgspec.json.encode({"seen": self._gauge.seen})
        return Batch(list(range(first, self._row)), [value for value, _ in rows], times, self._row, state)

    def finished(self) -> bool:
        """True when the end was met."""
        return self._finished

    def watermark(self) -> int:
        """The policy's promise; `MAX_TIME` when finished."""
        return MAX_TIME if self._finished else self._gauge.value(self._row)

    def close(self) -> None:
        """Nothing to release."""


def _times(rows: Iterable[Row]) -> list[Any]:
    """Event times as int; what cannot be one is left as it is, and its row will be rejected."""
    times: list[Any] = [time for _, time in rows]
    return times if {*map(type, times)} <= {int} else [_time(time) for time in times]


def _time(time: Any) -> Any:
    try:
        return to_us(time)
    except TimestampError:
        return time


def _check_rows(source: str, rows: Sequence[Row]) -> None:
    """Rows that can be read again, and the first is a pair; what is not is found before it is read."""
    if isinstance(rows, Iterator):
        raise ValueError(
            f"source {source}: rows are a {type(rows).__name__}, which can be read once, and after a crash they are "
            "read again; give a list, or a function that makes the same rows at every call"
        )
    if isinstance(rows, str | bytes | Mapping) or not hasattr(rows, "__getitem__"):
        raise ValueError(
            f"source {source}: rows={rows!r:.80}: give a list of (value, event time), or a function that makes them"
        )
    for row in rows[:1]:
        if isinstance(row, str | bytes) or not hasattr(row, "__len__") or len(row) != 2:
            raise ValueError(f"source {source}: rows are (value, event time), and the first is {row!r:.80}")


def _check_order(source: str, rows: Sequence[Row]) -> None:
    """Rows were (event time, value) once; what is left of that is found before it is read.

    A float may be seconds, so what is said of it is true of a value in the wrong place as well.
    """
    for value, time in rows[:1]:
        if type(value) is int and isinstance(time, float):
            try:
                to_us(time)
            except TimestampError as error:
                raise ValueError(
                    f"source {source}: rows are (value, event time), and of {rows[0]!r:.80} {error}"
                ) from None
        if type(value) is int and type(_time(time)) is not int and not isinstance(time, datetime):  # one without a zone
            raise ValueError(
                f"source {source}: rows are (value, event time), and {rows[0]!r:.80} is the other way round"
            )
