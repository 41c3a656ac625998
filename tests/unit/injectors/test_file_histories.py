"""Any history of files that may be renamed, grown, copied and compressed: each of their rows comes once, under one number."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from unittest.mock import patch

import pytest

from millwheel.errors import SourceError
from millwheel.limits import FILE_HEAD_LIMIT_BYTES
from millwheel.ports import SourcePosition
from millwheel_injectors import FileSource
from millwheel_injectors import files as files_module
from millwheel_injectors.partition import TextPartition
from tests.effort import examples
from tests.unit.injectors.drain import Clock, Registry, stored

BANNER = b"# a log\n"
"""The first line of files that begin alike."""
NAMES = ("a.log", "a.log.1", "b.log", "c.log")
LONG = b"x" * 99


class Written:
    """A file as its writer knows it."""

    def __init__(self, place: Path, alike: bool, content: bytes) -> None:
        self.place = place
        self.alike = alike
        self.content = content
        self.packed = False
        self.ended = False
        """It was read to its end, so it may not grow."""
        self.moved = False
        """Since the last search."""
        self.changes: set[str] = set()
        """What has changed since its end.  If it is short, it is known by its path or its inode then."""
        place.write_bytes(content)

    def lines(self) -> list[str]:
        """What has to come of it; all of it, once nobody writes any more."""
        return self.content.decode().splitlines() if b"\n" in self.content else []

    def is_long(self) -> bool:
        return len(self.content) >= FILE_HEAD_LIMIT_BYTES

    def may_change(self, what: str) -> bool:
        """Its path or its inode."""
        if not self.is_long() and (self.moved or (self.ended and self.changes - {what})):
            return False
        self.moved = True
        if self.ended:
            self.changes.add(what)
        return True


class History:
    """A directory, a process that reads it again and again, and what the store has of it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files: list[Written] = []
        self.gone: list[Written] = []
        self.serial = count()
        self.clock = Clock(0)
        self.source = self.made()
        self.registry = Registry(self.source)
        self.open: dict[str, TextPartition] = {}
        self.positions: dict[str, SourcePosition] = {}
        """Durable ones, of what is not finished."""
        self.ends: dict[str, SourcePosition] = {}
        """How far the process has read."""
        self.rows: dict[str, dict[int, str]] = {}

    def made(self) -> FileSource:
        return FileSource("s", self.directory, tail=True, ordered=False, quiet_us=1, clock=self.clock)

    # What writers do.

    def create(self, which: int, how: int) -> None:
        free = [self.directory / name for name in NAMES if not (self.directory / name).exists()]
        if free:
            number, alike = next(self.serial), how % 2 == 0
            first = BANNER if alike else b"file %d\n" % number
            rest = (b"", b"row of %d\n" % number, b"a part of %d" % number)[how % 3]
            long = b"".join(b"%d of %d %s\n" % (row, number, LONG) for row in range(50)) if how % 5 == 0 else b""
            self.files.append(Written(free[which % len(free)], alike, first + long + rest))

    def append(self, file: Written, how: int) -> None:
        if not (file.ended or file.packed):
            more = (b"more %d\n", b"a part %d", b"ends %d\nand more\n", b"\n%d\n")[how % 4] % next(self.serial)
            file.content += more
            with open(file.place, "ab") as log:
                log.write(more)

    def rename(self, file: Written, how: int) -> None:
        to = self.directory / (NAMES[how % len(NAMES)] + (".gz" if file.packed else ""))
        if not to.exists() and file.may_change("path"):
            file.place = file.place.rename(to)

    def touch(self, file: Written, how: int) -> None:
        os.utime(file.place, (how, how))

    def copy(self, file: Written, how: int) -> None:
        """What is written behind that is in the copy alone, also while a process has the file open."""
        if not file.alike and file.may_change("inode"):
            (self.directory / ".copy").write_bytes(file.place.read_bytes())
            (self.directory / ".copy").replace(file.place)

    def compress(self, file: Written, how: int) -> None:
        to = Path(f"{file.place}.gz")
        if not (file.alike or file.packed or to.exists()) and (file.is_long() or not file.ended):
            to.write_bytes(gzip.compress(file.content))
            file.place.unlink()
            file.place, file.packed = to, True

    def remove(self, file: Written, how: int) -> None:
        if file.ended and not file.alike:
            file.place.unlink()
            self.files.remove(file)
            self.gone.append(file)

    # What the process does.

    def search(self) -> None:
        for file in self.files:
            file.moved = False
        for partition in self.registry.search():
            assert isinstance(partition, TextPartition)
            self.registry.begin(partition.name, partition.fingerprint())
            at = self.positions.setdefault(partition.name, stored(partition, 0, partition.fingerprint()))
            partition.resume(at.position, at.state)
            self.ends[partition.name] = at
            self.open[partition.name] = partition

    def read(self, how: int) -> None:
        """Some rows of each file; those of an odd read are not durable yet when a process stops."""
        for name, partition in self.open.items():
            batch = partition.read(1 + how % 3)
            if batch is not None:
                self.count(name, batch.rows, batch.values)
                self.ends[name] = stored(partition, batch.next_position, batch.state)
                if how % 2:
                    self.positions[name] = self.ends[name]

    def count(self, name: str, rows: Iterable[int], values: Iterable[str]) -> None:
        known = self.rows.setdefault(name, {})
        for row, value in zip(rows, values, strict=True):
            assert known.setdefault(row, value) == value, f"row {row} of {name} was another one before"

    def stop(self, how: int) -> None:
        for partition in self.open.values():
            partition.close()
        self.open = {}
        self.source = self.made()
        self.source.recall(self.positions.values())
        self.registry.restart(self.source)

    def settle(self, how: int) -> None:
        """Nobody writes for a while: all is read to its end."""
        self.search()
        self.clock.now = 2**60
        for name, partition in self.open.items():
            while (batch := partition.read(7)) is not None:
                self.count(name, batch.rows, batch.values)
                self.ends[name] = stored(partition, batch.next_position, batch.state)
            assert partition.finished()
            at = self.ends[name]
            self.registry.finish(name, at.position, at.state)
            self.positions.pop(name, None)
            self.source.release(name)
        self.open, self.clock.now = {}, 0
        for file in self.files:
            file.ended = file.ended or b"\n" in file.content

    def step(self, what: str, which: int, how: int) -> None:
        if what == "search":
            self.search()
        elif what in ("create", "read", "stop", "settle"):
            act: Callable[..., None] = getattr(self, what)
            act(*((which, how) if what == "create" else (how,)))
        elif self.files:
            getattr(self, what)(self.files[which % len(self.files)], how)


