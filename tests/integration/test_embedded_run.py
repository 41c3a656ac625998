"""Whole runs on Postgres: exact results through restarts, settings that must not change a result, failures."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from millwheel import (
    SECOND,
    Computation,
    Context,
    JsonCoder,
    ListCell,
    MapCell,
    Pipeline,
    Record,
    Stream,
    Table,
    TextCoder,
    Timer,
    ValueCell,
    limits,
)
from millwheel.bundles import StateRow
from millwheel.core.source import injector
from millwheel.errors import Fenced, IncompatibleStore
from millwheel.ids import IntervalId
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.work import Wanted
from millwheel_injectors import IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.reader import Reader
from tests.integration.places import Place
from tests.unit.runtime.drive import (
    Tap,
    expected_counts,
    run_cancelled,
    run_to_end,
    run_until,
    subscribe,
    text_lines,
    until,
    word_count,
)

pytestmark = pytest.mark.postgres

ROWS = text_lines(3_000, seed=1)
SPLITS = {"split_keys": ("line 3", "line 5")}, {"split_keys": ("mind", "or")}

texts = Stream("texts", TextCoder())


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str) -> Place:
    return Place(postgres.url, pipeline)


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small bundles, so that a cancelled run has many moments to be cancelled at."""
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 100)


def check_exact(place: Place) -> None:
    by_line, by_word = expected_counts(ROWS)
    assert place.cells("Split") == by_line
    assert place.cells("Count") == by_word


# --- results ------------------------------------------------------------------------------------------------------


def test_two_stages_count_exactly_and_leave_nothing_behind(place: Place) -> None:
    progress = run_to_end(word_count(place.name, ROWS), place.store())
    check_exact(place)
    tables = place.tables()
    for table in ("checkpoint_log", "production", "timer", "hold", "quarantine", "redrive", "delivered"):
        assert tables[table] == [], f"{table} is not empty after the run"
    assert progress.injected == len(ROWS)
    assert (progress.late, progress.duplicates, progress.rejected, progress.quarantined) == (0, 0, 0, 0)


def test_a_finished_pipeline_does_nothing_more(place: Place) -> None:
    run_to_end(word_count(place.name, ROWS), place.store())
    for _ in range(2):  # the first may still collect what the finished run's producers left
        again = run_to_end(word_count(place.name, ROWS), place.store())
        assert (again.records, again.injected) == (0, 0)
    assert again.checkpoints == 0
    check_exact(place)


SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "several intervals": SPLITS,
    "tiny cache": ({"cache_limit_bytes": 1}, {"cache_limit_bytes": 1}),
    "small works": ({"work_limit_records": 7}, {"work_limit_records": 3}),
    "weak productions": ({"productions": "weak"}, {}),
    "not exactly once": ({"exactly_once": False}, {"exactly_once": False}),
    "all": (
        {**SPLITS[0], "cache_limit_bytes": 1, "work_limit_records": 50, "productions": "weak"},
        {**SPLITS[1], "cache_limit_bytes": 1, "work_limit_records": 50},
    ),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.usefixtures("small_reads")
def test_settings_do_not_change_the_result(place: Place, settings: tuple[dict[str, Any], dict[str, Any]]) -> None:
    run_to_end(word_count(place.name, ROWS, *settings), place.store())
    check_exact(place)


class Tally(Computation[str]):
    """Counts each text in a map, and keeps them all in a list."""

    seen = MapCell(JsonCoder(int))
    log = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(record.value, self.seen.get(record.value, 0) + 1)
        self.log.append(record.value)


