"""One process of a simulation: the embedded driver in virtual time.

Lives here: performing the effects of the shipping cores against the memory store, as `runtime.embedded` does, with
every wait drawn from the nemesis.  Never here: decisions about delivery.  Invariant: after `dead` is set nothing of this
process happens any more, but for requests that were on their way to the store.
"""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from millwheel.api.context import Output, Table
from millwheel.bundles import Bundle, LogWrite, QuarantineEntry, Recovered, TimerWrites, decode_checkpoint
from millwheel.core import events as ev
from millwheel.core.authority import Authority
from millwheel.core.dedup import Channel
from millwheel.core.injector import InjectorCore
from millwheel.core.interval import Config, IntervalCore
from millwheel.errors import CommitUnknown, RowRefused, StoreUnavailable
from millwheel.graph import Graph
from millwheel.intervals import Ranges
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import IntervalRow, MarkWrite, Opened, PositionWrite, SourcePartition
from millwheel.runtime.executor import Executor, output_of
from millwheel.runtime.sources import read_rows
from millwheel.testing.faults import Action, Nemesis
from millwheel.testing.marks import Marks
from millwheel.testing.story import Kernel
from millwheel.testing.truth import WatchedStore
from millwheel.work import Outcome, Work

RETRY_US: Final = 50_000
TICK_US: Final = 20_000
DISCOVER_US: Final = 300_000
REDRIVE_US: Final = 300_000
COMMIT_LANES: Final = 2
RESTART_WEIGHT: Final = 200
"""Restarts of an interval are rare, and a process that is overtaken during one is what there is to see."""
SHAPE_VERSION: Final = "1"

STEPS: Final = {
    ev.Send: "send", ev.Ack: "ack", ev.Commit: "submit", ev.Invoke: "invoke", ev.SetAlarm: "alarm",
    ev.ReportWatermark: "report", ev.Read: "read",
}  # fmt: skip


class Crash(BaseException):
    """This process dies here.  No `Exception`: a hook that raises it is a hook that kills its process."""


class World(Protocol):
    """What a process needs of the simulation around it."""

    kernel: Kernel
    store: WatchedStore
    nemesis: Nemesis
    graph: Graph
    tables: Mapping[str, Table]

    def crashed(self, process: Process) -> None:
        """The process died."""
        ...

    def overtaken(self, process: Process) -> None:
        """The process froze, another one takes over."""
        ...

    def ended(self, process: Process) -> None:
        """The process is done: all input is consumed and folded."""
        ...


class Actor(msgspec.Struct, eq=False):
    """A core and what its effects need."""

    interval: int
    sequencer: int
    owner: str
    core: IntervalCore | InjectorCore
    executor: Executor | None = None
    partition: SourcePartition | None = None
    output: Output | None = None
    timers: dict[tuple[str, str, str], int | None] = {}
    """(key, kind, tag) to what it is set to, as hooks and the committed checkpoints say."""


class Request(msgspec.Struct, eq=False):
    """A call to the store that is on its way or being retried."""

    step: str
    call: Callable[[], Coroutine[Any, Any, Any]]
    done: Callable[[Any], None]
    refused: Callable[[RowRefused], None] | None = None
    """Told when the database refuses a sink row."""


