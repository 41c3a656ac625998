"""Events that enter a core and effects that leave it.  Plain values; nothing else lives here."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import final

from msgspec import Struct

from millwheel.bundles import (
    Acked,
    Bundle,
    Checkpoint,
    KeyRows,
    LogWrite,
    QuarantineEntry,
    StateRow,
    TimerPlace,
    TimerWrites,
)
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval.counters import Counters as Counters
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, SubscriptionId
from millwheel.source import Ahead
from millwheel.work import Columns, InvocationOutcome, Wanted, Work


class Inherited(Struct, frozen=True):
    """What an interval's core knows of the one before it in this process."""

    refused: RefusedRows
    channels: list[Channel]
    """On which it may have sent.  Receivers are told when nothing is left on them."""
    counters: Counters
    suspects: Suspects
    watermark: int
    """Its input low watermark; it may have reported more than is persisted."""
    declared: int | None = None
    """Under snapshots: the last declared epoch that it knew."""


# --- events -----------------------------------------------------------------------------------------------------


class BundleArrived(Struct, frozen=True, gc=False):
    """A bundle was delivered; it may be a duplicate."""

    bundle: Bundle


class Loaded(Struct, frozen=True, gc=False):
    """Answer to `Load`."""

    rows: list[KeyRows]


class SlotsLoaded(Struct, frozen=True, gc=False):
    """Answer to `LoadSlots`."""

    rows: list[StateRow]


class TimersLoaded(Struct, frozen=True, gc=False):
    """Answer to `LoadTimers`: in order of (timestamp, key, tag); `more` are stored behind them."""

    kind: str
    timers: TimerWrites
    more: bool


class Invoked(Struct, frozen=True, gc=False):
    """Answer to `Invoke`; `elapsed_us` is how long user code took."""

    outcome: InvocationOutcome
    elapsed_us: int = 0


class Marked(Struct, frozen=True, gc=False):
    """The mark is durable: the invocation may run."""


class CommitDone(Struct, frozen=True, gc=False):
    """The checkpoint `seq` is durable."""

    seq: Seq


class WriteFenced(Struct, frozen=True, gc=False):
    """A write of this interval was refused: another owner has it."""


class Refused(Struct, frozen=True, gc=False):
    """The store refused sink rows of checkpoint `seq`: (place among its sink rows, the store's answer).

    Everything before `seq` is durable, nothing from it on.
    """

    seq: Seq
    rows: tuple[tuple[int, str], ...]


class Resend(Struct, frozen=True, gc=False):
    """Send the interval `target` everything that it has not acked."""

    target: IntervalId


class FoldDone(Struct, frozen=True, gc=False):
    """Everything up to `upto` is in the folded tables."""

    upto: Seq


class IdsFound(Struct, frozen=True, gc=False):
    """Answer to `LookupIds`: which of them the store has."""

    sender: IntervalId
    found: set[int]
    outside: set[bytes] = set()


class OutsideIdsRead(Struct, frozen=True, gc=False):
    """Answer to `ReadOutsideIds`."""

    subscription: SubscriptionId
    expires: int
    ids: list[bytes]


class AckArrived(Struct, frozen=True, gc=False):
    """A receiver made the bundle `number` durable.  `epoch` is the label that it had then."""

    number: int
    epoch: int = 0


class AlarmRang(Struct, frozen=True, gc=False):
    """The time of an earlier `SetAlarm` has come."""


class RowsAnnounced(Struct, frozen=True, gc=False):
    """A source partition has something to read."""


class WatermarkMoved(Struct, frozen=True, gc=False):
    """The input low watermark of the computation is now `value`, by what was reported under labels up to `label`."""

    value: int
    label: int = 0


class RoundBegan(Struct, frozen=True, gc=False):
    """A round of the loop that this interval is in: inputs from outside have promised `bound`, us."""

    round: int
    bound: int


class ChannelsExpected(Struct, frozen=True, gc=False):
    """Something may still come on these channels, although their producers are older than the interval's owner."""

    channels: tuple[Channel, ...]


