"""Sink rows that only the database can refuse: the culprit is quarantined, everything else goes on and stays exact."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg import sql

from millwheel import Computation, Context, JsonCoder, ListCell, Pipeline, Record, Stream, Table, Timer, subscribe
from millwheel.core.faults import refused
from millwheel.core.source import injector
from millwheel.errors import Fenced, StoreError
from millwheel.host.progress import Progress
from millwheel.ids import IntervalId, Sequencer
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from millwheel_storage.postgres.reader import Reader
from millwheel_storage.testing import postgres_tables
from tests.unit.runtime.drive import Tap, run_cancelled, run_to_end, run_until, until

pytestmark = pytest.mark.postgres

ROWS = 1_000
KEYS = 23

numbers = Stream("numbers", JsonCoder(int))
passed = Stream("passed", JsonCoder(int))
table = Table("ledger", {"key": "text", "number": "bigint", "place": "bigint"}, ("key", "number"))


def key_of(number: int) -> str:
    return f"key {number % KEYS:02}"


def is_bad(number: int) -> bool:
    return number % 97 == 13


class Ledger(Computation[int]):
    """Lists its numbers, writes a row for each, hands them on; a timer adds the number 100,000 + the last one."""

    seen = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.seen.append(record.value)
        row = {"key": record.key, "number": record.value, "place": len(self.seen)}
        context.upsert(table, row)
        context.produce(passed, record.value)
        if record.value >= ROWS - KEYS:
            context.set_timer("last", record.timestamp)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        number = 100_000 + list(self.seen)[-1]
        self.seen.append(number)
        context.upsert(table, {"key": timer.key, "number": number, "place": len(self.seen)})
        context.produce(passed, number)


class Listen(Computation[int]):
    """Downstream: what arrives, in order."""

    heard = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[int]) -> None:
        self.heard.append(record.value)


class Place:
    """Where one test's pipeline lives."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def store(self) -> PostgresStore:
        return PostgresStore(self.url, self.name)

    def pipeline(self, source: Any = None, **settings: Any) -> Pipeline:
        pipeline = Pipeline(self.name)
        pipeline.inject(source or IterableSource("text", [(i, i) for i in range(ROWS)]), into=numbers)
        pipeline.add(Ledger, [subscribe(numbers, key_of)], [passed], **{"work_limit_records": 60, **settings})
        pipeline.add(Listen, [subscribe(passed, lambda number: key_of(number % 100_000))], split_keys=("key 10",))
        pipeline.sink(table)
        return pipeline

    def prepare(self, *statements: str, **settings: Any) -> None:
        """Make the tables, without running anything, and do `statements` to them."""

        async def make() -> None:
            store = self.store()
            await store.open_pipeline(self.pipeline(**settings).graph().shape())
            await store.close()

        asyncio.run(make())
        self.execute(*statements)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url) as connection:
            connection.execute(sql.SQL("SET search_path TO {}").format(sql.Identifier(self.name)))
            for statement in statements:
                connection.execute(statement.encode())

    def lists(self, computation: str, cell: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        with Reader(self.url, self.name) as reader:
            for row in reader.scan_state(computation):
                if row.cell == cell and row.entry:
                    found.setdefault(row.key, []).append(msgspec.json.decode(row.value))
        return found

    def check(self, upto: dict[str, int]) -> None:
        """State, rows and downstream hold what each key saw before its `upto`-th element, exactly."""
        expected = {key: whole(key)[: upto.get(key, 1_000)] for key in map(key_of, range(KEYS))}
        expected = {key: seen for key, seen in expected.items() if seen}
        assert self.lists("Ledger", "seen") == expected
        assert self.lists("Listen", "heard") == expected
        with Reader(self.url, self.name) as reader:
            rows: dict[str, list[tuple[int, int]]] = {}
            for row in reader.sink_rows("ledger"):
                rows.setdefault(row["key"], []).append((row["place"], row["number"]))
        assert rows == {key: list(enumerate(seen, 1)) for key, seen in expected.items()}

    def waiting(self) -> dict[str, list[tuple[int, str]]]:
        """By key: (number, error) of what waits; a timer counts as number -1."""
        with Reader(self.url, self.name) as reader:
            return {
                key: [
                    (-1 if row.tag else msgspec.json.decode(row.value), row.error)
                    for row in reader.quarantine_rows("Ledger", key)
                ]
                for _, key, _ in reader.quarantined()
            }

    def redrive(self, *keys: str) -> None:
        with Reader(self.url, self.name) as reader:
            for key in keys:
                reader.request_redrive("Ledger", key)


def whole(key: str) -> list[int]:
    """Everything that one key sees when nothing is refused: its numbers, then what its timer adds."""
    own = [number for number in range(ROWS) if key_of(number) == key]
    return [*own, 100_000 + own[-1]]


def bad_from() -> dict[str, int]:
    """Of each key that has a bad number: how many come before the first one."""
    places = {key: [is_bad(n) for n in whole(key)[:-1]] for key in map(key_of, range(KEYS))}
    return {key: bad.index(True) for key, bad in places.items() if True in bad}


CHECK = "ALTER TABLE ledger ADD CONSTRAINT no_thirteen CHECK (number >= 100000 OR number % 97 <> 13)"
DROP = "ALTER TABLE ledger DROP CONSTRAINT no_thirteen"


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str) -> Place:
    return Place(postgres.url, pipeline)


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 100)


