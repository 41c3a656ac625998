"""What the user wrote, as a host calls it: a source that a worker had, lost, and has again."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, subscribe
from millwheel.errors import PipelineFailed, TimestampError
from millwheel.host.alphabet import Discover, Discovery, Prepare, ReadRows, Resume, Seek
from millwheel.ids import IntervalId, ProducerId, Sequencer, SubscriptionId
from millwheel.model import SECOND
from millwheel.ports import SourcePosition
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.long_calls import LongCalls
from millwheel.runtime.usercode import UserCode
from millwheel.search import BlockingCall, Search, Unknown
from millwheel.source import Batch, Source, SourcePartition
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore
from tests.unit.runtime.drive import Tap, TapPartition, run_to_end, run_until, until

words = Stream("words", TextCoder())


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Rows(IterableSource[str]):
    """One partition, known by its name.  It notes what it may forget, and when it was looked at: whoever looks takes time."""

    def __init__(self) -> None:
        super().__init__("text", [("a", 1)], record_id=self.id_of)
        self.released: list[str] = []
        self.now = 0
        self.looked_at: list[int] = []

    def look(self) -> None:
        self.now += 5
        self.looked_at.append(self.now)
        self.now += 5

    def id_of(self, value: str) -> str:
        self.look()
        return value

    def discover(self, known: Iterable[str]) -> list[SourcePartition[str]]:
        self.look()
        return [found for found in IterableSource("text", [("a", 1)]).discover(()) if found.name not in known]

    def search(self, known: set[str]) -> Search:
        return Source.search(self, known)

    def release(self, name: str) -> None:
        self.released.append(name)


def code_of(source: Rows) -> UserCode:
    pipeline = Pipeline("searched")
    pipeline.inject(source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    return UserCode(graph=pipeline.graph(), tables={}, clock=lambda: source.now)


def searched(code: UserCode, earlier: tuple[SourcePosition, ...] | None, name: str = "text") -> Discovery:
    """One search, of a source of which nothing is finished."""
    step = code.discover(Discover(name, earlier))
    while not isinstance(step, Discovery):
        assert isinstance(step, BlockingCall | Unknown)
        answer = code.block(name, step) if isinstance(step, BlockingCall) else {*step.signs}
        step = code.seek(Seek(name, answer))
    return step


def found(code: UserCode, earlier: tuple[SourcePosition, ...] | None) -> dict[str, bytes]:
    return dict(searched(code, earlier).found)


def test_a_source_that_a_worker_has_again_is_searched_as_if_for_the_first_time() -> None:
    code = code_of(Rows())
    names = [[*found(code, earlier)] for earlier in ((), None, None, (), None)]
    assert names == [["rows"], [], [], ["rows"], []]


@pytest.mark.parametrize("finished", [True, False])
def test_a_source_may_forget_what_is_finished_and_not_what_another_worker_goes_on_with(finished: bool) -> None:
    source, interval = Rows(), IntervalId(3)
    code = code_of(source)
    position = SourcePosition("rows", interval, ProducerId(5), 0, False, found(code, ())["rows"])
    code.resume(Resume("text", "rows", position))
    code.release(interval, finished)
    assert (source.released, code.partitions) == (["rows"] if finished else [], {})


def test_a_search_and_a_read_say_when_they_began_and_not_when_they_ended() -> None:
    """What was written meanwhile may not have been seen, so silence counts up to the begin."""
    source = Rows()
    code = code_of(source)
    code.prepare(Prepare({"Keep<words": SubscriptionId(1)}))
    assert (searched(code, ()).asked_at, source.looked_at) == (0, [5])
    interval = IntervalId(3)
    position = SourcePosition("rows", interval, ProducerId(5), 0, False, found(code, ())["rows"])
    code.resume(Resume("text", "rows", position))
    began = source.now
    arrived = code.read(ReadRows(interval, Sequencer(1), 10, None))
    assert (arrived.asked_at, arrived.rows.count, source.looked_at[-1]) == (began, 1, began + 5)


class Broken(IterableSource[str]):
    """A source whose method or whose partition's method `broken` raises, or gives what `gives` says."""

    def __init__(self, broken: str, gives: object = None) -> None:
        super().__init__("text", [("a", 1)])
        self._broken, self._gives = broken, gives

    def discover(self, known: Iterable[str]) -> list[SourcePartition[str]]:
        return [breaking(partition, self._broken, self._gives) for partition in super().discover(known)]


def breaking(it: Any, broken: str, gives: object) -> Any:
    """`it`, in which the method `broken` is another one."""

    def method(*_: object) -> object:
        if gives is None:
            raise OSError("the disk is gone")
        return gives

    if hasattr(it, broken):
        setattr(it, broken, method)
    return it


