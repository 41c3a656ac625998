"""Lines of a stream, against the bytes that they were cut from."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.limits import FILE_CHUNK_BYTES, VALUE_LIMIT_BYTES
from millwheel_injectors import streams
from millwheel_injectors.streams import LineBuffer, Oversized

LIMIT, SAMPLE = 6, 3


class Chunks:
    """A stream that gives what it is told to."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._chunks = [chunk for chunk in chunks if chunk]
        self.given = 0

    def read(self) -> bytes:
        chunk = self._chunks.pop(0) if self._chunks else b""
        self.given += len(chunk)
        return chunk

    def seek(self, offset: int) -> None:
        pytest.fail("nobody asked")

    def whole(self) -> bool:
        return True

    def modified_us(self) -> int:
        return 0

    def look(self, offset: int) -> tuple[int, int]:
        return -1, 0

    def inode(self) -> int:
        return 0

    def close(self) -> None:
        pass


@given(
    chunks=st.lists(st.text("ab\n", max_size=LIMIT).map(str.encode), max_size=12),
    takes=st.lists(st.integers(0, 4), max_size=30),
    tail_lines=st.integers(1, 3),
)
def test_the_offset_is_that_of_the_next_line_and_the_tail_is_what_stands_before_it(
    chunks: list[bytes], takes: list[int], tail_lines: int
) -> None:
    """Also of a last line without a newline, and of one that is longer than the limit, which is cut to a sample.

    What a stream gives at once is no longer than the limit.
    """
    assert FILE_CHUNK_BYTES <= VALUE_LIMIT_BYTES
    data = b"".join(chunks)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    with patch.multiple(
        streams, VALUE_LIMIT_BYTES=LIMIT, REJECT_SAMPLE_BYTES=SAMPLE, FILE_TAIL_LINES=tail_lines, FILE_TAIL_BYTES=5
    ):
        buffer = LineBuffer(stream := Chunks(chunks), 0)
        read, ended = 0, False
        solid: list[bytes] = []
        for take in [*takes, *[4] * len(lines), *[4] * (len(chunks) + 2)]:
            seen = buffer.peek(take)
            assert len(seen) == min(take, buffer.waiting())
            for line, whole in zip(seen, lines[read:], strict=False):
                dropped = line.dropped if isinstance(line, Oversized) else 0
                assert line == (whole if len(whole) <= LIMIT else whole[:SAMPLE])
                assert len(line) + dropped == len(whole)
            if seen:
                buffer.take(len(seen))
            read += len(seen)
            assert buffer.offset == min(len(data), sum(len(line) + 1 for line in lines[:read]))
            assert data[: buffer.offset].endswith(buffer.tail)
            solid = (solid if len(seen) < tail_lines else []) + seen[-tail_lines:]
            if any(isinstance(line, Oversized) for line in seen):
                solid = []
            assert len(buffer.tail) >= min(5, len(b"\n".join(solid)))
            if not ended and take % 2 == 0 and not buffer.fill():
                buffer.end()
                ended = True
            assert ended or buffer.offset + buffer.unread() == stream.given
        assert (read, ended) == (len(lines), True)
