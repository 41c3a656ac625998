"""One source as a run sees it: which partition is next, what is missing, how long it has been silent (§5.2).

Lives here: what is decided about the partitions of a source together.  Never here: reading, or a clock.  Invariants:

* a partition that waits for its turn is younger than one that is read, so the watermark need not wait for it;
* silence never moves the promise past a row that is written later, within the disorder that the source declares.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millwheel.core.interval.events import RowsRead
from millwheel.ids import IntervalId
from millwheel.ports import SourcePosition


class _Part(msgspec.Struct):
    """A partition that is not read to its end, as far as a durable position says."""

    waits: bool
    last_row_at: int = 0
    """Wall time of the last row, or of the first look, us."""
    looked: bool = False
    silent: bool = False
    """The last look found nothing, and so long after the last row as the source declares."""


class Feed:
    """The partitions of one source.  `idle_after_us` and `disorder_us` as `Source` has them; `positions` are what earlier
    runs had of it.

    The order of a source is the one in which its partitions were first found, in any run.  The numbers of their intervals
    have the same order.  So a partition that comes back after it was missing has its old turn.
    """

    def __init__(
        self, ordered: bool, idle_after_us: int | None, disorder_us: int, positions: Iterable[SourcePosition]
    ) -> None:
        self._ordered = ordered
        self._idle_after_us = idle_after_us
        self._disorder_us = disorder_us
        self._parts: dict[IntervalId, _Part] = {}
        self._missing = {position.partition: position for position in positions if not position.finished}
        self._stirred_at: int | None = None
        """Wall time of the last row, or new partition, us."""

    def meet(self, names: Iterable[str]) -> None:
        """These partitions are there."""
        for name in names:
            self._missing.pop(name, None)

    def missing(self) -> list[SourcePosition]:
        """What an earlier run did not read to its end, and is not there now.  The watermark waits for it."""
        return list(self._missing.values())

    def stir(self, now: int) -> None:
        """The source has a partition that an earlier run has finished.  Only a source that has had one may be silent."""
        if self._stirred_at is None:
            self._stirred_at = now

    def stirred(self) -> bool:
        """Whether there was ever a partition."""
        return self._stirred_at is not None

    def open(self, interval: IntervalId, now: int) -> bool:
        """A partition that was met is opened; true when it has to wait for its turn.

        A partition that waits need not hold the watermark, because an older one holds it until then.
        """
        self._stirred_at = now
        waits = self._ordered and any(number < interval for number in self._parts)
        self._parts[interval] = _Part(waits)
        return waits

    def read(
        self, interval: IntervalId, rows: RowsRead, asked_at: int, answered_at: int
    ) -> tuple[RowsRead, IntervalId | None]:
        """What a read found that began and ended at these wall times, us; the interval whose turn has come, if any.

        Silence raises the watermark of what was found to what the clock said *before* the read, because rows that were
        written since may not have been seen.
        """
        part = self._parts[interval]
        if rows.progressed:
            self._stirred_at = answered_at
        if rows.progressed or not part.looked:
            part.looked, part.last_row_at = True, answered_at
        part.silent = not rows.progressed and self._passed(part.last_row_at, asked_at)
        if part.silent:
            rows = msgspec.structs.replace(rows, watermark=max(rows.watermark, asked_at - self._disorder_us))
        if rows.finished and not rows.progressed:
            del self._parts[interval]
            return rows, self._next()
        return rows, None

    def _next(self) -> IntervalId | None:
        if any(not part.waits for part in self._parts.values()):
            return None
        interval = min((number for number, part in self._parts.items() if part.waits), default=None)
        if interval is not None:
            self._parts[interval].waits = False
        return interval

    def bound(self, pending: int, asked_at: int) -> int:
        """The bound on the event time of partitions that are not there yet, us.

        It is `pending`, what the source says of them.  While all partitions that are there are silent, it is the wall time
        before the source was asked.
        """
        if self._stirred_at is None or not self._passed(self._stirred_at, asked_at):
            return pending
        if any(not part.silent for part in self._parts.values()):
            return pending
        return max(pending, asked_at - self._disorder_us)

    def _passed(self, since: int, now: int) -> bool:
        return self._idle_after_us is not None and now - since >= self._idle_after_us
