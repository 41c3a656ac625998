"""Who owns what: placements that race with commits and with each other.

Leases here are long.  A test that needs one to be over moves its end, which is as good as a clock that goes on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.types.numeric import Int8

from millwheel.bundles import (
    LogWrite,
)
from millwheel.cluster import Leader, Placement, Reshaping
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import query
from millwheel_storage.postgres.membership import session_name
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import committing, placing
from tests.unit.storage.postgres.sharing_processes import LEASE_US, Cluster, payload, run, waits

pytestmark = pytest.mark.postgres


@pytest.fixture
def cluster(postgres: EmbeddedPostgres, pipeline: str) -> Cluster:
    return Cluster(postgres.url, pipeline)


def test_of_two_placements_on_one_version_one_counts(cluster: Cluster) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        _, one = await cluster.member("w1")
        _, two = await cluster.member("w2")
        for number in range(10):
            version = (await store.cluster_map()).version
            asked = [
                Placement(leader.epoch, version, {IntervalId(1): owner, IntervalId(3): owner}, {"src": owner})
                for owner in (one, two)
            ]
            answers = await asyncio.gather(*(cluster.stores[n % 2].place(p) for n, p in enumerate(asked)))
            assert sorted(answers, key=str) == [version + 1, None], number
            agreed = await store.cluster_map()
            assert {agreed.intervals[0].owner, agreed.intervals[2].owner, agreed.sources[0].owner} == {
                (one, two)[answers.index(version + 1)]
            }
            assert await store.place(asked[0]) == (version + 1 if answers[0] else None)  # a reply that was lost
            assert agreed == await store.cluster_map()

    run(cluster, main())


def test_a_placement_is_refused_whole(cluster: Cluster) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        _, worker = await cluster.member("w")
        before = await store.cluster_map()
        for epoch, version, owner in ((2, 0, worker), (1, -1, worker), (1, 0, worker + 50)):
            asked = Placement(
                epoch, before.version + version, {IntervalId(1): worker, IntervalId(2): owner}, {"src": worker}
            )
            assert await store.place(asked) is None
        for intervals, sources in (((1, 9), {}), ((1,), {"nowhere": worker})):
            owners = {IntervalId(n): worker for n in intervals}
            with pytest.raises(StoreError, match="is no interval and no source of the map"):
                await store.place(Placement(leader.epoch, before.version, owners, sources))
        assert await store.cluster_map() == before
        await cluster.expire(worker)
        assert await store.place(Placement(leader.epoch, before.version, {IntervalId(1): worker}, {})) is None
        after = await store.cluster_map()
        assert (after.version, after.intervals) == (before.version, before.intervals)

    run(cluster, main())


async def open_commit(cluster: Cluster, sequencer: int) -> psycopg.AsyncConnection[Any]:
    """An owner of interval 1 whose commit has been applied and is not durable yet."""
    connection = await cluster.connection()
    await connection.execute("BEGIN")
    rows = await connection.execute(committing.COMMIT_ONE, [*map(Int8, (1, sequencer, 1, 0)), payload()])
    assert rows.rowcount == 1
    return connection


@pytest.mark.parametrize("how", ["place", "leave"])
def test_a_new_owner_waits_for_a_commit_that_is_open_and_loads_it(cluster: Cluster, how: str) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        _, old = await cluster.member("old")
        _, new = await cluster.member("new")
        version = await store.place(
            Placement(leader.epoch, (await store.cluster_map()).version, {IntervalId(1): old}, {})
        )
        assert version is not None
        sequencer = (await store.cluster_map()).intervals[0].sequencer
        assert await store.recover(IntervalId(1), sequencer) is not None
        connection = await open_commit(cluster, sequencer)
        call = (
            store.place(Placement(leader.epoch, version, {IntervalId(1): new}, {}))
            if how == "place"
            else store.leave(old)
        )
        moved = asyncio.create_task(call)
        assert await waits(moved)
        # Meanwhile nobody's lease has to wait.
        await asyncio.wait_for(store.lead(leader.incarnation, LEASE_US), 60)
        await asyncio.wait_for(store.renew(new, LEASE_US), 60)
        assert (await asyncio.wait_for(store.cluster_map(), 60)).intervals[0].owner == old
        await connection.execute("COMMIT")
        await connection.close()
        await moved
        fresh = (await store.cluster_map()).intervals[0].sequencer
        assert fresh > sequencer
        assert await store.commit([LogWrite(IntervalId(1), sequencer, Seq(2), 0, payload())]) == set()
        assert await store.recover(IntervalId(1), sequencer) is None
        assert await store.recover(IntervalId(1), fresh) is not None
        assert [row.cells for row in await store.load(IntervalId(1), ["a"])] == [{("c", ""): b"old"}]

    run(cluster, main())


def test_a_commit_that_comes_during_a_placement_is_fenced_by_it(cluster: Cluster) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        old, first = await cluster.member("old")
        _, second = await cluster.member("new")
        version = await store.place(
            Placement(leader.epoch, (await store.cluster_map()).version, {IntervalId(1): first}, {})
        )
        assert version is not None
        sequencer = (await store.cluster_map()).intervals[0].sequencer
        async with cluster.holding("SELECT FROM cluster_leader FOR UPDATE"):  # a placement locks it last
            moved = asyncio.create_task(store.place(Placement(leader.epoch, version, {IntervalId(1): second}, {})))
            assert await waits(moved)
            late = asyncio.create_task(old.commit([LogWrite(IntervalId(1), sequencer, Seq(1), 0, payload())]))
            assert await waits(late)
        assert await moved == version + 1
        assert await late == set()
        assert await cluster.execute("SELECT FROM checkpoint_log") == []

    run(cluster, main())


def test_a_split_waits_for_a_commit_that_is_open_and_is_refused_for_what_it_has_written(cluster: Cluster) -> None:
    """The map knows no owner of what an embedded run has: only the commit itself says that somebody writes there."""

    async def main() -> None:
        owned = await (await cluster.process()).acquire([IntervalId(1)])
        store, _, leader = await cluster.leader()
        before = await store.cluster_map()
        connection = await open_commit(cluster, owned[IntervalId(1)])
        cut = asyncio.create_task(store.reshape(Reshaping(leader.epoch, before.version, (IntervalId(1),), ("c",))))
        assert await waits(cut)
        await connection.execute("COMMIT")
        await connection.close()
        with pytest.raises(StoreError, match="the log of interval 1 is not empty"):
            await cut
        after = await store.cluster_map()
        assert (after.version, after.intervals) == (before.version, before.intervals)

    run(cluster, main())


@pytest.mark.parametrize("cut", [False, True])
def test_a_leader_that_is_followed_during_its_decision_has_decided_nothing(cluster: Cluster, cut: bool) -> None:
    async def main() -> None:
        store, first, leader = await cluster.leader("c1")
        other, second = await cluster.member("c2", "controller")
        _, worker = await cluster.member("w")
        unnamed = await cluster.process()  # its sessions bear no name, so nobody ends them
        before = await store.cluster_map()
        async with cluster.holding("SELECT FROM ownership WHERE interval_id = 2 FOR SHARE"):
            placed = Placement(leader.epoch, before.version, {IntervalId(1): worker, IntervalId(2): worker}, {})
            united = Reshaping(leader.epoch, before.version, (IntervalId(1), IntervalId(2)))
            asked: Any = unnamed.reshape(united) if cut else unnamed.place(placed)
            decision = asyncio.create_task(asked)
            assert await waits(decision)
            await cluster.expire(first)
            assert await asyncio.wait_for(other.lead(second, LEASE_US), 60) == Leader(second, 2, "c2:1")
        assert await decision is None
        after = await other.cluster_map()
        assert (after.version, after.intervals) == (before.version, before.intervals)
        assert await other.place(Placement(2, after.version, {IntervalId(1): worker}, {})) == after.version + 1

    run(cluster, main())


def test_who_becomes_leader_ends_the_decision_that_its_predecessor_left_open(cluster: Cluster) -> None:
    async def main() -> None:
        _, first, _ = await cluster.leader("c1")
        other, second = await cluster.member("c2", "controller")
        _, worker = await cluster.member("w")
        before = await other.cluster_map()
        stopped = await cluster.connection()
        name = session_name(cluster.pipeline, first)
        await stopped.execute("SELECT set_config('application_name', %s, false)", (name,))
        await stopped.execute("BEGIN")
        await stopped.execute("SELECT FROM cluster FOR UPDATE")
        await cluster.expire(first)
        leader = await other.lead(second, LEASE_US)
        assert leader is not None
        asked = Placement(leader.epoch, before.version, {IntervalId(1): worker}, {})
        assert await asyncio.wait_for(other.place(asked), 60) == before.version + 1
        with pytest.raises(psycopg.OperationalError):
            await stopped.execute("COMMIT")

    run(cluster, main())


def test_watermarks_of_an_earlier_leader_are_refused(cluster: Cluster) -> None:
    async def main() -> None:
        owned = await (await cluster.process()).acquire([IntervalId(1), IntervalId(2)])
        store, first, leader = await cluster.leader("c1")
        write = WatermarkWrite("a", 7, owned)
        assert await store.persist_led_watermarks(leader.epoch, [write]) == {"a"}
        assert await store.persist_led_watermarks(
            leader.epoch, [WatermarkWrite("b", 8, {IntervalId(2): Sequencer(99)}), write]
        ) == {"a"}
        assert await store.persist_led_watermarks(leader.epoch, []) == set()
        await cluster.expire(first)
        other, second = await cluster.member("c2", "controller")
        # It comes in between: the watermark waits for it, and is refused.
        async with cluster.holding("UPDATE cluster_leader SET epoch = 2, incarnation = %s", second):
            late = asyncio.create_task(store.persist_led_watermarks(leader.epoch, [WatermarkWrite("a", 9, owned)]))
            assert await waits(late)
        assert await late is None
        assert await other.watermarks() == {"a": 7}
        assert await other.persist_led_watermarks(2, [WatermarkWrite("a", 9, owned)]) == {"a"}

    run(cluster, main())


def test_a_map_is_of_one_moment(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision between two of its reads is in all of it, or in none: its version says what it has."""

    async def main() -> None:
        store, member, leader = await cluster.leader()
        other = await cluster.process()
        before = await other.cluster_map()
        placed: list[object] = []

        async def rows(connection: Connection, statement: str, *given: Any) -> Any:
            if statement == placing.READ_PLACED and not placed:
                placed.append(None)
                decision = Placement(leader.epoch, before.version, {IntervalId(1): member}, {"src": member})
                placed.append(await store.place(decision))
            return await read(connection, statement, *given)

        read = query.rows
        monkeypatch.setattr(query, "rows", rows)
        assert await other.cluster_map() == before
        assert placed[1] == before.version + 1
        assert (await other.cluster_map()).intervals[0].owner == member

    run(cluster, main())


