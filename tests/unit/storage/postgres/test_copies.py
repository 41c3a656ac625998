"""A savepoint is one moment of the store.  What is put back goes on from there, exactly, and nobody from before writes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from millwheel import Checkpoints, Snapshots
from millwheel.cluster import HotKey, MapOrder
from millwheel.core.source import injector
from millwheel.errors import IncompatibleStore, StoreError, StoreInUse, WiringError
from millwheel.ids import IntervalId
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.copies import Savepoints
from millwheel_storage.postgres.reader import reset
from millwheel_storage.schema.shape_checks import STORE_FORMAT
from millwheel_storage.statements import joining, keeping, opening, placing
from tests.integration.places import Place
from tests.unit.runtime.drive import expected_counts, run_to_end, text_lines, word_count

pytestmark = pytest.mark.postgres

ROWS = text_lines(4_000, seed=4)
NOT_OF_THE_MOMENT = {"ownership", "interval_owner", "source_owner", "cluster", "map_order"}
WAITING = """
SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND l.pid <> pg_backend_pid() AND EXISTS (SELECT FROM pg_locks w WHERE w.pid = l.pid AND NOT w.granted)
"""
"""Whether anybody who uses the tables of a schema waits for a lock."""
DURABILITIES = {"checkpoints": Checkpoints(), "snapshots": Snapshots(every_ms=20)}


class Home(Place):
    """Where a word count lives."""

    @property
    def savepoints(self) -> Savepoints:
        return Savepoints(self.url, self.name)

    def check(self, count: int = len(ROWS)) -> None:
        assert (self.cells("Split"), self.cells("Count")) == expected_counts(ROWS[:count])

    def stored(self) -> dict[str, Any]:
        return {table: rows for table, rows in self.tables().items() if table not in NOT_OF_THE_MOMENT}

    def asked(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(statement.encode()).fetchall()

    def say(self, savepoint: str, text: str) -> None:
        """Let a savepoint say something else of itself."""
        schema = sql.Identifier(f"{self.name}@{savepoint}")
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("COMMENT ON SCHEMA {} IS {}").format(schema, sql.Literal(text)))

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(sql.Identifier(self.name)))


@pytest.fixture
def home(postgres: EmbeddedPostgres, pipeline: str) -> Home:
    return Home(postgres.url, pipeline)


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.parametrize("durability", DURABILITIES.values(), ids=DURABILITIES)
def test_what_is_put_back_is_what_was_there_and_goes_on_to_the_same_end(
    home: Home, durability: Checkpoints | Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 20)
    few = {"work_limit_records": 20}
    taken: list[dict[str, Any]] = []

    def take() -> None:
        while True:
            with contextlib.suppress(StoreError, psycopg.Error):  # until there are tables
                if home.cells("Count"):
                    break
        home.savepoints.create("half")

    taker = threading.Thread(target=take)
    taker.start()
    run_to_end(word_count(home.name, ROWS, few, few, durability), home.store())
    taker.join()
    home.check()
    at_the_end = home.stored()
    for _ in range(2):  # a savepoint stays when it is put back
        home.savepoints.restore("half")
        taken.append(home.stored())
        assert home.cells("Count"), "it was made when there was something"
        run_to_end(word_count(home.name, ROWS, few, few, durability), home.store())
        home.check()
        assert home.stored()["key_state"] == at_the_end["key_state"]
    assert taken[0] == taken[1] != at_the_end


def test_a_process_that_writes_is_fenced_by_a_restore(home: Home) -> None:
    """Also one that owned the intervals when the savepoint was made, so that the copy has its sequencers."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())

    async def scenario() -> None:
        store = home.store()
        opened = await store.open_pipeline(word_count(home.name, ROWS[:50]).graph().shape())
        intervals = [row.id for row in opened.intervals]
        owned = await store.acquire(intervals)
        await asyncio.to_thread(home.savepoints.create, "early")
        await asyncio.to_thread(home.savepoints.restore, "early")
        for interval in intervals:
            assert await store.recover(interval, owned[interval]) is None
        await store.close()

    asyncio.run(scenario())
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.check(50)


