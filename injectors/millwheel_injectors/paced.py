"""Text files that are replayed at a pace: rows are held until they are asked for by their event time.

Lives here: cutting what was read where a row is not due, or is late.  Never here: clocks, or when a row is due.  Invariant:
the rows, their numbers and their order are those of the file; a position between two rows has the state of a place before it,
and counts the malformed rows before it.
"""

from __future__ import annotations

from math import inf

from millwheel.limits import PACED_BLOCK_ROWS
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.source import Ahead, Batch
from millwheel_injectors.partition import TextPartition
from millwheel_injectors.watermarks import Exact, FileCreation, Gauge


class PacedTextPartition(TextPartition):
    """One complete file that is replayed."""

    _block: Batch | None = None
    _at = 0
    """Rows of the block that were given."""
    _before = b""
    """The state before the block."""
    _told = MIN_TIME
    """The promise behind which the last late row was announced."""
    _given: Gauge

    def resume(self, position: int, state: bytes) -> None:
        """Continue at raw row `position`."""
        super().resume(position, state)
        self._block, self._at, self._before, self._told = None, 0, state, MIN_TIME
        self._given = Gauge(self._reading.policy)
        self._given.seen = self._gauge.seen

    def read_due(self, limit: int, upto: int) -> tuple[Batch | None, Ahead | None]:
        """At most `limit` rows before one that is newer than `upto`, us, or late; and what stands next, if that is known."""
        block = self._block
        if block is None:
            block = self.read(max(limit, PACED_BLOCK_ROWS))
            if block is None or not block.rows:  # a block may hold malformed rows only
                self._before = block.state if block is not None else self._before
                return block, None
            self._block, self._at = block, 0
        first, last = self._at, self._cut(block, limit, upto)
        whole = last == len(block.rows)
        self._block, self._at = (None, 0) if whole else (block, last)
        ahead = None if whole else self._ahead(block.timestamps[last])
        if last == first:
            return None, ahead
        position = block.next_position if whole else block.rows[last]
        bad, self._bad = self._bad, [row for row in self._bad if row >= position]
        batch = Batch(
            block.rows[first:last],
            block.values[first:last],
            block.timestamps[first:last],
            position,
            block.state if whole else self._before,
            len(bad) - len(self._bad),
        )
        self._before = block.state if whole else self._before
        return batch, ahead

    def _cut(self, block: Batch, limit: int, upto: int) -> int:
        """The first row that is not given now; what is given has moved the gauge."""
        for at in range(self._at, min(self._at + limit, len(block.rows))):
            time = block.timestamps[at]
            if time > upto or time < self._promise(block.rows[at]) > self._told:
                return at
            self._given.saw((time,))
        return min(self._at + limit, len(block.rows))

    def _ahead(self, time: int) -> Ahead:
        seen, promise = self._given.seen, self.watermark()
        if time < promise:
            self._told = promise
        return Ahead(time, time if seen is None else max(time, seen), time < promise)

    def _promise(self, row: int) -> int:
        """What is promised before `row` is read."""
        policy = self._reading.policy
        if isinstance(policy, FileCreation):
            return self.bound()
        if isinstance(policy, Exact) and self._given.minima is None:
            self._given.minima = self._scan()
        return self._given.value(row)

    def watermark(self) -> int:
        """The policy's promise about what was not given yet; `MAX_TIME` when finished."""
        if self.finished():
            return MAX_TIME
        return self._promise(self._block.rows[self._at] if self._block is not None else self._row)


def check_pace(source: str, pace: float | None, tail: bool, event_time: object, idle_after_us: int | None) -> None:
    """Raise `ValueError` for a pace that means nothing."""
    if pace is None:
        return
    if isinstance(pace, bool) or not (isinstance(pace, int | float) and 0 < pace < inf):
        raise ValueError(
            f"source {source}: pace={pace!r} is no rate; 60 plays an hour in a minute, 1 an hour in an hour"
        )
    if event_time is None:
        raise ValueError(f"source {source}: a pace needs an event_time, which says when a row is due")
    if tail or idle_after_us is not None:
        raise ValueError(f"source {source}: a pace replays complete files: it goes without tail and idle_after_us")
