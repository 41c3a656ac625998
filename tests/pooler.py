"""A small connection pooler, as pgbouncer is one: sessions of Postgres that clients have for a transaction, or for good.

It speaks enough of the protocol for clients that ask nothing of it: messages are passed on, and a session goes back to the
pool when Postgres has answered all and no transaction is open.  The session that came back last is given first.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, Thread
from typing import NamedTuple

from psycopg.conninfo import conninfo_to_dict

ENDS = (b"Q", b"S")
"""Messages of a client that Postgres answers with a `ReadyForQuery`."""


class Stream(NamedTuple):
    """One end of a connection, message by message."""

    socket: socket.socket

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def untyped(self) -> bytes:
        return self.exactly(struct.unpack(">i", self.exactly(4))[0] - 4)

    def typed(self) -> tuple[bytes, bytes]:
        kind = self.exactly(1)
        return kind, self.untyped()

    def send(self, kind: bytes, body: bytes) -> None:
        self.socket.sendall(kind + struct.pack(">i", len(body) + 4) + body)


class Pooler:
    """Listens in a directory of its own; `shares` is pool_mode = transaction, otherwise session.

    With `oldest_first` it has three sessions from the start, and the one that has rested longest is given first.
    """

    def __init__(self, url: str, directory: Path, *, shares: bool, oldest_first: bool) -> None:
        parts = conninfo_to_dict(url)
        self._server = Path(str(parts["host"])) / f".s.PGSQL.{parts.get('port', 5432)}"
        self._startup = b"\0".join(
            [b"user", str(parts["user"]).encode(), b"database", str(parts["dbname"]).encode(), b"\0"]
        )
        self._shares = shares
        self._idle: list[Stream] = []
        self._next = 0 if oldest_first else -1
        self._lock = Lock()
        self.url = f"postgresql://{parts['user']}@/{parts['dbname']}?host={directory}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / ".s.PGSQL.5432"))
        self._listener.listen()
        if oldest_first:
            self._idle += [self._connected() for _ in range(3)]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()
        for server in self._idle:
            server.socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                Thread(target=self._serve, args=(Stream(self._listener.accept()[0]),), daemon=True).start()

    def _take(self) -> Stream:
        with self._lock:
            if self._idle:
                return self._idle.pop(self._next)
        return self._connected()

    def _connected(self) -> Stream:
        server = Stream(socket.socket(socket.AF_UNIX))
        server.socket.connect(str(self._server))
        server.socket.sendall(struct.pack(">ii", len(self._startup) + 8, 196_608) + self._startup)
        while server.typed()[0] != b"Z":
            pass
        return server

    def _serve(self, client: Stream) -> None:
        with client.socket, suppress(OSError):
            while struct.unpack(">i", client.untyped()[:4])[0] != 196_608:
                client.socket.sendall(b"N")  # neither TLS nor GSSAPI
            client.send(b"R", struct.pack(">i", 0))
            for name, value in (("server_version", "16.0"), ("client_encoding", "UTF8"), ("integer_datetimes", "on")):
                client.send(b"S", f"{name}\0{value}\0".encode())
            client.send(b"K", os.urandom(8))
            client.send(b"Z", b"I")
            server: Stream | None = None
            try:
                while True:
                    first = client.typed()
                    server = server or self._take()
                    self._transaction(client, server, *first)
                    if self._shares:
                        with self._lock:
                            self._idle.append(server)
                        server = None
            finally:
                if server is not None:
                    server.socket.close()

    def _transaction(self, client: Stream, server: Stream, kind: bytes, body: bytes) -> None:
        status = b""
        while True:
            server.send(kind, body)
            while kind in ENDS:
                answer, said = server.typed()
                client.send(answer, said)
                if answer == b"Z":
                    status = said
                    break
            if status == b"I" and kind in ENDS:
                return
            kind, body = client.typed()


@contextmanager
def pooler(url: str, *, shares: bool, oldest_first: bool = False) -> Iterator[Pooler]:
    with TemporaryDirectory(prefix="mw-", dir="/tmp") as directory:
        made = Pooler(url, Path(directory), shares=shares, oldest_first=oldest_first)
        try:
            yield made
        finally:
            made.close()
