"""Signals that end a process with a server."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millwheel.errors import StoreError
from millwheel_storage import ending_signals


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda number, frame: None], ids=["nohup", "a program's own"])
def test_who_handles_signals_or_ignores_them_goes_on_to_do_so(handler: Any) -> None:
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        ending_signals.exit_on_sigterm()
        assert {signal.getsignal(number) for number in before} == {handler}
        for number in before:
            signal.signal(number, signal.SIG_DFL)
        ending_signals.exit_on_sigterm()
        assert {signal.getsignal(number) for number in before} == {ending_signals.on_sigterm}
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_until_the_block_is_over(number: signal.Signals) -> None:
    came: list[int] = []
    before = signal.signal(number, lambda number, frame: came.append(number))
    own = signal.getsignal(number)
    try:
        with ending_signals.signals_later():
            os.kill(os.getpid(), number)
            assert came == []
        assert came == [number]
        assert signal.getsignal(number) is own
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("fails", [False, True])
def test_signals_that_wait_come_in_their_order_also_when_the_block_fails(fails: bool) -> None:
    numbers = [signal.SIGTERM, signal.SIGHUP, signal.SIGTERM, signal.SIGINT]
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in {*numbers}}
    try:
        with contextlib.suppress(StoreError), ending_signals.signals_later():
            for number in numbers:
                os.kill(os.getpid(), number)
            if fails:
                raise StoreError("the server does not start")
        assert came == numbers
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_status_says_which_signal_has_ended_the_process(number: signal.Signals) -> None:
    with pytest.raises(SystemExit) as ended:
        ending_signals.on_sigterm(number, None)
    assert ended.value.code == 128 + number


def in_a_thread(call: Callable[[], None]) -> None:
    """To its end; what it raises is raised here."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(call).result(60)


def test_only_the_main_thread_says_what_signals_do() -> None:
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        in_a_thread(ending_signals.exit_on_sigterm)
        assert {signal.getsignal(number) for number in before} == {signal.SIG_DFL}
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def test_another_thread_has_no_need_to_wait() -> None:
    handler, found = signal.getsignal(signal.SIGINT), list[Any]()

    def look() -> None:
        with ending_signals.signals_later():
            found.append(signal.getsignal(signal.SIGINT))

    in_a_thread(look)
    assert found == [handler]
