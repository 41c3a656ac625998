"""However a run ends, it leaves no file open and no thread, and closes what the user made; from a sleep it ends at once."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import uvloop

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.errors import Fenced, HookExited, PipelineFailed, SourceError, StoreUnavailable
from millwheel.host import alphabet as he
from millwheel.host.requests import StillOwned
from millwheel.ids import IntervalId
from millwheel.ports import MarkWrite
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.shell import Shell, wall_clock_us
from millwheel.source import SourcePartition
from millwheel.transport.local import LocalTransport
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Tap

HOUR_US = 3_600_000_000
LIMIT_S = 60
words = Stream("words", TextCoder())


class Sleeper:
    """A host that wants to be woken in an hour, unless it fails at its start or after a short sleep."""

    name = "sleeper"

    def __init__(self, fails: type[he.HostEvent] | None = None, wakes_in_us: int = HOUR_US) -> None:
        self._fails = fails
        self._wakes_in_us = wakes_in_us
        self.ticks = 0

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        if type(event) is self._fails:
            raise SourceError("it cannot go on")
        if type(event) is he.Tick:
            self.ticks += 1
            return [he.Ended()]
        return [he.WakeAt(now + self._wakes_in_us)] if type(event) is he.Started else []


def shell_of(host: Sleeper, clock: Callable[[], int] = wall_clock_us) -> Shell:
    return Shell(store=MemoryStore(), transport=LocalTransport(), others=[host], clock=clock)


Act = Callable[[Shell, "asyncio.Task[None]"], Any]
ENDS: dict[str, tuple[Sleeper, Act]] = {
    "a host fails at its start": (Sleeper(he.Started), lambda shell, task: None),
    "a host fails after a sleep": (Sleeper(he.Tick, 1_000), lambda shell, task: None),
    "a host says so": (Sleeper(wakes_in_us=1_000), lambda shell, task: None),
    "stop": (Sleeper(), lambda shell, task: shell.stop()),
    "fail": (Sleeper(), lambda shell, task: shell.fail(SourceError("it cannot go on"))),
    "cancel": (Sleeper(), lambda shell, task: task.cancel()),
}


@pytest.mark.parametrize("how", ENDS)
def test_no_file_stays_open_and_no_thread_goes_on_however_a_run_ends(how: str) -> None:
    host, act = ENDS[how]

    async def main() -> None:
        before, threads = sorted(os.listdir("/dev/fd")), {*threading.enumerate()}
        shell = shell_of(host)
        task = asyncio.ensure_future(shell.serve())
        await asyncio.sleep(0.05)
        act(shell, task)
        await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), LIMIT_S)
        assert sorted(os.listdir("/dev/fd")) == before
        assert {*threading.enumerate()} <= threads

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@pytest.mark.parametrize(
    ("end", "error"),
    [(lambda shell: shell.stop(), None), (lambda shell: shell.fail(SourceError("the lease")), "the lease")],
    ids=["stop", "fail"],
)
def test_another_thread_ends_a_run_that_sleeps_at_once(end: Callable[[Shell], None], error: str | None) -> None:
    """A sleep lasts a second at most, so a call that wakes nobody would be heard in the end; it is not to wait for that."""

    async def once() -> float:
        shell = shell_of(Sleeper())
        task = asyncio.ensure_future(shell.serve())
        await asyncio.sleep(0.02)
        began = time.monotonic()
        thread = threading.Thread(target=end, args=(shell,))
        thread.start()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        thread.join()
        assert (None if found is None else str(found)) == error
        return time.monotonic() - began

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert min(runner.run(once()) for _ in range(4)) < 0.5


def test_the_first_error_is_the_one_that_is_told() -> None:
    async def main() -> None:
        shell = shell_of(Sleeper())
        shell.fail(SourceError("first"))
        shell.fail(SourceError("second"))
        await shell.serve()

    with pytest.raises(SourceError, match="first"):
        asyncio.run(main())


def test_a_stop_and_a_failure_after_the_loop_has_ended_are_no_errors() -> None:
    shell = shell_of(Sleeper(wakes_in_us=1_000))
    asyncio.run(shell.serve())
    shell.stop()
    shell.fail(SourceError("too late"))
    assert not shell.stopped


def test_a_host_is_woken_soon_after_the_wall_clock_was_set_forward() -> None:
    forward_us = 0
    host = Sleeper()

    async def main() -> None:
        nonlocal forward_us
        task = asyncio.ensure_future(shell_of(host, lambda: wall_clock_us() + forward_us).serve())
        await asyncio.sleep(0.02)
        forward_us = 2 * HOUR_US
        await asyncio.wait_for(task, 20)  # it looks once a second

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert host.ticks == 1


class Noted(Computation[str]):
    calls: list[str]

    def setup(self) -> None:
        self.calls.append("setup")

    def teardown(self) -> None:
        self.calls.append("teardown")

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.calls.append("record")


def noted(source: Any, store: MemoryStore | None = None, made: type[Noted] = Noted) -> tuple[EmbeddedRun, list[str]]:
    calls: list[str] = []
    pipeline = Pipeline("noted")
    pipeline.inject(source, into=words)
    computation: Any = type("Made", (made,), {"calls": calls})
    pipeline.add(computation, [subscribe(words, str)])
    return EmbeddedRun(pipeline.graph(), store or MemoryStore(), pipeline.tables), calls


def test_a_run_that_was_stopped_before_it_began_makes_nothing() -> None:
    run, calls = noted(IterableSource("text", [("a", 1)]))
    run.stop()
    asyncio.run(run.run())
    assert (run.stopped, calls) == (True, [])


class Gone(Tap):
    """It fails in its second search."""

    def __init__(self) -> None:
        super().__init__("text", [("a", 1)], promise=1)
        self.looks = 0

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        self.looks += 1
        if self.looks > 1:
            raise SourceError("the directory is gone")
        return super().discover(known)

    def complete(self) -> bool:
        return False


def test_a_run_that_fails_tears_down_what_it_has_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millwheel.limits.DISCOVER_DELAY_US", 20_000)
    run, calls = noted(Gone())
    with pytest.raises(SourceError, match="the directory is gone"):
        asyncio.run(run.run())
    assert (calls[0], calls[-1], calls.count("teardown")) == ("setup", "teardown", 1)


class Farewell(MemoryStore):
    """It notes last words, or does with them what `answers` says."""

    def __init__(self, answers: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.answers = answers
        self.marked = 0

    async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
        self.marked += 1
        if self.answers is not None:
            await self.answers()
        return await super().mark(writes)


async def away() -> None:
    raise StoreUnavailable("it is away")


async def taken() -> None:
    raise Fenced("others have it")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("answers", [away, taken, never])
def test_a_run_ends_in_order_though_the_store_takes_no_last_words(
    answers: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.runtime.shell.LAST_WORDS_LIMIT_S", 0.05)
    store = Farewell()
    run, calls = noted(Tap("text", [("a", 1)], promise=1), store)

    async def main() -> None:
        task = asyncio.ensure_future(run.run())
        while "record" not in calls:
            await asyncio.sleep(0.005)
        store.answers = answers
        run.stop()
        await asyncio.wait_for(task, LIMIT_S)

    asyncio.run(main())
    assert (run.stopped, calls[-1], store.marked > 0) == (True, "teardown", True)


class Exits(Noted):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.calls.append("record")
        sys.exit(3)


def test_a_process_whose_hook_has_ended_it_says_no_last_words() -> None:
    """So the next one suspects what it was doing."""
    store = Farewell()
    run, calls = noted(IterableSource("text", [("a", 1)]), store, Exits)
    with pytest.raises(HookExited, match=r"sys.exit\(3\)"):
        asyncio.run(run.run())
    assert (calls[-1], store.marked) == ("teardown", 0)


def test_a_call_that_the_store_does_not_answer_is_given_up_at_the_end() -> None:
    class Silent(MemoryStore):
        async def still_owned(self, owners: Any) -> set[IntervalId]:
            try:
                await never()
            finally:
                await asyncio.sleep(0.01)  # it has something to put in order
            return set()

    class Asking(Sleeper):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            asked: list[he.HostEffect] = [he.Ask(1, StillOwned({}))] if type(event) is he.Started else []
            return [*asked, *super().handle(event, now)]

    async def main() -> None:
        shell = Shell(store=Silent(), transport=LocalTransport(), others=[Asking(wakes_in_us=1_000)])
        await asyncio.wait_for(shell.serve(), LIMIT_S)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


class TornDown(Noted):
    def teardown(self) -> None:
        raise OSError("the model is gone")


def test_a_teardown_that_fails_is_an_error_of_a_run_that_has_no_other_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = noted(IterableSource("text", [("a", 1)]), made=TornDown)
    with pytest.raises(
        PipelineFailed, match="the teardown of computation 'Made' has failed: OSError: the model is gone"
    ):
        asyncio.run(run.run())
    assert not caplog.records
    run, _ = noted(Tap("text", [("a", 1)], promise=1), made=TornDown)

    async def stopped() -> None:
        task = asyncio.ensure_future(run.run())
        await asyncio.sleep(0.1)
        run.stop()
        await asyncio.wait_for(task, LIMIT_S)

    asyncio.run(stopped())
    run, _ = noted(Gone(), made=TornDown)
    monkeypatch.setattr("millwheel.limits.DISCOVER_DELAY_US", 20_000)
    with pytest.raises(SourceError, match="the directory is gone"):
        asyncio.run(run.run())
    said = [text for text in caplog.messages if "the model is gone" in text]
    assert len(said) == 2