def test_what_processes_have_agreed_on_is_not_put_back(home: Home) -> None:
    """It is of those who run now.  Whoever has opened the store before the restore opens it anew, and orders are over."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())

    async def scenario() -> None:
        store = home.store()
        await store.open_pipeline(word_count(home.name, ROWS[:50]).graph().shape())
        member = (await store.join("w", "worker", "w:1", 60_000_000, b"w")).incarnation
        await store.note_hot_keys(member, [HotKey(IntervalId(1), "early", 500)])
        assert await store.order(MapOrder("move", (IntervalId(1),), to="w")) == 1
        home.savepoints.create("early")
        await store.note_hot_keys(member, [HotKey(IntervalId(1), "late", 500)])
        home.execute("UPDATE {}.lease SET expires = '-infinity'")
        before = (await store.cluster_map()).version
        home.savepoints.restore("early")
        assert await store.orders() == []
        agreed = await store.cluster_map()
        assert agreed.version > before, "or a leader would decide on what it has read before"
        assert (agreed.intervals, agreed.sources) == ((), ()), "whoever opens it places all of it anew"
        assert [key.key for key in await store.hot_keys()] == ["late"]
        with pytest.raises(IncompatibleStore, match="opened in another version meanwhile"):
            await store.join("v", "worker", "v:1", 60_000_000, b"v")
        await store.close()

    asyncio.run(scenario())
    tables = [
        {name for (name,) in home.asked(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")}
        for schema in (home.name, f"{home.name}@early")
    ]
    assert tables[0] - tables[1] == {
        "cluster", "cluster_leader", "cluster_member", "hot_key", "interval_owner", "lease", "map_order", "migration",
        "source_owner", "standstill",
    }  # fmt: skip


def test_rows_of_another_table_that_has_come_since_are_gone(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.savepoints.create("early")
    home.execute("CREATE TABLE {}.later (n bigint PRIMARY KEY)")
    home.execute("INSERT INTO {}.later VALUES (1)")
    home.savepoints.restore("early")
    with psycopg.connect(home.url) as connection:
        query = sql.SQL("SELECT count(*) FROM {}.later").format(sql.Identifier(home.name))
        assert connection.execute(query).fetchone() == (0,)


def test_columns_that_postgres_fills_are_filled_again(home: Home) -> None:
    """A user may add such columns to a sink table, and take others away.  Nobody can write into those that are computed."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.execute(
        "CREATE TABLE {}.mine (id bigint GENERATED ALWAYS AS IDENTITY, n bigint PRIMARY KEY, "
        "twice bigint GENERATED ALWAYS AS (2 * n) STORED, gone text)"
    )
    home.execute("ALTER TABLE {}.mine DROP COLUMN gone")
    home.execute("INSERT INTO {}.mine (n) VALUES (1), (3)")
    home.savepoints.create("early")
    home.execute("DELETE FROM {}.mine WHERE n = 1")
    home.savepoints.restore("early")
    with psycopg.connect(home.url) as connection:
        query = sql.SQL("SELECT id, n, twice FROM {}.mine ORDER BY n").format(sql.Identifier(home.name))
        assert connection.execute(query).fetchall() == [(1, 1, 2), (2, 3, 6)]
    home.check(50)


