"""The two ends of connections: how a server stops, and what a caller says of one that cannot be reached."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from millwheel import limits
from millwheel.transport import tls
from millwheel.transport.certificates import OwnAuthority
from millwheel.transport.conversations import StreamBroken
from millwheel.transport.grpc_streams import Http2Stream
from millwheel.transport.http2 import Http2Connection
from millwheel.transport.http2_ends import Http2Server, close_all, dial
from millwheel.transport.roles import Role
from tests.unit.transport.network import until

PATH = "/a.B/C"

CERTIFICATES = OwnAuthority.make().issue(Role.WORKER, ["127.0.0.1"])


def test_a_server_that_stops_waits_for_what_its_handlers_have_to_say() -> None:
    begun, word = asyncio.Event(), asyncio.Event()

    async def slow(stream: Http2Stream) -> None:
        begun.set()
        await word.wait()
        await stream.write(b"the last word")

    async def scenario() -> None:
        server, dialled = Http2Server({PATH: slow}, None), set[Http2Connection]()
        port = await server.start("127.0.0.1", 0)
        stream = (await dial("127.0.0.1", port, None, dialled)).call(PATH, "here")
        await begun.wait()
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.1)
        assert not stopping.done()
        word.set()
        assert [await stream.read(), await stream.read()] == [b"the last word", None]
        await stopping
        await close_all(dialled)

    asyncio.run(scenario())


def test_a_server_that_stops_waits_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_CLOSE_LIMIT_S", 0.2)
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def endless(stream: Http2Stream) -> None:
        begun.set()
        try:
            await asyncio.sleep(3_600)
        finally:
            cancelled.set()

    async def scenario() -> None:
        server, dialled = Http2Server({PATH: endless}, None), set[Http2Connection]()
        port = await server.start("127.0.0.1", 0)
        stream = (await dial("127.0.0.1", port, None, dialled)).call(PATH, "here")
        await begun.wait()
        async with asyncio.timeout(20):
            await server.stop()
        assert cancelled.is_set()
        with pytest.raises(StreamBroken):
            await stream.read()
        with pytest.raises(StreamBroken, match="it cannot be reached"):
            await dial("127.0.0.1", port, None, dialled)
        await close_all(dialled)

    asyncio.run(scenario())


@asynccontextmanager
async def answering(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A port where each connection is answered so."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ones.add(writer)
        with suppress(ConnectionError):
            await answer(reader, writer)
            writer.close()
            await writer.wait_closed()
        open_ones.discard(writer)

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    try:
        yield int(server.sockets[0].getsockname()[1])
        await until(lambda: not open_ones)
    finally:
        server.close()


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def aborts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.transport.abort()


async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 welcome\r\n")
    await silence(reader, writer)


@pytest.mark.parametrize("answer", [silence, closes, aborts, talks])
def test_what_does_not_shake_hands_cannot_be_reached(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHANNEL_GREETING_LIMIT_S", 0.3)

    async def scenario() -> None:
        dialled: set[Http2Connection] = set()
        async with answering(answer) as port, asyncio.timeout(20):
            with pytest.raises(StreamBroken, match="it cannot be reached"):
                await dial("127.0.0.1", port, tls.caller_context(CERTIFICATES), dialled)
        assert not dialled

    asyncio.run(scenario())


def test_who_does_not_shake_hands_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNEL_GREETING_LIMIT_S", 0.3)

    async def scenario() -> None:
        server = Http2Server({}, tls.server_context(CERTIFICATES))
        reader, writer = await asyncio.open_connection("127.0.0.1", await server.start("127.0.0.1", 0))
        began = time.monotonic()
        async with asyncio.timeout(20):
            with_word = await reader.read()
        assert with_word == b""
        assert time.monotonic() - began >= 0.2
        writer.close()
        await server.stop()

    asyncio.run(scenario())
