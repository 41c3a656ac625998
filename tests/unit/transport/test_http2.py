"""gRPC's streams in the event loop: both ends over real sockets, and other ends that keep no rule.

That gRPC's own clients are served is what `test_grpc_channels` and `test_tls` show, whose strangers are gRPC's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from millwheel import limits
from millwheel.errors import InvariantError
from millwheel.transport.conversations import StreamBroken
from millwheel.transport.data_frames import data_frame
from millwheel.transport.grpc_streams import Http2Stream, StreamRefused, StreamStatus
from millwheel.transport.http2 import Http2Connection
from millwheel.transport.http2_ends import Http2Server, close_all, dial
from tests.unit.transport.network import until

Serve = Callable[[Http2Stream], Awaitable[None]]

PATH = "/a.B/C"


@asynccontextmanager
async def listening(serve: Serve, buffer_bytes: int = 0) -> AsyncIterator[int]:
    """A port where `serve` has every stream."""
    server = Http2Server({PATH: serve}, None)
    try:
        port = await server.start("127.0.0.1", 0)
        if buffer_bytes and server._server is not None:
            server._server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        yield port
    finally:
        await server.stop()


@asynccontextmanager
async def called(serve: Serve, path: str = PATH) -> AsyncIterator[Http2Stream]:
    """A stream to such a port, at the end that has called."""
    async with listening(serve) as port:
        dialled: set[Http2Connection] = set()
        try:
            yield (await dial("127.0.0.1", port, None, dialled)).call(path, "here")
        finally:
            await close_all(dialled)
        assert not dialled


async def echo(stream: Http2Stream) -> None:
    while (frame := await stream.read()) is not None:
        await stream.write(frame)


def test_frames_of_all_lengths_come_back_in_order() -> None:
    sizes = [0, 1, 2**14 - 5, 2**14, 2**18 - 5, 2**18, limits.CHANNEL_FRAME_LIMIT_BYTES, 3]
    frames = [bytes([number]) * size for number, size in enumerate(sizes)] * 3

    async def scenario() -> None:
        async with called(echo) as stream:
            writing = asyncio.create_task(write_all(stream, frames))
            assert [await stream.read() for _ in frames] == frames
            await writing
            assert await stream.finish() is True
            assert await stream.read() is None

    asyncio.run(scenario())


async def write_all(stream: Http2Stream, frames: list[bytes]) -> None:
    for frame in frames:
        await stream.write(frame)


async def write_for_ever(stream: Http2Stream) -> None:
    while True:
        await asyncio.wait_for(stream.write(bytes(1_000_000)), 30)


def test_what_nobody_reads_holds_its_writer_back() -> None:
    frame, read = bytes(100_000), asyncio.Event()
    written = 0

    async def late(stream: Http2Stream) -> None:
        await read.wait()
        await echo(stream)

    async def scenario() -> None:
        nonlocal written
        async with called(late) as stream:

            async def write() -> None:
                nonlocal written
                while written < 300:
                    await stream.write(frame)
                    written += 1

            writing = asyncio.create_task(write())
            await asyncio.sleep(0.5)
            # The window of the stream, and what one frame more has begun.
            assert written * len(frame) <= limits.HTTP2_WINDOW_BYTES + len(frame)
            read.set()
            for _ in range(300):
                assert await stream.read() == frame
            await writing

    asyncio.run(scenario())


def test_many_windows_pass_one_connection_stream_after_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stream has not read when it ends is given back to its connection, and what comes after its end as well."""
    monkeypatch.setattr(limits, "HTTP2_STREAMS_LIMIT", 2)  # the windows of so many are the connection's

    async def drop(stream: Http2Stream) -> None:
        await stream.read()

    async def scenario() -> None:
        async with listening(drop) as port:
            dialled: set[Http2Connection] = set()
            connection = await dial("127.0.0.1", port, None, dialled)
            for _ in range(20):
                stream = connection.call(PATH, "here")
                with pytest.raises(StreamBroken):
                    await write_for_ever(stream)
            await close_all(dialled)

    asyncio.run(scenario())


async def refuse(stream: Http2Stream) -> None:
    raise StreamRefused(StreamStatus.NOT_FOUND, "nobody is called 'Zoë', 100%")


