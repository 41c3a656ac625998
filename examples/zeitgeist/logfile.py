"""The file that an example reads: what tells one log from another, and what is wrong with one that cannot be read.

Lives here: looking at bytes.  Never here: what a line means.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

import msgspec

from millwheel.errors import SourceError

GZIP_MAGIC = b"\x1f\x8b"

CHUNK_BYTES = 1 << 20


class LogFile(msgspec.Struct, frozen=True):
    """A log as it was when it was looked at.  The same bytes under another name are the same log."""

    path: str
    size_bytes: int
    sha256: str

    def is_same(self, other: LogFile) -> bool:
        """Whether both have the same content."""
        return (self.size_bytes, self.sha256) == (other.size_bytes, other.sha256)


def look_at(path: Path) -> LogFile:
    """Hash `path`, which costs one pass over its bytes as they are; `SourceError` for what cannot be a log."""
    if not path.exists():
        raise SourceError(f"there is no log at {path}: give LOG (--log), a file, plain or gzip")
    if not path.is_file():
        raise SourceError(f"{path} is not a file: give LOG (--log), a file, plain or gzip")
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            head = file.read(len(GZIP_MAGIC))
            file.seek(0)
            while block := file.read(CHUNK_BYTES):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    if not size:
        raise SourceError(f"{path} is empty: there is nothing to count")
    # Both Spark and `queries` go by the name; the wrong one would be found late, or every line would be malformed.
    if path.suffix == ".gz" and head != GZIP_MAGIC:
        raise SourceError(f"{path} is named .gz, but it is not gzip data: fetch it again, or rename it")
    if path.suffix != ".gz" and head == GZIP_MAGIC:
        raise SourceError(f"{path} is gzip data: name it .gz")
    return LogFile(str(path.absolute()), size, digest.hexdigest())


def check_unchanged(path: Path, before: LogFile) -> None:
    """Raise `SourceError` if `path` is not what it was before it was read."""
    if not look_at(path).is_same(before):
        raise SourceError(f"{path} changed while it was read: make a copy, and give that as LOG (--log)")


def gzip_fault(path: Path) -> str | None:
    """What is wrong with a gzip file, as the end of a sentence that begins with its name; None when nothing is.

    Reads it to its end or to the fault: for a file that has failed already.
    """
    try:
        with gzip.open(path) as file:
            while file.read(CHUNK_BYTES):
                pass
    except EOFError:
        return "is cut off: its gzip data stops before the end; fetch it again"
    except (gzip.BadGzipFile, zlib.error) as error:
        return f"is damaged: {error}; fetch it again"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None
