"""One stream between two hosts from its greeting to its end, whichever end has called.

Lives here: sending, hearing, signs of life, and the end of a stream.  Never here: gRPC, addresses, or who calls whom.
Invariants:

* when a conversation has ended, nothing that came on its stream is heard any more, and nothing is sent on it;
* a conversation ends once, and says why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from millwheel import limits
from millwheel.errors import WireError
from millwheel.host.messages import Message
from millwheel.transport.frames import BEAT, Incoming, Outgoing


class FrameStream(Protocol):
    """Frames in two directions.  `read` and `write` raise `StreamBroken` when the stream is."""

    async def read(self) -> bytes | None:
        """The next frame; None: the other end has nothing more to say."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send a frame, as soon as there is room for it."""
        ...

    async def finish(self) -> bool:
        """Nothing more is written.  False: this end has to end the stream."""
        ...


class StreamBroken(Exception):
    """A stream has ended in disorder, or was refused; the text says how."""


class Conversation:
    """An open stream.  Whoever made it calls `run`, and `look` every `CHANNEL_BEAT_S`."""

    def __init__(self, stream: FrameStream, heard: Callable[[Message], None]) -> None:
        self._stream = stream
        self._heard = heard
        self._outgoing = Outgoing()
        self._wake = asyncio.Event()
        self._beat = False
        """A sign of life is due."""
        self._alive = True
        """Something has come since the last look."""
        self._silent = 0
        """Looks in a row at which nothing had come."""
        self._closing = False
        self._over = asyncio.Event()
        self.why = ""
        """Why it has ended, or ""."""
        self.orderly = False
        """One of the ends has closed it, and all that was told has gone out."""
        self.malformed = False
        """It has ended because of what the other end sent."""

    def tell(self, message: Message) -> None:
        """Send a message in its turn.  When too much waits already, the conversation ends instead."""
        if self.why or self._closing:
            return
        if not self._outgoing.put(message):
            self.end(
                f"{self._outgoing.waiting_bytes:,} bytes wait, and no more may (CHANNEL_QUEUE_LIMIT_BYTES): "
                "the other end is too slow, or does not read"
            )
        self._wake.set()

    def look(self) -> None:
        """See whether the other end is alive, and show that this one is.

        Looks are counted, and not time: when this process was stopped, what has come meanwhile is read before the next one.
        """
        self._silent = 0 if self._alive else self._silent + 1
        self._alive = False
        if self._silent >= limits.CHANNEL_SILENT_BEATS:
            self.end(f"nothing came for {limits.CHANNEL_SILENT_BEATS * limits.CHANNEL_BEAT_S:.0f} s")
        self._beat = True
        self._wake.set()

    def close(self) -> None:
        """Send what waits, and then end."""
        self._closing = True
        self._wake.set()

    def end(self, why: str, *, orderly: bool = False, malformed: bool = False) -> None:
        """End now; what waits is lost."""
        if not self.why:
            self.why, self.orderly, self.malformed = why, orderly, malformed
            self._outgoing = Outgoing()
            self._over.set()

    async def ended(self) -> None:
        """Wait for its end."""
        await self._over.wait()

    async def run(self) -> None:
        """Carry messages until the conversation ends."""
        tasks = [asyncio.ensure_future(part) for part in (self._read(), self._write(), self._over.wait())]
        try:
            await self._over.wait()
        finally:
            self.end("the stream was cancelled")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        incoming = Incoming()
        try:
            while (frame := await self._stream.read()) is not None:
                self._alive = True
                for message in incoming.messages(frame):
                    if self.why:
                        return
                    self._heard(message)
            self.end("the other end has closed it", orderly=True)
        except WireError as error:
            self.end(str(error), malformed=True)
        except StreamBroken as broken:
            self.end(str(broken))
        except Exception as error:  # of whoever has heard a message: it is told there, and no stream may outlive it
            self.end(f"a message was not taken: {error!r}")
            raise

    async def _write(self) -> None:
        try:
            while not self.why:
                frame = self._outgoing.frame()
                if frame is None and self._closing:
                    break
                if frame is None and not self._beat:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                self._beat = False
                await self._stream.write(BEAT if frame is None else frame)
            if not self.why and not await self._stream.finish():
                self.end("this process has closed it", orderly=True)
        except (StreamBroken, WireError) as broken:
            self.end(str(broken))
