"""What the store in memory holds, and the small steps that several of its calls have in common.

Lives here: the rows of all tables, and steps that only change them: a new interval, a fence, a fold of a log.  Never here: a
call of `Store` (`twin`, `sharing`), or whether a step may be taken, which its caller has asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from typing import Any

import msgspec

from millwheel.bundles import LogWrite, QuarantineEntry
from millwheel.core.faults.suspects import unite_marks
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, Seq, Sequencer, SubscriptionId
from millwheel.ports import IntervalRow, PipelineShape, SinkTable, SourcePosition, WallClock
from millwheel.rows import Row
from millwheel_storage.decisions import reshaped
from millwheel_storage.decode import decode_image
from millwheel_storage.fold import fold
from millwheel_storage.memory.agreements import MemoryAgreements
from millwheel_storage.memory.tables import MemoryTables
from millwheel_storage.releases import releases

LogKey = tuple[IntervalId, Sequencer, Seq]


def _wall_clock() -> int:
    return time.time_ns() // 1_000


class MemoryContents:
    """The rows of a store in this process; `clock` is the clock of its database, us, which judges leases."""

    def __init__(self, clock: WallClock = _wall_clock) -> None:
        self.shape: PipelineShape | None = None
        self.intervals: dict[IntervalId, IntervalRow] = {}
        self.ownership: dict[IntervalId, Sequencer] = {}
        self.log: dict[LogKey, LogWrite] = {}
        self.folded = MemoryTables()
        """What the log is folded into."""
        self.suspicions: dict[IntervalId, tuple[int, bytes]] = {}
        """(unclean ends, mark) by interval."""
        self.watermark: dict[str, int] = {}
        self.declared = 0
        """The last epoch that is complete."""
        self.sources: dict[tuple[str, str], SourcePosition] = {}
        self.signs: dict[tuple[str, bytes], set[IntervalId]] = {}
        """(source, sign) to the intervals of finished partitions."""
        self._signed: set[IntervalId] = set()
        self.sinks: dict[str, dict[tuple[Any, ...], Row]] = {}
        self.constraint: Callable[[str, Row], str | None] = lambda table, row: None
        """For tests: why the database would refuse a row of a table, or None when it accepts the row."""
        self.subscriptions: dict[str, SubscriptionId] = {}
        self.sink_tables: dict[str, SinkTable] = {}
        self._sequencer = 0
        self._last_interval = 0
        self.agreements = MemoryAgreements(clock)

    @property
    def key_state(self) -> dict[str, dict[str, dict[tuple[str, str], bytes]]]:
        """Folded state by computation, key and (cell, entry): what a test of a pipeline looks at."""
        return self.folded.key_state

    @property
    def quarantine(self) -> dict[tuple[str, str], list[QuarantineEntry]]:
        """Folded elements by (computation, key), in order: a test's look at what failed."""
        return self.folded.quarantine

    def row(self, interval: IntervalId) -> IntervalRow:
        """An interval, which must exist."""
        row = self.intervals.get(interval)
        if row is None:
            raise StoreError(f"interval {interval} does not exist")
        return row

    def by_low(self, computation: str) -> list[tuple[str, IntervalId]]:
        """The intervals of a computation, by key."""
        return sorted((row.low, row.id) for row in self.intervals.values() if row.computation == computation)

    def add_interval(self, computation: str, low: str, high: str | None) -> IntervalId:
        """A new interval, which nobody has owned."""
        self._last_interval += 1
        interval = IntervalId(self._last_interval)
        self.intervals[interval] = IntervalRow(interval, computation, low, high)
        self.ownership[interval] = Sequencer(0)
        return interval

    def next_sequencer(self) -> Sequencer:
        """Larger than all before."""
        self._sequencer += 1
        return Sequencer(self._sequencer)

    def fence(self, intervals: Set[IntervalId]) -> dict[IntervalId, Sequencer]:
        """A new sequencer for each, in the order of their ids."""
        taken = {interval: self.next_sequencer() for interval in sorted(intervals)}
        self.ownership.update(taken)
        return taken

    def fold_log(self, row: IntervalRow) -> None:
        """Bring the tables to the end of what counts of an interval's log."""
        keys = sorted(key for key in self.log if key[0] == row.id)
        valid = [key for key in keys if self.log[key].epoch <= self.declared]
        images = [decode_image(self.log[key].payload) for key in valid]
        self.folded.apply(row, fold(images), releases(images, [key[1:] for key in valid]))
        for key in keys:
            del self.log[key]

    def cut(self, rows: Sequence[IntervalRow], split_keys: Sequence[str]) -> list[IntervalId]:
        """Let one interval become several, or several become one; answers the new ones, by key.

        Nobody owns any of them, and their logs are folded.
        """
        ranges = reshaped(rows, split_keys)
        first, others = rows[0].id, [row.id for row in rows[1:]]
        self.intervals[first] = msgspec.structs.replace(rows[0], high=ranges[0][1])
        new = [self.add_interval(rows[0].computation, low, high) for low, high in ranges[1:]]
        self._spread(first, new)
        self._unite(first, others)
        return new

    def _spread(self, interval: IntervalId, new: Sequence[IntervalId]) -> None:
        """Begin intervals that were a part of this one."""
        self.agreements.interval_owners.update(dict.fromkeys(new))
        self.folded.copy_ids(interval, new)
        if interval in self.suspicions:
            self.suspicions.update(dict.fromkeys(new, self.suspicions[interval]))

    def _unite(self, interval: IntervalId, others: Sequence[IntervalId]) -> None:
        """End intervals that are a part of this one from now on."""
        self.folded.unite(interval, others)
        found = [self.suspicions[id_] for id_ in (interval, *others) if id_ in self.suspicions]
        if others and found:
            self.suspicions[interval] = max(ends for ends, _ in found), unite_marks(mark for _, mark in found)
        for other in others:
            self.suspicions.pop(other, None)
            del self.intervals[other], self.ownership[other], self.agreements.interval_owners[other]

    def drop_later(self) -> None:
        """What the log has of an epoch that is not declared is gone."""
        for place in [place for place, write in self.log.items() if write.epoch > self.declared]:
            del self.log[place]

    def tables(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every table's rows, sorted, in the form that `PostgresStore.tables` answers: for tests and
        checkers."""
        return (
            self.folded.rows()
            | self.agreements.rows()
            | {
                "ownership": sorted(self.ownership.items()),
                "checkpoint_log": [
                    (*place, self.log[place].epoch, self.log[place].payload) for place in sorted(self.log)
                ],
                "suspicion": sorted((interval, *known) for interval, known in self.suspicions.items()),
                "declared_epoch": [(self.declared,)] if self.declared else [],
                "watermark": sorted(self.watermark.items()),
                "source": [
                    (
                        source,
                        row.partition,
                        row.interval,
                        row.producer,
                        row.position,
                        row.finished,
                        row.state,
                        row.rejected,
                        row.interval in self._signed,
                    )
                    for (source, _), row in sorted(self.sources.items())
                ],
                "source_sign": sorted((*place, interval) for place, known in self.signs.items() for interval in known),
            }
        )
