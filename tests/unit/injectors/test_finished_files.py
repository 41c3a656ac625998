"""What a source remembers, and asks for, of files that are read to their end."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from millwheel.errors import SourceError
from millwheel.limits import FILE_HEAD_LIMIT_BYTES
from millwheel.search import Unknown
from millwheel_injectors import BoundedDisorder, FileSource, SparkOutputSource
from millwheel_injectors import files as files_module
from millwheel_injectors import spark_output as spark_module
from millwheel_injectors.partition import TextPartition
from tests.unit.injectors.drain import Registry, read_all, stored, values_of

LONG = b"".join(b"line %d of a log that is long enough to be known by its beginning\n" % n for n in range(100))


def finish_all(registry: Registry, source: FileSource) -> list[str]:
    """Read what a search finds to its end, as a run does; the names."""
    names = []
    for partition in registry.search(source):
        batches = read_all(partition)
        registry.finish(partition.name, batches[-1].next_position, batches[-1].state)
        source.release(partition.name)
        names.append(partition.name)
    return names


def test_untouched_finished_files_are_neither_opened_nor_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"{number}.log").write_text(f"row {number}\n")
    source = FileSource("s", tmp_path, tail=True, quiet_us=0)
    registry = Registry(source)
    assert len(finish_all(registry, source)) == 20
    registry.steps.clear()
    monkeypatch.setattr(
        "millwheel_injectors.identity.inspect_file", lambda *_: pytest.fail("a finished file was opened")
    )
    assert registry.search() == registry.search() == []
    assert registry.steps == ["Unknown", "Unknown"]
    assert source._catalog.names() == set()
    assert (source._places, source._keys, source._partitions, source._catalog._looks) == ({}, {}, {}, {})
    assert source._frontier._running == {}


def test_the_store_is_asked_in_bulk_and_the_loop_has_its_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "ASKED_FILES", 8)
    monkeypatch.setattr(files_module, "LISTED_FILES", 4)
    for number in range(20):
        (tmp_path / f"{number}.log").write_text(f"row {number}\n")
    source = FileSource("s", tmp_path)
    registry = Registry(source)
    finish_all(registry, source)
    registry.steps.clear()
    (tmp_path / "new.log").write_text("row\n")
    (new,) = registry.search(FileSource("s", tmp_path))
    assert [value for batch in read_all(new) for value in batch.values] == ["row"]
    assert registry.steps.count("Unknown") == 3
    assert registry.steps.count("Find") == 1
    assert registry.steps.count("GiveWay") == 5


@pytest.mark.parametrize(
    "content", [LONG, b"short\n", gzip.compress(b"short\n", mtime=0)], ids=["long", "short", "packed"]
)
def test_a_finished_file_that_is_renamed_or_touched_is_noted_once(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.1").write_bytes(content)
    source = FileSource("s", tmp_path)
    registry = Registry(source)
    finish_all(registry, source)
    for change in (
        lambda: (tmp_path / "log.1").rename(tmp_path / "log.2"),
        lambda: os.utime(tmp_path / "log.2", (5, 5)),
    ):
        change()
        registry.steps.clear()
        assert registry.search(FileSource("s", tmp_path)) == []
        assert registry.steps == ["Unknown", "Find", "MoreSigns"]
        registry.steps.clear()
        assert registry.search(FileSource("s", tmp_path)) == []
        assert registry.steps == ["Unknown"]


def test_a_finished_file_is_known_by_a_long_beginning_when_it_was_copied(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "log").write_bytes(LONG)
    source = FileSource("s", tmp_path / "in")
    registry = Registry(source)
    finish_all(registry, source)
    (tmp_path / "in" / "log").rename(tmp_path / "kept")
    (tmp_path / "in" / "copy").write_bytes(LONG)
    assert registry.search(FileSource("s", tmp_path / "in")) == []
    (tmp_path / "in" / "other").write_bytes(LONG[:-1] + b"!\n")
    (other,) = registry.search(FileSource("s", tmp_path / "in"))
    assert other.name.count("~") == 1


def test_finished_files_that_begin_alike_are_known_by_their_beginnings_when_all_are_compressed(tmp_path: Path) -> None:
    logs = [tmp_path / f"{number}.log" for number in range(3)]
    for log in logs:
        log.write_bytes(b"banner\n" + log.name.encode() + LONG)
    source = FileSource("s", tmp_path)
    registry = Registry(source)
    assert len(finish_all(registry, source)) == 3
    for log in logs:
        (tmp_path / f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes()))
    for log in logs:
        log.rename(tmp_path / f".{log.name}")
    assert registry.search(FileSource("s", tmp_path)) == []


@pytest.mark.parametrize(("length", "known"), [(FILE_HEAD_LIMIT_BYTES, True), (FILE_HEAD_LIMIT_BYTES - 1, False)])
def test_a_finished_file_is_known_by_its_beginning_alone_from_4_kb_on(tmp_path: Path, length: int, known: bool) -> None:
    log = tmp_path / "log"
    log.write_bytes(LONG[: length - 1] + b"\n")
    registry = Registry(source := FileSource("s", tmp_path))
    finish_all(registry, source)
    log.rename(tmp_path / ".kept")
    (tmp_path / "copy").write_bytes(LONG[: length - 1] + b"\n")
    assert [read_all(found)[0].next_position for found in registry.search(FileSource("s", tmp_path))] == [
        LONG[: length - 1].count(b"\n") + 1
    ] * (not known)


def test_another_file_in_a_finished_ones_place_is_a_new_partition_whatever_name_is_free(tmp_path: Path) -> None:
    log = tmp_path / "log"
    names = set()
    registry = None
    for number in range(4):  # one inode, one path, one first line, another rest
        log.write_bytes(b"banner\n" + b"%d\n" % number * 2_000)
        source = FileSource("s", tmp_path)
        registry = registry or Registry(source)
        (name,) = finish_all(registry, source)
        names.add(name)
    base = min(names, key=len)
    assert sorted(name.count("~") for name in names) == [0, 1, 2, 2]
    assert all(name.startswith(base) for name in names)


def test_a_release_waits_for_the_next_search(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"1\n")
    source = FileSource("s", tmp_path, tail=True, quiet_us=0)
    registry = Registry(source)
    (partition,) = registry.search()
    (batch,) = read_all(partition)
    search = source.search(registry._known)  # begins while the file is not finished
    step = search.send(None)
    assert isinstance(step, Unknown)
    unfinished = {*step.signs}
    registry.finish(partition.name, 1, batch.state)
    source.release(partition.name)
    assert registry.drive(search, unfinished) == []


@pytest.mark.parametrize("later", ["untouched", "touched", "gone"])
def test_a_file_ends_when_it_is_quiet_and_a_later_one_is_there_also_a_finished_one(tmp_path: Path, later: str) -> None:
    def made() -> FileSource:
        policy = BoundedDisorder(0)
        return FileSource("s", tmp_path, event_time=int, watermark=policy, tail=True, ordered=True, quiet_us=0)

    (tmp_path / "2.log").write_text("20\n")
    (tmp_path / "3.log").write_text("30\n")
    registry = Registry(before := made())
    (first, _) = registry.search(before)
    (batch,) = read_all(first)
    registry.finish(first.name, batch.next_position, batch.state)
    (tmp_path / "3.log").unlink()
    (tmp_path / "1.log").write_text("10\n")
    if later == "touched":
        os.utime(tmp_path / "2.log", (5, 5))
    (left,) = registry.search(source := made())
    if later == "gone":
        (tmp_path / "2.log").unlink()
        assert registry.search(source) == []
    assert len(read_all(left)) == 1
    assert left.finished() is (later != "gone")


def test_of_a_run_of_spark_with_nothing_new_nobody_asks_where_its_files_are(tmp_path: Path) -> None:
    """They may be cleared away when they are read."""
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "_SUCCESS").touch()
    for part in ("part-0.json", "part-1.json"):
        (tmp_path / "run-1" / part).write_text('{"at": 1}\n')
    registry = Registry(SparkOutputSource("s", tmp_path, event_time="at"))
    for partition in registry.search():
        assert isinstance(partition, TextPartition)
        (batch,) = read_all(partition)
        registry.finish(partition.name, 1, batch.state)
    (tmp_path / "run-1" / "part-0.json").unlink()
    assert registry.search(SparkOutputSource("s", tmp_path, event_time="at")) == []


def test_a_run_of_spark_whose_name_begins_like_that_of_another_is_another(tmp_path: Path) -> None:
    for run in ("run-1", "run-10"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "_SUCCESS").touch()
        (tmp_path / run / "part-0.json").write_text('{"at": 1}\n')
    source = SparkOutputSource("s", tmp_path, event_time="at", tail=True)
    registry = Registry(source)
    assert len(registry.search()) == 2
    (tmp_path / "run-10" / "part-0.json").unlink()
    (tmp_path / "run-1" / "part-1.json").write_text('{"at": 1}\n')
    assert [partition.name for partition in registry.search()] == ["run-1/part-1.json"]


def test_a_process_that_was_there_meanwhile_has_named_the_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same\n")
    (tmp_path / "b").write_bytes(b"same\n")
    other, mine = FileSource("s", tmp_path), FileSource("s", tmp_path)
    registry = Registry(mine)
    for partition in other.discover(()):
        registry.begin(partition.name, partition.fingerprint())
    assert {partition.name for partition in registry.search(mine)} == {p.name for p in other.discover(())}


def test_an_overwritten_run_of_spark_is_refused_though_its_files_are_forgotten(tmp_path: Path) -> None:
    for run in ("run-1", "run-2"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "_SUCCESS").touch()
        (tmp_path / run / "part-0.json").write_text('{"at": 1}\n')
    source = SparkOutputSource("s", tmp_path, event_time="at")
    assert len(values_of(source)) == 2
    registry = Registry(source)
    for partition in registry.search():
        assert isinstance(partition, TextPartition)
        (batch,) = read_all(partition)
        registry.finish(partition.name, 1, batch.state)
        source.release(partition.name)
    again = SparkOutputSource("s", tmp_path, event_time="at", tail=True)
    assert registry.search(again) == []
    (tmp_path / "run-3").mkdir()
    (tmp_path / "run-3" / "part-0.json").write_text('{"at": 1}\n')
    (tmp_path / "run-3" / "_SUCCESS").touch()
    assert [partition.name for partition in registry.search(again)] == ["run-3/part-0.json"]
    (tmp_path / "run-2" / "part-0.json").rename(tmp_path / "run-2" / "part-1.json")
    with pytest.raises(SourceError, match=r"run-2/part-0.json: was read before, and the output was overwritten"):
        registry.search(SparkOutputSource("s", tmp_path, event_time="at"))


@pytest.mark.parametrize("finished", [True, False])
def test_an_overwritten_run_of_spark_is_refused_by_a_process_that_begins(tmp_path: Path, finished: bool) -> None:
    """It knows of it what the store says: of finished files by their run, of others because they are recalled."""
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "_SUCCESS").touch()
    (tmp_path / "run-1" / "part-0.json").write_text('{"at": 1}\n')
    source = SparkOutputSource("s", tmp_path, event_time="at")
    registry = Registry(source)
    (partition,) = registry.search()
    (batch,) = read_all(partition)
    if finished:
        registry.finish(partition.name, 1, batch.state)
    else:
        registry.begin(partition.name, batch.state)
    (tmp_path / "run-1" / "part-0.json").rename(tmp_path / "run-1" / "part-1.json")
    again = SparkOutputSource("s", tmp_path, event_time="at")
    again.recall([] if finished else [stored(partition, 1, batch.state)])
    with pytest.raises(SourceError, match=r"run-1/part-0.json: was read before, and the output was overwritten"):
        registry.drive(again.search(set()))


def test_of_many_files_of_spark_those_that_are_finished_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_module, "ASKED_FILES", 2)
    (tmp_path / "_SUCCESS").touch()
    for number in range(5):
        (tmp_path / f"part-{number}.json").write_text('{"at": 1}\n')
    source = SparkOutputSource("s", tmp_path, event_time="at")
    registry = Registry(source)
    for partition in registry.search()[:3]:
        registry.finish(partition.name, 1, read_all(partition)[0].state)
    found = registry.drive(SparkOutputSource("s", tmp_path, event_time="at").search(set()))
    assert [partition.name for partition in found] == ["part-3.json", "part-4.json"]


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("others", [["b"], ["a/sub"], ["."]])
def test_a_file_of_another_directory_is_another_file_whatever_it_is_called(
    tmp_path: Path, tail: bool, others: list[str]
) -> None:
    directories = [tmp_path / name for name in ("a", *others)]
    for directory in directories:
        directory.mkdir(exist_ok=True)
    (directories[0] / "x.log").write_text("row\n")
    (directories[1] / "y.log").write_text("another row\n")

    def source() -> FileSource:
        return FileSource("s", directories, tail=tail, quiet_us=0 if tail else None)

    registry = Registry(first := source())
    assert len(finish_all(registry, first)) == 2
    (directories[1] / "x.log").write_text("row\n")
    (new,) = registry.search(source())
    assert [value for batch in read_all(new) for value in batch.values] == ["row"]


@pytest.mark.parametrize("copied", [False, True])
def test_files_are_known_again_when_a_source_gets_a_second_directory(tmp_path: Path, copied: bool) -> None:
    """A store of an early version has no names of roots either.  Files that begin alike have names that tell nothing."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    alike = [tmp_path / "a" / "w.log", tmp_path / "a" / "x.log"]
    for path in alike:
        path.write_text(f"row\nof {path.name}\n")
    registry = Registry(source := FileSource("s", tmp_path / "a"))
    assert len(finish_all(registry, source)) == 2
    (tmp_path / "b" / "y.log").write_text("another row\n")
    for path in alike if copied else ():
        (tmp_path / "a" / "copy").write_bytes(path.read_bytes())
        (tmp_path / "a" / "copy").replace(path)
    found = registry.search(FileSource("s", [tmp_path / "a", tmp_path / "b"]))
    assert [batch.values for partition in found for batch in read_all(partition)] == [["another row"]]
    assert registry.search(FileSource("s", [tmp_path / "a", tmp_path / "b"])) == []


