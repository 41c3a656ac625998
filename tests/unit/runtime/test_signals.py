"""Signals at any place of a run: it ends, and begins nothing more."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable

import pytest

from millwheel import Computation, Context, Pipeline, Record, limits
from millwheel.ports import SourcePartition
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import Shell
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Line, Tap, lines, subscribe
from tests.unit.runtime.going_back import GoingBack
from tests.unit.runtime.struck import NOWHERE, codes_of, places_of, strike

ROWS = 5

HOUR_S = 3600

TURNS = codes_of(
    Shell.serve, Shell._loop, Shell._turn, Shell._end_turn, Shell._sleep, Shell._timer_rang, Shell._give, Shell._hear,
    asyncio.Event.wait, asyncio.Event.set, asyncio.Event.clear,
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
