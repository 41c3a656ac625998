"""The store on Postgres (docs/architecture-store.md), with psycopg 3.  Calls that must not wait for each other have
connections of their own.

Lives here: which call uses which connection, and whether it may be repeated when its reply is lost.  Never here: what a
call does in its transaction (`log_appends`, `recovery`, `reads`, `positions`, `ownership`, `placements`, `membership`,
`creation`), SQL text (`statements`), or what an error means (`connection`).  Every write is fenced in the statement that
writes, or by a FOR SHARE lock that its own transaction holds to the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TypeVar

from millwheel.bundles import KeyRows, LogWrite, QuarantineEntry, RecoveredInterval, StateRow, TimerPlace, TimerWrites
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
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, ProducerId, SequenceNumber, Sequencer, SubscriptionId
from millwheel.ports import (
    Declaration,
    FoldWrite,
    MarkWrite,
    Opened,
    PipelineShape,
    PositionWrite,
    SourcePosition,
    WatermarkWrite,
)
from millwheel.work import Wanted
from millwheel_storage.decisions import shape_digest
from millwheel_storage.fold import fold
from millwheel_storage.postgres import (
    epochs,
    membership,
    orders,
    ownership,
    placements,
    positions,
    reads,
    recovery,
    reshapes,
)
from millwheel_storage.postgres.catalogue import Catalogue, IntervalPlace
from millwheel_storage.postgres.connection import SessionLabel, SessionPool
from millwheel_storage.postgres.log_appends import Commits, Pair
from millwheel_storage.postgres.pooled import refuse_shared_sessions
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.rearranged import rearrange
from millwheel_storage.schema.creation import open_schema
from millwheel_storage.schema.reserved import RESERVED_NAMES
from millwheel_storage.schema.shape_checks import check_shape, schema_name

T = TypeVar("T")


class PostgresStore:
    """A `ClusterStore` in the schema of one pipeline of a Postgres database.

    `url` is a libpq connection string or URL.  Connections open on first use and reopen when they are lost.
    """

    def __init__(self, url: str, pipeline: str) -> None:
        self.schema = schema_name(pipeline)
        self._label = SessionLabel()
        self._opened_as = b""
        self._groups = self._sessions(url)  # the shared group, and the intervals with sink rows
        self._progress = self._sessions(url)  # positions, and watermarks
        # Two intervals at a time: while Postgres inserts for the one, the rows of the other are packed.
        self._loads = self._sessions(url)
        self._folds = self._sessions(url)
        # A lease is renewed, and the map is read, while a decision waits for the rows of an interval.
        self._agreements = self._sessions(url)
        self._leases = SessionPool(url, self.schema, 1, self._label)
        self._commits = Commits(self._groups)
        self._catalogue = Catalogue()

    def _sessions(self, url: str) -> SessionPool:
        return SessionPool(url, self.schema, 2, self._label)

    async def _at(
        self, session: SessionPool, interval: IntervalId, work: Callable[[Connection, IntervalPlace], Awaitable[T]]
    ) -> T:
        """Do `work` on an interval; `StoreError` when it does not exist."""

        async def placed(connection: Connection) -> T:
            return await work(connection, await self._catalogue.place(connection, interval))

        return await session.run(placed)

    # Ownership

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """See `Store.open_pipeline`; also refuses a server that could lose a commit."""
        check_shape(shape, RESERVED_NAMES)
        if schema_name(shape.name) != self.schema:
            raise StoreError(f"this store is for schema {self.schema!r}, not for pipeline {shape.name!r}")
        await refuse_shared_sessions(self._folds, self._loads)
        opened = await self._folds.run(
            lambda connection: open_schema(connection, self.schema, shape, partial(rearrange, connection))
        )
        self._opened_as = shape_digest(shape)
        self._commits.sinks = {table.name: table for table in shape.sinks}
        return opened

    async def acquire(self, intervals: Sequence[IntervalId]) -> dict[IntervalId, Sequencer]:
        """See `Store.acquire`."""
        taken = await self._folds.run(
            lambda connection: ownership.acquire(connection, self.schema, intervals, self._opened_as)
        )
        self._label.text = membership.session_name_of_a_run(self.schema)
        return taken

    async def reacquire(self, interval: IntervalId, sequencer: Sequencer) -> Sequencer | None:
        """See `Store.reacquire`.  The number is taken first, so that a repeated update recognises its own."""
        fresh = await self._folds.run(ownership.next_sequencer)
        taken = await self._folds.run(lambda connection: ownership.replace(connection, interval, sequencer, fresh))
        return fresh if taken else None

    async def recover(self, interval: IntervalId, sequencer: Sequencer) -> RecoveredInterval | None:
        """See `Store.recover`."""

        async def work(connection: Connection) -> RecoveredInterval | None:
            if not await ownership.owned(connection, interval, sequencer):
                return None  # it may have been merged away: then there is no place to look for
            place = await self._catalogue.place(connection, interval, anew=True)  # it may have been split
            return await recovery.recover(connection, place, sequencer)

        return await self._folds.run(work)

    # Checkpoints

    async def commit(self, writes: Sequence[LogWrite]) -> set[Pair]:
        """See `Store.commit`."""
        return await self._commits.commit(writes)

    async def fold(self, write: FoldWrite) -> bool:
        """See `Store.fold`."""
        folded = fold(write.images, write.acked)
        return await self._at(
            self._folds,
            write.interval,
            lambda connection, place: recovery.fold_prefix(connection, place, write, folded),
        )

    async def rewind(self, owners: Mapping[IntervalId, Sequencer]) -> int | None:
        """See `Store.rewind`."""
        return await self._folds.run(lambda connection: epochs.rewind(connection, owners))

    async def declare(self, declaration: Declaration) -> bool:
        """See `Store.declare`."""
        return await self._progress.run(lambda connection: epochs.declare(connection, self._commits, declaration))

    # Reads, on a connection of their own, so that none waits for a fold

    async def load(self, interval: IntervalId, keys: Sequence[str], timers: bool = False) -> list[KeyRows]:
        """See `Store.load`."""
        return await self._at(
            self._loads, interval, lambda connection, place: reads.load(connection, place, keys, timers)
        )

    async def load_slots(self, interval: IntervalId, wanted: Sequence[Wanted]) -> list[StateRow]:
        """See `Store.load_slots`."""
        return await self._at(
            self._loads, interval, lambda connection, place: reads.load_slots(connection, place, wanted)
        )

    async def load_timers(
        self, interval: IntervalId, sequencer: Sequencer, kind: str, after: TimerPlace, limit: int
    ) -> TimerWrites | None:
        """See `Store.load_timers`."""
        return await self._at(
            self._loads,
            interval,
            lambda connection, place: reads.load_timers(connection, place, sequencer, kind, after, limit),
        )

    async def find_ids(
        self,
        interval: IntervalId,
        subscription: SubscriptionId,
        producer: ProducerId,
        sequences: Sequence[SequenceNumber],
    ) -> set[SequenceNumber]:
        """See `Store.find_ids`."""
        if not sequences:
            return set()
        return await self._loads.run(
            lambda connection: reads.find_ids(connection, interval, subscription, producer, sequences)
        )

    async def find_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, now: int, ids: Sequence[bytes]
    ) -> set[bytes]:
        """See `Store.find_outside_ids`."""
        if not ids:
            return set()
        return await self._loads.run(
            lambda connection: reads.find_outside_ids(connection, interval, subscription, now, ids)
        )

    async def read_outside_ids(
        self, interval: IntervalId, subscription: SubscriptionId, expires: int, after: bytes, limit: int
    ) -> list[bytes]:
        """See `Store.read_outside_ids`."""
        return await self._loads.run(
            lambda connection: reads.read_outside_ids(connection, interval, subscription, expires, after, limit)
        )

    async def quarantined(self, interval: IntervalId, keys: Sequence[str], limit: int) -> list[QuarantineEntry]:
        """See `Store.quarantined`."""
        return await self._at(
            self._loads, interval, lambda connection, place: reads.quarantined(connection, place, keys, limit)
        )

    async def redrive_requests(self, start: tuple[str, str], limit: int) -> list[tuple[str, str]]:
        """See `Store.redrive_requests`."""
        return await self._loads.run(lambda connection: reads.redrive_requests(connection, start, limit))

    # Progress

    async def persist_watermarks(self, writes: Sequence[WatermarkWrite]) -> set[str]:
        """See `Store.persist_watermarks`."""
        if not writes:
            return set()
        return await self._progress.run(lambda connection: positions.persist_watermarks(connection, writes))

    async def still_owned(self, owners: Mapping[IntervalId, Sequencer]) -> set[IntervalId]:
        """See `Store.still_owned`."""
        return await self._loads.run(lambda connection: ownership.still_owned(connection, owners))

    async def behind_others(self, intervals: Collection[IntervalId]) -> set[IntervalId]:
        """See `Store.behind_others`."""
        return await self._loads.run(lambda connection: ownership.behind_others(connection, intervals))

    async def watermarks(self) -> dict[str, int]:
        """See `Store.watermarks`."""
        return await self._loads.run(positions.watermarks)

    async def open_source(self, source: str, states: Mapping[str, bytes]) -> list[SourcePosition]:
        """See `Store.open_source`."""
        return await self._loads.run(lambda connection: positions.open_source(connection, self.schema, source, states))

    async def source_partitions(self, source: str) -> list[SourcePosition]:
        """See `Store.source_partitions`."""
        return await self._loads.run(lambda connection: positions.open_sources(connection, source))

    async def unknown_signs(self, source: str, signs: Sequence[bytes]) -> set[bytes]:
        """See `Store.unknown_signs`."""
        return await self._loads.run(lambda connection: positions.unknown_signs(connection, source, signs))

    async def find_partitions(self, source: str, signs: Sequence[bytes], names: Sequence[str]) -> list[SourcePosition]:
        """See `Store.find_partitions`."""
        return await self._loads.run(lambda connection: positions.find_partitions(connection, source, signs, names))

    async def add_signs(self, source: str, signs: Mapping[IntervalId, Sequence[bytes]]) -> None:
        """See `Store.add_signs`."""
        if signs:
            await self._progress.run(lambda connection: positions.add_signs(connection, signs))

    async def unfinished_partitions(self) -> list[tuple[str, SourcePosition]]:
        """See `Store.unfinished_partitions`."""
        return await self._loads.run(positions.unfinished)

    async def advance(self, writes: Sequence[PositionWrite]) -> set[IntervalId]:
        """See `Store.advance`."""
        return await self._progress.run(lambda connection: positions.advance(connection, writes)) if writes else set()

    async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
        """See `Store.mark`."""
        return await self._progress.run(lambda connection: positions.mark(connection, writes)) if writes else set()

    # The cluster

    def represent(self, incarnation: int) -> None:
        """From now on the sessions bear the name of this member, by which `expel` finds them; `join` does it by itself.

        For a second store of the same process, such as that of a lease keeper.
        """
        self._label.text = membership.session_name(self.schema, incarnation)

    async def join(self, name: str, role: str, address: str, lease_us: int, key: bytes) -> Member:
        """See `ClusterStore.join`."""
        asked = Member(0, name, role, address)
        joined = await self._leases.run(
            lambda connection: membership.join(connection, asked, key, lease_us, self._opened_as)
        )
        self.represent(joined.incarnation)
        return joined

    async def renew(self, incarnation: int, lease_us: int) -> bool:
        """See `ClusterStore.renew`."""
        return await self._leases.run(lambda connection: membership.renew(connection, incarnation, lease_us))

    async def leave(self, incarnation: int) -> None:
        """See `ClusterStore.leave`."""
        await self._agreements.run(lambda connection: membership.leave(connection, incarnation))

    async def lead(self, incarnation: int, lease_us: int) -> Leader | None:
        """See `ClusterStore.lead`."""
        return await self._leases.run(
            lambda connection: membership.lead(connection, self.schema, incarnation, lease_us)
        )

    async def cluster_map(self) -> ClusterMap:
        """See `ClusterStore.cluster_map`."""
        return await self._loads.run(placements.cluster_map)

    async def place(self, placement: Placement) -> int | None:
        """See `ClusterStore.place`."""
        return await self._agreements.run(lambda connection: placements.place(connection, placement))

    async def take_partitions(
        self, source: str, incarnation: int, intervals: Sequence[IntervalId]
    ) -> dict[IntervalId, Sequencer] | None:
        """See `ClusterStore.take_partitions`."""
        return await self._folds.run(
            lambda connection: placements.take_partitions(connection, source, incarnation, intervals)
        )

    async def reshape(self, reshaping: Reshaping) -> tuple[int, tuple[IntervalId, ...]] | None:
        """See `ClusterStore.reshape`."""
        return await self._agreements.run(lambda connection: reshapes.reshape(connection, reshaping))

    async def persist_led_watermarks(self, epoch: int, writes: Sequence[WatermarkWrite]) -> set[str] | None:
        """See `ClusterStore.persist_led_watermarks`."""
        return await self._progress.run(lambda connection: positions.persist_led_watermarks(connection, epoch, writes))

    async def expel(self, incarnations: Sequence[int]) -> int:
        """See `ClusterStore.expel`."""
        return await self._leases.run(lambda connection: membership.expel(connection, self.schema, incarnations))

    async def senders(self) -> Senders:
        """See `ClusterStore.senders`."""
        return await self._loads.run(orders.senders)

    async def order(self, order: MapOrder) -> int:
        """See `ClusterStore.order`."""
        return await self._agreements.run(lambda connection: orders.order(connection, order))

    async def orders(self) -> list[tuple[int, MapOrder]]:
        """See `ClusterStore.orders`."""
        return await self._agreements.run(orders.orders)

    async def settle_order(self, epoch: int, number: int, refusal: str) -> bool:
        """See `ClusterStore.settle_order`."""
        return await self._agreements.run(lambda connection: orders.settle(connection, epoch, number, refusal))

    async def count_rejected(self) -> int:
        """See `ClusterStore.count_rejected`."""
        return await self._agreements.run(positions.count_rejected)

    async def count_quarantined(self) -> int | None:
        """See `ClusterStore.count_quarantined`."""
        return await self._agreements.run(lambda connection: positions.count_quarantined(connection, self.schema))

    async def note_hot_keys(self, incarnation: int, keys: Sequence[HotKey]) -> None:
        """See `ClusterStore.note_hot_keys`."""
        await self._agreements.run(lambda connection: orders.note_hot_keys(connection, incarnation, keys))

    async def note_standstills(self, incarnation: int, found: Sequence[Standstill]) -> None:
        """See `ClusterStore.note_standstills`."""
        await self._agreements.run(lambda connection: orders.note_standstills(connection, incarnation, found))

    async def standstills(self) -> list[StandsAt]:
        """See `ClusterStore.standstills`."""
        return await self._agreements.run(orders.standstills)

    async def hot_keys(self) -> list[HotKey]:
        """See `ClusterStore.hot_keys`."""
        return await self._agreements.run(orders.hot_keys)

    async def refusal(self, number: int) -> str | None:
        """See `ClusterStore.refusal`."""
        return await self._agreements.run(lambda connection: orders.refusal(connection, number))

    async def close(self) -> None:
        """See `Store.close`."""
        for session in (self._groups, self._progress, self._loads, self._folds, self._agreements, self._leases):
            await session.close()
