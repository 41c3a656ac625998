"""The room of a connection and of its streams: each byte that came is held, owed, or given back, and once."""

from __future__ import annotations

import asyncio
import random
import struct

import pytest
from h2.events import PingAckReceived, StreamReset

from millwheel import limits
from millwheel.transport.grpc_streams import Http2Stream, StreamRefused, StreamStatus
from millwheel.transport.http2 import Http2Connection
from millwheel.transport.http2_ends import Http2Server
from tests.unit.transport.test_http2 import PATH, RawEnd

CHOICES = {"call": 3, "send": 40, "read": 14, "listen": 1, "return": 1, "refuse": 1, "reset": 1, "finish": 1}
"""What happens next, and how often."""


class Traffic:
    """A caller that does as it likes."""

    def __init__(self, end: RawEnd, server: Http2Server) -> None:
        self.end, self.server = end, server
        self.open: set[int] = set()
        """Streams on which the caller may still send."""
        self.unsent: dict[int, bytes] = {}
        """By stream: the rest of a frame that has begun."""

    @property
    def connection(self) -> Http2Connection:
        (found,) = self.server._connections
        return found

    async def settle(self) -> None:
        """All that was sent has been taken, and all answers to it have come."""
        self.end.h2.ping(b"12345678")
        self.end.flush()
        answered = False
        async with asyncio.timeout(20):
            while not answered:
                for event in self.end.h2.receive_data(await self.end.reader.read(65_536)):
                    answered = answered or isinstance(event, PingAckReceived)
                    if isinstance(event, StreamReset):
                        self.open.discard(event.stream_id)
        self.end.flush()

    def call(self) -> None:
        self.open.add(self.end.open())

    def send(self, number: int, dice: random.Random) -> None:
        """A piece of a frame, which may have padding."""
        padding = dice.choice((None, None, 0, 9, 255))
        room = self.end.h2.local_flow_control_window(number) - (padding or 0) - 1
        if room < 10_000:
            return
        frame = self.unsent.get(number) or struct.pack(">?I", False, size := dice.randrange(8_000)) + bytes(size)
        cut = dice.choice((len(frame), dice.randrange(len(frame) + 1)))
        self.end.h2.send_data(number, frame[:cut], pad_length=padding)
        self.unsent[number] = frame[cut:]

    def check(self) -> None:
        """What the caller may send, and what this end has of it, is all the room that there ever was."""
        here, there = self.connection._h2, self.end.h2
        held = 0
        for number, stream in self.connection._streams.items():
            kept = here.streams[number]._inbound_window_manager._bytes_processed
            room = there.streams[number].outbound_flow_control_window
            assert room + stream.held_bytes() + kept == limits.HTTP2_WINDOW_BYTES
            held += stream.held_bytes()
        owed = here._inbound_flow_control_window_manager._bytes_processed
        whole = 65_535 + limits.HTTP2_STREAMS_LIMIT * limits.HTTP2_WINDOW_BYTES
        assert there.outbound_flow_control_window + held + owed == whole


class Handlers:
    """Each serves a stream until it is told to end."""

    def __init__(self) -> None:
        self.streams: dict[int, Http2Stream] = {}
        self._ends: dict[int, asyncio.Future[None]] = {}

    async def serve(self, stream: Http2Stream) -> None:
        self.streams[stream.number] = stream
        self._ends[stream.number] = asyncio.get_running_loop().create_future()
        await self._ends[stream.number]

    def end(self, number: int, refused: bool) -> None:
        end = self._ends.get(number)
        if end is None or end.done():
            return
        if refused:
            end.set_exception(StreamRefused(StreamStatus.ABORTED, "enough"))
        else:
            end.set_result(None)

    async def read(self, number: int, frames: int) -> None:
        """Also of a stream that is over: what came before is read first."""
        stream = self.streams.get(number)
        for _ in range(frames):
            if stream is not None and stream._frames:
                await stream.read()


async def one_step(traffic: Traffic, handlers: Handlers, dice: random.Random) -> None:
    number = dice.choice([*traffic.open] or [1])
    match dice.choices([*CHOICES], [*CHOICES.values()])[0]:
        case "call" if len(traffic.open) < 5:
            traffic.call()
        case "send" if number in traffic.open:
            traffic.send(number, dice)
        case "read":
            await handlers.read(dice.choice([*handlers.streams] or [1]), dice.randrange(1, 40))
        case "listen" if number in handlers.streams:
            handlers.streams[number].listen(lambda frame: None)
            assert not handlers.streams[number]._frames
        case "return" | "refuse" as how:
            handlers.end(number, how == "refuse")
        case "reset" if number in traffic.open:
            traffic.open.discard(number)
            traffic.end.h2.reset_stream(number)
        case "finish" if number in traffic.open and not traffic.unsent.get(number):
            traffic.open.discard(number)
            traffic.end.h2.end_stream(number)


@pytest.mark.parametrize("seed", range(12))
def test_room_is_neither_lost_nor_given_twice(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_LINGER_S", 0.01)
    monkeypatch.setattr(limits, "HTTP2_WINDOW_BYTES", 100_000)
    dice = random.Random(seed)

    async def scenario() -> None:
        handlers = Handlers()
        server = Http2Server({PATH: handlers.serve}, None)
        traffic = Traffic(
            RawEnd(*await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0))), server
        )
        traffic.end.flush()
        await traffic.settle()
        await traffic.settle()  # it has agreed to the settings
        for _ in range(150):
            await one_step(traffic, handlers, dice)
            await traffic.settle()
            await traffic.settle()  # also what was said since the last question was answered
            traffic.check()
        for number in handlers.streams:
            handlers.end(number, False)
        await traffic.settle()
        assert not traffic.connection._tasks
        await asyncio.sleep(0.05)
        await traffic.settle()
        traffic.check()
        assert not traffic.connection._streams
        traffic.end.writer.close()
        await server.stop()

    asyncio.run(scenario())
