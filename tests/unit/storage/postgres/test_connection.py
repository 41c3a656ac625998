"""A session that cannot reach its server says so while it tries, and gives up in the end."""

from __future__ import annotations

import asyncio
import logging
import time

import psycopg
import pytest
from psycopg import errors
from psycopg.conninfo import make_conninfo

from millwheel.errors import CommitUnknown, StoreError, StoreUnavailable
from millwheel_storage.embedded import EmbeddedPostgres
from millwheel_storage.postgres import connection
from millwheel_storage.postgres.blocking import reachable
from millwheel_storage.postgres.prepared import Connection


def test_a_server_that_is_not_there_is_named_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "STORE_RECONNECT_LIMIT_US", 1_200_000)
    monkeypatch.setattr(connection, "STORE_LONGEST_DELAY_S", 0.1)
    label = connection.SessionLabel()
    sessions = [connection.Session("postgresql://nobody@127.0.0.1:1/none", "p", label) for _ in range(3)]

    async def work(_: Connection) -> None:
        raise AssertionError("there is no connection")

    async def all_of_a_store() -> None:
        await asyncio.gather(*[session.run(work) for session in sessions])

    with caplog.at_level(logging.WARNING, "millwheel"), pytest.raises(StoreUnavailable, match="cannot connect"):
        asyncio.run(all_of_a_store())
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("cannot connect to Postgres, and tries for 1 s more: ")
    assert "127.0.0.1" in caplog.messages[0]


def test_a_server_that_restarts_is_no_news(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(connection, "STORE_RECONNECT_LIMIT_US", 300_000)
    session = connection.Session("postgresql://nobody@127.0.0.1:1/none", "p", connection.SessionLabel())

    async def work(_: Connection) -> None:
        raise AssertionError("there is no connection")

    with caplog.at_level(logging.WARNING, "millwheel"), pytest.raises(StoreUnavailable):
        asyncio.run(session.run(work))
    assert caplog.messages == []


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"dbname": "nowhere"}, 'database "nowhere" does not exist'),
        ({"user": "nobody-here"}, 'role "nobody-here" does not exist'),
    ],
)
def test_a_server_that_refuses_the_connection_is_not_waited_for(
    postgres: EmbeddedPostgres, wrong: dict[str, str], said: str
) -> None:
    url = make_conninfo(postgres.url, **wrong)
    session = connection.Session(url, "p", connection.SessionLabel())

    async def work(_: Connection) -> None:
        raise AssertionError("there is no connection")

    began = time.monotonic()
    for connects in (lambda: asyncio.run(session.run(work)), lambda: reachable(url)):
        with pytest.raises(StoreError, match=f"{said}.*check the user, password and database") as raised:
            connects()
        assert not isinstance(raised.value, StoreUnavailable)  # or its status would say that it may succeed later
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("says", "kind"),
    [
        ('FATAL: password authentication failed for user "app"', StoreError),
        ("fe_sendauth: no password supplied", StoreError),
        ('FATAL: no pg_hba.conf entry for host "10.0.0.1", user "app", database "d", no encryption', StoreError),
        ("FATAL: the database system is starting up", StoreUnavailable),
        ("FATAL: sorry, too many clients already", StoreUnavailable),
        ("Connection refused", StoreUnavailable),
    ],
)
def test_what_postgres_says_decides_whether_it_may_succeed_later(says: str, kind: type[StoreError]) -> None:
    assert type(connection.not_connected(psycopg.OperationalError(f"connection failed: {says}"))) is kind


@pytest.mark.postgres
@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize("lost_before", [True, False], ids=["lost before", "lost meanwhile"])
def test_a_reply_is_unknown_only_of_work_that_was_asked_and_may_not_be_asked_again(
    postgres: EmbeddedPostgres, lost_before: bool, repeatable: bool
) -> None:
    label = connection.SessionLabel()
    session = connection.Session(postgres.url, "p", label)
    asked: list[int] = []

    async def work(open_: Connection) -> int:
        asked.append(open_.info.backend_pid)
        ((pid,),) = await (await open_.execute("SELECT pg_backend_pid()")).fetchall()
        return int(pid)

    async def main() -> int:
        first = await session.run(work)
        with psycopg.connect(postgres.url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (first,))
        if lost_before:
            label.text = "known by now"  # which the session says before the work
        try:
            return await session.run(work, repeatable=repeatable)
        finally:
            await session.close()

    if lost_before or repeatable:
        assert asyncio.run(main()) == asked[-1] != asked[0]
    else:
        with pytest.raises(CommitUnknown):
            asyncio.run(main())
    assert len(asked) == (3 if repeatable and not lost_before else 2)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.AdminShutdown, StoreUnavailable),
        (errors.CannotConnectNow, StoreUnavailable),
        (errors.DiskFull, StoreUnavailable),
        (errors.OutOfMemory, StoreUnavailable),
        (errors.TooManyConnections, StoreUnavailable),
        (errors.ReadOnlySqlTransaction, StoreUnavailable),
        (errors.InsufficientPrivilege, StoreError),
        (errors.UndefinedTable, StoreError),
        (errors.UniqueViolation, StoreError),
        (errors.InvalidTextRepresentation, StoreError),
    ],
)
def test_what_postgres_answers_decides_whether_it_may_succeed_later(
    error: type[psycopg.Error], kind: type[StoreError]
) -> None:
    found = connection.translated(error("as Postgres says"))
    assert type(found) is kind
    assert "as Postgres says" in str(found)