class ChannelsEnded(Struct, frozen=True, gc=False):
    """Nothing that comes on these channels is new."""

    channels: tuple[Channel, ...]


class RedriveAsked(Struct, frozen=True, gc=False):
    """A user asked to redrive the quarantines of distinct `keys`, perhaps repeatedly."""

    keys: list[str]


class QuarantineFetched(Struct, frozen=True, gc=False):
    """Answer to `FetchQuarantine`: elements in the order of keys, and for each key in the order of its FIFO.

    With `more`, elements may be missing: of the last key that is here, and of the keys after it.
    """

    entries: list[QuarantineEntry]
    more: bool = False


class RowsRead(Struct, frozen=True, gc=False):
    """Answer to `Read`: rows of a source partition, already keyed per subscription.

    `columns` maps a subscription to (sequences, columns).  `progressed` is false when there was nothing to read.
    """

    columns: dict[SubscriptionId, tuple[list[SequenceNumber], Columns]]
    count: int
    next_position: int
    state: bytes
    watermark: int
    finished: bool
    progressed: bool
    rejected: int = 0
    ahead: Ahead | None = None
    """What stands next in a paced partition, if that is known."""
    kinds: Mapping[str, int] = {}
    """How many rows were rejected, by kind."""
    full: bool = False
    """There may be more."""


class Advanced(Struct, frozen=True, gc=False):
    """The position written by `Advance` is durable."""

    position: int
    finished: bool


class EpochBegun(Struct, frozen=True, gc=False):
    """An epoch has begun, and these intervals and partitions send their barriers to this interval."""

    epoch: int
    senders: Set[IntervalId]
    back: Set[IntervalId] | None = None
    """Those that send theirs on back edges of a loop; None: nobody has told them apart."""


class EpochEnded(Struct, frozen=True, gc=False):
    """The epoch is declared."""

    epoch: int


class BarrierAsked(Struct, frozen=True, gc=False):
    """Partitions only: an epoch has begun.  Note the position, and send barriers."""

    epoch: int


Event = (
    BundleArrived | Loaded | SlotsLoaded | TimersLoaded | Marked | Invoked | CommitDone | WriteFenced | Refused | Resend
    | FoldDone | IdsFound | OutsideIdsRead | AckArrived | AlarmRang | WatermarkMoved | ChannelsExpected | ChannelsEnded
    | RedriveAsked | QuarantineFetched | RowsRead | RowsAnnounced | Advanced | RoundBegan | EpochBegun
    | EpochEnded | BarrierAsked
)  # fmt: skip

# --- effects ----------------------------------------------------------------------------------------------------


class Load(Struct, frozen=True, gc=False):
    """Read the folded state of `keys`, and their timers when not all are in memory."""

    keys: list[str]
    timers: bool = False


class LoadSlots(Struct, frozen=True, gc=False):
    """Read single cells and entries of keys that were not read whole."""

    wanted: list[Wanted]


class LoadTimers(Struct, frozen=True, gc=False):
    """Read the next `limit` timers of a kind from the folded tables, those after (timestamp, (key, tag))."""

    kind: str
    after: TimerPlace
    limit: int


@final
class Invoke(Struct, frozen=True, gc=False):
    """Run user code."""

    work: Work


class Mark(Struct, frozen=True, gc=False):
    """Store `suspicion`, which names what is about to run.

    With `alone`, no other invocation of this process may run from now until the `Unmark` that follows is durable.
    """

    suspicion: bytes
    alone: bool


class Unmark(Struct, frozen=True, gc=False):
    """Store `suspicion`: what ran has not ended the process.  `trusted`: nothing else has, for a long time."""

    suspicion: bytes
    trusted: bool = False


@final
class Commit(Struct, frozen=True, gc=False):
    """Insert one log row; an interval's commits are submitted, and must be applied, in seq order."""

    write: LogWrite


