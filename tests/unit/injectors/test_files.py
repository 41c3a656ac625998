"""Files: positions, growth, rename, rotation, rewriting."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import os
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millwheel.errors import SourceError
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.ports import SourcePartition
from millwheel.search import Find, Search, Step, Unknown, alone
from millwheel_injectors import (
    BoundedDisorder,
    Csv,
    Exact,
    FileCreation,
    FileSource,
    JsonLines,
    TextLines,
    modification_time,
)
from millwheel_injectors import streams as streams_module
from millwheel_injectors.formats import Format
from millwheel_injectors.streams import open_stream
from millwheel_injectors.watermarks import Policy
from tests.effort import examples
from tests.unit.injectors.drain import (
    SEES_OPEN_FILES,
    Clock,
    Registry,
    only,
    opened,
    read_all,
    reject_lines,
    rows_of,
    stored,
    values_of,
)

HUGE = 10**6


def number(value: Any) -> int:
    return int(value)


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def texts(partition: SourcePartition) -> list[str]:
    return [value for _, value, _ in rows_of(read_all(partition))]


FILES: dict[str, tuple[Format, bytes]] = {
    "text": (TextLines(), b"1 one\r\n\n2 two\nbad\xff\n3 three\n" * 7 + b"last"),
    "json": (JsonLines(), b'{"a": 1}\n\n[2, 3]\n{oops\n"x"\n' * 7),
    "csv": (Csv(), b'a,b\n"multi\nline\n",c\n\n"bad"x,1\nd,"e ""f"""\n' * 7 + b"g,h"),
    "header": (Csv(header=True), b'k,"v\nw"\n' + b'a,b\n"multi\nline",c\n1,2,3\n' * 5),
}


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(sorted(FILES)),
    packed=st.booleans(),
    limits=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    stop=st.integers(0, 40),
    behind=st.integers(0, 3),
)
def test_a_restart_gives_the_same_row_numbers_at_every_position(
    tmp_path: Path, kind: str, packed: bool, limits: list[int], stop: int, behind: int
) -> None:
    form, data = FILES[kind]
    path = tmp_path / f"{kind}-{packed}"
    if not path.exists():
        path.write_bytes(gzip.compress(data[:50]) + gzip.compress(data[50:]) if packed else data)

    def source() -> FileSource:
        return FileSource("s", path, form, event_time=lambda value: 7)

    whole = rows_of(read_all(only(source())))
    rejected = sum(b.rejected for b in read_all(only(source())))
    assert len(whole) >= 10
    assert rejected

    first = only(source())
    before, state, position = [], first.fingerprint(), 0
    states = [(0, state)]
    while position < stop and (batch := first.read(limits[position % len(limits)])):
        assert len(batch.rows) <= limits[position % len(limits)]
        before.append(batch)
        position, state = batch.next_position, batch.state
        states.append((position, state))
    second = only(source())
    assert second.name == first.name
    # The state may be older than the position, and the other way round.
    second.resume(position, states[max(0, len(states) - 1 - behind)][1])
    assert rows_of(before) + rows_of(read_all(second, 5)) == whole
    third = only(source())
    third.resume(states[max(0, len(states) - 1 - behind)][0], state)
    done = states[max(0, len(states) - 1 - behind)][0]
    assert rows_of(read_all(third)) == [row for row in whole if row[0] >= done]