def test_savepoints_are_listed_and_dropped(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    assert home.savepoints.found() == []
    first, second = home.savepoints.create("first"), home.savepoints.create("second")
    assert home.savepoints.found() == [first, second]
    assert first.made_us < second.made_us
    assert first.size_bytes > 0
    other = Savepoints(home.url, home.name.replace("_", "-"))  # two names may be one schema
    assert other.found() == []
    with pytest.raises(StoreError, match="there is no savepoint 'first'"):
        other.drop("first")
    with pytest.raises(StoreError, match=f"is that of pipeline '{home.name}', not of '{home.name.replace('_', '-')}'"):
        other.create("third")
    home.savepoints.drop("first")
    assert [one.name for one in home.savepoints.found()] == ["second"]
    home.check(50)


def test_wrong_names_are_refused_with_what_there_is(home: Home) -> None:
    with pytest.raises(StoreError, match=f"there is no pipeline '{home.name}' in database .*; run it first"):
        home.savepoints.create("one")
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    with pytest.raises(
        StoreError, match=r"there is no savepoint 'two' of .*; make one with millwheel savepoint create"
    ):
        home.savepoints.restore("two")
    home.savepoints.create("one")
    with pytest.raises(StoreError, match=r"there is a savepoint 'one' .* already; drop it, or choose another"):
        home.savepoints.create("one")
    for call in (home.savepoints.restore, home.savepoints.drop):
        with pytest.raises(StoreError, match=r"there is no savepoint 'two' of .*; there are \['one'\]"):
            call("two")
    with pytest.raises(WiringError, match="savepoint 'One': use up to 20 of a-z"):
        home.savepoints.create("One")


def test_a_cluster_that_lives_keeps_its_store(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())

    async def join() -> None:
        store = home.store()
        await store.join("w", "worker", "w:1", 60_000_000, b"w")
        await store.close()

    asyncio.run(join())
    home.savepoints.create("alive")
    with pytest.raises(StoreInUse, match="worker 'w'"):
        home.savepoints.restore("alive")
    home.check(50)


@pytest.mark.parametrize("what", ["restore", "reset"])
def test_a_worker_that_is_just_joining_keeps_its_store(home: Home, what: str) -> None:
    """It has not committed when the members are looked at, and lives when the tables are locked."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.savepoints.create("early")
    given = {"key": b"w", "name": "w", "role": "worker", "address": "w:1", "lease_us": 60_000_000}
    with ThreadPoolExecutor() as pool, psycopg.connect(home.url) as joining_:
        joining_.execute("SELECT set_config('search_path', %s, true)", (f'"{home.name}"',))
        joining_.execute(placing.HOLD_SHAPE)
        joining_.execute(joining.JOIN, given)
        call = partial(home.savepoints.restore, "early") if what == "restore" else partial(reset, home.url, home.name)
        other = pool.submit(call)
        while joining_.execute(WAITING, (home.name,)).fetchone() is None:
            assert not other.done()
        joining_.commit()
        with pytest.raises(StoreInUse, match="worker 'w'"):
            other.result(timeout=30)
    home.check(50)


def test_a_savepoint_is_of_one_moment_whatever_is_written_while_it_is_made(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it could have what a fold has written, and of the log what the fold has taken from it."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    copied: list[str] = []

    def copy_late(table: str, schema: str, into: str) -> sql.Composed:
        copied.append(table)
        home.execute("INSERT INTO {}.watermark VALUES ('late " + table + "', 1)")
        return copy(table, schema, into)

    copy = keeping.copy
    monkeypatch.setattr(keeping, "copy", copy_late)
    home.savepoints.create("early")
    assert "watermark" in copied[1:]
    assert home.asked(f"SELECT FROM {home.name}.watermark WHERE name LIKE 'late%'") == [()] * len(copied)
    assert home.asked(f"""SELECT name FROM "{home.name}@early".watermark WHERE name LIKE 'late%'""") == []


def test_of_two_savepoints_with_one_name_that_are_made_at_once_the_second_is_refused(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    with ThreadPoolExecutor() as pool, psycopg.connect(home.url) as first:
        first.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(f"{home.name}@one")))
        second = pool.submit(home.savepoints.create, "one")
        while first.execute(WAITING, (home.name,)).fetchone() is None:
            assert not second.done()
        first.commit()
        with pytest.raises(StoreError, match=f"another process has just made savepoint '{home.name}@one'"):
            second.result(timeout=30)


def test_a_table_that_comes_while_a_savepoint_is_made_is_not_left_out(home: Home) -> None:
    """A new version adds it, and keeps the tables meanwhile."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    with ThreadPoolExecutor() as pool, psycopg.connect(home.url) as adder:
        adder.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(home.name, "timer")))
        adder.execute(sql.SQL("CREATE TABLE {} (n bigint)").format(sql.Identifier(home.name, "late")))
        other = pool.submit(home.savepoints.create, "early")
        while adder.execute(WAITING, (home.name,)).fetchone() is None:
            assert not other.done()
        adder.commit()
        with pytest.raises(StoreError, match="have just changed; make the savepoint again"):
            other.result(timeout=30)
    assert home.savepoints.found() == []