@pytest.mark.usefixtures("small_reads")
@pytest.mark.parametrize("slots", [1, 30])
def test_keys_of_which_only_a_part_is_read_have_the_same_result(
    place: Place, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr(limits, "STATE_PAGE_SLOTS", slots)
    store, asked = place.store(), 0
    load_slots = store.load_slots

    async def counted(interval: IntervalId, wanted: Sequence[Wanted]) -> list[StateRow]:
        nonlocal asked
        asked += len(wanted)
        return await load_slots(interval, wanted)

    monkeypatch.setattr(store, "load_slots", counted)
    rows = [(f"word {i % 300}", i) for i in range(600)]
    for source, there, client in (("first", rows[:400], place.store()), ("then", rows[400:], store)):
        pipeline = Pipeline(place.name)
        pipeline.inject(IterableSource(source, there), into=texts)
        pipeline.add(Tally, [subscribe(texts, key=lambda text: "all")], work_limit_records=50)
        run_to_end(pipeline, client)
    tally = place.cells("Tally")["all"]
    wanted = Counter(text for text, _ in rows)
    assert {cell: n for cell, n in tally.items() if cell.startswith("seen")} == {
        f"seen[{w}]": n for w, n in wanted.items()
    }
    assert place.lists("Tally", "log") == {"all": [text for text, _ in rows]}
    assert asked > 10


@pytest.mark.usefixtures("small_reads")
def test_without_exactly_once_no_ids_are_stored(place: Place) -> None:
    off = {"exactly_once": False}
    run_until(word_count(place.name, ROWS, off, off), place.store(), lambda run: run.progress().records > 1_000)
    assert place.tables()["delivered"] == []


# A cancelled run stands for a killed one: what it was in the middle of may be left open.
forgiving = pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")

# --- restarts -----------------------------------------------------------------------------------------------------


def cancelled_until_done(place: Place, seed: int, split: dict[str, Any], count: dict[str, Any]) -> int:
    """Run again and again, each run cancelled at a random moment, until one ends by itself; cancellations."""
    dice = random.Random(seed)
    cancelled = 0
    while cancelled < 6:
        if run_cancelled(word_count(place.name, ROWS, split, count), place.store(), dice.uniform(0.02, 0.12)):
            return cancelled
        cancelled += 1
    run_to_end(word_count(place.name, ROWS, split, count), place.store())
    return cancelled


@forgiving
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small_reads")
def test_cancelled_at_random_moments_and_resumed_the_counts_are_exact(place: Place, seed: int) -> None:
    split, count = SPLITS if seed % 2 else ({}, {})
    few = {"work_limit_records": 60}
    assert cancelled_until_done(place, seed, {**split, **few}, {**count, **few}) > 0
    check_exact(place)


@forgiving
@pytest.mark.usefixtures("small_reads")
def test_cancelled_runs_with_weak_productions_lose_nothing(place: Place) -> None:
    """A weak sender runs again after a crash and its receiver may see a production twice, never none."""
    cancelled_until_done(place, 5, {"productions": "weak", "work_limit_records": 60}, {})
    by_line, by_word = expected_counts(ROWS)
    assert place.cells("Split") == by_line
    found = place.cells("Count")
    for key, cells in by_word.items():
        places = {cell for cell in cells if cell.startswith("places[")}
        assert {cell for cell in found[key] if cell.startswith("places[")} == places
        assert found[key]["count"] == sum(found[key][cell] for cell in places)


@forgiving
@pytest.mark.usefixtures("small_reads")
def test_cancelled_runs_without_exactly_once_lose_nothing(place: Place) -> None:
    off = {"exactly_once": False}
    cancelled_until_done(place, 6, off, off)
    _, by_word = expected_counts(ROWS)
    found = place.cells("Count")
    assert {k: {c for c in cells if c[0] == "p"} for k, cells in found.items()} == {
        k: {c for c in cells if c[0] == "p"} for k, cells in by_word.items()
    }
    assert sum(cells["count"] for cells in found.values()) >= sum(cells["count"] for cells in by_word.values())


def test_another_shape_is_refused_before_the_first_write(place: Place) -> None:
    run_to_end(word_count(place.name, ROWS[:50]), place.store())
    before = place.tables()

    class Split(Computation[Any]):
        count = ValueCell(TextCoder(), default="")

        def ProcessRecord(self, context: Context, record: Record[Any]) -> None:
            raise AssertionError("must not run")

    changed = word_count(place.name, ROWS[:60])
    changed._computations["Split"] = msgspec.structs.replace(
        changed._computations["Split"], factory=Split, cells={"count": Split.count.fingerprint}
    )
    with pytest.raises(IncompatibleStore, match=r"Split\.count"):
        run_to_end(changed, place.store())
    assert place.tables() == before


# --- timers -------------------------------------------------------------------------------------------------------


fired = Table("fired", {"key": "text", "tag": "text", "at": "bigint", "seen": "bigint"}, ("key", "tag"))


class Remind(Computation[str]):
    """Every record sets a timer of each kind, ten seconds later; each firing is counted in its row."""

    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.set_timer("event", record.timestamp + 10 * SECOND)
        context.set_timer("wall", context.wall_time + 10 * SECOND, "wall")

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.seen.set(self.seen.get() + 1)
        context.upsert(fired, {"key": timer.key, "tag": timer.tag, "at": timer.timestamp, "seen": self.seen.get()})


def reminder(place: Place, tap: Tap) -> Pipeline:
    pipeline = Pipeline(place.name)
    pipeline.inject(tap, into=texts)
    pipeline.add(Remind, [subscribe(texts, str)])
    pipeline.sink(fired)
    return pipeline


def test_what_came_due_while_the_process_was_down_fires_once_without_new_input(place: Place) -> None:
    wall = 1_000 * SECOND
    tap = Tap(rows=[("a", 5 * SECOND), ("b", 7 * SECOND)], promise=7 * SECOND)
    run_until(reminder(place, tap), place.store(), lambda run: run.progress().checkpoints > 0, lambda: wall)
    assert place.rows("fired") == []

    tap.promise = 16 * SECOND  # past a's event timer, not past b's; wall time stands still
    run_until(reminder(place, tap), place.store(), lambda run: run.progress().checkpoints > 0, lambda: wall)
    assert place.rows("fired") == [{"key": "a", "tag": "event", "at": 15 * SECOND, "seen": 1}]

    later = wall + 11 * SECOND  # wall time moved while nothing ran; event time did not
    run_until(reminder(place, tap), place.store(), lambda run: run.progress().checkpoints > 0, lambda: later)
    assert place.rows("fired") == [
        {"key": "a", "tag": "event", "at": 15 * SECOND, "seen": 1},
        {"key": "a", "tag": "wall", "at": wall + 10 * SECOND, "seen": 2},
        {"key": "b", "tag": "wall", "at": wall + 10 * SECOND, "seen": 1},
    ]

    tap.closed = True  # the end of the input is the end of event time
    run_to_end(reminder(place, tap), place.store())
    assert [(row["key"], row["tag"], row["seen"]) for row in place.rows("fired")] == [
        ("a", "event", 1), ("a", "wall", 2), ("b", "event", 2), ("b", "wall", 1),
    ]  # fmt: skip
    assert place.tables()["timer"] == []


# --- expiry -------------------------------------------------------------------------------------------------------


class Visit(Computation[str]):
    """State of every kind a key can have."""

    seen = ValueCell(JsonCoder(int), default=0)
    when = ListCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)
        self.when.append(record.timestamp)
        context.set_timer("soon", record.timestamp + SECOND)
        context.hold(record.timestamp)

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        context.release_hold()


