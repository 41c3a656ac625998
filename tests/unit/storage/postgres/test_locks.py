"""What a write rests on stays so until it is durable: whoever is about to change it is waited for, and the write is refused.

A row here is a call and a change that it must not overlook.  The change is made in a transaction that stays open.  A call
whose statement asks without a lock does not wait, and takes effect beside the change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple

import msgspec
import psycopg
import pytest

from millwheel.bundles import BEFORE_TIMERS, LogWrite, SinkRow
from millwheel.cluster import Placement, Reshaping
from millwheel.errors import IncompatibleStore, StoreError, StoreInUse
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import Declaration, FoldWrite, MarkWrite, PositionWrite, SinkTable, WatermarkWrite
from millwheel_storage.decode import decode_image
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.statements import handing_over
from tests.unit.storage.postgres.sharing_processes import LEASE_US, Cluster, payload, run

pytestmark = pytest.mark.postgres

OWNER = "UPDATE ownership SET sequencer = nextval('sequencer') WHERE interval_id = 1"
LEADER = "UPDATE cluster_leader SET epoch = epoch + 1"
MAP = "UPDATE cluster SET version = version + 1"
SHAPE = "UPDATE cluster SET shape = 'another'"
SOURCE = "UPDATE source_owner SET owner = NULL"
COMMITS = """
WITH owned AS (SELECT interval_id, sequencer FROM ownership WHERE interval_id = 3 FOR SHARE)
INSERT INTO checkpoint_log SELECT interval_id, sequencer, 1, 0, '' FROM owned
"""
JOINS = """
WITH held AS (SELECT FROM cluster FOR SHARE), joined AS (
    INSERT INTO cluster_member (incarnation, key, name, role, address)
    SELECT nextval('incarnation'), 'key', 'late', 'worker', 'late:1' FROM held RETURNING incarnation
)
INSERT INTO lease SELECT incarnation, clock_timestamp() + interval '1 hour' FROM joined
"""
PLACES = """
WITH decided AS (UPDATE cluster SET version = version + 1 RETURNING 1)
UPDATE interval_owner SET owner = %s FROM decided WHERE interval_id = 2
"""
OUT = SinkTable("out", {"k": "text"}, ("k",))
ONE, TWO = IntervalId(1), IntervalId(2)
"""Intervals of one computation, of which the first gets another owner."""


class Now(NamedTuple):
    """What somebody knows who asks before the change."""

    store: PostgresStore
    member: int
    epoch: int
    version: int
    owners: Mapping[IntervalId, Sequencer]
    partition: IntervalId
    seq: Seq

    def log(self, interval: IntervalId, *rows: str) -> LogWrite:
        sinks = tuple(SinkRow("out", msgspec.json.encode({"k": row})) for row in rows)
        return LogWrite(interval, self.owners[interval], self.seq, 0, payload(), sinks, rows)

    def both(self) -> dict[IntervalId, Sequencer]:
        return {ONE: self.owners[ONE], TWO: self.owners[TWO]}

    def position(self, finished: bool = False) -> PositionWrite:
        return PositionWrite(self.partition, self.owners[self.partition], 9, finished, b"", (b"sign",) * finished)

    def fold(self) -> FoldWrite:
        return FoldWrite(ONE, self.owners[ONE], self.seq, [decode_image(payload())])


Call = Callable[[Now], Coroutine[Any, Any, Any]]
PARTITION = OWNER.replace("= 1", "IN (SELECT interval_id FROM source)")

CALLS: dict[str, tuple[str, Call, object]] = {
    "a checkpoint": (OWNER, lambda now: now.store.commit([now.log(ONE)]), set()),
    "a group of them": (OWNER, lambda now: now.store.commit([now.log(ONE), now.log(TWO)]), "second"),
    "one with sink rows": (OWNER, lambda now: now.store.commit([now.log(ONE, "a")]), set()),
    "a fold": (OWNER, lambda now: now.store.fold(now.fold()), False),
    "a recovery": (OWNER, lambda now: now.store.recover(ONE, now.owners[ONE]), None),
    "a page of timers": (
        OWNER, lambda now: now.store.load_timers(ONE, now.owners[ONE], "wall", BEFORE_TIMERS, 9), None,
    ),
    "a core that starts anew": (OWNER, lambda now: now.store.reacquire(ONE, now.owners[ONE]), None),
    "a mark": (OWNER, lambda now: now.store.mark([MarkWrite(ONE, now.owners[ONE], b"m")]), set()),
    "a watermark": (
        OWNER, lambda now: now.store.persist_watermarks([WatermarkWrite("a", 9, now.both())]), set(),
    ),
    "a leader's watermark": (
        OWNER, lambda now: now.store.persist_led_watermarks(now.epoch, [WatermarkWrite("a", 9, now.both())]), set(),
    ),
    "a watermark of a leader": (
        LEADER, lambda now: now.store.persist_led_watermarks(now.epoch, [WatermarkWrite("a", 9, now.both())]), None,
    ),
    "a position": (PARTITION, lambda now: now.store.advance([now.position()]), set()),
    "an epoch": (OWNER, lambda now: now.store.declare(Declaration(epoch=1, owners=now.both())), False),
    "an epoch's position": (
        PARTITION,
        lambda now: now.store.declare(Declaration(epoch=1, owners=now.both(), positions=[now.position()])),
        False,
    ),
    "a leader's epoch": (
        LEADER, lambda now: now.store.declare(Declaration(epoch=1, owners=now.both(), term=now.epoch)), False,
    ),
    "who goes back": (OWNER, lambda now: now.store.rewind(now.both()), None),
    "a placement on a map": (
        MAP, lambda now: now.store.place(Placement(now.epoch, now.version, {TWO: now.member}, {})), None,
    ),
    "a leader's placement": (
        LEADER, lambda now: now.store.place(Placement(now.epoch, now.version, {TWO: now.member}, {})), None,
    ),
    "a leader's split": (
        LEADER, lambda now: now.store.reshape(Reshaping(now.epoch, now.version, [IntervalId(3)], ["x"])), None,
    ),
    "a split": (
        COMMITS,
        lambda now: now.store.reshape(Reshaping(now.epoch, now.version, [IntervalId(3)], ["x"])),
        StoreError,
    ),
    "a leader's answer to an order": (LEADER, lambda now: now.store.settle_order(now.epoch, 1, "no"), False),
    "who takes partitions": (
        SOURCE, lambda now: now.store.take_partitions("src", now.member, [now.partition]), None,
    ),
    "who joins": (SHAPE, lambda now: now.store.join("late", "worker", "late:1", LEASE_US, b"late"), IncompatibleStore),
}  # fmt: skip


async def seen_to_wait(task: asyncio.Task[Any], watcher: psycopg.AsyncConnection[Any]) -> bool:
    """Whether a call waits for a lock, and is not over."""
    while not task.done():
        rows = await watcher.execute("SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        if rows.rowcount:
            return True
        await asyncio.sleep(0.005)
    return False


def test_whoever_takes_intervals_and_whoever_leaves_waits_for_who_changes_the_map(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    cluster = Cluster(postgres.url, pipeline)

    async def main() -> None:
        store = await cluster.process()
        async with await cluster.connection() as watcher:
            async with cluster.holding(JOINS):
                taken = asyncio.create_task(store.acquire([ONE]))
                assert await seen_to_wait(taken, watcher)
            with pytest.raises(StoreInUse):
                await taken
            cluster.shape = msgspec.structs.replace(cluster.shape, computations={"a": ("k",), "b": ()})
            async with cluster.holding("SELECT FROM cluster FOR SHARE"):
                opened = asyncio.create_task(cluster.process())  # with other intervals
                assert await seen_to_wait(opened, watcher)
            with pytest.raises(StoreInUse):
                await opened
            cluster.shape = msgspec.structs.replace(cluster.shape, computations={"a": ("m",), "b": ()})
            leaver, member = await cluster.member("w")
            async with cluster.holding(PLACES, member):
                left = asyncio.create_task(leaver.leave(member))
                assert await seen_to_wait(left, watcher)
            await left
        assert {interval.owner for interval in (await store.cluster_map()).intervals} == {None}

    run(cluster, main())


def test_whoever_waits_for_the_map_with_other_sources_has_locked_no_owner(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Or it and who has the map, and wants the owners, could wait for each other for ever."""
    cluster = Cluster(postgres.url, pipeline)

    async def main() -> None:
        await cluster.process()
        cluster.shape = msgspec.structs.replace(cluster.shape, sources=())
        async with await cluster.connection() as watcher, cluster.holding("SELECT FROM cluster FOR UPDATE"):
            opened = asyncio.create_task(cluster.process())
            assert await seen_to_wait(opened, watcher)
            assert (await watcher.execute("SELECT FROM source_owner FOR UPDATE NOWAIT")).rowcount == 1
        assert (await (await opened).cluster_map()).sources == ()

    run(cluster, main())


