"""Members of a cluster, their leases and their leader, with connections that race.

Leases here are long.  A test that needs one to be over moves its end, which is as good as a clock that goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import HotKey, Leader, Placement, StandsAt, Standstill
from millwheel.errors import IncompatibleStore, StoreInUse
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import PipelineShape
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore, query
from millwheel_storage.postgres.membership import session_name, session_name_of_a_run
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.reader import Reader, reset
from millwheel_storage.statements import joining
from tests.unit.storage.postgres.sharing_processes import LEASE_US, SHORT_S, Cluster, payload, run, waits

pytestmark = pytest.mark.postgres


LEADS = "UPDATE cluster_leader SET epoch = 7, incarnation = %s, expires = 'infinity'"


@pytest.fixture
def cluster(postgres: EmbeddedPostgres, pipeline: str) -> Cluster:
    return Cluster(postgres.url, pipeline)


def test_a_process_that_asks_twice_is_one_member_also_when_it_asks_at_once(cluster: Cluster) -> None:
    async def main() -> None:
        stores = [await cluster.process() for _ in range(4)]
        asked = [store.join("one", "worker", "h:1", LEASE_US, b"key") for store in stores]
        members = await asyncio.gather(*asked)
        assert len({*members}) == 1
        assert members[0].alive
        again = await stores[0].join("one", "worker", "h:1", LEASE_US, b"key")
        assert again == members[0]
        assert (await stores[0].cluster_map()).members == (again,)
        await cluster.expire(again.incarnation)
        assert not (await stores[0].join("one", "worker", "h:1", LEASE_US, b"key")).alive

    run(cluster, main())


def test_a_zombie_never_renews_its_lease_also_when_the_databases_clock_is_set_back(cluster: Cluster) -> None:
    async def main() -> None:
        store, zombie = await cluster.member("zombie")
        other, living = await cluster.member("living")
        assert await store.renew(zombie, LEASE_US)
        await cluster.expire(zombie)
        assert [member.alive for member in (await other.cluster_map()).members] == [False, True]
        assert await store.renew(zombie, LEASE_US) is False
        await cluster.execute("UPDATE lease SET expires = expires + interval '9 hours' WHERE incarnation = %s", zombie)
        assert await store.renew(zombie, LEASE_US) is False
        assert await store.lead(zombie, LEASE_US) is None
        assert await other.renew(living, LEASE_US)
        assert await other.renew(living + 100, LEASE_US) is False

    run(cluster, main())


def test_of_several_that_want_to_lead_at_once_one_does(cluster: Cluster) -> None:
    async def main() -> None:
        members = [await cluster.member(f"c{number}", "controller") for number in range(4)]
        epochs = []
        for _ in range(3):
            for store, incarnation in members:
                await store.lead(incarnation, LEASE_US)
            answers = await asyncio.gather(*(store.lead(incarnation, LEASE_US) for store, incarnation in members * 2))
            leaders = {leader for leader in answers if leader is not None}
            assert len(leaders) == 1
            (leader,) = leaders
            assert [answer is not None for answer in answers] == [
                incarnation == leader.incarnation for _, incarnation in members * 2
            ]
            assert (await members[0][0].cluster_map()).leader == leader
            epochs.append(leader.epoch)
            # It is stopped for an hour, and the others want to take its place, all at once.
            await cluster.expire(leader.incarnation)
            members = [(store, incarnation) for store, incarnation in members if incarnation != leader.incarnation]
            assert (await members[0][0].cluster_map()).leader is None
            answers = await asyncio.gather(*(store.lead(incarnation, LEASE_US) for store, incarnation in members))
            assert [answer is not None for answer in answers].count(True) == 1
        assert epochs == [1, 2, 3]

    run(cluster, main())


def test_a_leader_whose_lease_as_a_member_has_run_out_leads_no_more(cluster: Cluster) -> None:
    """Others take its intervals then, so it does not decide about theirs."""

    async def main() -> None:
        store, incarnation, leader = await cluster.leader()
        await cluster.execute("UPDATE lease SET expires = expires - interval '1 hour'")
        assert await store.lead(incarnation, LEASE_US) is None
        assert (await store.cluster_map()).leader == leader, "until its lease as a leader is over, too"
        other, second = await cluster.member("d", "controller")
        assert await other.lead(second, LEASE_US) is None

    run(cluster, main())


def test_of_two_calls_of_one_member_that_want_to_lead_both_say_that_it_does(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other call is over between two statements of the first."""

    async def main() -> None:
        store, member = await cluster.member("c", "controller")
        changed = False

        async def asked(connection: Connection, statement: str, *given: Any) -> Any:
            nonlocal changed
            if statement == joining.READ_LEADER and not changed:
                changed = True
                await cluster.execute(LEADS, member)
            return await first(connection, statement, *given)

        first = query.first
        monkeypatch.setattr(query, "first", asked)
        assert await store.lead(member, LEASE_US) == Leader(member, 7, "c:1")

    run(cluster, main())