@pytest.mark.parametrize("when", ["before it has the schema", "before it has the tables"])
def test_a_savepoint_that_is_dropped_while_it_is_put_back_takes_nothing_along(home: Home, when: str) -> None:
    """It was found when the restore began.  Its tables are gone when they are read, and those of the pipeline stay."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.savepoints.create("early")
    with ThreadPoolExecutor() as pool, psycopg.connect(home.url) as holder:
        if when == "before it has the schema":
            holder.execute(opening.LOCK_SCHEMA, (home.name,))
        else:
            holder.execute(sql.SQL("LOCK TABLE {}").format(sql.Identifier(home.name, "cluster")))
        other = pool.submit(home.savepoints.restore, "early")
        while holder.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is None:
            assert not other.done()
        home.savepoints.drop("early")
        holder.commit()
        with pytest.raises(StoreError, match="savepoint 'early' was dropped meanwhile; nothing was changed"):
            other.result(timeout=30)
    home.check(50)


def test_a_savepoint_is_not_dropped_while_it_is_put_back(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.savepoints.create("early")
    with ThreadPoolExecutor() as pool, psycopg.connect(home.url) as holder:
        holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(sql.Identifier(home.name, "timer")))
        restored = pool.submit(home.savepoints.restore, "early")
        while holder.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is None:
            assert not restored.done()
        dropped = pool.submit(home.savepoints.drop, "early")
        while len(holder.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall()) < 2:
            assert not dropped.done()
        holder.commit()
        restored.result(timeout=30)
        dropped.result(timeout=30)
    home.check(50)
    assert home.savepoints.found() == []


def test_whoever_keeps_the_tables_is_named_and_not_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.savepoints.create("early")
    monkeypatch.setattr(keeping, "ONE_AT_A_TIME", "SET LOCAL lock_timeout = '50ms'")
    for kept, mode in (("cluster", "ACCESS EXCLUSIVE"), ("timer", "ACCESS EXCLUSIVE"), ("timer", "ACCESS SHARE")):
        with psycopg.connect(home.url) as holder:
            holder.execute(keeping.lock(home.name, [kept], mode))
            with pytest.raises(StoreError, match=f"somebody uses the tables of '{home.name}': stop what runs"):
                home.savepoints.restore("early")


def test_what_does_not_fit_is_refused_and_nothing_is_changed(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.execute("CREATE TABLE {}.mine (n bigint PRIMARY KEY, m bigint)")
    home.savepoints.create("full")
    ((said,),) = home.asked(f"""SELECT obj_description('"{home.name}@full"'::regnamespace)""")
    for other in (STORE_FORMAT - 1, STORE_FORMAT + 1):
        home.say("full", said.replace(f'"store_format":{STORE_FORMAT}', f'"store_format":{other}'))
        with pytest.raises(IncompatibleStore, match=f"savepoint 'full' has format {other} and the store has"):
            home.savepoints.restore("full")
    home.say("full", said)
    home.execute("ALTER TABLE {}.mine DROP COLUMN m")
    with pytest.raises(
        StoreError, match=r"rows for table 'mine', which has no columns \['m'\] any more: run the version"
    ):
        home.savepoints.restore("full")
    home.execute("DROP TABLE {}.mine")
    with pytest.raises(StoreError, match="rows for table 'mine', which is not there any more: run the version"):
        home.savepoints.restore("full")
    home.execute("INSERT INTO {}.migration (version) VALUES (99)")
    with pytest.raises(IncompatibleStore, match="the store has format 99, this version of millwheel knows"):
        home.savepoints.restore("full")
    home.execute("DELETE FROM {}.migration WHERE version = 99")  # readers would refuse it as well
    home.execute(f"DELETE FROM {{}}.migration WHERE version = {STORE_FORMAT}")
    with pytest.raises(IncompatibleStore, match=f"the store has format {STORE_FORMAT - 1}, .*: run the pipeline once"):
        home.savepoints.create("earlier")
    home.execute(f"INSERT INTO {{}}.migration (version) VALUES ({STORE_FORMAT})")
    home.check(50)


def test_a_schema_that_is_not_ours_is_not_touched(home: Home) -> None:
    home.execute("CREATE SCHEMA {}")
    home.execute("CREATE TABLE {}.theirs (n bigint)")
    with pytest.raises(StoreError, match="is not a millwheel pipeline's; it was not touched"):
        home.savepoints.create("one")
    home.execute("DROP SCHEMA {} CASCADE")


def test_a_savepoint_outlives_a_reset_and_is_put_back_when_the_pipeline_has_run_again(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS), home.store())
    home.savepoints.create("whole")
    reset(home.url, home.name)
    run_to_end(word_count(home.name, ROWS[:5]), home.store())
    home.savepoints.restore("whole")
    home.check()
    again = run_to_end(word_count(home.name, ROWS), home.store())
    assert again.records == 0


def test_a_partitioned_table_is_put_back_once(home: Home) -> None:
    """Its rows lie in its partitions.  Some of these may be in another schema, or may have come since."""
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.execute("CREATE TABLE {}.mine (n bigint PRIMARY KEY, said text) PARTITION BY RANGE (n)")
    home.execute("CREATE TABLE {0}.low PARTITION OF {0}.mine FOR VALUES FROM (0) TO (10)")
    home.execute("INSERT INTO {}.mine VALUES (1, 'one'), (7, 'seven')")
    home.savepoints.create("early")
    home.execute("CREATE TABLE {0}.high PARTITION OF {0}.mine FOR VALUES FROM (10) TO (20)")
    home.execute("DELETE FROM {}.mine WHERE n = 1")
    home.execute("INSERT INTO {}.mine VALUES (2, 'two'), (12, 'twelve')")
    home.savepoints.restore("early")
    assert home.asked(f"SELECT n, said FROM {home.name}.mine ORDER BY n") == [(1, "one"), (7, "seven")]
    home.check(50)


def test_after_a_reset_nothing_is_lost_for_a_number_that_a_savepoint_has(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new schema counts from 1 again, so a producer had the number of one whose records were delivered."""
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 20)
    few = {"work_limit_records": 20}

    async def begin() -> None:
        store = home.store()
        opened = await store.open_pipeline(word_count(home.name, ROWS, few, few).graph().shape())
        for _ in range(7):  # so many numbers are given out by the run, the restore and the next run below
            await store.acquire([opened.intervals[0].id])
        await store.close()

    def take() -> None:
        while not home.cells("Count"):
            pass
        home.savepoints.create("half")

    asyncio.run(begin())
    taker = threading.Thread(target=take)
    taker.start()
    run_to_end(word_count(home.name, ROWS, few, few), home.store())
    taker.join()
    reset(home.url, home.name)
    run_to_end(word_count(home.name, ROWS[:5], few, few), home.store())
    home.savepoints.restore("half")
    run_to_end(word_count(home.name, ROWS, few, few), home.store())
    home.check()


