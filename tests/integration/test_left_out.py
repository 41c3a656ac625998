"""A source that is left out of one run, or given up for good, on Postgres: nothing is counted twice, and nobody waits for
what does not come back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millwheel import SECOND, Computation, Context, JsonCoder, Pipeline, Record, Stream, ValueCell, limits, subscribe
from millwheel.committed import Committed
from millwheel.core.source import injector
from millwheel.errors import Fenced, StoreError, WiringError
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import BoundedDisorder, FileSource, IterableSource
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import PostgresStore
from tests.unit.runtime.drive import run_to_end, run_until

pytestmark = pytest.mark.postgres

ROWS = 500

rows = Stream("rows", JsonCoder(str))


class Count(Computation[str]):
    """Rows of each file, and how many of them came late."""

    seen = ValueCell(JsonCoder(int), default=0)
    late = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.seen.set(self.seen.get() + 1)
        self.late.set(self.late.get() + record.late)


class Place:
    """Two tailed files, `a` and `b`, and a pipeline that has the sources of some of them."""

    def __init__(self, url: str, name: str, directory: Path) -> None:
        self.url, self.name, self.directory = url, name, directory

    def write(self, source: str, times: range) -> None:
        with (self.directory / source).open("a") as file:
            file.writelines(f"{time} {source}\n" for time in times)

    def pipeline(self, *sources: str) -> Pipeline:
        wired = Pipeline(self.name)
        for source in sources:
            wired.inject(
                FileSource(
                    source, self.directory / source, tail=True, watermark=BoundedDisorder(0),
                    event_time=lambda line: int(line.split()[0]) * SECOND,
                ),
                into=rows,
            )  # fmt: skip
        wired.add(Count, [subscribe(rows, key=lambda row: row.split()[1])])
        return wired

    def run(self, *sources: str, until: Callable[[EmbeddedRun], bool]) -> None:
        run_until(self.pipeline(*sources), self.store(), until)

    def store(self) -> PostgresStore:
        return PostgresStore(self.url, self.name)

    def committed(self, *sources: str) -> Committed:
        return Committed(self.pipeline(*sources), self.url)


@pytest.fixture
def place(postgres: EmbeddedPostgres, pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(injector, "ADVANCE_DELAY_US", 60 * SECOND)  # a position that lags is one that was not written
    found = Place(postgres.url, pipeline, tmp_path)
    found.write("a", range(1))
    found.write("b", range(1))
    return found


def records(count: int) -> Callable[[EmbeddedRun], bool]:
    return lambda run: run.progress().records >= count


def watermark(at: int) -> Callable[[EmbeddedRun], bool]:
    return lambda run: run.progress().watermarks["Count"] >= at * SECOND


def test_rows_of_a_source_that_was_left_out_of_one_run_are_counted_once(place: Place) -> None:
    # 999 were counted for its 500: its ids were collected while it was away, and its position lagged behind its acks.
    place.run("a", "b", until=records(2))
    place.write("b", range(1, ROWS))
    place.run("a", "b", until=lambda run: run.progress().records >= ROWS - 1)
    place.write("a", range(ROWS, ROWS + 1))
    place.run("a", until=records(1))
    place.write("b", range(ROWS, ROWS + 1))
    place.run("a", "b", until=watermark(ROWS))
    with place.committed("a", "b") as committed:
        assert committed.state("Count", "b")["seen"] == ROWS + 1
        assert committed.state("Count", "a")["seen"] == 2


def test_what_a_left_out_source_feeds_waits_for_it_and_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.write("b", range(1, 10))
    place.run("a", "b", until=lambda run: records(11)(run) and run.progress().watermarks["Count"] > MIN_TIME)
    place.write("a", range(1, 101))
    with caplog.at_level(logging.WARNING, "millwheel"):
        place.run("a", until=lambda run: run.progress().watermarks["source:a"] >= 100 * SECOND)
    assert "source b is not in this pipeline and was not read to its end" in caplog.text
    with place.committed("a") as committed:
        assert [held.what for held in committed.explain("Count") if held.kind == "left out"] == ["source b"]
        assert committed.reader.watermarks()["Count"] <= 9 * SECOND
    place.write("b", range(10, 101))
    place.run("a", "b", until=watermark(100))
    with place.committed("a", "b") as committed:
        assert committed.state("Count", "b") == {"seen": 101, "late": 0}


def test_a_source_that_is_given_up_holds_nobody_and_its_ids_go(place: Place) -> None:
    place.write("b", range(1, 10))
    place.run("a", "b", until=lambda run: records(11)(run) and run.progress().watermarks["Count"] > MIN_TIME)
    place.write("a", range(1, 101))
    place.run("a", until=records(100))
    with place.committed("a") as committed:
        with pytest.raises(WiringError, match="source 'a' is in the pipeline: take it out first"):
            committed.drop_source("a")
        with pytest.raises(StoreError, match="source 'c' has opened nothing"):
            committed.drop_source("c")
        assert [name for name, _, _, finished in committed.sources() if not finished] == ["a", "b"]
        assert len(committed.drop_source("b")) == 1
    place.write("a", range(101, 201))
    place.run("a", until=watermark(200))
    idle = time.monotonic() + 2 * limits.IDLE_RECORD_DELAY_US / 1e6
    place.run("a", until=lambda run: time.monotonic() > idle)
    with place.committed("a") as committed:
        assert committed.explain("Count")[0].what == "source:a"
        assert not [held for held in committed.explain("Count") if held.kind == "left out"]
        assert committed.reader.watermarks()["source:b"] == MAX_TIME
        left = {producer for _, _, producer, *_ in committed.reader._connection.execute("TABLE delivered_frontier")}
        assert len(left) == 1, "ids of the source that was given up are kept"


def test_a_file_that_is_gone_for_good_is_given_up_by_its_path(place: Place) -> None:
    place.write("b", range(1, 10))
    place.run("a", "b", until=records(11))
    (place.directory / "b").unlink()
    place.write("a", range(1, 101))
    with place.committed("a", "b") as committed:
        with pytest.raises(StoreError, match="'nope' is no partition of it"):
            committed.drop_source("b", "nope")
        assert committed.drop_source("b", "b") == ["b"]
    place.run("a", "b", until=records(100))


def test_whoever_still_reads_a_partition_that_is_given_up_is_fenced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drop(run: EmbeddedRun) -> bool:
        if run.progress().records >= 2 and not dropped:
            with place.committed("a", "b") as committed:
                dropped.extend(committed.drop_source("b", "b"))
            place.write("b", range(1, 10))
        return False

    dropped: list[str] = []
    monkeypatch.setattr(injector, "ADVANCE_DELAY_US", 0)
    with pytest.raises(Fenced):
        place.run("a", "b", until=drop)


def test_a_finite_run_names_the_left_out_source_that_it_waits_for(place: Place) -> None:
    place.run("b", until=records(1))
    wired = Pipeline(place.name)
    wired.inject(IterableSource("rest", [("5 a", 5 * SECOND)]), into=rows)
    wired.add(Count, [subscribe(rows, key=lambda row: row.split()[1])])
    waits_for = "the source b, which is left out"
    run_until(wired, place.store(), lambda run: run.progress().waits_for == waits_for)
    with Committed(wired, place.url) as committed:
        committed.drop_source("b")
    assert run_to_end(wired, place.store()).finished


def test_a_file_that_is_gone_may_be_given_up_while_a_run_waits_for_it(place: Place) -> None:
    files, dropped = place.directory / "files", list[str]()
    files.mkdir()
    for name in "xy":
        (files / name).write_text(f"0 {name}\n")

    def wired() -> Pipeline:
        found = Pipeline(place.name)
        source = FileSource(
            "files", files, tail=True, watermark=BoundedDisorder(0), later_files_not_before=1_000 * SECOND,
            event_time=lambda line: int(line.split()[0]) * SECOND,
        )  # fmt: skip
        found.inject(source, into=rows)
        found.add(Count, [subscribe(rows, key=lambda row: row.split()[1])])
        return found

    def drop(run: EmbeddedRun) -> bool:
        if run.progress().records >= 100 and not dropped:
            with Committed(wired(), place.url) as committed:
                assert committed.reader.watermarks().get("source:files", MIN_TIME) < 100 * SECOND
                dropped.extend(committed.drop_source("files", "y"))
        return bool(dropped) and watermark(100)(run)

    run_until(wired(), place.store(), records(2))
    (files / "y").unlink()
    with (files / "x").open("a") as file:
        file.writelines(f"{time} x\n" for time in range(1, 101))
    run_until(wired(), place.store(), drop)
