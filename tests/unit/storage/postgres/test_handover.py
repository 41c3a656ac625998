"""A computation gets a combiner: both stores do the same to their tables, and nobody who knows the time before writes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    Ids,
    LogWrite,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import Placement
from millwheel.errors import IncompatibleStore, StoreInUse
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.model import Timer
from millwheel.ports import Declaration, PositionWrite, Store, WatermarkWrite
from millwheel.shape import GATHERED_TIME
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.litter import litter
from tests.unit.storage.samples import gathering, shops

pytestmark = pytest.mark.postgres

LEASE_US = 3_600_000_000


def checkpoint(**changes: Any) -> Checkpoint:
    nothing: dict[str, Any] = {"ids": [], "produced": [], "acked": [], "sinks": [], "quarantined": []}
    by_key = {"state": StateWrites(), "timers": TimerWrites(), "holds": HoldWrites()}
    return Checkpoint(format=CHECKPOINT_FORMAT, shape="", epoch=0, **{**nothing, **by_key, **changes})


def ids(subscription: int, producer: int, frontier: int, *sequences: int) -> Ids:
    return Ids(
        SubscriptionId(subscription), ProducerId(producer), SequenceNumber(frontier), [*map(SequenceNumber, sequences)]
    )


def produced(subscription: int, producer: int, *keys: str) -> Produced:
    values = [key.encode() for key in keys]
    return Produced(
        SubscriptionId(subscription), ProducerId(producer), SequenceNumber(0), [*keys], values, [7] * len(keys)
    )


def waiting(key: str, subscription: int) -> QuarantineEntry:
    return QuarantineEntry(key, SubscriptionId(subscription), ProducerId(5), SequenceNumber(1), b"v", 4, "", "", "e")


class Story:
    """What a pipeline without a combiner has done.  "Also" has intervals 1 and 2, "Total" 3 and 4."""

    ALSO, TOTAL = 1, 2
    """Subscriptions."""

    def __init__(self, store: Store, name: str) -> None:
        self.store, self.name = store, name
        self.owned: dict[IntervalId, Sequencer] = {}

    async def tell(self) -> None:
        opened = await self.store.open_pipeline(shops(self.name))
        assert opened.subscriptions == {"Also<sales": self.ALSO, "Total<sales": self.TOTAL}
        (source,) = await self.store.open_source("src", {"one": b"{}"})
        assert source.interval == 5
        self.owned = await self.store.acquire([*map(IntervalId, (1, 2, 3, 4, 5))])
        for interval in self.owned:
            if interval < 5:
                await self.store.recover(interval, self.owned[interval])
        await self.commit(1, 1, produced=[produced(self.TOTAL, 90, "a", "z"), produced(self.ALSO, 90, "k")])
        await self.commit(2, 1, produced=[produced(self.TOTAL, 91, "b")])
        logged = [produced(self.TOTAL, 93, "r"), produced(self.ALSO, 93, "s")]  # the first as the head of a loop logs
        both = [ids(self.TOTAL, 5, 1, 1, 4), ids(self.TOTAL, 7, 0, 0, 1), ids(self.ALSO, 5, 0, 3)]
        await self.commit(
            3, 1, ids=both, produced=logged, quarantined=[waiting("a", self.TOTAL), waiting("a", self.ALSO)],
            outside=[
                OutsideIdWrites(SubscriptionId(self.TOTAL), 50, [b"x", b"y"]),
                OutsideIdWrites(SubscriptionId(self.TOTAL), 60, [b"u"]),
                OutsideIdWrites(SubscriptionId(self.ALSO), 50, [b"p"]),  # forgotten at one time with those of the other
                OutsideIdWrites(SubscriptionId(self.ALSO), 60, [b"o"]),
            ],
        )  # fmt: skip
        await self.commit(
            4, 1, ids=[ids(self.TOTAL, 5, 3, 3, 9), ids(self.TOTAL, 6, 0, 0), ids(self.TOTAL, 7, 5)],
            outside=[OutsideIdWrites(SubscriptionId(self.TOTAL), 50, [b"z"])],
        )  # fmt: skip
        self.owned |= await self.store.acquire([IntervalId(3)])
        await self.store.recover(IntervalId(3), self.owned[IntervalId(3)])  # what comes after it is only in the log
        await self.commit(3, 1, ids=[ids(self.TOTAL, 5, 2, 7)])
        await self.commit(3, 2, epoch=4, ids=[ids(self.TOTAL, 5, 2, 8)])
        await self.commit(1, 2, epoch=5, produced=[produced(self.TOTAL, 92, "never declared")])
        assert await self.store.declare(Declaration(epoch=4, owners={}))
        owners = {IntervalId(3): self.owned[IntervalId(3)], IntervalId(4): self.owned[IntervalId(4)]}
        await self.store.persist_watermarks(
            [WatermarkWrite("Total", 77, owners), WatermarkWrite("loop:Total", 78, owners)]
        )

    async def commit(self, interval: int, seq: int, epoch: int = 0, **changes: Any) -> set[Any]:
        image = msgspec.structs.replace(checkpoint(**changes), epoch=epoch)
        owner = self.owned[IntervalId(interval)]
        write = LogWrite(IntervalId(interval), owner, Seq(seq), epoch, encode_checkpoint(image))
        return await self.store.commit([write])


def test_both_stores_hand_over_alike(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            story = Story(store, pipeline)
            await story.tell()
            opened = await store.open_pipeline(shops(pipeline, gathering()))
            assert opened.subscriptions == {"Also<sales": 1, "Total.parts<sales": 2, "Total<Total.parts": 3}
            assert await store.open_pipeline(shops(pipeline, gathering())) == opened  # the first reply was lost
            assert await story.commit(3, 9) == set()
            write = PositionWrite(IntervalId(5), story.owned[IntervalId(5)], 10, False, b"{}")
            assert await store.advance([write]) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        parts = [id_ for id_, row in memory.intervals.items() if row.computation == "Total.parts"]
        assert [row[:5] for row in tables["production"]] == [
            (1, 1, 90, 0, "k"), (1, 2, 90, 0, "000#a"), (1, 2, 90, 1, "000#z"), (2, 2, 91, 0, "000#b"),
            (3, 1, 93, 0, "s"), (parts[0], 2, 93, 0, "000#r"),
        ]  # fmt: skip
        assert tables["delivered"] == sorted(
            [
                (3, 1, 5, 3),
                *((part, 2, *id_) for part in parts for id_ in ((5, 3), (5, 4), (5, 7), (5, 8), (5, 9), (6, 0))),
            ]
        )
        assert tables["delivered_frontier"] == sorted(
            [(3, 1, 5, 0), *((part, 2, *known) for part in parts for known in ((5, 3), (6, 0), (7, 5)))]
        )
        assert tables["opaque_id"] == [
            (3, 1, 50, b"p"), (3, 1, 60, b"o"),
            *((part, 2, *id_) for part in parts for id_ in ((50, b"x"), (50, b"y"), (50, b"z"), (60, b"u"))),
        ]  # fmt: skip
        assert tables["opaque_bucket"] == [
            (3, 1, 50, 1), (3, 1, 60, 1), *((part, 2, *known) for part in parts for known in ((50, 3), (60, 1))),
        ]  # fmt: skip
        assert [row[:4] for row in tables["quarantine"]] == [("Total", "a", 0, 3), ("Total", "a", 1, 1)]
        assert tables["watermark"] == [
            ("Total", 77), ("Total.parts", 77), ("loop:Total", 78), ("loop:Total.parts", 78),
        ]  # fmt: skip
        assert tables["checkpoint_log"] == []
        await stored.close()

    asyncio.run(main())


def test_whoever_knows_the_earlier_version_takes_nothing(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        early, late = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        await early.open_pipeline(shops(pipeline))
        member = await early.join("w", "worker", "w:1", LEASE_US, b"w")
        with pytest.raises(StoreInUse, match=r"subscription 'Total.parts<sales' is new.*stop all processes"):
            await late.open_pipeline(shops(pipeline, gathering()))
        assert not postgres_tables(postgres.url, pipeline)["delivered"]
        await early.leave(member.incarnation)
        await late.open_pipeline(shops(pipeline, gathering()))
        for taking in (early.acquire([IntervalId(1)]), early.join("w", "worker", "w:1", LEASE_US, b"again")):
            with pytest.raises(IncompatibleStore, match="opened in another version meanwhile"):
                await taking
        assert await late.acquire([IntervalId(1)])
        await early.close()
        await late.close()

    asyncio.run(main())


@pytest.mark.parametrize("owned", ["all", "a source", "an interval"])
def test_a_member_whose_lease_has_run_out_owns_nothing_any_more(
    postgres: EmbeddedPostgres, pipeline: str, owned: str
) -> None:
    async def main() -> None:
        early, late = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        await early.open_pipeline(shops(pipeline))
        member = await early.join("w", "worker", "w:1", LEASE_US, b"w")
        leader = await early.lead(member.incarnation, LEASE_US)
        assert leader is not None
        found = await early.cluster_map()
        placed = {} if owned == "a source" else dict.fromkeys((row.id for row in found.intervals), member.incarnation)
        sources = {} if owned == "an interval" else {"src": member.incarnation}
        version = await early.place(Placement(leader.epoch, found.version, placed, sources))
        assert version is not None
        (partition,) = await early.open_source("src", {"one": b"{}"})
        taken = await early.take_partitions("src", member.incarnation, [partition.interval])
        assert bool(taken) == bool(sources)
        taken = {partition.interval: Sequencer(0), **(taken or {})}
        with psycopg.connect(postgres.url) as connection:  # an hour passes
            connection.execute(f'UPDATE "{pipeline}".lease SET expires = now()')
        await late.open_pipeline(shops(pipeline, gathering()))
        assert (await late.cluster_map()).version > version + 1, "of all that has changed each leader learns"
        assert await early.take_partitions("src", member.incarnation, [partition.interval]) is None
        assert await early.still_owned(taken) == set()
        assert {row.owner for row in (await late.cluster_map()).intervals} == {None}
        assert not await early.renew(member.incarnation, LEASE_US)
        await early.close()
        await late.close()

    asyncio.run(main())


PARTS, MERGED = 2, 3
"""Subscriptions of the story, when "Total" has a combiner: the number 2 is that of its parts then."""


class Gathered(Story):
    """What the same pipeline has done with a combiner, whose intervals are `parts`."""

    async def tell(self) -> None:
        await super().tell()
        opened = await self.store.open_pipeline(shops(self.name, gathering()))
        self.parts = [row.id for row in opened.intervals if row.computation == "Total.parts"]
        self.owned = await self.store.acquire([row.id for row in opened.intervals])
        for interval in self.owned:
            await self.store.recover(interval, self.owned[interval])
        first, second, _ = self.parts
        state = [
            ("000#a", "parts", "0", GATHERED_TIME.pack(-5) + b"old"),
            ("000#a", "parts", "1", GATHERED_TIME.pack(6) + b"new"),
            ("000#z", "parts", "0", GATHERED_TIME.pack(1 << 60) + b"late"),
        ]
        await self.commit(
            first, 1, state=StateWrites.of(state), timers=TimerWrites(["000#a"], ["give"], ["wall"], [9]),
            holds=HoldWrites(["000#a"], [-5]), produced=[produced(MERGED, 70, "a", "n"), produced(PARTS, 71, "000#l")],
            ids=[ids(PARTS, 8, 1, 2)], outside=[OutsideIdWrites(SubscriptionId(PARTS), 50, [b"w"])],
        )  # fmt: skip
        failed = msgspec.structs.replace(waiting("001#q", PARTS), error="")
        timer = QuarantineEntry.of_timer(Timer("001#q", "give", 3, "wall"), "bang")
        state = [("001#q", "parts", "0", GATHERED_TIME.pack(3) + b"q")]
        await self.commit(
            second, 1, state=StateWrites.of(state), quarantined=[timer, failed, waiting("001#p", PARTS)],
            outside=[OutsideIdWrites(SubscriptionId(PARTS), 50, [b"w", b"v"])], ids=[ids(PARTS, 8, 2, 3)],
        )  # fmt: skip
        await self.commit(3, 1, ids=[ids(MERGED, 70, 0, 0)], quarantined=[waiting("a", MERGED)])


def test_both_stores_hand_back_alike(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            story = Gathered(store, pipeline)
            await story.tell()
            opened = await store.open_pipeline(shops(pipeline))
            assert opened.subscriptions == {"Also<sales": 1, "Total<sales": 2}
            assert await store.open_pipeline(shops(pipeline)) == opened  # the first reply was lost
            for interval in (1, 3, story.parts[0]):
                assert await story.commit(interval, 9) == set()
        tables = memory.tables()
        assert tables == postgres_tables(postgres.url, pipeline)
        assert litter(postgres.url, pipeline) == {}
        sent = [row for row in tables["production"] if row[1] == PARTS]
        (producer,) = {row[2] for row in sent} - {90, 91, 93, 70, 71}
        assert producer > max(story.owned.values())
        assert [row[:5] for row in sent] == sorted([
            (1, 2, 90, 0, "a"), (1, 2, 90, 1, "z"), (2, 2, 91, 0, "b"), (3, 2, 70, 0, "a"), (3, 2, 70, 1, "n"),
            (3, 2, 71, 0, "l"), (3, 2, 93, 0, "r"), *((3, 2, producer, n, key) for n, key in enumerate("aazq")),
        ])  # fmt: skip
        given = [row[5:] for row in sent if row[2] == producer]
        assert given == [(b"old", -5), (b"new", 6), (b"late", 1 << 60), (b"q", 3)]
        for interval in (3, 4):
            mine = [row[2:] for row in tables["delivered"] if row[:2] == (interval, PARTS)]
            merged = [(70, 0)] if interval == 3 else []
            assert mine == sorted([(5, n) for n in (3, 4, 7, 8, 9)] + [(6, 0), (8, 2), (8, 3), *merged])
        assert tables["opaque_bucket"] == [
            (3, 1, 50, 1), (3, 1, 60, 1), (3, 2, 50, 5), (3, 2, 60, 1), (4, 2, 50, 5), (4, 2, 60, 1),
        ]  # fmt: skip
        assert [row[:4] for row in tables["quarantine"]] == [
            ("Total", "a", 0, 2), ("Total", "a", 1, 1), ("Total", "a", 2, 2), ("Total", "p", 0, 2), ("Total", "q", 0, 2),
        ]  # fmt: skip
        assert memory.quarantine["Total", "q"][0].error == "bang"
        with Reader(postgres.url, pipeline) as reader:
            assert [entry.error for entry in reader.quarantine_rows("Total", "q")] == ["bang"]
        assert (tables["key_state"], tables["timer"], tables["hold"], tables["checkpoint_log"]) == ([], [], [], [])
        assert {name for name, _ in tables["watermark"]} == {"Total", "loop:Total"}
        await stored.close()

    asyncio.run(main())


@pytest.mark.parametrize("known", ["sent on both", "sent on both, taken on none", "taken and sent", "sent and taken"])
def test_a_combiner_that_has_logged_and_sent_is_not_handed_back(
    postgres: EmbeddedPostgres, pipeline: str, known: str
) -> None:
    """Two of its records would have one id.  Nothing is changed."""

    async def main() -> None:
        memory, stored = MemoryStore(), PostgresStore(postgres.url, pipeline)
        for store in (memory, stored):
            story = Gathered(store, pipeline)
            await story.tell()
            if known == "sent on both":
                await story.commit(story.parts[2], 1, produced=[produced(PARTS, 70, "002#a")])
            elif known == "sent on both, taken on none":
                await story.commit(
                    story.parts[2], 1, produced=[produced(PARTS, 72, "002#a"), produced(MERGED, 72, "a")]
                )
            elif known == "sent and taken":
                await story.commit(4, 1, ids=[ids(MERGED, 71, 0, 5)])
            else:
                await story.commit(story.parts[2], 1, ids=[ids(PARTS, 70, 0, 5)])
            before = memory.tables(), postgres_tables(postgres.url, pipeline) if store is stored else None
            with pytest.raises(IncompatibleStore, match=r"once more with Checkpoints\(\)"):
                await store.open_pipeline(shops(pipeline))
            after = memory.tables(), postgres_tables(postgres.url, pipeline) if store is stored else None
            assert after == before
        await stored.close()

    asyncio.run(main())
