"""The loop that renews a lease, with a session and a clock of this test."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from millwheel.errors import StoreUnavailable
from millwheel.limits import LEASE_RENEW_S, LEASE_RETRY_S
from millwheel.runtime import lease_keeper
from millwheel.runtime.lease_keeper import Keeper

AWAY = StoreUnavailable("the server is away")
GONE = StoreUnavailable("the server is gone")


class World:
    """What a keeper sees: the answers of its store, its parent, and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        self.answers: list[Callable[[], bool] | Exception | bool | str] = []
        """Each of one turn; a text: its parent is stopped."""
        self.said: list[str] = []
        self.pauses: list[float] = []
        self.renewals = 0
        monkeypatch.setattr(lease_keeper, "boot_ns", lambda: self.now_ns)
        monkeypatch.setattr(lease_keeper, "_say", self.said.append)
        monkeypatch.setattr(lease_keeper, "_ended_within", self._ended_within)
        monkeypatch.setattr(lease_keeper, "is_stopped", self._is_stopped)

    def _ended_within(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now_ns += round(seconds * 1e9)
        return not self.answers

    def _is_stopped(self, process: int) -> bool:
        assert process == 77
        stopped = self.answers[0] == "stopped"
        if stopped:
            self.answers.pop(0)
        return stopped

    def renew(self, incarnation: int, lease_us: int) -> bool:
        assert (incarnation, lease_us) == (5, 3_000_000)
        self.renewals += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else cast(bool, answer)

    def keep(self, *answers: Any) -> list[str]:
        self.answers[:] = answers
        Keeper(session=cast(Any, self), incarnation=5, lease_us=3_000_000, parent=77).keep()
        return self.said


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    before = signal.signal(signal.SIGALRM, lease_keeper._overdue)
    yield World(monkeypatch)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_renewal_is_confirmed_with_the_time_before_it_and_the_next_one_comes_in_time(world: World) -> None:
    began = world.now_ns

    def slow() -> bool:
        world.now_ns += 300_000_000
        return True

    def very_slow() -> bool:
        world.now_ns += 3_000_000_000
        return True

    second = began + round(LEASE_RENEW_S * 1e9)
    third = second + 3_000_000_000
    assert world.keep(slow, very_slow, True) == [f"renewed {began}", f"renewed {second}", f"renewed {third}"]
    assert world.pauses == [0.0, pytest.approx(LEASE_RENEW_S - 0.3), 0.0, pytest.approx(LEASE_RENEW_S)]


def test_while_nobody_knows_it_is_tried_again_soon_and_each_reason_is_said_once(world: World) -> None:
    began = world.now_ns
    said = world.keep(AWAY, AWAY, GONE, AWAY, True, AWAY)
    away, gone = f"trouble {AWAY}", f"trouble {GONE}"
    assert said == [away, gone, away, f"renewed {began + round(4 * LEASE_RETRY_S * 1e9)}", away]
    assert world.pauses == [0.0, *[LEASE_RETRY_S] * 4, pytest.approx(LEASE_RENEW_S), LEASE_RETRY_S]


def test_a_lease_that_is_over_is_lost_and_not_renewed_again(world: World) -> None:
    began = world.now_ns
    assert world.keep(True, False, True) == [f"renewed {began}", "lost"]
    assert world.renewals == 2


def test_nothing_is_renewed_for_a_parent_that_is_stopped(world: World) -> None:
    began = world.now_ns
    assert world.keep("stopped", "stopped", True, "stopped") == [f"renewed {began + round(2 * LEASE_RETRY_S * 1e9)}"]
    assert world.renewals == 1


def test_a_server_that_does_not_answer_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_keeper, "LEASE_ATTEMPT_S", 0.05)
    slept: list[int] = []

    def hangs() -> bool:
        time.sleep(20)
        return True

    def quick() -> bool:
        slept.append(1)
        return True

    began = time.monotonic()
    said = world.keep(hangs, quick)
    assert time.monotonic() - began < 10
    assert said[0] == "trouble Postgres has not answered for 0.05 s"
    assert said[1].startswith("renewed ")
    time.sleep(0.1)  # the answer has come: nothing interrupts what is done next


@pytest.mark.parametrize(("state", "stopped"), [("T", True), ("t", True), ("S", False), ("R", False), ("Z", False)])
def test_a_process_that_a_signal_or_a_debugger_has_stopped_is_stopped(
    state: str, stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_bytes(path: Any) -> bytes:
        assert str(path) == "/proc/77/stat"
        return b"77 (a name) T (of one) %s 1 77" % state.encode()

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert lease_keeper.is_stopped(77) == stopped


def test_a_keeper_whose_parent_has_ended_before_it_looked_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")  # the kernel is not asked: this process is no keeper
    lease_keeper._die_with(os.getppid())
    with pytest.raises(SystemExit):
        lease_keeper._die_with(os.getppid() + 1)