def test_whoever_is_about_to_change_what_a_write_rests_on_is_waited_for(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    cluster = Cluster(postgres.url, pipeline)
    cluster.shape = msgspec.structs.replace(cluster.shape, sinks=(OUT,))

    async def known(store: PostgresStore, member: int, seq: int) -> Now:
        agreed = await store.cluster_map()
        assert agreed.leader is not None
        rows = await cluster.execute("SELECT interval_id, sequencer FROM ownership")
        ((partition,),) = await cluster.execute("SELECT interval_id FROM source")
        return Now(store, member, agreed.leader.epoch, agreed.version, dict(rows), partition, Seq(seq))

    async def intervals(store: PostgresStore) -> list[tuple[Any, ...]]:
        return [(row.id, row.low, row.high, row.owner) for row in (await store.cluster_map()).intervals]

    async def main() -> None:
        store, member, _ = await cluster.leader()
        await store.open_source("src", {"p": b""})
        before = await intervals(store)
        await cluster.execute("INSERT INTO map_order (wish) VALUES ('wish')")
        await cluster.execute("INSERT INTO suspicion (interval_id, ends, mark) VALUES (1, 1, '')")
        async with await cluster.connection() as watcher:
            for seq, (name, (change, call, answer)) in enumerate(CALLS.items(), 1):
                await cluster.execute("UPDATE source_owner SET owner = %s", member)
                now = await known(store, member, seq)
                if name == "a fold":
                    assert await store.commit([now.log(ONE)])
                async with cluster.holding(change):
                    task = asyncio.create_task(call(now))
                    assert await seen_to_wait(task, watcher), name
                if isinstance(answer, type):
                    with pytest.raises(answer):
                        await task
                else:
                    assert await task == ({(TWO, seq)} if answer == "second" else answer), name
                assert await intervals(store) == before, name

    run(cluster, main())
    with psycopg.connect(postgres.url) as connection:
        assert connection.execute(f'SELECT count(*) FROM "{pipeline}".out').fetchone() == (0,)


LAST = IntervalId(8)
"""In a set it comes before 1."""


def several(now: Now) -> dict[IntervalId, Sequencer]:
    return {LAST: now.owners[LAST], ONE: now.owners[ONE]}


ORDERED: dict[str, Call] = {
    "commits": lambda now: now.store.commit([now.log(LAST), now.log(ONE)]),
    "marks": lambda now: now.store.mark([MarkWrite(*owner, b"m") for owner in several(now).items()]),
    "a watermark": lambda now: now.store.persist_watermarks([WatermarkWrite("a", 9, several(now))]),
    "watermarks": lambda now: now.store.persist_watermarks(
        [WatermarkWrite(f"{owner[0]}", 9, dict([owner])) for owner in several(now).items()]
    ),
    "a leader's watermark": lambda now: now.store.persist_led_watermarks(
        now.epoch, [WatermarkWrite("a", 9, several(now))]
    ),
    "an epoch": lambda now: now.store.declare(Declaration(epoch=1, owners=several(now))),
    "who goes back": lambda now: now.store.rewind(several(now)),
    "a placement": lambda now: now.store.place(
        Placement(now.epoch, now.version, dict.fromkeys((LAST, ONE), now.member), {})
    ),
    "who takes them": lambda now: now.store.acquire([LAST, ONE]),
}
"""The last of these is no member.  It comes when no member is alive any more."""


def test_who_waits_for_an_interval_has_no_later_one(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """Or two that want both could wait for each other for ever."""
    cluster = Cluster(postgres.url, pipeline)
    cluster.shape = msgspec.structs.replace(cluster.shape, computations={"a": (*"bcdefgh",)})

    async def main() -> None:
        store, member, leader = await cluster.leader()
        async with await cluster.connection() as watcher:
            for seq, (name, call) in enumerate(ORDERED.items(), 1):
                if call is ORDERED["who takes them"]:
                    await cluster.expire(member)
                rows = await cluster.execute("SELECT interval_id, sequencer FROM ownership")
                version = (await store.cluster_map()).version
                now = Now(store, member, leader.epoch, version, dict(rows), ONE, Seq(seq))
                async with cluster.holding("SELECT FROM ownership WHERE interval_id = 1 FOR UPDATE"):
                    task = asyncio.create_task(call(now))
                    assert await seen_to_wait(task, watcher), name
                    await watcher.execute("SELECT FROM ownership WHERE interval_id = 8 FOR UPDATE NOWAIT")
                await task

    run(cluster, main())


def test_who_fences_all_intervals_locks_them_in_the_order_of_a_commit(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Wherever their rows lie: a commit of two intervals that has the first one would wait for it, and it for the commit."""
    cluster = Cluster(postgres.url, pipeline)
    cluster.shape = msgspec.structs.replace(cluster.shape, computations={"a": (*"bcdefgh",)})

    async def main() -> None:
        await cluster.leader()
        await cluster.execute(
            "UPDATE ownership SET sequencer = sequencer WHERE interval_id = 1"
        )  # behind the others now
        before = dict(await cluster.execute("SELECT interval_id, sequencer FROM ownership"))
        async with await cluster.connection() as watcher:
            async with cluster.holding("SELECT FROM ownership WHERE interval_id = 1 FOR SHARE"):
                task = asyncio.create_task(cluster.execute(handing_over.FENCE_ALL))
                assert await seen_to_wait(task, watcher)
                await watcher.execute("SELECT FROM ownership WHERE interval_id > 1 FOR UPDATE NOWAIT")
            await task
        after = dict(await cluster.execute("SELECT interval_id, sequencer FROM ownership"))
        assert len(after) == len(before) == 8
        assert min(after.values()) > max(before.values())

    run(cluster, main())
