"""Bytes of one file, plain or gzip, as they are appended; and their lines.

Lives here: positions in *uncompressed* bytes, so that a log keeps its positions when rotation compresses it.
Never here: what a line means.  Invariant: `LineBuffer.offset` is the first byte of the next line that was not
taken.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from millwheel.errors import SourceError
from millwheel.limits import (
    FILE_CHUNK_BYTES,
    FILE_HEAD_LIMIT_BYTES,
    FILE_TAIL_BYTES,
    FILE_TAIL_LINES,
    REJECT_SAMPLE_BYTES,
    VALUE_LIMIT_BYTES,
)

GZIP_MAGIC: Final = b"\x1f\x8b"
OTHER_MAGIC: Final = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    **{b"BZh%d1AY&SY" % level: "bzip2" for level in range(1, 10)},
}
"""How files begin that are compressed in another way.  Their bytes would be taken for lines."""
COMPRESSED: Final = frozenset({".bz2", ".deflate", ".lz4", ".snappy", ".xz", ".zst", ".zstd"})
"""How Spark names such files; some of them do not say what they are."""


class ByteStream(Protocol):
    """Uncompressed bytes of a file that may still grow."""

    def read(self) -> bytes:
        """The next bytes; empty at the present end."""
        ...

    def seek(self, offset: int) -> None:
        """Continue at uncompressed byte `offset`; `SourceError` when the file ends before it."""
        ...

    def whole(self) -> bool:
        """False inside a gzip member: the file cannot be complete."""
        ...

    def modified_us(self) -> int:
        """Wall time of the last write."""
        ...

    def look(self, offset: int) -> tuple[int, int]:
        """(bytes on disk, time of the last write in ns) when uncompressed byte `offset` is the end, else (-1, 0)."""
        ...

    def inode(self) -> int:
        """Of the file that is open, whatever has its name by now."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


class PlainStream:
    """An uncompressed file."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._offset = 0

    def read(self) -> bytes:
        """The next bytes; refuses a file that became shorter than what was read of it."""
        chunk = self._file.read(FILE_CHUNK_BYTES)
        self._offset += len(chunk)
        if not chunk:
            self._refuse_shrunk(self._offset)
        return chunk

    def seek(self, offset: int) -> None:
        """A seek of the file."""
        self._refuse_shrunk(offset)
        self._file.seek(offset)
        self._offset = offset

    def _refuse_shrunk(self, offset: int) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size < offset:
            raise SourceError(shrunk_message(self._path, size, offset))

    def whole(self) -> bool:
        """Always: any length is a plain file."""
        return True

    def modified_us(self) -> int:
        """From the open file, so that it holds after a rename."""
        return os.fstat(self._file.fileno()).st_mtime_ns // 1_000

    def look(self, offset: int) -> tuple[int, int]:
        """From the open file."""
        status = os.fstat(self._file.fileno())
        return (status.st_size, status.st_mtime_ns) if status.st_size == offset else (-1, 0)

    def inode(self) -> int:
        """From the open file."""
        return os.fstat(self._file.fileno()).st_ino

    def close(self) -> None:
        """Release the file."""
        self._file.close()


class GzipStream:
    """A gzip file of any number of members, one after the other; zero bytes between them are padding."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._start()

    def _start(self) -> None:
        self._inflate = zlib.decompressobj(31)
        self._pending = b""
        self._more = False
        self._whole = True
        self._size = 0
        self._kept = b""

    def read(self) -> bytes:
        """The next uncompressed bytes; what is there of an unfinished member counts."""
        if self._kept:
            chunk, self._kept = self._kept, b""
            return chunk
        while True:
            if not self._pending and not self._more:
                self._pending = self._file.read(FILE_CHUNK_BYTES)
                self._size += len(self._pending)
                if not self._pending:
                    return self._at_end()
            if chunk := self._step():
                return chunk

    def _at_end(self) -> bytes:
        size = os.fstat(self._file.fileno()).st_size
        if size < self._size:
            raise SourceError(shrunk_message(self._path, size, self._size))
        return b""

    def _step(self) -> bytes:
        if self._whole:
            self._pending = self._pending.lstrip(b"\0")
            if not self._pending:
                return b""
            self._inflate = zlib.decompressobj(31)
            self._whole = False
        try:
            chunk = self._inflate.decompress(self._pending, FILE_CHUNK_BYTES)
        except zlib.error as error:
            raise SourceError(f"{self._path}: damaged gzip: {error}; restore the file") from error
        self._whole = self._inflate.eof
        self._more = len(chunk) == FILE_CHUNK_BYTES and not self._whole
        self._pending = self._inflate.unused_data if self._whole else self._inflate.unconsumed_tail
        return chunk

    def seek(self, offset: int) -> None:
        """Uncompress from the start again: gzip has no other way."""
        self._file.seek(0)
        self._start()
        left = offset
        while left:
            chunk = self.read()
            if not chunk:
                raise SourceError(shrunk_message(self._path, offset - left, offset))
            self._kept = chunk[left:]
            left -= min(left, len(chunk))

    def whole(self) -> bool:
        """True between members."""
        return self._whole

    def modified_us(self) -> int:
        """From the open file, so that it holds after a rename."""
        return os.fstat(self._file.fileno()).st_mtime_ns // 1_000

    def look(self, offset: int) -> tuple[int, int]:
        """From the open file: all of it is read, which is as much as can be told."""
        status = os.fstat(self._file.fileno())
        return (status.st_size, status.st_mtime_ns) if status.st_size == self._size else (-1, 0)

    def inode(self) -> int:
        """From the open file."""
        return os.fstat(self._file.fileno()).st_ino

    def close(self) -> None:
        """Release the file."""
        self._file.close()


