"""A call in a thread: its answer, its error, and what is said of one that does not come back."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from millwheel import limits
from millwheel.runtime.threads import in_thread


def test_it_gives_the_answer_or_raises_the_error() -> None:
    def fail() -> None:
        raise PermissionError("closed")

    async def scenario() -> None:
        assert await in_thread("a sum", sum, [1, 2]) == 3
        assert await in_thread("a name", lambda: threading.current_thread().daemon)
        with pytest.raises(PermissionError, match="closed"):
            await in_thread("a search", fail)

    asyncio.run(scenario())


def test_one_that_takes_long_is_named_and_nobody_waits_for_it_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "LONG_CALL_S", 0.05)
    ever = threading.Event()

    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await in_thread("a search of source s", ever.wait)

    with caplog.at_level(logging.WARNING, "millwheel"):
        asyncio.run(scenario())
    first, *more = [record.getMessage() for record in caplog.records]
    assert first == "a search of source s has run for 0 s: do its files answer?"
    assert 1 <= len(more) <= 3
    ever.set()


class NoError(BaseException):
    """What ends more than a call, such as SystemExit."""


@pytest.mark.parametrize("kind", [NoError, StopIteration])
def test_whatever_a_call_raises_it_has_ended(kind: type[BaseException]) -> None:
    """Else whoever waits for it would wait for ever."""

    def fail() -> None:
        raise kind("enough")

    async def scenario() -> None:
        async with asyncio.timeout(20):
            await in_thread("a search", fail)

    with pytest.raises((kind, RuntimeError)):
        asyncio.run(scenario())
