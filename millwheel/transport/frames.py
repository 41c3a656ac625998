"""What a stream carries: messages in frames (proto/channel.proto), without any input or output.

Lives here: cutting what waits into frames, and putting frames together again.  Never here: sockets, time, or what messages
mean.  Invariants:

* messages come out in the order in which they were put in, each once;
* a frame carries less than twice `CHANNEL_FRAME_BYTES`, however long a message is.
"""

from __future__ import annotations

from collections import deque

from google.protobuf.message import DecodeError

from millwheel import limits
from millwheel.errors import WireError
from millwheel.host.messages import Delivery, Message
from millwheel.transport.proto import channel_pb2 as pb
from millwheel.transport.wire_form import decoded, encoded

BEAT = b""
"""A frame that says only that the sender is there."""


class Outgoing:
    """Messages that wait to be sent on one stream, at most `CHANNEL_QUEUE_LIMIT_BYTES` of them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Delivery | bytes, int]] = deque()
        """(what is sent, bytes that it counts).  A bundle becomes bytes when its turn comes: until then it takes no memory
        besides what its sender keeps anyway."""
        self._rest: memoryview | None = None
        """What is left of a message that is longer than a frame."""
        self.waiting_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._rest is not None

    def put(self, message: Message) -> bool:
        """One more message; False, and nothing is changed, when it has no room behind others."""
        if isinstance(message, Delivery):
            form: Delivery | bytes = message
            size = message.bundle.size()
        else:
            form = encoded(message)
            size = len(form)
        size += limits.CHANNEL_MESSAGE_OVERHEAD_BYTES
        if self._waiting and self.waiting_bytes + size > limits.CHANNEL_QUEUE_LIMIT_BYTES:
            return False
        self._waiting.append((form, size))
        self.waiting_bytes += size
        return True

    def frame(self) -> bytes | None:
        """The next frame, with as much as goes into one; None when nothing waits.  `WireError`: see `encoded`."""
        if self._rest is not None:
            return self._part(self._rest)
        whole: list[bytes] = []
        room = limits.CHANNEL_FRAME_BYTES
        while self._waiting and room > 0:
            form, size = self._waiting[0]
            if whole and size > room:
                break
            self._waiting.popleft()
            self.waiting_bytes -= size
            data = form if isinstance(form, bytes) else encoded(form)
            if len(data) > limits.CHANNEL_FRAME_BYTES:
                if whole:  # a bundle of many short records is longer than it counts
                    self._rest = memoryview(data)
                    break
                return self._part(memoryview(data))
            whole.append(data)
            room -= len(data)
        return pb.Frame(whole=whole).SerializeToString() if whole else None

    def _part(self, data: memoryview) -> bytes:
        part, rest = data[: limits.CHANNEL_FRAME_BYTES], data[limits.CHANNEL_FRAME_BYTES :]
        self._rest = rest if rest else None
        return pb.Frame(part=bytes(part), last=not rest).SerializeToString()


class Incoming:
    """Messages of one stream, from its frames."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def messages(self, data: bytes) -> list[Message]:
        """The messages that the next frame completes; raises `WireError` for what is no frame of an open stream."""
        frame = parsed(data)
        if frame.HasField("greeting"):
            raise WireError("a greeting comes in the middle of a stream")
        if not (frame.part or frame.last):
            if self._parts and frame.whole:
                raise WireError("a message comes in the middle of another one")
            return [decoded(whole) for whole in frame.whole]
        if frame.whole:
            raise WireError("a frame has whole messages and a part of one")
        self._parts.append(frame.part)
        self._size += len(frame.part)
        if self._size > limits.CHANNEL_MESSAGE_LIMIT_BYTES:
            raise WireError(
                f"a message is longer than {limits.CHANNEL_MESSAGE_LIMIT_BYTES:,} bytes (CHANNEL_MESSAGE_LIMIT_BYTES)"
            )
        if not frame.last:
            return []
        whole, self._parts, self._size = b"".join(self._parts), [], 0
        return [decoded(whole)]


def parsed(data: bytes) -> pb.Frame:
    """The frame that `data` is; raises `WireError` for anything else."""
    try:
        return pb.Frame.FromString(data)
    except DecodeError as error:
        raise WireError(f"{len(data)} bytes are no frame: {error}") from error