def test_every_teardown_is_called_and_the_first_that_fails_is_said() -> None:
    ended: list[str] = []

    class Ends(Keep):
        name = ""

        def teardown(self) -> None:
            ended.append(self.name)
            if self.name != "second":
                raise OSError(f"the {self.name} file is gone")

    pipeline = Pipeline("ends")
    pipeline.inject(IterableSource("text", []), into=words)
    for name in ("first", "second", "third"):
        made: Any = type(name, (Ends,), {"name": name})
        pipeline.add(made, [subscribe(words, str)])
    code = UserCode(graph=pipeline.graph(), tables={}, clock=lambda: 0)
    code.prepare(Prepare({f"{name}<words": SubscriptionId(n) for n, name in enumerate(("first", "second", "third"))}))
    with pytest.raises(
        PipelineFailed, match="teardown of computation 'first' has failed: OSError: the first file is gone"
    ):
        code.close()
    assert ended == ["first", "second", "third"]


def test_a_partition_that_was_ended_before_it_was_opened_is_released_without_a_word() -> None:
    code_of(Rows()).release(IntervalId(3))


OF_A_SOURCE = ["search", "complete", "pending_watermark", "rejections", "release"]
OF_A_PARTITION = ["fingerprint", "resume", "watermark", "read", "finished", "close"]


def ran(broken: str, gives: object = None) -> None:
    source = Broken(broken, gives)
    pipeline = Pipeline("broken")
    pipeline.inject(breaking(source, broken, gives) if broken in OF_A_SOURCE else source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    run_to_end(pipeline, MemoryStore())


@pytest.mark.parametrize("broken", OF_A_SOURCE + OF_A_PARTITION)
def test_whatever_fails_in_a_source_is_said_with_its_name(broken: str) -> None:
    with pytest.raises(PipelineFailed, match="source 'text' has failed: OSError: the disk is gone") as failed:
        ran(broken)
    assert "test_usercode.py" in failed.value.trace


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (
            "pending_watermark",
            r"pending_watermark of source 'text' at 'soon' \(str\): a time is an int of microseconds",
        ),
        ("watermark", r"watermark of 'rows' at 'soon' \(str\): a time is an int of microseconds"),
    ],
)
def test_a_promise_that_is_no_time_is_refused(broken: str, says: str) -> None:
    with pytest.raises(TimestampError, match=says):
        ran(broken, "soon")


class Serving(Tap):
    """Its partition lets clients in until it fails, or until rows are durable and it cannot take that."""

    def __init__(self, broken: str) -> None:
        super().__init__("served", [("a", 1)], promise=1)
        self.served = True
        self.broken = broken

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        return [] if "tap" in set(known) else [ServingPartition(self)]


class ServingPartition(TapPartition):
    def __init__(self, tap: Serving) -> None:
        super().__init__(tap)
        self._broken = tap.broken

    async def serve(self) -> None:
        if self._broken == "serve":
            raise OSError("the port is gone")
        await asyncio.Event().wait()

    def kept(self, position: int) -> None:
        if self._broken == "kept":
            raise OSError("the port is gone")


