"""A cluster as the store knows it: members, the leader, and who owns what (§7.1).

Lives here: frozen values only.  A *member* is one process.  Its *incarnation* is a number that no other process ever had; a
process that starts again is another member.  A *lease* is judged by the clock of the database and by no other clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millwheel.ids import IntervalId, ProducerId, Sequencer, SubscriptionId
from millwheel.model import MAX_TIME, MIN_TIME


class Member(msgspec.Struct, frozen=True):
    """One process of the cluster."""

    incarnation: int
    name: str
    """What an operator calls it; two processes may have the same name one after the other."""
    role: str
    """"worker" or "controller"."""
    address: str
    """host:port of its channels."""
    alive: bool = True
    """Its lease had not run out when the store was asked."""


class Leader(msgspec.Struct, frozen=True):
    """The controller that decides.  Its writes carry `epoch`, which is larger than that of every earlier leader."""

    incarnation: int
    epoch: int
    address: str


class PlacedInterval(msgspec.Struct, frozen=True):
    """A key interval [low, high) of a computation, and the member that owns it under `sequencer`."""

    id: IntervalId
    computation: str
    low: str
    high: str | None
    owner: int | None
    """An incarnation, or None: nobody may write."""
    sequencer: Sequencer


class PlacedSource(msgspec.Struct, frozen=True):
    """A source of the pipeline, and the member that discovers and reads its partitions."""

    name: str
    owner: int | None


class ClusterMap(msgspec.Struct, frozen=True):
    """All that was decided, as of one moment.  `version` grows with every decision."""

    version: int
    leader: Leader | None
    """None when no lease of a leader is valid."""
    members: tuple[Member, ...]
    """Members that have not left, those whose lease has run out included."""
    intervals: tuple[PlacedInterval, ...]
    sources: tuple[PlacedSource, ...]
    declared: int = 0
    """The last declared epoch under snapshots; 0: there was none."""


class Placement(msgspec.Struct, frozen=True):
    """A decision of a leader: new owners.  None as owner takes something away from whoever has it."""

    epoch: int
    version: int
    """The version of the map that the decision was made on.  It is refused when the map has another one."""
    intervals: Mapping[IntervalId, int | None]
    sources: Mapping[str, int | None]
    back: bool = False
    """All goes back to the last declared epoch: what the log has of a later one is dropped, in the same transaction."""


class Reshaping(msgspec.Struct, frozen=True):
    """A decision of a leader to split or to merge intervals of one computation.

    A split names one interval and the keys at which the new intervals begin.  A merge names neighbours, in order, and no
    keys.  Nobody may own any of them, and their logs must be empty, unless `back` is true.
    """

    epoch: int
    version: int
    intervals: Sequence[IntervalId]
    split_keys: Sequence[str] = ()
    back: bool = False
    """All goes back to the last declared epoch: their logs are folded to its end, and what comes after that is dropped."""
    order: int = 0
    """The order that is carried out by this, and settled in the same transaction; 0: none."""


class Senders(msgspec.Struct, frozen=True):
    """Who may still send something that is new to its receiver, source partitions apart.

    A receiver may forget the ids of every producer that is not here.  A producer is the sequencer under which it produced.
    """

    owners: tuple[tuple[IntervalId, Sequencer], ...]
    """(interval, sequencer): all current sequencers, and earlier ones whose checkpoints are in the log."""
    productions: tuple[tuple[SubscriptionId, ProducerId], ...]
    """(subscription, producer) of productions whose acks are not recorded, in the folded tables."""


class MapOrder(msgspec.Struct, frozen=True):
    """What an operator wants of the map.

    A `move` gives intervals to the member that is called `to`.  A `split` and a `merge` are as in `Reshaping`.
    """

    kind: str
    """"move", "split" or "merge"."""
    intervals: tuple[IntervalId, ...]
    to: str = ""
    split_keys: tuple[str, ...] = ()


class HotKey(msgspec.Struct, frozen=True, gc=False):
    """A key that an interval gets often: at least `permille` thousandths of its records, of late."""

    interval: IntervalId
    key: str
    permille: int


class Standstill(msgspec.Struct, frozen=True, gc=False):
    """What has kept the low watermark of `name`, a computation or "source:name", at `timestamp`, and since when.

    `interval` is the one that has it, 0 for a source as a whole.  `kind` is a record, timer, hold and so on, and `detail`
    says which.  `since_us` is wall time of the worker that says so, us.
    """

    name: str
    interval: IntervalId
    kind: str
    timestamp: int
    detail: str
    since_us: int = 0


class StandsAt(msgspec.Struct, frozen=True):
    """What a member has said of a watermark that stands."""

    member: str
    standstill: Standstill


def in_order(keys: Iterable[HotKey]) -> list[HotKey]:
    """By interval, the largest share first."""
    return sorted(keys, key=lambda one: (one.interval, -one.permille, one.key))


class RunEnding(msgspec.Struct, frozen=True):
    """How the run of a cluster has ended: keys in quarantine and rejected rows of the whole pipeline."""

    quarantined: int = 0
    rejected: int = 0
    too_much: bool = False
    """More than was allowed."""
    stopped: str = ""
    """Why it was ended before its time."""


class MemberLease(msgspec.Struct, frozen=True):
    """A member, and how long its lease is valid, us; negative when it has run out, None when it is over for ever."""

    member: Member
    left_us: int | None


class IntervalBacklog(msgspec.Struct, frozen=True):
    """An interval of the map, and what waits in it.

    A count stops at `limits.OVERVIEW_ROWS`, and then says that there may be more.
    """

    placed: PlacedInterval
    log_rows: int
    log_bytes: int
    """Bytes of the checkpoints that were counted."""
    unacked: int
    """Productions in the folded tables whose acks are not folded.  What is only in the log is not counted."""


class SourceBacklog(msgspec.Struct, frozen=True):
    """A source of the map, and how many of its partitions are not finished, to `limits.OVERVIEW_ROWS`."""

    placed: PlacedSource
    unfinished: int


class Overview(msgspec.Struct, frozen=True):
    """What an operator wants to see of a pipeline, as of one moment of the store."""

    now_us: int
    """The database's clock, us since 1970."""
    version: int
    leader: Leader | None
    members: tuple[MemberLease, ...]
    intervals: tuple[IntervalBacklog, ...]
    sources: tuple[SourceBacklog, ...]
    watermarks: Mapping[str, int]
    """By computation, and by "source:" and the name of a source; event time, us."""

    def lag_us(self, name: str) -> int | None:
        """How far a watermark is behind the database's clock; None when there is none, or it is at the end of time."""
        value = self.watermarks.get(name, MIN_TIME)
        return None if value in (MIN_TIME, MAX_TIME) else self.now_us - value