def test_a_complete_file_ends_with_its_last_line_even_without_a_newline(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1\n2")
    source = FileSource("s", tmp_path / "a")
    partition = only(source)
    assert not partition.finished()
    assert texts(partition) == ["1", "2"]
    assert partition.finished()
    assert partition.watermark() == MAX_TIME
    assert source.complete()


@SEES_OPEN_FILES
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_that_is_read_to_its_end_is_closed(tmp_path: Path, packed: bool) -> None:
    place, lines = tmp_path / "a", b"1\n2\n"
    place.write_bytes(gzip.compress(lines) if packed else lines)
    partition = only(FileSource("s", place))
    assert partition.read(1) is not None
    assert opened(place) == 1
    read_all(partition)
    assert (partition.finished(), opened(place)) == (True, 0)


def test_a_tailed_last_line_is_a_row_once_it_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    source = FileSource("s", log, tail=True)
    assert source.discover(()) == []
    log.write_bytes(b"on")
    assert source.discover(()) == []
    append(log, b"e\ntw")
    partition = only(source)
    assert texts(partition) == ["one"]
    assert not partition.finished()
    append(log, b"o\n")
    batch = partition.read(10)
    assert batch is not None
    assert (batch.rows, batch.values, batch.next_position) == ([1], ["two"], 2)
    assert source.discover({partition.name}) == []
    assert not source.complete()


def test_directories_and_patterns_give_files_by_path(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", ".hidden", "c.txt"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "below").mkdir()
    assert list(values_of(FileSource("s", tmp_path)).values()) == [["a.log"], ["b.log"], ["c.txt"]]
    assert list(values_of(FileSource("s", str(tmp_path / "*.log"))).values()) == [["a.log"], ["b.log"]]
    both = FileSource("s", [tmp_path / "c.txt", tmp_path / "*.txt", tmp_path / "a.log"])
    assert list(values_of(both).values()) == [["a.log"], ["c.txt"]]
    with pytest.raises(SourceError, match="no file at"):
        FileSource("s", tmp_path / "*.none").discover(())


def test_a_complete_source_leaves_empty_files_out(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    source = FileSource("s", tmp_path)
    assert source.discover(()) == []
    assert source.complete()


def test_rename_while_reading_and_over_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    partition = only(FileSource("s", tmp_path, tail=True))
    batch = partition.read(1)
    assert batch is not None
    log.rename(tmp_path / "moved")
    assert texts(partition) == ["2", "3"]

    again = FileSource("s", tmp_path, tail=True)
    again.recall([stored(partition, 1, batch.state)])
    renamed = only(again)
    assert renamed.name == partition.name
    (tmp_path / "moved").rename(tmp_path / "again")
    renamed.resume(1, batch.state)
    assert texts(renamed) == ["2", "3"]


def test_rotation_with_files_that_begin_alike(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"# banner\na1\n")
    source = FileSource("s", tmp_path, tail=True)
    old = only(source)
    (batch,) = read_all(old)
    log.rename(tmp_path / "log.1")
    append(tmp_path / "log.1", b"a2\n")
    log.write_bytes(b"# banner\nb1\n")
    (new,) = source.discover({old.name})
    assert texts(new) == ["# banner", "b1"]
    assert texts(old) == ["a2"]

    again = FileSource("s", tmp_path, tail=True)
    again.recall([stored(old, batch.next_position, batch.state), stored(new, 0, new.fingerprint())])
    by_name = {p.name: p for p in again.discover(())}
    by_name[old.name].resume(batch.next_position, batch.state)
    assert texts(by_name[old.name]) == ["a2"]
    assert texts(by_name[new.name]) == ["# banner", "b1"]


def test_a_log_keeps_its_position_when_rotation_compresses_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % n for n in range(2000)))
    old = only(FileSource("s", tmp_path, tail=True))
    batch = old.read(1500)
    assert batch is not None
    with gzip.open(tmp_path / "log.gz", "wb") as file:
        file.write(log.read_bytes())
    both = FileSource("s", tmp_path, tail=True)
    assert [p.name for p in both.discover(())] == [old.name]
    log.unlink()
    (tmp_path / "log.gz").rename(tmp_path / "log.1.gz")
    assert both.discover({old.name}) == []

    again = FileSource("s", tmp_path, tail=True)
    again.recall([stored(old, 1500, batch.state)])
    packed = only(again)
    packed.resume(1500, batch.state)
    assert texts(packed) == [f"line {n}" for n in range(1500, 2000)]


def test_lines_behind_one_that_is_too_long_are_read_also_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams_module, "VALUE_LIMIT_BYTES", 100)
    monkeypatch.setattr(streams_module, "REJECT_SAMPLE_BYTES", 10)
    monkeypatch.setattr(streams_module, "FILE_CHUNK_BYTES", 7)
    (tmp_path / "a").write_text(
        "".join(f"{number:03}" for number in range(100)) + "\n" + "".join(f"{number}\n" for number in range(50))
    )
    source = FileSource("s", tmp_path / "a", rejects=tmp_path / "rejects")
    partition = only(source)
    begun = partition.read(1)
    assert begun is not None
    assert (begun.rows, begun.rejected, begun.next_position) == ([], 1, 1)
    again = only(FileSource("s", tmp_path / "a", rejects=tmp_path / "rejects"))
    again.resume(1, begun.state)
    for one in (partition, again):
        assert [(row, value) for row, value, _ in rows_of(read_all(one))] == [(n + 1, str(n)) for n in range(50)]
    assert [line.row for line in reject_lines(tmp_path / "rejects")] == [0]


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_looks_untouched_only_while_all_of_it_was_read(tmp_path: Path, compressed: bool) -> None:
    place = tmp_path / "a"
    place.write_bytes(gzip.compress(b"one\n") if compressed else b"one\n")
    stream = open_stream(place)
    while stream.read():
        pass
    status = place.stat()
    assert stream.look(4) == (status.st_size, status.st_mtime_ns)
    append(place, gzip.compress(b"two\n") if compressed else b"two\n")
    assert stream.look(4) == (-1, 0)
    with place.open("r+b") as file:
        file.truncate(3)
    with pytest.raises(SourceError, match="truncated"):
        stream.read()
    stream.close()


