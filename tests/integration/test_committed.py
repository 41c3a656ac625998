"""Committed state from Python, above all published streams: dense, in order, bounded, through restarts and while a
run goes on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millwheel import (
    MAX_TIME,
    MIN_TIME,
    Computation,
    Context,
    JsonCoder,
    MapCell,
    Pipeline,
    Record,
    Stream,
    TextCoder,
    ValueCell,
    savepoints,
    subscribe,
)
from millwheel.committed import Committed, Held, reset
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source import injector
from millwheel.errors import StoreError, StoreUnavailable, WiringError
from millwheel.launch import run
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.source import Source
from millwheel_injectors import FileSource, IterableSource, TextLines
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import Count as Counted
from tests.unit.runtime.drive import (
    Split,
    Tap,
    lines,
    run_cancelled,
    run_to_end,
    run_until,
    text_lines,
    until,
    word_count,
    words,
)

pytestmark = pytest.mark.postgres

ROWS = text_lines(1_500, seed=4)


def places(rows: int) -> int:
    """Words in the first rows."""
    return sum(len(line.words) for line, _ in ROWS[:rows])


PLACES = places(len(ROWS))

texts = Stream("texts", TextCoder())


class Count(Computation[str]):
    """Counts values per key, and holds the watermark for the key "held"."""

    seen = MapCell(JsonCoder(int))

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        if record.value == "bad":
            raise ValueError("bad value")
        self.seen.set(record.value, (self.seen.get(record.value) or 0) + 1)
        if record.key == "held":
            context.hold(record.timestamp)
        context.set_timer("end", record.timestamp + 50)


def counting(name: str, source: Any, keep: int | None = None) -> Pipeline:
    pipeline = Pipeline(name)
    pipeline.inject(source, into=texts)
    pipeline.add(Count, [subscribe(texts, str)], hook_attempts=1)
    if keep is not None:
        pipeline.publish(texts, keep)
    return pipeline


def published(name: str, keep: int = 100_000) -> Pipeline:
    pipeline = word_count(name, ROWS, {"work_limit_records": 60}, {"work_limit_records": 60})
    pipeline.publish(words, keep)
    return pipeline


@pytest.fixture
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 100)


@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.usefixtures("small_reads")
def test_every_record_is_published_once_and_in_order_through_restarts(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    made = published(pipeline)
    cancelled = 0
    while cancelled < 6 and run_cancelled(made, PostgresStore(postgres.url, pipeline), 0.05 + 0.02 * cancelled) is None:
        cancelled += 1
    assert cancelled
    progress = run_to_end(made, PostgresStore(postgres.url, pipeline))
    assert progress.records <= len(ROWS) + PLACES, "a published record is nobody's hook"
    with Committed(made, postgres.url) as committed:
        found = committed.tail(words, PLACES + 10)
    assert [record.position for record in found] == list(range(1, PLACES + 1))
    assert sorted(record.value.place for record in found) == list(range(PLACES))
    times = {place: at for line, at in ROWS for _, place in line.words}
    newest: dict[str, int] = {}
    for record in found:  # from one key to one key: in the order of production
        word = record.value
        assert newest.get(word.line, -1) < word.place
        newest[word.line] = word.place
        assert (record.timestamp, record.missed) == (times[word.place], 0)


def test_only_the_last_ones_are_kept(postgres: EmbeddedPostgres, pipeline: str) -> None:
    made = published(pipeline, keep=7)
    run_to_end(made, PostgresStore(postgres.url, pipeline))
    with Committed(made, postgres.url) as committed:
        kept = [(record.position, record.missed) for record in committed.tail(words, 100)]
        assert kept == [(place, 0) for place in range(PLACES - 6, PLACES + 1)], "nobody has asked for what came before"
        assert [record.position for record in committed.tail("words", 2)] == [PLACES - 1, PLACES]
        assert committed.tail(words, 0) == []
        # Whoever has seen the first one only is told how many are gone.
        late = committed.reader.tail("words", after=1)
        assert [late[0].missed, *(row.missed for row in late[1:])] == [PLACES - 8, 0, 0, 0, 0, 0, 0]
        assert len(committed.rows("millwheel_published")) == 7


def test_a_follower_sees_everything_while_the_run_goes_on(postgres: EmbeddedPostgres, pipeline: str) -> None:
    tap = Tap(rows=[(f"line {i}", i) for i in range(20)])
    made = counting(pipeline, tap, keep=1_000)
    run_until(made, PostgresStore(postgres.url, pipeline), lambda run: run.progress().checkpoints >= 2)
    seen: list[str] = []

    def follow() -> None:
        with Committed(made, postgres.url) as committed:
            for record in committed.follow(texts, 5):
                assert record.missed == 0
                seen.append(record.value)
                if record.value == "line 519":
                    return

    async def feed() -> None:
        follower = threading.Thread(target=follow)
        follower.start()
        run = asyncio.create_task(
            until(made, PostgresStore(postgres.url, pipeline), lambda run: not follower.is_alive())
        )
        for i in range(20, 520):
            tap.rows.append((f"line {i}", i))
            if i % 50 == 0:
                await asyncio.sleep(0.02)
        await run

    asyncio.run(feed())
    assert seen == [f"line {i}" for i in range(15, 520)]


def end_sessions(url: str) -> None:
    """End every connection to the server, as its restart would."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


