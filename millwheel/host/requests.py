"""What a host asks of the store, as values.

Lives here: one class for each call of `ports.Store`.  It knows its arguments and which call it is, so a shell performs all of
them in the same way.  Never here: what the answer means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec

from millwheel.bundles import LogWrite
from millwheel.cluster import HotKey, MapOrder, Placement, Reshaping, Standstill
from millwheel.core.interval import events as ev
from millwheel.errors import StoreError, StoreUnavailable
from millwheel.ids import IntervalId, SequenceNumber, Sequencer
from millwheel.ports import (
    ClusterStore,
    Declaration,
    FoldWrite,
    MarkWrite,
    PipelineShape,
    PositionWrite,
    Store,
    WatermarkWrite,
)


class StoreCall(msgspec.Struct, frozen=True):
    """A call to the store.  It is idempotent: a shell repeats it until the store answers."""

    step: ClassVar[str] = ""
    """The name of the call in logs, and for the faults of the simulator."""
    patient: ClassVar[bool] = True
    """False for a call before which nothing has begun: a store that does not answer is then an error at once."""

    async def call(self, store: Store) -> Any:
        """Ask."""
        raise NotImplementedError


class OpenPipeline(StoreCall, frozen=True):
    """Create or check the pipeline's schema; `Opened`."""

    step: ClassVar[str] = "open"
    patient: ClassVar[bool] = False
    shape: PipelineShape

    async def call(self, store: Store) -> Any:
        """See `Store.open_pipeline`."""
        return await store.open_pipeline(self.shape)


class Acquire(StoreCall, frozen=True):
    """Take intervals; their new sequencers."""

    step: ClassVar[str] = "acquire"
    intervals: tuple[IntervalId, ...]

    async def call(self, store: Store) -> Any:
        """See `Store.acquire`."""
        return await store.acquire(self.intervals)


class Reacquire(StoreCall, frozen=True):
    """Take a new sequencer for an interval that is still owned; None when it is not."""

    step: ClassVar[str] = "restart"
    interval: IntervalId
    sequencer: Sequencer

    async def call(self, store: Store) -> Any:
        """See `Store.reacquire`."""
        return await store.reacquire(self.interval, self.sequencer)


class Recover(StoreCall, frozen=True):
    """Fold the log and load what an interval needs; `Recovered`, or None when it is fenced."""

    step: ClassVar[str] = "recover"
    interval: IntervalId
    sequencer: Sequencer

    async def call(self, store: Store) -> Any:
        """See `Store.recover`."""
        return await store.recover(self.interval, self.sequencer)


class StillOwned(StoreCall, frozen=True):
    """Those of the intervals that nobody else has taken over."""

    step: ClassVar[str] = "owned"
    owners: dict[IntervalId, Sequencer]

    async def call(self, store: Store) -> Any:
        """See `Store.still_owned`."""
        return await store.still_owned(self.owners)


class BehindOthers(StoreCall, frozen=True):
    """Those of the intervals that must not start yet, because what they send would overtake what others keep."""

    step: ClassVar[str] = "behind"
    intervals: tuple[IntervalId, ...]

    async def call(self, store: Store) -> Any:
        """See `Store.behind_others`."""
        return await store.behind_others(self.intervals)


class CommitGroup(StoreCall, frozen=True):
    """One transaction of checkpoints; the (interval, seq) pairs that are durable."""

    step: ClassVar[str] = "commit"
    writes: Sequence[LogWrite]

    async def call(self, store: Store) -> Any:
        """See `Store.commit`."""
        return await store.commit(self.writes)


class RewindEpochs(StoreCall, frozen=True):
    """Go back to the last declared epoch; its number, or None when it is fenced."""

    step: ClassVar[str] = "rewind"
    owners: dict[IntervalId, Sequencer]

    async def call(self, store: Store) -> Any:
        """See `Store.rewind`."""
        return await store.rewind(self.owners)