class LookupIds(Struct, frozen=True, gc=False):
    """Ask the folded tables which of `sequences` were consumed: a bundle of `sender` waits for it."""

    sender: IntervalId
    subscription: SubscriptionId
    producer: ProducerId
    sequences: list[SequenceNumber]
    outside: list[bytes] = []
    """Ids that outside clients chose.  Which of them were taken, and have not expired by wall time `now`, us?"""
    now: int = 0


class ReadOutsideIds(Struct, frozen=True, gc=False):
    """Read the next `limit` ids of a bucket, in order, after the id `after`."""

    subscription: SubscriptionId
    expires: int
    after: bytes
    limit: int


class Fold(Struct, frozen=True, gc=False):
    """Fold committed images, a contiguous prefix ending at `upto`.

    `acked` are acks in committed checkpoints after it.  The tables have no state of `fresh` keys.  All are of `epoch`.
    """

    upto: Seq
    images: list[Checkpoint]
    acked: list[Acked]
    fresh: Set[str]
    epoch: int = 0


@final
class Send(Struct, frozen=True, gc=False):
    """Deliver a bundle to `bundle.target`."""

    bundle: Bundle


@final
class Ack(Struct, frozen=True, gc=False):
    """Tell `sender` that its bundle `number` is durable here, in `epoch`."""

    sender: IntervalId
    number: int
    epoch: int = 0


@final
class SetAlarm(Struct, frozen=True, gc=False):
    """Ring at wall time `at`, us; a later one does not cancel it."""

    at: int


@final
class ReportWatermark(Struct, frozen=True, gc=False):
    """This interval's low watermark for the authority."""

    value: int


class AnswerRound(Struct, frozen=True, gc=False):
    """The oldest work, us, that was held since the answer to the round before."""

    round: int
    minimum: int


class FetchQuarantine(Struct, frozen=True, gc=False):
    """Read the quarantine FIFOs of `keys`, one after the other in ascending order, at most `limit` elements in all.

    The tables suffice, because everything that the log says of these FIFOs is folded.
    """

    keys: list[str]
    limit: int


@final
class Read(Struct, frozen=True, gc=False):
    """Read at most `limit` rows of the source partition."""

    limit: int


class Advance(Struct, frozen=True, gc=False):
    """Persist the position of the source partition; `rejected` of the rows below it were rejected."""

    position: int
    state: bytes
    finished: bool
    rejected: int = 0


class RowsKept(Struct, frozen=True, gc=False):
    """All rows of the source partition below `position` are durable at every receiver, or were rejected."""

    position: int


class Halt(Struct, frozen=True, gc=False):
    """This core is void: it was fenced."""

    reason: str


class RestartInterval(Struct, frozen=True, gc=False):
    """This core is void, and its interval needs another one.

    Drop what it has not committed, take a new sequencer and recover.  Give the new core `inherited`.  Every sender must
    `Resend` to it before it sends anything else.
    """

    inherited: Inherited


class PartWritten(Struct, frozen=True, gc=False):
    """What this interval did in `epoch` is written.  `sinks` is the seq of the row with its sink rows, or 0."""

    epoch: int
    sinks: int


class PositionNoted(Struct, frozen=True, gc=False):
    """Partitions only: what was read before the barrier of the epoch, where it is more than is durable."""

    position: int
    state: bytes
    finished: bool
    rejected: int = 0


class Settled(Struct, frozen=True, gc=False):
    """All productions of earlier versions, on streams that this computation no longer lists as outputs, are acked.

    Its watermark does not concern the subscribers of those streams any more.
    """


Effect = (
    Load | LoadSlots | LoadTimers | LookupIds | ReadOutsideIds | Mark | Unmark | Invoke | Commit | Fold | Send | Ack
    | SetAlarm | ReportWatermark | AnswerRound | FetchQuarantine | Read | Advance | RowsKept | Halt | RestartInterval
    | Settled | PartWritten | PositionNoted
)  # fmt: skip
