"""Runs that a signal strikes at a place of the code, one run for each place: without the luck that a race needs."""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import uvloop

from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.signals import signals_restored, signals_stop

END_LIMIT_S: Final = 20.0
"""A run that was told to stop and goes on for so long has not heard it."""


class Place(NamedTuple):
    """The `turn`-th time that a line runs."""

    function: str
    line: int
    turn: int


NOWHERE: Final = Place("", 0, 0)
"""For a run that gets its signal from elsewhere."""


def codes_of(*functions: Callable[..., Any]) -> dict[CodeType, str]:
    """What to strike in."""
    return {inspect.unwrap(function).__code__: function.__qualname__ for function in functions}


@contextmanager
def traced(codes: dict[CodeType, str], at_line: Callable[[Place], None]) -> Iterator[None]:
    """Call `at_line` before each line of `codes` that runs in this thread."""
    turns: Counter[tuple[str, int]] = Counter()

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            here = codes[frame.f_code], frame.f_lineno
            turns[here] += 1
            at_line(Place(*here, turns[here]))
        return line

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: line if frame.f_code in codes else None)
    try:
        yield
    finally:
        sys.settrace(before)


class Struck(NamedTuple):
    """What became of a run."""

    struck: bool
    ended: bool
    stopped: bool


def strike(
    run: EmbeddedRun, codes: dict[CodeType, str], at: Place, until: Callable[[], bool], number: signal.Signals
) -> Struck:
    """Run, on the loop that ships, and raise the signal at a place.  A run that does not end then is cancelled.

    A run that has come as far as `until`, and not to the place, is told to stop.
    """
    struck = False

    def at_line(place: Place) -> None:
        nonlocal struck
        if place == at and not struck:
            struck = True
            signal.raise_signal(number)

    async def main() -> bool:
        loop = asyncio.get_running_loop()
        with signals_stop(run):
            running = loop.create_task(run.run())
            while not running.done() and not struck and not until():
                await asyncio.sleep(0.005)
            if not struck:
                run.stop()
            done, _ = await asyncio.wait([running], timeout=END_LIMIT_S)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return bool(done)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, signals_restored(), traced(codes, at_line):
        ended = runner.run(main())
    return Struck(struck, ended, run.stopped)


def places_of(run: EmbeddedRun, codes: dict[CodeType, str], until: Callable[[], bool]) -> Sequence[Place]:
    """Where a run comes through until `until` holds: the first and the last turn of each line."""
    first: dict[tuple[str, int], Place] = {}
    last: dict[tuple[str, int], Place] = {}

    there = False

    def at_line(place: Place) -> None:
        if not there:
            first.setdefault(place[:2], place)
            last[place[:2]] = place

    async def main() -> None:
        nonlocal there
        running = asyncio.ensure_future(run.run())
        while not until():
            await asyncio.sleep(0.005)
            assert not running.done()
        there = True
        run.stop()
        await running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, traced(codes, at_line):
        runner.run(main())
    return sorted({*first.values(), *last.values()})