class DeclareEpoch(StoreCall, frozen=True):
    """An epoch becomes visible; False when it is fenced."""

    step: ClassVar[str] = "declare"
    declaration: Declaration

    async def call(self, store: Store) -> Any:
        """See `Store.declare`."""
        return await store.declare(self.declaration)


class FoldLog(StoreCall, frozen=True):
    """A prefix of an interval's log becomes tables; False when it is fenced."""

    step: ClassVar[str] = "fold"
    write: FoldWrite

    async def call(self, store: Store) -> Any:
        """See `Store.fold`."""
        return await store.fold(self.write)


class LoadState(StoreCall, frozen=True):
    """State of keys; a list of `KeyRows`."""

    step: ClassVar[str] = "load"
    interval: IntervalId
    load: ev.Load

    async def call(self, store: Store) -> Any:
        """See `Store.load`."""
        return await store.load(self.interval, self.load.keys, self.load.timers)


class LoadCells(StoreCall, frozen=True):
    """Single cells and entries; a list of `StateRow`."""

    step: ClassVar[str] = "load"
    interval: IntervalId
    load: ev.LoadSlots

    async def call(self, store: Store) -> Any:
        """See `Store.load_slots`."""
        return await store.load_slots(self.interval, self.load.wanted)


class LoadTimerPage(StoreCall, frozen=True):
    """The timers that are due next; `TimerWrites`, or None when the interval is fenced."""

    step: ClassVar[str] = "page"
    interval: IntervalId
    sequencer: Sequencer
    load: ev.LoadTimers

    async def call(self, store: Store) -> Any:
        """See `Store.load_timers`."""
        load = self.load
        return await store.load_timers(self.interval, self.sequencer, load.kind, load.after, load.limit)


class FindIds(StoreCall, frozen=True):
    """Which ids are consumed; dense ones, and those of outside clients."""

    step: ClassVar[str] = "lookup"
    interval: IntervalId
    asked: ev.LookupIds

    async def call(self, store: Store) -> Any:
        """See `Store.find_ids` and `Store.find_outside_ids`."""
        asked, found, outside = self.asked, set[SequenceNumber](), set[bytes]()
        if asked.sequences:
            found = await store.find_ids(self.interval, asked.subscription, asked.producer, asked.sequences)
        if asked.outside:
            outside = await store.find_outside_ids(self.interval, asked.subscription, asked.now, asked.outside)
        return found, outside


class ReadBucket(StoreCall, frozen=True):
    """Ids of outside clients, to fill a filter."""

    step: ClassVar[str] = "lookup"
    interval: IntervalId
    asked: ev.ReadOutsideIds

    async def call(self, store: Store) -> Any:
        """See `Store.read_outside_ids`."""
        asked = self.asked
        return await store.read_outside_ids(self.interval, asked.subscription, asked.expires, asked.after, asked.limit)


class ReadQuarantine(StoreCall, frozen=True):
    """What the quarantines of some keys begin with; a list of `QuarantineEntry`."""

    step: ClassVar[str] = "quarantine"
    interval: IntervalId
    fetch: ev.FetchQuarantine

    async def call(self, store: Store) -> Any:
        """See `Store.quarantined`."""
        return await store.quarantined(self.interval, self.fetch.keys, self.fetch.limit)


class ListRedrives(StoreCall, frozen=True):
    """Redrives that somebody has asked for; (computation, key) pairs."""

    step: ClassVar[str] = "redrives"
    start: tuple[str, str]
    limit: int

    async def call(self, store: Store) -> Any:
        """See `Store.redrive_requests`."""
        return await store.redrive_requests(self.start, self.limit)


class WriteMarks(StoreCall, frozen=True):
    """What is about to run, or has run; the intervals that are not fenced."""

    step: ClassVar[str] = "mark"
    writes: Sequence[MarkWrite]

    async def call(self, store: Store) -> Any:
        """See `Store.mark`."""
        return await store.mark(self.writes)