def visits(place: Place, source: Any) -> Pipeline:
    pipeline = Pipeline(place.name)
    pipeline.inject(source, into=texts)
    pipeline.add(Visit, [subscribe(texts, str)], expire_after=60 * SECOND, split_keys=("k3",))
    return pipeline


PER_KEY = ("key_state", "timer", "hold", "quarantine", "redrive")


def test_expiry_leaves_no_row_of_any_key(place: Place) -> None:
    tap = Tap(rows=[(f"k{i}", i * SECOND) for i in range(800)], promise=799 * SECOND)

    def counted(run: EmbeddedRun) -> bool:
        return run.progress().records == 800 and run.progress().watermarks["Visit"] >= 700 * SECOND

    run_until(visits(place, tap), place.store(), counted)
    assert place.cells("Visit")
    tap.promise = 10_000 * SECOND

    def gone(run: EmbeddedRun) -> bool:
        with Reader(place.url, place.name) as reader:
            state = list(reader.scan_state("Visit"))
            return not state and not reader.timers("Visit") and not reader.holds("Visit")

    run_until(visits(place, tap), place.store(), gone)
    # Nothing new happens, but the next start folds what the stopped run had left in its log.
    run_until(visits(place, tap), place.store(), lambda run: run.progress().watermarks["Visit"] >= 10_000 * SECOND)
    tables = place.tables()
    assert {table: tables[table] for table in PER_KEY} == {table: [] for table in PER_KEY}


