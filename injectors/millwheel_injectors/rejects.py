"""Rows that could not be read, kept aside.

Lives here: the reject file.  Never here: the decision that a row is bad. Invariant: a rejected row stands in
the file exactly once, and on disk before the position behind it is stored; no other row keeps it out.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Protocol

import msgspec

from millwheel.errors import SourceError
from millwheel.rejected import Kinds

BEGINNINGS: Final = (b'{"source":"', b'{"partition":"')
"""How a line begins, and how it began before lines named their source."""


class Reject(NamedTuple):
    """One malformed row: its raw row number, why, and what stood there."""

    row: int
    reason: str
    raw: bytes


class RejectLine(msgspec.Struct, kw_only=True):
    """One line of the reject file.  Lines of early releases have no source, and no file."""

    source: str = ""
    partition: str
    file: str = ""
    """The path that the partition had then."""
    row: int
    reason: str
    text: str

    def mark(self) -> bytes:
        """What is equal for the same row of the same source, 16 bytes.

        The text belongs to it: after a reset, or in a corrected file, another row may have the same number in a
        partition of the same name.
        """
        return blake2b(msgspec.msgpack.encode((self.partition, self.row, self.text)), digest_size=16).digest()


class Rejects(Protocol):
    """Where malformed rows go."""

    kinds: Kinds

    def add(self, partition: str, rejects: Sequence[Reject], file: str = "") -> None:
        """Keep `rejects`; those kept before are skipped.  `file` is the path of a partition that has another name."""
        ...


class LoggedRejects:
    """Malformed rows become warnings in the log, one for each kind."""

    def __init__(self, source: str) -> None:
        self.kinds = Kinds(source)

    def open(self) -> None:
        """A log is always there."""

    def check_not(self, inputs: Iterable[Path]) -> None:
        """It is no file."""

    def add(self, partition: str, rejects: Sequence[Reject], file: str = "") -> None:
        """A warning for the first row of each kind."""
        for row, reason, raw in rejects:
            self.kinds.add(file or partition, row, reason, raw)


class RejectFile:
    """JSON lines of source, partition, row, reason and text; any number of sources and processes may append to one file.

    Rows are replayed after a restart, so the file is read once to know which rows of the source it has.  It may be
    moved away at any time: a new one is begun.  Raises `SourceError` for a file that cannot be written, or that holds
    anything else.
    """

    def __init__(self, path: str | os.PathLike[str], source: str) -> None:
        self._path = Path(path)
        self._source = _text(source)
        self.kinds = Kinds(source)
        self._read = 0
        self._lines = 0
        self._inode = -1
        self._marks: set[bytes] = set()

    def open(self) -> None:
        """Make the file, or learn what it holds."""
        with self._locked():
            pass

    def check_not(self, inputs: Iterable[Path]) -> None:
        """`SourceError` when the file is one of `inputs`: what is rejected would be rejected again, for ever."""
        for place in inputs:
            if place.name == self._path.name and self._path.exists() and place.samefile(self._path):
                raise SourceError(f"{self._where()} is among its own inputs; name one elsewhere")

    def add(self, partition: str, rejects: Sequence[Reject], file: str = "") -> None:
        """Append what is new and wait until it is on disk."""
        for reject in rejects:
            self.kinds.count(reject.reason)
        lines = [
            RejectLine(
                source=self._source, partition=_text(partition), file=_text(file), row=row, reason=_text(reason),
                text=_text(raw),
            )
            for row, reason, raw in rejects
        ]  # fmt: skip
        with self._locked() as log:
            new = {mark: line for line in lines if (mark := line.mark()) not in self._marks}
            if new:
                self._append(log, list(new.values()))
                self._marks.update(new)

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file, ours alone, with all that others wrote learnt."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and not stat.S_ISREG(self._path.stat().st_mode):
                raise SourceError(f"{self._where()} is not a file; name another one")
            with open(self._path, "a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                self._catch_up(file)
                yield file
        except OSError as error:
            raise SourceError(
                f"{self._where()} cannot be written: {error}; make it writable, or name another"
            ) from error

    def _where(self) -> str:
        return f"source {self._source}: the reject file {self._path}"

    def _catch_up(self, file: BinaryIO) -> None:
        """Learn what this or another process wrote; cut off a line that a crash left torn."""
        there = os.fstat(file.fileno())
        if there.st_ino != self._inode or there.st_size < self._read:  # moved away, or emptied
            self._inode, self._read, self._lines = there.st_ino, 0, 0
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                self._cut(file, line)
                break
            self._learn(line)
            self._read += len(line)
            self._lines += 1

    def _cut(self, file: BinaryIO, torn: bytes) -> None:
        """A torn line is ours if whole ones come before it, or if it begins as ours do."""
        if not self._lines and not any(whole.startswith(torn[: len(whole)]) for whole in BEGINNINGS):
            raise self._foreign("it does not begin as one")
        file.truncate(self._read)

    def _learn(self, line: bytes) -> None:
        try:
            entry = msgspec.json.decode(line, type=RejectLine)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._foreign(str(error)) from error
        if entry.source == self._source:
            self._marks.add(entry.mark())

    def _foreign(self, why: str) -> SourceError:
        return SourceError(
            f"{self._where()} holds something else in line {self._lines + 1} ({why}); name another file, or move it away"
        )

    def _append(self, file: BinaryIO, lines: Sequence[RejectLine]) -> None:
        data = b"\n".join(map(msgspec.json.encode, lines)) + b"\n"
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        self._read += len(data)
        self._lines += len(lines)


def open_rejects(path: str | os.PathLike[str] | None, source: str) -> LoggedRejects | RejectFile:
    """The reject file at `path`, or the log, for the rows of `source`."""
    return LoggedRejects(source) if path is None else RejectFile(path, source)


def _text(raw: str | bytes) -> str:
    """What JSON can hold: a text that is none (undecodable bytes, lone surrogates) with backslashes."""
    data = raw.encode(errors="backslashreplace") if isinstance(raw, str) else raw
    return data.decode(errors="backslashreplace")


def raw_text(value: Any) -> bytes:
    """A value that came from no text, as JSON where it can be."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value).encode(errors="backslashreplace")
