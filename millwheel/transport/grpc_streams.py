"""One gRPC stream as its two ends see it: frames, and how it has ended.

Lives here: how gRPC lays frames on bytes (PROTOCOL-HTTP2.md of gRPC), and what has come and is not read.  Never here: HTTP/2,
sockets, who may call, or what a frame means.  Invariants:

* a frame that nobody has read yet holds back the window, so that what is unread is bounded by `HTTP2_WINDOW_BYTES`;
* a stream ends once, and from then on says how.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from h2.errors import ErrorCodes

from millwheel import limits
from millwheel.transport.conversations import StreamBroken

if TYPE_CHECKING:
    from millwheel.transport.http2 import Http2Connection

_PREFIX: Final = struct.Struct(">?I")
"""Before each message: whether it is compressed, and its length."""
_LENGTH: Final = struct.Struct(">I")


class StreamStatus(IntEnum):
    """How a stream has ended: the codes of gRPC that are used here."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class StreamRefused(Exception):
    """A handler ends its stream with another status than OK."""

    def __init__(self, status: StreamStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Http2Stream:
    """One stream of a connection, at either end; a `FrameStream`."""

    def __init__(self, connection: Http2Connection, number: int) -> None:
        self._connection = connection
        self.number = number
        self._frames: deque[bytes] = deque()
        """Whole frames that nobody has read."""
        self._rest = bytearray()
        """The beginning of the next one."""
        self.ended = False
        """The other end has nothing more to say."""
        self.broken = ""
        """How the stream has ended in disorder, or ""."""
        self._reader: asyncio.Future[None] | None = None
        self._listener: Callable[[bytes], None] | None = None
        self.owed_bytes = 0
        """What was read, and not given back to the window yet."""
        self.plain = False
        """Its headers have come, and say nothing of the length: data need not pass through h2."""
        self.plain_bytes = 0
        """What has come past h2, and was not given back to the window yet."""
        self.answered = False
        """The called end has sent its headers."""
        self.finished = False
        """The calling end has said that it is done."""

    @property
    def peer(self) -> str:
        """Where the other end is: host:port."""
        return self._connection.peer

    def certificate(self) -> bytes | None:
        """The certificate of the other end, DER; None: it has none."""
        return self._connection.certificate()

    # --- the interface of conversations --------------------------------------------------------------------------

    async def read(self) -> bytes | None:
        """See `FrameStream`.  What came before the stream broke is read first."""
        while not self._frames:
            if self.broken:
                raise StreamBroken(self.broken)
            if self.ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        frame = self._frames.popleft()
        self._connection.was_read(self, _PREFIX.size + len(frame))
        return frame

    def listen(self, heard: Callable[[bytes], None]) -> None:
        """See `FrameStream`."""
        self._listener = heard
        while self._frames:
            self._hand_over(heard, self._frames.popleft())

    def write_now(self, frame: bytes) -> bool:
        """See `FrameStream`."""
        size = _PREFIX.size + len(frame)
        if self.broken or not self._connection.has(self) or size > self._connection.room(self.number):
            return False
        self._connection.send(self, _PREFIX.pack(False, len(frame)) + frame)
        return True

    async def write(self, frame: bytes) -> None:
        """See `FrameStream`."""
        data = _PREFIX.pack(False, len(frame)) + frame
        sent = 0
        while sent < len(data):
            if self.broken or not self._connection.has(self):
                raise StreamBroken(self.broken or "the other end has ended it")
            room = self._connection.room(self.number)
            if room <= 0:
                await self._connection.more_room()
                continue
            self._connection.send(self, data[sent : sent + room] if sent or room < len(data) else data)
            sent += room

    async def finish(self) -> bool:
        """See `FrameStream`."""
        return self._connection.finish(self)

    def cancel(self) -> None:
        """End it at once."""
        self._connection.reset(self, ErrorCodes.CANCEL)

    # --- what the connection has heard -----------------------------------------------------------------------------

    def came(self, data: bytes) -> None:
        """A piece of what the other end writes.  Raises `StreamRefused` for what is no frame."""
        rest = self._rest
        if not rest and data[:1] == b"\0" and data[1 : _PREFIX.size] == _LENGTH.pack(max(0, len(data) - _PREFIX.size)):
            self._take(data[_PREFIX.size :])  # mostly a piece is one frame
            return
        rest += data
        while len(rest) >= _PREFIX.size:
            compressed, size = _PREFIX.unpack_from(rest)
            if compressed:
                raise StreamRefused(StreamStatus.UNIMPLEMENTED, "a compressed frame came, and none is agreed on")
            if size > limits.CHANNEL_FRAME_LIMIT_BYTES:
                raise StreamRefused(
                    StreamStatus.RESOURCE_EXHAUSTED,
                    f"a frame of {size:,} bytes came, which is larger than max ({limits.CHANNEL_FRAME_LIMIT_BYTES:,}, "
                    "CHANNEL_FRAME_LIMIT_BYTES)",
                )
            if len(rest) < _PREFIX.size + size:
                break
            frame = bytes(memoryview(rest)[_PREFIX.size : _PREFIX.size + size])
            del rest[: _PREFIX.size + size]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        if self._listener is not None:
            self._hand_over(self._listener, frame)
        else:
            self._frames.append(frame)
            self._wake()

    def _hand_over(self, heard: Callable[[bytes], None], frame: bytes) -> None:
        self._connection.was_read(self, _PREFIX.size + len(frame))
        heard(frame)

    def over(self, why: str = "") -> None:
        """Nothing more comes: in order, or because of `why`.  What happens after an end in order is no end in disorder."""
        if not self.ended:
            self.ended = True
            self.broken = why or ("it ended within a frame" if self._rest else "")
        self._wake()
        self._connection.wake()

    def held_bytes(self) -> int:
        """What has come and was not given back to the window of the connection."""
        return self.owed_bytes + len(self._rest) + sum(_PREFIX.size + len(frame) for frame in self._frames)

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


Handler = Callable[[Http2Stream], Awaitable[None]]
"""Serves a stream.  When it returns, the stream ends with OK; `StreamRefused` ends it with another status."""