class ListPartitions(StoreCall, frozen=True):
    """What a source has begun and not finished, and what was finished without signs; a list of `SourcePosition`."""

    step: ClassVar[str] = "source"
    source: str

    async def call(self, store: Store) -> Any:
        """See `Store.source_partitions`."""
        return await store.source_partitions(self.source)


class ListUnfinished(StoreCall, frozen=True):
    """Partitions that are not read to their end, of all sources; (source, `SourcePosition`) pairs."""

    step: ClassVar[str] = "source"

    async def call(self, store: Store) -> Any:
        """See `Store.unfinished_partitions`."""
        return await store.unfinished_partitions()


class OpenPartitions(StoreCall, frozen=True):
    """Durable positions of partitions, made where they are new; a list of `SourcePosition`."""

    step: ClassVar[str] = "source"
    source: str
    states: dict[str, bytes]

    async def call(self, store: Store) -> Any:
        """See `Store.open_source`."""
        return await store.open_source(self.source, self.states)


class UnknownSigns(StoreCall, frozen=True):
    """Signs that no finished partition of a source has; a set."""

    step: ClassVar[str] = "source"
    source: str
    signs: Sequence[bytes]

    async def call(self, store: Store) -> Any:
        """See `Store.unknown_signs`."""
        return await store.unknown_signs(self.source, self.signs)


class FindPartitions(StoreCall, frozen=True):
    """Partitions with one of these signs or names; a list of `SourcePosition`."""

    step: ClassVar[str] = "source"
    source: str
    signs: Sequence[bytes]
    names: Sequence[str]

    async def call(self, store: Store) -> Any:
        """See `Store.find_partitions`."""
        return await store.find_partitions(self.source, self.signs, self.names)


class AddSigns(StoreCall, frozen=True):
    """Further signs of finished partitions, by interval."""

    step: ClassVar[str] = "source"
    source: str
    signs: Mapping[IntervalId, Sequence[bytes]]

    async def call(self, store: Store) -> Any:
        """See `Store.add_signs`."""
        return await store.add_signs(self.source, self.signs)


class AdvancePositions(StoreCall, frozen=True):
    """Positions become durable; the intervals that are not fenced."""

    step: ClassVar[str] = "advance"
    writes: Sequence[PositionWrite]

    async def call(self, store: Store) -> Any:
        """See `Store.advance`."""
        return await store.advance(self.writes)


class ReadWatermarks(StoreCall, frozen=True):
    """The persisted watermarks, us, by name."""

    step: ClassVar[str] = "watermarks"

    async def call(self, store: Store) -> Any:
        """See `Store.watermarks`."""
        return await store.watermarks()


class PersistWatermarks(StoreCall, frozen=True):
    """Watermarks become durable, before anybody hears of them; the names that were not fenced."""

    step: ClassVar[str] = "persist"
    writes: Sequence[WatermarkWrite]

    async def call(self, store: Store) -> Any:
        """See `Store.persist_watermarks`."""
        return await store.persist_watermarks(self.writes)


# --- what only a store of a cluster answers -----------------------------------------------------------------------


class ClusterCall(StoreCall, frozen=True):
    """A call to a store that many processes share."""

    async def call(self, store: Store) -> Any:
        """Ask; a host of a cluster is given such a store."""
        return await self.ask(cast(ClusterStore, store))

    async def ask(self, store: ClusterStore) -> Any:
        """Ask."""
        raise NotImplementedError


class ReadMap(ClusterCall, frozen=True):
    """Everything that was decided; `ClusterMap`."""

    step: ClassVar[str] = "map"

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.cluster_map`."""
        return await store.cluster_map()


class ReadSenders(ClusterCall, frozen=True):
    """Who may still send; `Senders`."""

    step: ClassVar[str] = "senders"

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.senders`."""
        return await store.senders()


class TakePartitions(ClusterCall, frozen=True):
    """New sequencers for partitions of a source; None when the member does not own the source."""

    step: ClassVar[str] = "take"
    source: str
    incarnation: int
    intervals: tuple[IntervalId, ...]

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.take_partitions`."""
        return await store.take_partitions(self.source, self.incarnation, self.intervals)


