"""One Postgres session that reconnects by itself, and what its errors mean.

Lives here: connecting, session settings, the translation of psycopg's errors into millwheel's.  Never
here: statements.  Invariant: an error says whether the work may have been applied.  `StoreUnavailable`
means "not applied, or harmless to repeat"; only `CommitUnknown` means "perhaps".
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict

from millwheel.errors import CommitUnknown, MillwheelError, StoreError, StoreUnavailable
from millwheel.limits import (
    STORE_CONFLICT_ATTEMPTS,
    STORE_FIRST_DELAY_S,
    STORE_IDLE_TRANSACTION_TIMEOUT_MS,
    STORE_LOCK_TIMEOUT_MS,
    STORE_LONGEST_DELAY_S,
    STORE_RECONNECT_LIMIT_US,
    STORE_STATEMENT_TIMEOUT_MS,
)
from millwheel_storage.postgres.arrays import register
from millwheel_storage.postgres.prepared import Connection
from millwheel_storage.statements import joining, opening

logger = logging.getLogger("millwheel.store")

T = TypeVar("T")

CONFLICTS: Final = (errors.DeadlockDetected, errors.SerializationFailure)
"""The server undid the transaction and asks to run it again."""

REFUSED: Final = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|is not permitted to log in|"
    r'(database|role) ".*" does not exist|permission denied for database'
)
"""Why waiting is useless.  Of a connection that fails, the client library passes on the words and not the code.  A
server that speaks another language (`lc_messages`) is waited for."""

CLIENT_ENCODING: Final = "utf8"
"""Of every connection, whatever the URL, the environment, the role or the database says: texts are packed as UTF-8 here."""

_CONNECT: Final = {
    "client_encoding": CLIENT_ENCODING,
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""A vanished server is noticed in seconds, not in the operating system's two hours."""


class SessionLabel:
    """What the sessions of a store are called in `pg_stat_activity`, once that is known; empty until then."""

    def __init__(self) -> None:
        self.text = ""
        self.said_until_s = 0.0
        """Until when, by the monotonic clock, one of them has said that it tries to connect: the others need not."""


class Session:
    """A lazily opened connection.  `SessionPool` ensures that one task at a time uses it."""

    def __init__(self, url: str, schema: str, label: SessionLabel) -> None:
        self._url = url
        self._schema = schema
        self._label = label
        self._labelled = ""
        self._connection: Connection | None = None

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Do `work`, which is one transaction.  After a conflict or a lost connection it is done again.

        If it is not `repeatable`, a connection that is lost while the reply is awaited raises `CommitUnknown`.
        """
        for attempt in range(STORE_CONFLICT_ATTEMPTS):
            connection, begun = await self._connected(), False
            try:
                if self._labelled != self._label.text:
                    await connection.execute(joining.NAME_SESSION, (self._label.text,))
                    self._labelled = self._label.text
                begun = True
                return await work(connection)
            except CONFLICTS:
                await asyncio.sleep(STORE_FIRST_DELAY_S * attempt)
            except psycopg.Error as error:
                if not (connection.broken or connection.closed):
                    raise translated(error) from error
                await self._drop()
                if begun and not repeatable:
                    raise CommitUnknown(f"the reply of a commit was lost: {error}") from error
            except MillwheelError:
                raise
            except BaseException:
                # Cancelled half way: what the connection is in the middle of is unknown, so drop it.
                await self._drop()
                raise
        raise StoreUnavailable("the store's transactions kept conflicting or losing their connection")

    async def _connected(self) -> Connection:
        """The open connection, or a new one; waits for a restarting server (`StoreUnavailable` when it stays
        away)."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        deadline = time.monotonic() + STORE_RECONNECT_LIMIT_US / 1_000_000
        delay_s = STORE_FIRST_DELAY_S
        while True:
            try:
                self._connection, self._labelled = await self._connect(), ""
                return self._connection
            except psycopg.OperationalError as error:
                if time.monotonic() + delay_s > deadline or REFUSED.search(str(error)):
                    raise not_connected(error) from error
                said = time.monotonic() < self._label.said_until_s
                if not said and delay_s >= STORE_LONGEST_DELAY_S:  # not for one that restarts
                    left_s = round(deadline - time.monotonic())
                    logger.warning(
                        "cannot connect to Postgres, and tries for %d s more: %s", left_s, " ".join(str(error).split())
                    )
                    self._label.said_until_s = deadline
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, STORE_LONGEST_DELAY_S)

    async def _connect(self) -> Connection:
        connection = await Connection.connect(self._url, autocommit=True, **_CONNECT)  # type: ignore[arg-type]
        settings = (
            f'"{self._schema}"',
            str(STORE_LOCK_TIMEOUT_MS),
            str(STORE_STATEMENT_TIMEOUT_MS),
            str(STORE_IDLE_TRANSACTION_TIMEOUT_MS),
        )
        try:
            await connection.execute(opening.CONFIGURE, settings)
        except BaseException:  # cancelled, say: nobody else knows of this connection
            await connection.close()
            raise
        register(connection.adapters)
        return connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def close(self) -> None:
        """Close the connection; the next `run` opens a new one."""
        await self._drop()


class SessionPool:
    """A few sessions for one kind of work, so that as many calls run at a time; the one used last is taken first."""

    def __init__(self, url: str, schema: str, size: int, label: SessionLabel) -> None:
        self._free = [Session(url, schema, label) for _ in range(size)]
        self._all = tuple(self._free)
        self._slots = asyncio.Semaphore(size)

    async def run(self, work: Callable[[Connection], Awaitable[T]], *, repeatable: bool = True) -> T:
        """See `Session.run`."""
        async with self._slots:
            session = self._free.pop()
            try:
                return await session.run(work, repeatable=repeatable)
            finally:
                self._free.append(session)

    async def close(self) -> None:
        """Close every connection, each when its call has ended; the next `run` opens a new one."""
        for _ in self._all:
            async with self._slots:
                session = self._free.pop()
                try:
                    await session.close()
                finally:
                    self._free.insert(0, session)  # behind those that are open


def translated(error: psycopg.Error) -> StoreError:
    """Translate an error that the server reported on a live connection: the work was not applied."""
    if isinstance(error, errors.OperationalError | errors.ReadOnlySqlTransaction):
        return StoreUnavailable(f"Postgres could not do it now: {error}")
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(
            f"the role of this connection may not do it: {error}; tables are changed by the owner of the pipeline's schema, "
            "who starts a new version once and then runs the script of `millwheel roles`"
        )
    return StoreError(f"Postgres refused: {error}")


def not_connected(error: psycopg.Error) -> StoreError:
    """What to raise when nobody could connect: `StoreUnavailable`, unless Postgres will say the same again."""
    if REFUSED.search(str(error)):
        return StoreError(
            f"Postgres refuses the connection: {error}; check the user, password and database of the URL (--store)"
        )
    return StoreUnavailable(f"cannot connect to Postgres: {error}")


def store_place(url: str) -> str:
    """Host, port and database of a connection string, for people, without user and password.

    Raises `StoreError` for a text that is no connection string.

    >>> store_place("postgresql://me:secret@db.example:5433/sales")
    'host=db.example port=5433 dbname=sales'
    """
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error as error:
        # Postgres quotes the text, which may hold a password, so its answer is not passed on.
        raise StoreError("the store is not a Postgres URL: write postgresql://user@host:port/database") from error
    return " ".join(f"{name}={parts[name]}" for name in ("host", "port", "dbname") if name in parts)
