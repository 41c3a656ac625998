"""The asyncio shell, with small hosts that note what they hear."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from millwheel import Computation, Context, JsonCoder, Pipeline, Record, Stream, TextCoder, ValueCell, subscribe
from millwheel.bundles import LogWrite
from millwheel.core.interval.events import CommitDone
from millwheel.errors import Fenced, InvariantError, SourceError
from millwheel.host import alphabet as he
from millwheel.host.messages import Message, Receipt
from millwheel.host.requests import StillOwned
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.limits import LONG_TURN_US, TURN_US
from millwheel.ports import MarkWrite, Opened
from millwheel.runtime.embedded import EmbeddedRun
from millwheel.runtime.exact_timers import _LoopTimer
from millwheel.runtime.shell import Shell, wall_clock_us
from millwheel.shape import PipelineShape
from millwheel.testing import Results
from millwheel.transport.local import LocalTransport
from millwheel.work import Work
from millwheel_injectors import IterableSource
from millwheel_storage.memory import MemoryStore


class Noting:
    """A host that notes its events, and answers each kind with the effects that a test gave it, once."""

    def __init__(self, name: str, **answers: list[he.HostEffect]) -> None:
        self.name = name
        self.heard: list[tuple[str, int]] = []
        """Kinds of events, and when they came, us."""
        self.events: list[he.HostEvent] = []
        self._answers = answers

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        kind = type(event).__name__
        self.heard.append((kind, now))
        self.events.append(event)
        return self._answers.pop(kind, [])

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.heard]

    def at(self, kind: str) -> int:
        return next(at for heard, at in self.heard if heard == kind)


def serve(*hosts: Noting, transport: LocalTransport | None = None) -> Shell:
    """Run them to their end, on the loop that ships."""
    shell: list[Shell] = []

    async def main() -> None:
        made = Shell(store=MemoryStore(), transport=transport or LocalTransport(), others=hosts)
        shell.append(made)
        async with asyncio.timeout(120):
            await made.serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    return shell[0]


def wake(delay_us: int) -> he.WakeAt:
    return he.WakeAt(wall_clock_us() + delay_us)


def test_hosts_hear_each_other_and_the_end_of_each_turn() -> None:
    receipt = Receipt(IntervalId(1), IntervalId(2), 3)
    one = Noting("one", Started=[he.Tell("two", receipt)])
    two = Noting("two", Received=[he.Ended()])
    serve(one, two)
    assert one.kinds()[0] == two.kinds()[0] == "Started"
    # On a slow machine the turn in which they start is over before a message is handled.
    assert next(event for event in two.events[1:] if not isinstance(event, he.TurnEnded)) == he.Received("one", receipt)


def test_progress_says_how_long_the_oldest_call_to_the_store_has_waited() -> None:
    class Away(MemoryStore):
        """It answers nothing until it is told to."""

        back = asyncio.Event()

        async def open_pipeline(self, shape: PipelineShape) -> Opened:
            await self.back.wait()
            return await super().open_pipeline(shape)

    class Keep(Computation[str]):
        def ProcessRecord(self, context: Context, record: Record[str]) -> None:
            pass

    async def main() -> None:
        store, pipeline = Away(), Pipeline("away")
        words = Stream("words", TextCoder())
        pipeline.inject(IterableSource("text", [("a", 1)]), into=words)
        pipeline.add(Keep, [subscribe(words, str)])
        run = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
        assert run.progress().store_wait_s == 0
        began = time.monotonic()
        task = asyncio.create_task(run.run())
        async with asyncio.timeout(120):
            while run.progress().store_wait_s < 0.2:
                await asyncio.sleep(0.01)
            assert time.monotonic() - began >= 0.2
            store.back.set()
            await task
        assert run.progress().store_wait_s == 0

    asyncio.run(main())


def test_all_hosts_have_started_before_the_first_turn_ends() -> None:
    class Slow(Noting):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            time.sleep(2 * TURN_US / 1e6)
            return super().handle(event, now)

    slow, other = Slow("slow"), Noting("other", TurnEnded=[he.Ended()])
    serve(slow, other)
    assert slow.kinds()[0] == other.kinds()[0] == "Started"


def test_each_host_is_woken_at_its_own_time() -> None:
    soon, later = wake(30_000), wake(60_000)
    early = Noting("early", Started=[soon, wake(20_000_000)])
    late = Noting("late", Started=[later], Tick=[he.Ended()])
    serve(early, late)
    assert early.kinds().count("Tick") == late.kinds().count("Tick") == 1
    assert soon.at <= early.at("Tick") <= late.at("Tick")
    assert later.at <= late.at("Tick")


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "loop"])
def test_a_wait_below_a_millisecond_does_not_spin(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # uvloop counts whole milliseconds and rounds: a wait of 0.4 ms was no wait, and the loop turned 30 times a millisecond.
    if not exact:
        monkeypatch.setattr("millwheel.runtime.shell.exact_timer", _LoopTimer)
    turns = 0

    class Counting(Shell):
        def _turn(self) -> None:
            nonlocal turns
            turns += 1
            super()._turn()

    waits = 200

    class Waiting(Noting):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            super().handle(event, now)
            if type(event) is he.Started or type(event) is he.Tick:
                over = self.kinds().count("Tick") >= waits
                return [he.Ended()] if over else [he.WakeAt(now + 400)]
            return []

    async def main() -> None:
        await Counting(store=MemoryStore(), transport=LocalTransport(), others=[Waiting("one")]).serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert turns < 3 * waits


def test_a_host_that_has_handled_nothing_is_not_told_that_a_turn_has_ended() -> None:
    # Another host handles something, and a timer that was left from an earlier wait wakes the loop for nothing.
    host = Noting("one", Started=[wake(5_000)], Tick=[wake(300_000)])
    other = Noting("two", Started=[wake(200_000)], Tick=[he.Ended()])

    async def main() -> None:
        shell = Shell(store=MemoryStore(), transport=LocalTransport(), others=[host, other])

        async def disturb() -> None:
            while True:
                await asyncio.sleep(0.01)
                shell._rouse()

        disturbing = asyncio.create_task(disturb())
        await shell.serve()
        disturbing.cancel()

    asyncio.run(main())
    assert host.kinds() == ["Started", "TurnEnded", "Rested", "Tick", "TurnEnded", "Rested"]
    assert other.kinds() == ["Started", "TurnEnded", "Rested", "Tick", "TurnEnded", "Rested"]


def test_a_host_rests_when_nothing_is_queued_for_any_other() -> None:
    one = Noting(
        "one", Started=[he.Ask(7, StillOwned({}))], Answered=[he.Tell("two", Receipt(IntervalId(1), IntervalId(2), 3))]
    )
    two = Noting("two", Received=[he.Ended()])
    serve(one, two)
    # An answer is a turn of its own, at whose end the message is queued.
    assert one.kinds() == ["Started", "TurnEnded", "Rested", "Answered", "TurnEnded", "Rested"]
    assert two.kinds() == ["Started", "TurnEnded", "Rested", "Received", "TurnEnded", "Rested"]


@pytest.mark.parametrize(
    ("peer", "kinds"),
    [
        ("elsewhere", ["Started", "TurnEnded", "Due", "TurnEnded", "Rested"]),
        ("two", ["Started", "Due", "TurnEnded", "Rested"]),
    ],
)
def test_what_another_process_is_told_leaves_before_hooks_run(peer: str, kinds: list[str]) -> None:
    left: list[tuple[str, list[str]]] = []

    class Far(LocalTransport):
        def tell(self, sender: str, receiver: str, message: Message) -> None:
            if receiver == "elsewhere":
                asyncio.get_running_loop().call_soon(lambda: left.append((receiver, one.kinds())))
            else:
                super().tell(sender, receiver, message)

    due = he.Due(IntervalId(1), Sequencer(1), Work([], [], {}, {}, {}, 0, 0))
    told = he.Tell(peer, Receipt(IntervalId(1), IntervalId(2), 3))
    one = Noting("one", Started=[he.Post(due), told], Rested=[he.Ended()])
    serve(one, Noting("two"), transport=Far())
    assert one.kinds() == kinds
    assert left == ([("elsewhere", ["Started", "TurnEnded"])] if peer == "elsewhere" else [])


class Committing(Noting):
    """A worker, as far as this needs one."""

    graph = SimpleNamespace(computations={}, sources={})
    more = False
    """Whether another checkpoint is ready when an answer has come."""
    waits = False
    """Whether it is not with the store yet: until the end of a turn."""

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        self.waits = (self.waits or (self.more and type(event) is he.Answered)) and type(event) is not he.TurnEnded
        return super().handle(event, now)

    def next_commit_waits(self) -> bool:
        return self.waits

    def all_committed(self) -> bool:
        return True

    def last_words(self) -> StillOwned:
        return StillOwned({})


@pytest.mark.parametrize(
    ("more", "kinds"),
    [
        (True, ["Answered", "Told", "TurnEnded", "Due", "Told", "TurnEnded", "Rested"]),
        (False, ["Answered", "Told", "Due", "Told", "TurnEnded", "Rested"]),
    ],
)
def test_what_an_answer_allows_is_done_with_it_and_hooks_wait_for_the_next_commit(more: bool, kinds: list[str]) -> None:
    told = he.Told(IntervalId(1), Sequencer(1), CommitDone(Seq(1)))
    due = he.Due(IntervalId(1), Sequencer(1), Work([], [], {}, {}, {}, 0, 0))
    one = Committing(
        "one", Started=[he.Ask(7, StillOwned({}))], Answered=[he.Post(told), he.Post(due), he.Post(told)],
        Due=[he.Ended()],
    )  # fmt: skip
    one.more = more

    async def main() -> None:
        shell = Shell(store=MemoryStore(), transport=LocalTransport(), worker=cast(Any, one))
        async with asyncio.timeout(60):
            await shell.serve()

    asyncio.run(main())
    assert one.kinds() == ["Started", "TurnEnded", "Rested", *kinds]


def test_a_pause_waits_for_what_has_come_before_its_end() -> None:
    class Slow(Noting):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            if type(event) is he.ChannelOpened:
                time.sleep(0.02)  # a turn is over after each, and the pause after the first
            return super().handle(event, now)

    opened = [he.Post(he.ChannelOpened(peer)) for peer in "xyz"]
    one = Slow("one", Started=[he.Ask(7, he.Pause(20_000)), wake(10_000)], Tick=[*opened], Answered=[he.Ended()])
    serve(one)
    assert [kind for kind in one.kinds() if kind in ("ChannelOpened", "Answered")] == [
        *["ChannelOpened"] * 3,
        "Answered",
    ]


def test_what_a_host_asks_of_the_store_is_answered() -> None:
    host = Noting("one", Started=[he.Ask(7, StillOwned({}))], Answered=[he.Ended()])
    serve(host)
    assert he.Answered(7, set()) in host.events


def test_a_failure_ends_the_run_with_its_error() -> None:
    with pytest.raises(SourceError, match="no longer"):
        serve(Noting("one", Started=[he.Failed(SourceError("no longer"))]), Noting("two"))


def test_a_stop_after_the_end_changes_nothing() -> None:
    shell = serve(Noting("one", Started=[he.Ended()]))
    shell.stop()
    assert not shell.stopped


class Cut(LocalTransport):
    """A channel that opens again when the first message is told, and that passes it after that."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[str, Any] = {}
        self.told: list[str] = []

    def attach(self, name: str, heard: Any, opened: Any) -> None:
        super().attach(name, heard, opened)
        self.opened[name] = opened

    def tell(self, sender: str, receiver: str, message: Any) -> None:
        if not self.told:
            self.opened[sender](receiver)
        self.told.append(sender)


