"""Bundles and checkpoints: the units in which records travel, run and commit.

Lives here: the plain values that core, runtime and storage hand each other, and the serialised form of a checkpoint.  Never
here: decisions, I/O.  Values lie in columns and not in rows: one list per field, all of the same length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final

import msgspec

from millwheel import limits
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.limits import RECORD_OVERHEAD_BYTES
from millwheel.model import Timer

CHECKPOINT_FORMAT: Final = 1
"""Version of the serialised form of a checkpoint.  A store with another one is refused before the first write."""
OF_TIMER: Final = SubscriptionId(-1)
"""Stands in the place of a subscription when an element of a quarantine is a timer."""


class Bundle(msgspec.Struct, frozen=True, gc=False):
    """Records that travel together from one sender to one interval on one subscription.

    `sender` and `number` address the ack.  `producer` and the ascending `sequences` are the record ids.  All ids of this
    producer and subscription below `frontier` are durably acked, so the receiver may forget them.
    """

    subscription: SubscriptionId
    sender: IntervalId
    number: int
    target: IntervalId
    producer: ProducerId
    frontier: SequenceNumber
    sequences: list[SequenceNumber]
    keys: list[str]
    values: list[bytes]
    timestamps: list[int]
    epoch: int = 0
    """The label of its sender: the number of the last barrier that the sender had passed."""
    outside: list[bytes] = []
    """Ids that an outside client chose, one a record, or none at all."""
    barrier: int = 0
    """Not 0: this is the barrier of that epoch, and has no records."""
    inherited: bool = False
    """An earlier owner of the sender produced the records, so they are in the tables until their ack is."""
    size_bytes: int = 0
    """See `size`; counted when the bundle is made.  A copy with the same records keeps it."""

    def __post_init__(self) -> None:
        if self.values and not self.size_bytes:
            size = sum(map(len, self.values)) + RECORD_OVERHEAD_BYTES * len(self.values)
            msgspec.structs.force_setattr(self, "size_bytes", size)

    def oldest(self) -> int:
        """The smallest event time in the bundle, which must not be one that only carries a frontier."""
        return min(self.timestamps)

    def oldest_key(self) -> str:
        """The key of the record with that event time."""
        return self.keys[self.timestamps.index(min(self.timestamps))]

    def size(self) -> int:
        """What it takes in memory, bytes, roughly."""
        return self.size_bytes


class Ids(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Record ids delivered by one checkpoint, of one (subscription, producer); `frontier` as last advertised."""

    subscription: SubscriptionId
    producer: ProducerId
    frontier: SequenceNumber
    sequences: list[SequenceNumber]


