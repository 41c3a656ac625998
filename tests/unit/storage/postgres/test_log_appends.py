"""Commits with sink rows: what arrives, which rows the database refuses, and a reply that is lost."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from itertools import count, permutations, product
from typing import Any
from uuid import UUID

import msgspec
import psycopg
import pytest

from millwheel.bundles import (
    LogWrite,
    SinkRow,
)
from millwheel.errors import (
    CommitUnknown,
    RowRefused,
)
from millwheel.ids import Seq, Sequencer
from millwheel.ports import FoldWrite, SinkTable
from millwheel.rows import check_row
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.testing import postgres_tables
from tests.unit.storage.samples import image, row, shape

pytestmark = pytest.mark.postgres


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


@pytest.mark.parametrize("together", [True, False], ids=["in one group", "one by one"])
def test_a_row_is_the_last_that_was_written_also_where_it_has_no_value(
    postgres: EmbeddedPostgres, pipeline: str, together: bool
) -> None:
    values: dict[str, list[Any]] = {
        "n": [1, None, 2], "x": [0.5, None, 1.5], "ok": [True, None, False], "j": [{"a": 1}, None, []],
        "at": ["2026-01-02T03:04:05+00:00", None, "2026-01-02T03:04:06+00:00"],
    }  # fmt: skip
    written = {
        f"{column} {before} {after}": ({column: before}, {column: after} if named else {})
        for column, found in values.items()
        for before, after in permutations(found, 2)
        for named in ((True, False) if after is None else (True,))
    }

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        one = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        owned = (await store.acquire([one]))[one]
        writes = [
            LogWrite(one, owned, Seq(seq + 1), 0, b"x", tuple(row(k=key, **both[seq]) for key, both in written.items()))
            for seq in range(2)
        ]
        for group in [writes] if together else [[write] for write in writes]:
            assert len(await store.commit(group)) == len(group)
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        found = {one["k"]: one for one in reader.sink_rows("out")}
    for key, (_, last) in written.items():
        kept = {column: found[key][column] for column in values}
        if kept["at"] is not None:
            kept["at"] = kept["at"].isoformat()
        assert kept == {**dict.fromkeys(values), **last}, key


def test_a_group_of_checkpoints_is_planned_once(postgres: EmbeddedPostgres, pipeline: str) -> None:
    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        intervals = [known.id for known in (await store.open_pipeline(shape(pipeline))).intervals][:2]
        owned = await store.acquire(intervals)
        for seq in range(1, 13):  # Postgres tries five plans before it may keep one
            rows = (row(k="a", n=seq),) if seq % 2 else ()
            await store.commit([LogWrite(one, owned[one], Seq(seq), 0, b"x", rows) for one in intervals])

        async def plans(connection: psycopg.AsyncConnection) -> tuple[int, int]:
            kept = "SELECT count(*), sum(custom_plans)::bigint FROM pg_prepared_statements WHERE generic_plans > 1"
            (found,) = await (await connection.execute(kept)).fetchall()
            return found

        assert await store._groups.run(plans) == (2, 0)
        await store.close()

    asyncio.run(main())


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


def test_only_a_checkpoint_that_its_group_has_brought_changes_the_sink(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    """Groups of checkpoints that are new, were there before, or are of an owner that was fenced, in every order."""
    groups = [*product(("new", "again", "fenced"), repeat=3)]
    wanted: dict[str, int] = {}

    async def main() -> None:
        store = PostgresStore(postgres.url, pipeline)
        one = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        before, now = (await store.acquire([one]))[one], (await store.acquire([one]))[one]
        seqs = count(1)

        def write(*rows: SinkRow, owner: Sequencer = now) -> LogWrite:
            return LogWrite(one, owner, Seq(next(seqs)), 0, b"x", rows)

        for kinds in groups:
            group = []
            for place, kind in enumerate(kinds):
                put, deleted = f"{kinds} {place} put", f"{kinds} {place} deleted"
                await store.commit([write(row(k=deleted, n=0))])
                group.append(write(row(k=put, n=1), gone(k=deleted), owner=before if kind == "fenced" else now))
                if kind == "again":
                    await store.commit([group[-1]])
                    await store.commit([write(row(k=put, n=2), row(k=deleted, n=2))])
                wanted.update({"new": {put: 1}, "again": {put: 2, deleted: 2}, "fenced": {deleted: 0}}[kind])
            kept = {(one, made.seq) for made, kind in zip(group, kinds, strict=True) if kind != "fenced"}
            assert await store.commit(group) == kept, kinds
        await store.close()

    asyncio.run(main())
    with Reader(postgres.url, pipeline) as reader:
        assert {found["k"]: found["n"] for found in reader.sink_rows("out")} == wanted


@pytest.mark.parametrize("kind", [MemoryStore, PostgresStore])
def test_whoever_is_no_owner_hears_that_nothing_of_it_is_durable(
    postgres: EmbeddedPostgres, pipeline: str, kind: type[MemoryStore] | type[PostgresStore]
) -> None:
    """One checkpoint or several, with sink rows or without: it would let go of what only it has."""
    store = MemoryStore() if kind is MemoryStore else PostgresStore(postgres.url, pipeline)
    groups = [group for size in (1, 2, 3) for group in product((False, True), repeat=size)]

    async def main() -> None:
        one = (await store.open_pipeline(shape(pipeline))).intervals[0].id
        before, now = (await store.acquire([one]))[one], (await store.acquire([one]))[one]
        seqs = count(1)
        for owner, with_rows in product((before, Sequencer(now + 1)), groups):
            group = [
                LogWrite(one, owner, Seq(next(seqs)), 0, b"x", (row(k="a", n=1),) if rows else ()) for rows in with_rows
            ]
            assert await store.commit(group) == set(), (owner, with_rows)
        assert await store.commit([LogWrite(one, now, Seq(next(seqs)), 0, b"x", (row(k="b", n=1),))])
        await store.close()

    asyncio.run(main())
    if isinstance(store, MemoryStore):
        assert ([*store.sinks["out"]], len(store.log)) == ([("b",)], 1)
        return
    with Reader(postgres.url, pipeline) as reader:
        assert [found["k"] for found in reader.sink_rows("out")] == ["b"]
    assert len(postgres_tables(postgres.url, pipeline)["checkpoint_log"]) == 1


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
