"""The reject file."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from pathlib import Path

import pytest

from millwheel import Computation, JsonCoder, Pipeline, Stream, subscribe
from millwheel.errors import SourceError
from millwheel.runtime.embedded import EmbeddedRun
from millwheel_injectors import FileSource, JsonLines, SparkOutputSource
from millwheel_injectors.rejects import Reject, RejectFile, open_rejects
from millwheel_storage.memory import MemoryStore
from tests.unit.injectors.drain import read_all, reject_lines


def rows(path: Path) -> list[tuple[str, int]]:
    return [(line.partition, line.row) for line in reject_lines(path)]


def test_two_writers_keep_each_row_once(tmp_path: Path) -> None:
    path = tmp_path / "r"
    one, two = RejectFile(path, "s"), RejectFile(path, "s")
    one.add("a", [Reject(1, "why", b"x"), Reject(4, "why", b"y")])
    two.add("b", [Reject(1, "why", b"x")])
    two.add("a", [Reject(1, "why", b"x"), Reject(2, "why", b"w")])
    one.add("a", [Reject(2, "why", b"w"), Reject(5, "why", b"v")])
    assert rows(path) == [("a", 1), ("a", 4), ("b", 1), ("a", 2), ("a", 5)]


OLD = b'{"partition":"a","row":1,"reason":"why","text":"x"}\n'


def test_a_row_keeps_no_other_row_out(tmp_path: Path) -> None:
    """Of another source; of the same one after a reset, with a corrected file; of a release that named no source."""
    path = tmp_path / "r"
    path.write_bytes(OLD)
    for source, raw in (("s", b"x"), ("t", b"x"), ("s", b"corrected"), ("s", b"x"), ("s", b"\xff")):
        RejectFile(path, source).add("a", [Reject(1, "why", raw)])
    assert [(line.source, line.text) for line in reject_lines(path)] == [
        ("", "x"), ("s", "x"), ("t", "x"), ("s", "corrected"), ("s", "\\xff"),
    ]  # fmt: skip


class Nothing(Computation[object]):
    def ProcessRecord(self, context, record):  # type: ignore[no-untyped-def]
        pass


def test_two_sources_of_a_run_share_a_file(tmp_path: Path) -> None:
    pipeline, stream = Pipeline("p"), Stream("rows", JsonCoder(object))
    for name in ("one", "two"):
        (tmp_path / name).write_text(f'{{"v":"same"}}\nbad {name}\n')
        source = FileSource(name, tmp_path / name, JsonLines(), event_time=lambda row: 1, rejects=tmp_path / "r")
        pipeline.inject(source, into=stream)
    pipeline.add(Nothing, [subscribe(stream, lambda row: "k")])
    store = MemoryStore()
    for rejected in (2, 0):
        assert asyncio.run(EmbeddedRun(pipeline.graph(), store, {}).run()).rejected == rejected
    assert sorted((line.source, line.text) for line in reject_lines(tmp_path / "r")) == [
        ("one", "bad one"), ("two", "bad two"),
    ]  # fmt: skip


@pytest.mark.parametrize("torn", [b'{"partition":"a","row":2', b"\xff"])
def test_a_torn_last_line_is_cut_off_and_written_again(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "r"
    RejectFile(path, "s").add("a", [Reject(1, "why", b"x")])
    with open(path, "ab") as file:
        file.write(torn)
    RejectFile(path, "s").add("a", [Reject(1, "why", b"x"), Reject(2, "why", b"y")])
    assert rows(path) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("torn", [b"{", b'{"sou', b'{"source":"s","partition":"a","ro', OLD[:-1]])
def test_so_is_a_torn_first_line(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(torn)
    RejectFile(path, "s").add("a", [Reject(1, "why", b"x")])
    assert rows(path) == [("a", 1)]


@pytest.mark.parametrize(
    "text", [b"a log\nof others\n", b"one line", b'{"a":1}\n', OLD + b"and more\n", OLD + b"\xff\n"]
)
def test_a_file_of_others_is_refused_at_the_start_and_left_alone(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "rows").write_text("1\n")
    path = tmp_path / "r"
    path.write_bytes(text)
    line = 2 if text.startswith(OLD) else 1
    with pytest.raises(SourceError, match=rf"source s: the reject file {path} holds something else in line {line}"):
        FileSource("s", tmp_path / "rows", rejects=path).discover(())
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(SourceError, match="holds something else"):
        SparkOutputSource("s", tmp_path, "ts", rejects=path).discover(())
    assert path.read_bytes() == text


def test_a_path_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1\n")
    for path, why in (
        (tmp_path / "rows" / "r", "cannot be written: .*; make it writable, or name another"),
        (Path("/proc/nope/r"), "cannot be written"),
        (tmp_path, "is not a file"),
        (Path("/dev/null"), "is not a file"),
    ):
        with pytest.raises(SourceError, match=f"source s: the reject file {path} {why}"):
            FileSource("s", tmp_path / "rows", rejects=path).discover(())


def test_a_question_about_the_pipeline_makes_no_file(tmp_path: Path) -> None:
    FileSource("s", tmp_path / "rows", rejects=tmp_path / "out" / "r")
    assert not (tmp_path / "out").exists()


def test_rejects_are_no_input_of_their_own_source(tmp_path: Path) -> None:
    """They would be rejected again, for ever."""
    (tmp_path / "a").write_text("not json\n")
    source = FileSource("s", tmp_path, JsonLines(), rejects=tmp_path / "r", tail=True)
    with pytest.raises(SourceError, match=f"source s: the reject file {tmp_path / 'r'} is among its own inputs"):
        source.discover(())
    (tmp_path / "_SUCCESS").touch()
    with pytest.raises(SourceError, match="is among its own inputs"):
        SparkOutputSource("s", tmp_path, "ts", rejects=tmp_path / "r").discover(())
    (tmp_path / "r").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "else")
    (tmp_path / "else").mkdir()
    again = FileSource("s", tmp_path / "a", JsonLines(), rejects=tmp_path / "link" / "a")
    (partition,) = again.discover(())
    read_all(partition)
    assert [line.text for line in reject_lines(tmp_path / "else" / "a")] == ["not json"]


def test_the_file_may_be_moved_away_or_emptied_in_mid_run(tmp_path: Path) -> None:
    path = tmp_path / "r"
    kept = RejectFile(path, "s")
    kept.add("a", [Reject(1, "why", b"a long text, longer than the next one")])
    path.rename(tmp_path / "r.1")
    kept.add("a", [Reject(1, "why", b"a long text, longer than the next one"), Reject(2, "why", b"x")])
    kept.add("a", [Reject(3, "why", b"y")])
    assert rows(path) == [("a", 2), ("a", 3)]
    path.write_bytes(b"")
    kept.add("a", [Reject(4, "why", b"z")])
    kept.add("a", [Reject(5, "why", b"z")])
    assert rows(path) == [("a", 4), ("a", 5)]


@pytest.mark.parametrize("how", ["moved", "emptied"])
def test_what_another_writer_puts_into_the_new_file_is_learnt(how: str, tmp_path: Path) -> None:
    path = tmp_path / "r"
    one, two = RejectFile(path, "s"), RejectFile(path, "s")
    one.add("a", [Reject(1, "why", b"a text that is shorter than the new file is long")])
    if how == "moved":
        path.rename(tmp_path / "r.1")
    else:
        path.write_bytes(b"")
    mine = [Reject(2, "why", b"x"), *(Reject(row, "why", b"y") for row in range(3, 9 if how == "moved" else 3))]
    two.add("a", mine)
    one.add("a", mine)
    one.add("a", [Reject(9, "why", b"z")])
    assert rows(path) == [*(("a", reject.row) for reject in mine), ("a", 9)]


def test_whoever_writes_waits_for_another_who_does_and_is_on_disk_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, on_disk = tmp_path / "r", list[bytes]()
    monkeypatch.setattr(os, "fsync", lambda number: on_disk.append(path.read_bytes()))
    path.touch()
    writes = threading.Thread(target=RejectFile(path, "s").add, args=("a", [Reject(1, "why", b"x")]))
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        writes.start()
        writes.join(0.2)
        assert path.read_bytes() == b""
    writes.join()
    assert rows(path) == [("a", 1)]
    assert on_disk == [path.read_bytes()]


def test_a_reason_that_is_no_unicode_is_kept(tmp_path: Path) -> None:
    RejectFile(tmp_path / "r", "s").add("a", [Reject(1, "no \ud800 text", b"x")])
    assert [line.reason for line in reject_lines(tmp_path / "r")] == ["no \\ud800 text"]


def test_without_a_file_rejects_are_warnings(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "millwheel.injectors"):
        open_rejects(None, "s").add("part", [Reject(7, "no number", b"x")])
    assert "source s: rejected row 7 of part: no number: b'x'" in caplog.text


@pytest.mark.parametrize("into", ["file", "log"])
def test_every_rejected_row_is_counted_by_its_kind(tmp_path: Path, into: str) -> None:
    (tmp_path / "in").write_text("1\n{a\n{b\n2\nnull\n")
    rejects = tmp_path / "rejects" if into == "file" else None
    source = FileSource("s", tmp_path / "in", JsonLines(int), event_time=lambda value: value, rejects=rejects)
    (partition,) = source.discover(())
    assert sum(batch.rejected for batch in read_all(partition, 2)) == 3
    assert sorted(source.rejections().values()) == [1, 2]
    source.reject(partition.name, 3, "no key", 2)
    assert sum(source.rejections().values()) == 4