class CountRejected(ClusterCall, frozen=True):
    """How many rows were rejected, of all sources, as far as positions are durable."""

    step: ClassVar[str] = "count rejected"

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.count_rejected`."""
        return await store.count_rejected()


class CountQuarantined(ClusterCall, frozen=True):
    """How many keys are in quarantine; None while somebody has to fold a log first."""

    step: ClassVar[str] = "count quarantined"

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.count_quarantined`."""
        return await store.count_quarantined()


class NoteHotKeys(ClusterCall, frozen=True):
    """What the intervals of this worker get most of."""

    step: ClassVar[str] = "note hot keys"
    incarnation: int
    keys: tuple[HotKey, ...]

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.note_hot_keys`."""
        await store.note_hot_keys(self.incarnation, self.keys)


class NoteStandstills(ClusterCall, frozen=True):
    """What keeps watermarks at this worker."""

    step: ClassVar[str] = "note standstills"
    incarnation: int
    found: tuple[Standstill, ...]

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.note_standstills`."""
        await store.note_standstills(self.incarnation, self.found)


class Leave(ClusterCall, frozen=True):
    """This process ends in order."""

    step: ClassVar[str] = "leave"
    incarnation: int

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.leave`."""
        await store.leave(self.incarnation)


class Lead(ClusterCall, frozen=True):
    """Become the leader, or stay it; `Leader`, or None when another one leads."""

    step: ClassVar[str] = "lead"
    incarnation: int
    lease_us: int

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.lead`."""
        return await store.lead(self.incarnation, self.lease_us)


class PlaceAnew(ClusterCall, frozen=True):
    """New owners; the new version of the map, or None."""

    step: ClassVar[str] = "place"
    placement: Placement

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.place`."""
        return await store.place(self.placement)


class Reshape(ClusterCall, frozen=True):
    """A split or a merge; the new version and the intervals, None, or why it cannot be done."""

    step: ClassVar[str] = "reshape"
    reshaping: Reshaping

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.reshape`; why it cannot be done, as a text."""
        try:
            return await store.reshape(self.reshaping)
        except StoreUnavailable:
            raise
        except StoreError as error:
            return str(error)


class PersistLedWatermarks(ClusterCall, frozen=True):
    """Watermarks become durable; the names that were not fenced, or None when another controller leads."""

    step: ClassVar[str] = "persist"
    epoch: int
    writes: Sequence[WatermarkWrite]

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.persist_led_watermarks`."""
        return await store.persist_led_watermarks(self.epoch, self.writes)


class Expel(ClusterCall, frozen=True):
    """End what members whose leases have run out still have open; how many sessions were ended."""

    step: ClassVar[str] = "expel"
    incarnations: tuple[int, ...]

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.expel`."""
        return await store.expel(self.incarnations)


class ReadOrders(ClusterCall, frozen=True):
    """What operators want of the map; a list of (number, `MapOrder`)."""

    step: ClassVar[str] = "orders"

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.orders`."""
        return await store.orders()


class GiveOrder(ClusterCall, frozen=True):
    """The leader itself wants the map to be changed; the number of the order."""

    step: ClassVar[str] = "orders"
    order: MapOrder

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.order`."""
        return await store.order(self.order)


class SettleOrder(ClusterCall, frozen=True):
    """An operator's order is done, or refused with a reason."""

    step: ClassVar[str] = "orders"
    epoch: int
    number: int
    refusal: str

    async def ask(self, store: ClusterStore) -> Any:
        """See `ClusterStore.settle_order`."""
        return await store.settle_order(self.epoch, self.number, self.refusal)