def check_waiting(place: Place, upto: dict[str, int], name: str) -> None:
    """Each culprit is first, with the constraint's name; all that came later for its key waits behind it, in order."""
    waiting = place.waiting()
    assert waiting.keys() == upto.keys()
    for key, elements in waiting.items():
        rest = whole(key)[upto[key] : -1]
        assert [number for number, _ in elements if number >= 0] == rest
        assert name in elements[0][1]
        assert not any(error for _, error in elements[1:])


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several intervals": {"split_keys": ("key 07", "key 15")},
    "one record each": {"work_limit_records": 1},
    "everything at once": {"work_limit_records": 4_096},
    "tiny cache": {"cache_limit_bytes": 1},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_refused_rows_quarantine_their_records_and_are_redriven_exactly(place: Place, name: str) -> None:
    settings = SETTINGS[name]
    place.prepare(CHECK, **settings)
    progress = run_to_end(place.pipeline(**settings), place.store())
    upto = bad_from()
    assert len(upto) > 8
    assert progress.quarantined == len(upto)
    place.check(upto)
    check_waiting(place, upto, "no_thirteen")

    place.execute(DROP)
    place.redrive(*upto)
    run_to_end(place.pipeline(**settings), place.store())
    assert place.waiting() == {}
    place.check({})
    tables = postgres_tables(place.url, place.name)
    for left in ("checkpoint_log", "production", "timer", "quarantine", "redrive", "delivered"):
        assert tables[left] == [], left


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.parametrize("seed", range(2))
def test_cancelled_in_the_middle_of_it_all_nothing_is_lost_or_doubled(place: Place, seed: int) -> None:
    dice = random.Random(seed)
    settings: dict[str, Any] = {"split_keys": ("key 12",)} if seed else {}
    place.prepare(CHECK, **settings)
    cancelled = 0
    while cancelled < 8 and run_cancelled(place.pipeline(**settings), place.store(), dice.uniform(0.05, 0.4)) is None:
        cancelled += 1
    run_to_end(place.pipeline(**settings), place.store())
    assert cancelled
    place.check(bad_from())
    check_waiting(place, bad_from(), "no_thirteen")


@pytest.mark.parametrize("settings", [{"productions": "weak"}, {"exactly_once": False}], ids=["weak", "not once"])
def test_where_records_may_count_twice_none_is_lost(place: Place, settings: dict[str, Any]) -> None:
    """Weak productions are out before their record's row is refused."""
    place.prepare(CHECK)
    run_to_end(place.pipeline(**settings), place.store())
    upto = bad_from()
    waiting = place.waiting()
    assert waiting.keys() == upto.keys()
    for key, elements in waiting.items():
        assert "no_thirteen" in elements[0][1]
        assert {number for number, _ in elements} >= set(whole(key)[upto[key] : -1])
    heard = place.lists("Listen", "heard")
    for key in map(key_of, range(KEYS)):
        assert set(heard.get(key, ())) >= set(whole(key)[: upto.get(key, 1_000)])


def test_a_timer_whose_row_is_refused_is_quarantined(place: Place) -> None:
    place.prepare("ALTER TABLE ledger ADD CONSTRAINT no_sums CHECK (number < 100000 OR key < 'key 10')")
    run_to_end(place.pipeline(), place.store())
    upto = {key: len(whole(key)) - 1 for key in map(key_of, range(10, KEYS))}
    place.check(upto)
    waiting = place.waiting()
    assert {key: [number for number, _ in elements] for key, elements in waiting.items()} == {key: [-1] for key in upto}
    assert all("no_sums" in elements[0][1] for elements in waiting.values())
    place.execute("ALTER TABLE ledger DROP CONSTRAINT no_sums")
    place.redrive(*upto)
    run_to_end(place.pipeline(), place.store())
    place.check({})


