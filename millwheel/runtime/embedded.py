"""Everything in one process: intervals, injectors, authority, on one store (docs/architecture.md).

Lives here: the asyncio driver that performs effects.  All user code runs on the event loop's thread, one invocation
at a time; while a checkpoint commits, the next bundle already runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from millwheel import limits
from millwheel.api.table import Table
from millwheel.bundles import LogWrite
from millwheel.core import events as ev
from millwheel.core.injector import InjectorCore
from millwheel.core.interval import Config, IntervalCore
from millwheel.errors import Fenced, HooksFail, RowRefused, SourceError, StoreError
from millwheel.graph import ComputationSpec, Graph
from millwheel.model import MAX_TIME, format_time
from millwheel.ports import MarkWrite, Opened, Store
from millwheel.runtime.actor import Actor
from millwheel.runtime.commits import GroupCommit
from millwheel.runtime.executor import Executor
from millwheel.runtime.failures import Failures, OnFailure, log_failure
from millwheel.runtime.folded import FoldedTables
from millwheel.runtime.mailbox import Mailbox
from millwheel.runtime.marks import Marks
from millwheel.runtime.partitions import Partitions
from millwheel.runtime.progress import Progress
from millwheel.runtime.redrives import Redrives
from millwheel.runtime.retry import until_answered
from millwheel.runtime.routes import Routes
from millwheel.runtime.watermarks import Watermarks
from millwheel.shape import PUBLISH_PREFIX
from millwheel.work import Work

logger = logging.getLogger("millwheel")

TURN_US = 4_000
REDRIVE_DELAY_S = 1.0
PART_LIMIT_S = 2.0


def wall_clock_us() -> int:
    """Wall time, us."""
    return time.time_ns() // 1_000


class Tolerance(msgspec.Struct, frozen=True):
    """How many keys a run may put into quarantine, and how many rows its sources may reject, before it stops."""

    quarantined: int | None = None
    rejected: int | None = None


class EmbeddedRun:
    """One run of a pipeline in this process."""

    def __init__(
        self,
        graph: Graph,
        store: Store,
        tables: Mapping[str, Table],
        clock: Callable[[], int] = wall_clock_us,
        on_failure: OnFailure = log_failure,
        tolerance: Tolerance | None = None,
    ) -> None:
        self._graph = graph
        self._store = store
        self._tables = tables
        self._clock = clock
        self._actors: dict[int, Actor] = {}
        self._intervals_of: dict[str, list[Actor]] = {}
        self._failures = Failures(on_failure)
        self._tolerance = tolerance or Tolerance()
        self._stopped = ""
        self._executors: dict[str, Executor] = {}
        self._routes = Routes(graph)
        self._redrives = Redrives(self._routes)
        self._mail = mail = Mailbox()
        self._commits = GroupCommit(self._commit, self._committed)
        self._folded = FoldedTables(store, mail.post)
        self._marks = Marks(store, mail)
        self._senders = self._routes.senders()
        """With sources that are left out, once the store has named them."""
        self._watermarks = Watermarks(self._senders, store, self._watermarks_moved)
        self._partitions = Partitions(
            graph, store, self._routes, self._watermarks, mail, self._actors, self._perform, clock
        )
        self._restarting: set[int] = set()
        """Intervals whose core is void and not yet replaced."""
        self._timer: asyncio.TimerHandle | None = None
        """Ends a sleep."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stopping = False
        self._flushed = False
        self._in_hook = False
        """User code runs; still so at the end of the run when it ended the run (sys.exit)."""

    # --- life -------------------------------------------------------------------------------------------------

    async def run(self) -> Progress:
        """Run until every source is finished and everything is committed and folded, or `stop` is called.

        Raises `Fenced` when another run takes the store over, `SourceError`, `StoreError`, `IncompatibleStore`.
        """
        try:
            await self._assign(await self._store.open_pipeline(self._graph.shape()))
            watermarks, partitions = self._watermarks, self._partitions
            services = (watermarks.loop(), partitions.advance_loop(), self._marks.loop(), self._redrive_loop())
            for service in (*self._commits.loops(), *services):
                self._spawn(service)
            await partitions.open()
            if not partitions.complete:
                self._spawn(partitions.discover_loop())
            await self._ask_redrives()  # before the loop: a pipeline that is finished would end before it asks
            while self._redrives.more:
                await self._ask_redrives()
            await self._loop()
            return self.progress()
        finally:
            await self._close()

    def stop(self) -> None:
        """End the run at the next turn; what is not committed is recomputed by the next run."""
        self._stopping = True
        self._mail.wake.set()

    def progress(self) -> Progress:
        """Counters and watermarks now."""
        cores = [a.core for a in self._actors.values() if isinstance(a.core, IntervalCore)]
        injectors = [a.core for a in self._actors.values() if isinstance(a.core, InjectorCore)]
        authority = self._watermarks.authority
        # A published stream's records are delivered once more, to be kept: they are nobody's hooks.
        hooks = [c for c in cores if not c.config.computation.startswith(PUBLISH_PREFIX)]
        names = [*self._graph.computations, *(f"source:{name}" for name in self._graph.sources)]
        return Progress(
            records=sum(c.counters.records for c in hooks),
            injected=sum(c.rows for c in injectors),
            rejected=self._partitions.rejected,
            late=sum(c.counters.late for c in hooks),
            duplicates=sum(c.counters.duplicates for c in hooks),
            repeated=sum(c.counters.repeated for c in hooks),
            quarantined=sum(c.counters.quarantined for c in cores),
            backdated=sum(c.counters.backdated for c in cores),
            checkpoints=sum(c.counters.checkpoints for c in cores),
            watermarks={name: authority.value(name) for name in names},
            finished=self._finished(),
            in_quarantine=sum(c.quarantined_keys for c in cores),
            rejections=self._partitions.rejections(),
            stopped=self._stopped,
            redriven=sum(c.counters.redriven for c in cores),
            waits_for=self._waits_for(),
        )

    def _waits_for(self) -> str:
        """What holds the first computation that is not done, when nobody works on it: its inputs are at the end of time, but
        for sources that are left out."""
        authority = self._watermarks.authority
        for name in self._graph.order():
            if authority.input_of(name) < MAX_TIME:
                behind = {sender for sender in self._senders.get(name, ()) if authority.value(sender) < MAX_TIME}
                left_out = behind & {f"source:{source}" for source in self._routes.left_out}
                return f"the {min(left_out).replace(':', ' ')}, which is left out" if behind == left_out else ""
            if authority.value(name) < MAX_TIME:
                held = [blamed for blamed in self.explain(name) if blamed[1] in ("hold", "quarantine")]
                return f"the {held[0][1]} of {held[0][3]} in {name} at {format_time(held[0][2])}" if held else ""
        return ""

    def explain(self, computation: str) -> list[tuple[str, str, int, str]]:
        """(who, what, timestamp us, detail) of everything that holds `computation`'s watermark, oldest first."""
        found = []
        for actor in self._intervals_of.get(computation, ()):
            assert isinstance(actor.core, IntervalCore)
            found += [(f"interval {actor.interval}", *blamed) for blamed in actor.core.blame()]
        authority = self._watermarks.authority
        found += [(sender, "input", authority.value(sender), "") for sender in self._senders[computation]]
        return sorted(found, key=lambda blamed: blamed[2])

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._in_hook:
            await self._end_in_order()
        for actor in self._actors.values():
            if actor.partition is not None:
                actor.partition.close()
        for executor in self._executors.values():
            executor.teardown()

    async def _end_in_order(self) -> None:
        """Say so; a store that is away will have to suspect what is innocent."""
        actors = [a for a in self._actors.values() if isinstance(a.core, IntervalCore)]
        with suppress(StoreError, TimeoutError):
            async with asyncio.timeout(PART_LIMIT_S):
                await self._store.mark([MarkWrite(a.interval, a.sequencer, b"", 0) for a in actors])

    async def _assign(self, opened: Opened) -> None:
        rows = self._routes.open(opened)
        sequencers = await self._store.acquire([row.id for row in rows])
        # After the takeover: nothing that an earlier owner committed can be ahead of these watermarks.
        self._senders = self._routes.senders()
        await self._watermarks.load(self._senders)
        self._warn_of_left_out()
        for name, spec in self._graph.computations.items():
            self._executors[name] = executor = Executor(spec, self._graph, self._routes.subscriptions, self._tables)
            executor.on_failure = self._failures.of(name)
        for row in rows:
            await self._adopt(self._routes.config(row, sequencers[row.id]))
        self._routes.expect_partitions(await self._store.unfinished_partitions())
        now = self._clock()
        for actor in list(self._actors.values()):
            assert isinstance(actor.core, IntervalCore)
            self._perform(actor, actor.core.start(now, self._routes.live))
            moved = ev.WatermarkMoved(self._watermarks.authority.input_of(actor.owner))
            self._mail.events.append((actor, moved))

    def _warn_of_left_out(self) -> None:
        for source in self._routes.left_out:
            reached = self._watermarks.authority.value(f"source:{source}")
            if reached < MAX_TIME:
                logger.warning(
                    "source %s is not in this pipeline and was not read to its end; what it feeds waits for it at %s: "
                    "put it back, or drop it for good (millwheel source drop)", source, format_time(reached),
                )  # fmt: skip

    async def _adopt(self, config: Config, inherited: ev.Inherited | None = None) -> None:
        """Recover one interval."""
        interval, owner = config.interval, config.computation
        recovered = await until_answered("recovery", lambda: self._store.recover(interval, config.sequencer))
        if recovered is None:
            raise Fenced(f"interval {interval} of {owner!r}: another run took the store over during start")
        core = IntervalCore(config, recovered, inherited)
        for note in core.suspects.notes() if inherited is None else ():
            logger.warning("%s: %s", owner, note)
        actor = Actor(interval, config.sequencer, owner, core, self._executors[owner])
        self._actors[interval] = actor
        self._intervals_of[owner] = [a for a in self._intervals_of.get(owner, ()) if a.interval != interval] + [actor]
        self._watermarks.authority.expect(owner, interval)
        if unsettled := self._routes.unsettled(config, recovered):
            self._watermarks.authority.unsettled(owner, interval, unsettled)
        else:
            self._watermarks_moved(self._watermarks.authority.settle(interval))  # a core before this one had some
        self._routes.expect_of(config, recovered)

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while not self._stopping:
            if self._failure is not None:
                raise self._failure
            self._mail.ring(self._clock())
            self._partitions.unpark()  # before the turn what has rested, after it what had no room
            self._turn()
            self._partitions.unpark()
            self._stop_at_too_much()
            if self._mail.events:
                await asyncio.sleep(0)
            elif self._finished():
                if self._flushed:
                    return
                self._flush()
                await asyncio.sleep(0.002)
            else:
                await self._sleep()

    def _turn(self) -> None:
        """Handle events for a few milliseconds, then let I/O have its turn."""
        until = time.perf_counter_ns() + TURN_US * 1_000
        events = self._mail.events
        now = self._clock()
        while events and time.perf_counter_ns() < until:
            actor, event = events.popleft()
            if actor.core.halted:
                continue
            if isinstance(event, Work):
                if self._marks.keeps(actor, event):
                    continue
                assert actor.executor is not None
                began = time.perf_counter_ns()
                self._in_hook = True
                outcome = actor.executor.run(event)
                self._in_hook = False
                if broken := self._failures.settle(actor.executor.spec, event, outcome):
                    raise self._hooks_fail(actor.executor.spec, broken)
                event = ev.Invoked(outcome, (time.perf_counter_ns() - began) // 1_000)
                now = self._clock()
            self._perform(actor, actor.core.handle(event, now))

    def _hooks_fail(self, spec: ComputationSpec, hook: str) -> HooksFail:
        """What was run last is not committed and comes again."""
        there = self.progress().in_quarantine
        rest = f"; {there:,} keys are in quarantine already and wait for a redrive" if there else ""
        return HooksFail(
            f"{spec.name}.{hook} has failed for the first {spec.settings.first_failures} keys, all that it was called for: "
            f"the run is stopped, mend the hook and run again{rest} (first_failures of pipeline.add sets the number)"
        )

    def _stop_at_too_much(self) -> None:
        allowed, rejected = self._tolerance, self._partitions.rejected
        if allowed.rejected is not None and rejected > allowed.rejected:
            self._stopped = f"{rejected:,} rows are rejected, {allowed.rejected:,} are allowed"
        if allowed.quarantined is not None:
            cores = (a.core for a in self._actors.values() if isinstance(a.core, IntervalCore))
            opened = sum(core.counters.quarantined for core in cores)
            if opened > allowed.quarantined:
                self._stopped = f"{opened:,} keys went into quarantine, {allowed.quarantined:,} are allowed"
        if self._stopped:
            self.stop()

    async def _sleep(self) -> None:
        mail, alarm = self._mail, self._mail.next_alarm()
        delay = (alarm - self._clock()) / 1e6 if alarm is not None else 1.0
        mail.wake.clear()
        if mail.events or self._stopping or self._failure is not None or delay <= 0:
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + min(delay, 1.0)
        # Most sleeps end by an event; the timer is left for the next one, and may wake it for nothing.
        if self._timer is None or at < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(at, self._timer_rang)
        await mail.wake.wait()

    def _timer_rang(self) -> None:
        self._timer = None
        self._mail.wake.set()

    def _finished(self) -> bool:
        authority = self._watermarks.authority
        done = self._partitions.complete and all(authority.value(name) >= MAX_TIME for name in self._graph.computations)
        return (
            done
            and not self._mail.events
            and not self._restarting
            and all(actor.core.quiet() for actor in self._actors.values() if isinstance(actor.core, InjectorCore))
        )

    def _flush(self) -> None:
        """Everything has run: record the last acks and fold, so that the log is empty when the run ends."""
        waiting = [a for a in self._actors.values() if isinstance(a.core, IntervalCore) and not a.core.quiet()]
        if not waiting and self._commits.idle():
            self._flushed = True
        for actor in waiting:
            assert isinstance(actor.core, IntervalCore)
            self._perform(actor, actor.core.flush(self._clock()))

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        events = self._mail.events
        for effect in effects:
            match effect:
                case ev.Send(bundle):
                    events.append((self._actors[bundle.target], ev.BundleArrived(bundle)))
                case ev.Ack(sender, number):
                    events.append((self._actors[sender], ev.AckArrived(number)))
                case ev.Invoke(work):
                    events.append((actor, work))
                case ev.Commit(write):
                    self._commits.submit(write)
                case ev.ReportWatermark(value):
                    self._watermarks.report(actor.owner, actor.interval, value)
                case ev.SetAlarm(at):
                    self._mail.set_alarm(at, actor)
                case ev.Read(limit):
                    self._partitions.read(actor, limit)
                case ev.Advance():
                    self._partitions.advance(actor, effect)
                case ev.Load():
                    self._spawn(self._folded.load(actor, effect))
                case ev.LoadSlots():
                    self._spawn(self._folded.load_slots(actor, effect))
                case ev.LoadTimers():
                    self._spawn(self._folded.load_timers(actor, effect))
                case ev.Fold():
                    self._spawn(self._folded.fold(actor, effect))
                case ev.LookupIds():
                    self._spawn(self._folded.lookup(actor, effect))
                case ev.Mark() | ev.Unmark():
                    self._marks.perform(actor, effect)
                case ev.ReadOpaque():
                    self._spawn(self._folded.read_opaque(actor, effect))
                case ev.FetchQuarantine():
                    self._spawn(self._folded.fetch(actor, effect))
                case ev.Restart(inherited):
                    self._restarting.add(actor.interval)
                    self._spawn(self._restart(actor, inherited))
                case ev.Settled():
                    self._watermarks_moved(self._watermarks.authority.settle(actor.interval))
                case ev.Halt(reason):
                    self._fail(Fenced(f"{reason}: another run owns this pipeline's store now; this run ends"))

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        self._failure = self._failure or error
        self._mail.wake.set()

    async def _commit(self, group: list[LogWrite]) -> set[tuple[int, int]]:
        durable: set[tuple[int, int]] = set()
        while group:
            try:
                durable = await until_answered("commit", lambda group=group: self._store.commit(group))  # type: ignore[misc]
                break
            except RowRefused as refusal:
                self._set_aside(refusal)
                group = [write for write in group if write.interval != refusal.interval]
        return durable

    def _committed(self, write: LogWrite, kept: bool) -> None:
        actor = self._actors[write.interval]
        if actor.sequencer == write.sequencer:  # not what a void core had submitted
            self._mail.post(actor, ev.Committed(write.seq) if kept else ev.Fenced())

    def _set_aside(self, refusal: RowRefused) -> None:
        """Before anything else happens: nothing of the interval may be committed any more but by its next core."""
        actor = self._actors[refusal.interval]
        for _, answer in refusal.rows:
            self._failures.refused(actor.owner, answer)
        self._commits.drop(actor.interval)
        self._perform(actor, actor.core.handle(ev.Refused(refusal.seq, refusal.rows), self._clock()))
        self._marks.leave(actor)

    async def _restart(self, old: Actor, inherited: ev.Inherited) -> None:
        """Another core for an interval of ours whose soft state is void; what it had not made durable comes again."""
        interval, core = old.interval, old.core
        assert isinstance(core, IntervalCore)
        sequencer = await until_answered("restart", lambda: self._store.reacquire(interval, old.sequencer))
        if sequencer is None:
            raise Fenced(f"interval {interval} of {old.owner!r}: another run owns this pipeline's store now")
        await self._adopt(msgspec.structs.replace(core.config, sequencer=sequencer), inherited)
        # Without a pause: a bundle that is sent to the new core before the older ones would overtake them.
        now, actor = self._clock(), self._actors[interval]
        for sender in [*self._actors.values()]:
            self._perform(sender, sender.core.handle(ev.Resend(interval), now) if sender is not actor else [])
        assert isinstance(actor.core, IntervalCore)
        self._perform(actor, actor.core.start(now, self._routes.live))
        moved = ev.WatermarkMoved(self._watermarks.authority.input_of(actor.owner))
        self._perform(actor, actor.core.handle(moved, now))
        self._restarting.discard(interval)
        self._mail.wake.set()

    def _watermarks_moved(self, inputs: Mapping[str, int]) -> None:
        for computation, value in inputs.items():
            for actor in self._intervals_of[computation]:
                self._mail.post(actor, ev.WatermarkMoved(value))
        self._mail.wake.set()  # whoever hears of it: the run may be finished

    async def _redrive_loop(self) -> None:
        while True:
            await asyncio.sleep(REDRIVE_DELAY_S)
            await self._ask_redrives()

    async def _ask_redrives(self) -> None:
        page = (self._redrives.start, limits.REDRIVE_REQUESTS)
        found = await until_answered("redrive", lambda: self._store.redrive_requests(*page))
        for interval, keys in self._redrives.read(found).items():
            self._mail.post(self._actors[interval], ev.RedriveAsked(keys))


def check_sources(graph: Graph) -> None:
    """A pipeline without a source would wait for ever."""
    if not graph.sources:
        raise SourceError(f"pipeline {graph.name!r} has no source: call pipeline.inject(source, into=stream)")
