"""Change survives: a new version of a pipeline goes on where the old one was, or is refused before the first write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from millwheel import (
    Computation,
    Context,
    DroppedCell,
    JsonCoder,
    ListCell,
    MapCell,
    MsgpackCoder,
    Pipeline,
    Record,
    Stream,
    Table,
    ValueCell,
    subscribe,
)
from millwheel.bundles import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    HoldWrites,
    LogWrite,
    StateWrites,
    TimerWrites,
    encode_checkpoint,
)
from millwheel.committed import Committed, check
from millwheel.errors import IncompatibleStore
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.ports import Opened, PipelineShape, Store
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.memory import MemoryStore
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.testing import postgres_tables

pytestmark = pytest.mark.postgres


class Click(msgspec.Struct):
    user: str
    n: int


class Click2(msgspec.Struct):
    user: str
    n: float
    page: str = "/"


old_clicks = Stream("clicks", MsgpackCoder(Click))
new_clicks = Stream("clicks", MsgpackCoder(Click2))
old_sums = Table("sums", {"user": "text", "n": "bigint"}, ("user",))
new_sums = Table("sums", {"user": "text", "n": "bigint", "pages": "numeric"}, ("user",))


class Old(Computation[Click]):
    cnt = ValueCell(JsonCoder(int), default=0)
    last = ValueCell(MsgpackCoder(Click), default=Click("", 0))
    seen = MapCell(JsonCoder(int))
    unused = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[Click]) -> None:
        self.cnt.set(self.cnt.get() + 1)
        self.last.set(record.value)
        self.seen.set(str(record.value.n), record.value.n)
        self.unused.append("x")
        context.set_timer("later", 10**17, "wall")
        context.upsert(old_sums, {"user": record.key, "n": self.cnt.get()})


class New(Computation[Click2]):
    count = ValueCell(JsonCoder(float | None), default=0, formerly="cnt")
    last = ValueCell(MsgpackCoder(Click2), default=Click2("", 0))
    numbers = MapCell(JsonCoder(float), formerly="seen")
    unused = DroppedCell()

    def ProcessRecord(self, context: Context, record: Record[Click2]) -> None:
        self.count.set((self.count.get() or 0) + 1)
        assert self.last.get().page == "/"
        self.last.set(record.value)
        self.numbers.set(str(record.value.n), record.value.n)
        context.upsert(new_sums, {"user": record.key, "n": int(self.count.get() or 0), "pages": "1.5"})


class Newer(New):
    count = ValueCell(JsonCoder(float | None), default=0)  # the store knows what it was called
    numbers = MapCell(JsonCoder(float))
    cnt = ListCell(JsonCoder(str))
    """Not the one that was called so."""

    def ProcessRecord(self, context: Context, record: Record[Click2]) -> None:
        super().ProcessRecord(context, record)
        self.cnt.append("new")


class Missing(New):
    unused = None  # type: ignore[assignment]


ROWS = [(Click(f"u{n % 7}", n), n) for n in range(1, 50)]
MORE = [(Click2(f"u{n % 7}", n), n) for n in range(1, 64)]


def old(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("rows", lambda: ROWS), into=old_clicks)
    pipeline.add(Old, [subscribe(old_clicks, lambda click: click.user)], name="Counts", split_keys=["u3"])
    pipeline.sink(old_sums)
    return pipeline


def new(name: str, class_: type[Computation[Click2]] = New, **settings: Any) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("more", lambda: MORE[49:]), into=new_clicks)
    settings = {"name": "Totals", "formerly": "Counts", "split_keys": ["u3"], **settings}
    pipeline.add(class_, [subscribe(new_clicks, lambda click: click.user)], **settings)
    pipeline.sink(new_sums)
    return pipeline


def newer(name: str) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(IterableSource("yet-more", lambda: MORE[:7]), into=new_clicks)
    pipeline.add(Newer, [subscribe(new_clicks, lambda click: click.user)], name="Totals", split_keys=["u3"])
    pipeline.sink(new_sums)
    return pipeline


Open = Callable[[], Store]


@pytest.fixture(params=["memory", "postgres"])
def stores(request: pytest.FixtureRequest, pipeline: str) -> Open:
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    url = request.getfixturevalue("postgres").url
    return lambda: PostgresStore(url, pipeline)


def run(pipeline: Pipeline, store: Store) -> None:
    async def main() -> None:
        try:
            await EmbeddedRun(pipeline.graph(), store, pipeline.tables).run()
        finally:
            if isinstance(store, PostgresStore):
                await store.close()

    asyncio.run(main())


def test_a_new_version_goes_on_where_the_old_one_was(stores: Open, pipeline: str, postgres: EmbeddedPostgres) -> None:
    run(old(pipeline), stores())
    run(new(pipeline), stores())
    run(newer(pipeline), stores())
    store = stores()
    if isinstance(store, MemoryStore):
        state, rows = store.key_state["Totals"], [row for _, row in sorted(store.sinks["sums"].items())]
        assert "Counts" not in store.key_state
        counts = {key: float(cells["cnt", ""]) for key, cells in state.items()}
        places = {place for cells in state.values() for place, _ in cells}
        assert places == {"cnt", "last", "seen", "cnt#2"}
        assert set(store.folded.timers["Totals"]) == {f"u{n}" for n in range(7)}
    else:
        with Committed(newer(pipeline), postgres.url) as committed:
            states = dict(committed.states("Totals"))
            assert {key: cells["count"] for key, cells in states.items()} == {f"u{n}": 10.0 for n in range(7)}
            assert {len(cells["numbers"]) for cells in states.values()} == {10}
            assert {tuple(cells["cnt"]) for cells in states.values()} == {("new",)}
            assert not any("unused" in cells for cells in states.values())
            rows = [dict(row) for row in committed.rows("sums")]
        counts = {key: float(cells["count"]) for key, cells in states.items()}
        assert not any(row[2] == "unused" for row in postgres_tables(postgres.url, pipeline)["key_state"])
    assert counts == {f"u{n}": 10.0 for n in range(7)}
    assert [(row["n"], float(row["pages"])) for row in rows] == [(10, 1.5)] * 7


def test_a_cell_that_is_gone_is_refused_with_its_keys_and_nothing_is_written(
    stores: Open, pipeline: str, postgres: EmbeddedPostgres
) -> None:
    run(old(pipeline), stores())
    before = None if isinstance(stores(), MemoryStore) else postgres_tables(postgres.url, pipeline)
    with pytest.raises(
        IncompatibleStore, match=r"cell 'Totals.unused' is not in the code any more, and 7 keys hold it"
    ):
        run(new(pipeline, Missing), stores())
    with pytest.raises(IncompatibleStore, match=r"holds work of computation 'Counts'"):
        run(new(pipeline, formerly=None), stores())
    if before is not None:
        assert postgres_tables(postgres.url, pipeline) == before
        with psycopg.connect(postgres.url) as connection:
            columns = connection.execute(f"SELECT * FROM {pipeline}.sums LIMIT 0").description
            assert columns is not None
            assert [column.name for column in columns] == ["user", "n"]
    run(old(pipeline), stores())


def test_check_tells_all_of_it_and_writes_nothing(pipeline: str, postgres: EmbeddedPostgres) -> None:
    url = postgres.url
    assert not check(old(pipeline), url).exists
    run(old(pipeline), PostgresStore(url, pipeline))
    before = postgres_tables(url, pipeline)
    found = check(new(pipeline), url)
    assert found.refusals == []
    assert found.changes == [
        "computation 'Counts' is now 'Totals'",
        "source 'rows' is left out",
        "source 'more' is new, and feeds what 'rows' fed, which is left out: a row that both read counts twice",
        "cell 'Totals.cnt' is now 'Totals.count'",
        "cell 'Totals.seen' is now 'Totals.numbers'",
        "cell:Totals.count: int became float",
        "cell:Totals.count: may also be None",
        "cell:Totals.last: field 'n': int became float",
        "cell:Totals.last: field 'page' was added, \"/\" where it is missing",
        "cell:Totals.numbers: int became float",
        "stream:clicks: field 'n': int became float",
        "stream:clicks: field 'page' was added, \"/\" where it is missing",
        "cell 'Totals.unused' is dropped, which 7 keys hold",
        "sink table 'sums' gains column 'pages' (numeric), null in its rows",
    ]
    refused = check(new(pipeline, Missing), url)
    assert [line for line in refused.refusals if "7 keys hold it" in line]
    assert postgres_tables(url, pipeline) == before
    run(new(pipeline), PostgresStore(url, pipeline))
    assert check(new(pipeline), url).changes == []


class OwnCoder:
    """Bytes of a user's own; the second version of the code reads less under the same name."""

    fingerprint = "own:1"

    def __init__(self, reads: bytes) -> None:
        self._reads = reads

    def encode(self, value: str) -> bytes:
        return b"a" + value.encode() if value in ("u1", "u2\t") else b"b" + value.encode()

    def decode(self, data: bytes) -> str:
        if data[:1] not in self._reads:
            raise ValueError(f"no {data[:1]!r}")
        return data[1:].decode()


