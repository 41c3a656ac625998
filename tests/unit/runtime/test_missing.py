"""What an earlier run had begun to read and is gone: said at once, and never read as something new."""

from __future__ import annotations

import itertools
import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millwheel import Computation, Context, JsonCoder, ListCell, Pipeline, Record, Stream, limits, subscribe
from millwheel.core.source import injector
from millwheel.errors import SourceError
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.source import Source
from millwheel_injectors import BoundedDisorder, FileSource, SparkOutputSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import run_to_end, run_until

ROWS = 200

rows = Stream("rows", JsonCoder(object))


class Keep(Computation[object]):
    values = ListCell(JsonCoder(object))

    def ProcessRecord(self, context: Context, record: Record[object]) -> None:
        self.values.append(record.value)


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(injector, "READ_LIMIT_ROWS", 10)
    monkeypatch.setattr(injector, "FIRST_READ_ROWS", 10)
    monkeypatch.setattr(injector, "UNACKED_LIMIT_READS", 1)
    monkeypatch.setattr(injector, "ADVANCE_DELAY_US", 0)
    monkeypatch.setattr(limits, "DISCOVER_DELAY_US", 20_000)


def pipeline(source: Source) -> Pipeline:
    wired = Pipeline("p")
    wired.inject(source, into=rows)
    wired.add(Keep, [subscribe(rows, lambda row: "all")], work_limit_records=10)
    return wired


def read_in_part(source: Source) -> MemoryStore:
    """A store whose source was read, and not to its end."""
    store = MemoryStore()
    progress = run_until(pipeline(source), store, lambda run: run.progress().records >= 50)
    assert not progress.finished
    return store


def kept(store: MemoryStore) -> int:
    cells = store.key_state.get("Keep", {}).get("all", {})
    return sum(1 for cell, entry in cells if cell == "values" and entry)


def texts(directory: Path) -> Path:
    directory.mkdir()
    for name in ("a.log", "b.log"):
        (directory / name).write_text("".join(f"{i} {name}\n" for i in range(ROWS)))
    return directory


def number(text: str) -> int:
    return int(text.split()[0])


def test_a_file_that_is_gone_before_its_end_ends_the_run(tmp_path: Path) -> None:
    def source() -> FileSource:
        return FileSource("logs", tmp_path / "in", event_time=number)

    store = read_in_part(FileSource("logs", texts(tmp_path / "in"), event_time=number))
    (tmp_path / "in" / "a.log").rename(tmp_path / "kept")
    with pytest.raises(
        SourceError, match=r"source logs: a\.log was read to row \d+, not to its end, and is gone; restore it"
    ):
        run_to_end(pipeline(source()), store)
    shutil.copy(tmp_path / "kept", tmp_path / "in" / "a.log")
    assert run_to_end(pipeline(source()), store).finished
    assert kept(store) == 2 * ROWS


def test_a_source_that_goes_on_says_what_it_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def source() -> FileSource:
        return FileSource("logs", tmp_path / "in", event_time=number, tail=True, later_files_not_before=10**9)

    texts(tmp_path / "in")
    store = read_in_part(source())
    (tmp_path / "in" / "a.log").rename(tmp_path / "kept")
    looks = itertools.count()
    with caplog.at_level(logging.WARNING, "millwheel"):
        run_until(pipeline(source()), store, lambda run: next(looks) > 60)
    (said,) = [record.getMessage() for record in caplog.records if "a.log" in record.getMessage()]
    assert said.startswith("source logs: a.log was read to row ")
    assert said.endswith("and is gone; the watermark waits for it: restore it, or drop it (millwheel source drop)")
    shutil.copy(tmp_path / "kept", tmp_path / "in" / "a.log")
    caplog.clear()
    run_until(pipeline(source()), store, lambda run: run.progress().watermarks["source:logs"] == ROWS - 1)
    assert not caplog.records


def test_a_file_of_an_ordered_log_that_comes_back_has_its_old_turn(tmp_path: Path) -> None:
    """Behind the younger one it would not be read before that is at its end, which is never here, or be late."""

    def source() -> FileSource:
        return FileSource("logs", tmp_path / "in", event_time=number, tail=True, ordered=True, quiet_us=10**12)

    (tmp_path / "in").mkdir()
    for n in (0, 1):
        (tmp_path / "in" / f"{n}.log").write_text("".join(f"{n * ROWS + i} {n}\n" for i in range(ROWS)))
    store = read_in_part(source())
    (tmp_path / "in" / "0.log").rename(tmp_path / "kept")
    younger_first: list[int] = []

    def all_kept(run: EmbeddedRun) -> bool:
        progress = run.progress()
        if progress.records >= ROWS and not younger_first:
            younger_first.append(progress.watermarks["source:logs"])
            shutil.copy(tmp_path / "kept", tmp_path / "in" / "0.log")
        return progress.watermarks["source:logs"] >= ROWS - 1

    progress = run_until(pipeline(source()), store, all_kept)
    assert younger_first[0] < ROWS - 1
    assert progress.late == 0
    assert run_until(pipeline(source()), store, lambda run: kept(store) == 2 * ROWS).late == 0


def spark_output(directory: Path, name: str) -> Path:
    directory.mkdir(exist_ok=True)
    pq.write_table(pa.table({"ts": pa.array(range(ROWS), pa.int64())}), directory / f"part-0-{name}.parquet")
    (directory / "_SUCCESS").touch()
    return directory


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("parent", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_an_overwritten_output_of_spark_is_not_read_again(
    tmp_path: Path, tail: bool, parent: bool, whole: bool
) -> None:
    out = spark_output(tmp_path / "out", "aaa")

    def source(tail: bool = tail) -> SparkOutputSource:
        return SparkOutputSource("s", tmp_path if parent else out, "ts", BoundedDisorder(0), tail=tail)

    store = MemoryStore()
    if whole:
        run_to_end(pipeline(source(tail=False)), store)
    else:
        store = read_in_part(source())
    (out / "part-0-aaa.parquet").unlink()
    spark_output(out, "bbb")
    with pytest.raises(SourceError, match=r"out/part-0-aaa\.parquet: .*overwritten"):
        run_to_end(pipeline(source()), store)
    if parent and whole:  # what was read may be tidied away as a whole
        shutil.rmtree(out)
        spark_output(tmp_path / "next", "ccc")
        run_to_end(pipeline(source(tail=False)), store)
        assert kept(store) == 2 * ROWS