def test_rows_that_are_skipped_at_a_start_are_not_rejected_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no json\n1\n2\n")
    source = FileSource("s", tmp_path / "a", JsonLines(int), event_time=lambda value: value)
    partition = only(source)
    partition.resume(2, partition.fingerprint())
    assert [row for row, _, _ in rows_of(read_all(partition))] == [2]
    assert source.rejections() == {}


def test_a_file_that_two_patterns_name_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text("one\n")
    (tmp_path / "in" / "b.log").write_text("two\n")
    for also in (tmp_path / "in" / "a.log", tmp_path / "*" / "a.log"):
        source = FileSource("s", [also, tmp_path / "in" / "*.log"])
        assert sorted(values_of(source).values()) == [["one"], ["two"]]


def test_a_file_takes_its_last_place_into_its_position(tmp_path: Path) -> None:
    """By that it is told to people, and found again by the next start."""
    (tmp_path / "a").write_text("1\n2\n3\n")
    source = FileSource("s", tmp_path, tail=True)
    (partition,) = source.discover(())

    def title() -> str:
        batch = partition.read(1)
        assert batch is not None
        return source.title(stored(partition, batch.next_position, batch.state))

    assert title() == "a"
    (tmp_path / "a").rename(tmp_path / "b")
    assert source.discover({partition.name}) == []
    assert title() == "b"
    partition.close()
    (tmp_path / "b").rename(tmp_path / "c")
    assert title() == "c"


def test_a_file_that_follows_a_finished_one_in_its_place_is_another_one(tmp_path: Path) -> None:
    """Also before anybody has said that the first one's end is stored."""
    (tmp_path / "a").write_text("1\n")
    source = FileSource("s", tmp_path, tail=True, quiet_us=0)
    (first,) = source.discover(())
    read_all(first)
    assert first.finished()
    (tmp_path / "next").write_text("2\n")
    (tmp_path / "next").rename(tmp_path / "a")
    (second,) = source.discover({first.name})
    assert rows_of(read_all(second))[0][1] == "2"


@pytest.mark.parametrize("pattern", ["", "*", "*.log", "**/*.log"])
def test_links_that_lead_nowhere_are_no_files(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.log").write_bytes(b"line\n")
    (tmp_path / "circle.log").symlink_to("circle.log")
    (tmp_path / "there.log").symlink_to("back.log")
    (tmp_path / "back.log").symlink_to("there.log")
    (tmp_path / "gone.log").symlink_to("nothing")
    assert texts(only(FileSource("s", tmp_path / pattern))) == ["line"]


def test_a_link_to_a_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a").write_bytes(b"line\n")
    (tmp_path / "read").mkdir()
    (tmp_path / "read" / "a").symlink_to(tmp_path / "kept" / "a")
    assert texts(only(FileSource("s", tmp_path / "read"))) == ["line"]


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("bzip2", bz2.compress(b"a\n" * 99)),
        ("bzip2", bz2.compress(b"a\n" * 99, 1)),
        ("xz", lzma.compress(b"a\n" * 99)),
        ("zstd", b"\x28\xb5\x2f\xfd\x04\x58\n"),
        ("lz4", b"\x04\x22\x4d\x18\x64\x40\n"),
    ],
)
@pytest.mark.parametrize("tail", [False, True])
def test_a_file_that_is_compressed_in_another_way_is_refused(
    kind: str, data: bytes, tail: bool, tmp_path: Path
) -> None:
    """Its bytes are no lines: they were values of a pipeline, in an encoding that takes any byte."""
    (tmp_path / "a.log").write_bytes(data)
    with pytest.raises(SourceError, match=f"a.log: compressed with {kind}, and only gzip is read"):
        FileSource("s", tmp_path, TextLines("latin-1"), tail=tail).discover(())


def test_files_with_the_same_first_bytes_are_two_partitions(tmp_path: Path) -> None:
    head = b"x" * 5000 + b"\n"
    (tmp_path / "a").write_bytes(head + b"1\n")
    (tmp_path / "b").write_bytes(head + b"2\n")
    source = FileSource("s", tmp_path)
    a, b = source.discover(())
    assert (texts(a)[1:], texts(b)[1:]) == (["1"], ["2"])
    last = {p.name: stored(p, 0, p.fingerprint()) for p in (a, b)}

    # Restarted, with the first of them gone, each keeps its name.
    (tmp_path / "a").unlink()
    again = FileSource("s", tmp_path)
    again.recall(last.values())
    assert only(again).name == b.name