class Own(Computation[Click]):
    last = ValueCell(OwnCoder(b"ab"), default="")
    users = MapCell(OwnCoder(b"ab"))

    def ProcessRecord(self, context: Context, record: Record[Click]) -> None:
        self.last.set(record.key)
        self.users.set(record.key, record.key)


class Reading(Own):
    """Reads less than `Own` has written."""

    last = ValueCell(OwnCoder(b"b"), default="")
    users = MapCell(OwnCoder(b"b"))


class Renamed(Computation[Click]):
    newest = ValueCell(OwnCoder(b"b"), default="", formerly="last")
    users = MapCell(OwnCoder(b"ab"))

    def ProcessRecord(self, context: Context, record: Record[Click]) -> None:
        pass


def own(pipeline_name: str, class_: type[Computation[Click]], **settings: Any) -> Pipeline:
    pipeline = Pipeline(pipeline_name)
    rows = [(Click(user, 1), 1) for user in ("u1", "u2\t", "u3")]
    pipeline.inject(IterableSource("rows", lambda: rows), into=old_clicks)
    pipeline.add(class_, [subscribe(old_clicks, lambda click: click.user)], **settings)
    return pipeline


def test_check_reads_every_value_and_names_what_it_cannot_read(pipeline: str, postgres: EmbeddedPostgres) -> None:
    run(own(pipeline, Own, name="Own"), PostgresStore(postgres.url, pipeline))
    before = postgres_tables(postgres.url, pipeline)
    assert check(own(pipeline, Own, name="Own"), postgres.url).unreadable == []
    found = check(own(pipeline, Reading, name="Own"), postgres.url)
    what = "2 values cannot be read, for example of 'u1', 'u2\\t': ValueError: no b'a'"
    assert (found.changes, found.refusals) == ([], [])
    assert found.unreadable == [f"cell 'Own.{cell}': {what}" for cell in ("last", "users")]
    renamed = check(own(pipeline, Renamed, name="New", formerly="Own"), postgres.url)
    assert renamed.unreadable == [f"cell 'New.newest': {what}"]
    assert postgres_tables(postgres.url, pipeline) == before