class Process:
    """One incarnation: acquires every interval, recovers, serves until it dies, is fenced or is done."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        self.serving = False
        self.done = False
        self.offset_us = 0
        self.frozen_until = 0
        self.endless = False
        """The run never ends by itself (the stepper)."""
        self.authority = Authority({}, {})
        self.actors: dict[int, Actor] = {}
        self._intervals_of: dict[str, list[Actor]] = {}
        self._subscriptions: Mapping[str, int] = {}
        self._ranges: dict[int, Ranges] = {}
        self._executors: dict[str, Executor] = {}
        self._known: dict[str, set[str]] = {}
        self._complete = False
        self._queued = 0
        self._channels: dict[tuple[object, ...], int] = {}
        self._alarms: list[tuple[int, int, Actor]] = []
        self._alarm_count = 0
        self._commits: deque[LogWrite] = deque()
        self._committing: list[list[LogWrite]] = []
        self._advances: deque[tuple[Actor, ev.Advance]] = deque()
        self._busy: set[str] = set()
        self._requests: list[Request] = []
        self._loaded: dict[int, set[str]] = {}
        self._live: set[Channel] = set()
        """Where something may still come."""
        self._restored: set[tuple[str, str]] = set()
        self._parked: dict[int, Actor] = {}
        self._marks = Marks(self)
        self._restarting: set[int] = set()
        """Intervals whose core is void and not yet replaced."""

    # --- time -------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Wall time of this process, us."""
        return self.world.kernel.now + self.offset_us

    def later(self, delay_us: int, call: Callable[..., None], *arguments: Any) -> None:
        """Run `call` in this process, unless it is dead by then."""
        kernel = self.world.kernel
        kernel.at(kernel.now + delay_us, self._guarded, call, arguments)

    def _guarded(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        kernel = self.world.kernel
        if self.dead:
            return
        if self.frozen_until > kernel.now:
            kernel.at(self.frozen_until, self._guarded, call, arguments)
            return
        try:
            call(*arguments)
        except Crash:
            self.die()
            self.world.crashed(self)

    def count(self) -> None:
        """What the cores did, into the probes."""
        for actor in self.actors.values():
            if isinstance(actor.core, IntervalCore):
                self.world.kernel.probes["duplicate dropped"] += actor.core.counters.duplicates
                self.world.kernel.probes["bundle queued behind a lookup"] += actor.core.counters.queued
                self.world.kernel.probes["outside id repeated"] += actor.core.counters.repeated

    def die(self) -> None:
        """Lose everything that is soft; requests on the wire may still arrive at the store."""
        self.dead = True
        self.count()
        kernel = self.world.kernel
        kernel.trace(f"p{self.number} dies")
        for request in self._requests:
            if request.step not in ("load", "lookup", "page") and self.world.nemesis.orphan():
                kernel.at(kernel.now + self.world.nemesis.delay_us("orphan"), self._orphan, request)

    def end_in_order(self) -> None:
        """Stop as on Ctrl-C: what is not committed is done again, and nothing is suspected."""
        self.world.kernel.trace(f"p{self.number} ends in order")
        self.dead = True
        self.count()
        cores = [a for a in self.actors.values() if isinstance(a.core, IntervalCore)]
        run(self.world.store.mark([MarkWrite(a.interval, a.sequencer, b"", 0) for a in cores]))

    def condemned(self) -> bool:
        """Whether anything must not run here because it has killed processes."""
        return any(bool(a.core.suspects) for a in self.actors.values() if isinstance(a.core, IntervalCore))

    def _orphan(self, request: Request) -> None:
        kernel = self.world.kernel
        kernel.trace(f"p{self.number} orphan {request.step}")
        kernel.probes["request of a dead process applied"] += 1
        with suppress(RowRefused):  # nobody is left to hear of it
            run(request.call())

    def step_clock(self, by_us: int) -> None:
        """The wall clock jumps."""
        self.offset_us += by_us
        self.world.kernel.trace(f"p{self.number} clock {by_us:+}")
        # Later, as the runtime does: now, the effects of another event may be half performed.
        self.later(0, self._ring)

    # --- the store --------------------------------------------------------------------------------------------

    def _strike(self, step: str) -> Action:
        action = self.world.nemesis.strike(step)
        if action:
            self.world.kernel.trace(f"p{self.number} fault {action} at {step}")
        return action

    def _call(self, step: str, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """One attempt, as the nemesis lets it go."""
        action = self._strike(step)
        if action == "crash before":
            raise Crash
        if action == "refused":
            raise StoreUnavailable(f"{step}: refused")
        if action == "absent":
            raise CommitUnknown(f"{step}: reply lost, not applied")
        answer = run(call())
        if action == "duplicate":
            answer = run(call())
        if action == "crash after":
            raise Crash
        if action == "lost":
            self.world.kernel.probes[f"applied, reply lost: {step}"] += 1
            raise CommitUnknown(f"{step}: reply lost, applied")
        return answer

    def request(
        self,
        step: str,
        call: Callable[[], Coroutine[Any, Any, Any]],
        done: Callable[[Any], None],
        refused: Callable[[RowRefused], None] | None = None,
    ) -> None:
        """Call the store until it answers; each attempt takes its time."""
        request = Request(step, call, done, refused)
        self._requests.append(request)
        self.later(self.world.nemesis.delay_us(step), self._attempt, request)

    def _attempt(self, request: Request) -> None:
        try:
            answer = self._call(request.step, request.call)
        except (StoreUnavailable, CommitUnknown) as error:
            self.world.kernel.probes[f"retried: {type(error).__name__}"] += 1
            self.later(RETRY_US, self._attempt, request)
            return
        except RowRefused as refusal:
            assert request.refused is not None
            self._requests.remove(request)
            self.later(self.world.nemesis.delay_us("reply"), request.refused, refusal)
            return
        self._requests.remove(request)
        self.later(self.world.nemesis.delay_us("reply"), request.done, answer)

    # --- start ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take over; each step is an event of its own, so that others come in between."""
        self.world.kernel.trace(f"p{self.number} starts")
        self.later(self.world.nemesis.delay_us("start"), self._boot_step, self._boot())

    def _boot_step(self, boot: Iterator[None]) -> None:
        try:
            next(boot)
        except StopIteration:
            return
        except (StoreUnavailable, CommitUnknown) as error:
            raise Crash from error  # a start that fails is a process that ends
        self._mishap()
        self.later(self.world.nemesis.delay_us("start"), self._boot_step, boot)

    def _boot(self) -> Iterator[None]:
        store, graph = self.world.store, self.world.graph
        opened: Opened = self._call("open", lambda: store.open_pipeline(graph.shape()))
        self._subscriptions = opened.subscriptions
        rows = [row for row in opened.intervals if row.computation in graph.computations]
        self._route(rows)
        yield
        sequencers: dict[int, int] = self._call("acquire", lambda: store.acquire([row.id for row in rows]))
        persisted: dict[str, int] = self._call("watermarks", store.watermarks)
        self.authority = Authority({name: graph.senders(name) for name in graph.computations}, persisted)
        for row in rows:
            yield
            self._adopt(row, sequencers[row.id])
        yield
        self._serve()

    def _route(self, rows: list[IntervalRow]) -> None:
        graph = self.world.graph
        maps = {c: Ranges((r.low, r.id) for r in rows if r.computation == c) for c in graph.computations}
        for name, spec in graph.computations.items():
            for subscription in spec.inputs:
                self._ranges[self._subscriptions[subscription.name]] = maps[subscription.computation]
            self._executors[name] = Executor(spec, graph, self._subscriptions, self.world.tables)

    def _adopt(self, row: IntervalRow, sequencer: int) -> None:
        recovered = self._call("recover", lambda: self.world.store.recover(row.id, sequencer))
        if recovered is None:
            self.world.kernel.probes["fenced during recovery"] += 1
            raise Crash
        spec = self.world.graph.computations[row.computation]
        streams = [s for output in spec.outputs for s in self.world.graph.subscriptions(output)]
        routes = {self._subscriptions[s.name]: self._ranges[self._subscriptions[s.name]] for s in streams}
        slacks = self.world.graph.slacks(spec.name, self._subscriptions)
        config = Config(row.id, sequencer, spec.name, SHAPE_VERSION, spec.settings, routes, row.low, row.high, slacks)
        self._install(config, recovered)

    def _install(self, config: Config, recovered: Recovered, inherited: ev.Inherited | None = None) -> Actor:
        """The actor of an interval, with a core that is not started yet."""
        interval, name = config.interval, config.computation
        core = IntervalCore(config, recovered, inherited)
        actor = self.actors[interval] = Actor(interval, config.sequencer, name, core, self._executors[name])
        others = [other for other in self._intervals_of.get(name, ()) if other.interval != interval]
        self._intervals_of[name] = [*others, actor]
        self.authority.expect(name, interval)
        self._live |= {(bundle.subscription, bundle.producer) for bundle in recovered.productions}
        for output in self.world.graph.computations[name].outputs:
            self._expect(config.sequencer, output)
        if recovered.productions:
            self.world.kernel.probes["productions resent after restart"] += 1
        for key, timers in self.world.store.durable[name].timers.items():
            if config.low <= key and (config.high is None or key < config.high):
                actor.timers.update(((key, *timer), at) for timer, at in timers.items())
        self._restored.update((key, tag) for key, _, tag in actor.timers)
        if recovered.timers.keys:
            self.world.kernel.probes["timers restored after restart"] += 1
        return actor

    def _begin(self, actor: Actor) -> None:
        assert isinstance(actor.core, IntervalCore)
        self._perform(actor, actor.core.start(self.clock(), self._live))
        self._handle(actor, ev.WatermarkMoved(self.authority.input_of(actor.owner)))

    def _expect(self, producer: int, stream: str) -> None:
        """The producer may still send on the stream."""
        self._live |= {(self._subscriptions[s.name], producer) for s in self.world.graph.subscriptions(stream)}

    def _serve(self) -> None:
        self.serving = True
        for source, spec in self.world.graph.sources.items():
            for position in self._call("source", lambda source=source: self.world.store.source_partitions(source)):  # type: ignore[misc]
                if not position.finished:
                    self._expect(position.producer, spec.stream)
        for actor in list(self.actors.values()):
            self._begin(actor)
        self._open_sources()
        self._discover()
        self._ask_redrives()
        self._tick()

    # --- sources ----------------------------------------------------------------------------------------------

    def _open_sources(self) -> None:
        for name in self.world.graph.sources:
            self._known[name] = set()
            for position in self._call("source", lambda name=name: self.world.store.source_partitions(name)):  # type: ignore[misc]
                self.authority.expect(f"source:{name}", position.interval)
                if position.finished:
                    self.authority.report(f"source:{name}", position.interval, MAX_TIME)

    def _discover(self) -> None:
        complete = True
        for name, spec in self.world.graph.sources.items():
            for partition in spec.source.discover(self._known[name]):
                self._open_partition(name, spec.stream, partition)
            complete = complete and spec.source.complete()
            self.authority.bound(f"source:{name}", spec.source.pending_watermark())
        self._complete = complete
        self._persist()
        if not complete:
            self.later(DISCOVER_US, self._discover)

    def _open_partition(self, source: str, stream: str, partition: SourcePartition) -> None:
        store, graph = self.world.store, self.world.graph
        self._known[source].add(partition.name)
        name, print_ = partition.name, partition.fingerprint()
        try:
            position = self._call("source", lambda: store.open_source(source, name, print_))
            taken = self._call("acquire", lambda: store.acquire([position.interval]))
        except (StoreUnavailable, CommitUnknown) as error:
            raise Crash from error
        if not position.finished:
            self._expect(position.producer, stream)
            partition.resume(position.position, position.state)
        routes = {self._subscriptions[s.name]: None for s in graph.subscriptions(stream)}
        core = InjectorCore(position.interval, position, {number: self._ranges[number] for number in routes})
        output = output_of(graph, stream, self._subscriptions)
        actor = Actor(position.interval, taken[position.interval], f"source:{source}", core, None, partition, output)
        self.actors[position.interval] = actor
        self.authority.expect(actor.owner, position.interval)
        self._perform(actor, core.start(self.clock(), MIN_TIME if position.finished else partition.watermark()))

    def _read(self, actor: Actor, limit: int) -> None:
        assert actor.partition is not None
        assert actor.output is not None
        if not getattr(actor.partition, "news", lambda: True)():
            self._parked[actor.interval] = actor
            return
        source = self.world.graph.sources[actor.owner.removeprefix("source:")].source
        rows = read_rows(actor.partition, actor.output, limit, _reject, source.record_id)
        self.post(actor, rows, "read")

    def wake_sources(self) -> None:
        """Read what was handed to manual sources."""
        parked, self._parked = self._parked, {}
        for actor in parked.values():
            self._read(actor, 4_096)

    # --- events -----------------------------------------------------------------------------------------------

    def post(self, actor: Actor, event: ev.Event | Work, step: str, channel: tuple[object, ...] = ()) -> None:
        """Deliver an event later; events of one channel arrive in order."""
        kernel = self.world.kernel
        due = kernel.now + self.world.nemesis.delay_us(step)
        if channel:
            due = self._channels[channel] = max(due, self._channels.get(channel, 0))
        self._queued += 1
        self.later(due - kernel.now, self._deliver, actor, event)

    def _deliver(self, actor: Actor, event: ev.Event | Work) -> None:
        self._queued -= 1
        self._handle(actor, event)

    def _handle(self, actor: Actor, event: ev.Event | Work) -> None:
        kernel = self.world.kernel
        if actor.core.halted:
            return  # void, another core has its interval
        if isinstance(event, Work):
            if self._marks.keeps(actor, event):
                return
            assert actor.executor is not None
            self._check_timers(actor, event)
            for timer in event.timers:
                kernel.trace(f"p{self.number} i{actor.interval} fires {timer.key!r} {timer.tag!r} {timer.timestamp}")
                kernel.probes[f"{timer.kind} timer fired"] += 1
                kernel.probes["timer fired after restart"] += (timer.key, timer.tag) in self._restored
            event = ev.Invoked(self._run(actor, actor.executor, event))
            kernel.probes["late record"] += event.outcome.late
            for key, changes in event.outcome.timers.items():
                actor.timers.update(((key, *name), at) for name, at in changes.items())
        kernel.events += 1
        kernel.trace(f"p{self.number} i{actor.interval} {_describe(event)}")
        self._perform(actor, actor.core.handle(event, self.clock()))

    def _run(self, actor: Actor, executor: Executor, work: Work) -> Outcome:
        try:
            return executor.run(work)
        except Crash:
            assert isinstance(actor.core, IntervalCore)
            self.world.kernel.trace(f"p{self.number} i{actor.interval} is killed by its hook")
            self.world.kernel.probes["hook killed the process"] += 1
            self.world.store.saw_kill(actor.interval, actor.sequencer, actor.core.suspects.running)
            raise

    def _check_timers(self, actor: Actor, work: Work) -> None:
        """A timer fires once for each time it is set (I8).  A zombie may have loaded what its successor has set."""
        for timer in work.timers:
            at = actor.timers.pop((timer.key, timer.kind, timer.tag), None)
            if at != timer.timestamp and self.world.store.owner[actor.interval] == actor.sequencer:
                name = f"{timer.kind} timer {timer.tag!r} of {timer.key!r}"
                self.world.store.fail(f"I8: {name} fires for {timer.timestamp}, and is set to {at}", timer.key)

    def _perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        for effect in effects:
            step = STEPS.get(type(effect))
            action = self._strike(step) if step else ""
            if action == "crash before":
                raise Crash
            self._effect(actor, effect)
            if action == "duplicate":
                self._again(effect)
            if action == "crash after":
                raise Crash
            self._mishap()

    def _mishap(self, weight: int = 1) -> None:
        nemesis = self.world.nemesis
        by_us = nemesis.clock_step_us()
        if by_us:
            self.step_clock(by_us)
        frozen_us = nemesis.zombie_us(weight)
        if frozen_us:
            self.frozen_until = self.world.kernel.now + frozen_us
            self.world.overtaken(self)

    def _effect(self, actor: Actor, effect: ev.Effect) -> None:
        match effect:
            case ev.Send(bundle):
                self._send(actor, bundle)
            case ev.Ack(sender, number):
                self.world.store.saw_ack(actor.interval, sender, number, self.number)
                if number >> 32 not in (0, self.actors[sender].sequencer):
                    self.world.kernel.probes["ack of a bundle that a void core had sent"] += 1
                self.post(self.actors[sender], ev.AckArrived(number), "ack")
            case ev.Invoke(work):
                self.post(actor, work, "invoke")
            case ev.Commit(write):
                self._note_straggler(actor, write)
                self._commits.append(write)
                self._commit()
            case ev.ReportWatermark(value):
                self.world.kernel.trace(f"p{self.number} i{actor.interval} reports {value}")
                self.authority.report(actor.owner, actor.interval, value)
                self._persist()
            case ev.SetAlarm(at):
                self._alarm_count += 1
                heapq.heappush(self._alarms, (at, self._alarm_count, actor))
                self.later(max(0, at - self.clock()), self._ring)
            case _:
                self._effect_rare(actor, effect)

    def _note_straggler(self, actor: Actor, write: LogWrite) -> None:
        weak = isinstance(actor.core, IntervalCore) and actor.core.config.settings.productions == "weak"
        if weak and decode_checkpoint(write.payload).produced:
            self.world.kernel.probes["weak straggler checkpointed"] += 1

    def _effect_rare(self, actor: Actor, effect: ev.Effect) -> None:
        match effect:
            case ev.Read(limit):
                self._read(actor, limit)
            case ev.Advance():
                self._advances.append((actor, effect))
                self._advance()
            case ev.Load(keys, timers):
                loaded = self._loaded.setdefault(actor.interval, set())
                self.world.kernel.probes["key evicted"] += len(loaded.intersection(keys))
                loaded.update(keys)
                store, interval = self.world.store, actor.interval
                self.request(
                    "load", lambda: store.load(interval, keys, timers), lambda rows: self._got(actor, ev.Loaded(rows))
                )
            case ev.LoadTimers():
                self._page(actor, effect)
            case ev.Fold():
                self._fold(actor, effect)
            case ev.LookupIds():
                self._lookup(actor, effect)
            case ev.ReadOpaque():
                self._read_opaque(actor, effect)
            case ev.FetchQuarantine(key, limit):
                self._fetch(actor, key, limit)
            case ev.Mark() | ev.Unmark():
                self._marks.perform(actor, effect)
            case ev.Restart(inherited):
                self._restart(actor, inherited)
            case ev.Halt():
                self.world.kernel.probes["process halted by a fence"] += 1
                raise Crash
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _lookup(self, actor: Actor, asked: ev.LookupIds) -> None:
        async def call() -> tuple[set[int], set[bytes]]:
            store, interval, subscription = self.world.store, actor.interval, asked.subscription
            found = await store.find_ids(interval, subscription, asked.producer, asked.sequences)
            return found, await store.find_opaque(interval, subscription, asked.now, asked.opaque)

        self.request("lookup", call, lambda answer: self._found(actor, asked, *answer))

    def _found(self, actor: Actor, asked: ev.LookupIds, found: set[int], opaque: set[bytes]) -> None:
        assert isinstance(actor.core, IntervalCore)
        restored = actor.core._arrivals.ids.restored(asked.subscription, asked.producer)
        probes = self.world.kernel.probes
        for sequence in asked.sequences:
            who = "earlier owner's id" if sequence <= restored else "Bloom hit"
            probes[f"{who} found {'present' if sequence in found else 'absent'}"] += 1
        unread = any(bucket.unread for bucket in actor.core._arrivals.opaque._buckets.values())
        for id_ in asked.opaque:
            who = "outside id" if unread else "outside id in a filter"
            probes[f"{who} found {'present' if id_ in opaque else 'absent'}"] += 1
        self._handle(actor, ev.IdsFound(asked.sender, found, opaque))

    def _read_opaque(self, actor: Actor, asked: ev.ReadOpaque) -> None:
        store, bucket = self.world.store, (asked.subscription, asked.expires)
        self.request(
            "lookup",
            lambda: store.read_opaque(actor.interval, *bucket, asked.after, asked.limit),
            lambda ids: self._handle(actor, ev.OpaqueRead(*bucket, ids)),
        )

    def _page(self, actor: Actor, effect: ev.LoadTimers) -> None:
        store, kind, limit = self.world.store, effect.kind, effect.limit
        self.world.kernel.probes["page of timers read"] += 1

        def done(rows: TimerWrites | None) -> None:
            self._got(actor, ev.Fenced() if rows is None else ev.TimersLoaded(kind, rows, len(rows.keys) >= limit))

        self.request(
            "page", lambda: store.load_timers(actor.interval, actor.sequencer, kind, effect.after, limit), done
        )

    def _got(self, actor: Actor, event: ev.Event) -> None:
        self._handle(actor, event)

    def _send(self, actor: Actor, bundle: Bundle) -> None:
        wire = copy.copy(bundle)
        self.world.store.saw_send(actor.interval, actor.sequencer, wire, self.number)
        self.post(
            self.actors[bundle.target], ev.BundleArrived(wire), "deliver", ("send", actor.interval, bundle.target)
        )

    def _again(self, effect: ev.Effect) -> None:
        """The second copy comes some time later, and not in order."""
        kernel = self.world.kernel
        match effect:
            case ev.Send(bundle):
                kernel.probes["bundle delivered twice"] += 1
                event: ev.Event = ev.BundleArrived(copy.copy(bundle))
                actor = self.actors[bundle.target]
            case ev.Ack(sender, number):
                kernel.probes["ack delivered twice"] += 1
                event, actor = ev.AckArrived(number), self.actors[sender]
            case _:
                return
        # Never before the original: only copies that come late are possible on a channel in order.
        channel = (
            self._channels.get(("send", effect.bundle.sender, actor.interval), 0) if type(effect) is ev.Send else 0
        )
        # A third of them so late that the ids of the original may have been sealed, or collected.
        delay_us = max(0, channel - kernel.now) + self.world.nemesis.delay_us("again") * kernel.rng.choice((4, 4, 60))
        self.later(delay_us, self._handle, actor, event)

    def _ring(self) -> None:
        now = self.clock()
        while self._alarms and self._alarms[0][0] <= now:
            _, _, actor = heapq.heappop(self._alarms)
            self._handle(actor, ev.AlarmRang())
        if self._alarms and self._alarms[0][0] - now > 0 and self.offset_us:
            self._ring_again(self._alarms[0][0] - now)

    def _ring_again(self, delay_us: int) -> None:
        """After a step of the clock the alarm's virtual time is another one."""
        due = self.world.kernel.now + delay_us
        if self._channels.get(("ring",), 0) != due:
            self._channels[("ring",)] = due
            self.later(delay_us, self._ring)

    # --- services: one request at a time, like the loops of the embedded runtime -----------------------------------

    def _commit(self) -> None:
        """Two groups at a time, no interval in both: every order that the lanes of the runtime can give, and more."""
        busy = {write.interval for group in self._committing for write in group}
        batch = [write for write in self._commits if write.interval not in busy]
        if len(self._committing) == COMMIT_LANES or not batch:
            return
        self.world.kernel.probes["two groups commit"] += bool(self._committing)
        self._committing.append(batch)
        self._commits = deque(write for write in self._commits if write.interval in busy)
        self._commit_group(batch, batch)

    def _commit_group(self, batch: list[LogWrite], group: list[LogWrite]) -> None:
        """Commit `group`, what is left of `batch`."""
        self.request(
            "commit",
            lambda: self.world.store.commit(group),
            lambda kept: self._committed(batch, kept),
            lambda refusal: self._set_aside(batch, group, refusal),
        )

    def _set_aside(self, batch: list[LogWrite], group: list[LogWrite], refusal: RowRefused) -> None:
        """A sink row was refused: the interval's core is void, the others' checkpoints are tried again."""
        self.world.kernel.probes["sink row refused"] += 1
        self.world.kernel.trace(f"p{self.number} i{refusal.interval} row refused in #{refusal.seq} {refusal.rows}")
        self._commits = deque(write for write in self._commits if write.interval != refusal.interval)
        self._handle(self.actors[refusal.interval], ev.Refused(refusal.seq, refusal.rows))
        self._marks.leave(self.actors[refusal.interval])
        group = [write for write in group if write.interval != refusal.interval]
        if group:
            self._commit_group(batch, group)
        else:
            self._committed(batch, set())

    def _committed(self, batch: list[LogWrite], durable: set[tuple[int, int]]) -> None:
        self._committing.remove(batch)
        for write in batch:
            actor = self.actors[write.interval]
            if actor.sequencer != write.sequencer or actor.core.halted:
                continue  # of a core that is void
            kept = (write.interval, write.seq) in durable
            if not kept:
                self.world.kernel.probes["fenced commit refused"] += 1
            event = ev.Committed(write.seq) if kept else ev.Fenced()
            self.post(actor, event, "committed", ("committed", write.interval))
        self._commit()

    # --- another core for an interval of ours ------------------------------------------------------------------

    def _restart(self, old: Actor, inherited: ev.Inherited) -> None:
        store, interval = self.world.store, old.interval
        self._restarting.add(interval)
        self.request(
            "restart",
            lambda: store.reacquire(interval, old.sequencer),
            lambda sequencer: self._reacquired(old, inherited, sequencer),
        )
        self._mishap(RESTART_WEIGHT)

    def _reacquired(self, old: Actor, inherited: ev.Inherited, sequencer: int | None) -> None:
        if sequencer is None:
            self.world.kernel.probes["fenced during a restart"] += 1
            raise Crash
        store, interval = self.world.store, old.interval
        self.request(
            "recover",
            lambda: store.recover(interval, sequencer),
            lambda recovered: self._replaced(old, inherited, sequencer, recovered),
        )

    def _replaced(self, old: Actor, inherited: ev.Inherited, sequencer: int, recovered: Recovered | None) -> None:
        if recovered is None:
            self.world.kernel.probes["fenced during a restart"] += 1
            raise Crash
        core = old.core
        assert isinstance(core, IntervalCore)
        self.world.kernel.probes["interval restarted"] += 1
        self.world.kernel.trace(f"p{self.number} i{old.interval} restarts as q{sequencer}")
        actor = self._install(msgspec.structs.replace(core.config, sequencer=sequencer), recovered, inherited)
        # All of this without a pause, as in `EmbeddedRun._restart`.
        for sender in [*self.actors.values()]:
            if sender is not actor:
                self._perform(sender, sender.core.handle(ev.Resend(actor.interval), self.clock()))
        self._begin(actor)
        self._restarting.discard(actor.interval)

    def _advance(self) -> None:
        if "advance" in self._busy or not self._advances:
            return
        self._busy.add("advance")
        batch = list(self._advances)
        self._advances.clear()
        writes = [PositionWrite(a.interval, a.sequencer, e.position, e.finished, e.state) for a, e in batch]
        self.request("advance", lambda: self.world.store.advance(writes), lambda kept: self._advanced(batch, kept))

    def _advanced(self, batch: list[tuple[Actor, ev.Advance]], kept: set[int]) -> None:
        self._busy.discard("advance")
        for actor, effect in batch:
            ok = actor.interval in kept
            if not ok:
                self.world.kernel.probes["fenced position refused"] += 1
            self._handle(actor, ev.Advanced(effect.position, effect.finished) if ok else ev.Fenced())
        self._advance()

    def _persist(self) -> None:
        if "persist" in self._busy:
            return
        changed = self.authority.changes()
        if not changed:
            return
        self._busy.add("persist")
        store = self.world.store
        self.request("persist", lambda: store.persist_watermarks(changed), lambda _: self._persisted(changed))

    def _persisted(self, changed: dict[str, int]) -> None:
        self._busy.discard("persist")
        for name, value in self.authority.adopt(changed).items():
            for actor in self._intervals_of[name]:
                self.post(actor, ev.WatermarkMoved(value), "watermark")
        self._persist()

    def _fold(self, actor: Actor, effect: ev.Fold) -> None:
        store, upto, images, acked, fresh = self.world.store, effect.upto, effect.images, effect.acked, effect.fresh
        self.world.kernel.probes["fold"] += 1
        self.world.kernel.probes["fold used later acks"] += bool(acked)
        self.world.kernel.probes["fold of a fresh key"] += bool(fresh)
        self.request(
            "fold",
            lambda: store.fold(actor.interval, actor.sequencer, upto, images, acked, fresh),
            lambda kept: self._folded(actor, upto, kept),
        )

    def _folded(self, actor: Actor, upto: int, kept: bool) -> None:
        if not kept:
            self.world.kernel.probes["fenced fold refused"] += 1
        self._handle(actor, ev.Folded(upto) if kept else ev.Fenced())

    def _fetch(self, actor: Actor, key: str, limit: int) -> None:
        store, owner = self.world.store, actor.owner
        self.request(
            "quarantine", lambda: store.quarantine_rows(owner, key, limit), lambda rows: self._fetched(actor, key, rows)
        )

    def _fetched(self, actor: Actor, key: str, rows: list[Any]) -> None:
        entries = [
            QuarantineEntry(r.key, r.subscription, r.producer, r.sequence, r.value, r.timestamp, r.tag, r.kind, r.error)
            for r in rows
        ]
        self._handle(actor, ev.QuarantineFetched(key, entries))

    def _ask_redrives(self) -> None:
        for computation, key in run(self.world.store.redrive_requests()):
            for actor in self._intervals_of.get(computation, ()):
                assert isinstance(actor.core, IntervalCore)
                config = actor.core.config
                if config.low <= key and (config.high is None or key < config.high):
                    self._handle(actor, ev.RedriveAsked(key))
        self.later(REDRIVE_US, self._ask_redrives)

    # --- the end ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.finished() and not self.endless:
            if self.quiet():
                self.done = True
                self.count()
                self.world.ended(self)
                return
            self.flush()
        self.later(TICK_US, self._tick)

    def finished(self) -> bool:
        """All input is consumed; as `EmbeddedRun` judges it."""
        names = self.world.graph.computations
        return (
            self._complete
            and all(self.authority.value(name) >= MAX_TIME for name in names)
            and not self._queued
            and not self._restarting
            and all(a.core.quiet() for a in self.actors.values() if isinstance(a.core, InjectorCore))
        )

    def quiet(self) -> bool:
        """Nothing is under way."""
        return not self._commits and not self._requests and all(a.core.quiet() for a in self.actors.values())

    def flush(self) -> None:
        """Record the last acks and fold."""
        for actor in list(self.actors.values()):
            if isinstance(actor.core, IntervalCore) and not actor.core.quiet():
                self._perform(actor, actor.core.flush(self.clock()))

    @property
    def idle(self) -> bool:
        """No event, request or commit is under way (the stepper's end of a step)."""
        return self.serving and not self._queued and not self._requests and not self._commits


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The answer of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store waited")


def _describe(event: ev.Event) -> str:
    match event:
        case ev.BundleArrived(b):
            ids = f"s{b.subscription} p{b.producer} {b.sequences} f{b.frontier}"
            return f"bundle from i{b.sender} n{b.number} {ids} {b.keys}"
        case ev.Invoked(outcome):
            cells = sorted({*outcome.values, *outcome.entries})
            return f"invoked {outcome.processed} {cells} timers {outcome.timers} holds {outcome.holds}"
        case ev.Committed(seq):
            return f"committed {seq}"
        case ev.RowsRead():
            return f"read {event.count} to {event.next_position} w{event.watermark}"
        case ev.IdsFound(sender, found, opaque):
            return f"ids found for i{sender} {sorted(found)} {sorted(opaque)}"
        case ev.Loaded(rows):
            return f"loaded {[row.key for row in rows]}"
        case ev.QuarantineFetched(key, entries):
            return f"fetched {key!r} {len(entries)}"
        case _:
            return repr(event)


def _reject(partition: str, row: int, reason: str, value: Any) -> None:
    """Rejected rows are the injector's business."""