async def fail(stream: Http2Stream) -> None:
    raise ValueError("a mistake")


@pytest.mark.parametrize(
    ("serve", "path", "says"),
    [
        (refuse, PATH, r"^nobody is called 'Zoë', 100% \(NOT_FOUND\)$"),
        (fail, PATH, r"^its handler failed \(INTERNAL\)$"),
        (echo, "/a.B/D", r"^nobody serves '/a.B/D' \(UNIMPLEMENTED\)$"),
    ],
)
def test_a_refusal_reaches_the_end_that_has_called(
    serve: Serve, path: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with called(serve, path) as stream:
            with pytest.raises(StreamBroken, match=says):
                await stream.read()
            with pytest.raises(StreamBroken, match=says):
                await stream.write(b"more")

    asyncio.run(scenario())
    assert ("a mistake" in caplog.text) == (serve is fail)


def test_frames_before_the_end_are_read_and_then_its_reason() -> None:
    async def say_and_refuse(stream: Http2Stream) -> None:
        await stream.write(b"one")
        await stream.write(b"two")
        raise StreamRefused(StreamStatus.ABORTED, "enough")

    async def scenario() -> None:
        async with called(say_and_refuse) as stream:
            await asyncio.sleep(0.05)
            assert [await stream.read(), await stream.read()] == [b"one", b"two"]
            with pytest.raises(StreamBroken, match=r"enough \(ABORTED\)"):
                await stream.read()

    asyncio.run(scenario())


def test_both_ends_hear_of_a_stream_that_is_cancelled() -> None:
    ends: list[str] = []

    async def listen(stream: Http2Stream) -> None:
        try:
            await stream.read()
        except StreamBroken as broken:
            ends.append(str(broken))

    async def scenario() -> None:
        async with called(listen) as stream:
            reading = asyncio.create_task(stream.read())
            await asyncio.sleep(0.05)
            stream.cancel()
            with pytest.raises(StreamBroken, match="cancelled here"):
                await reading
            await until(lambda: ends)

    asyncio.run(scenario())
    assert ends == ["the other end has broken it (CANCEL)"]


def test_a_process_that_stops_listening_ends_its_streams() -> None:
    async def scenario() -> None:
        server = Http2Server({PATH: echo}, None)
        port = await server.start("127.0.0.1", 0)
        dialled: set[Http2Connection] = set()
        stream = (await dial("127.0.0.1", port, None, dialled)).call(PATH, "here")
        await stream.write(b"one")
        assert await stream.read() == b"one"
        await server.stop()
        with pytest.raises(StreamBroken):
            await stream.read()
        with pytest.raises(StreamBroken, match="cannot be reached"):
            await dial("127.0.0.1", port, None, dialled)
        await close_all(dialled)

    asyncio.run(scenario())


def test_writers_without_room_hear_of_the_end() -> None:
    async def deaf(stream: Http2Stream) -> None:
        await asyncio.sleep(0.2)

    async def scenario() -> None:
        async with called(deaf) as stream:
            with pytest.raises(StreamBroken):
                await write_for_ever(stream)

    asyncio.run(scenario())


# Ends that keep no rule


class RawEnd:
    """A caller that says what it likes, by hand; `h2` still counts for it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h2 = H2Connection(
            H2Configuration(client_side=True, validate_outbound_headers=False, header_encoding="latin-1")
        )
        self.h2.initiate_connection()

    def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())

    def open(self, **headers: str) -> int:
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, self.headers(headers))
        self.flush()
        return number

    def headers(self, other: dict[str, str]) -> list[tuple[str, str]]:
        names = {"method": "POST", "path": PATH, "scheme": "http", "authority": "x", "content-type": "application/grpc"}
        names |= {name.replace("_", "-"): value for name, value in other.items()}
        pseudo = ("method", "path", "scheme", "authority")
        rest = [(name, value) for name, value in names.items() if name not in pseudo]
        return [*((f":{name}", names[name]) for name in pseudo), *rest]

    async def status(self) -> dict[str, str]:
        """Headers and trailers until a stream, or the connection, has ended."""
        found: dict[str, str] = {}
        async with asyncio.timeout(20):
            while data := await self.reader.read(65_536):
                for event in self.h2.receive_data(data):
                    match event:
                        case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                            found |= {str(name): str(value) for name, value in headers or ()}
                        case DataReceived(flow_controlled_length=length, stream_id=number):
                            self.h2.acknowledge_received_data(length or 0, number or 0)
                        case StreamEnded():
                            return found
                self.flush()
        return found


@asynccontextmanager
async def raw_end(serve: Serve = echo, buffer_bytes: int = 0) -> AsyncIterator[RawEnd]:
    async with listening(serve, buffer_bytes) as port:
        end = RawEnd(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield end
        finally:
            end.writer.close()


async def answered(headers: dict[str, str], data: bytes = b"") -> dict[str, str]:
    async with raw_end() as end:
        number = end.open(**headers)
        if data:
            end.h2.send_data(number, data)
            end.flush()
        return await end.status()


@pytest.mark.parametrize(
    ("headers", "data", "status", "says"),
    [
        ({}, struct.pack(">?I", True, 3) + b"abc", StreamStatus.UNIMPLEMENTED, "compressed"),
        ({}, struct.pack(">?I", False, limits.CHANNEL_FRAME_LIMIT_BYTES + 1), StreamStatus.RESOURCE_EXHAUSTED, "LIMIT"),
        ({}, struct.pack(">?I", False, 2**32 - 1), StreamStatus.RESOURCE_EXHAUSTED, "4,294,967,295 bytes"),
        ({"path": "/"}, b"", StreamStatus.UNIMPLEMENTED, "nobody serves"),
    ],
)
def test_what_keeps_no_rule_of_grpc_gets_a_status(
    headers: dict[str, str], data: bytes, status: StreamStatus, says: str
) -> None:
    found = asyncio.run(answered(headers, data))
    assert found[":status"] == "200"
    assert found["grpc-status"] == str(int(status))
    assert says in found["grpc-message"]


@pytest.mark.parametrize("headers", [{"method": "GET"}, {"content_type": "text/html"}])
def test_what_is_no_grpc_gets_a_status_of_http(headers: dict[str, str]) -> None:
    assert asyncio.run(answered(headers))[":status"] == "415"


def test_a_frame_in_pieces_is_one_frame_and_half_of_one_is_none() -> None:
    heard: list[Any] = []

    async def note(stream: Http2Stream) -> None:
        try:
            while (frame := await stream.read()) is not None:
                heard.append(frame)
        except StreamBroken as broken:
            heard.append(str(broken))

    async def scenario() -> None:
        async with raw_end(note) as end:
            number = end.open()
            frame = struct.pack(">?I", False, 3) + b"abc"
            for piece in (frame * 3)[:-1]:
                end.h2.send_data(number, bytes([piece]), pad_length=7)
                end.flush()
                await asyncio.sleep(0)
            end.h2.end_stream(number)
            end.flush()
            await end.status()

    asyncio.run(scenario())
    assert heard == [b"abc", b"abc", "it ended within a frame"]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01" + bytes(300), b"x" * 100_000])
def test_who_speaks_something_else_is_let_go(data: bytes) -> None:
    async def scenario() -> None:
        async with listening(echo) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            async with asyncio.timeout(20):
                try:
                    while await reader.read(65_536):
                        pass
                except ConnectionError:
                    pass
            writer.close()

    asyncio.run(scenario())


def test_the_room_that_padding_takes_is_given_back() -> None:
    """Else a stream, and then its connection, would stand still when enough of it has come."""

    async def read_all(stream: Http2Stream) -> None:
        while await stream.read() is not None:
            pass

    async def scenario() -> None:
        async with raw_end(read_all) as end:
            number = end.open()
            padding, room = 0, end.h2.local_flow_control_window(number)
            while padding < 2 * room:
                room = max(room, end.h2.local_flow_control_window(number))  # the other end agrees to more at first
                if end.h2.local_flow_control_window(number) > 512:
                    end.h2.send_data(number, struct.pack(">?I", False, 0), pad_length=255)
                    padding += 256
                else:
                    end.flush()
                    async with asyncio.timeout(10):
                        end.h2.receive_data(await end.reader.read(65_536))
            end.h2.end_stream(number)
            end.flush()
            assert (await end.status())["grpc-status"] == "0"

    asyncio.run(scenario())


def test_who_sends_more_than_there_is_room_for_is_let_go() -> None:
    held: list[int] = []

    async def hold(stream: Http2Stream) -> None:
        await until(lambda: bool(stream.broken))
        held.append(stream.held_bytes())

    async def scenario() -> None:
        async with raw_end(hold) as end:
            number = end.open()
            frame = struct.pack(">?I", False, 9_995) + bytes(9_995)
            for _ in range(7):
                end.writer.write(data_frame(number, frame))
            seen = [type(event) for event in await ended(end)]
            assert ConnectionTerminated in seen

    asyncio.run(scenario())
    assert 50_000 < held[0] < 65_536, "which is the room before the other end has agreed to more"


def test_data_between_headers_and_their_continuation_is_a_mistake() -> None:
    async def scenario() -> None:
        async with raw_end() as end:
            first, second = end.open(), end.h2.get_next_available_stream_id()
            end.h2.send_headers(second, end.headers({}))
            headers = bytearray(end.h2.data_to_send())
            headers[4] &= ~4  # END_HEADERS
            end.writer.write(bytes(headers) + data_frame(first, bytes(9)))
            seen = [type(event) for event in await ended(end)]
            assert ConnectionTerminated in seen

    asyncio.run(scenario())


def test_headers_are_limited() -> None:
    async def scenario() -> None:
        async with raw_end() as end:
            number = end.open()
            end.h2.end_stream(number)
            end.flush()
            assert (await end.status())["grpc-status"] == "0"  # it has agreed to the settings of the other end by then
            end.open(note="x" * limits.HTTP2_HEADERS_LIMIT_BYTES)
            assert ConnectionTerminated in [type(event) for event in await ended(end)]

    asyncio.run(scenario())


async def ended(end: RawEnd) -> list[Event]:
    """What the other end says until it has closed the connection."""
    found: list[Event] = []
    with suppress(ConnectionError):
        async with asyncio.timeout(20):
            while data := await end.reader.read(65_536):
                found += end.h2.receive_data(data)
    return found


async def ask_for_ever(end: RawEnd) -> None:
    for _ in range(1_000):
        end.h2.ping(b"12345678")
    questions = end.h2.data_to_send()
    while True:  # the answers fill the buffers of both sockets first
        end.writer.write(questions)
        await end.writer.drain()
        await asyncio.sleep(0)


def test_who_asks_and_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 10_000)
    monkeypatch.setattr(limits, "HTTP2_UNSENT_LIMIT_BYTES", 100_000)

    async def scenario() -> None:
        async with raw_end(buffer_bytes=10_000) as end:
            end.open()
            end.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
            end.writer.transport.pause_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionError):
                    await ask_for_ever(end)

    asyncio.run(scenario())


def test_a_writer_goes_on_when_the_network_takes_more_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_FRAME_BYTES", 10_000)
    written: list[int] = []

    async def write(stream: Http2Stream) -> None:
        for number in range(20):
            await stream.write(bytes(100_000))
            written.append(number)

    async def scenario() -> None:
        async with raw_end(write, buffer_bytes=10_000) as end:
            end.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**24})  # no window holds it back
            end.h2.increment_flow_control_window(2**24)
            end.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 10_000)
            end.open()
            end.writer.transport.pause_reading()  # type: ignore[attr-defined]
            await asyncio.sleep(0.3)
            assert len(written) < 20
            end.writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await end.status())["grpc-status"] == "0"

    asyncio.run(scenario())
    assert len(written) == 20


def test_a_connection_that_goes_wrong_ends_its_streams() -> None:
    ends: list[str] = []

    async def note(stream: Http2Stream) -> None:
        try:
            await stream.read()
        except StreamBroken as broken:
            ends.append(str(broken))

    async def scenario() -> None:
        async with raw_end(note) as end:
            end.open()
            await asyncio.sleep(0.05)
            end.writer.write(bytes(9))  # a frame of data of the stream 0, which there is not
            await until(lambda: ends, 20)
        async with raw_end(note) as end:
            end.open()
            await asyncio.sleep(0.05)
            end.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            end.flush()
            await until(lambda: len(ends) == 2, 20)

    asyncio.run(scenario())
    assert ends[0].startswith("what came is no HTTP/2: ")
    assert ends[1] == "the other end has closed the connection (ENHANCE_YOUR_CALM)"


def test_a_connection_without_a_stream_is_closed_and_one_with_a_stream_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_IDLE_PING_S", 0.1)

    async def scenario() -> None:
        async with raw_end() as end:
            number = end.open()
            await asyncio.sleep(0.25)
            end.h2.end_stream(number)
            end.flush()
            assert (await end.status())["grpc-status"] == "0"
            assert await end.status() == {}  # until the other end closes it
            async with called(echo) as stream:
                await asyncio.sleep(0.4)
                await stream.write(b"one")
                assert await stream.read() == b"one"

    asyncio.run(scenario())


@pytest.mark.parametrize("mistake", ["a frame", "a path", "a method"])
def test_a_stream_that_is_refused_and_was_reset_meanwhile_leaves_the_others_alone(mistake: str) -> None:
    async def scenario() -> None:
        async with raw_end() as end:
            other = end.open()
            headers = {"a path": {"path": "/"}, "a method": {"method": "GET"}}.get(mistake, {})
            number = end.h2.get_next_available_stream_id()
            end.h2.send_headers(number, end.headers(headers))
            if mistake == "a frame":
                end.h2.send_data(number, struct.pack(">?I", True, 3))
            end.h2.reset_stream(number)
            end.flush()  # all in one piece
            await asyncio.sleep(0.05)
            end.h2.send_data(other, struct.pack(">?I", False, 3) + b"abc", end_stream=True)
            end.flush()
            assert (await end.status())["grpc-status"] == "0"

    asyncio.run(scenario())


def test_a_caller_that_does_not_end_a_refused_stream_is_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_LINGER_S", 0.1)

    async def scenario() -> None:
        async with raw_end() as end:
            number = end.open(path="/")
            assert (await end.status())["grpc-status"] == str(int(StreamStatus.UNIMPLEMENTED))
            end.h2.send_data(number, bytes(100))  # it may still write, and is not broken for it
            end.flush()
            events: list[object] = []
            async with asyncio.timeout(20):
                while not any(isinstance(event, StreamReset) for event in events):
                    events += end.h2.receive_data(await end.reader.read(65_536))
            assert not any(isinstance(event, ConnectionTerminated) for event in events)

    asyncio.run(scenario())


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HTTP2_CONNECTIONS_LIMIT", 2)

    async def scenario() -> None:
        async with listening(echo) as port:
            dialled: set[Http2Connection] = set()
            streams = []
            for _ in range(3):
                streams.append((await dial("127.0.0.1", port, None, dialled)).call(PATH, "here"))
                with pytest.raises(StreamBroken) if len(streams) == 3 else nullcontext():
                    await streams[-1].write(b"one")
                    assert await streams[-1].read() == b"one"
            await close_all(dialled)

    asyncio.run(scenario())


def test_streams_that_have_half_a_frame_each_do_not_hold_each_other_up() -> None:
    half = struct.pack(">?I", False, limits.CHANNEL_FRAME_LIMIT_BYTES) + bytes(limits.CHANNEL_FRAME_LIMIT_BYTES - 1)

    async def scenario() -> None:
        async with raw_end() as end:
            end.flush()
            async with asyncio.timeout(60):
                while end.h2.remote_settings.max_concurrent_streams != limits.HTTP2_STREAMS_LIMIT:
                    end.h2.receive_data(await end.reader.read(65_536))
                for _ in range(limits.HTTP2_STREAMS_LIMIT):
                    number = end.open()
                    for at in range(0, len(half), 16_384):
                        end.h2.send_data(number, half[at : at + 16_384])  # it raises when there is no window
                    end.flush()
                    await end.writer.drain()
                end.h2.send_data(number, b"x", end_stream=True)
                end.flush()
                assert (await end.status())["grpc-status"] == "0"

    asyncio.run(scenario())


def test_streams_of_one_connection_are_limited() -> None:
    async def scenario() -> None:
        async with raw_end() as end:
            end.flush()
            async with asyncio.timeout(20):
                while end.h2.remote_settings.max_concurrent_streams != limits.HTTP2_STREAMS_LIMIT:
                    end.h2.receive_data(await end.reader.read(65_536))
            assert end.h2.remote_settings[SettingCodes.INITIAL_WINDOW_SIZE] == limits.HTTP2_WINDOW_BYTES

    asyncio.run(scenario())


def test_whoever_calls_may_wait_for_the_first_word_of_the_other_end() -> None:
    async def speaks_first(stream: Http2Stream) -> None:
        await stream.write(b"first")

    async def scenario() -> None:
        async with called(speaks_first) as stream, asyncio.timeout(10):
            assert await stream.read() == b"first"
            assert await stream.read() is None
            await asyncio.sleep(0.1)  # nothing is under way, so nothing takes the question with it
            assert await stream._connection.call(PATH, "here").read() == b"first"

    asyncio.run(scenario())


def test_a_writer_goes_on_when_the_other_end_gives_every_stream_more_room() -> None:
    written: list[int] = []

    async def write(stream: Http2Stream) -> None:
        await stream.write(bytes(200_000))
        written.append(1)

    async def scenario() -> None:
        async with raw_end(write) as end:
            end.h2.increment_flow_control_window(2**24)  # of the connection
            end.open()
            came = 0
            while came < 65_535:
                for event in end.h2.receive_data(await end.reader.read(65_536)):
                    came += len(event.data or b"") if isinstance(event, DataReceived) else 0
            assert not written
            end.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**20})
            end.flush()
            assert (await end.status())["grpc-status"] == "0"

    asyncio.run(scenario())
    assert written


def test_whoever_has_called_says_what_was_wrong_with_an_answer() -> None:
    async def scenario() -> None:
        async with called(write_nothing) as stream:
            refused = StreamRefused(StreamStatus.RESOURCE_EXHAUSTED, "a frame is longer than it may be")
            stream._connection._refuse(stream, refused)
            with pytest.raises(StreamBroken, match="a frame is longer than it may be"):
                await stream.read()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (ResponseReceived, "it was answered with the HTTP status 503"),  # by a proxy, perhaps
        (TrailersReceived, "no room (status 99)"),
    ],
)
def test_an_answer_that_is_none_of_ours_is_no_end_in_order(event: type[Any], says: str) -> None:
    headers = {
        ResponseReceived: [(":status", "503")],
        TrailersReceived: [("grpc-status", "99"), ("grpc-message", "no%20room")],
    }

    async def scenario() -> None:
        async with called(write_nothing) as stream:
            stream._connection._happened(event(stream_id=stream.number, headers=headers[event]))
            with pytest.raises(StreamBroken) as broken:
                await asyncio.wait_for(stream.read(), 5)
            assert str(broken.value) == says

    asyncio.run(scenario())


def test_all_who_wait_for_room_look_again_though_some_have_given_up() -> None:
    async def scenario() -> None:
        connection = Http2Connection(set())
        first, *others = [asyncio.ensure_future(connection.more_room()) for _ in range(3)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        connection.wake()
        await asyncio.wait_for(asyncio.gather(*others), 5)

    asyncio.run(scenario())


def test_a_stream_that_is_reset_before_its_end_is_broken_also_if_that_is_no_error() -> None:
    """What has come may be a part: whoever reads must not take it for all."""

    async def scenario() -> None:
        async with called(write_nothing) as stream:
            stream._connection._happened(StreamReset(stream_id=stream.number, error_code=ErrorCodes.NO_ERROR))
            with pytest.raises(StreamBroken, match="the other end has broken it"):
                await stream.read()

    asyncio.run(scenario())


async def write_nothing(stream: Http2Stream) -> None:
    await stream.read()


def test_a_lost_connection_keeps_the_reason_that_is_known_and_what_is_still_said_goes_nowhere() -> None:
    async def scenario() -> None:
        connection = Http2Connection(set())
        connection.lost = "the other end asks and does not read"
        connection.connection_lost(OSError("closed"))
        assert connection.lost == "the other end asks and does not read"
        connection._end("this process has closed the connection")
        assert connection.lost == "the other end asks and does not read"
        connection._h2.initiate_connection()
        connection._flush()

    asyncio.run(scenario())


def test_connections_are_closed_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_CLOSE_LIMIT_S", 60)

    async def scenario() -> None:
        async with listening(echo) as port, asyncio.timeout(20):
            dialled: set[Http2Connection] = set()
            await dial("127.0.0.1", port, None, dialled)
            await close_all(dialled)
            assert not dialled

    asyncio.run(scenario())


def test_a_connection_that_has_ended_is_gone_in_the_end_though_nobody_reads_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CHANNEL_CLOSE_LIMIT_S", 0.2)

    async def scenario() -> None:
        server = Http2Server({PATH: write_for_ever}, None)
        end = RawEnd(*await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0)))
        end.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 2**30})  # no window holds it back
        end.h2.increment_flow_control_window(2**30)
        end.open()
        end.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: [one for one in server._connections if one._unsent_bytes()], 20)
        end.writer.write(bytes(9))  # a frame of data of the stream 0, which there is not
        await until(lambda: not server._connections, 20)
        end.writer.transport.abort()
        await server.stop()

    asyncio.run(scenario())


def test_whoever_calls_a_process_that_ends_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_CLOSE_LIMIT_S", 0.2)

    async def scenario() -> None:
        server = Http2Server({PATH: echo}, None)
        dialled: set[Http2Connection] = set()
        stream = (await dial("127.0.0.1", await server.start("127.0.0.1", 0), None, dialled)).call(PATH, "here")
        await stream.write(b"one")
        assert await stream.read() == b"one"
        ending = asyncio.ensure_future(server.stop())
        with pytest.raises(StreamBroken, match=r"^this process ends \(UNAVAILABLE\)$"):
            await stream.read()
        await ending
        await close_all(dialled)

    asyncio.run(scenario())


def test_no_stream_is_opened_on_a_connection_that_is_being_closed() -> None:
    async def scenario() -> None:
        async with listening(echo) as port:
            dialled: set[Http2Connection] = set()
            connection = await dial("127.0.0.1", port, None, dialled)
            connection.close()
            with pytest.raises(StreamBroken, match=r"^this process has closed the connection$"):
                connection.call(PATH, "here")
            await connection.gone()
            with pytest.raises(StreamBroken, match=r"^this process has closed the connection$"):
                connection.call(PATH, "here")

    asyncio.run(scenario())


def test_nothing_is_sent_on_a_stream_of_which_this_end_has_said_that_it_is_done() -> None:
    async def scenario() -> None:
        async with called(write_nothing) as stream:
            assert await stream.finish()
            with pytest.raises(InvariantError, match="a stream that has ended"):
                await stream.write(b"more")

    asyncio.run(scenario())


def test_a_stream_that_says_how_long_it_is_may_not_be_longer() -> None:
    async def scenario() -> None:
        async with raw_end() as end:
            number = end.open(content_length="10")
            end.writer.write(data_frame(number, struct.pack(">?I", False, 5) + bytes(5)))
            await asyncio.sleep(0.05)
            end.writer.write(data_frame(number, struct.pack(">?I", False, 5) + bytes(5)))
            assert ConnectionTerminated in [type(event) for event in await ended(end)]

    asyncio.run(scenario())


def test_frames_that_came_before_somebody_listens_are_heard_first() -> None:
    heard: list[bytes] = []

    async def late(stream: Http2Stream) -> None:
        assert await stream.read() == b"greeting"
        await until(lambda: len(stream._frames) == 2)
        stream.listen(heard.append)
        assert heard == [b"0", b"1"]
        await stream.read()

    async def scenario() -> None:
        async with called(late) as stream:
            for frame in (b"greeting", b"0", b"1"):
                await stream.write(frame)
            await until(lambda: heard)
            await stream.write(b"2")
            await stream.finish()
            assert await stream.read() is None

    asyncio.run(scenario())
    assert heard == [b"0", b"1", b"2"]