def test_files_of_several_directories_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for directory, name in (("z", "1.log"), ("a", "2.log"), ("z", "3.log")):
        (tmp_path / directory).mkdir(exist_ok=True)
        (tmp_path / directory / name).write_text(f"{name}\n")
    source = FileSource("s", [tmp_path / "z", tmp_path / "a"], ordered=True)
    assert [*values_of(source).values()] == [["1.log"], ["2.log"], ["3.log"]]


@pytest.mark.parametrize("more", ["six\nten\n", "tho\n"])
def test_a_finished_file_that_is_rewritten_behind_its_beginning_is_refused(tmp_path: Path, more: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LONG + b"one\ntwo\n")
    registry = Registry(source := FileSource("s", path))
    finish_all(registry, source)
    path.write_bytes(LONG + more.encode())
    os.utime(path, (1, 1))
    with pytest.raises(SourceError, match=r"rewritten: .*; restore the file, or give the new data a new file name"):
        registry.search(FileSource("s", path))


@pytest.mark.parametrize("more", ["six\nten\n", "tho\n"])
def test_a_file_in_the_place_of_a_finished_one_that_is_gone_is_another_one(tmp_path: Path, more: str) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(LONG + b"one\ntwo\n")
    registry = Registry(source := FileSource("s", path))
    finish_all(registry, source)
    (tmp_path / "new").write_bytes(LONG + more.encode())
    (tmp_path / "new").replace(path)
    (partition,) = registry.search(FileSource("s", path))
    assert [value for batch in read_all(partition) for value in batch.values][100:] == more.split()
    registry = Registry(source := FileSource("s", path))
    finish_all(registry, source)
    (tmp_path / "copy").write_bytes(path.read_bytes())
    (tmp_path / "copy").replace(path)
    assert registry.search(FileSource("s", path)) == [], "a copy is the same file"


