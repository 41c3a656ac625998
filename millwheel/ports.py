"""What the runtime needs from the outside: a store, sources, and channels between hosts.  Protocols only.

The simulator and the embedded runtime use the same protocols.  A store whose coroutines never wait is driven without an
event loop, so nothing is written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from typing import Protocol, TypeVar

import msgspec

from millwheel.bundles import (
    Acked,
    Checkpoint,
    KeyRows,
    LogWrite,
    QuarantineEntry,
    RecoveredInterval,
    StateRow,
    TimerPlace,
    TimerWrites,
)
from millwheel.cluster import (
    ClusterMap,
    HotKey,
    Leader,
    MapOrder,
    Member,
    Placement,
    Reshaping,
    Senders,
    StandsAt,
    Standstill,
)
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.shape import PipelineShape as PipelineShape
from millwheel.shape import SinkTable as SinkTable
from millwheel.source import Ahead as Ahead
from millwheel.source import AnnouncingPartition as AnnouncingPartition
from millwheel.source import Batch as Batch
from millwheel.source import PacedPartition as PacedPartition
from millwheel.source import RecordId as RecordId
from millwheel.source import ServedPartition as ServedPartition
from millwheel.source import Source as Source
from millwheel.source import SourcePartition as SourcePartition
from millwheel.source import SourcePosition as SourcePosition
from millwheel.work import Wanted


class IntervalRow(msgspec.Struct, frozen=True):
    """One key interval [low, high) of a computation; high None means unbounded."""

    id: IntervalId
    computation: str
    low: str
    high: str | None


class Opened(msgspec.Struct, frozen=True):
    """The store's answer to `open_pipeline`: durable numbers for names, the interval map, and who has fed streams."""

    intervals: tuple[IntervalRow, ...]
    subscriptions: Mapping[str, SubscriptionId]
    fed: Mapping[str, str] = {}
    """Sources that have opened a partition in any run, those that the pipeline no longer has included, to their streams."""
    places: Mapping[str, Mapping[str, str]] = {}
    """By computation, cells whose values are stored under another name than theirs, and that name."""


class PositionWrite(msgspec.Struct, frozen=True):
    """Advance of a source partition, fenced by its interval's sequencer."""

    interval: IntervalId
    sequencer: Sequencer
    position: int
    finished: bool
    state: bytes
    signs: Sequence[bytes] = ()
    """Signs by which a partition that is finished now is recognised later (`search.sign`)."""
    rejected: int = 0
    """Rows below `position` that were rejected."""


class WatermarkWrite(msgspec.Struct, frozen=True):
    """The watermark of a computation or of a source, fenced by all `owners`: interval to the sequencer under which its
    reports were made (§7.2)."""

    name: str
    value: int
    owners: Mapping[IntervalId, Sequencer]


class FoldWrite(msgspec.Struct, frozen=True):
    """A prefix of an interval's log to become tables, fenced by its sequencer.

    `images` are the committed checkpoints of this sequencer up to `upto`, contiguous.  `acked` has the acks in committed
    checkpoints after it; productions that they name are not stored at all.  `fresh` keys have no stored state, so theirs
    is inserted without looking for what it replaces.  Images and acks are of `epoch`.
    """

    interval: IntervalId
    sequencer: Sequencer
    upto: Seq
    images: Sequence[Checkpoint]
    acked: Sequence[Acked] = ()
    fresh: Set[str] = frozenset()
    epoch: int = 0