def test_the_end_of_the_input_expires_nothing(place: Place) -> None:
    rows = [(f"k{i % 5}", i * SECOND) for i in range(100)]
    run_to_end(visits(place, IterableSource("tap", rows)), place.store())
    assert {key: cells["seen"] for key, cells in place.cells("Visit").items()} == {f"k{i}": 20 for i in range(5)}


# --- poison -------------------------------------------------------------------------------------------------------


class Fragile(Computation[str]):
    """Appends each value to its key's list; fails on "bad" while it is broken, after it has written."""

    broken = True
    values = ListCell(JsonCoder(str))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        if not len(self.values):
            context.set_timer("end", 10_000 * SECOND)
        self.values.append(record.value)
        if self.broken and record.value.endswith("bad"):
            raise RuntimeError(f"cannot digest {record.value!r}")

    def ProcessTimer(self, context: Context, timer: Timer) -> None:
        self.values.append("timer")


@pytest.fixture
def fragile() -> Iterator[type[Fragile]]:
    Fragile.broken = True
    yield Fragile
    Fragile.broken = True


def poisoned_values() -> dict[str, list[str]]:
    values: dict[str, list[str]] = {}
    for i in range(300):
        key = f"key {i % 6}"
        values.setdefault(key, []).append(f"{key}/{i}" + (" bad" if i in (60, 150, 155) else ""))
    return values


