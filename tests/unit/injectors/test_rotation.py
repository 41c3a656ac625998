"""Rotation that renames files while they are listed, looked at and opened."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from millwheel.errors import SourceError
from millwheel.limits import FILE_HEAD_LIMIT_BYTES
from millwheel.ports import SourcePartition
from millwheel_injectors import FileCreation, FileSource, files, identity, partition
from millwheel_injectors.identity import Catalog, FoundFile, Identity, Listed, inspect_file, is_twin
from millwheel_injectors.listing import list_files
from millwheel_injectors.streams import ByteStream, open_stream
from tests.unit.injectors.drain import Clock, Registry, only, read_all, rows_of, stored, values_of

Listing = Callable[[Path, str], Iterator[Listed]]


def texts(source: FileSource[str], known: set[str]) -> list[str]:
    return [value for found in source.discover(known) for _, value, _ in rows_of(read_all(found))]


def read_texts(partition: SourcePartition) -> list[str]:
    return [value for _, value, _ in rows_of(read_all(partition))]


def first_listing(monkeypatch: pytest.MonkeyPatch, listing: Listing) -> None:
    """The next listing of a directory is `listing`, and those behind it are as always."""
    listings = iter([listing])
    monkeypatch.setattr(files, "list_files", lambda pattern, prefix: next(listings, list_files)(pattern, prefix))


def test_a_file_that_is_renamed_while_its_directory_is_listed_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("0\n1\n")

    def twice(pattern: Path, prefix: str) -> Iterator[Listed]:
        yield from list_files(pattern, prefix)
        log.rename(tmp_path / "log.1")
        yield from list_files(pattern, prefix)

    source = FileSource("log", tmp_path, tail=True)
    found = only(source)
    first_listing(monkeypatch, twice)
    assert source.discover({found.name}) == []
    assert [value for _, value, _ in rows_of(read_all(found))] == ["0", "1"]


def test_a_file_that_a_listing_has_left_out_is_not_said_to_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("old 0\n")
    source = FileSource("log", tmp_path, tail=True)
    old = only(source)
    log.rename(tmp_path / "log.1")
    log.write_text("new 0\n")
    first_listing(
        monkeypatch,
        lambda pattern, prefix: (listed for listed in list_files(pattern, prefix) if listed.path == "log"),
    )
    assert texts(source, {old.name}) == ["new 0"]
    first_listing(
        monkeypatch,
        lambda pattern, prefix: (listed for listed in list_files(pattern, prefix) if listed.path == "log"),
    )
    assert [value for _, value, _ in rows_of(read_all(old))] == ["old 0"]


def test_a_file_that_is_really_rewritten_is_still_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("old 0\n")
    source = FileSource("log", tmp_path, tail=True)
    old = only(source)
    log.unlink()
    log.write_text("new 0\n")
    with pytest.raises(SourceError, match="rewritten"):
        source.discover({old.name})


def test_a_file_that_is_renamed_just_before_it_is_opened_is_read_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("old 0\nold 1\n")
    source = FileSource("log", tmp_path, tail=True)
    old = only(source)
    turns = iter([log])

    def rotated(place: Path) -> ByteStream:
        for turned in turns:
            turned.rename(tmp_path / "log.1")
            log.write_text("new 0\nnew 1\nnew 2\n")
        return open_stream(place)

    monkeypatch.setattr(partition, "open_stream", rotated)
    assert [value for _, value, _ in rows_of(read_all(old))] == ["old 0", "old 1"]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_a_log_that_is_being_compressed_is_read_once_however_far_that_is(tmp_path: Path, share: float) -> None:
    rows = [f"{Random(row).random()}" for row in range(100)]
    log, packed = tmp_path / "log", gzip.compress("\n".join([*rows, ""]).encode())
    log.write_text("\n".join([*rows, ""]))
    (tmp_path / "log.gz").write_bytes(packed[: int(share * len(packed))])
    assert list(values_of(FileSource("log", f"{tmp_path}/log*", tail=True)).values()) == [rows]


def test_a_compressed_log_that_is_not_whole_is_not_at_its_end_however_long_nobody_writes_it(tmp_path: Path) -> None:
    rows = [f"{Random(row).random()}" for row in range(100)]
    packed = gzip.compress("\n".join([*rows, ""]).encode())
    (tmp_path / "log.gz").write_bytes(packed[:-9])
    source = FileSource("log", tmp_path / "log.gz", tail=True, ordered=False, quiet_us=1, clock=Clock(2**60))
    found = only(source)
    before = read_all(found)
    assert not found.finished()
    with (tmp_path / "log.gz").open("ab") as log:
        log.write(packed[-9:])
    assert [value for _, value, _ in rows_of([*before, *read_all(found)])] == rows
    assert found.finished()


def test_a_file_that_is_made_while_a_search_is_under_way_is_not_promised_to_be_newer_than_its_end(
    tmp_path: Path,
) -> None:
    class Ticking(Clock):
        def __call__(self) -> int:
            self.now += 1
            return self.now

    clock = Ticking(4)
    (tmp_path / "log").write_text("0\n")
    source = FileSource("log", tmp_path, None, None, FileCreation(2), tail=True, ordered=False, clock=clock)
    for _ in range(2):
        began = clock.now + 1
        source.discover(())
        assert source.pending_watermark() == began - 2


@pytest.mark.parametrize(
    ("name", "packed", "beside", "twin"),
    [
        ("a.log.gz", True, "one\ntwo\n", True),
        ("a.log.gz", True, "one\ntwo\nthree\n", True),
        ("a.log.gz", True, "other\n", False),
        ("a.log.gz", True, "one\n", False),
        ("a.log.gz", True, None, False),
        ("a.log.gz", True, "", False),
        ("a.log.gz", False, "one\ntwo\n", False),
        ("a.log.old", True, "one\ntwo\n", False),
    ],
)
def test_a_twin_is_packed_and_stands_beside_a_file_that_begins_alike(
    tmp_path: Path, name: str, packed: bool, beside: str | None, twin: bool
) -> None:
    data = b"one\ntwo\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    if beside is not None:
        (tmp_path / "a.log").write_text(beside)
    assert is_twin(inspect_file(tmp_path / name, name)) is twin


def test_a_directory_is_nobodys_twin(tmp_path: Path) -> None:
    (tmp_path / "a.log").mkdir()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(b"one\n"))
    assert not is_twin(inspect_file(tmp_path / "a.log.gz", "a.log.gz"))


@pytest.mark.parametrize("was", [{"path": "a.log"}, {"inode": 0}])
@pytest.mark.parametrize("names", [("grown", "earlier"), ("earlier", "grown")])
def test_a_file_of_which_more_was_read_since_it_was_listed_is_looked_at_again(
    tmp_path: Path, names: tuple[str, str], was: dict[str, Any]
) -> None:
    """Also where its inode was another file's before, which is remembered with a shorter beginning, and a copy."""
    place, renamed = tmp_path / "a.log", tmp_path / "a.log.1"
    place.write_text("one\n")
    place.rename(renamed)
    listed = inspect_file(renamed, "a.log.1")
    with renamed.open("a") as file:
        file.write("two\n")  # by a writer that has it open
    now = inspect_file(renamed, "a.log.1")
    known = {
        "grown": msgspec.structs.replace(now.identity(), **was),
        "earlier": Identity("b.log", now.inode, 2, "of what is gone"),
    }
    catalog = Catalog(1, False)
    for name in names:
        catalog.remember(name, known[name])
    found, new = catalog.match([listed], {}, lambda name: False, lambda identity: True)
    assert ({*found}, found["grown"].head, new) == ({"grown"}, b"one\ntwo\n", [])