class Declaration(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch is complete (docs/adr/0032-snapshots-at-barriers.md): what becomes visible with it, all or nothing.

    It is fenced by `owners`, which are all intervals of the graph, and by the sequencers of the positions.  `sinks` are the
    log rows, as (interval, seq), whose sink rows are to be written.  `watermarks` are by computation or "source:name", us.
    In a cluster it is fenced by the epoch of the leader, its `term`, too; 0 outside of one.
    """

    epoch: int
    owners: Mapping[IntervalId, Sequencer]
    positions: Sequence[PositionWrite] = ()
    watermarks: Mapping[str, int] = {}
    sinks: Sequence[tuple[int, int]] = ()
    term: int = 0


class MarkWrite(msgspec.Struct, frozen=True):
    """What an interval is about to run, or has run, fenced by its sequencer (`core.faults.suspects`).

    `ends` None keeps the count of unclean ends.  0 records an orderly end, and 1 that this process has served for long.
    """

    interval: IntervalId
    sequencer: Sequencer
    mark: bytes
    ends: int | None = None


class QuarantineRow(msgspec.Struct, frozen=True):
    """One stored element of a poisoned key's FIFO; `order` is its place."""

    computation: str
    key: str
    order: int
    subscription: SubscriptionId
    producer: ProducerId
    sequence: SequenceNumber
    value: bytes
    timestamp: int
    tag: str
    kind: str
    error: str


class Store(Protocol):
    """The only durable thing.  Every write carries a sequencer.  A fenced write changes nothing and says so.

    When a call was certainly not applied, a failure of the connection raises a `StoreError` that the store marks retryable.
    A lost reply of a commit raises `CommitUnknown`.
    """

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """Create or migrate the pipeline's schema, check versions, shape and coders (`IncompatibleStore`)."""
        ...

    async def acquire(self, intervals: Sequence[IntervalId]) -> dict[IntervalId, Sequencer]:
        """Take ownership.  Each interval gets a new sequencer, durable on return, and older owners are fenced from now on.

        Raises `IncompatibleStore` when another version of the pipeline was opened since this process has opened its own.
        """
        ...

    async def reacquire(self, interval: IntervalId, sequencer: Sequencer) -> Sequencer | None:
        """A new sequencer for an interval that `sequencer` still owns, as `acquire`; None when it is fenced."""
        ...

    async def recover(self, interval: IntervalId, sequencer: Sequencer) -> RecoveredInterval | None:
        """Fold the interval's whole log, then load what it needs to serve; None when fenced, or merged away."""
        ...

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """Folded state of `keys`, and if asked for their timers; a key without either is absent from the answer.

        Of a key with more than `limits.STATE_PAGE_SLOTS` cells and entries, the answer has only the first, and says so.
        """
        ...

    async def load_slots(self, interval: IntervalId, wanted: Sequence[Wanted]) -> list[StateRow]:
        """Those of the `wanted` cells and entries that are in the folded state, in any order."""
        ...

    async def load_timers(
        self, interval: IntervalId, sequencer: Sequencer, kind: str, after: TimerPlace, limit: int
    ) -> TimerWrites | None:
        """The next `limit` folded timers of a kind after (timestamp, (key, tag)), in that order; None: fenced.

        It is fenced, because the watermark that an interval reports assumes that no timer comes before these.
        """
        ...

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        """Which of ascending `sequences`, none below the stored frontier, are delivered ids in the folded tables.

        It is not fenced, because what a stale owner reads is durable too.
        """
        ...

    async def find_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """Which of `ids`, chosen by outside clients, were taken, and do not expire until wall time `now`, us.

        Folded tables only; not fenced, as `find_ids`.
        """
        ...

    async def read_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, expires: int, after: bytes, limit: int
    ) -> list[bytes]:
        """The first `limit` ids after `after`, ascending, of the bucket that expires at `expires`, us."""
        ...

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[IntervalId, Seq]]:
        """Insert log rows (and sink rows) in one transaction; the (interval, seq) pairs that are durable.

        A pair that is missing was fenced.  Committing a row again under its primary key is a success.  Raises
        `CommitUnknown` when the reply was lost, and `RowRefused` when the database refused sink rows of a checkpoint.
        Then all earlier checkpoints of its interval are durable, and it and later ones are not.  Nothing is said of
        other intervals: commit theirs again.  Commit no more of this interval before it is recovered.
        """
        ...

    async def fold(self, write: FoldWrite) -> bool:
        """Turn a prefix of an interval's log into tables and delete its rows, in one transaction; False: fenced.

        Raises `StoreError` when there are not as many rows as images, or when `fresh` keys have state.
        """
        ...

    async def rewind(self, owners: Mapping[IntervalId, Sequencer]) -> int | None:
        """Go back to the last declared epoch, and return its number, 0 when there was none; None when fenced.

        `owners` are all intervals of the graph and their sequencers.  Log rows of later epochs are deleted.  Intervals of
        other computations that the store has are fenced, so that an earlier run adds nothing any more.
        """
        ...

    async def declare(self, declaration: Declaration) -> bool:
        """Make an epoch visible, in one transaction; False: fenced, and nothing has changed.

        An epoch that is declared already stays as it is.  Raises `RowRefused` when the database refuses sink rows of a log
        row, which it names, and `StoreError` when a log row is not there.  Then the epoch is not declared.
        """
        ...

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        """Store watermarks, at most one a name, in one transaction; the names whose owners were not fenced, not one.

        A smaller value never overwrites a larger one.
        """
        ...

    async def still_owned(self, owners: Mapping[IntervalId, Sequencer]) -> set[IntervalId]:
        """Those of the intervals whose newest sequencer is the given one.  Not fenced: a lost interval stays lost."""
        ...

    async def behind_others(self, intervals: Collection[IntervalId]) -> set[IntervalId]:
        """Those of the intervals that were cut off from another one that keeps what it had sent, while some of that is not
        folded as acked.  What they send would overtake it."""
        ...

    async def watermarks(self) -> dict[str, int]:
        """What `persist_watermarks` stored."""
        ...

    async def open_source(self, source: str, states: Mapping[str, bytes]) -> list[SourcePosition]:
        """Durable positions of partitions, `states` by name, in that order: one that is new begins at row 0, in that state,
        with a producer number and an interval of its own, larger than those of all before it."""
        ...

    async def source_partitions(self, source: str) -> list[SourcePosition]:
        """What the source has opened and not finished, by name; and what was finished before partitions had signs."""
        ...

    async def unknown_signs(self, source: str, signs: Sequence[bytes]) -> set[bytes]:
        """Those of `signs` that no finished partition of the source has: one probe of an index for each."""
        ...

    async def find_partitions(self, source: str, signs: Sequence[bytes], names: Sequence[str]) -> list[SourcePosition]:
        """Partitions of the source that have one of these signs or names, by name."""
        ...

    async def add_signs(self, source: str, signs: Mapping[IntervalId, Sequence[bytes]]) -> None:
        """Add further signs of finished partitions, by interval.  Not fenced, because anybody's signs are true."""
        ...

    async def unfinished_partitions(self) -> list[tuple[str, SourcePosition]]:
        """(source, position) of every partition that is not finished, of sources that the pipeline no longer has too."""
        ...

    async def advance(self, writes: Sequence[PositionWrite]) -> set[IntervalId]:
        """Persist positions in one transaction; the intervals that were not fenced."""
        ...

    async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
        """Store marks, at most one an interval, in one transaction; the intervals that were not fenced.

        Only for intervals that were recovered.  `recover` counts an unclean end in advance, until `ends` says otherwise.
        """
        ...

    async def quarantined(self, interval: IntervalId, keys: Sequence[str], limit: int) -> list[QuarantineEntry]:
        """The folded quarantine FIFOs of `keys` in ascending order of the keys; the first `limit` elements of that."""
        ...

    async def redrive_requests(self, start: tuple[str, str], limit: int) -> list[tuple[str, str]]:
        """(computation, key) pairs whose redrive was asked for and is not done: the first `limit` from `start` on."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class ClusterStore(Store, Protocol):
    """A store that many processes share.  All agreements between them are rows, and the database's clock judges leases.

    Every call may be applied twice.  Durations are us.
    """

    async def join(self, name: str, role: str, address: str, lease_us: int, key: bytes) -> Member:
        """A new member with a lease of `lease_us` from now.  `key` is unique to the process: asked again with it, the store
        answers with the member that it made the first time."""
        ...

    async def renew(self, incarnation: int, lease_us: int) -> bool:
        """Extend the lease of a member to `lease_us` from now.  False: it had run out, or the member was removed.

        A lease that has run out is never valid again: the process has to end, or to join as another member.
        """
        ...

    async def leave(self, incarnation: int) -> None:
        """Remove a member; what it owns is not owned by anybody, and its sequencers are void."""
        ...

    async def lead(self, incarnation: int, lease_us: int) -> Leader | None:
        """Become the leader, or stay it: None while another member's lease as leader is valid, or when the own lease as a
        member is not.  Whoever becomes leader gets a new epoch; whoever stays leader keeps it."""
        ...

    async def cluster_map(self) -> ClusterMap:
        """Everything that was decided, as of one moment."""
        ...

    async def place(self, placement: Placement) -> int | None:
        """Give intervals and sources new owners, in one transaction; the new version of the map.

        Each interval that is named gets a new sequencer, also when its owner is the same, and so do the unfinished partitions
        of each source that is named.  So earlier owners are fenced when this is durable.  None: the epoch or the version is
        not current, or an owner's lease is not valid, and nothing was changed.
        """
        ...

    async def take_partitions(
        self, source: str, incarnation: int, intervals: Sequence[IntervalId]
    ) -> dict[IntervalId, Sequencer] | None:
        """New sequencers for partitions of a source, as `acquire`; None when the member does not own the source."""
        ...

    async def reshape(self, reshaping: Reshaping) -> tuple[int, tuple[IntervalId, ...]] | None:
        """Split or merge intervals; the new version of the map, and the ids of the intervals that are there now, by key.

        The first keeps the id of the first that was named.  They have new sequencers and no owner.  State, timers and
        quarantine lie by key and are not touched; delivered ids are copied by a split and united by a merge, frontiers
        included.  Unacked productions of an interval that is split stay with the first, because the frontier that a sender
        tells rests on all that its producer has sent.  Those of intervals that are merged are the first's.

        With `back`, what their logs have up to the last declared epoch is folded first, and what comes after that is dropped.
        The order that this carries out is settled with it.

        None: the epoch or the version is not current.  `StoreError` is raised when an interval is owned, when its log is not
        empty (without `back`), and when keys or neighbours do not fit.
        """
        ...

    async def persist_led_watermarks(self, epoch: int, writes: Sequence[WatermarkWrite]) -> set[str] | None:
        """As `persist_watermarks`, fenced by the leader's epoch too; None when the epoch is not current."""
        ...

    async def expel(self, incarnations: Sequence[int]) -> int:
        """End the database sessions of members whose leases have run out; how many were ended.

        A process that was stopped keeps its locks, and they would delay the next owner.
        """
        ...

    async def senders(self) -> Senders:
        """Who may still send something that is new to its receiver, as of one moment.

        A producer that is in none of these, and in no unfinished partition, will never be in one again.
        """
        ...

    async def order(self, order: MapOrder) -> int:
        """An operator wants the map to be changed: the number of the order, which a leader will carry out or refuse."""
        ...

    async def orders(self) -> list[tuple[int, MapOrder]]:
        """Orders that are not settled, by their numbers, the oldest first."""
        ...

    async def settle_order(self, epoch: int, number: int, refusal: str) -> bool:
        """An order is carried out (""), or refused for this reason.  False: the epoch is not current.

        Settled orders that are `limits.SETTLED_ORDERS` older than this one are forgotten.
        """
        ...

    async def count_rejected(self) -> int:
        """Rows that sources have rejected since the pipeline began, as far as positions are durable."""
        ...

    async def count_quarantined(self) -> int | None:
        """Keys of the map's computations that are in quarantine; None while a log of the map holds what counts.

        What a log holds is folded by the owner of its interval.  Until then the tables do not know it.
        """
        ...

    async def note_hot_keys(self, incarnation: int, keys: Sequence[HotKey]) -> None:
        """Remember what a worker's intervals get most of, in the place of what it has said before, while it is a member."""
        ...

    async def hot_keys(self) -> list[HotKey]:
        """What members have said, by interval, the largest share first; of one that is gone nothing."""
        ...

    async def note_standstills(self, incarnation: int, found: Sequence[Standstill]) -> None:
        """Remember what keeps watermarks at a worker, in the place of what it has said before, while it is a member."""
        ...

    async def standstills(self) -> list[StandsAt]:
        """What members have said, by incarnation; of one whose lease has run out nothing."""
        ...

    async def refusal(self, number: int) -> str | None:
        """ "" when an order was carried out, why it was refused, or None while it is open."""
        ...


WallClock = Callable[[], int]
"""Wall time, int microseconds since the epoch."""


MessageT = TypeVar("MessageT")


class Transport(Protocol[MessageT]):
    """The channels between hosts, each known by its name.

    What a channel promises is in docs/protocol.md.  It keeps the order of control messages and of bundles between two
    intervals, and it may be cut.  A cut loses what is on its way.  Then both ends hear that it is open again, before
    anything else passes.
    """

    def attach(self, name: str, heard: Callable[[str, MessageT], None], opened: Callable[[str], None]) -> None:
        """From now on the host `name` takes messages here: `heard` gets the sender's name and the message.  `opened` gets
        the name of a peer whose channels were cut and are open again."""
        ...

    def tell(self, sender: str, receiver: str, message: MessageT) -> None:
        """Send a message.  It never waits and never fails: what a cut channel is given is lost."""
        ...

    def peers(self, addresses: Mapping[str, str]) -> None:
        """From now on these hosts of other processes can be told something, by name, at host:port.

        The channel of a name that is missing ends, and nothing of it is kept.  A name with another address begins anew.
        Hosts that are attached here need no address.
        """
        ...
