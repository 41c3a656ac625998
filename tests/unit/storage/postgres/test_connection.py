"""A session that cannot reach its server says so while it tries, and gives up in the end."""

from __future__ import annotations

import asyncio
import logging

import pytest

from millwheel.errors import StoreUnavailable
from millwheel_storage.postgres import connection
from millwheel_storage.postgres.prepared import Connection


def test_a_server_that_is_not_there_is_named_while_it_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection, "STORE_RECONNECT_LIMIT_US", 1_200_000)
    monkeypatch.setattr(connection, "STORE_LONGEST_DELAY_S", 0.1)
    session = connection.Session("postgresql://nobody@127.0.0.1:1/none", "p", connection.SessionLabel())

    async def work(_: Connection) -> None:
        raise AssertionError("there is no connection")

    with caplog.at_level(logging.WARNING, "millwheel"), pytest.raises(StoreUnavailable, match="cannot connect"):
        asyncio.run(session.run(work))
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
