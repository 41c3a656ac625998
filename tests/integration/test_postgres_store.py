"""The Postgres store and the embedded server under what breaks them: kills, lost replies, refusals, volume."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import msgspec
import psycopg
import pytest

from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    Delivered,
    HoldWrites,
    Ids,
    LogWrite,
    Produced,
    SinkRow,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.errors import (
    CommitUnknown,
    IncompatibleStore,
    RowRefused,
    StoreError,
    WiringError,
)
from millwheel.ids import ProducerId, Seq, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.ports import FoldWrite, PipelineShape, SinkTable
from millwheel.rows import check_row
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres import connection as connection_module
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.postgres.reader import Reader, reset
from millwheel_storage.testing import fresh_name, postgres_tables

pytestmark = pytest.mark.postgres

SINK = SinkTable(
    "out",
    {"k": "text", "n": "bigint", "x": "double precision", "at": "timestamptz", "ok": "boolean", "j": "jsonb"},
    ("k",),
)


def shape(name: str, **changes: object) -> PipelineShape:
    base = PipelineShape(name, {"a": ("m",)}, {"a<s": "s"}, {"stream:s": "bytes"}, (SINK,), ("text",), {"text": "s"})
    return msgspec.structs.replace(base, **changes)


def image(keys: list[str], value: bytes | None = b"v") -> Checkpoint:
    state = StateWrites.of((key, "", "", value) for key in keys)
    return Checkpoint(CHECKPOINT_FORMAT, "", 0, [], [], [], state, TimerWrites(), HoldWrites(), [], [])


def row(**values: object) -> SinkRow:
    return SinkRow("out", msgspec.json.encode(values))


@contextlib.contextmanager
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        yield Path(directory)


# The embedded server


def test_what_was_written_is_there_after_a_restart() -> None:
    with short_directory() as directory:
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
            pid = server.pid
        assert server.pid is None
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            assert server.pid not in (None, pid)
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
            assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
            for setting in ("fsync", "full_page_writes", "synchronous_commit"):
                assert connection.execute(f"SHOW {setting}").fetchone() == ("on",)


def test_a_long_path_gets_a_short_socket() -> None:
    with short_directory() as directory:
        deep = directory / ("d" * 90) / "it's deep"
        with EmbeddedPostgres(deep) as server, psycopg.connect(server.url) as connection:
            assert len(str(server.socket_directory)) < 60
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_killed_server_starts_again_and_lost_nothing() -> None:
    with short_directory() as directory, EmbeddedPostgres(directory) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS x")
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        server.ensure_running()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]


def test_a_reused_pid_in_the_pid_file_does_not_hinder() -> None:
    with short_directory() as directory:
        with EmbeddedPostgres(directory):
            pid_file = directory / "postgres" / "postmaster.pid"
            text = pid_file.read_text()
        lines = text.splitlines()
        pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
        with EmbeddedPostgres(directory) as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_the_last_user_stops_the_server() -> None:
    with short_directory() as directory:
        with EmbeddedPostgres(directory) as first:
            with EmbeddedPostgres(directory) as second:
                assert second.pid == first.pid
            assert first.pid is not None
        assert first.pid is None


CHILD = """
import sys, time
from millwheel_storage.embedded import EmbeddedPostgres
with EmbeddedPostgres(sys.argv[1]) as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def child(directory: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_the_run_ends_the_server(number: signal.Signals) -> None:
    with short_directory() as directory, child(directory) as (process, _):
        process.send_signal(number)
        process.wait(20)
        assert EmbeddedPostgres(directory).pid is None


def test_an_orphan_of_a_killed_run_is_adopted_and_then_stopped() -> None:
    with short_directory() as directory:
        with child(directory) as (process, pid):
            process.kill()
            process.wait(5)
            assert EmbeddedPostgres(directory).pid == pid
        started = time.monotonic()
        with EmbeddedPostgres(directory) as server:
            assert server.pid == pid
            assert time.monotonic() - started < 2
            with psycopg.connect(server.url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        assert server.pid is None


# Opening


def test_a_store_reopens_with_the_same_numbers(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        opened = await store.open_pipeline(shape(pipeline))
        more = shape(pipeline, computations={"0": (), "a": ("m",)}, subscriptions={"0<s": "s", "a<s": "s"})
        again = await store.open_pipeline(more)
        assert [r for r in again.intervals if r.computation == "a"] == list(opened.intervals)
        assert again.subscriptions == {"a<s": 1, "0<s": 2}
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"coders": {"stream:s": "json"}}, IncompatibleStore),
        ({"computations": {"b": ()}}, IncompatibleStore),
        ({"computations": {"a": ("x", "y")}}, IncompatibleStore),
        ({"streams": {"text": "other"}}, IncompatibleStore),
        ({"subscriptions": {}}, IncompatibleStore),
        ({"sinks": (SinkTable("out", {"k": "text", "n": "text"}, ("k",)),)}, IncompatibleStore),
        ({"sinks": (SinkTable("out", {"k": "text", "n": "bigint"}, ("n",)),)}, IncompatibleStore),
        ({"sinks": (SinkTable("timer", {"k": "text"}, ("k",)),)}, WiringError),
        ({"sinks": (SinkTable("o", {"k": "text; DROP"}, ("k",)),)}, WiringError),
    ],
)
def test_an_incompatible_shape_is_refused_before_any_write(
    postgres: EmbeddedPostgres, pipeline: str, changes: dict[str, object], error: type[Exception]
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        with pytest.raises(error):
            await store.open_pipeline(shape(pipeline, **changes))
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        assert reader.shape() == shape(pipeline)


def test_a_schema_of_somebody_else_is_left_alone(postgres: EmbeddedPostgres, pipeline: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {pipeline}")
        connection.execute(f"CREATE TABLE {pipeline}.precious (x int)")

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        with pytest.raises(IncompatibleStore, match="not millwheel's"):
            await store.open_pipeline(shape(pipeline))
        await store.close()

    asyncio.run(main())
    with pytest.raises(StoreError, match="not touched"):
        reset(postgres.url, pipeline)


def test_two_openers_at_once_make_one_schema(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        stores = [PostgresStore(postgres.url, pipeline) for _ in range(4)]
        opened = await asyncio.gather(*[store.open_pipeline(shape(pipeline)) for store in stores])
        assert all(one == opened[0] for one in opened)
        partitions = await asyncio.gather(*[store.open_source("s", {"p": b"", "q": b""}) for store in stores])
        assert all(one == partitions[0] for one in partitions)
        for store in stores:
            await store.close()

    asyncio.run(main())
    assert reset(postgres.url, pipeline)
    assert not reset(postgres.url, pipeline)


# Commits


def test_a_sink_holds_what_was_upserted(postgres: EmbeddedPostgres, pipeline: str) -> None:
    full = {
        "k": "a",
        "n": 2**62,
        "x": 0.1,
        "at": "2026-01-02T03:04:05.000006Z",
        "ok": True,
        "j": {"a": [1, None]},
    }

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await store.acquire([first])
        rows = (row(k="a", n=1), row(**full), row(k="b"))
        assert await store.commit([LogWrite(first, owned[first], Seq(1), 0, b"x", rows)])
        later = [LogWrite(first, owned[first], Seq(2), 0, b"x", (row(k="b", n=5),))]
        assert await store.commit(later)
        # The first again, as after a lost reply: it must not put its old row back.
        assert await store.commit([LogWrite(first, owned[first], Seq(1), 0, b"x", rows)]) == {(first, 1)}
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        a, b = reader.sink_rows("out")
        assert (a["n"], a["x"], a["ok"], a["j"]) == (2**62, 0.1, True, {"a": [1, None]})
        assert a["at"].isoformat() == "2026-01-02T03:04:05.000006+00:00"
        assert b["n"] == 5


def gone(**key: object) -> SinkRow:
    return SinkRow("out", msgspec.json.encode(key), deleted=True)


def test_a_deleted_row_is_gone_and_a_repeated_commit_does_not_delete_it_again(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await store.acquire([first])
        with psycopg.connect(postgres.url) as connection:
            connection.execute(f'ALTER TABLE "{pipeline}".out ADD UNIQUE (n)')

        async def commit(seq: Seq, *rows: SinkRow) -> None:
            assert await store.commit([LogWrite(first, owned[first], seq, 0, b"x", rows)]) == {(first, seq)}

        await commit(Seq(1), row(k="a", n=1), row(k="b", n=2), row(k="c", n=3))
        await commit(Seq(2), gone(k="b"), gone(k="never"), row(k="d", n=4), gone(k="d"), gone(k="c"), row(k="c", n=2))
        await commit(Seq(3), row(k="b", n=9))
        # As after a lost reply: the second must not delete what came after it.
        await commit(Seq(2), gone(k="b"), gone(k="never"), row(k="d", n=4), gone(k="d"), gone(k="c"), row(k="c", n=2))
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        assert {found["k"]: found["n"] for found in reader.sink_rows("out")} == {"a": 1, "b": 9, "c": 2}


def test_a_deletion_that_the_database_refuses_is_named(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await store.acquire([first])
        rows = (row(k="a", n=1), row(k="b", n=2))
        assert await store.commit([LogWrite(first, owned[first], Seq(1), 0, b"x", rows)])
        with psycopg.connect(postgres.url, options=f"-c search_path={pipeline}") as connection:
            connection.execute("CREATE TABLE wants (k text REFERENCES out); INSERT INTO wants VALUES ('b')")
        later = LogWrite(first, owned[first], Seq(2), 0, b"x", (gone(k="a"), gone(k="b")), ("a", "b"))
        with pytest.raises(RowRefused, match="foreign key constraint") as caught:
            await store.commit([later])
        assert [place for place, _ in caught.value.rows] == [1]
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        assert [found["k"] for found in reader.sink_rows("out")] == ["a", "b"]


def test_decimals_and_uuids_arrive_as_they_are(postgres: EmbeddedPostgres, pipeline: str) -> None:
    table = SinkTable("money", {"id": "uuid", "price": "numeric", "day": "date"}, ("id", "price"))
    id_ = UUID("6f9619ff-8b86-d011-b42d-00c04fc964ff")

    def money(price: str) -> SinkRow:
        values = {"id": id_, "price": price, "day": "2026-01-02"}
        return SinkRow("money", msgspec.json.encode(check_row(table, msgspec.to_builtins(values))))

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline, sinks=(table,)))).intervals[0].id
        owned = await store.acquire([first])
        prices = ("1.50", "0.1", "-0", "9" * 60 + "." + "9" * 60, "1.5", "2")
        deleted = SinkRow("money", msgspec.json.encode({"id": str(id_).upper(), "price": "2.000"}), deleted=True)
        rows = (*map(money, prices), deleted)
        assert await store.commit([LogWrite(first, owned[first], Seq(1), 0, b"x", rows)])
        await store.open_pipeline(shape(pipeline, sinks=(table,)))  # the types are those that were declared
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        found = reader.sink_rows("money")
    assert {row["id"] for row in found} == {id_}
    assert [row["price"] for row in found] == [0, Decimal("0.1"), Decimal("1.5"), Decimal("9" * 60 + "." + "9" * 60)]


def test_a_row_the_database_refuses_is_named_and_nothing_after_it_commits(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        low, high = [r.id for r in (await store.open_pipeline(shape(pipeline))).intervals]
        owned = await store.acquire([low, high])
        with psycopg.connect(postgres.url) as connection:
            connection.execute(f'ALTER TABLE "{pipeline}".out ADD CHECK (n < 10)')
        writes = [
            LogWrite(high, owned[high], Seq(1), 0, b"x"),
            LogWrite(low, owned[low], Seq(1), 0, b"x", (row(k="fine", n=1),)),
            LogWrite(low, owned[low], Seq(2), 0, b"x", (row(k="good", n=9), row(k="bad", n=10)), ("good", "bad")),
            LogWrite(low, owned[low], Seq(3), 0, b"x"),
        ]
        with pytest.raises(RowRefused, match="check constraint") as caught:
            await store.commit(writes)
        assert (caught.value.interval, caught.value.seq) == (low, 2)
        assert [place for place, _ in caught.value.rows] == [1]
        assert await store.commit(writes[:2]) == {(high, 1), (low, 1)}
        await store.close()

    asyncio.run(main())
    log = postgres_tables(postgres.url, pipeline)["checkpoint_log"]
    assert {(r[0], r[2]) for r in log} == {(1, 1), (2, 1)}


FOREIGN_KEY = """
CREATE TABLE known (n bigint PRIMARY KEY);
INSERT INTO known SELECT generate_series(0, 9);
ALTER TABLE out ADD CONSTRAINT is_known FOREIGN KEY (n) REFERENCES known
"""

TRIGGER = """
CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.n > 9 THEN RAISE EXCEPTION 'too many: %', NEW.n; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER no BEFORE INSERT ON out FOR EACH ROW EXECUTE FUNCTION no()
"""

REFUSALS = {
    "a check": ("ALTER TABLE out ADD CONSTRAINT low CHECK (n < 10)", "low"),
    "another unique column": ("ALTER TABLE out ADD CONSTRAINT alone UNIQUE (n)", "alone"),
    "checked at the end": ("ALTER TABLE out ADD CONSTRAINT alone UNIQUE (n) DEFERRABLE INITIALLY DEFERRED", "alone"),
    "not null": ("ALTER TABLE out ALTER COLUMN x SET NOT NULL", '"x"'),
    "a foreign key": (FOREIGN_KEY, "is_known"),
    "a trigger": (TRIGGER, "too many: 10"),
    "an index entry that is too long": ("CREATE INDEX long_one ON out (k)", "index row"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_the_rows_at_fault_are_found(postgres: EmbeddedPostgres, pipeline: str, name: str) -> None:
    """The culprit is in the middle; a later row of its key is not blamed, other keys' rows are fine."""
    statement, words = REFUSALS[name]
    noise = "".join(chr(0x4E00 + 7919 * i % 20_000) for i in range(3_000))  # Postgres cannot compress it away
    fine = [row(k=f"k{i}", n=i, x=1.0) for i in range(10)]
    bad = {
        "another unique column": row(k="twice", n=3, x=1.0),
        "checked at the end": row(k="twice", n=3, x=1.0),
        "not null": row(k="bad", n=1_000),
        "an index entry that is too long": row(k=noise, n=1_000, x=1.0),
    }.get(name, row(k="bad", n=10, x=1.0))
    sinks = (*fine[:6], bad, *fine[6:], bad)
    keys = (*(f"k{i}" for i in range(6)), "bad", *(f"k{i}" for i in range(6, 10)), "bad")

    async def main() -> RowRefused:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await store.acquire([first])
        with psycopg.connect(postgres.url, options=f"-c search_path={pipeline}") as connection:
            connection.execute(statement.encode())
        with pytest.raises(RowRefused) as caught:
            await store.commit([LogWrite(first, owned[first], Seq(1), 0, b"x", sinks, keys)])
        again = LogWrite(first, owned[first], Seq(1), 0, b"x", tuple(fine), keys[:10])
        assert await store.commit([again]) == {(first, 1)}
        await store.close()
        return caught.value

    error = asyncio.run(main())
    assert [place for place, _ in error.rows] == [6]
    assert words in error.rows[0][1]
    with Reader(postgres.url, pipeline) as reader:
        assert len(reader.sink_rows("out")) == 10


def test_a_lost_reply_is_unknown_and_committing_again_resolves_it(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await store.acquire([first])
        assert await store.commit([LogWrite(first, owned[first], Seq(1), 0, b"x")])
        write = LogWrite(first, owned[first], Seq(2), 0, b"x")
        with psycopg.connect(postgres.url, autocommit=True) as killer:
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND backend_type = 'client backend'"
            )
        with pytest.raises(CommitUnknown):
            await store.commit([write])
        assert await store.commit([write]) == {(first, 2)}
        assert await store.commit([write]) == {(first, 2)}
        # The fold's connection is dead too; a fold may be repeated, so the store does that itself.
        assert await store.fold(FoldWrite(first, owned[first], Seq(2), [image(["a"])] * 2))
        assert [rows.key for rows in await store.load(first, ["a"])] == ["a"]
        await store.close()

    asyncio.run(main())


def test_a_zombie_in_a_transaction_loses_its_locks(
    postgres: EmbeddedPostgres, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "STORE_IDLE_TRANSACTION_TIMEOUT_MS", 300)

    async def main() -> None:
        zombie, successor = PostgresStore(postgres.url, pipeline), PostgresStore(postgres.url, pipeline)
        first = (await zombie.open_pipeline(shape(pipeline))).intervals[0].id
        owned = await zombie.acquire([first])
        stuck = asyncio.Event()

        async def freeze(connection: Connection) -> None:
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM ownership WHERE interval_id = %s FOR SHARE", (first,))
                stuck.set()
                await asyncio.sleep(1)
                await connection.execute("SELECT 1")

        frozen = asyncio.create_task(zombie._groups.run(freeze, repeatable=False))
        await stuck.wait()
        taken = await asyncio.wait_for(successor.acquire([first]), 5)
        assert taken[first] > owned[first]
        with pytest.raises(CommitUnknown):
            await frozen
        assert await zombie.commit([LogWrite(first, owned[first], Seq(1), 0, b"x")]) == set()
        await zombie.close()
        await successor.close()

    asyncio.run(main())


async def commit_for_ever(store: PostgresStore, write: LogWrite) -> None:
    """Until it fails: a session's own process may outlive the killed server by a moment."""
    while True:
        await store.commit([write])


def test_a_call_waits_for_a_server_that_restarts() -> None:
    async def main(server: EmbeddedPostgres) -> None:
        name = fresh_name()
        store = PostgresStore(server.url, name)
        first = (await store.open_pipeline(shape(name))).intervals[0].id
        owned = await store.acquire([first])
        write = LogWrite(first, owned[first], Seq(1), 0, encode_checkpoint(image(["a"])))
        assert await store.commit([write])
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(CommitUnknown):
            await commit_for_ever(store, write)
        restart = asyncio.create_task(asyncio.to_thread(server.ensure_running))
        assert await store.commit([write]) == {(first, 1)}
        await restart
        taken = (await store.acquire([first]))[first]
        assert taken > owned[first]
        assert await store.recover(first, taken) is not None
        assert [rows.key for rows in await store.load(first, ["a"])] == ["a"]
        await store.close()

    with short_directory() as directory, EmbeddedPostgres(directory) as server:
        asyncio.run(main(server))


# Volume


def test_one_shot_keys_leave_no_rows_and_recovery_does_not_read_keys(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        for seq in range(1, 21, 2):
            keys = [f"a{seq}-{n}" for n in range(2_000)]
            kept, gone = image(keys), image([])
            kept.ids[:] = [
                Ids(
                    SubscriptionId(1),
                    ProducerId(5),
                    SequenceNumber(seq * 2_000),
                    sequence_numbers(range(seq * 2_000, seq * 2_000 + 2_000)),
                )
            ]
            kept.produced[:] = [
                Produced(SubscriptionId(1), ProducerId(sequencer), SequenceNumber(seq * 10), ["k"], [b"v"], [1])
            ]
            gone.forgotten[:] = keys
            for number, one in ((seq, kept), (seq + 1, gone)):
                await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
                assert await store.fold(FoldWrite(first, sequencer, Seq(number), [one]))
        tables = postgres_tables(postgres.url, pipeline)
        assert tables["key_state"] == []
        assert tables["checkpoint_log"] == []
        assert len(tables["delivered"]) == 2_000
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute(f'SELECT count(*) FROM "{pipeline}".delivered').fetchone() == (1,)
        sequencer = (await store.acquire([first]))[first]
        recovered = await store.recover(first, sequencer)
        assert recovered is not None
        assert [len(bundle.keys) for bundle in recovered.productions] == [10]
        await store.close()

    asyncio.run(main())


def test_recovery_does_not_read_ids_and_one_is_found_among_a_million(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        for number in range(1, 26):  # 40,000 ids a fold, every third of the producer's
            one = image([])
            one.ids[:] = [
                Ids(
                    SubscriptionId(1),
                    ProducerId(5),
                    SequenceNumber(0),
                    sequence_numbers(range(number * 120_000, (number + 1) * 120_000, 3)),
                )
            ]
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
            assert await store.fold(FoldWrite(first, sequencer, Seq(number), [one]))
        sequencer = (await store.acquire([first]))[first]
        recovered = await store.recover(first, sequencer)
        assert recovered is not None
        assert recovered.ids == [
            Delivered(SubscriptionId(1), ProducerId(5), SequenceNumber(0), SequenceNumber(26 * 120_000 - 3))
        ]
        asked = [119_997, 120_000, 600_000, 600_001, 26 * 120_000 - 3]
        assert await store.find_ids(first, SubscriptionId(1), ProducerId(5), sequence_numbers(asked)) == {
            120_000,
            600_000,
            26 * 120_000 - 3,
        }
        assert await store.find_ids(first, SubscriptionId(1), ProducerId(6), sequence_numbers(asked)) == set()
        await store.close()

    asyncio.run(main())


def test_a_key_that_is_stored_is_not_inserted_as_new(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """And then nothing of that fold is applied: a recovery, which trusts nobody, folds the log."""

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        images = [image(["a"]), image(["a", "b"])]
        for number, one in enumerate(images, 1):
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), images[:1], (), {"a"}))
        with pytest.raises(StoreError, match="duplicate key"):
            await store.fold(FoldWrite(first, sequencer, Seq(2), images[1:], (), {"a", "b"}))
        assert [row.key for row in await store.load(first, ["a", "b"])] == ["a"]
        assert await store.recover(first, sequencer) is not None
        assert [row.key for row in await store.load(first, ["a", "b"])] == ["a", "b"]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["state", "a timer", "state in the log", "state that is gone"])
def test_a_store_is_blank_until_a_key_has_something(postgres: EmbeddedPostgres, pipeline: str, what: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first, other = [row.id for row in (await store.open_pipeline(shape(pipeline))).intervals]
        for number in range(2):  # nothing of keys in the log and in the tables
            sequencer = (await store.acquire([first]))[first]
            recovered = await store.recover(first, sequencer)
            assert recovered is not None
            assert recovered.blank
            nothing = image([])
            nothing.ids[:] = [Ids(SubscriptionId(1), ProducerId(5), SequenceNumber(0), sequence_numbers([number]))]
            await store.commit([LogWrite(first, sequencer, Seq(1), 0, encode_checkpoint(nothing))])
        one, gone = image(["a"] if what != "a timer" else []), image([])
        if what == "a timer":
            one.timers.add("a", "", "wall", 7)
        gone.forgotten[:] = ["a"]
        for number, each in enumerate([one, gone] if what == "state that is gone" else [one], 2):
            await store.commit([LogWrite(first, sequencer, Seq(number), 0, encode_checkpoint(each))])
            if what != "state in the log":
                images = [nothing, each] if number == 2 else [each]
                assert await store.fold(FoldWrite(first, sequencer, Seq(number), images))
        for interval in (first, other):
            recovered = await store.recover(interval, (await store.acquire([interval]))[interval])
            assert recovered is not None
            assert not recovered.blank
        await store.close()

    asyncio.run(main())


def test_a_store_of_the_first_format_gets_what_came_later(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """There a channel whose sender had not advertised a frontier had ids, but no frontier; tables came, and an index."""
    tables = ("opaque_bucket", "opaque_id", "suspicion", "cluster", "cluster_leader", "cluster_member", "lease")
    later = dict.fromkeys((*tables, "interval_owner", "source_owner", "map_order", "hot_key"), "TABLE")
    later |= {"timer_by_time": "INDEX", "incarnation": "SEQUENCE"}

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        one = image([])
        one.ids[:] = [
            Ids(SubscriptionId(1), ProducerId(5), SequenceNumber(0), sequence_numbers([3, 4])),
            Ids(SubscriptionId(1), ProducerId(6), SequenceNumber(2), sequence_numbers([7])),
        ]
        await store.commit([LogWrite(first, sequencer, Seq(1), 0, encode_checkpoint(one))])
        assert await store.fold(FoldWrite(first, sequencer, Seq(1), [one]))
        await store.close()
        with psycopg.connect(postgres.url) as connection:
            connection.execute(f'DELETE FROM "{pipeline}".delivered_frontier WHERE frontier = 0')
            connection.execute(f'DELETE FROM "{pipeline}".migration WHERE version > 1')
            for name, kind in later.items():
                connection.execute(f'DROP {kind} "{pipeline}".{name}')
        store = PostgresStore(postgres.url, pipeline)
        await store.open_pipeline(shape(pipeline))
        sequencer = (await store.acquire([first]))[first]
        recovered = await store.recover(first, sequencer)
        assert recovered is not None
        assert recovered.ids == [
            Delivered(SubscriptionId(1), ProducerId(5), SequenceNumber(0), SequenceNumber(4)),
            Delivered(SubscriptionId(1), ProducerId(6), SequenceNumber(2), SequenceNumber(7)),
        ]
        assert (await store.join("w", "worker", "h:1", 1_000_000, b"key")).incarnation == 1
        assert [row.id for row in (await store.cluster_map()).intervals] == [1, 2]
        await store.close()
        with psycopg.connect(postgres.url) as connection:
            for name in later:
                found = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (f'"{pipeline}".{name}',)).fetchone()
                assert found == (True,), name

    asyncio.run(main())


def test_a_fold_is_fast_enough_to_keep_up(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """A floor far below the measured 100,000 rows/s: it fails when somebody folds row by row."""

    async def main() -> float:
        store = PostgresStore(postgres.url, pipeline)
        first = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        sequencer = (await store.acquire([first]))[first]
        best = 0.0
        for seq in range(1, 6):
            one = image([f"a{seq}-{n}" for n in range(5_000)])
            await store.commit([LogWrite(first, sequencer, Seq(seq), 0, encode_checkpoint(one))])
            started = time.perf_counter()
            assert await store.fold(FoldWrite(first, sequencer, Seq(seq), [one]))
            best = max(best, 5_000 / (time.perf_counter() - started))
        await store.close()
        return best

    assert asyncio.run(main()) > 20_000


def test_a_call_that_is_cancelled_while_it_connects_leaves_no_connection_behind(postgres: EmbeddedPostgres) -> None:
    """A run that fails cancels whatever is under way, the first use of a connection too."""

    async def main() -> None:
        for step in range(16):
            store = PostgresStore(postgres.url, fresh_name("cancelled"))
            task = asyncio.ensure_future(store.watermarks())
            for _ in range(step):  # one turn of the event loop at a time: no await is left out
                await asyncio.sleep(0.0005)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await store.close()

    asyncio.run(main())
    gc.collect()  # where psycopg warns of a connection that nobody closed