@pytest.mark.parametrize("broken", ["serve", "kept"])
def test_what_fails_while_clients_are_served_is_said_with_the_source(broken: str) -> None:
    pipeline = Pipeline("served")
    pipeline.inject(Serving(broken), into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    with pytest.raises(PipelineFailed, match="source 'served' has failed: OSError: the port is gone"):
        run_until(pipeline, MemoryStore(), lambda run: False)


class Brief(ServingPartition):
    """Ends with its row, while clients are let in."""

    def __init__(self, tap: Serving, left: asyncio.Event) -> None:
        super().__init__(tap)
        self._left = left

    async def serve(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._left.set()


class Waiting(TapPartition):
    """Ends when no client is let in by the other one any more."""

    def __init__(self, tap: Tap, left: asyncio.Event) -> None:
        super().__init__(tap)
        self._left = left

    def finished(self) -> bool:
        return self._left.is_set()


def test_no_client_is_let_in_by_a_partition_that_is_released() -> None:
    served, waiting, left = Serving(""), Tap("other"), asyncio.Event()
    served.discover = lambda known: [] if "tap" in set(known) else [Brief(served, left)]  # type: ignore[method-assign]
    waiting.discover = lambda known: [] if "tap" in set(known) else [Waiting(waiting, left)]  # type: ignore[method-assign]
    served.closed = True
    pipeline = Pipeline("served")
    pipeline.inject(served, into=words)
    pipeline.inject(waiting, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    run = until(pipeline, MemoryStore(), lambda run: left.is_set())
    asyncio.run(asyncio.wait_for(run, 60))


class Announcing(Tap):
    """Its partition says when it has rows, in another thread or in that of the run."""

    announces = True

    def __init__(self, threaded: bool) -> None:
        super().__init__("announced", promise=1)
        self.threaded = threaded
        self.wake: Callable[[], None] | None = None
        self.looks = 0

    def discover(self, known: Iterable[str]) -> list[SourcePartition]:
        return [] if "tap" in set(known) else [AnnouncingTap(self)]

    async def bring(self, count: int) -> None:
        """Say of each row that it is there: mostly of several before the first one is read."""
        assert self.wake is not None
        for number in range(count):
            self.rows.append((f"row {number}", 1))
            if self.threaded:
                await asyncio.to_thread(self.wake)
            else:
                self.wake()


class AnnouncingTap(TapPartition):
    def __init__(self, tap: Announcing) -> None:
        super().__init__(tap)
        self._announcing = tap

    def announce_to(self, wake: Callable[[], None]) -> None:
        self._announcing.wake = wake

    def read(self, limit: int) -> Batch | None:
        self._announcing.looks += 1
        return super().read(limit)


def run_of(source: Source) -> EmbeddedRun:
    """A run whose only source this is."""
    pipeline = Pipeline("announced")
    pipeline.inject(source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    return EmbeddedRun(pipeline.graph(), MemoryStore(), pipeline.tables)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_partition_that_says_when_it_has_rows_is_read_then_and_not_looked_at_before(
    threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millwheel.core.source.injector.ANNOUNCED_POLL_US", 3_600 * SECOND)
    source = Announcing(threaded)

    async def main() -> None:
        run = run_of(source)
        running = asyncio.ensure_future(run.run())
        async with asyncio.timeout(60):
            while source.looks < 1:
                await asyncio.sleep(0.001)
            for rows in (3, 6):
                await asyncio.sleep(0.03)
                await source.bring(3)
                while run.progress().records < rows:
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.03)
            source.closed = True
            assert source.wake is not None
            source.wake()
            await running
        source.wake()  # nobody listens any more

    asyncio.run(main())
    assert source.wake is not None
    source.wake()
    assert source.looks <= 12, "it is looked at when it says so, and not more often"


def listening(source: Announcing) -> None:
    """Its partition is opened, and asked to say when it has rows if it is one that does."""
    pipeline = Pipeline("announced")
    pipeline.inject(source, into=words)
    pipeline.add(Keep, [subscribe(words, str)])
    code = UserCode(graph=pipeline.graph(), tables={}, clock=lambda: 0)
    ((name, fingerprint),) = searched(code, (), source.name).found
    position = SourcePosition(name, IntervalId(3), ProducerId(5), 0, False, fingerprint)
    code.resume(Resume(source.name, name, position))
    code.listen(IntervalId(3), lambda: None)


@pytest.mark.parametrize(("announces", "pace", "asked"), [(True, None, True), (False, None, False), (True, 2.0, False)])
def test_a_partition_is_asked_to_say_when_it_has_rows_if_its_source_does_and_is_no_replay(
    announces: bool, pace: float | None, asked: bool
) -> None:
    source = Announcing(False)
    source.announces, source.pace = announces, pace
    listening(source)
    assert (source.wake is not None) == asked


def test_a_partition_that_fails_when_it_is_asked_to_say_when_it_has_rows_is_said_with_its_source() -> None:
    source = Announcing(False)
    mute = breaking(AnnouncingTap(source), "announce_to", None)
    source.discover = lambda known: [mute]  # type: ignore[method-assign]
    with pytest.raises(PipelineFailed, match="source 'announced' has failed: OSError: the disk is gone"):
        listening(source)


@pytest.mark.parametrize("threaded", [False, True])
def test_a_run_that_rests_is_woken_by_what_is_announced(threaded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when it has something else to do.  A loop that is debugged lets no other thread touch it."""
    monkeypatch.setattr("millwheel.core.source.injector.ANNOUNCED_POLL_US", 3_600 * SECOND)
    source = Announcing(threaded)
    waited_s: list[float] = []

    async def main() -> None:
        run = run_of(source)
        running = asyncio.ensure_future(run.run())
        async with asyncio.timeout(60):
            while source.looks < 1:
                await asyncio.sleep(0.001)
            for _ in range(5):
                await asyncio.sleep(0.05)
                looks, began = source.looks, time.monotonic()
                await source.bring(1)
                while source.looks == looks:
                    await asyncio.sleep(0)
                waited_s.append(time.monotonic() - began)
            source.closed = True
            assert source.wake is not None
            source.wake()
            await running

    asyncio.run(main(), debug=threaded)
    assert min(waited_s) < 0.1
    assert source.wake is not None
    with ThreadPoolExecutor() as late:
        late.submit(source.wake).result()  # nobody listens any more, and the loop is closed


def test_rows_that_are_announced_before_anybody_reads_cost_one_event() -> None:
    source = Announcing(False)

    async def main() -> int:
        run = run_of(source)
        running = asyncio.ensure_future(run.run())
        async with asyncio.timeout(60):
            while source.looks < 1:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.03)
            await source.bring(1_000)
            queued = len(run._queue)
            source.closed = True
            await running
        assert run.progress().records == 1_000
        return queued

    assert asyncio.run(main()) <= 2


class Slow(Keep):
    def has_room(self) -> bool:
        time.sleep(1)
        return True


def test_a_computation_that_takes_long_to_say_whether_it_has_room_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LongCalls.__init__, "__defaults__", (0.2,))
    pipeline = Pipeline("slow")
    pipeline.inject(IterableSource("text", [("a", 1)]), into=words)
    pipeline.add(Slow, [subscribe(words, str)])
    with caplog.at_level(logging.WARNING, "millwheel"):
        run_to_end(pipeline, MemoryStore())
    assert any(
        re.match(r"Slow.has_room has run for \d s, and is at .*test_usercode.py", text) for text in caplog.messages
    )