@pytest.mark.parametrize("restarted", [False, True])
def test_a_short_log_that_is_compressed_before_its_end_is_known_is_read_once(tmp_path: Path, restarted: bool) -> None:
    """Its last row was read while it had another path and inode, and the end has to say by which it is known now."""
    log = tmp_path / "log"
    log.write_text("one\ntwo\n")
    clock = Clock(0)

    def made() -> FileSource[str]:
        return FileSource("log", f"{tmp_path}/log*", tail=True, ordered=False, quiet_us=1, clock=clock)

    registry = Registry(source := made())
    (found,) = registry.search()
    position = stored(found, 0, found.fingerprint())
    for batch in read_all(found):
        position = stored(found, batch.next_position, batch.state)
    assert position.position == 2
    assert not found.finished()
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    log.write_text("three\n")
    if restarted:
        registry.restart(source := made())
        source.recall([position])
    new = {partition.name: partition for partition in registry.search()}
    if restarted:
        found = new.pop(position.partition)
        found.resume(position.position, position.state)
    clock.now = 2**60
    while (batch := found.read(1)) is not None:  # type: ignore[assignment]
        assert not batch.rows
        position = stored(found, batch.next_position, batch.state)
    assert found.finished()
    registry.finish(found.name, position.position, position.state)
    source.release(found.name)
    assert [rows_of(read_all(partition))[0][1] for partition in new.values()] == ["three"]
    for again in (source, made()):
        again.recall([])
        assert not {partition.name for partition in registry.drive(again.search({*new}))} - {*new}