def test_a_leader_that_leaves_is_followed_at_once(cluster: Cluster) -> None:
    async def main() -> None:
        store, first, leader = await cluster.leader("c1")
        other, second = await cluster.member("c2", "controller")
        assert await other.lead(second, LEASE_US) is None
        await store.leave(first)
        assert await other.lead(second, LEASE_US) == Leader(second, leader.epoch + 1, "c2:1")
        assert [member.incarnation for member in (await other.cluster_map()).members] == [second]

    run(cluster, main())


def test_whoever_has_left_has_no_lease_and_is_given_nothing(cluster: Cluster) -> None:
    """Its keeper may ask a last time, and a leader may decide on a map in which it was."""

    async def main() -> None:
        store, first, leader = await cluster.leader()
        other, second = await cluster.member("w")
        await other.leave(second)
        assert not await other.renew(second, LEASE_US)
        assert await other.lead(second, LEASE_US) is None
        version = (await store.cluster_map()).version
        assert await store.place(Placement(leader.epoch, version, {IntervalId(1): second}, {})) is None
        assert await store.place(Placement(leader.epoch, version, {IntervalId(1): first}, {})) == version + 1

    run(cluster, main())


@pytest.mark.parametrize("what", ["lead", "place", "acquire"])
def test_a_lease_that_ends_while_its_member_waits_is_over(cluster: Cluster, what: str) -> None:
    """The moment at which the answer is given counts, and not that at which the transaction began."""

    async def main() -> None:
        store, member = await cluster.member("w")
        outside = await cluster.process()
        if what == "place":
            chief, _, leader = await cluster.leader()
            asked = Placement(leader.epoch, (await chief.cluster_map()).version, {IntervalId(1): member}, {})
            call: Callable[[], Awaitable[object]] = lambda: chief.place(asked)  # noqa: E731
        elif what == "lead":
            call = lambda: store.lead(member, LEASE_US)  # noqa: E731
        else:
            call = lambda: outside.acquire([IntervalId(1)])  # noqa: E731
        locked = "cluster_leader" if what == "lead" else "cluster"
        async with cluster.holding(f"SELECT FROM {locked} FOR UPDATE"):
            waiting = asyncio.ensure_future(call())
            await asyncio.wait([waiting], timeout=SHORT_S)
            assert not waiting.done()
            await cluster.execute("UPDATE lease SET expires = clock_timestamp() WHERE incarnation = %s", member)
        answer = await waiting
        assert answer == {IntervalId(1): 1} if what == "acquire" else answer is None

    run(cluster, main())


