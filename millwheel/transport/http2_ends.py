"""The two ends of connections over HTTP/2: a server, and whoever calls one.

Lives here: listening, dialling and closing.  Never here: what a connection carries (`http2`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping

from millwheel import limits
from millwheel.transport.conversations import StreamBroken
from millwheel.transport.grpc_streams import Handler
from millwheel.transport.http2 import Http2Connection


class Http2Server:
    """Listens, and serves every stream of every connection."""

    def __init__(self, handlers: Mapping[str, Handler], context: ssl.SSLContext | None) -> None:
        """`handlers` by path; `context`: None for connections without TLS."""
        self._handlers = handlers
        self._context = context
        self._connections: set[Http2Connection] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is chosen here when it is 0.  Raises `OSError` when nothing can listen there."""
        loop = asyncio.get_running_loop()
        bare = host.strip("[]")
        if not port:
            # A name may have several addresses, and each of them would get a port of its own.
            found = await loop.getaddrinfo(bare, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            bare = str(found[0][4][0])
        self._server = await loop.create_server(
            lambda: Http2Connection(self._connections, self._handlers), bare, port, ssl=self._context,
            ssl_handshake_timeout=limits.CHANNEL_GREETING_LIMIT_S if self._context else None,
        )  # fmt: skip
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, and end every stream."""
        if self._server is not None:
            self._server.close()
        tasks = [task for connection in self._connections for task in connection.tasks()]
        if tasks:  # what ends in order has its status to say
            await asyncio.wait(tasks, timeout=limits.CHANNEL_CLOSE_LIMIT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close_all(self._connections)


async def close_all(connections: set[Http2Connection]) -> None:
    """Close connections, and wait until they are; `CHANNEL_CLOSE_LIMIT_S` at most."""
    closing = [*connections]
    for connection in closing:
        connection.close()
    await asyncio.gather(*(connection.gone() for connection in closing))


async def dial(
    host: str, port: int, context: ssl.SSLContext | None, connections: set[Http2Connection]
) -> Http2Connection:
    """A connection to a process that listens.  Raises `StreamBroken` when there is none."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(
            lambda: Http2Connection(connections), host.strip("[]"), port, ssl=context,
            ssl_handshake_timeout=limits.CHANNEL_GREETING_LIMIT_S if context else None,
        )  # fmt: skip
    except (OSError, asyncio.IncompleteReadError) as error:
        raise StreamBroken(f"it cannot be reached: {error}") from error
    return connection
