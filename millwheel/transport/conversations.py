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

    def listen(self, heard: Callable[[bytes], None]) -> None:
        """From now on `heard` is given each frame as it comes, and `read` waits for the end."""
        ...

    def write_now(self, frame: bytes) -> bool:
        """Send a frame, if there is room for all of it; False: there is none, or the stream is broken."""
        ...

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
        self._incoming = Incoming()
        self._wake = asyncio.Event()
        """Set when the writer has something to do."""
        self._writing = False
        """The writer is at work, and takes all that waits in turn."""
        self._stuck: bytes | None = None
        """A frame for which there was no room; the writer takes it first."""
        self._due = False
        """What waits is sent when this turn of the event loop is over."""
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
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._send)

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

    def _came(self, frame: bytes) -> None:
        """A frame has come.  Nothing is heard after the end, also not of the frame in which it came."""
        self._alive = True
        try:
            for message in self._incoming.messages(frame) if not self.why else ():
                if self.why:
                    return
                self._heard(message)
        except WireError as error:
            self.end(str(error), malformed=True)
        except Exception as error:  # of whoever has heard a message: it is told there, and no stream may outlive it
            self.end(f"a message was not taken: {error!r}")

    async def _read(self) -> None:
        self._stream.listen(self._came)
        try:
            await self._stream.read()
            self.end("the other end has closed it", orderly=True)
        except StreamBroken as broken:
            self.end(str(broken))

    def _send(self) -> None:
        """Send what waits, in as few frames as it goes into.  A task that waits for each frame would cost as much again."""
        self._due = False
        if self.why or self._writing or self._stuck is not None:
            return
        try:
            while (frame := self._outgoing.frame()) is not None:
                if not self._stream.write_now(frame):
                    self._stuck = frame
                    self._wake.set()
                    return
        except WireError as error:
            self.end(str(error))

    async def _write(self) -> None:
        try:
            while not self.why:
                self._writing = True
                frame = self._stuck if self._stuck is not None else self._outgoing.frame()
                self._stuck = None
                if frame is None and self._closing:
                    break
                if frame is None and not self._beat:
                    self._wake.clear()
                    self._writing = False
                    await self._wake.wait()
                    continue
                self._beat = False
                await self._stream.write(BEAT if frame is None else frame)
            if not self.why and not await self._stream.finish():
                self.end("this process has closed it", orderly=True)
        except (StreamBroken, WireError) as broken:
            self.end(str(broken))