def test_whoever_is_no_member_takes_intervals_when_no_member_is_alive(cluster: Cluster) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        version = await store.place(
            Placement(
                leader.epoch,
                (await store.cluster_map()).version,
                {IntervalId(1): leader.incarnation, IntervalId(2): leader.incarnation},
                {},
            )
        )
        assert version is not None
        alone = await cluster.process()
        with pytest.raises(StoreInUse, match="1 live member of a cluster uses the store of 'test_"):
            await alone.acquire([IntervalId(1)])
        assert (await store.cluster_map()).version == version
        await cluster.expire(leader.incarnation)
        taken = await alone.acquire([IntervalId(1)])
        agreed = await store.cluster_map()
        assert [interval.owner for interval in agreed.intervals] == [None, leader.incarnation, None]
        assert (agreed.version, agreed.intervals[0].sequencer) == (version + 1, taken[IntervalId(1)])
        await alone.acquire([IntervalId(1)])
        assert (await store.cluster_map()).version == version + 1

    run(cluster, main())


ROLE = "ordinary"


@pytest.fixture
def ordinary(postgres: EmbeddedPostgres, pipeline: str) -> Cluster:
    """A cluster of an ordinary login role, as it may be made on somebody's server."""
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", (ROLE,)).rowcount == 0:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN")
            connection.execute(f"GRANT CREATE ON DATABASE postgres TO {ROLE}")
    return Cluster(make_conninfo(postgres.url, user=ROLE), pipeline)


def test_an_ordinary_role_ends_the_sessions_of_the_dead_and_of_nobody_else(
    postgres: EmbeddedPostgres, ordinary: Cluster
) -> None:
    async def main() -> None:
        store, living, leader = await ordinary.leader("living")
        dead_store, dead = await ordinary.member("dead")
        keeper = await ordinary.process()
        keeper.represent(dead)
        assert await keeper.renew(dead, LEASE_US)
        assert await dead_store.renew(dead, LEASE_US)
        (row,) = await ordinary.execute("SELECT current_user, usesuper FROM pg_user WHERE usename = current_user")
        assert row == (ROLE, False)
        holder = await ordinary.connection()
        name = session_name(ordinary.pipeline, dead)
        await holder.execute("SELECT set_config('application_name', %s, false)", (name,))
        await holder.execute("BEGIN")
        await holder.execute("SELECT FROM ownership WHERE interval_id = 1 FOR SHARE")
        with psycopg.connect(postgres.url, autocommit=True) as foreign:  # another role's, which ours may not end
            foreign.execute("SELECT set_config('application_name', %s, false)", (name,))
            assert await store.expel([dead, living]) == 0  # both are alive
            await ordinary.expire(dead)
            assert await store.expel([living]) == 0
            asked = Placement(leader.epoch, (await store.cluster_map()).version, {IntervalId(1): living}, {})
            taken = asyncio.create_task(store.place(asked))
            assert await waits(taken)
            assert await store.expel([dead, living, dead + 100]) == 3  # that with the lock, the keeper's, the store's
            await asyncio.wait_for(taken, 60)
            assert foreign.execute("SELECT 1").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            await holder.execute("COMMIT")
        # It wakes up, connects again under its name, and may do nothing.
        assert await dead_store.renew(dead, LEASE_US) is False
        assert await store.expel([dead]) == 1
        assert await store.renew(living, LEASE_US)

    run(ordinary, main())


def test_whoever_expels_itself_goes_on_with_the_session_that_asks(cluster: Cluster) -> None:
    """A leader whose own lease has run out expels all whose lease has; else its answer would be a lost connection."""

    async def main() -> None:
        store, own = await cluster.member("own")
        session = "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY backend_start"
        assert await store.renew(own, LEASE_US)
        await cluster.expire(own)
        assert not await store.expel([]), "its session is there"
        name = session_name(cluster.pipeline, own)
        before = await cluster.execute(session, name)
        await store.expel([own])
        left = await cluster.execute(session, name)
        assert left
        assert {*left} <= {*before}

    run(cluster, main())


