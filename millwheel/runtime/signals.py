"""Ctrl-C, SIGTERM and a closed terminal end a run in order, also while a slow hook runs.

Lives here: what the process does with these signals during a run.  The first signal stops the run after the hook
that runs now.  An exception interrupts user code that goes on for `limits.STOP_GRACE_S`, and again after each such time,
because some code catches everything.  A second signal interrupts it at once, as Ctrl-C does elsewhere in Python.  What the
hook has done is not kept, and its record comes again.  The third Ctrl-C ends the process at once.

A handler runs between any two lines of the main thread, so it must not touch what that thread may be in the middle of
changing: an event of asyncio, a lock, a thread that is to be started.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, Final, Protocol

from millwheel import interrupts, limits
from millwheel.errors import HookInterrupted
from millwheel.terminal import let_go_of_closed_terminal

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They end a run in order."""


def heeded() -> list[signal.Signals]:
    """`SIGNALS`, without SIGHUP where the process was started to outlive its terminal (nohup)."""
    return [one for one in SIGNALS if one != signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]


class Presses:
    """How often Ctrl-C was pressed."""

    def __init__(self) -> None:
        self._count = 0

    def add(self) -> None:
        """Once more.  The third time does not return: the process is gone, as after `kill -9`."""
        self._count += 1
        if self._count >= limits.STOP_PRESSES:
            os.write(2, b"millwheel: ended at once; run it again to resume\n")
            os._exit(130)  # what shells say of a process that Ctrl-C has ended


class Stoppable(Protocol):
    """A run, as far as this goes."""

    @property
    def user_call(self) -> object:
        """The user code that runs now, an object for each call; None while there is none."""
        ...

    def stop(self) -> None:
        """End at the next turn; called by the handler of a signal."""
        ...


class StopSignals:
    """What they do to one run."""

    def __init__(self, run: Stoppable) -> None:
        self._run = run
        self._presses = Presses()
        self._told = False
        self._too_long = False
        """The next SIGINT is not from outside."""
        self._bell = SimpleQueue[bool]()
        """Rings when the run is told to stop (True), and when it is over; a handler may ring it at any time."""
        self._main = threading.get_ident()
        self._watcher = threading.Thread(target=self._watch, name="millwheel-stop-grace", daemon=True)
        self._watcher.start()

    def over(self) -> None:
        """The run has ended.  No signal comes from here any more."""
        self._bell.put(False)
        self._watcher.join()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if number == signal.SIGHUP:
            let_go_of_closed_terminal()
        if number == signal.SIGINT:
            if not self._too_long:
                self._presses.add()
            self._too_long = False
        if not self._told:
            self._told = True
            self._run.stop()
            self._bell.put(True)
        elif self._run.user_call is not None:
            raise HookInterrupted

    def _watch(self) -> None:
        """In a thread: interrupt each call of user code that goes on for too long after the stop."""
        if not self._bell.get():
            return
        seen, since = self._run.user_call, time.monotonic()
        while not self._is_over():
            now = self._run.user_call
            if now is None or now is not seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since >= limits.STOP_GRACE_S:
                since = time.monotonic()
                self._too_long = True
                signal.pthread_kill(self._main, signal.SIGINT)

    def _is_over(self) -> bool:
        try:
            return not self._bell.get(timeout=limits.STOP_GRACE_S / 20)
        except Empty:
            return False


@contextmanager
def signals_stop(run: Stoppable) -> Iterator[None]:
    """Inside this context, signals stop `run`.  Afterwards they do what they did before.  Only the main thread can do this.

    The handlers are Python's and not the event loop's, because the loop's run between two turns only, and a hook runs within
    one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # the caller's signals are the caller's
        return
    signals = StopSignals(run)
    before = {number: signal.getsignal(number) for number in heeded()}
    try:
        for number in before:
            signal.signal(number, signals.handle)
        if interrupts.told():
            signals.handle(signal.SIGTERM, None)
        yield
    finally:
        signals.over()
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
