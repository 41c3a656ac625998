"""Database roles: each can do its work, and is refused what it must not do."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Acked,
    Checkpoint,
    HoldWrites,
    Ids,
    LogWrite,
    OutsideIdWrites,
    Produced,
    QuarantineEntry,
    SinkRow,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.cluster import HotKey, MapOrder, Placement, Reshaping, Standstill
from millwheel.errors import StoreError
from millwheel.ids import IntervalId, ProducerId, Seq, SequenceNumber, Sequencer, SubscriptionId
from millwheel.ports import Declaration, FoldWrite, MarkWrite, PipelineShape, PositionWrite, SinkTable, WatermarkWrite
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.membership import session_name
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.schema.grants import roles_script

pytestmark = pytest.mark.postgres

LEASE_US = 3_600_000_000
ONE, TWO = IntervalId(1), IntervalId(2)
SINK = SinkTable("out", {"k": "text", "n": "bigint"}, ("k",))


def shape(pipeline: str) -> PipelineShape:
    return PipelineShape(pipeline, {"a": ("m",), "b": ()}, {"a<s": "s"}, {}, (SINK,), ("src",))


def url(postgres: EmbeddedPostgres, pipeline: str, role: str) -> str:
    return make_conninfo(postgres.url, user=f"{pipeline}_{role}")


async def made(postgres: EmbeddedPostgres, pipeline: str, snapshots: bool = False) -> None:
    """The owner has opened the pipeline, and has made the roles, twice."""
    store = PostgresStore(postgres.url, pipeline)
    await store.open_pipeline(shape(pipeline))
    await store.close()
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for _ in range(2):
            connection.execute(roles_script(pipeline, snapshots).encode())


def image(outside: int) -> Checkpoint:
    channel = (SubscriptionId(1), ProducerId(5))
    return Checkpoint(
        format=CHECKPOINT_FORMAT, shape="", epoch=0, ids=[Ids(*channel, SequenceNumber(1), [SequenceNumber(3)])],
        produced=[Produced(*channel, SequenceNumber(outside), ["k"], [b"v"], [1])], acked=[],
        state=StateWrites.of([("a", "c", "", b"v")]), timers=TimerWrites(["a"], ["t"], ["wall"], [7]),
        holds=HoldWrites(["a"], [7]), sinks=[],
        quarantined=[QuarantineEntry("a", channel[0], channel[1], SequenceNumber(0), b"v", 1)],
        outside=[OutsideIdWrites(SubscriptionId(1), 50, [b"%d" % outside])],
    )  # fmt: skip


def test_workers_and_a_controller_do_their_work_with_their_roles(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        await made(postgres, pipeline)
        worker = PostgresStore(url(postgres, pipeline, "worker"), pipeline)
        controller = PostgresStore(url(postgres, pipeline, "controller"), pipeline)
        for store in (worker, controller):
            await store.open_pipeline(shape(pipeline))
        mine = (await worker.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
        chief = (await controller.join("c", "controller", "c:1", LEASE_US, b"c")).incarnation
        leader = await controller.lead(chief, LEASE_US)
        assert leader is not None
        version = (await controller.cluster_map()).version
        placed = await controller.place(Placement(leader.epoch, version, {ONE: mine, TWO: mine}, {"src": mine}))
        assert placed is not None
        await work(worker, mine)
        owned = {row.id: row.sequencer for row in (await controller.cluster_map()).intervals}
        write = WatermarkWrite("a", 7, {ONE: owned[ONE]})
        assert await controller.persist_led_watermarks(leader.epoch, [write]) == {"a"}
        assert (await controller.senders()).productions == ((1, 5),)
        assert await controller.count_quarantined() == await worker.count_quarantined() == 1
        number = await controller.order(MapOrder("split", (ONE,), split_keys=("c",)))
        given_up = await controller.place(Placement(leader.epoch, placed, {ONE: None, TWO: None}, {}))
        assert given_up is not None
        split = await controller.reshape(Reshaping(leader.epoch, given_up, [ONE], ["c"]))
        assert split is not None
        merged = await controller.reshape(Reshaping(leader.epoch, split[0], [*split[1], TWO]))
        assert merged is not None
        assert merged[1] == (ONE,)
        assert await controller.settle_order(leader.epoch, number, "")
        assert await controller.renew(chief, LEASE_US)
        # Later both go by themselves.
        await worker.leave(mine)
        await controller.leave(chief)
        assert (await controller.cluster_map()).members == ()
        with Reader(url(postgres, pipeline, "reader"), pipeline) as reader:
            assert [row.value for row in reader.get_state("a", "a")] == [b"v"]
            assert reader.sink_rows("out") == [{"k": "x", "n": 1}, {"k": "y", "n": 2}]
            assert reader.overview().intervals[0].unacked == 2
        for store in (worker, controller):
            await store.close()

    asyncio.run(main())


async def work(worker: PostgresStore, mine: int) -> None:
    """Whatever an owner does."""
    owned = {row.id: row.sequencer for row in (await worker.cluster_map()).intervals}
    taken = await worker.reacquire(ONE, owned[ONE])
    assert taken is not None
    owned[ONE] = taken
    for id_, row in ((ONE, {"k": "x", "n": 1}), (TWO, {"k": "y", "n": 2})):
        assert await worker.recover(id_, owned[id_]) is not None
        one = image(id_)
        sinks = (SinkRow("out", msgspec.json.encode(row)),)
        assert await worker.commit([LogWrite(id_, owned[id_], Seq(1), 0, encode_checkpoint(one), sinks, ("k",))])
        assert await worker.fold(FoldWrite(id_, owned[id_], Seq(1), [one]))
        assert await worker.mark([MarkWrite(id_, owned[id_], b"", 0)]) == {id_}
    opened = await worker.open_source("src", {"p": b""})
    partitions = await worker.take_partitions("src", mine, [opened[0].interval])
    assert partitions is not None
    move = PositionWrite(opened[0].interval, partitions[opened[0].interval], 3, True, b"", [b"sign"])
    assert await worker.advance([move]) == {opened[0].interval}
    assert await worker.renew(mine, LEASE_US)
    assert await worker.refusal(1) is None if await worker.orders() else True


def test_a_worker_says_what_it_sees_and_deletes_what_is_over(postgres: EmbeddedPostgres, pipeline: str) -> None:
    one, channel = image(ONE), (SubscriptionId(1), ProducerId(5))
    over = msgspec.structs.replace(
        one, ids=[Ids(*channel, SequenceNumber(9), [])], produced=[], acked=[Acked(*channel, [SequenceNumber(ONE)])],
        state=StateWrites.of([("a", "c", "", None)]), timers=TimerWrites(["a"], ["t"], ["wall"], [None]),
        holds=HoldWrites(["a"], [None]), quarantined=[], redriven=[("a", 1)], released=["a"],
        outside=[OutsideIdWrites(SubscriptionId(1), 60, [])],
    )  # fmt: skip

    async def main() -> None:
        await made(postgres, pipeline)
        worker = PostgresStore(url(postgres, pipeline, "worker"), pipeline)
        await worker.open_pipeline(shape(pipeline))
        owned = (await worker.acquire([ONE]))[ONE]
        assert await worker.recover(ONE, owned) is not None
        for seq, written in enumerate((one, over), 1):
            assert await worker.commit([LogWrite(ONE, owned, Seq(seq), 0, encode_checkpoint(written))])
            assert await worker.fold(FoldWrite(ONE, owned, Seq(seq), [written]))
            if written is one:
                with Reader(url(postgres, pipeline, "worker"), pipeline) as reader:
                    for _ in range(2):
                        reader.request_redrive("a", "a")
        mine = (await worker.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
        for _ in range(2):
            await worker.note_hot_keys(mine, [HotKey(ONE, "a", 500)])
            await worker.note_standstills(mine, [Standstill("a", ONE, "hold", 7, "")])
        await worker.close()

    asyncio.run(main())
    with psycopg.connect(postgres.url) as connection:
        for table in (
            "delivered",
            "hold",
            "key_state",
            "opaque_bucket",
            "opaque_id",
            "production",
            "quarantine",
            "redrive",
            "timer",
        ):
            assert connection.execute(f'SELECT FROM "{pipeline}".{table}').fetchall() == [], table


def test_a_controller_makes_epochs_visible_with_its_own_role(postgres: EmbeddedPostgres, pipeline: str) -> None:
    # It was to have the role of a worker, which may not lead: no cluster could run under snapshots.
    async def main() -> None:
        await made(postgres, pipeline, snapshots=True)
        worker = PostgresStore(url(postgres, pipeline, "worker"), pipeline)
        controller = PostgresStore(url(postgres, pipeline, "controller"), pipeline)
        for store in (worker, controller):
            await store.open_pipeline(shape(pipeline))
        mine = (await worker.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
        chief = (await controller.join("c", "controller", "c:1", LEASE_US, b"c")).incarnation
        leader = await controller.lead(chief, LEASE_US)
        assert leader is not None
        every: dict[IntervalId, int | None] = {ONE: mine, TWO: mine}
        every |= {row.id: mine for row in (await controller.cluster_map()).intervals}

        async def place_all() -> dict[IntervalId, Sequencer]:
            version = (await controller.cluster_map()).version
            assert await controller.place(Placement(leader.epoch, version, every, {"src": mine}, back=True)) is not None
            return {row.id: row.sequencer for row in (await controller.cluster_map()).intervals}

        owned = await place_all()
        rows = (SinkRow("out", msgspec.json.encode({"k": "x", "n": 1})),)
        for epoch in (1, 2):
            written = msgspec.structs.replace(image(ONE), epoch=epoch, sinks=[*rows], sink_keys=["k"])
            write = LogWrite(ONE, owned[ONE], Seq(epoch), epoch, encode_checkpoint(written))
            assert await worker.commit([write]) == {(ONE, Seq(epoch))}
            if epoch == 1:
                declaration = Declaration(
                    epoch=1, owners=owned, watermarks={"a": 7}, sinks=[(ONE, Seq(1))], term=leader.epoch
                )
                assert await controller.declare(declaration)
        await place_all()  # what epoch 2 had is dropped
        given_up = await controller.place(
            Placement(leader.epoch, (await controller.cluster_map()).version, dict.fromkeys(every), {})
        )
        assert given_up is not None
        assert await controller.reshape(Reshaping(leader.epoch, given_up, [ONE], ["c"], back=True)) is not None
        with Reader(url(postgres, pipeline, "reader"), pipeline) as reader:
            assert reader.sink_rows("out") == [{"k": "x", "n": 1}]
        with psycopg.connect(url(postgres, pipeline, "controller"), autocommit=True) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", (pipeline,))
            for statement in ("CREATE TABLE mine (x int)", "DROP TABLE out", "UPDATE meta SET payload_format = 9"):
                with pytest.raises(errors.InsufficientPrivilege):
                    connection.execute(statement.encode())
        for store in (worker, controller):
            await store.close()

    asyncio.run(main())


REFUSED: dict[str, list[str]] = {
    "worker": [
        "UPDATE cluster_leader SET epoch = 9",
        "SELECT FROM cluster_leader FOR UPDATE",
        "INSERT INTO map_order (wish) VALUES ('')",
        "UPDATE meta SET payload_format = 9",
        "INSERT INTO migration (version) VALUES (99)",
        "DELETE FROM name",
        "DELETE FROM interval",
        "UPDATE interval SET low = 'x'",
        "DELETE FROM ownership",
        "DELETE FROM source",
        "CREATE TABLE mine (x int)",
        "ALTER TABLE key_state ADD COLUMN x int",
        "DROP TABLE out",
        "TRUNCATE checkpoint_log",
        "CREATE SCHEMA another",
    ],
    "controller": [
        "SELECT value FROM key_state",
        "SELECT payload FROM checkpoint_log",
        "DELETE FROM checkpoint_log",
        "SELECT value FROM production",
        "SELECT key FROM production",
        "UPDATE production SET value = ''",
        "DELETE FROM production",
        "SELECT FROM timer",
        "SELECT FROM hold",
        "SELECT FROM quarantine",
        "INSERT INTO redrive VALUES (1, '')",
        "SELECT * FROM out",
        "UPDATE source SET finished = true",
        "UPDATE meta SET payload_format = 9",
        "INSERT INTO name VALUES ('computation', 'x', 9)",
        "CREATE TABLE mine (x int)",
        "DROP TABLE key_state",
    ],
    "reader": [
        "INSERT INTO lease VALUES (1, now())",
        "UPDATE ownership SET sequencer = 9",
        "SELECT FROM ownership FOR SHARE",
        "DELETE FROM out",
        "INSERT INTO redrive VALUES (1, '')",
        "INSERT INTO map_order (wish) VALUES ('')",
        "SELECT nextval('sequencer')",
        "SELECT end_worker_sessions('{}', '{}')",
        "SELECT count_quarantine()",
        "CREATE TABLE mine (x int)",
    ],
}


def test_each_role_is_refused_what_it_must_not_do(postgres: EmbeddedPostgres, pipeline: str) -> None:
    asyncio.run(made(postgres, pipeline))
    allowed = []
    for role, statements in REFUSED.items():
        with psycopg.connect(url(postgres, pipeline, role), autocommit=True) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", (pipeline,))
            for statement in statements:
                try:
                    connection.execute(statement.encode())
                except errors.InsufficientPrivilege:
                    continue
                allowed.append((role, statement))
    assert allowed == []


def test_a_role_sees_nothing_of_another_pipeline(postgres: EmbeddedPostgres, pipeline: str) -> None:
    asyncio.run(made(postgres, pipeline))
    asyncio.run(made(postgres, f"{pipeline}_other"))
    for role in REFUSED:
        with (
            psycopg.connect(url(postgres, f"{pipeline}_other", role), autocommit=True) as connection,
            pytest.raises(errors.InsufficientPrivilege),
        ):
            connection.execute(f'SELECT FROM "{pipeline}".meta')


def test_whoever_may_not_change_tables_is_told_who_may(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        await made(postgres, pipeline)
        store = PostgresStore(url(postgres, pipeline, "worker"), pipeline)
        changed = PipelineShape(pipeline, {"a": ("m",), "b": (), "c": ()}, {"a<s": "s"}, {}, (SINK,), ("src",))
        with pytest.raises(StoreError, match="owner of the pipeline's schema, who starts a new version once"):
            await store.open_pipeline(changed)
        incarnation = (await store.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
        with pytest.raises(StoreError, match="permission denied for table cluster_leader"):
            await store.lead(incarnation, LEASE_US)
        await store.close()

    asyncio.run(main())


def test_a_controller_ends_the_sessions_of_dead_workers(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        await made(postgres, pipeline)
        controller = PostgresStore(url(postgres, pipeline, "controller"), pipeline)
        worker = PostgresStore(url(postgres, pipeline, "worker"), pipeline)
        dead = (await worker.join("w", "worker", "w:1", LEASE_US, b"w")).incarnation
        stopped = await psycopg.AsyncConnection.connect(
            url(postgres, pipeline, "worker"), application_name=session_name(pipeline, dead), autocommit=True
        )
        await stopped.execute("BEGIN")
        await stopped.execute(f'SELECT FROM "{pipeline}".ownership WHERE interval_id = 1 FOR SHARE')
        assert await controller.expel([dead]) == 0
        with psycopg.connect(postgres.url, autocommit=True) as owner:
            owner.execute(f"""UPDATE "{pipeline}".lease SET expires = expires - interval '2 hours'""")
        assert await controller.expel([dead]) == 1
        with pytest.raises(psycopg.OperationalError):
            await stopped.execute("COMMIT")
        for store in (controller, worker):
            await store.close()

    asyncio.run(main())


def test_the_script_is_for_one_pipeline(pipeline: str) -> None:
    script = roles_script("orders-2")
    assert "orders_2_worker" in script
    assert "{" not in script.replace("'{}'", "")
    with pytest.raises(Exception, match="pipeline name"):
        roles_script("x; DROP TABLE y")


def test_grants_name_tables_that_exist(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """Every table of the store has somebody who may read it, and a new table is noticed here."""
    asyncio.run(made(postgres, pipeline))
    with psycopg.connect(postgres.url) as connection:
        found: list[tuple[Any, ...]] = connection.execute(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = %s AND c.relkind = 'r' AND NOT has_table_privilege(%s, c.oid, 'SELECT')",
            (pipeline, f"{pipeline}_worker"),
        ).fetchall()
    assert found == []


def test_what_others_were_granted_before_goes_and_partitioned_sinks_are_sinks(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    asyncio.run(made(postgres, pipeline))
    asked = (
        "SELECT has_schema_privilege(%(reader)s, %(schema)s, 'CREATE'), "
        "has_table_privilege(%(reader)s, %(schema)s || '.key_state', 'DELETE'), "
        "has_table_privilege(%(worker)s, %(schema)s || '.meta', 'DELETE'), "
        "has_table_privilege(%(worker)s, %(schema)s || '.parted', 'INSERT')"
    )
    names = {"schema": pipeline, "reader": f"{pipeline}_reader", "worker": f"{pipeline}_worker"}
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for granted in (
            f"GRANT ALL ON SCHEMA {pipeline} TO PUBLIC",
            f"GRANT ALL ON ALL TABLES IN SCHEMA {pipeline} TO PUBLIC",
            f"GRANT DELETE ON {pipeline}.meta TO {pipeline}_worker",
            f"CREATE TABLE {pipeline}.parted (k text) PARTITION BY HASH (k)",
        ):
            connection.execute(granted.encode())
        assert connection.execute(asked, names).fetchone() == (True, True, True, False)
        connection.execute(roles_script(pipeline).encode())
        assert connection.execute(asked, names).fetchone() == (False, False, False, True)
