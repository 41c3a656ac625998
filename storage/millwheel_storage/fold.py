"""Folding: many checkpoints become one write per key and cell (§6.1.2 "checkpoints mimic a log").

Lives here: the pure merge of committed log images, used by both stores and by the reader.  Never here:
I/O, or soft state.  Invariant: applying `fold(images)` once leaves the folded tables as applying each
image in order would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from millwheel.bundles import Acked, Checkpoint, Ids, Produced, QuarantineEntry, StateRow
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.ports import FoldWrite, QuarantineRow

Cells = dict[tuple[str, str], bytes | None]
"""(cell, entry) to bytes, or to None where it was cleared."""

Column = dict[str, bytes | None]
"""Key, or entry, to bytes, or to None where it was cleared."""

Timers = dict[tuple[str, str], int | None]
"""(kind, tag) to the timestamp, or to None where the timer fired or was cancelled."""

Channel = tuple[SubscriptionId, ProducerId]
"""(subscription, producer): the scope within which sequences are dense."""

Payload = tuple[str, bytes, int]
"""(key, value, timestamp) of a production."""


class Fifo(msgspec.Struct, gc=False):
    """What happened to one key's quarantine: cleared or not, then appended, then the first `dropped` removed.

    How many elements are stored is unknown here.  So drops are counted and not applied, which is right because drops and
    appends of a FIFO commute.
    """

    cleared: bool = False
    appended: list[QuarantineEntry] = msgspec.field(default_factory=list)
    dropped: int = 0


class Folded(msgspec.Struct):
    """The merged effect of a contiguous run of checkpoints of one interval."""

    forgotten: set[str] = msgspec.field(default_factory=set)
    values: dict[str, Column] = msgspec.field(default_factory=dict)
    """By cell and key."""
    entries: dict[str, dict[str, Column]] = msgspec.field(default_factory=dict)
    """By cell, key and entry."""
    timers: dict[str, Timers] = msgspec.field(default_factory=dict)
    holds: dict[str, int | None] = msgspec.field(default_factory=dict)
    productions: dict[Channel, dict[SequenceNumber, Payload]] = msgspec.field(default_factory=dict)
    acked: dict[Channel, list[SequenceNumber]] = msgspec.field(default_factory=dict)
    frontiers: dict[Channel, SequenceNumber] = msgspec.field(default_factory=dict)
    ids: dict[Channel, list[SequenceNumber]] = msgspec.field(default_factory=dict)
    quarantine: dict[str, Fifo] = msgspec.field(default_factory=dict)
    outside: dict[tuple[SubscriptionId, int], list[bytes]] = msgspec.field(default_factory=dict)
    """Ids chosen by outside clients, by subscription and expiry, us."""
    expired: dict[SubscriptionId, int] = msgspec.field(default_factory=dict)
    """Subscription to the wall time, us, by which what has expired may go."""

    def cells_of(self, key: str) -> Cells:
        """What was written under one key."""
        cells: Cells = {(cell, ""): column[key] for cell, column in self.values.items() if key in column}
        for cell, by_key in self.entries.items():
            cells.update(((cell, entry), value) for entry, value in by_key.get(key, {}).items())
        return cells

    def state_keys(self) -> set[str]:
        """Every key whose state was written."""
        return set().union(*self.values.values(), *self.entries.values())

    def state_rows(self) -> Iterator[StateRow]:
        """Every write, cell by cell, in key order."""
        for cell, column in self.values.items():
            for key in sorted(column):
                yield key, cell, "", column[key]
        for cell, by_key in self.entries.items():
            for key in sorted(by_key):
                for entry, value in by_key[key].items():
                    yield key, cell, entry, value

    def new_ids(self) -> dict[Channel, list[SequenceNumber]]:
        """Delivered sequences at or above their frontier, ascending; below it the frontier alone says
        "duplicate"."""
        kept = {}
        for channel, sequences in self.ids.items():
            frontier = self.frontiers.get(channel, 0)
            above = sorted({sequence for sequence in sequences if sequence >= frontier})
            if above:
                kept[channel] = above
        return kept


def fold(images: Iterable[Checkpoint], acked: Iterable[Acked] = ()) -> Folded:
    """Merge `images`, which are consecutive checkpoints of one interval in commit order.

    `acked` are acks in later, committed checkpoints.  The productions that they name need not be stored any more.
    """
    folded = Folded()
    for image in images:
        merge(folded, image)
    for later in acked:
        pending = folded.productions.get((later.subscription, later.producer), {})
        for sequence in later.sequences if pending else ():
            pending.pop(sequence, None)
    return folded


def merge(folded: Folded, image: Checkpoint) -> None:
    """Merge one more checkpoint into `folded`."""
    for key in image.forgotten:
        _forget(folded, key)
    _merge_state(folded, image)
    _merge_timers(folded, image)
    folded.holds.update(zip(image.holds.keys, image.holds.timestamps, strict=True))
    for ids in image.ids:
        _merge_ids(folded, ids)
    for outside in image.outside:
        if outside.ids:
            folded.outside.setdefault((outside.subscription, outside.expires), []).extend(outside.ids)
        else:
            folded.expired[outside.subscription] = outside.expires
    # Productions before acks: a checkpoint may hold both of one production (a weak one acked while it
    # waited).
    for produced in image.produced:
        _merge_produced(folded, produced)
    for acked in image.acked:
        _merge_acked(folded, acked)
    _merge_quarantine(folded, image)


def _forget(folded: Folded, key: str) -> None:
    folded.forgotten.add(key)
    for column in folded.values.values():
        column.pop(key, None)
    for columns in folded.entries.values():
        columns.pop(key, None)
    folded.timers.pop(key, None)
    folded.holds.pop(key, None)


def _merge_state(folded: Folded, image: Checkpoint) -> None:
    for writes in image.state.cells:
        if not writes.entries:
            folded.values.setdefault(writes.cell, {}).update(zip(writes.keys, writes.values, strict=True))
            continue
        by_key = folded.entries.setdefault(writes.cell, {})
        for key, entry, value in zip(writes.keys, writes.entries, writes.values, strict=True):
            by_key.setdefault(key, {})[entry] = value


def _merge_timers(folded: Folded, image: Checkpoint) -> None:
    writes, timers = image.timers, folded.timers
    for key, kind, tag, time in zip(writes.keys, writes.kinds, writes.tags, writes.timestamps, strict=True):
        timers.setdefault(key, {})[kind, tag] = time


def _merge_ids(folded: Folded, ids: Ids) -> None:
    channel = (ids.subscription, ids.producer)
    folded.frontiers[channel] = max(folded.frontiers.get(channel, ids.frontier), ids.frontier)
    folded.ids.setdefault(channel, []).extend(ids.sequences)


def _merge_produced(folded: Folded, produced: Produced) -> None:
    rows = zip(produced.keys, produced.values, produced.timestamps, strict=True)
    numbers = sequence_numbers(range(produced.first, produced.first + len(produced.keys)))
    channel = (produced.subscription, produced.producer)
    folded.productions.setdefault(channel, {}).update(zip(numbers, rows, strict=True))


def _merge_acked(folded: Folded, acked: Acked) -> None:
    channel = (acked.subscription, acked.producer)
    pending = folded.productions.get(channel, {})
    stored = [sequence for sequence in acked.sequences if pending.pop(sequence, None) is None]
    if stored:
        folded.acked.setdefault(channel, []).extend(stored)


def _merge_quarantine(folded: Folded, image: Checkpoint) -> None:
    # A checkpoint that redrives the last element of a key may release it; and a key that is released may fail again in
    # the very same checkpoint.
    for key, count in image.redriven:
        folded.quarantine.setdefault(key, Fifo()).dropped += count
    for key in image.released:
        folded.quarantine[key] = Fifo(cleared=True)
    for entry in image.quarantined:
        folded.quarantine.setdefault(entry.key, Fifo()).appended.append(entry)


def check_prefix(write: FoldWrite, stored: int) -> None:
    """Check that a fold holds the image of every log row that it deletes; otherwise it would lose or invent effects."""
    given = len(write.images)
    if stored != given:
        raise StoreError(f"fold of interval {write.interval} up to {write.upto}: {given} images for {stored} log rows")


def check_fresh(interval: IntervalId, stored: Collection[str]) -> None:
    """Check that a fold does not insert keys that are stored."""
    if stored:
        raise StoreError(
            f"fold of interval {interval}: {len(stored)} keys that it inserts are stored, {min(stored)!r} first"
        )


def quarantine_row(computation: str, order: int, entry: QuarantineEntry) -> QuarantineRow:
    """The element at place `order` of a FIFO."""
    return QuarantineRow(
        computation,
        entry.key,
        order,
        entry.subscription,
        entry.producer,
        entry.sequence,
        entry.value,
        entry.timestamp,
        entry.tag,
        entry.kind,
        entry.error,
    )


def fifo_rows(stored: list[QuarantineEntry], images: Iterable[Checkpoint], key: str) -> list[QuarantineEntry]:
    """A key's FIFO as committed: the folded elements, then what the unfolded log did to them."""
    fifo = fold(images).quarantine.get(key)
    if fifo is None:
        return stored
    return [*([] if fifo.cleared else stored), *fifo.appended][fifo.dropped :]
