"""The store in memory as several processes share it: the twin of what `PostgresStore` does for a cluster.

Lives here: the calls of `ClusterStore`, over the rows of `agreements` and those of `twin`.  Never here: psycopg, or an
`await`.
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel.cluster import (
    ClusterMap,
    HotKey,
    Leader,
    MapOrder,
    Member,
    PlacedInterval,
    Placement,
    Reshaping,
    Senders,
    StandsAt,
    Standstill,
)
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import Declaration, WatermarkWrite
from millwheel_storage.decisions import check_named, check_order, reshaped
from millwheel_storage.memory.agreements import Holdings
from millwheel_storage.memory.twin import SoloMemoryStore


class MemoryStore(SoloMemoryStore):
    """A `ClusterStore` in this process; `clock` is that of its database, us, and judges leases.

    >>> store = MemoryStore(lambda: 0)
    """

    async def join(self, name: str, role: str, address: str, lease_us: int, key: bytes) -> Member:
        """See `ClusterStore.join`."""
        return self.agreements.join(Member(0, name, role, address), key, lease_us)

    async def renew(self, incarnation: int, lease_us: int) -> bool:
        """See `ClusterStore.renew`."""
        return self.agreements.renew(incarnation, lease_us)

    async def leave(self, incarnation: int) -> None:
        """See `ClusterStore.leave`."""
        owned = self.agreements.leave(incarnation)
        if owned is not None:
            self.fence(self._all_of(owned))

    def _all_of(self, owned: Holdings) -> set[IntervalId]:
        """Intervals, and the unfinished partitions of sources."""
        mine = {
            row.interval for (source, _), row in self.sources.items() if source in owned.sources and not row.finished
        }
        return mine | owned.intervals

    async def lead(self, incarnation: int, lease_us: int) -> Leader | None:
        """See `ClusterStore.lead`."""
        return self.agreements.lead(incarnation, lease_us)

    async def cluster_map(self) -> ClusterMap:
        """See `ClusterStore.cluster_map`."""
        agreed = self.agreements
        rows = [(self.intervals[id_], owner) for id_, owner in sorted(agreed.interval_owners.items())]
        intervals = tuple(
            PlacedInterval(row.id, row.computation, row.low, row.high, owner, self.ownership[row.id])
            for row, owner in rows
        )
        members, sources = agreed.all_members(), agreed.placed_sources()
        return ClusterMap(agreed.version, agreed.leader(), members, intervals, sources, self.declared)

    async def place(self, placement: Placement) -> int | None:
        """See `ClusterStore.place`."""
        placed = self.agreements.place(placement)
        if placed is None:
            return None
        version, owned = placed
        self.fence(self._all_of(owned))
        if placement.back:
            self.drop_later()
        return version

    async def declare(self, declaration: Declaration) -> bool:
        """See `Store.declare`."""
        if declaration.term not in (0, self.agreements.epoch):
            return False
        return await super().declare(declaration)

    async def take_partitions(
        self, source: str, incarnation: int, intervals: Sequence[IntervalId]
    ) -> dict[IntervalId, Sequencer] | None:
        """See `ClusterStore.take_partitions`."""
        if self.agreements.source_owners.get(source) != incarnation:
            return None
        mine = {row.interval for (other, _), row in self.sources.items() if other == source}
        for interval in sorted(set(intervals) - mine):
            raise StoreError(f"interval {interval} is no partition of source {source!r}")
        return self.fence(set(intervals))

    async def reshape(self, reshaping: Reshaping) -> tuple[int, tuple[IntervalId, ...]] | None:
        """See `ClusterStore.reshape`."""
        check_named(reshaping)
        named, agreed = reshaping.intervals, self.agreements
        if agreed.repeated(reshaping):
            low, count = self.row(named[0]).low, len(reshaping.split_keys) + 1
            rows_by_low = self.by_low(self.row(named[0]).computation)
            return agreed.version, tuple(id_ for at, id_ in rows_by_low if at >= low)[:count]
        if not agreed.current(reshaping):
            return None
        for interval in named:
            if interval not in agreed.interval_owners:
                raise StoreError(f"interval {interval} is no interval of the map")
            if agreed.interval_owners[interval] is not None:
                raise StoreError(f"interval {interval} is owned by member {agreed.interval_owners[interval]}")
        for interval in sorted(named):
            if not reshaping.back and any(place[0] == interval for place in self.log):
                raise StoreError(f"the log of interval {interval} is not empty: its owner has to fold all of it")
        rows = [self.intervals[interval] for interval in named]
        reshaped(rows, reshaping.split_keys)
        for row in rows:
            self.fold_log(row)
        new = self.cut(rows, reshaping.split_keys)
        self.fence({named[0], *new})
        if reshaping.order:
            agreed.settle(reshaping.epoch, reshaping.order, "")
        return agreed.decided(reshaping), (named[0], *new)

    async def persist_led_watermarks(self, epoch: int, writes: Sequence[WatermarkWrite]) -> set[str] | None:
        """See `ClusterStore.persist_led_watermarks`."""
        return await self.persist_watermarks(writes) if epoch == self.agreements.epoch else None

    async def expel(self, incarnations: Sequence[int]) -> int:
        """See `ClusterStore.expel`: there are no sessions here."""
        return 0

    async def senders(self) -> Senders:
        """See `ClusterStore.senders`."""
        owners = {(interval, self.ownership[interval]) for interval in self.agreements.interval_owners}
        owners |= {place[:2] for place in self.log}
        stored = self.folded.productions.values()
        return Senders(
            tuple(sorted(owners)), tuple(sorted({channel for rows in stored for channel in rows if rows[channel]}))
        )

    async def order(self, order: MapOrder) -> int:
        """See `ClusterStore.order`; the same order has the same number while it is open."""
        check_order(order)
        return self.agreements.order(order)

    async def orders(self) -> list[tuple[int, MapOrder]]:
        """See `ClusterStore.orders`."""
        return self.agreements.orders()

    async def settle_order(self, epoch: int, number: int, refusal: str) -> bool:
        """See `ClusterStore.settle_order`."""
        return self.agreements.settle(epoch, number, refusal)

    async def count_rejected(self) -> int:
        """See `ClusterStore.count_rejected`."""
        return sum(position.rejected for position in self.sources.values())

    async def count_quarantined(self) -> int | None:
        """See `ClusterStore.count_quarantined`."""
        placed = self.agreements.interval_owners
        if any(place[0] in placed and write.epoch <= self.declared for place, write in self.log.items()):
            return None
        computations = {self.intervals[interval].computation for interval in placed}
        return sum(computation in computations for computation, _ in self.folded.quarantine)

    async def note_hot_keys(self, incarnation: int, keys: Sequence[HotKey]) -> None:
        """See `ClusterStore.note_hot_keys`."""
        self.agreements.note_hot_keys(incarnation, keys)

    async def note_standstills(self, incarnation: int, found: Sequence[Standstill]) -> None:
        """See `ClusterStore.note_standstills`."""
        self.agreements.note_standstills(incarnation, found)

    async def standstills(self) -> list[StandsAt]:
        """See `ClusterStore.standstills`."""
        return self.agreements.standstills()

    async def hot_keys(self) -> list[HotKey]:
        """See `ClusterStore.hot_keys`."""
        return self.agreements.hot_keys()

    async def refusal(self, number: int) -> str | None:
        """See `ClusterStore.refusal`."""
        return self.agreements.refusal(number)