@pytest.mark.parametrize("again", ["log", "other"])
def test_a_file_that_is_not_open_yet_is_found_though_its_inode_is_another_files_by_now(
    tmp_path: Path, again: str
) -> None:
    """As happens where a file system gives a new file the inode of one that is gone."""
    log = tmp_path / "log"
    log.write_text("old 0\nold 1\n")
    source = FileSource("log", f"{tmp_path}/*", tail=True)
    old = only(source)
    (tmp_path / "log.1.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.rename(tmp_path / again)
    (tmp_path / again).write_text("new 0\nnew 1\nnew 2\n")
    assert [value for _, value, _ in rows_of(read_all(old))] == ["old 0", "old 1"]
    assert texts(source, {old.name}) == ["new 0", "new 1", "new 2"]


def test_a_file_that_is_renamed_and_replaced_while_its_directory_is_listed_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_text("0\n1\n")

    def twice(pattern: Path, prefix: str) -> Iterator[Listed]:
        yield from list_files(pattern, prefix)
        log.rename(tmp_path / "log.1")
        log.write_text("2\n")
        yield from (listed for listed in list_files(pattern, prefix) if listed.path == "log.1")

    source = FileSource("log", tmp_path, tail=True)
    first_listing(monkeypatch, twice)
    found = source.discover(())
    known = {partition.name for partition in found}
    assert sorted([*(values for one in found for values in read_texts(one)), *texts(source, known)]) == ["0", "1", "2"]


def test_a_file_that_begins_as_one_that_is_being_read_is_another_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("banner\nrow\n")
    source = FileSource("log", tmp_path, tail=True)
    first = only(source)
    assert first.read(1) is not None
    (tmp_path / "b").write_text("banner\nother\n")
    assert texts(source, {first.name}) == ["banner", "other"]
    assert read_texts(first) == ["row"]


def test_files_that_are_complete_are_all_read_also_a_log_and_its_compressed_beginning(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\ntwo\n")
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"one\n"))
    assert sorted(values_of(FileSource("log", tmp_path)).values()) == [["one"], ["one", "two"]]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_a_longer_copy_replaces_while_it_is_read_goes_on_with_the_copy(
    tmp_path: Path, packed: bool, restarted: bool
) -> None:
    """As rsync does each time it brings the rows that have come to a log since."""
    log, copy = tmp_path / "log", tmp_path / ".copy"

    def bring(text: str) -> None:
        copy.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        copy.replace(log)

    bring("0\n1\nhalf ")
    registry = Registry(source := FileSource("log", tmp_path, tail=True))
    (found,) = registry.search()
    batches = read_all(found)
    assert [value for _, value, _ in rows_of(batches)] == ["0", "1"]
    for text in ("0\n1\nhalf a row\n3", "0\n1\nhalf a row\n3\n"):
        bring(text)
        assert registry.search() == []
        batches += read_all(found)
    if not packed:
        with log.open("a") as file:
            file.write("4\n")
        batches += read_all(found)
    rows = ["0", "1", "half a row", "3", *([] if packed else ["4"])]
    assert [(row, value) for row, value, _ in rows_of(batches)] == [*enumerate(rows)]
    if restarted:
        at = batches[-1]
        source = FileSource("log", tmp_path, tail=True)
        source.recall([stored(found, at.next_position, at.state)])
        again = only(source)
        again.resume(at.next_position, at.state)
        assert (again.name, read_all(again)) == (found.name, [])


@pytest.mark.parametrize("begins", ["", "a row of a log that is known by its beginning\n" * 100])
@pytest.mark.parametrize("text", ["0\n1\nha", "0\n1\n", "0\n", "", "0\n2\nhalf a row\n"])
def test_a_file_stays_open_whose_copy_has_no_more_or_something_else(tmp_path: Path, begins: str, text: str) -> None:
    """Whoever writes may have it open as well, though its name is another file's."""
    log, copy = tmp_path / "log", tmp_path / ".copy"
    log.write_text(f"{begins}0\n1\nha")
    registry = Registry(FileSource("log", tmp_path, tail=True))
    (found,) = registry.search()
    assert read_texts(found)[-2:] == ["0", "1"]
    with log.open("a") as writer:
        copy.write_text(begins + text)
        copy.replace(log)
        with suppress(SourceError):
            registry.search()
        assert read_texts(found) == []
        writer.write("lf\n")
        writer.flush()
        assert read_texts(found) == ["half"]