def _run_to(made: Pipeline, url: str, records: int) -> None:
    """Until so many records are published."""
    with Committed(made, url) as committed:
        run_until(made, PostgresStore(url, made.name), lambda run: committed.reader.tail_end("texts") == records)


def test_a_follower_outlives_its_connection_and_a_question_says_that_it_broke(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    tap = Tap(rows=[(f"line {i}", i) for i in range(20)])
    made = counting(pipeline, tap, keep=1_000)

    run_until(made, PostgresStore(postgres.url, pipeline), lambda run: run.progress().checkpoints >= 2)
    _run_to(made, postgres.url, 20)
    with Committed(made, postgres.url) as committed, Committed(made, postgres.url) as other:
        following = committed.follow(texts, 20)
        assert next(following).value == "line 0"
        assert other.state("Count", "nobody") == {}
        end_sessions(postgres.url)
        with pytest.raises(StoreUnavailable, match="terminating connection"):
            other.state("Count", "nobody")
        assert [next(following).value for _ in range(19)] == [f"line {i}" for i in range(1, 20)]
        tap.rows += [(f"line {i}", i) for i in range(40, 60)]
        _run_to(made, postgres.url, 40)
        end_sessions(postgres.url)
        assert [next(following).value for _ in range(20)] == [f"line {i}" for i in range(40, 60)]


def test_a_follower_is_told_when_a_savepoint_takes_the_stream_back(postgres: EmbeddedPostgres, pipeline: str) -> None:
    tap = Tap(rows=[(f"line {i}", i) for i in range(5)])
    made = counting(pipeline, tap, keep=100)

    run_until(made, PostgresStore(postgres.url, pipeline), lambda run: run.progress().checkpoints >= 1)
    _run_to(made, postgres.url, 5)
    savepoints.create(made, "five", postgres.url)
    tap.rows += [(f"line {i}", i) for i in range(5, 9)]
    _run_to(made, postgres.url, 9)
    with Committed(made, postgres.url) as committed:
        following = committed.follow(texts)
        assert [next(following).position for _ in range(9)] == [*range(1, 10)]
        savepoints.restore(made, "five", postgres.url)
        with pytest.raises(
            StoreError, match="'texts' was read to position 9 and ends at 5 now: a savepoint was put back"
        ):
            next(following)


def test_a_stream_that_is_no_longer_published_leaves_nobody_waiting(postgres: EmbeddedPostgres, pipeline: str) -> None:
    """Stopped while its sender had productions for it that nothing says are acked; and it may be published again."""
    tap = Tap(rows=ROWS[:500])

    def build(publish: bool) -> Pipeline:
        made = Pipeline(pipeline)
        made.inject(tap, into=lines)
        made.add(Split, [subscribe(lines, lambda line: line.name)], [words])
        made.add(Counted, [subscribe(words, lambda word: word.text)], name="Count")
        if publish:
            made.publish(words)
        return made

    def counted() -> int:
        with Committed(build(publish=False), postgres.url) as committed:
            return sum(state["count"] for _, state in committed.states("Count"))

    def checkpoints(run: EmbeddedRun) -> bool:
        cores = [actor.core for actor in run.worker.actors.all.values()]
        return all(core.counters.checkpoints for core in cores if isinstance(core, IntervalCore)) and bool(cores)

    run_until(build(publish=True), PostgresStore(postgres.url, pipeline), checkpoints)
    with Committed(build(publish=True), postgres.url) as committed:
        assert committed.reader.oldest_productions(), "stopped too late for this test"
        first = len(committed.tail(words, 10_000))
    assert first

    tap.rows, tap.closed = ROWS[:1_000], False
    run_until(build(publish=False), PostgresStore(postgres.url, pipeline), lambda run: counted() == places(1_000))
    with (
        Committed(build(publish=False), postgres.url) as committed,
        pytest.raises(StoreError, match=r"stream 'words' is not published .*pipeline\.publish\(words\)"),
    ):
        committed.tail(words)

    tap.rows, tap.closed = ROWS, True
    run_to_end(build(publish=True), PostgresStore(postgres.url, pipeline))
    assert counted() == PLACES
    with Committed(build(publish=True), postgres.url) as committed:
        found = committed.tail(words, 10_000)
        assert committed.reader.oldest_productions() == []
    assert [record.position for record in found] == list(range(1, len(found) + 1))
    kept = {record.value.place for record in found}
    assert len(kept) == len(found)
    assert kept >= set(range(places(1_000), PLACES)), "what was produced since it is published again"
    assert not kept & set(range(places(500), places(1_000))), "produced while nobody published"


def test_every_query_of_the_command_line_can_be_asked_from_python(postgres: EmbeddedPostgres, pipeline: str) -> None:
    rows = [("a", 10), ("held", 20), ("a", 30), ("bad", 40), ("bad", 50)]
    tap = Tap(rows=rows, promise=45)
    made = counting(pipeline, tap)
    run_until(
        made, PostgresStore(postgres.url, pipeline), lambda run: run.progress().watermarks["Count"] == 20
    )  # the oldest hold
    with Committed(made, postgres.url) as committed:
        assert committed.state("Count", "a") == {"seen": {"a": 2}}
        assert committed.state("Count", "nobody") == {}
        assert dict(committed.states("Count", "h")) == {"held": {"seen": {"held": 1}}}
        found = committed.explain("Count")
        (partition,) = [held for held in found if held.kind == "partition"]
        assert str(partition).startswith("partition\t1970-01-01T00:00:00.000045+00:00\ttap of source tap, read to row ")
        assert [held for held in found if held is not partition] == [
            Held("watermark", 45, "source:tap"),
            Held("watermark", 20, "Count"),
            Held("timer", 70, "key 'held' tag 'end' (watermark)"),
            Held("timer", 80, "key 'a' tag 'end' (watermark)"),
            Held("hold", 20, "key 'held'"),
        ]
        assert committed.quarantined() == [("Count", "bad", 2)]
        waiting = committed.quarantine("Count", "bad")
        assert [(row.timestamp, row.value) for row in waiting] == [(40, b"bad"), (50, b"bad")]
        assert "bad value" in waiting[0].error
        assert committed.input_coders()[waiting[0].subscription].decode(waiting[0].value) == "bad"
        committed.redrive("Count", "bad")
        with pytest.raises(StoreError, match="not in quarantine"):
            committed.redrive("Count", "a")
        with pytest.raises(StoreError, match="no sink table"):
            committed.rows("nothing")
        with pytest.raises(WiringError, match=r"no computation 'Cuont'; there are \['Count'\]"):
            committed.state("Cuont", "a")
        with pytest.raises(WiringError, match=r"no stream 'textz'; there are \['texts'\]"):
            committed.tail("textz")
    assert reset(made, postgres.url)
    assert not reset(made, postgres.url)
    with pytest.raises(StoreError, match="run it first"), Committed(made, postgres.url) as committed:
        committed.state("Count", "a")


def test_what_is_finished_is_listed_and_counted_too(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path) -> None:
    for name, count in (("one", 3), ("two", 5), ("tail", 2)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "log").write_text("".join(f"{name} {number}\n" for number in range(count)))

    def reading(*names: str) -> Pipeline:
        made = Pipeline(pipeline)
        for name in names:
            made.inject(FileSource(name, tmp_path / name, tail=name == "tail"), into=texts)
        made.add(Count, [subscribe(texts, str)])
        return made

    run_to_end(reading("one", "two"), PostgresStore(postgres.url, pipeline))
    run_until(
        reading("one", "two", "tail"), PostgresStore(postgres.url, pipeline), lambda run: run.progress().records == 2
    )
    with Committed(reading("one"), postgres.url) as committed:
        found = [(source, rows if finished else None) for source, _, rows, finished in committed.sources()]
        assert found == [("one", 3), ("tail", None), ("two", 5)]
        assert {**committed.reader.rows_read(), "tail": 2} == {"one": 3, "two": 5, "tail": 2}
        (title,) = [title for source, title, *_ in committed.sources() if source == "two"]
        with pytest.raises(StoreError, match="was read to its end"):
            committed.drop_source("two", title)
        with pytest.raises(StoreError, match="'other' is no partition of it"):
            committed.drop_source("two", "other")
        assert committed.drop_source("two") == [], "it has opened something, and nothing of it is left"
        (title,) = [title for source, title, *_ in committed.sources() if source == "tail"]
        assert committed.drop_source("tail", title) == [title]
        assert committed.reader.watermarks().get("source:tail", MIN_TIME) < MAX_TIME, "others of it may come"
        assert committed.drop_source("tail") == []
        assert committed.reader.watermarks()["source:tail"] == MAX_TIME
        with pytest.raises(StoreError, match="has opened nothing"):
            committed.drop_source("three")


def test_explain_names_the_productions_of_the_computation_asked_for_only(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    made = word_count(pipeline, ROWS)
    store = PostgresStore(postgres.url, pipeline)
    run_until(made, store, lambda run: run.progress().checkpoints > 0)  # stopped with productions under way
    with Committed(made, postgres.url) as committed:
        assert {oldest.computation for oldest in committed.reader.oldest_productions()} == {"Split"}
        assert [held.kind for held in committed.explain("Split")].count("production") == 1
        of_others = [held.what for held in committed.explain("Count") if held.kind == "production"]
        assert of_others == [what for what in of_others[:1] if what.endswith(" in Split")], (
            "it keeps the watermark there"
        )


def test_explain_names_the_interval_that_waits_behind_what_was_sent_before_it_was_cut_off(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    store = PostgresStore(postgres.url, pipeline)
    run_until(word_count(pipeline, ROWS), store, lambda run: run.progress().checkpoints > 0)
    recut = word_count(pipeline, ROWS, split={"split_keys": ["g"]})
    asyncio.run(opened_only(recut, PostgresStore(postgres.url, pipeline)))
    with Committed(recut, postgres.url) as committed:
        assert {oldest.computation for oldest in committed.reader.oldest_productions()} == {"Split"}
        (waiting,) = committed.reader.waiting_intervals()
        assert (waiting.computation, waiting.low) == ("Split", "g")
        for name in ("Split", "Count"):
            found = [held.what for held in committed.explain(name) if held.kind == "behind"]
            assert [what.split(",")[0] for what in found] == [f"interval {waiting.id} of Split"]
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f'DELETE FROM "{pipeline}".production')
        assert "behind" not in {held.kind for held in committed.explain("Count")}


async def opened_only(made: Pipeline, store: PostgresStore) -> None:
    """As a run of it begins: the intervals are cut as it says."""
    try:
        await store.open_pipeline(made.graph().shape())
    finally:
        await store.close()


class Keeper(Computation[str]):
    """Sends on, and holds the watermark if the record says so."""

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        if record.value == "hold":
            context.hold(record.timestamp)
        context.produce(kept, record.value)


class Further(Computation[str]):
    """Sends on."""

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        context.produce(passed, record.value)


kept, passed = Stream("kept", TextCoder()), Stream("passed", TextCoder())


def three_steps(pipeline: str, source: Source[str]) -> Pipeline:
    """The last of them is two steps behind what is held, and three behind the source."""
    made = Pipeline(pipeline)
    made.inject(source, into=texts)
    made.add(Keeper, [subscribe(texts, str)], [kept])
    made.add(Further, [subscribe(kept, str)], [passed])
    made.add(Count, [subscribe(passed, str)])
    return made


def test_explain_of_an_embedded_run_names_the_hold_that_keeps_a_watermark_further_upstream(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    made = three_steps(pipeline, IterableSource("texts", [("hold", 60)]))
    with Committed(made, postgres.url) as committed:

        def held(run: EmbeddedRun) -> bool:
            """By the hold alone: until its end is stored, the source keeps the watermark as well."""
            if run.progress().watermarks.get("Count") != 60:
                return False
            return committed.reader.watermarks().get("source:texts") == MAX_TIME

        run_until(made, PostgresStore(postgres.url, pipeline), held)
        assert committed.explain("Count")[0] == Held("hold", 60, "key 'hold' in Keeper")
        assert committed.explain("Further")[0] == Held("hold", 60, "key 'hold' in Keeper")
        assert [held.what for held in committed.explain("Keeper") if held.kind == "hold"] == ["key 'hold'"]


def test_explain_of_an_embedded_run_names_the_file_that_keeps_a_watermark_further_upstream(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    source = FileSource("texts", str(tmp_path / "*.txt"), TextLines(), event_time=lambda line: 60, tail=True)
    made = three_steps(pipeline, source)
    with Committed(made, postgres.url) as committed:

        def read(run: EmbeddedRun) -> bool:
            return run.progress().records == 3 and [it.position for it in committed.reader.sources("texts")] == [1]

        run_until(made, PostgresStore(postgres.url, pipeline), read)
        first, partition = committed.explain("Count")[:2]
        assert (first.kind, first.what.startswith("source texts: ")) == ("source", True)
        where = "a.txt of source texts, read to row 1; "
        assert (partition.kind, partition.what.startswith(where)) == ("partition", True)
        assert [held.kind for held in committed.explain("Keeper")].count("partition") == 1, "it is not shown twice"


def test_explain_says_where_a_watermark_is_kept_further_upstream_by_what_is_in_memory_only(
    postgres: EmbeddedPostgres, pipeline: str
) -> None:
    made = three_steps(pipeline, IterableSource("texts", [("hold", 60)]))
    with Committed(made, postgres.url) as committed:

        def held(run: EmbeddedRun) -> bool:
            """By the hold alone: until its end is stored, the source keeps the watermark as well."""
            if run.progress().watermarks.get("Count") != 60:
                return False
            return committed.reader.watermarks().get("source:texts") == MAX_TIME

        run_until(made, PostgresStore(postgres.url, pipeline), held)
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            for table in ("hold", "checkpoint_log"):
                connection.execute(f'DELETE FROM "{pipeline}".{table}')
            number = committed.reader._computation("Keeper")
            for kind, at in (("wall", 1), ("watermark", 61)):  # neither keeps a watermark at 60
                connection.execute(
                    f"INSERT INTO \"{pipeline}\".timer VALUES (%s, 'hold', %s, 't', %s)", (number, kind, at)
                )
        assert committed.explain("Count")[0] == Held("watermark", 60, "Keeper")
        assert [held.what for held in committed.explain("Further") if held.kind == "watermark"].count("Keeper") == 1


class Opened(Computation[str]):
    """A job is opened by its first record; the second one cannot be worked on."""

    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        if self.seen.get():
            raise RuntimeError("out of paper")
        self.seen.set(1)
        context.hold(record.timestamp)


@pytest.mark.parametrize("holds", [False, True])
def test_explain_shows_the_hold_of_a_key_in_quarantine_where_it_still_holds(
    postgres: EmbeddedPostgres, pipeline: str, holds: bool
) -> None:
    jobs = Stream("jobs", TextCoder())
    made = Pipeline(pipeline)
    made.inject(IterableSource("jobs", [("printer", 5), ("printer", 7)]), into=jobs)
    made.add(Opened, [subscribe(jobs, str)], quarantine_holds=holds, work_limit_records=1)
    with Committed(made, postgres.url) as committed:

        def stored(run: EmbeddedRun) -> bool:
            return run.progress().quarantined == 1 and len(committed.reader.holds("Opened")) > 1 - (not holds)

        run_until(made, PostgresStore(postgres.url, pipeline), stored)
        assert committed.quarantined() == [("Opened", "printer", 1)]
        shown = [(held.kind, held.timestamp, held.what) for held in committed.explain("Opened")]
    own = [("hold", 5, "key 'printer'"), ("quarantine", 7, "key 'printer'")] if holds else []
    assert [held for held in shown if held[0] in ("hold", "quarantine")] == own


def test_explain_names_the_files_to_come_that_hold_a_source_at_the_beginning_of_time(
    postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text("x\ny\n")
    tailed = FileSource("logs", tmp_path, event_time=lambda line: 5, tail=True, idle_after_us=3_600_000_000)
    made = counting(pipeline, tailed)
    with Committed(made, postgres.url) as committed:

        def stored(run: EmbeddedRun) -> bool:
            return run.progress().records == 2 and any(rows == 2 for _, _, rows, _ in committed.sources())

        run_until(made, PostgresStore(postgres.url, pipeline), stored)
        first, second = [held for held in committed.explain("Count") if held.kind in ("source", "partition")]
    assert first.what == (
        "source logs: a partition that is not there yet may still give a row as old as that; after 3600 s of silence it "
        "goes on (idle_after_us); where rows keep coming, say how old those of later ones are (later_files_not_before of a "
        "FileSource)"
    )
    assert second.what.startswith("a.log of source logs, read to row 2")


def test_from_run_to_tail_without_a_server_of_ones_own(tmp_path: Any) -> None:
    made = counting("own", IterableSource("text", [("x", 1), ("y", 2)]), keep=10)
    progress = run(made, data=tmp_path / "data")
    assert progress.records == 2
    with Committed(made, data=tmp_path / "data") as committed:
        assert [(record.position, record.timestamp, record.value) for record in committed.tail(texts)] == [
            (1, 1, "x"), (2, 2, "y"),
        ]  # fmt: skip
