"""Timers in a real loop, and pauses by a clock that the test moves."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import resource
import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from millwheel.runtime.exact_timers import ExactTimer, Pauses, _LoopTimer, _TimerFile, exact_timer

Made = Callable[[asyncio.AbstractEventLoop, Callable[[], None]], ExactTimer]
Loops = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loops(request: pytest.FixtureRequest) -> Loops:
    made: Loops = request.param
    return made


@pytest.fixture(params=[_TimerFile, _LoopTimer], ids=["file", "loop"])
def kind(request: pytest.FixtureRequest) -> Made:
    made: Made = request.param
    return made


class Rings:
    """What a timer calls: it notes the times, and ends a wait."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.rung = asyncio.Event()

    def __call__(self) -> None:
        self.times.append(time.monotonic())
        self.rung.set()

    async def next(self) -> float:
        """When it rings next."""
        self.rung.clear()
        await asyncio.wait_for(self.rung.wait(), 60)
        return self.times[-1]


def run(loops: Loops, kind: Made, use: Callable[[ExactTimer, Rings], object]) -> None:
    """`use` a timer, a coroutine function, in a loop of its own."""

    async def main() -> None:
        rings = Rings()
        made = kind(asyncio.get_running_loop(), rings)
        try:
            await use(made, rings)  # type: ignore[misc]
        finally:
            made.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(main())


def test_it_rings_once_and_not_before_its_time(loops: Loops, kind: Made) -> None:
    async def use(made: ExactTimer, rings: Rings) -> None:
        for delay in (0.0, 0.000_2, 0.003, 0.02):
            began, before = time.monotonic(), len(rings.times)
            made.set(delay)
            at = await rings.next()
            # A loop's own timer counts from the time at which the loop last looked at the clock, and cuts off parts of a ms.
            assert at - began >= delay - (0.002 if kind is _LoopTimer else 0)
            await asyncio.sleep(0.01)
            assert len(rings.times) == before + 1

    run(loops, kind, use)


def test_a_new_time_replaces_the_one_before(loops: Loops, kind: Made) -> None:
    async def use(made: ExactTimer, rings: Rings) -> None:
        began = time.monotonic()
        made.set(50.0)
        made.set(0.005)
        assert await rings.next() - began < 25
        made.set(0.005)
        made.set(50.0)
        await asyncio.sleep(0.05)
        assert len(rings.times) == 1

    run(loops, kind, use)


def test_a_new_time_replaces_one_that_has_come_and_was_not_heard(loops: Loops, kind: Made) -> None:
    async def use(made: ExactTimer, rings: Rings) -> None:
        made.set(0.001)
        time.sleep(0.01)
        made.set(50.0)
        await asyncio.sleep(0.05)
        assert not rings.times

    run(loops, kind, use)


def test_a_new_time_replaces_one_that_has_come_in_the_turn_in_which_it_is_heard(loops: Loops, kind: Made) -> None:
    """The loop has seen both, what came on the socket and the timer, and the first of them sets the timer anew."""

    async def use(made: ExactTimer, rings: Rings) -> None:
        loop, (ready, other) = asyncio.get_running_loop(), socket.socketpair()
        rung_before: list[int] = []

        def come() -> None:
            ready.recv(1)
            rung_before.append(len(rings.times))
            made.set(50.0)

        loop.add_reader(ready, come)
        try:
            made.set(0.001)
            other.send(b"x")
            time.sleep(0.01)
            await asyncio.sleep(0.05)
        finally:
            loop.remove_reader(ready)
            ready.close()
            other.close()
        assert [len(rings.times)] == rung_before

    run(loops, kind, use)


def test_it_never_rings_after_its_end_which_may_come_twice(loops: Loops, kind: Made) -> None:
    async def use(made: ExactTimer, rings: Rings) -> None:
        before = {*os.listdir("/dev/fd")}
        made.set(0.005)
        made.close()
        made.close()
        await asyncio.sleep(0.05)
        assert not rings.times
        if kind is _TimerFile:
            assert len({*os.listdir("/dev/fd")}) == len(before) - 1

    run(loops, kind, use)


