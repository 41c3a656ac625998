"""What a process knows of its own lease: the judgement whether it may still act.

Lives here: the child that renews (`lease_keeper`), and the time of its last confirmed renewal.  Never here: the judgement of
others, which the clock of the database makes.  Invariants:

* the lease holds here for no longer than it does in the database, whatever was stopped, suspended or slow meanwhile;
* a keeper that dies is replaced.  That is safe because only confirmed renewals count, and a worker with much in memory need
  not end because the kernel killed a small process.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Protocol

import msgspec

import millwheel
import millwheel_storage
from millwheel.errors import Fenced, InvariantError
from millwheel.limits import LEASE_CLOSE_S, LEASE_LOOK_S
from millwheel.runtime.lease_keeper import IGNORED, LOST, RENEWED, TROUBLE, boot_ns

logger = logging.getLogger("millwheel")


class Permit(Protocol):
    """Whether this process may still act."""

    def check(self) -> None:
        """Raise `Fenced` if not."""
        ...


class LeaseOf(msgspec.Struct, frozen=True):
    """Whose lease, and where it is kept."""

    url: str
    schema: str
    incarnation: int
    lease_us: int


class KeptLease:
    """A lease that a child renews.  Use as a context manager, in the thread that lives as long as the process."""

    def __init__(self, of: LeaseOf, joined_ns: int) -> None:
        """`joined_ns` is the time of `boot_ns` before the member joined, or before its last renewal."""
        self._of = of
        self._confirmed_ns = joined_ns
        self._lost = False
        self._look_at_ns = 0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> KeptLease:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def keeper(self) -> int:
        """The process id of the child that renews."""
        if self._keeper is None:
            raise InvariantError("the lease has no keeper")
        return self._keeper.pid

    def check(self) -> None:
        """Raise `Fenced` when the last confirmed renewal is older than the lease.  Costs a look at a clock, mostly."""
        now = boot_ns()
        if self._keeper is not None and now >= self._look_at_ns:
            self._look(now, self._keeper)
        age_ns = now - self._confirmed_ns
        self._lost = self._lost or age_ns > self._of.lease_us * 1_000
        if self._lost:
            raise Fenced(
                f"the lease of this process has run out ({age_ns / 1e9:.1f} s since it was renewed, "
                f"{self._of.lease_us / 1e6:g} s are allowed): it was stopped, or could not reach the store, and others have "
                "taken over; start it again"
            )

    def close(self) -> None:
        """End the child."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        with keeper:
            if keeper.stdin is not None:
                keeper.stdin.close()
            try:
                keeper.wait(LEASE_CLOSE_S)
            except subprocess.TimeoutExpired:
                keeper.kill()

    # --- the child --------------------------------------------------------------------------------------------

    def _start(self) -> None:
        roots = [str(Path(package.__path__[0]).parent) for package in (millwheel, millwheel_storage)]
        path = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A session of its own: Ctrl-C is for the parent.  -P: a module of the user's must not take the place of another.
        # It inherits that these signals wait, for the time until it ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
        try:
            keeper = self._keeper = subprocess.Popen(
                [sys.executable, "-P", "-m", "millwheel.runtime.lease_keeper"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if keeper.stdin is None or keeper.stdout is None:
            raise InvariantError("the keeper has no pipes")
        os.set_blocking(keeper.stdout.fileno(), False)
        given = {**msgspec.structs.asdict(self._of), "parent": os.getpid()}
        self._unread = b""
        try:
            keeper.stdin.write(json.dumps(given).encode() + b"\n")
            keeper.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead already; the next look starts another

    def _look(self, now: int, keeper: subprocess.Popen[bytes]) -> None:
        """Read what the keeper has said; a keeper that is dead is replaced."""
        self._look_at_ns = now + int(LEASE_LOOK_S * 1e9)
        if keeper.stdout is None:
            raise InvariantError("the keeper has no pipes")
        while True:
            try:
                said = os.read(keeper.stdout.fileno(), 65_536)
            except BlockingIOError:
                return
            if not said:
                break
            *lines, self._unread = (self._unread + said).split(b"\n")
            for line in lines:
                self._hear(line.decode())
        if not self._lost:
            self.close()
            logger.warning("the lease keeper died; starting another")
            self._start()

    def _hear(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        if kind == RENEWED:
            self._confirmed_ns = max(self._confirmed_ns, int(rest))
        elif kind == LOST:
            self._lost = True
        elif kind == TROUBLE:
            logger.warning("%s", rest)
        else:
            raise InvariantError(f"the lease keeper said {line!r}")
