"""Frames of HTTP/2 that carry data, past h2: nearly all that comes is one of these, and each costs h2 50 us.

Lives here: cutting what comes into those and the rest, which is h2's, and the bytes of those that are sent.  Never here: what
streams there are, or sockets.  Invariant: what h2 is given is HTTP/2 as it came, less whole frames of data.  It does not
count those, neither when they come nor when their room is given back (docs/adr/0051-data-passes-by-h2.md).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

from millwheel import limits

_HEADER: Final = struct.Struct(">HBBBI")
"""The length (its first 16 bits, and the rest), the type, flags, the stream."""
_UPDATE: Final = struct.Struct(">HBBBII")
_PREAMBLE_BYTES: Final = 24
"""What a caller sends before its first frame."""
_DATA, _HEADERS, _PUSH_PROMISE, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 5, 8, 9
_END_HEADERS: Final = 4
OF_H2: Final = 0
"""In place of the number of a stream: bytes that h2 has to see."""


def data_frame(number: int, data: bytes) -> bytes:
    """`data` of stream `number` as one frame, after which more may come."""
    return _HEADER.pack(len(data) >> 8, len(data) & 255, _DATA, 0, number) + data


def room_given(number: int, size: int) -> bytes:
    """The frame that lets the other end send `size` bytes more on a stream, or on the connection (0)."""
    return _UPDATE.pack(0, 4, _WINDOW_UPDATE, 0, number, size)


class FrameCutter:
    """Cuts what comes on one connection.

    >>> cutter = FrameCutter(called=False)
    >>> [*cutter.cut(data_frame(7, b"abc") + room_given(0, 9), lambda number: True)]
    [(7, b'abc'), (0, b'\\x00\\x00\\x04\\x08\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\t')]
    """

    def __init__(self, called: bool) -> None:
        """`called`: this end is, and a preamble comes first."""
        self._preamble = _PREAMBLE_BYTES if called else 0
        self._rest = bytearray()
        """The beginning of a frame."""
        self._needed = 0
        """How long the rest has to be before there is something to cut."""
        self._within_headers = False
        """No frame but their continuation may come now, which h2 checks."""
        self._given_up = False
        """A frame was too long: all else is for h2, which says so."""

    def cut(self, data: bytes, plain: Callable[[int], bool]) -> Iterator[tuple[int, bytes]]:
        """What came, in order: (stream, data) of each frame without padding or end of a stream that is `plain`, and (`OF_H2`,
        bytes).  What it yields must be handled before the next one is asked for."""
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return
            data = bytes(self._rest)
            self._rest.clear()
        at = given = 0
        if self._preamble:
            at = min(self._preamble, len(data))
            self._preamble -= at
        size = len(data)
        while size - at >= _HEADER.size and not self._given_up:
            high, low, kind, flags, number = _HEADER.unpack_from(data, at)
            begin = at + _HEADER.size
            end = begin + (high << 8 | low)
            if end - begin > limits.HTTP2_FRAME_BYTES:
                self._given_up = True
            elif end > size:
                break
            elif kind == _DATA and not flags and not self._within_headers:
                if given < at:
                    yield OF_H2, data[given:at]
                    given = at
                if plain(number):
                    given = end
                    yield number, data[begin:end]
            elif kind in (_HEADERS, _PUSH_PROMISE, _CONTINUATION):
                self._within_headers = not flags & _END_HEADERS
            at = end
        if self._given_up:
            at = size
        if given < at:
            yield OF_H2, data[given:at]
        if at < size:
            self._rest += data[at:]
            whole = size - at >= _HEADER.size
            self._needed = end - at if whole else _HEADER.size