def test_sessions_of_another_database_are_left_alone(postgres: EmbeddedPostgres, cluster: Cluster) -> None:
    """Its pipeline may have the same name, and its members have the same numbers.  A run there is none here."""
    other = f"{cluster.pipeline}_other"

    async def main() -> None:
        store, _, _ = await cluster.leader("living")
        dead_store, dead = await cluster.member("dead")
        assert await dead_store.renew(dead, LEASE_US)
        await cluster.expire(dead)
        name = session_name(cluster.pipeline, dead)
        place = make_conninfo(postgres.url, dbname=other, application_name=name)
        with psycopg.connect(place, autocommit=True) as foreign, psycopg.connect(postgres.url, autocommit=True) as own:
            assert await store.expel([dead]) > 0
            assert foreign.execute("SELECT 1").fetchone() == (1,)
            running = "SELECT set_config('application_name', %s, false)"
            for session, there in ((foreign, False), (own, True)):
                session.execute(running, (session_name_of_a_run(cluster.pipeline),))
                with Reader(postgres.url, cluster.pipeline) as reader:
                    assert reader.is_run_embedded() is there

    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{other}"')
        run(cluster, main())
        connection.execute(f'DROP DATABASE "{other}"')


def test_hot_keys_are_those_that_members_have_said_last(cluster: Cluster) -> None:
    async def main() -> None:
        store, one = await cluster.member("w")
        _, two = await cluster.member("v")
        first, second = IntervalId(1), IntervalId(2)
        await store.note_hot_keys(one, [HotKey(second, "z", 90), HotKey(second, "\x00", 500)])
        await store.note_hot_keys(two, [HotKey(first, "a", 100)])
        assert await store.hot_keys() == [
            HotKey(first, "a", 100), HotKey(second, "\x00", 500), HotKey(second, "z", 90),
        ]  # fmt: skip
        await store.note_hot_keys(one, [])
        assert await store.hot_keys() == [HotKey(first, "a", 100)]
        await store.leave(two)
        assert await store.hot_keys() == []
        await store.note_hot_keys(two, [HotKey(first, "a", 100)])
        assert await store.hot_keys() == []

    run(cluster, main())


def test_standstills_are_those_that_members_have_said_last(cluster: Cluster) -> None:
    async def main() -> None:
        store, one = await cluster.member("w")
        _, two = await cluster.member("v")
        held = Standstill("Count", IntervalId(1), "hold", 40, "key '\x00é'", 7)
        await store.note_standstills(two, [held])
        await store.note_standstills(one, [held, held])
        assert await store.standstills() == [StandsAt("w", held), StandsAt("w", held), StandsAt("v", held)]
        with Reader(cluster.url, cluster.pipeline) as reader:
            assert reader.standstills() == await store.standstills()
        await store.note_standstills(one, [])
        assert await store.standstills() == [StandsAt("v", held)]
        await cluster.expire(two)
        assert await store.standstills() == [], "nobody knows what a dead worker has"
        await store.leave(two)
        await store.note_standstills(two, [held])
        assert await store.standstills() == []

    run(cluster, main())


def test_sessions_bear_the_name_of_their_member(cluster: Cluster) -> None:
    async def main() -> None:
        store, incarnation = await cluster.member("w")
        await store.reacquire(IntervalId(1), Sequencer(99))  # of these sessions, one was open before it had a name
        await store.renew(incarnation, LEASE_US)
        await store.watermarks()
        names = await cluster.execute("SELECT application_name FROM pg_stat_activity WHERE application_name <> ''")
        mine = [name for (name,) in names if name == session_name(cluster.pipeline, incarnation)]
        assert len(mine) == 3
        assert len(session_name("p" * 40, 10**11)) <= 63

    run(cluster, main())


