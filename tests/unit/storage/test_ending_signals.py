"""Signals that end a process with a server."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

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


def test_another_thread_has_no_need_to_wait() -> None:
    handler, found = signal.getsignal(signal.SIGINT), list[Any]()

    def look() -> None:
        with ending_signals.signals_later():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(60)
    assert found == [handler]
