"""The hot path to Postgres: a statement that a connection prepared once, with values that are packed already.

Lives here: a connection that runs such statements on `psycopg.pq`, and how it waits for an answer.  Never here: SQL text, or
what an error means.  psycopg's cursors choose dumpers, loaders and plans by the value, and register with the event loop for
each wait.  A statement that runs a thousand times a second need not do that each time (docs/adr/0014-prepared.md).
Invariant: nobody else uses the connection meanwhile, which `Session` ensures.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import psycopg
from psycopg import errors, pq, waiting
from psycopg.abc import RV, PQGen

from millwheel.ids import IntervalId, Seq
from millwheel.limits import STORE_CANCEL_LIMIT_S, STORE_LOOK_S
from millwheel_storage.postgres.arrays import BigintArray, ByteaArray, TextArray

BYTEA: Final = 17
BIGINT: Final = 20
TEXT: Final = 25

_PLACEHOLDER: Final = re.compile(rb"%([b%])")
_bigint = struct.Struct(">q")
_numbers = itertools.count()


class Statement:
    """SQL with `%b` for each of its values, and the Postgres types of these."""

    def __init__(self, text: str | bytes, *types: int | type[BigintArray | ByteaArray | TextArray]) -> None:
        self.types = [kind if isinstance(kind, int) else kind.oid for kind in types]
        self.formats = [pq.Format.BINARY] * len(types)
        numbers = iter(range(1, len(types) + 1))
        encoded = text if isinstance(text, bytes) else text.encode()
        self.text = _PLACEHOLDER.sub(lambda found: b"$%d" % next(numbers) if found[1] == b"b" else b"%", encoded)


def bigint(number: int) -> bytes:
    """A value of type `BIGINT`."""
    return _bigint.pack(number)


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection of psycopg's that also runs a `Statement`."""

    _watched: int | None = None
    """Its socket, while the event loop watches it for answers."""
    _answer: asyncio.Future[None] | None = None
    """What waits for one."""
    _look: asyncio.TimerHandle | None = None
    """Ends a wait that the event loop may have forgotten."""
    _names: Mapping[Statement, bytes] = MappingProxyType({})
    """What is prepared, by what name."""

    async def pairs(self, statement: Statement, values: Sequence[bytes]) -> list[tuple[IntervalId, Seq]]:
        """Run `statement`, in a transaction of its own; its rows, each the place of a checkpoint.

        Raises `psycopg.Error`, as cursors do; `broken` tells then whether the connection is lost.
        """
        found = await self.run(statement, values)
        value, number = found.get_value, _bigint.unpack
        return [(number(value(row, 0))[0], number(value(row, 1))[0]) for row in range(found.ntuples)]  # type: ignore[arg-type]

    async def run(self, statement: Statement, values: Sequence[bytes]) -> pq.abc.PGresult:
        """Run `statement`, in a transaction of its own; see `pairs`."""
        try:
            try:
                return await self._execute(statement, values)
            except errors.InvalidSqlStatementName:
                # After a rollback psycopg drops what is prepared, on either way.
                self._names = {}
                return await self._execute(statement, values)
        except BaseException as error:
            self._unwatch()
            if isinstance(error, asyncio.CancelledError):
                # Nobody waits for it any more, and who waits for what it has locked should not wait for its end.
                with suppress(psycopg.Error):
                    await self.cancel_safe(timeout=STORE_CANCEL_LIMIT_S)
            raise

    async def _execute(self, statement: Statement, values: Sequence[bytes]) -> pq.abc.PGresult:
        name = self._names.get(statement)
        if name is None:
            name = b"millwheel_%d" % next(_numbers)
            self.pgconn.send_prepare(name, statement.text, statement.types)
            await self._result()
            self._names = {**self._names, statement: name}
        self.pgconn.send_query_prepared(name, values, statement.formats, result_format=pq.Format.BINARY)
        return await self._result()

    async def _result(self) -> pq.abc.PGresult:
        pgconn = self.pgconn
        if pgconn.flush():
            await self.wait(_flushed(pgconn))
        results: list[pq.abc.PGresult] = []
        while True:
            while pgconn.is_busy():
                await self._readable()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                break
            results.append(result)
        for result in results:  # what is checked when the transaction ends fails after the rows have come
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise errors.error_from_result(result, self.info.encoding)
        if not results:
            raise psycopg.OperationalError("the connection was lost before the answer came")
        return results[0]

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        if self._watched is None:
            self._watched = self.fileno()
            loop.add_reader(self._watched, self._ready)
        if self._look is None:
            self._look = loop.call_later(STORE_LOOK_S, self._looked)
        self._answer = loop.create_future()
        try:
            await self._answer
        finally:
            self._answer = None

    def _ready(self) -> None:
        if self._answer is None:
            self._unwatch()  # a notice, or the end: whoever asks next will read it
        elif not self._answer.done():
            self._answer.set_result(None)

    def _looked(self) -> None:
        """Look again, with a new watch, as psycopg does in its waits.

        A server that dies with a request unread also leaves an error on the socket.  uvloop reports that error once and then
        gives the socket up.  But there may be more to read: the server's last words, and then the end.
        """
        self._look = None
        if self._answer is not None and not self._answer.done():
            self._unwatch()
            self._answer.set_result(None)

    def _unwatch(self) -> None:
        if self._watched is not None:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = None

    async def wait(self, gen: PQGen[RV], *arguments: Any, **named: Any) -> RV:
        """As psycopg's, which has the event loop tell it itself."""
        self._unwatch()
        return await super().wait(gen, *arguments, **named)

    async def close(self) -> None:
        """As psycopg's."""
        self._unwatch()
        if self._look is not None:
            self._look.cancel()
        await super().close()


def _flushed(pgconn: pq.abc.PGconn) -> PQGen[None]:
    """Send all of the request.  What comes back meanwhile is read, because the server might wait for that."""
    while pgconn.flush():
        while not (ready := (yield waiting.Wait.RW)):  # when it goes on after a cancellation, psycopg tells it nothing
            continue
        if ready & waiting.Ready.R:
            pgconn.consume_input()
