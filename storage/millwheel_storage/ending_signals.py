"""Signals that end a process, for one that has a server: they wait for a moment, and end it in order.

Lives here: what SIGINT, SIGTERM and SIGHUP do.  Never here: what is stopped then (`embedded`, by atexit).
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """What these signals do waits until the block is over.  They do it in the main thread, so others have no need."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if (handler := signal.getsignal(number)) is not None:  # else it is not Python's
                before[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for held, handler in before.items():
            signal.signal(held, handler)
        for held in came:
            signal.raise_signal(held)


def exit_on_sigterm() -> None:
    """Leave in order on SIGTERM, and when the terminal is closed (atexit stops the server), unless the program handles these
    signals itself or was started to ignore them (nohup)."""
    with contextlib.suppress(ValueError):  # not the main thread: only that may install handlers
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, on_sigterm)


def on_sigterm(number: int, frame: FrameType | None) -> None:
    """End the process in order, with the status of whoever was ended by that signal."""
    raise SystemExit(128 + number)