def test_another_version_of_a_pipeline_waits_until_the_members_of_the_earlier_one_are_gone(cluster: Cluster) -> None:
    async def main() -> None:
        store, _, leader = await cluster.leader()
        starting = await cluster.process()  # of the earlier version too, and it has not joined yet
        version = await store.place(
            Placement(leader.epoch, (await store.cluster_map()).version, {IntervalId(1): leader.incarnation}, {})
        )
        cluster.shape = PipelineShape(cluster.pipeline, {"a": ("m",), "b": (), "c": ()}, {}, {}, (), ("src", "new"))
        with pytest.raises(StoreInUse, match=r"computation 'c' is new; source 'new' is new.*controller 'c' .1. at c:1"):
            await cluster.process()
        assert (await store.cluster_map()).version == version
        await cluster.expire(leader.incarnation)
        await cluster.process()
        agreed = await store.cluster_map()
        assert version is not None
        assert agreed.version == version + 1
        assert [(row.computation, row.low, row.high, row.owner) for row in agreed.intervals] == [
            ("a", "", "m", leader.incarnation), ("a", "m", None, None), ("b", "", None, None), ("c", "", None, None),
        ]  # fmt: skip
        assert [source.name for source in agreed.sources] == ["new", "src"]
        await cluster.process()
        assert (await store.cluster_map()).version == version + 1
        with pytest.raises(IncompatibleStore, match="another version meanwhile; start this process again"):
            await starting.join("late", "worker", "h:1", LEASE_US, b"late")

    run(cluster, main())


def test_a_pipeline_runs_embedded_and_as_a_cluster_and_embedded_again(cluster: Cluster) -> None:
    async def owner(store: PostgresStore, sequencer: Sequencer, seq: int) -> bytes:
        """Recover interval 1, commit a value, and give back what was there."""
        assert await store.recover(IntervalId(1), sequencer) is not None
        found = await store.load(IntervalId(1), ["a"])
        state = StateWrites.of([("a", "c", "", b"%d" % seq)])
        image = Checkpoint(CHECKPOINT_FORMAT, "", 0, [], [], [], state, TimerWrites(), HoldWrites(), [], [])
        write = LogWrite(IntervalId(1), sequencer, Seq(seq), 0, encode_checkpoint(image))
        assert await store.commit([write]) == {(1, seq)}
        return found[0].cells["c", ""] if found else b""

    async def main() -> None:
        alone = await cluster.process()
        embedded = (await alone.acquire([IntervalId(1), IntervalId(2), IntervalId(3)]))[IntervalId(1)]
        assert await owner(alone, embedded, 1) == b""
        # A cluster joins while that run is still there, and fences it.
        store, member, leader = await cluster.leader()
        with pytest.raises(StoreInUse):
            await alone.acquire([IntervalId(1)])
        assert await alone.still_owned({IntervalId(1): embedded}) == {1}
        placement = Placement(leader.epoch, (await store.cluster_map()).version, {IntervalId(1): member}, {})
        assert await store.place(placement) is not None
        assert await alone.still_owned({IntervalId(1): embedded}) == set()
        assert await alone.commit([LogWrite(IntervalId(1), embedded, Seq(2), 0, payload())]) == set()
        mine = (await store.cluster_map()).intervals[0].sequencer
        assert await owner(store, mine, 3) == b"1"
        # The cluster is killed.  Once its leases have run out it is as if it were not there.
        await cluster.expire(member)
        again = (await alone.acquire([IntervalId(1)]))[IntervalId(1)]
        assert await owner(alone, again, 4) == b"3"
        assert await store.commit([LogWrite(IntervalId(1), mine, Seq(5), 0, payload())]) == set()
        assert (await alone.cluster_map()).intervals[0].owner is None
        # And a cluster once more: what is left of the members before keeps nobody out.
        store, member, leader = await cluster.leader("c2")
        agreed = await store.cluster_map()
        assert [(row.name, row.alive) for row in agreed.members] == [("c", False), ("c2", True)]
        assert await store.place(Placement(leader.epoch, agreed.version, {IntervalId(1): member}, {})) is not None
        assert await owner(store, (await store.cluster_map()).intervals[0].sequencer, 6) == b"4"

    run(cluster, main())


def test_a_store_that_live_members_use_is_not_dropped(cluster: Cluster) -> None:
    async def main() -> None:
        store, incarnation = await cluster.member("w")
        with pytest.raises(StoreInUse, match="worker 'w'"):
            reset(cluster.url, cluster.pipeline)
        assert await store.renew(incarnation, LEASE_US)
        await cluster.expire(incarnation)
        assert reset(cluster.url, cluster.pipeline)

    run(cluster, main())
