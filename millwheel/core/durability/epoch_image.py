"""The changes of one interval in one epoch: successive checkpoint images as one (Carbone et al. 2015, section 4).

Lives here: the overlay of images, which costs one dict update a column, and the one image that is made of it.  Never here:
when an epoch ends (`alignment`), or tables.  Invariant: folding the one image leaves the tables as folding each image in
order would.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
    CellWrites,
    Checkpoint,
    HoldWrites,
    Ids,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    SinkRow,
    StateWrites,
    TimerWrites,
)
from millwheel.core.ids.dedup import Channel
from millwheel.ids import SequenceNumber, SubscriptionId, sequence_numbers

Column = dict[str, bytes | None]
"""Key, or entry, to what was written last; None where it was cleared."""


class QuarantineLine(msgspec.Struct, gc=False):
    """What happened to the quarantine of one key: ended or not, then appended, then the first `dropped` of it removed."""

    ended: bool = False
    appended: list[QuarantineEntry] = []
    dropped: int = 0


class EpochImage:
    """The overlay of the images of one epoch, which are added in order."""

    def __init__(self) -> None:
        self._forgotten: dict[str, None] = {}
        self._values: dict[str, Column] = {}
        self._entries: dict[str, dict[str, Column]] = {}
        self._timers: dict[str, dict[tuple[str, str], int | None]] = {}
        self._holds: dict[str, int | None] = {}
        self._frontiers: dict[Channel, SequenceNumber] = {}
        self._ids: dict[Channel, list[SequenceNumber]] = {}
        self._outside: dict[tuple[SubscriptionId, int], list[bytes]] = {}
        self._expired: dict[SubscriptionId, int] = {}
        self._produced: dict[Channel, dict[SequenceNumber, tuple[str, bytes, int]]] = {}
        self._acked: dict[Channel, list[SequenceNumber]] = {}
        self._lines: dict[str, QuarantineLine] = {}
        self.sinks: list[SinkRow] = []
        """In the order of writing: the store lets the last write of a row win."""
        self._shape = ""
        self.images = 0
        """How many there are."""

    def add(self, image: Checkpoint) -> None:
        """The next image."""
        self.images += 1
        self._shape = image.shape
        for key in image.forgotten:
            self._forget(key)
        self._add_state(image.state)
        timers = image.timers
        for key, kind, tag, at in zip(timers.keys, timers.kinds, timers.tags, timers.timestamps, strict=True):
            self._timers.setdefault(key, {})[kind, tag] = at
        self._holds.update(zip(image.holds.keys, image.holds.timestamps, strict=True))
        for ids in image.ids:
            channel = (ids.subscription, ids.producer)
            self._frontiers[channel] = max(self._frontiers.get(channel, ids.frontier), ids.frontier)
            self._ids.setdefault(channel, []).extend(ids.sequences)
        for outside in image.outside:
            if outside.ids:
                self._outside.setdefault((outside.subscription, outside.expires), []).extend(outside.ids)
            else:
                self._expired[outside.subscription] = outside.expires
        self._add_productions(image.produced, image.acked)
        self._add_quarantine(image)
        self.sinks += image.sinks

    def _forget(self, key: str) -> None:
        self._forgotten[key] = None
        for column in self._values.values():
            column.pop(key, None)
        for columns in self._entries.values():
            columns.pop(key, None)
        self._timers.pop(key, None)
        self._holds.pop(key, None)

    def _add_state(self, state: StateWrites) -> None:
        for writes in state.cells:
            if not writes.entries:
                self._values.setdefault(writes.cell, {}).update(zip(writes.keys, writes.values, strict=True))
                continue
            by_key = self._entries.setdefault(writes.cell, {})
            for key, entry, value in zip(writes.keys, writes.entries, writes.values, strict=True):
                by_key.setdefault(key, {})[entry] = value

    def _add_productions(self, produced: Iterable[Produced], acked: Iterable[Acked]) -> None:
        for run in produced:
            numbers = sequence_numbers(range(run.first, run.first + len(run.keys)))
            rows = zip(run.keys, run.values, run.timestamps, strict=True)
            self._produced.setdefault((run.subscription, run.producer), {}).update(zip(numbers, rows, strict=True))
        for gone in acked:
            channel = (gone.subscription, gone.producer)
            pending = self._produced.get(channel, {})
            stored = [sequence for sequence in gone.sequences if pending.pop(sequence, None) is None]
            if stored:
                self._acked.setdefault(channel, []).extend(stored)

    def _add_quarantine(self, image: Checkpoint) -> None:
        for key, count in image.redriven:
            self._lines.setdefault(key, QuarantineLine()).dropped += count
        for key in image.released:
            self._lines[key] = QuarantineLine(ended=True)
        for entry in image.quarantined:
            self._lines.setdefault(entry.key, QuarantineLine()).appended.append(entry)

    # --- out ------------------------------------------------------------------------------------------------------

    def keys(self) -> int:
        """Writes of keys' state that are left, about."""
        return sum(map(len, self._values.values())) + sum(map(len, self._entries.values()))

    def writes(self) -> int:
        """What is in memory: writes of keys' state, timers and sink rows, about."""
        return self.keys() + len(self._timers) + len(self.sinks)

    def image(self, epoch: int) -> Checkpoint:
        """The one image of all."""
        quarantined, redriven, released = self._quarantine()
        return Checkpoint(
            CHECKPOINT_FORMAT, self._shape, epoch,
            [Ids(*channel, frontier, self._ids[channel]) for channel, frontier in self._frontiers.items()],
            [run for channel, rows in self._produced.items() for run in _runs(channel, rows)],
            [Acked(*channel, sequences) for channel, sequences in self._acked.items()],
            self._state(), self._timer_writes(), HoldWrites([*self._holds], [*self._holds.values()]),
            self.sinks, quarantined, [*self._forgotten], redriven, released, self._outside_ids(),
        )  # fmt: skip

    def _state(self) -> StateWrites:
        cells = [CellWrites(cell, [*column], [*column.values()]) for cell, column in self._values.items() if column]
        for cell, by_key in self._entries.items():
            rows = [(key, entry, value) for key, column in by_key.items() for entry, value in column.items()]
            if rows:
                cells.append(CellWrites(cell, [r[0] for r in rows], [r[2] for r in rows], [r[1] for r in rows]))
        return StateWrites(cells)

    def _timer_writes(self) -> TimerWrites:
        writes = TimerWrites()
        for key, timers in self._timers.items():
            for (kind, tag), at in timers.items():
                writes.add(key, tag, kind, at)
        return writes

    def _outside_ids(self) -> list[OutsideIdWrites]:
        taken = [OutsideIdWrites(*bucket, ids) for bucket, ids in self._outside.items()]
        return taken + [OutsideIdWrites(*passed, []) for passed in self._expired.items()]

    def _quarantine(self) -> tuple[list[QuarantineEntry], list[tuple[str, int]], list[str]]:
        """In a checkpoint, elements leave first, then lines end, then elements are appended.

        Of a line that ended, what was stored is gone, so what left it afterwards was appended here.
        """
        quarantined: list[QuarantineEntry] = []
        redriven: list[tuple[str, int]] = []
        released = [key for key, line in self._lines.items() if line.ended]
        for key, line in self._lines.items():
            if line.ended:
                quarantined += line.appended[line.dropped :]
            else:
                quarantined += line.appended
                redriven += [(key, line.dropped)] if line.dropped else []
        return quarantined, redriven, released


def _runs(channel: Channel, rows: Mapping[SequenceNumber, tuple[str, bytes, int]]) -> list[Produced]:
    """Productions as runs of dense sequences."""
    runs: list[Produced] = []
    for sequence in sorted(rows):
        last = runs[-1] if runs else None
        if last is None or sequence != last.first + len(last.keys):
            last = Produced(*channel, sequence, [], [], [])
            runs.append(last)
        key, value, timestamp = rows[sequence]
        last.keys.append(key)
        last.values.append(value)
        last.timestamps.append(timestamp)
    return runs