def fragile_pipeline(place: Place) -> Pipeline:
    by_key = poisoned_values()
    rows = [(by_key[f"key {i % 6}"][i // 6], i * SECOND) for i in range(300)]
    pipeline = Pipeline(place.name)
    pipeline.inject(IterableSource("text", rows), into=texts)
    pipeline.add(Fragile, [subscribe(texts, lambda text: text.split("/")[0])], work_limit_records=20)
    return pipeline


@pytest.mark.usefixtures("small_reads")
def test_a_poison_key_is_kept_apart_and_redriven_in_order(place: Place, fragile: type[Fragile]) -> None:
    by_key = poisoned_values()
    progress = run_to_end(fragile_pipeline(place), place.store())
    assert progress.quarantined == 2
    waiting = {"key 0": len(by_key["key 0"]) - 10, "key 5": len(by_key["key 5"]) - 25}
    with Reader(place.url, place.name) as reader:
        # The key's timer sleeps until the key is released.
        assert reader.quarantined() == [("Fragile", key, count) for key, count in waiting.items()]
        first = reader.quarantine_rows("Fragile", "key 0")[0]
        assert first.value == b"key 0/60 bad"
        assert "cannot digest 'key 0/60 bad'" in first.error
    found = place.lists("Fragile", "values")
    assert found["key 0"] == by_key["key 0"][:10]
    assert all(found[key] == [*by_key[key], "timer"] for key in by_key if key not in waiting)

    with Reader(place.url, place.name) as reader:
        reader.request_redrive("Fragile", "key 0")
    run_to_end(fragile_pipeline(place), place.store())  # still broken: the key stays where it is
    assert place.lists("Fragile", "values") == found

    fragile.broken = False
    run_to_end(fragile_pipeline(place), place.store())
    found = place.lists("Fragile", "values")
    assert found["key 0"] == [*by_key["key 0"], "timer"]
    with Reader(place.url, place.name) as reader:
        assert [row[1] for row in reader.quarantined()] == ["key 5"]
        reader.request_redrive("Fragile", "key 5")
    run_to_end(fragile_pipeline(place), place.store())
    assert place.lists("Fragile", "values") == {key: [*values, "timer"] for key, values in by_key.items()}
    tables = place.tables()
    assert tables["quarantine"] == tables["redrive"] == []


# --- two runs at once, rows that do not fit -------------------------------------------------------------------------------


def test_a_second_run_fences_the_first_with_a_clear_message(place: Place) -> None:
    tap = Tap(rows=[(f"k{i}", i) for i in range(50)])

    async def both() -> BaseException:
        # What the first run commits after the second one is there must be refused, so it is kept busy.
        serving = asyncio.Event()

        def watch(run: EmbeddedRun) -> bool:
            if run.progress().records:
                serving.set()
            return False

        first = asyncio.ensure_future(until(reminder(place, tap), place.store(), watch))
        await asyncio.wait_for(serving.wait(), 60)

        def feed(run: EmbeddedRun) -> bool:
            tap.rows.append(("more", len(tap.rows)))
            return first.done()

        await until(reminder(place, tap), place.store(), feed)
        return (await asyncio.gather(first, return_exceptions=True))[0]  # type: ignore[return-value]

    error = asyncio.run(both())
    assert isinstance(error, Fenced)
    assert "another run owns this pipeline's store now" in str(error)


# Rows that only the database can refuse have a file of their own, test_refused_rows.py.

typed = Table("numbers", {"key": "text", "number": "bigint"}, ("key",))


class Write(Computation[str]):
    """Writes the value into a bigint column, and counts."""

    count = ValueCell(JsonCoder(int), default=0)
    guarded = False

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.count.set(self.count.get() + 1)
        if self.guarded and not record.value.isdigit():
            return
        number = int(record.value) if record.value.isdigit() else record.value
        context.upsert(typed, {"key": record.key, "number": number})


class Guarded(Write):
    """The same with the mistake repaired."""

    guarded = True


def writer(place: Place, computation: type[Write]) -> Pipeline:
    rows = [("7 is no number" if i == 700 else str(i), i) for i in range(1_000)]
    pipeline = Pipeline(place.name)
    pipeline.inject(IterableSource("text", rows), into=texts)
    pipeline.add(computation, [subscribe(texts, lambda text: text[0])], name="Write", work_limit_records=50)
    pipeline.sink(typed)
    return pipeline


@pytest.mark.usefixtures("small_reads")
def test_a_row_that_its_column_cannot_hold_fails_its_hook(place: Place) -> None:
    run_to_end(writer(place, Write), place.store())
    found = place.cells("Write")
    assert {key: cells["count"] for key, cells in found.items()} == {
        "0": 1, "7": 11, **dict.fromkeys("12345689", 111),
    }  # fmt: skip
    with Reader(place.url, place.name) as reader:
        assert reader.quarantined() == [("Write", "7", 100)]
        first = reader.quarantine_rows("Write", "7")[0]
        assert "column 'number' (bigint): not an integer of 64 bits: '7 is no number'" in first.error
        reader.request_redrive("Write", "7")
    run_to_end(writer(place, Guarded), place.store())
    assert sum(cells["count"] for cells in place.cells("Write").values()) == 1_000
    assert {row["key"]: row["number"] for row in place.rows("numbers")} == {
        "0": 0, "1": 199, "2": 299, "3": 399, "4": 499, "5": 599, "6": 699, "7": 799, "8": 899, "9": 999,
    }  # fmt: skip


# --- life of user code ---------------------------------------------------------------------------------------------


class Lively(Computation[str]):
    calls: list[str]

    def __init__(self, calls: list[str], fail: bool = False) -> None:
        self.calls = calls
        self.fail = fail

    def setup(self) -> None:
        self.calls.append("setup")

    def teardown(self) -> None:
        self.calls.append("teardown")

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.calls.append(record.value)


def test_setup_comes_first_and_teardown_last_once_each(place: Place) -> None:
    calls: list[str] = []
    pipeline = Pipeline(place.name)
    pipeline.inject(IterableSource("text", [("a", 1), ("b", 2)]), into=texts)
    pipeline.add(lambda: Lively(calls), [subscribe(texts, str)], split_keys=("b",))
    run_to_end(pipeline, place.store())
    assert calls[0] == "setup"
    assert sorted(calls[1:-1]) == ["a", "b"]
    assert calls[-1] == "teardown"
