"""Signals at any place of a run: it ends, and begins nothing more."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from millwheel import Computation, Context, Pipeline, Record, interrupts, limits
from millwheel.__main__ import _lose_no_interrupt
from millwheel.errors import HookInterrupted
from millwheel.ids import IntervalId
from millwheel.ports import MarkWrite, SourcePartition
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import Shell
from millwheel.runtime.signals import SIGNALS, StopSignals, signals_stop
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Line, Tap, lines, subscribe
from tests.unit.runtime.going_back import GoingBack
from tests.unit.runtime.struck import NOWHERE, codes_of, places_of, strike

ROWS = 5

HOUR_S = 3600

TURNS = codes_of(
    Shell.serve, Shell._loop, Shell._turn, Shell._end_turn, Shell._sleep, Shell._timer_rang, Shell._give, Shell._hear,
    Shell._rouse,
)  # fmt: skip
"""What a run goes through again and again, and what it sleeps on."""


def idle(computation: type[Computation[Line]], source: type[Tap] = Tap) -> EmbeddedRun:
    """A run of a few records, that then waits for more."""
    tap = source(rows=[(Line("a", [("b", place)]), place) for place in range(ROWS)])
    pipeline = Pipeline("p")
    pipeline.inject(tap, into=lines)
    pipeline.add(computation, [subscribe(lines, lambda line: line.name)])
    return EmbeddedRun(pipeline.graph(), MemoryStore(), pipeline.tables)


def all_done(run: EmbeddedRun) -> Callable[[], bool]:
    return lambda: run.progress().records == ROWS


class Pass(Computation[Line]):
    def ProcessRecord(self, context: Context, record: Record[Line]) -> None:
        """Nothing."""


def test_a_signal_at_any_line_of_a_turn_ends_the_run() -> None:
    # Between a look whether somebody has woken it and its sleep, a signal once woke nobody, and no other could.
    found = idle(Pass)
    places = places_of(found, TURNS, all_done(found))
    assert len(places) > 40
    told = []
    for place in places:
        run = idle(Pass)
        struck = strike(run, TURNS, place, all_done(run), signal.SIGINT)
        assert struck.ended, f"a signal at {place} is lost"
        assert struck.stopped
        told += [place] * struck.struck
    assert len(told) > len(places) / 2


def test_nothing_of_the_user_begins_after_a_signal() -> None:
    # What hangs is interrupted if it runs when the signal comes.  What began after it had nobody who would.
    running: list[EmbeddedRun] = []
    late: list[str] = []

    def begins(what: str) -> None:
        if running[-1].stopped:
            late.append(what)

    class Telling(Computation[Line]):
        def setup(self) -> None:
            begins("setup")

        def ProcessRecord(self, context: Context, record: Record[Line]) -> None:
            begins("a hook")

    class Source(Tap):
        def discover(self, known: Iterable[str]) -> list[SourcePartition]:
            begins("a search")
            return super().discover(known)

    def made() -> EmbeddedRun:
        running.append(idle(Telling, Source))
        return running[-1]

    found = made()
    for place in places_of(found, TURNS, all_done(found)):
        run = made()
        assert strike(run, TURNS, place, all_done(run), signal.SIGTERM).ended
        assert not late, f"after a signal at {place}"


def test_a_search_that_was_asked_for_does_not_begin_after_a_stop() -> None:
    # It runs in a thread, which the loop starts in its next turn.  The stop may come before that.
    late: list[str] = []

    class Stopping(EmbeddedRun):
        def _end_turn(self) -> None:
            super()._end_turn()
            if self._blocking:
                self.stop()

    class Source(Tap):
        def discover(self, known: Iterable[str]) -> list[SourcePartition]:
            late.append("a search")
            return super().discover(known)

    run = Stopping(idle(Pass, Source).worker.graph, MemoryStore(), {})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(run.run(), 20))
    assert run.stopped
    assert not late


def test_a_signal_while_a_run_goes_back_ends_it() -> None:
    back = codes_of(EmbeddedRun.run, Shell._close, Shell.serve)
    found = GoingBack()
    places = places_of(found.run, back, found.feed)
    assert len(places) > 10
    for place in places:
        going = GoingBack()
        struck = strike(going.run, back, place, going.feed, signal.SIGINT)
        assert struck.ended, f"a signal at {place} is lost"
        assert struck.stopped


def hang(caught: list[str]) -> None:
    """Go on after what interrupts it, twice: some libraries catch everything."""
    for _ in range(2):
        try:
            time.sleep(HOUR_S)
        except KeyboardInterrupt:
            caught.append("it")
    time.sleep(HOUR_S)


@pytest.mark.parametrize("where", ["hook", "teardown"])
def test_user_code_that_hangs_after_a_signal_is_interrupted_until_it_ends(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(limits, "STOP_GRACE_S", 0.2)
    caught: list[str] = []

    class Hanging(Computation[Line]):
        def teardown(self) -> None:
            if where == "teardown":
                hang(caught)

        def ProcessRecord(self, context: Context, record: Record[Line]) -> None:
            if where == "hook":
                signal.raise_signal(signal.SIGTERM)
                hang(caught)

    run = idle(Hanging)

    def told() -> bool:
        """Called between turns, where no user code runs."""
        if all_done(run)():
            signal.raise_signal(signal.SIGTERM)
        return run.stopped

    assert strike(run, {}, NOWHERE, told, signal.SIGTERM).ended
    assert caught == ["it", "it"]


class Told:
    """A run that is told to stop, and the user code that it says it runs."""

    def __init__(self, user_call: object = None) -> None:
        self.user_call = user_call
        self.stops = 0

    def stop(self) -> None:
        self.stops += 1


def test_only_ctrl_c_ends_a_process_at_once_and_only_the_third(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    run = Told()
    signals = StopSignals(run)
    for number in (*[signal.SIGTERM] * 5, signal.SIGINT, signal.SIGINT):
        signals.handle(number, None)
    assert (ended, run.stops) == ([], 1)
    signals.handle(signal.SIGINT, None)
    signals.over()
    assert (ended, run.stops) == ([130], 1)


def test_what_interrupts_a_hook_that_hangs_is_no_press_and_later_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STOP_GRACE_S", 0.05)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    run = Told("a hook")
    with signals_stop(run):
        signal.raise_signal(signal.SIGTERM)
        for _ in range(4):
            with pytest.raises(HookInterrupted):
                time.sleep(HOUR_S)
        run.user_call = None
        assert ended == []
        for _ in range(limits.STOP_PRESSES):
            signal.raise_signal(signal.SIGINT)
    assert ended == [130]


@pytest.mark.parametrize(
    ("lost", "sent"),
    [
        (KeyboardInterrupt(), [signal.SIGINT]),
        (KeyboardInterrupt(15), [signal.SIGTERM]),
        (HookInterrupted(), []),  # it is raised again, and as Ctrl-C it would count
        (ValueError(), []),
    ],
)
def test_a_signal_whose_exception_python_ignores_is_sent_again(
    monkeypatch: pytest.MonkeyPatch, lost: BaseException, sent: list[signal.Signals]
) -> None:
    others: list[object] = []
    came = SimpleQueue[int]()
    monkeypatch.setattr(sys, "unraisablehook", others.append)
    monkeypatch.setattr(os, "kill", lambda process, number: came.put(number))
    _lose_no_interrupt(signal.SIGINT)
    ignored: Any = SimpleNamespace(exc_value=lost)
    sys.unraisablehook(ignored)
    assert [came.get(timeout=60) for _ in sent] == sent
    assert others == ([] if sent else [ignored])


def test_a_run_whose_process_was_told_before_it_began_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_came", [])
    early = Told()
    with signals_stop(early):
        assert not early.stops
    interrupts.note(signal.SIGTERM)
    late = Told()
    with signals_stop(late):
        assert late.stops == 1


def test_nothing_is_interrupted_while_no_user_code_runs_and_handlers_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "STOP_GRACE_S", 0.05)
    before = [signal.getsignal(number) for number in SIGNALS]
    came: list[int] = []
    with signals_stop(Told()):
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
        time.sleep(0.3)
    assert came == []
    assert [signal.getsignal(number) for number in SIGNALS] == before


class LastWords(MemoryStore):
    """Notes how many intervals say at the end of a run that nothing is under suspicion; then it may hang."""

    def __init__(self, hangs: bool) -> None:
        super().__init__()
        self.hangs = hangs
        self.said: list[int] = []

    async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
        if all(write.mark == b"" and write.ends == 0 for write in writes):
            self.said.append(len(writes))
            if self.hangs:
                await asyncio.sleep(HOUR_S)
        return await super().mark(writes)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_run_whose_hook_was_interrupted_has_last_words_and_does_not_wait_long_for_them(
    monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """Otherwise the next run would suspect the record that it was stopped at."""
    monkeypatch.setattr(limits, "STOP_GRACE_S", 0.1)
    monkeypatch.setattr("millwheel.runtime.shell.LAST_WORDS_LIMIT_S", 0.1)

    class Hanging(Computation[Line]):
        def ProcessRecord(self, context: Context, record: Record[Line]) -> None:
            signal.raise_signal(signal.SIGTERM)
            time.sleep(HOUR_S)

    store = LastWords(hangs)
    pipeline = Pipeline("p")
    pipeline.inject(Tap(rows=[(Line("a", [("b", 0)]), 0)]), into=lines)
    pipeline.add(Hanging, [subscribe(lines, lambda line: line.name)])

    async def main() -> None:
        async with asyncio.timeout(60):
            run = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
            with signals_stop(run):
                await run.run()

    asyncio.run(main())
    assert store.said == [1]