NUMBERS = {
    "sequencer": {
        "ownership": "sequencer", "checkpoint_log": "sequencer", "redrive": "sequencer", "production": "producer",
        "delivered": "producer", "delivered_frontier": "producer", "quarantine": "producer", "source": "producer",
        "interval": "follows",
    },
    "interval_number": {"interval": "id"},
    "opaque_bucket_number_seq": {"opaque_bucket": "number"},
    "quarantine_place_seq": {"quarantine": "place"},
    "mine_id_seq": {"mine": "id"},
}  # fmt: skip


def test_a_sequence_goes_on_behind_all_that_is_put_back(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    home.execute("CREATE TABLE {}.mine (id serial PRIMARY KEY, n bigint)")
    for row in (
        "checkpoint_log VALUES (999, 1, 1, 0, '')", "redrive VALUES (1, 'k')", "production VALUES (1, 1, 1, 1, 'k', '', 1)",
        "delivered VALUES (1, 1, 1, 1, 1, '')", "delivered_frontier VALUES (1, 1, 999, 1)", "mine VALUES (1, 1)",
        "opaque_bucket VALUES (DEFAULT, 1, 1, 1, 0)", "quarantine VALUES (DEFAULT, 1, 'k', 1, 1, 1, '', 1, '', '', '')",
    ):  # fmt: skip
        home.execute("INSERT INTO {}." + row + " ON CONFLICT DO NOTHING")
    for table, column in (("opaque_bucket", "number"), ("quarantine", "place")):
        home.execute(f"ALTER TABLE {{}}.{table} ALTER {column} SET GENERATED BY DEFAULT")
    numbered = home.asked(
        "SELECT table_name, column_name FROM information_schema.columns "
        f"WHERE table_schema = '{home.name}' AND column_name IN ('sequencer', 'producer')"
    )
    assert {*numbered} | {("interval", "follows")} == {*NUMBERS["sequencer"].items()}
    home.savepoints.create("base")
    for sequence, table, column in ((name, *of) for name, columns in NUMBERS.items() for of in columns.items()):
        large = "'{{3, 5000}}'" if column == "follows" else f"5000 + {column}"
        home.execute(f"UPDATE {{}}.{table} SET {column} = {large}")
        home.savepoints.create("large")
        for again in ("large", "base"):
            home.execute(f"ALTER SEQUENCE {{}}.{sequence} RESTART")
            home.savepoints.restore(again)
            ((following,),) = home.asked(f"SELECT nextval('{home.name}.{sequence}')")
            assert (following > 5_000) is (again == "large"), (sequence, table)
        home.savepoints.drop("large")


def test_a_role_that_may_make_no_schema_is_told_that_a_savepoint_is_one(home: Home) -> None:
    run_to_end(word_count(home.name, ROWS[:50]), home.store())
    with psycopg.connect(home.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE keeper LOGIN")
    home.execute("GRANT USAGE ON SCHEMA {} TO keeper")
    home.execute("GRANT ALL ON ALL TABLES IN SCHEMA {} TO keeper")
    try:
        with pytest.raises(
            StoreError, match="a savepoint is a schema, and this role may make none: permission"
        ) as told:
            Savepoints(make_conninfo(home.url, user="keeper"), home.name).create("one")
        assert type(told.value) is StoreError, "to ask again, as of a store that cannot be reached, would be in vain"
        assert home.savepoints.found() == []
    finally:
        with psycopg.connect(home.url, autocommit=True) as connection:
            connection.execute("DROP OWNED BY keeper")
            connection.execute("DROP ROLE keeper")