def test_nothing_passes_between_a_cut_and_the_moment_that_the_host_has_heard_of_it() -> None:
    first, lost, last = (Receipt(IntervalId(1), IntervalId(2), number) for number in range(3))
    one = Noting(
        "one", Started=[he.Tell("two", first), he.Tell("two", lost)], ChannelOpened=[he.Tell("two", last), he.Ended()]
    )
    transport = Cut()
    serve(one, Noting("two"), transport=transport)
    assert one.kinds()[:2] == ["Started", "ChannelOpened"]
    assert transport.told == ["one", "one"]


def test_a_process_without_a_worker_has_no_user_code_and_no_progress() -> None:
    shell = serve(Noting("one", Started=[he.Ended()]))
    with pytest.raises(InvariantError, match="no worker"):
        shell.progress()
    with pytest.raises(InvariantError, match="user code"):
        serve(Noting("one", Started=[he.Release(IntervalId(3))]))


class Permitted:
    """A permit that ends after so many checks."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Fenced("the lease has run out")


@pytest.mark.parametrize(("checks", "sent"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_nothing_leaves_a_process_whose_lease_has_run_out_within_a_turn_either(checks: int, sent: int) -> None:
    one = Noting("one", Started=[he.Tell("two", Receipt(IntervalId(1), IntervalId(2), number)) for number in range(3)])
    two, transport = Noting("two"), Cut()
    transport.told.append("before")
    shell = Shell(store=MemoryStore(), transport=transport, others=[one, two], permit=Permitted(checks))
    with pytest.raises(Fenced):
        asyncio.run(shell.serve())
    assert transport.told == ["before"] + ["one"] * sent


def test_nothing_is_asked_of_the_store_without_a_lease() -> None:
    asked = 0

    class Counting(MemoryStore):
        async def still_owned(self, owners: Any) -> set[IntervalId]:
            nonlocal asked
            asked += 1
            return set()

    host = Noting("one", Started=[he.Ask(7, StillOwned({}))])
    with pytest.raises(Fenced):
        asyncio.run(Shell(store=Counting(), transport=LocalTransport(), others=[host], permit=Permitted(1)).serve())
    assert asked == 0


STOPS: Stream[str] = Stream("stops", TextCoder())


@pytest.mark.parametrize("checks", [0, 1_000])
def test_a_process_without_a_lease_says_no_last_words(checks: int) -> None:
    """Whoever has its intervals by now may suspect something."""
    marked = 0

    class Counting(MemoryStore):
        async def mark(self, writes: Sequence[MarkWrite]) -> set[IntervalId]:
            nonlocal marked
            marked += 1
            return await super().mark(writes)

    pipeline = Pipeline("stops")
    pipeline.inject(IterableSource("rows", []), into=STOPS)
    pipeline.add(Stopper, [subscribe(STOPS, str)], name="Stopper")
    worker = WorkerHost(graph=pipeline.graph())
    shell = Shell(store=Counting(), transport=LocalTransport(), worker=worker, permit=Permitted(checks))
    if checks:
        shell.stop()
    with nullcontext() if checks else pytest.raises(Fenced):
        asyncio.run(shell.serve())
    assert marked == bool(checks)


class Slow(MemoryStore):
    """Takes its time for a commit, as a database does."""

    async def commit(self, writes: Sequence[LogWrite]) -> set[tuple[IntervalId, Seq]]:
        await asyncio.sleep(0.01)
        return await super().commit(writes)


class Stopper(Computation[str]):
    """Has the run stopped by its tenth record."""

    count = ValueCell[int](JsonCoder(int), default=0)
    calls: list[str]
    stop: Callable[[], None]

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        self.calls.append(record.value)
        self.count.set(self.count.get() + 1)
        if len(self.calls) == 10:
            self.stop()


def test_what_hooks_have_done_before_a_stop_is_committed_and_no_hook_runs_after_it() -> None:
    pipeline = Pipeline("stops")
    pipeline.inject(IterableSource("rows", [(f"{n}", n) for n in range(200)]), into=STOPS)
    made: Any = type("Made", (Stopper,), {"calls": []})
    pipeline.add(made, [subscribe(STOPS, lambda _: "all")], name="Stopper", work_limit_records=1)
    store = Slow()
    run = EmbeddedRun(pipeline.graph(), store, pipeline.tables)
    made.stop = staticmethod(run.stop)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run.run())
    assert run.stopped
    assert len(made.calls) == 10
    assert Results(pipeline.graph(), store).state("Stopper", "all") == {"count": 10}


def test_an_answer_that_has_come_during_a_long_turn_is_heard_in_the_next_one() -> None:
    """The event loop reads it in one turn of its own, and whoever waits for it goes on in the next."""
    ready, other = socket.socketpair()
    other.send(b"the answer")

    class Reading(MemoryStore):
        async def still_owned(self, owners: Any) -> set[IntervalId]:
            loop, come = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(ready, come.set)
            await come.wait()
            loop.remove_reader(ready)
            return set()

    class Busy(Noting):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            super().handle(event, now)
            if type(event) is he.Answered:
                return [he.Ended()]
            if type(event) is he.TurnEnded:
                return []
            time.sleep(2 * LONG_TURN_US / 1e6)
            asked: list[he.HostEffect] = [he.Ask(1, StillOwned({}))] if isinstance(event, he.Started) else []
            return [*asked, he.Post(he.Tick())]

    host = Busy("busy")

    async def main() -> None:
        async with asyncio.timeout(60):
            await Shell(store=Reading(), transport=LocalTransport(), others=[host]).serve()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, ready, other:
        runner.run(main())
    turns = host.kinds()[: host.kinds().index("Answered")].count("TurnEnded")
    assert turns == 2, "it is asked at the end of the first turn, and read after the second at the latest"


def test_a_run_never_sleeps_while_something_is_to_be_heard() -> None:
    slept = 0

    class Watched(EmbeddedRun):
        async def _sleep(self) -> None:
            nonlocal slept
            slept += 1
            assert [*self._queue, *self._answers] == []
            assert not self._ended
            await super()._sleep()

    pipeline = Pipeline("watched")
    pipeline.inject(IterableSource("rows", [(f"{n}", n) for n in range(50)]), into=STOPS)
    pipeline.add(type("Made", (Stopper,), {"calls": [], "stop": lambda self: None}), [subscribe(STOPS, str)])  # type: ignore[arg-type]
    progress = asyncio.run(Watched(pipeline.graph(), Slow(), pipeline.tables).run())
    assert progress.finished
    assert slept


def shortest(make: Callable[[], Noting], tries: int = 4) -> float:
    """How long a run takes at least, s: a sleep that nothing has ended goes on for a second."""
    found = []
    for _ in range(tries):
        host, began = make(), time.monotonic()
        with suppress(SourceError):
            serve(host)
        found.append(time.monotonic() - began)
    return min(found)


FAR = 30_000_000
SOON: dict[str, Callable[[], Noting]] = {
    "a pause before a time": lambda: Noting(
        "one", Started=[he.Ask(1, he.Pause(2_000)), wake(FAR)], Answered=[he.Ended()]
    ),
    "a time before a pause": lambda: Noting("one", Started=[he.Ask(1, he.Pause(FAR)), wake(2_000)], Tick=[he.Ended()]),
    "a short pause after a long one": lambda: Noting(
        "one", Started=[he.Ask(1, he.Pause(FAR)), he.Ask(2, he.Pause(2_000))], Answered=[he.Ended()]
    ),
    "a time after a later one": lambda: Noting("one", Started=[wake(FAR), wake(2_000)], Tick=[he.Ended()]),
    "a failure": lambda: Noting("one", Started=[wake(FAR), he.Failed(SourceError("gone"))]),
    "a failure after the turn": lambda: Noting("one", Started=[wake(FAR)], Rested=[he.Failed(SourceError("gone"))]),
    "an answer of the store": lambda: Noting(
        "one", Started=[wake(FAR), he.Ask(1, StillOwned({}))], Answered=[he.Ended()]
    ),
    "a time after a sleep": lambda: Noting(
        "one", Started=[he.Ask(1, he.Pause(2_000))], Answered=[wake(3_000)], Tick=[he.Ended()]
    ),
}


@pytest.mark.parametrize("name", SOON)
def test_what_comes_first_ends_a_sleep(name: str) -> None:
    assert shortest(SOON[name]) < 0.5


def test_the_first_of_several_hosts_is_woken_at_its_time_whoever_asked_last() -> None:
    def took() -> float:
        began = time.monotonic()
        serve(Noting("one", Started=[wake(2_000)], Tick=[he.Ended()]), Noting("two", Started=[wake(FAR)]))
        return time.monotonic() - began

    assert min(took() for _ in range(4)) < 0.5


def test_a_message_and_a_call_that_fails_end_a_sleep() -> None:
    class Failing(MemoryStore):
        async def still_owned(self, owners: Any) -> set[IntervalId]:
            await asyncio.sleep(0.01)
            raise SourceError("gone")

    async def failing() -> None:
        host = Noting("one", Started=[wake(FAR), he.Ask(1, StillOwned({}))])
        with suppress(SourceError):
            await Shell(store=Failing(), transport=LocalTransport(), others=[host]).serve()

    async def told() -> None:
        transport = LocalTransport()
        host = Noting("one", Started=[wake(FAR)], Received=[he.Ended()])
        shell = Shell(store=MemoryStore(), transport=transport, others=[host])
        receipt = Receipt(IntervalId(1), IntervalId(2), 3)
        asyncio.get_running_loop().call_later(0.02, transport.tell, "two", "one", receipt)
        await shell.serve()

    for act in (failing, told):
        took = []
        for _ in range(4):
            began = time.monotonic()
            asyncio.run(act())
            took.append(time.monotonic() - began)
        assert min(took) < 0.5


def test_a_host_that_is_always_due_leaves_the_store_its_turn() -> None:
    class Due(Noting):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            super().handle(event, now)
            if type(event) is he.Answered or len(self.heard) > 20_000:
                return [he.Ended()]
            asked: list[he.HostEffect] = [he.Ask(1, StillOwned({}))] if type(event) is he.Started else []
            return [*asked, he.WakeAt(now)] if type(event) in (he.Started, he.Tick) else []

    host = Due("due")
    serve(host)
    assert "Answered" in host.kinds()


def test_a_pause_ends_though_the_wall_clock_was_set_back() -> None:
    back_us = 0

    class Paused(Noting):
        def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
            nonlocal back_us
            if type(event) is he.TurnEnded:
                back_us = 3_600_000_000
            return super().handle(event, now)

    host = Paused("one", Started=[he.Ask(7, he.Pause(20_000))], Answered=[he.Ended()])

    async def main() -> None:
        clock = lambda: wall_clock_us() - back_us  # noqa: E731
        await asyncio.wait_for(
            Shell(store=MemoryStore(), transport=LocalTransport(), others=[host], clock=clock).serve(), 60
        )

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert host.kinds().count("Answered") == 1