def test_a_redriven_record_that_is_refused_again_stays_in_its_place(place: Place) -> None:
    """What comes before it is redriven, it and what comes after it wait; other keys are not disturbed."""
    place.prepare(
        "ALTER TABLE ledger ADD CONSTRAINT one CHECK (number <> 23)",
        "ALTER TABLE ledger ADD CONSTRAINT two CHECK (number <> 115)",
    )
    run_to_end(place.pipeline(), place.store())
    place.check({"key 00": 1})
    check_waiting(place, {"key 00": 1}, '"one"')

    place.execute("ALTER TABLE ledger DROP CONSTRAINT one")
    place.redrive("key 00")
    for _ in range(2):
        progress = run_to_end(place.pipeline(), place.store())
        assert progress.quarantined == 0
        place.check({"key 00": 5})
        elements = [number for number, _ in place.waiting()["key 00"]]
        assert elements == whole("key 00")[5:-1]

    place.execute("ALTER TABLE ledger DROP CONSTRAINT two")
    run_to_end(place.pipeline(), place.store())
    assert place.waiting() == {}
    place.check({})


def test_a_live_pipeline_tries_a_refused_redrive_again_after_a_while(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused, "REDRIVE_AGAIN_US", 1_500_000)
    place.prepare("ALTER TABLE ledger ADD CONSTRAINT two_of_them CHECK (number NOT IN (23, 69))")
    tap = Tap(rows=[(i, i) for i in range(200)])

    async def live() -> Progress:
        loop = asyncio.get_running_loop()
        began = loop.time()
        dropped = False

        def done(run: EmbeddedRun) -> bool:
            nonlocal dropped
            if not dropped and loop.time() > began + 4:
                assert place.lists("Ledger", "seen")["key 00"] == [0]
                place.execute("ALTER TABLE ledger DROP CONSTRAINT two_of_them")
                dropped = True
            return dropped and place.waiting() == {}

        return await until(place.pipeline(tap), place.store(), done)

    run_until(place.pipeline(tap), place.store(), lambda run: run.progress().quarantined == 1)
    place.redrive("key 00")
    asyncio.run(live())
    assert place.lists("Ledger", "seen")["key 00"] == list(range(0, 200, KEYS))


def test_a_view_in_the_place_of_a_table_is_refused_before_anything_runs(place: Place) -> None:
    place.prepare("ALTER TABLE ledger RENAME TO elsewhere")
    place.execute("CREATE VIEW ledger AS SELECT key, number FROM elsewhere")
    with pytest.raises(StoreError, match=r"ledger.*primary key"):
        run_to_end(place.pipeline(), place.store())
    assert place.waiting() == {}
    place.execute("DROP VIEW ledger", "ALTER TABLE elsewhere RENAME TO ledger")
    run_to_end(place.pipeline(), place.store())
    place.check({})


def test_a_table_that_goes_while_a_run_writes_to_it_is_no_records_fault(place: Place) -> None:
    tap = Tap(rows=[(i, i) for i in range(ROWS // 2)])
    gone = False

    def done(run: EmbeddedRun) -> bool:
        nonlocal gone
        if not gone and run.progress().records and place.lists("Ledger", "seen"):
            place.execute("ALTER TABLE ledger RENAME TO elsewhere")
            gone = True
            tap.rows += [(i, i) for i in range(ROWS // 2, ROWS)]
        return False

    with pytest.raises(StoreError, match="ledger"):
        run_until(place.pipeline(tap), place.store(), done)
    assert gone
    assert place.waiting() == {}
    place.execute("ALTER TABLE elsewhere RENAME TO ledger")
    tap.closed = True
    run_to_end(place.pipeline(tap), place.store())
    place.check({})


def test_a_run_that_is_overtaken_does_not_take_the_interval_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run starts between the refusal and the restart of the first."""
    place.prepare(CHECK)

    async def both() -> BaseException | None:
        first_store, second_store = place.store(), place.store()
        pipeline = place.pipeline()
        first = EmbeddedRun(pipeline.graph(), first_store, pipeline.tables)
        second = EmbeddedRun(pipeline.graph(), second_store, pipeline.tables)
        reacquire = first_store.reacquire
        running: list[asyncio.Task[Progress]] = []

        async def overtaken(interval: IntervalId, sequencer: Sequencer) -> int | None:
            if not running:
                running.append(asyncio.create_task(second.run()))
                while not second.worker.actors.of("Ledger"):
                    await asyncio.sleep(0.01)
            return await reacquire(interval, sequencer)

        monkeypatch.setattr(first_store, "reacquire", overtaken)
        try:
            await first.run()
        except Fenced as error:
            found: BaseException | None = error
        else:
            found = None
        await running[0]
        await first_store.close()
        await second_store.close()
        return found

    error = asyncio.run(both())
    assert isinstance(error, Fenced)
    place.check(bad_from())
    check_waiting(place, bad_from(), "no_thirteen")
