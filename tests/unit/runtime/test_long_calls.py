"""User code that does not return is named, with the line where it is."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest

from millwheel.errors import HookInterrupted
from millwheel.runtime.long_calls import LongCalls


def said(
    caplog: pytest.LogCaptureFixture,
    call: str,
    *,
    seconds: float,
    calls: int = 1,
    described: Callable[[object], str] = lambda call: f"the hook {call!r}",
) -> list[str]:
    watched = LongCalls(described, after_s=0.1)
    watched.begin()
    try:
        with caplog.at_level(logging.WARNING, "millwheel"):
            for _ in range(calls):
                watched.now = call[:1] + call[1:]  # an object of its own, as each call is
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    time.sleep(0.001)
                watched.now = None
    finally:
        watched.end()
    return [record.getMessage() for record in caplog.records]


def test_it_is_said_after_a_while_and_then_more_seldom(caplog: pytest.LogCaptureFixture) -> None:
    first, *more = said(caplog, "Count", seconds=1.0)
    assert first.startswith("the hook 'Count' has run for 0 s, and is at ")
    assert "test_long_calls.py:" in first
    assert first.endswith(": nothing else runs in this process until it returns")
    assert 1 <= len(more) <= 3  # at 0.1, 0.2, 0.4 and 0.8 s; a busy machine may miss one


def test_a_call_that_cannot_be_named_keeps_no_later_one_from_it(caplog: pytest.LogCaptureFixture) -> None:
    """It has just ended, and what it was named by is gone."""
    asked: list[object] = []

    def described(call: object) -> str:
        asked.append(call)
        if len(asked) < 3:
            raise KeyError(call)
        return "a read"

    assert len(said(caplog, "Count", seconds=1.0, described=described)) >= 1


def test_a_call_that_a_stop_interrupts_is_over_without_an_error() -> None:
    watched = LongCalls(str)

    def interrupted() -> None:
        assert watched.now == "call"
        raise HookInterrupted

    watched.during("call", interrupted)
    assert watched.now is None


def test_many_calls_that_return_are_not_named(caplog: pytest.LogCaptureFixture) -> None:
    assert said(caplog, "Count", seconds=0.005, calls=100) == []