class OutsideIdWrites(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ids chosen by outside clients that one checkpoint takes on one subscription, until wall time `expires`, us.

    Without ids, it says that ids that have expired by then may be removed, the oldest bucket first.
    """

    subscription: SubscriptionId
    expires: int
    ids: list[bytes]


def expired_rows(added: int) -> int:
    """How many expired ids of a subscription a fold deletes at most that adds so many.

    It is more than it adds, however seldom folds are, so that deleting keeps up with adding.
    """
    return limits.OUTSIDE_DELETE_ROWS + added


class Produced(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Productions of one checkpoint on one subscription; ids are producer and `first`, `first + 1`, …."""

    subscription: SubscriptionId
    producer: ProducerId
    first: SequenceNumber
    keys: list[str]
    values: list[bytes]
    timestamps: list[int]


class Acked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Productions that their receivers have acked, recorded durably here (§6.1.2)."""

    subscription: SubscriptionId
    producer: ProducerId
    sequences: list[SequenceNumber]


class CellWrites(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Writes to one cell, by key: set (bytes) or cleared (None).  A value cell, and the length of a list, has no
    `entries`; for the elements of a list and the entries of a map it is a third column."""

    cell: str
    keys: list[str]
    values: list[bytes | None]
    entries: list[str] = []


StateRow = tuple[str, str, str, bytes | None]
"""(key, cell, entry, value): one write to one place; entry is "" for a value cell."""


class StateWrites(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """State that one checkpoint changes; no place is written twice."""

    cells: list[CellWrites] = []

    def keys(self) -> set[str]:
        """Every key that is written."""
        return set().union(*(writes.keys for writes in self.cells))

    def rows(self) -> Iterator[StateRow]:
        """Every write, place by place."""
        for writes in self.cells:
            entries = writes.entries or repeat("")
            for key, entry, value in zip(writes.keys, entries, writes.values, strict=False):
                yield key, writes.cell, entry, value

    @classmethod
    def of(cls, rows: Iterable[StateRow]) -> StateWrites:
        """The writes of `rows`; of two to one place the last."""
        cells: dict[tuple[str, bool], dict[tuple[str, str], bytes | None]] = {}
        for key, cell, entry, value in rows:
            cells.setdefault((cell, entry != ""), {})[key, entry] = value
        return cls([
            CellWrites(cell, [k for k, _ in places], [*places.values()], [e for _, e in places] if entries else [])
            for (cell, entries), places in cells.items()
        ])  # fmt: skip


class TimerWrites(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Timers set (timestamp) or removed, fired or cancelled (None)."""

    keys: list[str] = []
    tags: list[str] = []
    kinds: list[str] = []
    timestamps: list[int | None] = []

    def add(self, key: str, tag: str, kind: str, timestamp: int | None) -> None:
        """One more; of a timer that is here already, the last one counts."""
        self.keys.append(key)
        self.tags.append(tag)
        self.kinds.append(kind)
        self.timestamps.append(timestamp)


TimerPlace = tuple[int, tuple[str, str]]
"""(timestamp, (key, tag)): the order in which timers of a kind come due."""

BEFORE_TIMERS: Final[TimerPlace] = (-(2**63), ("", ""))
"""Before every timer."""


class HoldWrites(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Watermark holds per key, set (timestamp) or released (None)."""

    keys: list[str] = []
    timestamps: list[int | None] = []

    def add(self, key: str, timestamp: int | None) -> None:
        """One more; of a key that is here already, the last one counts."""
        self.keys.append(key)
        self.timestamps.append(timestamp)


class SinkRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One write to a user's sink table; `values` is a JSON object: of all columns, or of the key of a row to delete."""

    table: str
    values: bytes
    deleted: bool = False


class QuarantineEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One element of a poisoned key's FIFO: a record, or a timer (`is_timer`), which has a tag and a kind and no value."""

    key: str
    subscription: SubscriptionId
    producer: ProducerId
    sequence: SequenceNumber
    value: bytes
    timestamp: int
    tag: str = ""
    kind: str = ""
    error: str = ""

    @staticmethod
    def of_timer(timer: Timer, error: str = "") -> QuarantineEntry:
        """A timer as an element."""
        return QuarantineEntry(
            timer.key, OF_TIMER, ProducerId(0), SequenceNumber(0), b"", timer.timestamp, timer.tag, timer.kind, error
        )

    @property
    def is_timer(self) -> bool:
        """False for a record."""
        return self.subscription == OF_TIMER


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One atomic write: everything that one invocation changed, with the ids of what it consumed (§6.1.2)."""

    format: int
    shape: str
    epoch: int
    ids: list[Ids]
    produced: list[Produced]
    acked: list[Acked]
    state: StateWrites
    timers: TimerWrites
    holds: HoldWrites
    sinks: list[SinkRow]
    quarantined: list[QuarantineEntry]
    forgotten: list[str] = []
    """Keys whose whole state, holds and timers are removed (state expiry) before this checkpoint's own writes."""
    redriven: list[tuple[str, int]] = []
    """(key, n): the first n elements of the key's quarantine FIFO are done."""
    released: list[str] = []
    """Keys whose quarantine ends here."""
    outside: list[OutsideIdWrites] = []
    """Ids chosen by outside clients of the records that were taken; `ids` has those of dropped records as well."""
    sink_keys: list[str] = []
    """Where sink rows become visible when an epoch is declared: the key whose hook wrote each of them."""


class LogWrite(msgspec.Struct, frozen=True, gc=False):
    """A row of `checkpoint_log`, with the decoded sink rows that must commit in the same transaction."""

    interval: IntervalId
    sequencer: Sequencer
    seq: Seq
    epoch: int
    payload: bytes
    sinks: tuple[SinkRow, ...] = ()
    keys: tuple[str, ...] = ()
    """The key whose hook wrote each sink row: blame for a row that is refused ends at its key."""


class Delivered(msgspec.Struct, frozen=True, gc=False):
    """What the store has of one (subscription, producer): all ids below `frontier`, some up to `top` (-1: none).

    `frontier` is what the sender advertised.  The ids themselves stay in the store, so this does not grow with their number.
    """

    subscription: SubscriptionId
    producer: ProducerId
    frontier: SequenceNumber
    top: SequenceNumber


class OutsideBucket(msgspec.Struct, frozen=True, gc=False):
    """A time bucket of ids chosen by outside clients in the store: `count` of them at most."""

    subscription: SubscriptionId
    expires: int
    count: int


class RecoveredInterval(msgspec.Struct, frozen=True, gc=False):
    """What an interval needs before it serves: everything but key state, which loads on demand."""

    ids: list[Delivered]
    productions: list[Bundle]
    """Unacked productions per (subscription, producer); `target`, `number` and `sender` are unset (0)."""
    timers: TimerWrites
    """The first page of each kind, in order of (timestamp, key, tag)."""
    holds: HoldWrites
    quarantined: list[str]
    watermark: int
    outside: list[OutsideBucket] = []
    more_timers: list[str] = []
    """Kinds of timers of which more are stored."""
    ends: int = 0
    """How often in a row a process that had the interval has not ended in order."""
    suspicion: bytes = b""
    """What the last mark says (`core.faults.suspects`)."""
    blank: bool = False
    """Surely there is no state and no timer of any key; it may be unknown."""


class KeyRows(msgspec.Struct, frozen=True, gc=False):
    """One key as the store holds it: its state {(cell, entry): bytes}, and its timers {(kind, tag): timestamp} if they
    were asked for."""

    key: str
    cells: dict[tuple[str, str], bytes]
    timers: dict[tuple[str, str], int] = {}
    more: bool = False
    """There are cells that were not read: these are the first."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Checkpoint)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The serialised form of a checkpoint (msgpack columns)."""
    return _encoder.encode(checkpoint)


def decode_checkpoint(payload: bytes) -> Checkpoint:
    """The checkpoint of `payload`; raises msgspec.DecodeError for bytes of another format."""
    return _decoder.decode(payload)