def test_what_the_system_refuses_is_told_by_its_number() -> None:
    async def use(made: ExactTimer, rings: Rings) -> None:
        made.close()
        with pytest.raises(OSError, match="timerfd_settime") as refused:
            made.set(0.001)
        assert refused.value.errno == errno.EBADF

    run(asyncio.new_event_loop, _TimerFile, use)


def test_a_timer_of_the_system_is_exact_below_a_millisecond() -> None:
    waits: list[float] = []

    async def use(made: ExactTimer, rings: Rings) -> None:
        for _ in range(50):
            began = time.monotonic()
            made.set(0.000_4)
            waits.append(await rings.next() - began)

    run(uvloop.new_event_loop, exact_timer, use)
    assert min(waits) < 0.000_9  # the median is 0.5 ms on a quiet machine; uvloop's own timers take 1 ms and more


def test_without_a_file_for_it_the_timer_is_the_loops(loops: Loops) -> None:
    async def main() -> None:
        rings, (soft, hard) = Rings(), resource.getrlimit(resource.RLIMIT_NOFILE)
        loop = asyncio.get_running_loop()
        lowest = os.open("/dev/null", os.O_RDONLY)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        try:
            made = exact_timer(loop, rings)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert type(made) is _LoopTimer
        made.set(0.001)
        await rings.next()
        made.close()

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(main())


class WatchesNothing(asyncio.SelectorEventLoop):
    """A loop that cannot watch files, as one of Windows."""

    watches = True
    """It does for itself, while it is made."""

    def add_reader(self, *given: Any) -> None:  # type: ignore[override]
        if not self.watches:
            raise NotImplementedError
        super().add_reader(*given)


def test_where_no_file_can_be_watched_the_timer_is_the_loops_and_no_file_stays_open() -> None:
    with closing(WatchesNothing()) as loop:
        loop.watches = False
        before = sorted(os.listdir("/dev/fd"))
        made = exact_timer(loop, lambda: None)
        assert type(made) is _LoopTimer
        assert sorted(os.listdir("/dev/fd")) == before


def test_where_the_system_has_no_such_timers_the_timer_is_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """What a system without `timerfd_create` has."""

        def __init__(self, *_: object, **__: object) -> None:
            pass

    monkeypatch.setattr("ctypes.CDLL", Library)
    with closing(asyncio.new_event_loop()) as loop:
        assert type(exact_timer(loop, lambda: None)) is _LoopTimer


def test_a_program_that_a_hook_starts_does_not_inherit_the_file() -> None:
    async def use(made: ExactTimer, rings: Rings) -> None:
        assert isinstance(made, _TimerFile)
        assert not os.get_inheritable(made._file)

    run(uvloop.new_event_loop, _TimerFile, use)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=30))
def test_pauses_end_in_the_order_of_their_times(steps: list[tuple[int, int]]) -> None:
    now = 0
    pauses: Pauses[int] = Pauses(lambda: now)
    waiting: list[tuple[int, int]] = []
    for number, (delay_us, passes_us) in enumerate(steps):
        pauses.begin(delay_us, -number)  # those of one time keep their order, whatever they are
        waiting.append((now + delay_us * 1_000, number))
        now += passes_us * 1_000
        due = sorted(one for one in waiting if one[0] <= now)
        waiting = sorted(one for one in waiting if one[0] > now)
        assert pauses.ended() == [-number for _, number in due]
        assert pauses.left_s() == ((waiting[0][0] - now) / 1e9 if waiting else None)


def test_pauses_are_of_the_clock_that_nobody_sets() -> None:
    assert inspect.signature(Pauses).parameters["clock_ns"].default is time.monotonic_ns


def test_what_is_left_of_a_pause_that_is_over_is_not_more_than_nothing() -> None:
    now = 0
    pauses: Pauses[str] = Pauses(lambda: now)
    pauses.begin(10, "over")
    now = 20_000
    assert pauses.left_s() == -0.000_01