def test_partitions_stay_with_the_owner_of_their_source_until_they_are_taken(cluster: Cluster) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        worker, one = await cluster.member("w1")
        _, two = await cluster.member("w2")
        (opened, finished) = await worker.open_source("src", {"p": b"", "q": b""})
        (another,) = await worker.open_source("other", {"p": b""})
        ids = [opened.interval, finished.interval]
        version = await store.place(Placement(leader.epoch, (await store.cluster_map()).version, {}, {"src": one}))
        assert version is not None
        taken = await worker.take_partitions("src", one, ids)
        assert taken is not None
        assert sorted(taken) == ids
        assert await worker.take_partitions("src", two, ids) is None
        for wrong in (IntervalId(1), another.interval):
            with pytest.raises(StoreError, match=f"interval {wrong} is no partition of source 'src'"):
                await worker.take_partitions("src", one, [wrong, *ids])
        assert await worker.still_owned(taken) == {*ids}
        await cluster.execute("UPDATE source SET finished = true WHERE interval_id = %s", finished.interval)
        async with cluster.holding("SELECT FROM source_owner FOR SHARE"):  # as one that takes partitions does
            moved = asyncio.create_task(store.place(Placement(leader.epoch, version, {}, {"src": two})))
            assert await waits(moved)
        assert await moved == version + 1
        assert await worker.still_owned(taken) == {finished.interval}

    run(cluster, main())
