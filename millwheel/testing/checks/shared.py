"""The memory store of a cluster under observation: what was agreed, and who may change it.

Lives here: checks of the calls that only a cluster makes.  Never here: checks of what single owners do (`watched`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
from millwheel.ids import IntervalId, ProducerId, Sequencer
from millwheel.ports import Opened, PipelineShape, WatermarkWrite
from millwheel.testing.checks.watched import WatchedStore


class SharedWatchedStore(WatchedStore):
    """A `ClusterStore` that answers as the memory store does and raises `Violation` when an invariant breaks."""

    newest_epoch = 0

    async def open_pipeline(self, shape: PipelineShape) -> Opened:
        """See `Store`."""
        opened = await super().open_pipeline(shape)
        self._follow()
        return opened

    async def join(self, name: str, role: str, address: str, lease_us: int, key: bytes) -> Member:
        """See `ClusterStore`."""
        return await self.inner.join(name, role, address, lease_us, key)

    async def renew(self, incarnation: int, lease_us: int) -> bool:
        """See `ClusterStore`."""
        return await self.inner.renew(incarnation, lease_us)

    async def leave(self, incarnation: int) -> None:
        """See `ClusterStore`."""
        before = dict(self.truth.owner)
        await self.inner.leave(incarnation)
        self._follow()
        self.truth.left |= {
            before[i] for i, sequencer in self.truth.owner.items() if before.get(i, sequencer) != sequencer
        }

    async def lead(self, incarnation: int, lease_us: int) -> Leader | None:
        """See `ClusterStore`; epochs only ever rise (I13)."""
        leader = await self.inner.lead(incarnation, lease_us)
        if leader is not None:
            if leader.epoch < self.newest_epoch:
                self.truth.fail(f"I13: controller {incarnation} leads under epoch {leader.epoch}, which is over")
            self.truth.kernel.probes["leader changed"] += leader.epoch > self.newest_epoch > 0
            self.newest_epoch = leader.epoch
        return leader

    async def cluster_map(self) -> ClusterMap:
        """See `ClusterStore`; intervals cover the keys of each computation exactly (I12)."""
        found = await self.inner.cluster_map()
        for name in {placed.computation for placed in found.intervals}:
            ends = sorted((i.low, i.high) for i in found.intervals if i.computation == name)
            gaps = [high for (_, high), (low, _) in pairwise(ends) if high != low]
            if gaps or ends[0][0] != "" or ends[-1][1] is not None:
                self.truth.fail(f"I12: the intervals {ends} of {name} do not cover its keys exactly")
        return found

    async def place(self, placement: Placement) -> int | None:
        """See `ClusterStore`; only the leader decides, on the newest map (I13), and every earlier owner is fenced (I5)."""
        before = dict(self.truth.owner)
        version = await self.inner.place(placement)
        if version is None:
            self.truth.kernel.probes["placement refused"] += 1
            return None
        if placement.epoch != self.newest_epoch:
            self.truth.fail(f"I13: epoch {placement.epoch} has decided, and epoch {self.newest_epoch} leads")
        self._decided_on(placement.version, version)
        self._follow()
        self.truth.left.clear()
        for interval in placement.intervals:
            if before.get(interval) == self.truth.owner.get(interval) and version != placement.version + 1:
                self.truth.fail(f"I5: interval {interval} was placed, and its last owner is not fenced")
        self.truth.kernel.probes["placement"] += 1
        return version

    def _decided_on(self, seen: int, made: int) -> None:
        """Version `made` of the map comes of a decision that was made on version `seen`."""
        if made != seen + 1:
            self.truth.fail(
                f"I13: version {made} of the map was decided on version {seen}: what came between was not seen"
            )

    async def take_partitions(
        self, source: str, incarnation: int, intervals: Sequence[IntervalId]
    ) -> dict[IntervalId, Sequencer] | None:
        """See `ClusterStore`."""
        taken = await self.inner.take_partitions(source, incarnation, intervals)
        self.truth.kernel.probes["source was lost"] += taken is None
        self._follow()
        return taken

    async def reshape(self, reshaping: Reshaping) -> tuple[int, tuple[IntervalId, ...]] | None:
        """See `ClusterStore`; only the leader decides, on the newest map (I13)."""
        answer = await self.inner.reshape(reshaping)
        if answer is not None:
            if reshaping.epoch != self.newest_epoch:
                self.truth.fail(f"I13: epoch {reshaping.epoch} has decided, and epoch {self.newest_epoch} leads")
            self._decided_on(reshaping.version, answer[0])
            self.truth.kernel.probes["interval split" if reshaping.split_keys else "intervals merged"] += 1
            if reshaping.order:
                self.truth.kernel.probes["order carried out"] += 1
                if reshaping.order in dict(await self.inner.orders()):
                    self.truth.fail(
                        f"I21: order {reshaping.order} is carried out and still open: it may yet be refused"
                    )
            first, *new = answer[1]
            split = bool(reshaping.split_keys)
            gone = [] if split else [*reshaping.intervals[1:]]
            if not split or any(other not in self.truth.computation for other in new):  # else it was asked again
                self.truth.reshaped(first, new, gone)
                self.tables.reshaped(first, new, gone)
            rows, computations = self.inner.intervals.values(), self.truth.graph.computations
            self.truth.computation = {row.id: row.computation for row in rows if row.computation in computations}
            self._follow()
        return answer

    async def persist_led_watermarks(self, epoch: int, writes: Sequence[WatermarkWrite]) -> set[str] | None:
        """See `ClusterStore`; only the leader persists (I13), and what it persists is checked (I5, I10)."""
        if await self.inner.persist_led_watermarks(epoch, ()) is None:
            self.truth.kernel.probes["watermark of an earlier leader refused"] += 1
            return None
        if epoch != self.newest_epoch:
            self.truth.fail(f"I13: epoch {epoch} persists watermarks, and epoch {self.newest_epoch} leads")
        kept = await self.persist_watermarks(writes)
        self.truth.kernel.probes["fenced watermark refused"] += len(writes) - len(kept)
        return kept

    async def expel(self, incarnations: Sequence[int]) -> int:
        """See `ClusterStore`."""
        return await self.inner.expel(incarnations)

    async def senders(self) -> Senders:
        """See `ClusterStore`; whoever has something that nobody has consumed is among them (I14)."""
        found = await self.inner.senders()
        owners = {ProducerId(sequencer) for _, sequencer in found.owners}
        for (subscription, producer), rows in self.truth.pending.items():
            is_source = producer in self.truth.positions
            if rows and not is_source and producer not in owners and (subscription, producer) not in found.productions:
                self.truth.fail(f"I14: producer {producer} is no sender, and {min(rows)} of it is not consumed")
        return found

    async def order(self, order: MapOrder) -> int:
        """See `ClusterStore`."""
        return await self.inner.order(order)

    async def orders(self) -> list[tuple[int, MapOrder]]:
        """See `ClusterStore`."""
        return await self.inner.orders()

    async def settle_order(self, epoch: int, number: int, refusal: str) -> bool:
        """See `ClusterStore`."""
        self.truth.kernel.probes["order refused" if refusal else "order carried out"] += 1
        return await self.inner.settle_order(epoch, number, refusal)

    async def count_rejected(self) -> int:
        """See `ClusterStore`."""
        return await self.inner.count_rejected()

    async def count_quarantined(self) -> int | None:
        """See `ClusterStore`."""
        return await self.inner.count_quarantined()

    async def note_hot_keys(self, incarnation: int, keys: Sequence[HotKey]) -> None:
        """See `ClusterStore`."""
        await self.inner.note_hot_keys(incarnation, keys)

    async def note_standstills(self, incarnation: int, found: Sequence[Standstill]) -> None:
        """See `ClusterStore`."""
        self.truth.kernel.probes["standstill told"] += bool(found)
        await self.inner.note_standstills(incarnation, found)

    async def standstills(self) -> list[StandsAt]:
        """See `ClusterStore`."""
        return await self.inner.standstills()

    async def hot_keys(self) -> list[HotKey]:
        """See `ClusterStore`."""
        return await self.inner.hot_keys()

    async def refusal(self, number: int) -> str | None:
        """See `ClusterStore`."""
        return await self.inner.refusal(number)

    def _follow(self) -> None:
        """Note new owners; sequencers only ever rise, and none is used twice (I5)."""
        truth = self.truth
        for interval, sequencer in self.inner.ownership.items():
            known = truth.owner.get(interval, 0)
            if sequencer == known:
                continue
            if sequencer < known or sequencer in truth.maker:
                truth.fail(f"I5: interval {interval} got sequencer {sequencer} after {known}, which is not new")
            self.culprits.taken(interval)
            truth.owner[interval] = sequencer
            if interval in truth.computation:
                truth.maker[int(sequencer)] = truth.computation[interval]
