"""Statements that run on libpq itself: what they answer, and what is left when they are refused, cancelled or cut off."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

import psycopg
import pytest
import uvloop

from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres.arrays import BigintArray, TextArray
from millwheel_storage.postgres.prepared import BIGINT, BYTEA, Connection, Statement, bigint

pytestmark = pytest.mark.postgres

DOUBLE = Statement("SELECT n, 2 * n FROM unnest(%b::bigint[]) AS n", BigintArray)
LENGTH = Statement("SELECT %b::bigint, length(%b)::bigint", BIGINT, BYTEA)
LOCK = Statement("SELECT pg_advisory_xact_lock(%b)", BIGINT)
Scenario = Callable[[Connection], Coroutine[Any, Any, None]]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def on(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> Callable[[Scenario], None]:
    """Runs a scenario with a connection of its own, on either event loop."""

    def run(scenario: Scenario) -> None:
        async def main() -> None:
            connection = await Connection.connect(postgres.url, autocommit=True)
            try:
                await scenario(connection)
            finally:
                await connection.close()

        request.param(main())

    return run


def backends(postgres: EmbeddedPostgres, where: str, *values: Any) -> int:
    with psycopg.connect(postgres.url) as connection:
        row = connection.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {where}".encode(), values).fetchone()
        assert row is not None
        return int(row[0])


async def until(condition: Callable[[], bool], limit_s: float = 120.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_rows_come_back_and_a_statement_is_prepared_once(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        for first in range(5):
            values = [BigintArray([first, -(2**62)]).data]
            assert await connection.pairs(DOUBLE, values) == [(first, 2 * first), (-(2**62), -(2**63))]
        known = await (await connection.execute("SELECT count(*) FROM pg_prepared_statements")).fetchone()
        assert known == (1,)

    on(scenario)


def test_psycopg_and_this_take_turns_on_one_connection(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        for number in range(50):
            assert await connection.pairs(LENGTH, [bigint(number), b"x" * number]) == [(number, number)]
            row = await (await connection.execute("SELECT %b::int8, pg_sleep(0.001) IS NULL", [number])).fetchone()
            assert row == (number, False)

    on(scenario)


def test_more_than_a_socket_takes_at_once(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        assert await connection.pairs(LENGTH, [bigint(1), bytes(50_000_000)]) == [(1, 50_000_000)]
        many = range(300_000)
        assert await connection.pairs(DOUBLE, [BigintArray(many).data]) == [(n, 2 * n) for n in many]

    on(scenario)


def test_what_is_refused_leaves_a_connection_that_works(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            await connection.run(Statement("SELECT 1 FROM nowhere WHERE %b = 1", BIGINT), [bigint(1)])
        with pytest.raises(psycopg.errors.NumericValueOutOfRange):
            await connection.run(DOUBLE, [BigintArray([2**62]).data])
        with pytest.raises(psycopg.errors.InvalidBinaryRepresentation):
            await connection.run(LENGTH, [b"123456789", b""])
        assert not connection.broken
        assert await connection.pairs(LENGTH, [bigint(1), b"abc"]) == [(1, 3)]

    on(scenario)


def test_a_constraint_that_is_checked_at_the_end_refuses(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        await connection.execute(
            "DROP TABLE IF EXISTS late; CREATE TABLE late (n bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)"
        )
        insert = Statement("INSERT INTO late VALUES (%b) RETURNING n, n", BIGINT)
        assert await connection.pairs(insert, [bigint(1)]) == [(1, 1)]
        with pytest.raises(psycopg.errors.UniqueViolation):
            await connection.pairs(insert, [bigint(1)])

    on(scenario)


def test_it_is_prepared_again_when_psycopg_has_dropped_it(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        for number in range(3):
            assert await connection.pairs(LENGTH, [bigint(number), b""]) == [(number, 0)]
            assert await connection.pairs(DOUBLE, [BigintArray([number]).data]) == [(number, 2 * number)]
            async with connection.transaction(force_rollback=True):
                await connection.execute("SELECT 1", prepare=True)
            await connection.execute("SELECT 2", prepare=True)  # psycopg drops all by now

    on(scenario)


def test_a_percent_sign_is_written_twice_as_in_psycopg(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        assert await connection.pairs(Statement("SELECT %b %% 7, 0::bigint", BIGINT), [bigint(9)]) == [(2, 0)]

    on(scenario)


def test_texts_arrive_as_they_are(on: Callable[[Scenario], None]) -> None:
    async def scenario(connection: Connection) -> None:
        statement = Statement("SELECT length(t)::bigint, octet_length(t)::bigint FROM unnest(%b) AS t", TextArray)
        texts = ["", "source:ü", "a,b", '"', "source:ü"]
        assert await connection.pairs(statement, [TextArray(texts).data]) == [(len(t), len(t.encode())) for t in texts]

    on(scenario)


def test_what_nobody_waits_for_any_more_ends_in_the_server(
    on: Callable[[Scenario], None], postgres: EmbeddedPostgres
) -> None:
    async def scenario(connection: Connection) -> None:
        waits = "pid = %s AND wait_event = 'advisory'"
        pid = connection.info.backend_pid
        with psycopg.connect(postgres.url) as other:
            other.execute("SELECT pg_advisory_xact_lock(77)")
            task = asyncio.create_task(connection.run(LOCK, [bigint(77)]))
            await until(lambda: backends(postgres, waits, pid) == 1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: backends(postgres, waits, pid) == 0)

    on(scenario)


def test_a_request_that_is_cancelled_while_it_is_sent_ends_in_order(
    on: Callable[[Scenario], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(connection: Connection) -> None:
        assert await connection.pairs(LENGTH, [bigint(1), b""]) == [(1, 0)]
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        sent = asyncio.create_task(connection.pairs(LENGTH, [bigint(1), bytes(50_000_000)]))
        await asyncio.sleep(0.2)
        sent.cancel()
        await asyncio.sleep(0.05)
        os.kill(backend, signal.SIGCONT)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(sent), 120)

    on(scenario)
    assert caplog.messages == []


@pytest.mark.parametrize("when", ["waiting", "idle"])
def test_a_lost_connection_is_said_to_be_broken(
    on: Callable[[Scenario], None], postgres: EmbeddedPostgres, when: str
) -> None:
    async def scenario(connection: Connection) -> None:
        assert await connection.pairs(LENGTH, [bigint(1), b""]) == [(1, 0)]
        pid = connection.info.backend_pid
        with psycopg.connect(postgres.url, autocommit=True) as other:
            if when == "waiting":
                other.execute("SELECT pg_advisory_lock(78)")
                task = asyncio.create_task(connection.run(LOCK, [bigint(78)]))
                await until(lambda: backends(postgres, "pid = %s AND wait_event = 'advisory'", pid) == 1)
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
            else:
                other.execute("SELECT pg_terminate_backend(%s)", [pid])
                await until(lambda: backends(postgres, "pid = %s", pid) == 0)
                # The end is readable all the time, and nobody reads it: the loop must not turn for that.
                began = time.process_time()
                await asyncio.sleep(0.5)
                assert time.process_time() - began < 0.25
                task = asyncio.create_task(connection.run(LOCK, [bigint(78)]))
            with pytest.raises(psycopg.Error):
                await task
        assert connection.broken

    on(scenario)


def test_a_server_that_ends_before_it_reads_the_request_is_noticed(
    on: Callable[[Scenario], None], postgres: EmbeddedPostgres
) -> None:
    """It says goodbye and leaves the request: when both are there before uvloop looks, it tells of them once, never again."""

    async def scenario(connection: Connection) -> None:
        assert await connection.pairs(LENGTH, [bigint(1), b"x"]) == [(1, 1)]
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)
        unread = asyncio.create_task(connection.pairs(LENGTH, [bigint(2), b"xx"]))
        await asyncio.sleep(0.05)
        os.kill(backend, signal.SIGTERM)
        os.kill(backend, signal.SIGCONT)
        while backends(postgres, "pid = %s", backend):  # user code runs, and the loop does not look
            time.sleep(0.01)
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(unread, 120)
        assert connection.broken

    on(scenario)
