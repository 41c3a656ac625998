"""Everything in one process: intervals, injectors, authority, on one store (docs/architecture.md).

Lives here: the asyncio driver that performs effects.  All user code runs on the event loop's thread, one invocation
at a time; while a checkpoint commits, the next bundle already runs.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from millwheel import limits
from millwheel.api.context import Output, Table
from millwheel.bundles import LogWrite, QuarantineEntry
from millwheel.core import events as ev
from millwheel.core.authority import Authority
from millwheel.core.dedup import Channel
from millwheel.core.injector import InjectorCore
from millwheel.core.interval import Config, IntervalCore
from millwheel.errors import CommitUnknown, Fenced, RowRefused, SourceError, StoreError, StoreUnavailable
from millwheel.graph import Graph
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME, MIN_TIME, format_time
from millwheel.ports import MarkWrite, Opened, PositionWrite, SourcePartition, Store
from millwheel.runtime.alone import Alone
from millwheel.runtime.commits import GroupCommit
from millwheel.runtime.executor import Executor, output_of
from millwheel.runtime.sources import read_rows
from millwheel.shape import PUBLISH_PREFIX
from millwheel.source import Source
from millwheel.work import Work

logger = logging.getLogger("millwheel")

TURN_US = 4_000
PERSIST_DELAY_S = 0.01
DISCOVER_DELAY_S = 1.0
REDRIVE_DELAY_S = 1.0
RETRY_DELAY_S = 0.2
PART_LIMIT_S = 2.0
SHAPE_VERSION = "1"


def wall_clock_us() -> int:
    """Wall time, us."""
    return time.time_ns() // 1_000


class Progress(msgspec.Struct, frozen=True):
    """A picture of the run: counts since start, watermarks by computation and source, us.

    `duplicates` are deliveries that came again, `repeated` rows whose id, given by an outside client, was taken before:
    both are dropped, and counted by each subscription on which they came.
    """

    records: int
    injected: int
    rejected: int
    late: int
    duplicates: int
    repeated: int
    quarantined: int
    backdated: int
    checkpoints: int
    watermarks: Mapping[str, int]
    finished: bool
    redriven: int = 0
    """Quarantined elements that a redrive has run."""
    waits_for: str = ""
    """Why the run does not end although all input is read: the hold or quarantine that keeps the watermark."""

    @property
    def lag_us(self) -> int | None:
        """Event time, us, by which the slowest computation is behind what the sources promise; None while either is
        at an end of time."""
        of = {True: [MAX_TIME], False: [MAX_TIME]}
        for name, watermark in self.watermarks.items():
            of[name.startswith("source:")].append(watermark)
        promised, applied = min(of[True]), min(of[False])
        return promised - applied if applied > MIN_TIME and promised < MAX_TIME else None


class Core(Protocol):
    """What the driver needs of a core."""

    halted: bool

    def handle(self, event: ev.Event, now: int) -> list[ev.Effect]:
        """React to one event."""
        ...

    def quiet(self) -> bool:
        """Nothing is under way."""
        ...


class Actor(msgspec.Struct, eq=False):
    """A core with what its effects need: the sequencer it writes under, user code or a source partition."""

    interval: int
    sequencer: int
    owner: str
    core: Core
    executor: Executor | None = None
    partition: SourcePartition | None = None
    output: Output | None = None
    receivers: frozenset[int] = frozenset()
    """Intervals that a source partition feeds."""
    last_row_at: int = 0
    """Wall time of the last row of a source partition, us."""


class EmbeddedRun:
    """One run of a pipeline in this process."""

    def __init__(
        self,
        graph: Graph,
        store: Store,
        tables: Mapping[str, Table],
        clock: Callable[[], int] = wall_clock_us,
    ) -> None:
        self._graph = graph
        self._store = store
        self._tables = tables
        self._clock = clock
        self._actors: dict[int, Actor] = {}
        self._executors: dict[str, Executor] = {}
        self._events: deque[tuple[Actor, ev.Event | Work]] = deque()
        self._alarms: list[tuple[int, int, Actor]] = []
        self._alarm_count = 0
        self._commits = GroupCommit(self._commit, self._committed)
        self._parked: list[tuple[Actor, int]] = []
        """Reads that wait until their receivers have worked something off."""
        self._restarting: set[int] = set()
        """Intervals whose core is void and not yet replaced."""
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stopping = False
        self._advances: deque[tuple[Actor, ev.Advance]] = deque()
        self._advance_wake = asyncio.Event()
        self._alone: Alone[Actor] = Alone()
        self._marks: deque[tuple[Actor, ev.Mark | ev.Unmark]] = deque()
        self._mark_wake = asyncio.Event()
        self._in_hook = False
        """User code runs; still so at the end of the run when it ended the run (sys.exit)."""
        self._persist_wake = asyncio.Event()
        self._subscriptions: Mapping[str, int] = {}
        self._intervals_of: dict[str, list[Actor]] = {}
        self._known: dict[str, set[str]] = {}
        self._live: set[Channel] = set()
        """Where something may still come from producers that were numbered before this run, or by it."""
        self._ordered: dict[str, deque[Actor]] = {}
        self._sources_complete = False
        self._rejected = 0
        self._flushed = False
        senders = {name: graph.senders(name) for name in graph.computations}
        self._authority = Authority(senders, {})
        self._senders = senders

    # --- life -------------------------------------------------------------------------------------------------

    async def run(self) -> Progress:
        """Run until every source is finished and everything is committed and folded, or `stop` is called.

        Raises `Fenced` when another run takes the store over, `SourceError`, `StoreError`, `IncompatibleStore`.
        """
        try:
            await self._assign(await self._store.open_pipeline(self._graph.shape()))
            services = (self._persist_loop(), self._advance_loop(), self._mark_loop(), self._redrive_loop())
            for service in (*self._commits.loops(), *services):
                self._spawn(service)
            await self._open_sources()
            await self._ask_redrives()  # before the loop: a pipeline that is finished would end before it asks
            await self._loop()
            return self.progress()
        finally:
            await self._close()

    def stop(self) -> None:
        """End the run at the next turn; what is not committed is recomputed by the next run."""
        self._stopping = True
        self._wake.set()

    def progress(self) -> Progress:
        """Counters and watermarks now."""
        cores = [a.core for a in self._actors.values() if isinstance(a.core, IntervalCore)]
        injectors = [a.core for a in self._actors.values() if isinstance(a.core, InjectorCore)]
        # A published stream's records are delivered once more, to be kept: they are nobody's hooks.
        hooks = [c for c in cores if not c.config.computation.startswith(PUBLISH_PREFIX)]
        names = [*self._graph.computations, *(f"source:{name}" for name in self._graph.sources)]
        return Progress(
            records=sum(c.counters.records for c in hooks),
            injected=sum(c.rows for c in injectors),
            rejected=self._rejected,
            late=sum(c.counters.late for c in hooks),
            duplicates=sum(c.counters.duplicates for c in hooks),
            repeated=sum(c.counters.repeated for c in hooks),
            quarantined=sum(c.counters.quarantined for c in cores),
            backdated=sum(c.counters.backdated for c in cores),
            checkpoints=sum(c.counters.checkpoints for c in cores),
            watermarks={name: self._authority.value(name) for name in names},
            finished=self._finished(),
            redriven=sum(c.counters.redriven for c in cores),
            waits_for=self._waits_for(),
        )

    def _waits_for(self) -> str:
        """The first computation whose inputs are at the end of time and that is held by what nobody works on."""
        for name in self._graph.order():
            if self._authority.input_of(name) < MAX_TIME:
                return ""
            if self._authority.value(name) < MAX_TIME:
                held = [blamed for blamed in self.explain(name) if blamed[1] in ("hold", "quarantine")]
                return f"the {held[0][1]} of {held[0][3]} in {name} at {format_time(held[0][2])}" if held else ""
        return ""

    def explain(self, computation: str) -> list[tuple[str, str, int, str]]:
        """(who, what, timestamp us, detail) of everything that holds `computation`'s watermark, oldest first."""
        found = []
        for actor in self._intervals_of.get(computation, ()):
            assert isinstance(actor.core, IntervalCore)
            found += [(f"interval {actor.interval}", *blamed) for blamed in actor.core.blame()]
        found += [(sender, "input", self._authority.value(sender), "") for sender in self._senders[computation]]
        return sorted(found, key=lambda blamed: blamed[2])

    async def _close(self) -> None:
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
        self._subscriptions = opened.subscriptions
        names = self._graph.computations
        rows = [row for row in opened.intervals if row.computation in names]
        sequencers = await self._store.acquire([row.id for row in rows])
        # After the takeover: nothing that an earlier owner committed can be ahead of these watermarks.
        persisted = await self._store.watermarks()
        self._authority = Authority(self._senders, persisted)
        maps = {name: Ranges((r.low, r.id) for r in rows if r.computation == name) for name in names}
        self._ranges = {
            self._subscriptions[s.name]: maps[s.computation] for spec in names.values() for s in spec.inputs
        }
        for name, spec in names.items():
            self._executors[name] = Executor(spec, self._graph, self._subscriptions, self._tables)
        for row in rows:
            await self._adopt(row.id, row.computation, row.low, row.high, sequencers[row.id])
        for name, source in self._graph.sources.items():
            for position in await self._store.source_partitions(name):
                if not position.finished:
                    self._expect(position.producer, source.stream)
        now = self._clock()
        for actor in list(self._actors.values()):
            assert isinstance(actor.core, IntervalCore)
            self._perform(actor, actor.core.start(now, self._live))
            self._events.append((actor, ev.WatermarkMoved(self._authority.input_of(actor.owner))))

    async def _adopt(
        self,
        interval: int,
        owner: str,
        low: str,
        high: str | None,
        sequencer: int,
        inherited: ev.Inherited | None = None,
    ) -> None:
        """Recover one interval."""
        recovered = await self._retry("recovery", lambda: self._store.recover(interval, sequencer))
        if recovered is None:
            raise Fenced(f"interval {interval} of {owner!r}: another run took the store over during start")
        spec = self._graph.computations[owner]
        outputs = {self._subscriptions[s.name] for o in spec.outputs for s in self._graph.subscriptions(o)}
        config = Config(
            interval, sequencer, owner, SHAPE_VERSION, spec.settings,
            {number: self._ranges[number] for number in outputs}, low, high,
            self._graph.slacks(owner, self._subscriptions),
        )  # fmt: skip
        core = IntervalCore(config, recovered, inherited)
        for note in core.suspects.notes() if inherited is None else ():
            logger.warning("%s: %s", owner, note)
        actor = Actor(interval, sequencer, owner, core, self._executors[owner])
        self._actors[interval] = actor
        self._intervals_of[owner] = [a for a in self._intervals_of.get(owner, ()) if a.interval != interval] + [actor]
        self._authority.expect(owner, interval)
        self._live |= {(bundle.subscription, bundle.producer) for bundle in recovered.productions}
        for output in spec.outputs:
            self._expect(sequencer, output)

    def _expect(self, producer: int, stream: str) -> None:
        """The producer may still send on the stream."""
        self._live |= {(self._subscriptions[s.name], producer) for s in self._graph.subscriptions(stream)}

    # --- sources ----------------------------------------------------------------------------------------------

    async def _open_sources(self) -> None:
        for name in self._graph.sources:
            self._known[name] = set()
            positions = await self._store.source_partitions(name)
            self._graph.sources[name].source.recall(positions)
            for position in positions:
                self._authority.expect(f"source:{name}", position.interval)
                if position.finished:
                    self._authority.report(f"source:{name}", position.interval, MAX_TIME)
        await self._discover()
        if not self._sources_complete:
            self._spawn(self._discover_loop())

    async def _discover_loop(self) -> None:
        while not self._sources_complete:
            await asyncio.sleep(DISCOVER_DELAY_S)
            await self._discover()

    async def _discover(self) -> None:
        complete = True
        for name, spec in self._graph.sources.items():
            for partition in spec.source.discover(self._known[name]):
                await self._open_partition(name, spec.stream, partition)
            complete = complete and spec.source.complete()
            self._authority.bound(f"source:{name}", spec.source.pending_watermark())
        self._sources_complete = complete
        self._persist_wake.set()
        self._wake.set()

    async def _open_partition(self, source: str, stream: str, partition: SourcePartition) -> None:
        self._known[source].add(partition.name)
        position = await self._store.open_source(source, partition.name, partition.fingerprint())
        if not position.finished:
            # An earlier run may have numbered it, and have been seen to do so only now.
            self._expect(position.producer, self._graph.sources[source].stream)
            partition.resume(position.position, position.state)
        sequencer = (await self._store.acquire([position.interval]))[position.interval]
        routes = {self._subscriptions[s.name]: None for s in self._graph.subscriptions(stream)}
        core = InjectorCore(position.interval, position, {number: self._ranges[number] for number in routes})
        output = output_of(self._graph, stream, self._subscriptions)
        actor = Actor(position.interval, sequencer, f"source:{source}", core, None, partition, output)
        actor.receivers = frozenset(interval for number in routes for interval in self._ranges[number].ids)
        self._actors[position.interval] = actor
        self._authority.expect(actor.owner, position.interval)
        if self._graph.sources[source].source.ordered and not position.finished:
            queue = self._ordered.setdefault(source, deque())
            core.paused = bool(queue)
            queue.append(actor)
        self._perform(actor, core.start(self._clock(), MIN_TIME if position.finished else partition.watermark()))

    def _next_ordered(self, actor: Actor) -> None:
        """The partition before it is read to its end: an ordered source goes on with the next file."""
        queue = self._ordered.get(actor.owner.removeprefix("source:"))
        if queue and queue[0] is actor:
            queue.popleft()
            if queue and isinstance(queue[0].core, InjectorCore):
                queue[0].core.paused = False
                self._events.append((queue[0], ev.AlarmRang()))

    def _note_idleness(self, actor: Actor, source: Source, rows: ev.RowsRead) -> None:
        """A source that is silent for its declared time may let the watermark follow the wall clock."""
        now = self._clock()
        if rows.progressed or not actor.last_row_at:
            actor.last_row_at = now
        elif source.idle_after_us is not None and now - actor.last_row_at >= source.idle_after_us:
            rows.watermark = max(rows.watermark, now - source.disorder_us)

    def _crowded(self, actor: Actor) -> bool:
        """Back-pressure: so much waits at one of its receivers that nothing more is read for it."""
        cores = (self._actors[interval].core for interval in actor.receivers)
        return any(isinstance(c, IntervalCore) and c.inbox_bytes >= limits.INBOX_LIMIT_BYTES for c in cores)

    def _unpark(self) -> None:
        parked, self._parked = self._parked, []
        for actor, limit in parked:
            self._perform(actor, [ev.Read(limit)])

    def _read(self, actor: Actor, limit: int) -> None:
        assert actor.partition is not None
        assert actor.output is not None
        source = self._graph.sources[actor.owner.removeprefix("source:")].source
        rows = read_rows(actor.partition, actor.output, limit, source.reject, source.record_id)
        self._rejected += rows.rejected
        self._note_idleness(actor, source, rows)
        self._events.append((actor, rows))
        if rows.finished and not rows.progressed:
            self._next_ordered(actor)

    # --- the loop ---------------------------------------------------------------------------------------------

    async def _loop(self) -> None:
        while not self._stopping:
            if self._failure is not None:
                raise self._failure
            self._ring()
            self._turn()
            if self._parked:
                self._unpark()
            if self._events:
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
        events = self._events
        now = self._clock()
        while events and time.perf_counter_ns() < until:
            actor, event = events.popleft()
            if actor.core.halted:
                continue
            if isinstance(event, Work):
                if self._alone.keeps(actor, event):
                    continue
                assert actor.executor is not None
                began = time.perf_counter_ns()
                self._in_hook = True
                outcome = actor.executor.run(event)
                self._in_hook = False
                event = ev.Invoked(outcome, (time.perf_counter_ns() - began) // 1_000)
                now = self._clock()
            self._perform(actor, actor.core.handle(event, now))

    async def _sleep(self) -> None:
        delay = (self._alarms[0][0] - self._clock()) / 1e6 if self._alarms else 1.0
        self._wake.clear()
        if self._events or self._stopping or self._failure is not None or delay <= 0:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(min(delay, 1.0)):
                await self._wake.wait()

    def _ring(self) -> None:
        now = self._clock()
        while self._alarms and self._alarms[0][0] <= now:
            _, _, actor = heapq.heappop(self._alarms)
            self._events.append((actor, ev.AlarmRang()))

    def _finished(self) -> bool:
        done = self._sources_complete and all(
            self._authority.value(name) >= MAX_TIME for name in (*self._graph.computations,)
        )
        return (
            done
            and not self._events
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

    def _count(self) -> int:
        self._alarm_count += 1
        return self._alarm_count

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        events = self._events
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
                    self._authority.report(actor.owner, actor.interval, value)
                    self._persist_wake.set()
                case ev.SetAlarm(at):
                    heapq.heappush(self._alarms, (at, self._count(), actor))
                case ev.Read(limit):
                    if self._crowded(actor):
                        self._parked.append((actor, limit))
                    else:
                        self._read(actor, limit)
                case ev.Advance():
                    self._advances.append((actor, effect))
                    self._advance_wake.set()
                case ev.Load():
                    self._spawn(self._load(actor, effect))
                case ev.LoadTimers():
                    self._spawn(self._load_timers(actor, effect))
                case ev.Fold():
                    self._spawn(self._fold(actor, effect))
                case ev.LookupIds():
                    self._spawn(self._lookup(actor, effect))
                case ev.Mark(suspicion, alone):
                    if not alone or self._alone.enter(actor, suspicion):
                        self._submit_mark(actor, effect)
                case ev.Unmark():
                    self._submit_mark(actor, effect)
                case ev.ReadOpaque():
                    self._spawn(self._read_opaque(actor, effect))
                case ev.FetchQuarantine(key, limit):
                    self._spawn(self._fetch(actor, key, limit))
                case ev.Restart(inherited):
                    self._restarting.add(actor.interval)
                    self._spawn(self._restart(actor, inherited))
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
        self._wake.set()

    def _post(self, actor: Actor, event: ev.Event) -> None:
        self._events.append((actor, event))
        self._wake.set()

    async def _retry(self, what: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Until the store answers: an idempotent operation is simply done again."""
        while True:
            try:
                return await call()
            except (StoreUnavailable, CommitUnknown) as error:
                logger.warning("%s: %s; trying again", what, error)
                await asyncio.sleep(RETRY_DELAY_S)

    async def _load(self, actor: Actor, load: ev.Load) -> None:
        rows = await self._retry("load", lambda: self._store.load(actor.interval, load.keys, load.timers))
        self._post(actor, ev.Loaded(rows))

    async def _load_timers(self, actor: Actor, load: ev.LoadTimers) -> None:
        place, store = (actor.interval, actor.sequencer), self._store
        rows = await self._retry("timers", lambda: store.load_timers(*place, load.kind, load.after, load.limit))
        more = rows is not None and len(rows.keys) >= load.limit
        self._post(actor, ev.Fenced() if rows is None else ev.TimersLoaded(load.kind, rows, more))

    async def _lookup(self, actor: Actor, asked: ev.LookupIds) -> None:
        store, interval, subscription = self._store, actor.interval, asked.subscription
        found: set[int] = set()
        opaque: set[bytes] = set()
        if asked.sequences:
            found = await self._retry(
                "ids", lambda: store.find_ids(interval, subscription, asked.producer, asked.sequences)
            )
        if asked.opaque:
            opaque = await self._retry(
                "ids", lambda: store.find_opaque(interval, subscription, asked.now, asked.opaque)
            )
        self._post(actor, ev.IdsFound(asked.sender, found, opaque))

    async def _read_opaque(self, actor: Actor, asked: ev.ReadOpaque) -> None:
        store, bucket = self._store, (asked.subscription, asked.expires)
        ids = await self._retry("ids", lambda: store.read_opaque(actor.interval, *bucket, asked.after, asked.limit))
        self._post(actor, ev.OpaqueRead(*bucket, ids))

    async def _fold(self, actor: Actor, fold: ev.Fold) -> None:
        place, store = (actor.interval, actor.sequencer, fold.upto), self._store
        kept = await self._retry("fold", lambda: store.fold(*place, fold.images, fold.acked, fold.fresh))
        self._post(actor, ev.Folded(fold.upto) if kept else ev.Fenced())

    async def _fetch(self, actor: Actor, key: str, limit: int) -> None:
        rows = await self._retry("quarantine", lambda: self._store.quarantine_rows(actor.owner, key, limit))
        entries = [
            QuarantineEntry(r.key, r.subscription, r.producer, r.sequence, r.value, r.timestamp, r.tag, r.kind, r.error)
            for r in rows
        ]
        self._post(actor, ev.QuarantineFetched(key, entries))

    async def _commit(self, group: list[LogWrite]) -> set[tuple[int, int]]:
        durable: set[tuple[int, int]] = set()
        while group:
            try:
                durable = await self._retry("commit", lambda group=group: self._store.commit(group))  # type: ignore[misc]
                break
            except RowRefused as refusal:
                self._set_aside(refusal)
                group = [write for write in group if write.interval != refusal.interval]
        return durable

    def _committed(self, write: LogWrite, kept: bool) -> None:
        actor = self._actors[write.interval]
        if actor.sequencer == write.sequencer:  # not what a void core had submitted
            self._post(actor, ev.Committed(write.seq) if kept else ev.Fenced())

    def _set_aside(self, refusal: RowRefused) -> None:
        """Before anything else happens: nothing of the interval may be committed any more but by its next core."""
        actor = self._actors[refusal.interval]
        logger.warning("%s; in %s %d records or timers go to quarantine", refusal, actor.owner, len(refusal.rows))
        self._commits.drop(actor.interval)
        self._perform(actor, actor.core.handle(ev.Refused(refusal.seq, refusal.rows), self._clock()))
        self._leave(actor)

    async def _restart(self, old: Actor, inherited: ev.Inherited) -> None:
        """Another core for an interval of ours whose soft state is void; what it had not made durable comes again."""
        interval, core = old.interval, old.core
        assert isinstance(core, IntervalCore)
        sequencer = await self._retry("restart", lambda: self._store.reacquire(interval, old.sequencer))
        if sequencer is None:
            raise Fenced(f"interval {interval} of {old.owner!r}: another run owns this pipeline's store now")
        await self._adopt(interval, old.owner, core.config.low, core.config.high, sequencer, inherited)
        # Without a pause: a bundle that is sent to the new core before the older ones would overtake them.
        now, actor = self._clock(), self._actors[interval]
        for sender in [*self._actors.values()]:
            self._perform(sender, sender.core.handle(ev.Resend(interval), now) if sender is not actor else [])
        assert isinstance(actor.core, IntervalCore)
        self._perform(actor, actor.core.start(now, self._live))
        self._perform(actor, actor.core.handle(ev.WatermarkMoved(self._authority.input_of(actor.owner)), now))
        self._restarting.discard(interval)
        self._wake.set()

    async def _advance_loop(self) -> None:
        while True:
            await self._advance_wake.wait()
            self._advance_wake.clear()
            while self._advances:
                batch = list(self._advances)
                self._advances.clear()
                writes = [PositionWrite(a.interval, a.sequencer, e.position, e.finished, e.state) for a, e in batch]
                kept = await self._retry("advance", lambda writes=writes: self._store.advance(writes))  # type: ignore[misc]
                for actor, effect in batch:
                    if actor.interval in kept:
                        self._post(actor, ev.Advanced(effect.position, effect.finished))
                    else:
                        self._post(actor, ev.Fenced())

    def _submit_mark(self, actor: Actor, mark: ev.Mark | ev.Unmark) -> None:
        self._marks.append((actor, mark))
        self._mark_wake.set()

    async def _mark_loop(self) -> None:
        """What is about to run is durable before it runs, when it may kill the process."""
        while True:
            await self._mark_wake.wait()
            self._mark_wake.clear()
            while self._marks:
                batch = [*self._marks]
                self._marks.clear()
                writes = mark_writes((a.interval, a.sequencer, mark) for a, mark in batch if not a.core.halted)
                kept = await self._retry("mark", lambda writes=writes: self._store.mark(writes))  # type: ignore[misc]
                for actor, mark in batch:
                    if actor.interval not in kept:
                        self._post(actor, ev.Fenced())
                    elif type(mark) is ev.Mark:
                        self._post(actor, ev.Marked())
                    else:
                        self._leave(actor)

    def _leave(self, actor: Actor) -> None:
        """The suspect that ran alone is done, or void: the next one, or everything that had to wait."""
        while True:
            kept, after = self._alone.leave(actor)
            self._events.extend(kept)
            if after is None:
                break
            actor, suspicion = after
            if not actor.core.halted:
                self._submit_mark(actor, ev.Mark(suspicion, alone=True))
                break
        self._wake.set()

    async def _persist_loop(self) -> None:
        """A watermark is persisted before anybody hears of it (§4.5)."""
        while True:
            await self._persist_wake.wait()
            self._persist_wake.clear()
            changed = self._authority.changes()
            if not changed:
                continue
            await self._retry("watermark", lambda changed=changed: self._store.persist_watermarks(changed))  # type: ignore[misc]
            for name, value in self._authority.adopt(changed).items():
                for actor in self._intervals_of[name]:
                    self._post(actor, ev.WatermarkMoved(value))
            self._wake.set()
            await asyncio.sleep(PERSIST_DELAY_S)

    async def _redrive_loop(self) -> None:
        while True:
            await asyncio.sleep(REDRIVE_DELAY_S)
            await self._ask_redrives()

    async def _ask_redrives(self) -> None:
        for computation, key in await self._retry("redrive", self._store.redrive_requests):
            for actor in self._intervals_of.get(computation, ()):
                assert isinstance(actor.core, IntervalCore)
                config = actor.core.config
                if config.low <= key and (config.high is None or key < config.high):
                    self._post(actor, ev.RedriveAsked(key))


def mark_writes(marks: Iterable[tuple[int, int, ev.Mark | ev.Unmark]]) -> list[MarkWrite]:
    """The newest of each interval's marks: (interval, sequencer, mark)."""
    writes: dict[int, MarkWrite] = {}
    for interval, sequencer, mark in marks:
        before = writes.get(interval)
        ends = 1 if type(mark) is ev.Unmark and mark.trusted else before.ends if before else None
        writes[interval] = MarkWrite(interval, sequencer, mark.suspicion, ends)
    return [*writes.values()]


def check_sources(graph: Graph) -> None:
    """A pipeline without a source would wait for ever."""
    if not graph.sources:
        raise SourceError(f"pipeline {graph.name!r} has no source: call pipeline.inject(source, into=stream)")