def test_equal_small_files_one_after_the_other_are_two_partitions(tmp_path: Path) -> None:
    (tmp_path / "monday").write_bytes(b"total 0\n")
    monday = only(FileSource("s", tmp_path))
    (batch,) = read_all(monday)
    (tmp_path / "keeps its inode").hardlink_to(tmp_path / "monday")
    (tmp_path / "keeps its inode").rename(tmp_path / ".kept")
    (tmp_path / "monday").unlink()
    (tmp_path / "tuesday").write_bytes(b"total 0\n")
    again = FileSource("s", tmp_path)
    registry = Registry(again)
    registry.finish(monday.name, 1, batch.state)
    (tuesday,) = registry.search()
    assert tuesday.name.startswith(monday.name + "~")
    assert texts(tuesday) == ["total 0"]
    assert registry.search() == []


def test_a_copied_directory_keeps_partitions(tmp_path: Path) -> None:
    source = tmp_path / "one"
    source.mkdir()
    for name in ("a", "b"):
        (source / name).write_text(f"same\n{name}\n")
    partitions = FileSource("s", source).discover(())
    first = [p.read(1) for p in partitions]
    shutil.copytree(source, tmp_path / "two")
    again = FileSource("s", tmp_path / "two")
    again.recall([stored(p, 1, b.state) for p, b in zip(partitions, first, strict=True) if b])
    for partition, before, rest in zip(again.discover(()), first, ("a", "b"), strict=True):
        assert before is not None
        partition.resume(1, before.state)
        assert texts(partition) == [rest]


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"2\n1\n3\n", "rewritten"), (b"1\n9\n3\n", "rewritten"), (b"1\n", "rewritten|truncated"), (b"", "rewritten")],
)
@pytest.mark.parametrize("tail", [False, True])
def test_a_file_rewritten_between_runs_is_refused(tmp_path: Path, content: bytes, said: str, tail: bool) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    partition = only(FileSource("s", tmp_path, tail=tail))
    batch = partition.read(2)
    assert batch is not None
    log.write_bytes(content)
    again = FileSource("s", tmp_path, tail=tail)
    again.recall([stored(partition, 2, batch.state)])
    with pytest.raises(SourceError, match=f"log: ({said}).*restore the file"):
        only(again).resume(2, batch.state)


def disturbed(search: Search, at: int, during: Callable[[], None], steps: list[int]) -> Search:
    """The same search, but something happens before its step `at` is answered; adds how many steps it had to `steps`."""
    answer: Any = None
    for number in count():
        try:
            step = search.send(answer)
        except StopIteration as end:
            steps.append(number)
            found: list[SourcePartition] = end.value
            return found
        if number == at:
            during()
        answer = yield step
    raise AssertionError("a search ends")


@pytest.mark.parametrize("renamed", [False, True])
@pytest.mark.parametrize("many", [False, True])
def test_what_is_written_and_read_during_a_search_is_no_rewriting(tmp_path: Path, many: bool, renamed: bool) -> None:
    # The head of a short file grows with what is read, and a search may have looked at the file before that.
    log = tmp_path / "log"
    log.write_text("0\n")
    source = FileSource("log", tmp_path if many else log, event_time=int, tail=True)
    partition, steps = only(source), [1]
    assert texts(partition) == ["0"]

    def grow() -> None:
        nonlocal log
        with log.open("a") as more:
            more.write(f"{len(steps)}\n")
        assert texts(partition) == [f"{len(steps)}"]
        if renamed and many:
            log = log.rename(tmp_path / f"log.{len(steps)}")

    while len(steps) <= steps[-1]:  # in each step once, of one search after the other
        assert alone(disturbed(source.search({partition.name}), len(steps) - 1, grow, steps)) == []
    assert len(steps) > 2


def test_a_rewritten_file_is_refused_even_when_the_source_was_told_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    partition = only(FileSource("s", log))
    batch = partition.read(2)
    assert batch is not None
    log.write_bytes(b"1\n2 and more\n3\n")
    again = only(FileSource("s", log))
    assert again.name == partition.name
    with pytest.raises(SourceError, match="rewritten"):
        again.resume(2, batch.state)


def test_bytes_changed_behind_the_head_are_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [b"line %d" % n for n in range(1000)]
    log.write_bytes(b"\n".join(lines) + b"\n")
    batch = only(FileSource("s", log)).read(900)
    assert batch is not None
    lines[895] = b"LINE 895"
    log.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(SourceError, match="rewritten"):
        only(FileSource("s", log)).resume(900, batch.state)


@pytest.mark.parametrize("resumed", [False, True])
def test_truncation_and_rewriting_while_reading_are_refused(tmp_path: Path, resumed: bool) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    source = FileSource("s", log, tail=True)
    partition = only(source)
    if resumed:
        begun = only(FileSource("s", log)).read(2)
        assert begun is not None
        partition.resume(2, begun.state)
    assert texts(partition) == ["1", "2", "3"][2 * resumed :]
    os.truncate(log, 2)
    with pytest.raises(SourceError, match="truncated: 2 bytes are left of at least 6"):
        partition.read(10)
    with open(log, "r+b") as file:
        file.write(b"4\n5\n6\n7\n")
    with pytest.raises(SourceError, match="rewritten"):
        source.discover({partition.name})


