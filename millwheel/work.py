"""One invocation: what user code is given (`Work`) and what it did (`InvocationOutcome`).

Lives here: plain values between the sans-IO core and the executor.  Never here: decisions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from millwheel.bundles import QuarantineEntry, SinkRow, TimerPlace
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME, Timer

Slot = tuple[str, str]
"""(cell, entry): the address of one stored value within a key."""

Wanted = tuple[str, str, str | None]
"""(key, cell, entry): a slot that must be read from the store before a hook can go on; None: every slot of the cell."""

Values = Mapping[str, Mapping[str, bytes]]
"""cell to key to the value: what has one value per key."""

Entries = Mapping[str, Mapping[str, Mapping[str, bytes]]]
"""cell to key to entry to the value: elements of lists, entries of maps."""


QUARANTINE_HOLD: Final = "\0quarantine"
"""Behind a key: the name of the hold of its quarantine.  It sorts right after the key, so it stays in its interval."""


class RecordCause(NamedTuple):
    """A record, by its id, made a hook run under `key`."""

    key: str
    subscription: SubscriptionId
    producer: ProducerId
    sequence: SequenceNumber


class TimerCause(NamedTuple):
    """A timer, by its name and time, made a hook run under `key`."""

    key: str
    kind: str
    tag: str
    timestamp: int


Cause = RecordCause | TimerCause


def cause_of(entry: QuarantineEntry) -> Cause:
    """What makes a hook run when an element of a quarantine is redriven."""
    if entry.is_timer:
        return TimerCause(entry.key, entry.kind, entry.tag, entry.timestamp)
    return RecordCause(entry.key, entry.subscription, entry.producer, entry.sequence)


class BundlePart(msgspec.Struct, frozen=True, gc=False):
    """Fresh records of one bundle, in order.  Columns of equal length."""

    subscription: SubscriptionId
    producer: ProducerId
    frontier: SequenceNumber
    sequences: list[SequenceNumber]
    keys: list[str]
    values: list[bytes]
    timestamps: list[int]
    outside: list[bytes] = []
    """Ids that an outside client chose, one a record, or none at all."""
    expires: int = 0
    """Wall time, us, until which these must be remembered."""


class Known(msgspec.Struct, gc=False):
    """Of a key that is in memory in part: what is known about what is not there.

    Borrowed for one invocation: the cache has it, and changes it between invocations.
    """

    absent: set[Slot]
    """Slots that hold nothing."""
    whole: set[str]
    """Cells of which all there is is in memory."""

    def lacks(self, cell: str, entry: str | None) -> bool:
        """True when only the store knows what is there."""
        return cell not in self.whole and (cell, entry) not in self.absent


TimerId = tuple[str, str, str]
"""(key, kind, tag): a timer is pending once by it."""


class Stall(NamedTuple):
    """A timer that was due when another one's hook set it, and its place among those that have led to it."""

    firings: int
    """How many of them in a row were set to no later time than those before had reached."""
    watermark: int
    """The latest event time among them, us; MIN_TIME: none was a low-watermark timer."""
    wall: int
    """The latest wall time, us."""


class Work(msgspec.Struct, gc=False):
    """One invocation of one interval: records, or timers that are due, never both.

    Borrowed for one invocation: its columns are those of the cache, and nobody keeps it longer.
    """

    parts: list[BundlePart]
    timers: list[Timer]
    values: Values
    entries: Entries
    holds: Mapping[str, int]
    watermark: int
    wall_time: int
    redrive: list[QuarantineEntry] = []
    partial: Mapping[str, Known] = {}
    """Keys whose state is in memory in part only."""
    suspended: Suspended | None = None
    """How far it came, when it waits for state that a hook has asked for."""
    reach: Mapping[str, TimerPlace] = {}
    """Kind to a place before which no timer of the interval is pending but those in `timers`: what hooks set to a time
    before it may fire in this invocation."""
    chain: int = 0
    """How many of those may."""
    stalls: Mapping[TimerId, Stall] = {}
    """Of `timers`, those that have one."""
    changes: dict[str, dict[str, bytes | None]] | None = None
    """Under snapshots: by cell, what hooks have set since the last cut (None: cleared), which `values` do not have yet.
    Hooks write here, so that nothing is merged after each invocation.  None: what they set is in their outcome."""
    promised: int = MIN_TIME
    """In a loop: others may have been told that nothing older than this begins here, us.  So wall timers speak of no older
    time."""


class Columns(msgspec.Struct, frozen=True, gc=False):
    """Productions on one subscription, in order; or rows of a source, with the ids that an outside client gave them."""

    keys: list[str]
    values: list[bytes]
    timestamps: list[int]
    outside: list[bytes] = []


class InvocationOutcome(msgspec.Struct, gc=False):
    """Buffered effects of one invocation; what a failed hook did is not in it.

    Borrowed for one invocation: hooks fill it, and the checkpoint of the invocation is made of it.
    """

    values: dict[str, dict[str, bytes | None]] = {}
    """cell to {key: the new value, or None for cleared}; nothing where hooks write to `Work.changes`."""
    entries: dict[str, dict[str, dict[str, bytes | None]]] = {}
    """cell to key to {entry: the new value, or None for removed}."""
    timers: dict[str, dict[tuple[str, str], int | None]] = {}
    """key to {(kind, tag): timestamp, or None for cancelled}."""
    holds: dict[str, int | None] = {}
    produced: dict[SubscriptionId, Columns] = {}
    sinks: list[SinkRow] = []
    causes: list[Cause] = []
    """Of each sink row."""
    quarantined: list[QuarantineEntry] = []
    processed: int = 0
    late: int = 0
    backdated: int = 0
    """Productions older than their cause (only counted when timestamps are not strict)."""
    redriven: dict[str, int] = {}
    """key to the number of its elements that a redrive has run; the others wait as before."""
    chained: int = 0
    """Timers that were set here and have fired here, less those that were given and have not fired."""
    stalls: dict[TimerId, Stall] = {}
    """Of timers that are set here and are due."""
    written_bytes: int = 0
    """What hooks have produced and written, encoded."""
    grown_bytes: int = 0
    """By how much values in `Work.changes` have grown, about."""
    fits: int = 0
    """When it is not 0, nothing of the invocation counts, because together its records made too much of one checkpoint: so
    many of them fit."""
    lacking: list[Wanted] = []
    """What must be in memory before the invocation can go on; then it is not over, and all else here is provisional."""
    full: bool = False
    """The computation takes no records for now (`Computation.has_room`)."""

    def oldest(self) -> int:
        """The smallest event time of what it leaves to be done: productions, timers and holds; or MAX_TIME."""
        produced = (min(columns.timestamps, default=MAX_TIME) for columns in self.produced.values())
        settings = (slot for timers in self.timers.values() for slot in timers.items())
        timers = (at for (kind, _), at in settings if kind == "watermark" and at is not None)
        holds = (at for at in self.holds.values() if at is not None)
        return min([MAX_TIME, *produced, *timers, *holds])


class Suspended(msgspec.Struct, gc=False):
    """An invocation that waits for state.  Borrowed for one invocation, until that goes on."""

    outcome: InvocationOutcome
    values: dict[str, dict[str, bytes | None]]
    entries: dict[str, dict[str, dict[str, bytes | None]]]
    produced: list[Any]
    waiting: list[QuarantineEntry | Timer]
    """What has not run yet, in order."""
    journal: list[Any] = []
    """What its hooks have replaced in `Work.changes`."""
