"""Ctrl-C and SIGTERM end a run in order, also while a slow hook runs.

Lives here: what the process does with these two signals during a run.  The first signal stops the run after the hook
that runs now.  An exception interrupts that hook when it goes on for `limits.STOP_GRACE_S`, or when a second signal
comes, as Ctrl-C does elsewhere in Python.  What the hook has done is not kept, and its record comes again.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Protocol

from millwheel.errors import HookInterrupted
from millwheel.limits import STOP_GRACE_S

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
"""They end a run in order."""


class Stoppable(Protocol):
    """A run, as far as this goes."""

    @property
    def in_user_code(self) -> bool:
        """User code runs now."""
        ...

    def stop(self) -> None:
        """End at the next turn."""
        ...


@contextmanager
def signals_stop(run: Stoppable, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Inside this context, signals stop `run`.  Afterwards they do what they did before.  Only the main thread can do this.

    The handlers are Python's and not the event loop's, because the loop's run between two turns only, and a hook runs within
    one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # the caller's signals are the caller's
        return
    main, asked = threading.get_ident(), threading.Event()
    again = threading.Timer(STOP_GRACE_S, lambda: signal.pthread_kill(main, signal.SIGINT))
    again.daemon = True

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set():
            if run.in_user_code:
                raise HookInterrupted
            return
        asked.set()
        run.stop()
        loop.call_soon_threadsafe(lambda: None)  # it may be asleep
        if run.in_user_code:
            again.start()

    before = {number: signal.signal(number, handle) for number in SIGNALS}
    try:
        yield
    finally:
        again.cancel()
        if again.ident is not None:  # its signal must not come when the handlers are no longer ours
            again.join()
        _restore(before)


@contextmanager
def signals_restored() -> Iterator[None]:
    """Restore what Ctrl-C and SIGTERM did before, because a closed event loop would keep them for itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        _restore(before)


def _restore(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        if handler is not None:  # what is not Python's cannot be set from Python
            signal.signal(number, handler)
