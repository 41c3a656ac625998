"""The asyncio shell around the hosts of one process, over a store and a transport.

Lives here: performing what the hosts ask for, and the turns of the event loop.  Never here: a decision; those are in
`millwheel.host`; nor which hosts there are, which `embedded` and the roles of a cluster choose.  All user code runs on the
event loop's thread, one invocation at a time.  While a checkpoint commits, the next bundle already runs.  Invariants:

* a host hears `TurnEnded` after a turn in which it handled something, and `Rested` once when nothing is queued after that;
* a process that waits for a time sleeps until then;
* nothing is sent and nothing is asked for when the lease of the process, if it has one, does not hold any more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol, assert_never

from msgspec import structs

from millwheel import limits
from millwheel.api.table import Table
from millwheel.errors import (
    Fenced,
    HookInterrupted,
    InvariantError,
    PipelineFailed,
    RowRefused,
    StoreError,
)
from millwheel.host import alphabet as he
from millwheel.host.messages import Message
from millwheel.host.progress import Progress, progress_of
from millwheel.host.requests import StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import IntervalId
from millwheel.limits import LAST_WORDS_LIMIT_S, LONG_TURN_US, TURN_US
from millwheel.model import MAX_TIME
from millwheel.ports import Store, Transport
from millwheel.runtime.exact_timers import ExactTimer, Pauses, exact_timer
from millwheel.runtime.failures import Failures, OnFailure, hooks_fail, log_failure
from millwheel.runtime.lease import Permit
from millwheel.runtime.long_calls import LongCalls
from millwheel.runtime.retry import Retries
from millwheel.runtime.threads import in_thread
from millwheel.runtime.usercode import UserCode, hook_exited
from millwheel.search import BlockingCall, Step

logger = logging.getLogger("millwheel")

TURN_ENDED: Final = he.TurnEnded()
RESTED: Final = he.Rested()

RareEffect = he.Reach | he.Answer | he.Release | he.Notice | he.Declare | he.Ended | he.Failed


def wall_clock_us() -> int:
    """Wall time, us."""
    return time.time_ns() // 1_000


class Host(Protocol):
    """A state machine of `millwheel.host`, as far as a shell goes."""

    @property
    def name(self) -> str:
        """Its address on channels."""
        ...

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        """React to one event at wall time `now`, us."""
        ...


class Shell:
    """Runs a worker, if there is one in this process, and other hosts beside it.  Only a worker has user code."""

    def __init__(
        self,
        *,
        store: Store,
        transport: Transport[Message],
        worker: WorkerHost | None = None,
        others: Sequence[Host] = (),
        tables: Mapping[str, Table] = MappingProxyType({}),
        clock: Callable[[], int] = wall_clock_us,
        on_failure: OnFailure = log_failure,
        permit: Permit | None = None,
    ) -> None:
        self._worker = worker
        self._hosts: tuple[Host, ...] = (*others,) if worker is None else (worker, *others)
        self._names = frozenset(host.name for host in self._hosts)
        self._transport = transport
        for host in self._hosts:
            self._transport.attach(host.name, partial(self._heard, host), partial(self._reopened, host))
        self._store = store
        self._permit = permit
        self._clock = clock
        self._failures = Failures(on_failure)
        self._code: UserCode | None = None
        if worker is not None:
            self._code = UserCode(graph=worker.graph, tables=tables, clock=clock, failures=self._failures)
        self._reopening: set[tuple[str, str]] = set()
        """Channels, (from, to), that are open again, which the host has not heard yet."""
        self._queue: deque[tuple[Host, he.HostEvent]] = deque()
        self._answers: deque[tuple[Host, he.HostEvent]] = deque()
        """What the store and others have answered.  It comes before the queue, because the next commit waits for it."""
        self._stirred: dict[Host, None] = {}
        """Hosts that have handled something and have not heard yet that the turn has ended, in order."""
        self._restless: dict[Host, None] = {}
        """Hosts that have handled something and have not heard yet that nothing is queued."""
        self._retries = Retries()
        self._asked: dict[object, float] = {}
        """Calls to the store that have no answer yet, the oldest first, and when each began, monotonic clock, s."""
        self._leaving = False
        """In this turn another process was told something: it leaves when the turn is over."""
        self._sleeper: asyncio.Future[None] | None = None
        """What the loop sleeps on.  Only its own callbacks end that (`_rouse`), so none comes before the sleep has begun."""
        self._served_by: asyncio.AbstractEventLoop | None = None
        self._wakes: dict[Host, int] = {}
        """Wall time at which each host wants to be woken, us."""
        self._wake_at = MAX_TIME
        """The first of these times."""
        self._pauses: Pauses[tuple[Host, int]] = Pauses()
        """(host, token) that a host waits for.  On the monotonic clock: the wall clock may be set while it waits."""
        self._timer: ExactTimer | None = None
        """Ends a sleep."""
        self._rings_at = float("inf")
        """When it does, monotonic clock, s."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: dict[IntervalId, asyncio.Task[None]] = {}
        """What lets outside clients bring rows to a partition."""
        self._announced: set[IntervalId] = set()
        """Partitions that have said that they have rows, and were not read since."""
        self._blocking: dict[str, asyncio.Task[None]] = {}
        """By source: what a search of it does in a thread."""
        self._failure: BaseException | None = None
        self._ended = False
        self._stopped = False
        self._draining = False
        """Nothing new is run or read.  What is done is committed."""
        self._in_hook = False
        """A hook runs.  At the end of the run this is still true if a hook has ended the run (sys.exit)."""
        self._calls = LongCalls(lambda call: self._user.describe(call))

    # --- life -------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Serve until a host says that the run is over, or `stop` is called.

        Raises `Fenced` when another run takes the store over or the lease is lost, `SourceError`, `StoreError`,
        `IncompatibleStore`.
        """
        self._calls.begin()
        self._served_by = asyncio.get_running_loop()
        try:
            try:
                if not self._ended:
                    self._queue += [(host, he.Started()) for host in self._hosts]
                await self._loop()
                await self._keep_what_is_done()
            except BaseException:
                await self._close(failed=True)
                raise
            await self._close()
        finally:
            self._calls.end()

    def stop(self) -> None:
        """End the run at the next turn; what is not committed is recomputed by the next run.

        Any thread may call this, and the handler of a signal.
        """
        self._stopped = self._draining = self._stopped or not self._ended
        self._ended = True
        if self._served_by is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._served_by.call_soon_threadsafe(self._rouse)

    def fail(self, error: BaseException) -> None:
        """End the run with an error at the next turn.  Any thread may call this."""
        self._failure = self._failure or error
        if self._served_by is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._served_by.call_soon_threadsafe(self._rouse)

    @property
    def stopped(self) -> bool:
        """`stop` was called before a host said that the run is over."""
        return self._stopped

    @property
    def store(self) -> Store:
        """Where it keeps everything; whoever made it closes it."""
        return self._store

    @property
    def user_call(self) -> object:
        """The user code that runs now: a hook, or what belongs to a computation or a source; None while there is none."""
        return self._calls.now

    async def _keep_what_is_done(self) -> None:
        """After a stop, commit what hooks have done, unless the store is slow or away."""
        worker = self._worker
        if worker is None:
            return
        self._draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.STOP_GRACE_S):
                while self._failure is None and (self._queue or self._answers or not worker.all_committed()):
                    self._turn()
                    self._give(worker, he.TurnEnded())
                    await asyncio.sleep(0.001)

    @property
    def worker(self) -> WorkerHost:
        """The worker of this process."""
        if self._worker is None:
            raise InvariantError("there is no worker in this process")
        return self._worker

    @property
    def _user(self) -> UserCode:
        if self._code is None:
            raise InvariantError("only a worker has user code")
        return self._code

    def progress(self) -> Progress:
        """Counters and watermarks of the worker now, and how long it has waited for the store."""
        since = next(iter(self._asked.values()), None)
        waited_s = 0.0 if since is None else time.monotonic() - since
        return structs.replace(progress_of(self.worker), store_wait_s=waited_s)

    async def _close(self, failed: bool = False) -> None:
        if self._timer is not None:
            self._timer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._worker is not None and not self._in_hook:
            # A store that is away will have to suspect what is innocent.
            with suppress(StoreError, TimeoutError, Fenced):
                self._check_permit()
                async with asyncio.timeout(LAST_WORDS_LIMIT_S):
                    await self._worker.last_words().call(self._store)
        if self._code is not None:
            self._close_user_code(self._code, failed or self._stopped)

    def _close_user_code(self, code: UserCode, failed: bool) -> None:
        """Every `teardown`.  What goes wrong there is an error of its own only if the run has no other end."""
        self._calls.now = "a teardown"
        try:
            code.close()
        except (PipelineFailed, HookInterrupted) as error:
            if not failed:
                raise
            logger.warning("%s", error if isinstance(error, PipelineFailed) else "a teardown was interrupted")
        finally:
            self._calls.now = None

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while not self._ended:
            if self._failure is not None:
                raise self._failure
            self._check_permit()
            began = time.perf_counter_ns()
            self._turn()
            self._end_turn()
            if self._queue or self._answers or self._ended:
                await asyncio.sleep(0)
                if self._tasks and time.perf_counter_ns() - began >= LONG_TURN_US * 1_000:
                    # The event loop has read what has come, and nobody has it yet: it would wait for one more turn.
                    await asyncio.sleep(0)
            else:
                await self._sleep()

    def _turn(self) -> None:
        """Handle events for a few milliseconds, then let I/O go on."""
        self._wake_hosts()
        # Nothing that waits for a pause is as urgent as what has come already.
        self._queue += [(host, he.Answered(token, None)) for host, token in self._pauses.ended()]
        until = time.perf_counter_ns() + TURN_US * 1_000
        queue, answered, self._leaving = self._queue, bool(self._answers), False
        while self._answers:
            self._give(*self._answers.popleft())
        # Hosts start in one turn, however long it takes: its end would come to a host that has not begun.
        while queue and (time.perf_counter_ns() < until or type(queue[0][1]) is he.Started):
            kind = type(queue[0][1])
            if answered and kind is not he.Told and self._next_commit_waits():
                return  # it leaves before hooks run, and what the answer allows to be sent leaves with it
            if self._leaving and kind is he.Due:
                return  # other processes need not wait for hooks of this one
            self._give(*queue.popleft())

    def _next_commit_waits(self) -> bool:
        return self._worker is not None and self._worker.next_commit_waits()

    def _wake_hosts(self) -> None:
        """Give a `Tick` to each host whose time has come."""
        now = self._clock()
        if now < self._wake_at:
            return
        due = [host for host, at in self._wakes.items() if at <= now]
        for host in due:
            del self._wakes[host]
        self._wake_at = min(self._wakes.values(), default=MAX_TIME)
        for host in due:
            self._give(host, he.Tick())

    def _end_turn(self) -> None:
        stirred, self._stirred = self._stirred, {}
        for host in stirred:
            self._hear(host, TURN_ENDED)
        if not self._queue:
            restless, self._restless = self._restless, {}
            for host in restless:
                self._hear(host, RESTED)

    def _give(self, host: Host, event: he.HostEvent) -> None:
        if self._reopening and type(event) is he.ChannelOpened:
            self._reopening.discard((host.name, event.peer))
        self._stirred[host] = self._restless[host] = None
        self._hear(host, event)

    def _hear(self, host: Host, event: he.HostEvent) -> None:
        for effect in host.handle(event, self._clock()):
            self._perform(host, effect)

    async def _sleep(self) -> None:
        delay = (self._wake_at - self._clock()) / 1e6
        if (pause := self._pauses.left_s()) is not None:
            delay = min(delay, pause)
        if self._failure is not None or delay <= 0:
            # What a host waits for is I/O as often as a time: it must have its turn when the time has come already.
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = exact_timer(loop, self._timer_rang)
        delay = min(delay, 1.0)
        # Most sleeps end by an event; the timer is left for the next one, and may wake it for nothing.
        at = time.monotonic() + delay
        if at < self._rings_at:
            self._rings_at = at
            self._timer.set(delay)
        self._sleeper = loop.create_future()
        await self._sleeper

    def _rouse(self) -> None:
        """End the loop's sleep, if it sleeps."""
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    def _timer_rang(self) -> None:
        self._rings_at = float("inf")
        self._rouse()

    # --- what comes from other hosts --------------------------------------------------------------------------

    def _heard(self, host: Host, sender: str, message: Message) -> None:
        self._queue.append((host, he.Received(sender, message)))
        self._rouse()

    def _reopened(self, host: Host, peer: str) -> None:
        # Until the host has handled this, it does not know what was lost: nothing that it says to the peer may pass.
        self._reopening.add((host.name, peer))
        self._queue.append((host, he.ChannelOpened(peer)))
        self._rouse()

    # --- effects ----------------------------------------------------------------------------------------------

    def _check_permit(self) -> None:
        """Raise `Fenced`, and let nothing more leave this process, when its lease does not hold."""
        if self._permit is not None:
            self._permit.check()

    def _perform(self, host: Host, effect: he.HostEffect) -> None:
        if type(effect) is he.Tell:
            self._tell(host, effect)
        elif type(effect) is he.Post:
            self._queue.append((host, effect.event))
        elif type(effect) is he.Ask:
            self._check_permit()
            self._ask(host, effect.token, effect.wish)
        elif type(effect) is he.RunHooks:
            if not self._draining:
                self._run(host, effect)
        elif type(effect) is he.ReadRows:
            if not self._draining:
                self._read(host, effect)
        elif type(effect) is he.WakeAt:
            if effect.at < self._wakes.get(host, MAX_TIME):
                self._wakes[host] = effect.at
                self._wake_at = min(self._wake_at, effect.at)
        else:
            self._perform_rare(effect)

    def _tell(self, host: Host, tell: he.Tell) -> None:
        if self._permit is not None:
            self._permit.check()
        if not self._reopening or (host.name, tell.peer) not in self._reopening:
            self._leaving = self._leaving or tell.peer not in self._names
            self._transport.tell(host.name, tell.peer, tell.message)

    def _perform_rare(self, effect: RareEffect) -> None:
        match effect:
            case he.Reach(addresses):
                self._transport.peers(addresses)
            case he.Answer(interval, position):
                self._user.answer(interval, position)
            case he.Release(interval, finished):
                self._calls.during(effect, partial(self._user.release, interval, finished))
                if (server := self._servers.pop(interval, None)) is not None:
                    server.cancel()
            case he.Notice():
                level = logging.INFO if effect.info else logging.WARNING
                logger.log(level, "%s", effect.text, extra={"facts": effect.facts})
            case he.Declare(computation, answers):
                for answer in answers:
                    self._failures.refused(computation, answer)
            case he.Ended():
                self._ended = True
            case he.Failed(error):
                self._fail(error)
            case _:
                assert_never(effect)

    def _run(self, host: Host, run: he.RunHooks) -> None:
        began = time.perf_counter_ns()
        self._in_hook, self._calls.now = True, run
        try:
            outcome = self._user.run(run)
        except HookInterrupted:  # after `stop`: this invocation comes again in the next run
            self._in_hook = False
            return
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as end:  # as a crash: what a process was doing when it ended is suspected by the next one
            raise hook_exited(run.computation, end) from end
        finally:
            self._calls.now = None
        self._in_hook = False
        spec = self.worker.graph.computations[run.computation]
        if broken := self._failures.settle(spec, run.work, outcome):
            raise hooks_fail(spec, broken, self.progress().in_quarantine)
        elapsed_us = (time.perf_counter_ns() - began) // 1_000
        self._give(host, he.Returned(run.interval, run.sequencer, outcome, elapsed_us))

    def _read(self, host: Host, wanted: he.ReadRows) -> None:
        self._announced.discard(wanted.interval)
        self._calls.now = wanted
        try:
            rows = self._user.read(wanted)
        except HookInterrupted:  # after `stop`: these rows come again in the next run
            return
        finally:
            self._calls.now = None
        self._queue.append((host, rows))

    def _announcer(self, host: Host, interval: IntervalId) -> Callable[[], None]:
        """What a partition calls when it has rows, in any thread."""
        loop, thread = asyncio.get_running_loop(), threading.get_ident()

        def wake() -> None:
            if interval in self._announced:
                return  # it is read later than this, so the read finds what was there now
            if threading.get_ident() == thread:
                self._announce(host, interval)
            else:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(self._announce, host, interval)

        return wake

    def _announce(self, host: Host, interval: IntervalId) -> None:
        if interval not in self._announced:  # as several threads may have seen it
            self._announced.add(interval)
            self._queue.append((host, he.Announced(interval)))
            self._rouse()

    def _ask(self, host: Host, token: int, wish: he.Wish) -> None:
        match wish:
            case StoreCall():
                self._spawn(self._call(host, token, wish))
            case he.Pause(delay_us):
                self._pauses.begin(delay_us, (host, token))
            case he.Discover() if wish.source in self._blocking:
                self._spawn(self._discover_later(host, token, wish))
            case _ if not self._draining:
                self._calls.during(wish, partial(self._ask_user, host, token, wish))

    def _ask_user(self, host: Host, token: int, wish: he.Prepare | he.Discover | he.Seek | he.Resume) -> None:
        """What user code answers."""
        match wish:
            case he.Prepare():
                self._user.prepare(wish)
                self._answer(host, token, None)
            case he.Discover():
                self._found(host, token, wish.source, self._user.discover(wish))
            case he.Seek():
                self._found(host, token, wish.source, self._user.seek(wish))
            case he.Resume():
                self._answer(host, token, self._user.resume(wish))
                interval = wish.position.interval
                self._announced.discard(interval)
                self._user.listen(interval, self._announcer(host, interval))
                if (server := self._user.server(interval)) is not None:
                    self._servers[interval] = self._spawn(server)
            case _:
                assert_never(wish)

    def _found(self, host: Host, token: int, source: str, step: he.Discovery | Step) -> None:
        if isinstance(step, BlockingCall):
            self._blocking[source] = self._spawn(self._block(host, token, source, step))
        else:
            self._answer(host, token, step)

    async def _block(self, host: Host, token: int, source: str, step: BlockingCall) -> None:
        try:
            if self._draining:  # a stop has come since this was asked for
                return
            answer = await in_thread(f"a search of source {source}", self._user.block, source, step)
        finally:
            del self._blocking[source]
        self._ask(host, token, he.Seek(source, answer))

    async def _discover_later(self, host: Host, token: int, wish: he.Discover) -> None:
        """The source was taken again while its last search is in a thread, whose answer must not come to the next search."""
        while (running := self._blocking.get(wish.source)) is not None:
            await asyncio.wait([running])
        self._ask(host, token, wish)

    def _answer(self, host: Host, token: int, answer: Any) -> None:
        self._answers.append((host, he.Answered(token, answer)))
        self._rouse()

    async def _call(self, host: Host, token: int, request: StoreCall) -> None:
        asked = object()
        self._asked[asked] = time.monotonic()
        try:
            if request.patient:
                answer = await self._retries.until_answered(request.step, lambda: request.call(self._store))
            else:
                answer = await request.call(self._store)
        except RowRefused as refusal:
            self._answers.append((host, he.Declined(token, refusal)))
            self._rouse()
        else:
            self._answer(host, token, answer)
        finally:
            self._asked.pop(asked, None)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        self._rouse()
