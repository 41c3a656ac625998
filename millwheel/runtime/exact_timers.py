"""Times at which an event loop goes on, exact to some 0.05 ms.

Lives here: what wakes a loop that sleeps, and pauses in their order.  Never here: what happens then.  uvloop counts in whole
milliseconds, as libuv does, so a wait of 1 ms took up to 2.  A timer of Linux (`timerfd_create(2)`) is a file that the loop
watches as it watches a socket.  Where there is none, the loop's own timers do.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import os
import time
from collections.abc import Callable
from itertools import count
from math import ceil
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")


class ExactTimer(Protocol):
    """One time at which a loop calls back."""

    def set(self, delay_s: float) -> None:
        """Call back once, in `delay_s` seconds, and not at the time that was set before."""
        ...

    def close(self) -> None:
        """Never call back again.  May be called twice."""
        ...


def exact_timer(loop: asyncio.AbstractEventLoop, rang: Callable[[], None]) -> ExactTimer:
    """A timer that calls `rang` in `loop`, as exact as this system can."""
    try:
        return _TimerFile(loop, rang)
    except (OSError, AttributeError, NotImplementedError):
        # No file is left, this system has no such call, or the loop watches no files.
        return _LoopTimer(loop, rang)


class _TimeSpec(ctypes.Structure):
    """`struct timespec`."""

    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`: it rings once when `every` is zero."""

    _fields_ = [("every", _TimeSpec), ("first", _TimeSpec)]


class _TimerFile:
    """A file that can be read when the time has come.  Python has it since 3.13, in `os`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rang: Callable[[], None]) -> None:
        self._loop = loop
        self._rang = rang
        self._library: Any = ctypes.CDLL(None, use_errno=True)
        self._spec = _TimerSpec()
        self._file: int = self._library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        try:
            loop.add_reader(self._file, self._readable)
        except BaseException:
            os.close(self._file)
            raise

    def set(self, delay_s: float) -> None:
        """See `ExactTimer.set`.  A delay of 0 would stop the timer."""
        first = self._spec.first
        first.seconds, first.nanoseconds = divmod(max(1, round(delay_s * 1e9)), 1_000_000_000)
        if self._library.timerfd_settime(self._file, 0, ctypes.byref(self._spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """See `ExactTimer.close`."""
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _readable(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # it was set again after it had rung
            return
        self._rang()


class _LoopTimer:
    """The loop's own timer, which may count in whole milliseconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rang: Callable[[], None]) -> None:
        self._loop = loop
        self._rang = rang
        self._handle: asyncio.TimerHandle | None = None

    def set(self, delay_s: float) -> None:
        """See `ExactTimer.set`.  uvloop rounds: what is left of a wait would be none, again and again."""
        self.close()
        self._handle = self._loop.call_at(self._loop.time() + ceil(delay_s * 1_000) / 1_000, self._rang)

    def close(self) -> None:
        """See `ExactTimer.close`."""
        if self._handle is not None:
            self._handle.cancel()


class Pauses(Generic[T]):
    """Values that are due after a while, in the order of their times; those of one time in the order in which they came."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._numbers = count()
        self._heap: list[tuple[int, int, T]] = []

    def begin(self, delay_us: int, value: T) -> None:
        """`value` is due in `delay_us`."""
        heapq.heappush(self._heap, (self._clock_ns() + delay_us * 1_000, next(self._numbers), value))

    def ended(self) -> list[T]:
        """What is due now, and was not before."""
        if not self._heap:
            return []
        now, found = self._clock_ns(), []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found

    def left_s(self) -> float | None:
        """Until the next one is due, s; it may be past.  None while there is none."""
        return (self._heap[0][0] - self._clock_ns()) / 1e9 if self._heap else None