def shrunk_message(path: Path, size: int, offset: int) -> str:
    """What to tell about a file that lost bytes that were read."""
    return (
        f"{path}: truncated: {size} bytes are left of at least {offset} that were read before; "
        "restore the file, or give rewritten data a new file name (rotate by renaming, not by truncating)"
    )


def open_stream(path: Path) -> ByteStream:
    """The file at `path`, gzip when it begins as gzip does, whatever its name."""
    return stream_of(path, open(path, "rb", buffering=0))


def stream_of(path: Path, file: BinaryIO) -> ByteStream:
    """The same of an open file, which the stream closes."""
    magic = file.read(max(map(len, OTHER_MAGIC)))
    file.seek(0)
    for begins, kind in OTHER_MAGIC.items():
        if magic.startswith(begins):
            file.close()
            raise SourceError(f"{path}: compressed with {kind}, and only gzip is read: uncompress it, or use gzip")
    return GzipStream(path, file) if magic.startswith(GZIP_MAGIC) else PlainStream(path, file)


def read_head(path: Path) -> bytes:
    """The first uncompressed bytes of a file, at most `FILE_HEAD_LIMIT_BYTES`."""
    return head_of(open_stream(path))


def head_of(stream: ByteStream) -> bytes:
    """The same of an open file, which is closed behind it."""
    try:
        head = b""
        while len(head) < FILE_HEAD_LIMIT_BYTES and (chunk := stream.read()):
            head += chunk[: FILE_HEAD_LIMIT_BYTES - len(head)]
        return head
    finally:
        stream.close()


class Oversized(bytes):
    """The beginning of a line that is longer than `VALUE_LIMIT_BYTES`; `dropped` bytes followed."""

    dropped: int = 0


class LineBuffer:
    """Lines of a stream, without their newlines, in bounded memory."""

    def __init__(self, stream: ByteStream, offset: int) -> None:
        self.offset = offset
        self.tail = b""
        """The last bytes before `offset`, some or `FILE_TAIL_BYTES` of them."""
        self._stream = stream
        self._lines: list[bytes] = []
        self._next = 0
        self._rest = b""
        self._dropped = 0
        self._unended = False

    def peek(self, limit: int) -> list[bytes]:
        """At most `limit` of the lines that are here."""
        return self._lines[self._next : self._next + limit]

    def waiting(self) -> int:
        """Lines that are here."""
        return len(self._lines) - self._next

    def unread(self) -> int:
        """Bytes that are here and not consumed."""
        lines = self._lines[self._next :]
        dropped = sum(line.dropped for line in lines if isinstance(line, Oversized))
        return sum(map(len, lines)) + len(lines) + dropped + len(self._rest) + self._dropped

    def take(self, count: int) -> None:
        """Count the next `count` lines as consumed."""
        lines = self._lines[self._next : self._next + count]
        self._next += count
        ended = not self._unended or self.waiting() > 0
        self.offset += sum(map(len, lines)) + len(lines) - (not ended)
        self.tail = self._tail_after(lines) + (b"\n" if ended else b"")
        if Oversized in set(map(type, lines)):
            self.offset += sum(line.dropped for line in lines if isinstance(line, Oversized))
            self.tail = b""

    def _tail_after(self, lines: list[bytes]) -> bytes:
        text = b"\n".join(lines[-FILE_TAIL_LINES:])
        if len(lines) < FILE_TAIL_LINES:
            text = self.tail + text
        return text[-FILE_TAIL_BYTES:]

    def fill(self) -> bool:
        """Read on; False when the stream has nothing now."""
        chunk = self._stream.read()
        if not chunk:
            return False
        parts = chunk.split(b"\n")
        rest = parts.pop()
        if parts:
            self._extend(parts[0])
            parts[0] = self._complete()
            self._lines = self._lines[self._next :] + parts
            self._next = 0
        self._extend(rest)
        return True

    def _extend(self, part: bytes) -> None:
        if self._dropped:
            self._dropped += len(part)
            return
        self._rest = self._rest + part if self._rest else part
        if len(self._rest) > VALUE_LIMIT_BYTES:
            self._dropped = len(self._rest) - REJECT_SAMPLE_BYTES
            self._rest = self._rest[:REJECT_SAMPLE_BYTES]

    def _complete(self) -> bytes:
        line = self._rest
        if self._dropped:
            line = Oversized(line)
            line.dropped = self._dropped
        self._rest, self._dropped = b"", 0
        return line

    def end(self) -> None:
        """No byte will follow: what stands after the last newline is a line."""
        if self._rest:
            self._lines.append(self._complete())
            self._unended = True
