"""Rows that could not be read, kept aside.

Lives here: the reject file.  Never here: the decision that a row is bad. Invariant: a rejected row stands in
the file exactly once, and on disk before the position behind it is stored.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec

logger = logging.getLogger("millwheel.injectors")


class Reject(NamedTuple):
    """One malformed row: its raw row number, why, and what stood there."""

    row: int
    reason: str
    raw: bytes


class RejectLine(msgspec.Struct):
    """One line of the reject file."""

    partition: str
    row: int
    reason: str
    text: str


class Rejects(Protocol):
    """Where malformed rows go."""

    def add(self, partition: str, rejects: Sequence[Reject]) -> None:
        """Keep `rejects`; those kept before are skipped."""
        ...


class LoggedRejects:
    """Malformed rows become warnings in the log."""

    def add(self, partition: str, rejects: Sequence[Reject]) -> None:
        """One warning per row."""
        for reject in rejects:
            logger.warning("partition %s row %d rejected: %s: %.200r", partition, reject.row, reject.reason, reject.raw)


class RejectFile:
    """JSON lines of partition, row, reason and text; any number of processes may append to one file.

    Rows are replayed after a restart, so the file is read once to know which rows it has.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._read = 0
        self._rows: dict[str, set[int]] = {}

    def add(self, partition: str, rejects: Sequence[Reject]) -> None:
        """Append what is new and wait until it is on disk."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._catch_up(file)
            there = self._rows.get(partition, set())
            new = [reject for reject in rejects if reject.row not in there]
            if new:
                self._append(file, partition, new)

    def _catch_up(self, file: BinaryIO) -> None:
        """Learn what this or another process wrote; cut off a line that a crash left torn."""
        file.seek(self._read)
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(self._read)
                break
            self._read += len(line)
            self._learn(line)

    def _learn(self, line: bytes) -> None:
        entry = msgspec.json.decode(line, type=RejectLine)
        self._rows.setdefault(entry.partition, set()).add(entry.row)

    def _append(self, file: BinaryIO, partition: str, rejects: Sequence[Reject]) -> None:
        lines = [
            msgspec.json.encode(RejectLine(partition, r.row, r.reason, r.raw.decode(errors="backslashreplace")))
            for r in rejects
        ]
        data = b"\n".join(lines) + b"\n"
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        self._read += len(data)
        self._rows.setdefault(partition, set()).update(reject.row for reject in rejects)


def open_rejects(path: str | os.PathLike[str] | None) -> Rejects:
    """The reject file at `path`, or the log."""
    return LoggedRejects() if path is None else RejectFile(path)


def raw_text(value: Any) -> bytes:
    """A value that came from no text, as JSON where it can be."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return repr(value).encode(errors="backslashreplace")