def test_a_copy_that_has_no_more_is_read_once_to_find_that_out_and_an_open_file_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that was compressed while it is open has to be uncompressed for that."""
    log, looked = tmp_path / "log", []
    log.write_text("0\n1\n")
    registry = Registry(FileSource("log", f"{tmp_path}/log*", tail=True))
    (found,) = registry.search()

    def looking(place: Path, known: Identity, unread: int) -> bool:
        looked.append(place)
        return identity.is_longer(place, known, unread)

    monkeypatch.setattr(partition, "is_longer", looking)
    for _ in range(3):
        read_texts(found)
        assert (registry.search(), read_texts(found), looked) == ([], [], [])
    (tmp_path / "log.gz").write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    for _ in range(3):
        assert (registry.search(), read_texts(found), looked) == ([], [], [tmp_path / "log.gz"])


def test_a_rotation_between_the_looks_at_two_files_reads_neither_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one is at both places then, and at the first of them is a third file."""
    log, older, oldest = (tmp_path / name for name in ("log", "log.1", "log.2"))
    log.write_text("1\n")
    older.write_text("0\n")
    listing = sorted(list_files(tmp_path, ""), key=lambda listed: listed.path)
    turns = iter([older])

    def rotated(place: Path, path: str) -> FoundFile:
        for _ in turns if place == older else ():
            older.rename(oldest)
            log.rename(older)
            log.write_text("2\n")
        return inspect_file(place, path)

    monkeypatch.setattr(identity, "inspect_file", rotated)
    source = FileSource("log", tmp_path, tail=True)
    first_listing(monkeypatch, lambda pattern, prefix: iter(listing))
    found = source.discover(())
    known = {partition.name for partition in found}
    assert sorted([*(values for one in found for values in read_texts(one)), *texts(source, known)]) == ["0", "1", "2"]


def test_a_file_whose_first_line_is_longer_than_what_tells_it_is_read(tmp_path: Path) -> None:
    """Before the line has ended it has a name, and it keeps it."""
    log, line = tmp_path / "log", "x" * (FILE_HEAD_LIMIT_BYTES + 1)
    log.write_text(line)
    source = FileSource("log", tmp_path, tail=True)
    found = only(source)
    assert read_texts(found) == []
    with log.open("a") as file:
        file.write("\n1\n")
    assert source.discover({found.name}) == []
    assert read_texts(found) == [line, "1"]
    (tmp_path / "other").write_text(f"{line}\n2\n")
    assert texts(source, {found.name}) == [line, "2"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_shorter_file_that_begins_as_a_finished_one_is_another_one(tmp_path: Path, gone: bool) -> None:
    banner = "a long banner\n" * (FILE_HEAD_LIMIT_BYTES // 8)
    log = tmp_path / "log"
    log.write_text(f"{banner}{banner}")
    registry = Registry(source := FileSource("log", tmp_path, tail=True, quiet_us=0))
    (found,) = registry.search()
    end = read_all(found)[-1]
    registry.finish(found.name, end.next_position, end.state)
    source.release(found.name)
    if gone:
        log.rename(tmp_path / ".away")
    (tmp_path / "other").write_text(f"{banner}0\n")
    (other,) = registry.search()
    assert read_texts(other)[-1] == "0"


@pytest.mark.parametrize("longer", [0, 1])
def test_of_two_logs_that_begin_alike_and_are_compressed_each_goes_on_where_it_was(tmp_path: Path, longer: int) -> None:
    """Of the one only the banner is known, which fits the other one too."""
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    for log in logs:
        log.write_text("banner\n")
    source, positions, rows = FileSource("log", f"{tmp_path}/*.log*", tail=True), [], {}
    for number, (log, found) in enumerate(zip(logs, source.discover(()), strict=True)):
        batches = read_all(found)
        with log.open("a") as file:
            file.write(f"{log.name}\n")
        batches += read_all(found) if number == longer else []
        rows[found.name] = [value for _, value, _ in rows_of(batches)]
        positions.append(stored(found, batches[-1].next_position, batches[-1].state))
    for log in logs:
        Path(f"{log}.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.rename(tmp_path / f".{log.name}")
    again = FileSource("log", f"{tmp_path}/*.log*", tail=True)
    again.recall(positions)
    at = {position.partition: position for position in positions}
    for found in again.discover(()):
        found.resume(at[found.name].position, at[found.name].state)
        rows[found.name] += read_texts(found)
    assert sorted(rows.values()) == [["banner", log.name] for log in logs]