STEPS = [
    *("create", "create", "append", "append", "rename", "rename", "touch", "copy", "compress", "remove"),
    *("search", "search", "read", "read", "stop", "settle"),
]

Steps = list[tuple[str, int, int]]


def drawn(seed: int) -> Steps:
    random = Random(seed)
    return [(random.choice(STEPS), random.randrange(4), random.randrange(30)) for _ in range(60)]


def wrong(steps: Steps) -> str:
    """What is wrong with the rows that come of a history; nothing if they are what was written."""
    with TemporaryDirectory() as directory, patch.object(files_module, "RENAMED_DELAY_S", 0):
        history = History(Path(directory))
        try:
            for step in steps:
                history.step(*step)
            history.settle(0)
            history.stop(0)
            history.settle(0)
        except (SourceError, AssertionError) as error:
            return str(error)
        rows = history.rows.values()
        if not all(sorted(numbered) == [*range(len(numbered))] for numbered in rows):
            return "the numbers of rows have gaps"
        read = sorted([numbered[row] for row in sorted(numbered)] for numbered in rows)
        written = sorted(file.lines() for file in [*history.files, *history.gone] if file.lines())
        return "" if read == written else f"{read} instead of {written}"


def shortest(steps: Steps) -> Steps:
    """Some of the steps of a history that goes wrong, of which none can be left out."""
    at = 0
    while at < len(steps):
        fewer = steps[:at] + steps[at + 1 :]
        steps, at = (fewer, at) if wrong(fewer) else (steps, at + 1)
    return steps


def test_every_row_comes_once_whatever_becomes_of_the_files() -> None:
    for seed in range(examples(120)):
        if wrong(steps := drawn(seed)):
            steps = shortest(steps)
            pytest.fail(f"seed {seed}: {wrong(steps)} after {steps}")