def test_another_file_in_the_place_of_an_unfinished_one_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n3\n")
    partition = only(FileSource("s", log, tail=True))
    batch = partition.read(1)
    assert batch is not None
    log.rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    log.write_bytes(b"x\n")
    again = FileSource("s", log, tail=True)
    again.recall([stored(partition, 1, batch.state)])
    with pytest.raises(SourceError, match="rewritten"):
        again.discover(())
    finished = FileSource("s", log, tail=True)
    registry = Registry(finished)
    registry.finish(partition.name, 3, batch.state)
    (new,) = registry.search()
    assert texts(new) == ["x"]


def test_a_deleted_file_is_read_to_its_end_while_it_is_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n")
    source = FileSource("s", log, tail=True)
    partition = only(source)
    partition.read(1)
    log.unlink()
    assert source.discover({partition.name}) == []
    assert texts(partition) == ["2"]
    gone = FileSource("s", tmp_path / "*.log", tail=True)
    (tmp_path / "x.log").write_bytes(b"1\n")
    unread = only(gone)
    (tmp_path / "x.log").unlink()
    with pytest.raises(SourceError, match="gone before it was read"):
        unread.read(1)


@pytest.mark.parametrize("more", [b"3\n", b"\n"])
def test_a_file_that_grew_after_its_end_is_refused(tmp_path: Path, more: bytes) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"1\n2\n")
    partition = only(FileSource("s", log))
    (batch,) = read_all(partition)
    append(log, more)
    again = FileSource("s", log)
    registry = Registry(again)
    registry.finish(partition.name, 2, batch.state)
    with pytest.raises(SourceError, match=f"grew from 4 to {4 + len(more)} .*a longer quiet_us"):
        registry.search()


# gzip


def test_gzip_members_are_one_file_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(gzip.compress(b"1\n2") + b"\0" * 7 + gzip.compress(b"") + gzip.compress(b"2\n3\n"))
    partition = only(FileSource("s", path))
    assert texts(partition) == ["1", "22", "3"]
    assert partition.finished()


