"""What a process makes of what its keeper says: a real pipe, a clock of this test, and no store."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millwheel.errors import Fenced, InvariantError
from millwheel.limits import LEASE_LOOK_S
from millwheel.runtime import lease
from millwheel.runtime.lease import KeptLease, LeaseOf

LEASE_US = 3_000_000
LOOK_NS = int(LEASE_LOOK_S * 1e9)


class Kept:
    """A lease whose keeper is this test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        monkeypatch.setattr(lease, "boot_ns", lambda: self.now_ns)
        read, self._write = os.pipe()
        os.set_blocking(read, False)
        self.pipe = os.fdopen(read, "rb", buffering=0)
        self.lease = KeptLease(LeaseOf("postgresql://nowhere", "p", 1, LEASE_US), self.now_ns)
        self.lease._keeper = cast("subprocess.Popen[bytes]", SimpleNamespace(stdout=self.pipe))

    def says(self, data: str) -> None:
        os.write(self._write, data.encode())

    def after(self, ns: int) -> bool:
        """Whether it holds so much later."""
        self.now_ns += ns
        try:
            self.lease.check()
        except Fenced:
            return False
        return True

    def close(self) -> None:
        self.pipe.close()
        os.close(self._write)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    made = Kept(monkeypatch)
    yield made
    made.close()


def test_it_holds_as_long_as_the_last_confirmed_renewal_and_not_longer(kept: Kept) -> None:
    assert kept.after(LEASE_US * 1_000)
    assert not kept.after(1)


def test_a_renewal_counts_from_its_own_time_and_one_that_is_heard_late_takes_nothing_away(kept: Kept) -> None:
    began = kept.now_ns
    kept.says(f"renewed {began + LOOK_NS}\nrenewed {began + 5}\n")
    assert kept.after(LOOK_NS)
    assert kept.after(LEASE_US * 1_000)
    assert not kept.after(1)


def test_what_is_said_in_pieces_is_heard_whole(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    said = f"trouble the server is away\nrenewed {kept.now_ns + 7 * LOOK_NS}\n"
    for at in range(0, len(said), 9):
        kept.says(said[at : at + 9])
        assert kept.after(LOOK_NS)
    assert kept.lease._confirmed_ns == int(said.split()[-1])
    assert caplog.messages == ["the server is away"]


@pytest.mark.parametrize("later", ["", "renewed"])
def test_a_lease_that_is_lost_never_holds_again(kept: Kept, later: str) -> None:
    kept.says("lost\n")
    assert not kept.after(LOOK_NS)
    if later:
        kept.says(f"renewed {kept.now_ns}\n")
    assert not kept.after(LOOK_NS)


def test_a_lease_that_has_run_out_here_never_holds_again(kept: Kept) -> None:
    """Others may have taken over, whatever is heard later."""
    assert not kept.after(LEASE_US * 1_000 + 1)
    kept.says(f"renewed {kept.now_ns}\n")
    assert not kept.after(LOOK_NS)


def test_a_keeper_that_says_something_else_is_a_mistake_of_ours(kept: Kept) -> None:
    kept.says("hello\n")
    with pytest.raises(InvariantError, match="the lease keeper said 'hello'"):
        kept.after(LOOK_NS)


def test_the_pipe_is_looked_at_once_in_a_while(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """A look is a system call, and `check` is asked before all that is sent."""
    assert kept.after(0)
    kept.says("trouble one\n")
    assert kept.after(LOOK_NS - 1)
    assert not caplog.messages
    assert kept.after(1)
    assert caplog.messages == ["one"]


def test_a_keeper_that_dies_is_replaced_and_what_it_had_begun_to_say_is_forgotten(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ends: list[str] = []
    read, write = os.pipe()
    os.set_blocking(read, False)

    class Next:
        """The keeper that follows."""

        def __init__(self, *given: Any, **named: Any) -> None:
            self.stdin, self.stdout = SimpleNamespace(write=ends.append, flush=lambda: None), os.fdopen(read, "rb", 0)

    monkeypatch.setattr(KeptLease, "close", lambda self: ends.append("closed"))
    monkeypatch.setattr(subprocess, "Popen", Next)
    kept.says("renewed 12")
    assert kept.after(LOOK_NS)
    os.dup2(os.open(os.devnull, os.O_RDONLY), kept.pipe.fileno())  # its end
    with caplog.at_level(logging.WARNING, "millwheel"):
        assert kept.after(LOOK_NS)
    assert ends[0] == "closed"
    assert caplog.messages == ["the lease keeper died; starting another"]
    os.write(write, f"renewed {kept.now_ns}\n".encode())
    assert kept.after(LOOK_NS)
    assert kept.lease._confirmed_ns == kept.now_ns - LOOK_NS
    os.close(write)
    cast(Any, kept.lease._keeper).stdout.close()


def test_a_keeper_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_CLOSE_S", 0.1)
    made = KeptLease(LeaseOf("postgresql://nowhere", "p", 1, LEASE_US), 0)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    made._keeper = subprocess.Popen(sleeps, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    began, process = time.monotonic(), made._keeper
    made.close()
    assert time.monotonic() - began < 30
    assert process.returncode == -signal.SIGKILL


def test_a_keeper_that_is_dead_before_it_knows_its_lease_is_found_at_the_next_look(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(data: bytes) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    dead = SimpleNamespace(stdin=SimpleNamespace(write=broken, flush=lambda: None), stdout=kept.pipe)
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: dead)
    kept.lease._start()
    assert kept.after(0)