@pytest.mark.parametrize("more", ["", "another row\n"])
def test_a_log_in_the_place_of_a_short_one_that_was_renamed_is_another_one(tmp_path: Path, more: str) -> None:
    path = tmp_path / "a.log"
    path.write_text("row\n")
    source = FileSource("s", tmp_path, tail=True, quiet_us=0)
    registry = Registry(source)
    finish_all(registry, source)
    path.rename(tmp_path / "a.log.1")
    assert registry.search() == []
    path.write_text(f"row\n{more}")
    (partition,) = registry.search()
    assert [value for batch in read_all(partition) for value in batch.values] == ["row", *more.split("\n")[:-1]]


def test_a_copy_in_the_place_of_a_finished_file_is_known_though_the_inode_is_another_files_by_now(
    tmp_path: Path,
) -> None:
    path, other = tmp_path / "a.log", tmp_path / "b.log"
    path.write_text("row\n")
    registry = Registry(source := FileSource("s", tmp_path, tail=True, quiet_us=0))
    finish_all(registry, source)
    other.hardlink_to(path)  # as the file system does that gives a new file the inode of one that is gone
    (tmp_path / ".copy").write_text("row\n")
    (tmp_path / ".copy").replace(path)
    other.write_text("another row\n")
    assert [batch.values for found in registry.search() for batch in read_all(found)] == [["another row"]]


def test_an_overwritten_run_of_spark_is_refused_by_the_process_that_reads_it(tmp_path: Path) -> None:
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "part-0.json").write_text('{"at": 1}\n')
    registry = Registry(SparkOutputSource("s", tmp_path, event_time="at", tail=True))
    assert len(registry.search()) == 1
    (tmp_path / "part-0.json").rename(tmp_path / "part-1.json")
    with pytest.raises(SourceError, match=r"part-0.json: was read before, and the output was overwritten"):
        registry.search()