class Plain(Computation[Click]):
    last = ValueCell(MsgpackCoder(Click), default=Click("", 0))

    def ProcessRecord(self, context: Context, record: Record[Click]) -> None:
        pass


class Dropping(Plain):
    went = DroppedCell()


class Holding(Plain):
    gone = ListCell(JsonCoder(str))


class HoldingOn(Plain):
    went = ListCell(JsonCoder(str), formerly="gone")


def shape(pipeline_name: str, class_: type[Computation[Click]], **settings: Any) -> PipelineShape:
    pipeline = Pipeline(pipeline_name)
    pipeline.inject(IterableSource("rows", lambda: ROWS), into=old_clicks)
    pipeline.add(class_, [subscribe(old_clicks, lambda click: click.user)], **{"name": "c", **settings})
    return pipeline.graph().shape()


def test_values_that_only_the_log_has_are_counted_and_go_with_the_next_start(stores: Open, pipeline: str) -> None:
    """One key holds the cell in the tables and clears it in the log, one only in the log, one in both.

    The cell has got another name than its place has, and it goes while its computation gets another name, too.
    """

    def image(*rows: tuple[str, str, str, bytes | None]) -> bytes:
        state = StateWrites.of(rows)
        return encode_checkpoint(
            Checkpoint(CHECKPOINT_FORMAT, "", 0, [], [], [], state, TimerWrites(), HoldWrites(), [], [])
        )

    folded = [("cleared", "gone", "e", b"1"), ("both", "gone", "e", b"1"), ("kept", "last", "", b"1")]
    logged = [("cleared", "gone", "e", None), ("both", "gone", "f", b"1"), ("new", "gone", "", b"1")]

    store = stores()

    async def story() -> None:
        async def opened(class_: type[Computation[Click]], **settings: Any) -> Opened:
            return await store.open_pipeline(shape(pipeline, class_, **settings))

        async def taken_over() -> int:
            (sequencer,) = (await store.acquire([IntervalId(1)])).values()
            assert await store.recover(IntervalId(1), sequencer) is not None  # which folds
            return sequencer

        await opened(Holding)
        await store.commit([LogWrite(IntervalId(1), Sequencer(await taken_over()), Seq(1), 0, image(*folded))])
        await store.commit([LogWrite(IntervalId(1), Sequencer(await taken_over()), Seq(1), 0, image(*logged))])
        await opened(HoldingOn)
        with pytest.raises(IncompatibleStore, match=r"'c.went' .* and 2 keys hold it"):
            await opened(Plain)
        await opened(Dropping, name="d", formerly="c")
        with pytest.raises(IncompatibleStore, match=r"'d.went' .* and 2 keys hold it"):  # the log still brings them
            await opened(Plain, name="d")
        await opened(Dropping, name="d")
        await taken_over()
        await opened(Dropping, name="d")
        await opened(Plain, name="d")
        assert (await opened(Holding, name="d")).places == {"d": {"gone": "gone#2"}}
        keys = {row.key: row.cells for row in await store.load(IntervalId(1), ["cleared", "both", "kept", "new"])}
        assert keys == {"kept": {("last", ""): b"1"}}

    async def main() -> None:
        try:
            await story()
        finally:
            if isinstance(store, PostgresStore):
                await store.close()

    asyncio.run(main())
