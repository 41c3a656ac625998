"""A small process that renews the lease of its parent, a worker or a controller.

Lives here: the loop of that process, and what it says to its parent.  Never here: user code, an event loop, or the judgement
whether a lease still holds, which is the parent's (`lease`).  A process of its own is needed because a hook may keep the
interpreter for longer than a lease.  Invariants:

* it confirms a renewal with a time that was read before the renewal was asked for, so the lease lasts at least that long;
* it does not renew while its parent is stopped (SIGSTOP, a debugger): nobody could take over what a stopped process owns;
* it ends with its parent: by the end of its standard input, and on Linux by a signal as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from millwheel.errors import StoreUnavailable
from millwheel.limits import LEASE_ATTEMPT_S, LEASE_RENEW_S, LEASE_RETRY_S

if TYPE_CHECKING:
    from millwheel_storage.lease_session import LeaseSession

RENEWED: Final = "renewed"
"""Followed by the time of `boot_ns` before the renewal was asked for."""
LOST: Final = "lost"
"""The lease had run out, and never holds again."""
TROUBLE: Final = "trouble"
"""Followed by a text for the log."""

IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They are for the parent, and this process ends after it."""
STOPPED: Final = frozenset("Tt")
"""States of a process that a signal or a debugger has stopped."""

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""It counts the time in which the machine was suspended.  On macOS the monotonic clock does."""


def boot_ns() -> int:
    """Time since the machine was started, ns; every process of the machine reads the same clock."""
    return time.clock_gettime_ns(_CLOCK)


class Overdue(Exception):
    """An attempt has taken too long."""


def main() -> int:
    """Renew until the parent ends or the lease is lost.  The first line of standard input says whose lease it is."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    given = json.loads(_first_line(0))
    _die_with(given["parent"])
    signal.signal(signal.SIGALRM, _overdue)
    from millwheel_storage.lease_session import LeaseSession

    session = LeaseSession(given["url"], given["schema"])
    keeper = Keeper(
        session=session, incarnation=given["incarnation"], lease_us=given["lease_us"], parent=given["parent"]
    )
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        keeper.keep()
    return 0


class Keeper:
    """The loop."""

    def __init__(self, *, session: LeaseSession, incarnation: int, lease_us: int, parent: int) -> None:
        self._session = session
        self._incarnation = incarnation
        self._lease_us = lease_us
        self._parent = parent
        self._trouble = ""

    def keep(self) -> None:
        """Renew about once a second, and more often while that fails."""
        pause_s = 0.0
        while not _ended_within(pause_s):
            if is_stopped(self._parent):
                pause_s = LEASE_RETRY_S
                continue
            asked = boot_ns()
            try:
                kept = self._renewed()
            except (StoreUnavailable, Overdue) as error:
                self._say_once(str(error))
                pause_s = LEASE_RETRY_S
                continue
            if not kept:
                _say(LOST)
                return
            self._trouble = ""
            _say(f"{RENEWED} {asked}")
            pause_s = max(0.0, LEASE_RENEW_S - (boot_ns() - asked) / 1e9)

    def _renewed(self) -> bool:
        signal.setitimer(signal.ITIMER_REAL, LEASE_ATTEMPT_S)
        try:
            return self._session.renew(self._incarnation, self._lease_us)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _say_once(self, text: str) -> None:
        if text != self._trouble:
            self._trouble = text
            _say(f"{TROUBLE} {text}")


def is_stopped(process: int) -> bool:
    """Whether a process exists and a signal has stopped it.  Always False where there is no /proc."""
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0].decode() in STOPPED


def _overdue(number: int, frame: FrameType | None) -> None:
    raise Overdue(f"Postgres has not answered for {LEASE_ATTEMPT_S:g} s")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _first_line(source: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(source, 1)
        if not byte:
            raise SystemExit(0)  # the parent has ended
        line += byte
    return line


def _ended_within(seconds: float) -> bool:
    """Wait, and notice the end of the parent meanwhile: it never writes a second line."""
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready)


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends.  Where it cannot, the end of standard input does."""
    if sys.platform == "linux":
        import ctypes

        parent_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended before this was asked for
        raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
