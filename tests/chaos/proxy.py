"""A TCP proxy that does to connections what networks do: it cuts, holds, delays and throttles, each direction by itself."""

from __future__ import annotations

import asyncio
from contextlib import suppress

CHUNK_BYTES = 64 * 1024


class Direction:
    """What happens to bytes that go one way."""

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.delay_s = 0.0
        self.bytes_a_second: float | None = None
        self.carried = 0

    def hold(self) -> None:
        """Carry nothing, not even the end of a connection, and keep it: as a network that loses every packet."""
        self.flows.clear()

    def heal(self) -> None:
        """Carry what was held, and all that comes."""
        self.flows.set()


class TcpProxy:
    """Connections to its port go to `target`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.there, self.back = Direction(), Direction()
        self.refusing = False
        """New connections are closed at once."""
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """host:port of the proxy."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        """End all connections at once; what is on its way is lost."""
        for writer in self._open:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()

    @property
    def connections(self) -> int:
        return len(self._open) // 2

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
        # Who is being connected is not open yet.
        tasks = [*self._tasks, *self._accepting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # an aborted connection is closed in the next turn

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)
        try:
            await self._connect(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy is closed
        finally:
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            return
        pair = (writer, far_writer)
        self._open.update(pair)
        pumps = [
            asyncio.create_task(self._pump(reader, far_writer, self.there)),
            asyncio.create_task(self._pump(far_reader, writer, self.back)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            for end in pair:
                end.transport.abort()
            self._open.difference_update(pair)
            self._tasks.difference_update(pumps)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if way.delay_s:
                    await asyncio.sleep(way.delay_s)
                if way.bytes_a_second:
                    await asyncio.sleep(len(data) / way.bytes_a_second)
                await way.flows.wait()
                writer.write(data)
                await writer.drain()
                way.carried += len(data)
            await way.flows.wait()
            writer.write_eof()