def test_a_truncated_gzip_waits_when_tailed_and_is_refused_otherwise(tmp_path: Path) -> None:
    data = gzip.compress(b"".join(b"%d\n" % n for n in range(20_000)), 1)
    path = tmp_path / "log.gz"
    path.write_bytes(data[: len(data) // 2])
    complete = only(FileSource("s", path))
    with pytest.raises(SourceError, match="truncated gzip"):
        read_all(complete)

    clock = Clock(HUGE * HUGE * HUGE)
    tailed = only(FileSource("s", path, tail=True, quiet_us=0, clock=clock))
    before = texts(tailed)
    assert 0 < len(before) < 20_000
    assert not tailed.finished()
    append(path, data[len(data) // 2 :])
    assert before + texts(tailed) == [str(n) for n in range(20_000)]


def test_a_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"1\n" * 100) + b"garbage")
    with pytest.raises(SourceError, match="damaged gzip"):
        only(FileSource("s", path)).read(1000)


def test_a_gzip_that_explodes_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(b"0\n" * 5_000_000))
    partition = only(FileSource("s", path))
    batches = read_all(partition, 10**9)
    assert max(len(b.rows) for b in batches) <= 1 << 20
    assert batches[-1].next_position == 5_000_000


# rejects


def test_malformed_rows_are_kept_once_over_restarts(tmp_path: Path) -> None:
    path, rejects = tmp_path / "in" / "rows", tmp_path / "out" / "rejects"
    path.parent.mkdir()
    path.write_bytes(b"1\nx\n3\n\xff\n5\n-\n7\n")
    first = only(FileSource("s", path, event_time=number, rejects=rejects))
    batches = [first.read(3), first.read(2)]
    assert [b and (b.rows, b.rejected) for b in batches] == [([0, 2], 1), ([4], 1)]
    assert batches[0] is not None

    again = only(FileSource("s", path, event_time=number, rejects=rejects))
    again.resume(3, batches[0].state)
    assert [(b.rows, b.rejected) for b in read_all(again)] == [([4, 6], 2)]
    lines = reject_lines(rejects)
    assert [(r.partition, r.row, r.text) for r in lines] == [
        (first.name, 1, "x"),
        (first.name, 3, "\\xff"),
        (first.name, 5, "-"),
    ]
    assert lines[0].reason.startswith("event time: ValueError")


@pytest.mark.parametrize("bad", [None, 1.5, True, "1", MIN_TIME, MAX_TIME])
def test_an_event_time_that_is_none_is_a_reject(tmp_path: Path, bad: object) -> None:
    (tmp_path / "rows").write_text("a\nb\n")
    source = FileSource("s", tmp_path / "rows", event_time=lambda v: bad if v == "a" else 1)  # type: ignore[arg-type, return-value]
    (batch,) = read_all(only(source))
    assert (batch.rows, batch.values, batch.timestamps, batch.rejected) == ([1], ["b"], [1], 1)


def test_a_batch_of_nothing_but_rejects_still_moves_on(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("x\ny\n1\n")
    partition = only(FileSource("s", tmp_path / "rows", event_time=number))
    batch = partition.read(2)
    assert batch is not None
    assert (batch.rows, batch.next_position, batch.rejected) == ([], 2, 2)


def test_rows_the_pipeline_refuses_join_the_rejects(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1\n")
    source = FileSource("s", tmp_path / "rows", rejects=tmp_path / "rejects")
    source.reject("p", 5, "no key", {"a": {1}})
    source.reject("p", 3, "no key", object)
    source.reject("p", 5, "no key", {"a": {1}})
    assert [(r.row, r.reason) for r in reject_lines(tmp_path / "rejects")] == [(5, "no key"), (3, "no key")]


def test_a_rejected_row_is_told_with_the_path_of_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A partition's name is a hash, by which nobody finds the row."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("1\nx\n")
    for rejects in (None, tmp_path / "rejects"):
        source = FileSource("s", tmp_path / "in" / "*.txt", event_time=number, rejects=rejects)
        partition = only(source)
        with caplog.at_level(logging.WARNING, "millwheel.injectors"):
            read_all(partition)
            source.reject(partition.name, 0, "no key", "1")
    assert [record.getMessage().partition(" of ")[2][:6] for record in caplog.records] == ["a.txt:", "a.txt:"]
    assert [(line.row, line.file) for line in reject_lines(tmp_path / "rejects")] == [(1, "a.txt"), (0, "a.txt")]


# watermarks and the end


def test_bounded_disorder_follows_the_newest_row_and_survives_a_restart(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("100\n90\n120\n80\n")
    source = FileSource("s", tmp_path / "rows", event_time=number, watermark=BoundedDisorder(15))
    partition = only(source)
    assert partition.watermark() == MIN_TIME
    seen = []
    while batch := partition.read(1):
        seen.append(partition.watermark())
        last = batch
    assert seen == [85, 85, 105, 105]
    again = only(source)
    again.resume(last.next_position, last.state)
    assert again.watermark() == 105


def test_the_exact_watermark_is_the_oldest_row_to_come(tmp_path: Path) -> None:
    rows = [*range(10_000, 20_000), *range(5_000, 10_000)]
    (tmp_path / "rows").write_text("junk\n" + "".join(f"{n}\n" for n in rows))
    partition = only(FileSource("s", tmp_path / "rows", event_time=number, watermark=Exact()))
    assert partition.watermark() == 5_000
    at = 0
    while batch := partition.read(4096):
        at = batch.next_position
        assert partition.watermark() <= min(rows[at - 1 :], default=MAX_TIME)
    assert partition.watermark() == MAX_TIME
    with pytest.raises(ValueError, match="complete files"):
        FileSource("s", tmp_path / "rows", watermark=Exact(), tail=True)


def test_file_creation_bounds_live_files_and_those_to_come(tmp_path: Path) -> None:
    clock = Clock(1000 * SECOND)
    policy = FileCreation(slack_us=3, created=lambda path: int(path.name))
    source = FileSource("s", tmp_path, event_time=number, watermark=policy, tail=True, clock=clock)
    (tmp_path / "500").write_text("501\n502\n")
    partition = only(source)
    assert partition.watermark() == 497
    assert source.pending_watermark() == 1000 * SECOND - 3
    read_all(partition)
    assert partition.watermark() == 497

    by_row = FileSource("s", tmp_path, event_time=number, watermark=FileCreation(3), tail=True)
    partition = only(by_row)
    (batch,) = read_all(partition)
    again = only(by_row)
    again.resume(2, batch.state)
    assert partition.watermark() == again.watermark() <= 498
    append(tmp_path / "500", b"600\n550\n")
    assert [row for row, _, _ in rows_of(read_all(again))] == [2, 3]
    assert again.watermark() <= 498, "a file is as old as its first row"


def test_what_is_not_discovered_yet_holds_unless_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("100\n")
    complete = FileSource("s", tmp_path, event_time=number)
    assert (complete.complete(), complete.pending_watermark()) == (False, MIN_TIME)
    complete.discover(())
    assert (complete.complete(), complete.pending_watermark()) == (True, MAX_TIME)
    tailed = FileSource("s", tmp_path, tail=True)
    tailed.discover(())
    assert tailed.pending_watermark() == MIN_TIME
    for later in (7, lambda: 7):
        bounded = FileSource("s", tmp_path, tail=True, later_files_not_before=later)
        bounded.discover(())
        assert bounded.pending_watermark() == 7


def finish(search: Search, step: Step) -> list[SourcePartition]:
    """What a search finds that has come to `step`, when nothing is finished."""
    while True:
        try:
            step = search.send({*step.signs} if isinstance(step, Unknown) else [] if isinstance(step, Find) else None)
        except StopIteration as end:
            found: list[SourcePartition] = end.value
            return found


def test_the_bound_on_later_files_is_asked_for_before_they_are_looked_for(tmp_path: Path) -> None:
    # A file that comes while a long look is under way is not in it, and may be older than a bound that is asked for later.
    (tmp_path / "a").write_text("100\n")
    clock = Clock(5)
    source = FileSource("s", tmp_path, tail=True, later_files_not_before=lambda: clock.now)
    search = source.search(set())
    step = next(search)
    clock.now = 9
    (tmp_path / "b").write_text("7\n")
    found = finish(search, step)
    assert len(found) == 1
    assert source.pending_watermark() == 5


def test_an_ordered_tail_goes_on_with_the_next_file(tmp_path: Path) -> None:
    clock = Clock(0)
    (tmp_path / "1").write_text("100\n110")
    source = FileSource(
        "s", tmp_path, event_time=number, watermark=BoundedDisorder(10), tail=True, ordered=True, clock=clock
    )
    assert source.ordered
    first = only(source)
    read_all(first)
    assert (first.watermark(), source.pending_watermark()) == (90, 90)
    clock.now = HUGE**3
    assert first.read(1) is None
    assert not first.finished()
    (tmp_path / "2").write_text("200\n")
    (second,) = source.discover({first.name})
    assert second.watermark() == MIN_TIME
    assert texts(first) == ["110"]
    assert first.finished()
    assert first.watermark() == MAX_TIME
    assert source.pending_watermark() == 100
    append(tmp_path / "1", b"late\n")
    with pytest.raises(SourceError, match="grew from 7"):
        source.discover({first.name, second.name})


def test_a_single_tailed_log_is_ordered_and_its_successor_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("1\n")
    source = FileSource("s", log, tail=True, event_time=number, quiet_us=0)
    assert source.ordered
    assert source.idle_after_us is None
    first = only(source)
    assert texts(first) == ["1"]
    assert not first.finished()
    log.rename(tmp_path / "log.1")
    log.write_text("2\n")
    (second,) = source.discover({first.name})
    assert first.read(1) is None
    assert first.finished()
    assert texts(second) == ["2"]


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_that_appears_later_is_a_directory(tmp_path: Path, there: bool) -> None:
    """It was taken for a log, whose files follow each other: a file that sorts before was waited behind for ever."""
    place = tmp_path / "in"
    if there:
        place.mkdir()
    source = FileSource("s", place, tail=True, event_time=number, quiet_us=0)
    assert source.discover(()) == []
    place.mkdir(exist_ok=True)
    (place / "b").write_text("5\n")
    first = only(source)
    assert texts(first) == ["5"]
    assert (source.ordered, source.pending_watermark()) == (False, MIN_TIME)
    (place / "a").write_text("1\n")
    (second,) = source.discover({first.name})
    assert texts(second) == ["1"]
    assert first.read(1) is None
    assert first.finished()


@pytest.mark.parametrize("there", [True, False])
def test_a_log_that_appears_later_is_a_log(tmp_path: Path, there: bool) -> None:
    log = tmp_path / "log"
    if there:
        log.write_text("")
    source = FileSource("s", log, tail=True, event_time=number, quiet_us=0)
    assert (source.discover(()), source.pending_watermark()) == ([], MIN_TIME)
    log.write_text("1\n")
    first = only(source)
    assert texts(first) == ["1"]
    assert (source.ordered, source.pending_watermark()) == (True, 1)
    assert first.read(1) is None
    assert not first.finished()


def test_what_a_path_is_may_be_said_before_it_is_there(tmp_path: Path) -> None:
    source = FileSource("s", tmp_path / "in", tail=True, ordered=True)
    assert source.discover(()) == []
    (tmp_path / "in").mkdir()
    source.discover(())
    assert source.ordered


def test_a_file_of_an_unordered_tail_is_not_finished_however_quiet_it_is(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    partition = only(FileSource("s", tmp_path, tail=True, clock=Clock(2**60)))
    assert texts(partition) == ["1"]
    append(tmp_path / "a", b"2\n")
    assert texts(partition) == ["2"]


def test_of_two_logs_of_one_time_one_is_the_last(tmp_path: Path) -> None:
    for name in ("log", "log.1"):
        (tmp_path / name).write_text(f"{name}\n")
        os.utime(tmp_path / name, (5, 5))
    source = FileSource("s", tmp_path, tail=True, ordered=True, sort_key=modification_time, quiet_us=0)
    first, last = source.discover(())
    assert (texts(first), texts(last)) == (["log"], ["log.1"])
    assert (first.finished(), last.finished()) == (True, False)


@pytest.mark.parametrize("form", ["header", "json"])
def test_a_partition_that_was_read_to_its_end_can_go_back_to_any_row(tmp_path: Path, form: str) -> None:
    (tmp_path / "a").write_bytes(FILES[form][1])
    partition = only(FileSource("s", tmp_path / "a", FILES[form][0], event_time=lambda value: 7))
    begun = partition.fingerprint()
    batches = read_all(partition, 3)
    places = [(0, begun), *((batch.next_position, batch.state) for batch in batches)]
    for done, (position, state) in enumerate(places):
        partition.resume(position, state)
        assert not partition.finished()
        assert rows_of(read_all(partition, 2)) == rows_of(batches[done:])
        assert partition.finished()


def test_a_look_for_the_exact_watermark_rejects_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("no json\n1\n2\n")
    source = FileSource("s", tmp_path / "a", JsonLines(int), event_time=lambda value: value, watermark=Exact())
    partition = only(source)
    assert (partition.watermark(), source.rejections()) == (1, {})
    assert [value for _, value, _ in rows_of(read_all(partition))] == [1, 2]
    assert sum(source.rejections().values()) == 1


def test_quiet_files_of_an_unordered_tail_finish_when_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    clock = Clock(0)
    partition = only(FileSource("s", tmp_path, tail=True, quiet_us=5 * SECOND, clock=clock))
    assert texts(partition) == ["1"]
    assert not partition.finished()
    clock.now = HUGE**3
    assert partition.read(1) is None
    assert partition.finished()


@pytest.mark.parametrize("policy", [None, FileCreation()])
def test_the_last_file_is_not_finished_while_a_search_is_under_way(tmp_path: Path, policy: Policy | None) -> None:
    """A search goes on beside the reading.  What it has not come to yet may follow, or be, the last file."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n")
    clock = Clock(HUGE**3)
    source = FileSource("s", tmp_path, tail=True, ordered=policy is None, watermark=policy, clock=clock)
    first, last = source.discover(())
    assert (texts(first), texts(last)) == (["a"], ["b"])

    def looked(search: Search) -> Search:
        answer = None
        while True:
            try:
                step = search.send(answer)
            except StopIteration as end:
                found: list[SourcePartition] = end.value
                return found
            assert last.read(1) is None
            assert not last.finished(), step
            answer = yield step

    assert alone(looked(source.search({first.name, last.name}))) == []
    assert first.read(1) is None
    assert (first.finished(), last.finished()) == (True, False)


def test_rotated_logs_can_be_ordered_by_modification(tmp_path: Path) -> None:
    for age, name in enumerate(("log", "log.1", "log.2")):
        (tmp_path / name).write_text(f"{name}\n")
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    source = FileSource("s", tmp_path, ordered=True, sort_key=modification_time)
    assert list(values_of(source).values()) == [["log.2"], ["log.1"], ["log"]]


def test_without_an_event_time_rows_carry_the_time_of_reading(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\ny\n")
    (batch,) = read_all(only(FileSource("s", tmp_path, clock=Clock(42))))
    assert batch.timestamps == [42, 42]


def test_a_position_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n")
    partition = only(FileSource("s", tmp_path))
    with pytest.raises(SourceError, match="not a file position"):
        partition.resume(0, b'{"seen": 1}')
    with pytest.raises(SourceError, match="version 9"):
        partition.resume(0, partition.fingerprint().replace(b'"version":1', b'"version":9'))
    with pytest.raises(SourceError, match="has 1 rows, but 5"):
        partition.resume(5, partition.fingerprint())


def test_reading_goes_on_after_close(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    partition = only(FileSource("s", tmp_path))
    partition.read(1)
    partition.close()
    assert texts(partition) == ["2", "3"]


def test_a_finished_partition_without_a_state_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n")
    name = only(FileSource("s", tmp_path)).name
    again = FileSource("s", tmp_path)
    registry = Registry(again)
    registry.finish(name, 1, b"")
    assert registry.search() == registry.search() == []


def test_a_relative_pattern_finds_the_files_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text("one\n")
    monkeypatch.chdir(tmp_path)
    source = FileSource("lines", "*.log")
    assert [partition.read(10).values for partition in source.discover(())] == [["one"]]  # type: ignore[union-attr]
    assert source.discover(()) is not None, "and once more"
