"""One process of a simulation: the embedded driver in virtual time.

Lives here: performing the effects of the shipping cores against the memory store, as `runtime.embedded` does, with
every wait drawn from the nemesis.  Never here: decisions about delivery.  Invariant: after `dead` is set nothing of this
process happens any more, but for requests that were on their way to the store.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from millwheel import limits
from millwheel.api.table import Table
from millwheel.bundles import Bundle, Recovered
from millwheel.core import events as ev
from millwheel.core.injector import InjectorCore
from millwheel.core.interval import Config, IntervalCore
from millwheel.errors import CommitUnknown, StoreUnavailable
from millwheel.graph import Graph
from millwheel.model import MAX_TIME, Timer
from millwheel.ports import MarkWrite, Opened
from millwheel.runtime.executor import Executor
from millwheel.runtime.redrives import Redrives
from millwheel.runtime.routes import Routes
from millwheel.testing.actor import Actor
from millwheel.testing.calls import Calls, Crash, run
from millwheel.testing.commits import Commits
from millwheel.testing.faults import Nemesis
from millwheel.testing.folded import FoldedTables
from millwheel.testing.mailbox import Mailbox
from millwheel.testing.marks import Marks
from millwheel.testing.partitions import Partitions
from millwheel.testing.story import Kernel
from millwheel.testing.watched import WatchedStore
from millwheel.testing.watermarks import Watermarks
from millwheel.work import Outcome, Work

TICK_US: Final = 20_000
REDRIVE_US: Final = 300_000
RESTART_WEIGHT: Final = 200
"""Restarts of an interval are rare, and a process that is overtaken during one is what there is to see."""

STEPS: Final = {
    ev.Send: "send", ev.Ack: "ack", ev.Commit: "submit", ev.Invoke: "invoke", ev.SetAlarm: "alarm",
    ev.ReportWatermark: "report", ev.Read: "read",
}  # fmt: skip


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


class Process:
    """One incarnation: acquires every interval, recovers, serves until it dies, is fenced or is done."""

    def __init__(self, world: World, number: int, graph: Graph) -> None:
        self.world = world
        self.number = number
        self.graph = graph
        """Its version of the pipeline; the world's is that of the run's end."""
        self.dead = False
        self.serving = False
        self.done = False
        self.offset_us = 0
        self.frozen_until = 0
        self.endless = False
        """The run never ends by itself (the stepper)."""
        self.actors: dict[int, Actor] = {}
        self.intervals_of: dict[str, list[Actor]] = {}
        self.routes = Routes(graph)
        self._redrives = Redrives(self.routes)
        self.mail = Mailbox(self)
        self.calls = Calls(self)
        self.watermarks = Watermarks(self)
        self.partitions = Partitions(self)
        self.marks = Marks(self)
        self._commits = Commits(self)
        self._folded = FoldedTables(self)
        self._executors: dict[str, Executor] = {}
        self._restored: set[tuple[str, str]] = set()
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
        self.world.kernel.trace(f"p{self.number} dies")
        self.calls.abandon()

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

    def step_clock(self, by_us: int) -> None:
        """The wall clock jumps."""
        self.offset_us += by_us
        self.world.kernel.trace(f"p{self.number} clock {by_us:+}")
        # Later, as the runtime does: now, the effects of another event may be half performed.
        self.later(0, self.mail.ring)

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
        store, graph = self.world.store, self.graph
        opened: Opened = self.calls.call("open", lambda: store.open_pipeline(graph.shape()))
        rows = self.routes.open(opened)
        for name, spec in graph.computations.items():
            self._executors[name] = Executor(spec, graph, self.routes.subscriptions, self.world.tables)
        yield
        sequencers: dict[int, int] = self.calls.call("acquire", lambda: store.acquire([row.id for row in rows]))
        self.watermarks.load()
        for row in rows:
            yield
            self._adopt(self.routes.config(row, sequencers[row.id]))
        yield
        self._serve()

    def _adopt(self, config: Config) -> None:
        store = self.world.store
        recovered = self.calls.call("recover", lambda: store.recover(config.interval, config.sequencer))
        if recovered is None:
            self.world.kernel.probes["fenced during recovery"] += 1
            raise Crash
        self._install(config, recovered)

    def _install(self, config: Config, recovered: Recovered, inherited: ev.Inherited | None = None) -> Actor:
        """The actor of an interval, with a core that is not started yet."""
        interval, name = config.interval, config.computation
        core = IntervalCore(config, recovered, inherited)
        actor = self.actors[interval] = Actor(interval, config.sequencer, name, core, self._executors[name])
        others = [other for other in self.intervals_of.get(name, ()) if other.interval != interval]
        self.intervals_of[name] = [*others, actor]
        self.watermarks.authority.expect(name, interval)
        if unsettled := self.routes.unsettled(config, recovered):
            self.watermarks.authority.unsettled(name, interval, unsettled)
            self.world.kernel.probes["productions of an earlier version"] += 1
        else:
            self.watermarks.settled(actor)
        self.routes.expect_of(config, recovered)
        if recovered.productions:
            self.world.kernel.probes["productions resent after restart"] += 1
        for key, timers in self.world.store.truth.durable[name].timers.items():
            if config.low <= key and (config.high is None or key < config.high):
                actor.timers.update(((key, *timer), at) for timer, at in timers.items())
        self._restored.update((key, tag) for key, _, tag in actor.timers)
        if recovered.timers.keys:
            self.world.kernel.probes["timers restored after restart"] += 1
        return actor

    def _begin(self, actor: Actor) -> None:
        assert isinstance(actor.core, IntervalCore)
        self.perform(actor, actor.core.start(self.clock(), self.routes.live))
        self.handle(actor, ev.WatermarkMoved(self.watermarks.authority.input_of(actor.owner)))

    def _serve(self) -> None:
        self.serving = True
        self.routes.expect_partitions(self.calls.call("source", self.world.store.unfinished_partitions))
        for actor in list(self.actors.values()):
            self._begin(actor)
        self.partitions.open()
        self._ask_redrives()
        while self._redrives.more:
            self._ask_page()
        self._tick()

    # --- events -----------------------------------------------------------------------------------------------

    def handle(self, actor: Actor, event: ev.Event | Work) -> None:
        """Now: run user code or tell the core, and perform what follows."""
        kernel = self.world.kernel
        if actor.core.halted:
            return  # void, another core has its interval
        if isinstance(event, Work):
            if self.marks.keeps(actor, event):
                return
            assert actor.executor is not None
            fires = event.timers if event.suspended is None else []
            self._check_timers(actor, fires)
            for timer in fires:
                kernel.trace(f"p{self.number} i{actor.interval} fires {timer.key!r} {timer.tag!r} {timer.timestamp}")
                kernel.probes[f"{timer.kind} timer fired"] += 1
                kernel.probes["timer fired after restart"] += (timer.key, timer.tag) in self._restored
            event = ev.Invoked(self._run(actor, actor.executor, event))
            if event.outcome.lacking:
                kernel.probes["hook waited for state"] += 1
            else:
                kernel.probes["late record"] += event.outcome.late
            for key, changes in event.outcome.timers.items():
                actor.timers.update(((key, *name), at) for name, at in changes.items())
        kernel.events += 1
        kernel.trace(f"p{self.number} i{actor.interval} {_describe(event)}")
        self.perform(actor, actor.core.handle(event, self.clock()))

    def _run(self, actor: Actor, executor: Executor, work: Work) -> Outcome:
        try:
            return executor.run(work)
        except Crash:
            assert isinstance(actor.core, IntervalCore)
            self.world.kernel.trace(f"p{self.number} i{actor.interval} is killed by its hook")
            self.world.kernel.probes["hook killed the process"] += 1
            self.world.store.culprits.saw_kill(actor.interval, actor.sequencer, actor.core.suspects.running)
            raise

    def _check_timers(self, actor: Actor, timers: list[Timer]) -> None:
        """A timer fires once for each time it is set (I8).  A zombie may have loaded what its successor has set."""
        for timer in timers:
            at = actor.timers.pop((timer.key, timer.kind, timer.tag), None)
            if at != timer.timestamp and self.world.store.truth.owner[actor.interval] == actor.sequencer:
                name = f"{timer.kind} timer {timer.tag!r} of {timer.key!r}"
                self.world.store.truth.fail(f"I8: {name} fires for {timer.timestamp}, and is set to {at}", timer.key)

    def perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        """In order; the nemesis strikes before or after any of them."""
        for effect in effects:
            step = STEPS.get(type(effect))
            action = self.calls.strike(step) if step else ""
            if action == "crash before":
                raise Crash
            self._effect(actor, effect)
            if action == "duplicate":
                self.mail.again(effect)
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
                self.world.store.wire.saw_ack(actor.interval, sender, number, self.number)
                if number >> 32 not in (0, self.actors[sender].sequencer):
                    self.world.kernel.probes["ack of a bundle that a void core had sent"] += 1
                self.mail.post(self.actors[sender], ev.AckArrived(number), "ack")
            case ev.Invoke(work):
                self.mail.post(actor, work, "invoke")
            case ev.Commit(write):
                self._commits.submit(actor, write)
            case ev.ReportWatermark(value):
                self.watermarks.report(actor, value)
            case ev.SetAlarm(at):
                self.mail.set_alarm(at, actor)
            case ev.Read(limit):
                self.partitions.read(actor, limit)
            case ev.Advance():
                self.partitions.advance(actor, effect)
            case ev.Load():
                self._folded.load(actor, effect)
            case ev.LoadSlots():
                self._folded.load_slots(actor, effect)
            case ev.LoadTimers():
                self._folded.load_timers(actor, effect)
            case ev.Fold():
                self._folded.fold(actor, effect)
            case ev.LookupIds():
                self._folded.lookup(actor, effect)
            case ev.ReadOpaque():
                self._folded.read_opaque(actor, effect)
            case ev.FetchQuarantine():
                self._folded.fetch(actor, effect)
            case ev.Mark() | ev.Unmark():
                self.marks.perform(actor, effect)
            case ev.Restart(inherited):
                self._restart(actor, inherited)
            case ev.Settled():
                self.watermarks.settled(actor)
            case ev.Halt():
                self.world.kernel.probes["process halted by a fence"] += 1
                raise Crash
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _send(self, actor: Actor, bundle: Bundle) -> None:
        wire = copy.copy(bundle)
        self.world.store.wire.saw_send(actor.interval, wire, self.number)
        self.mail.post(
            self.actors[bundle.target], ev.BundleArrived(wire), "deliver", ("send", actor.interval, bundle.target)
        )

    # --- another core for an interval of ours ------------------------------------------------------------------

    def _restart(self, old: Actor, inherited: ev.Inherited) -> None:
        store, interval = self.world.store, old.interval
        self._restarting.add(interval)
        self.calls.request(
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
        self.calls.request(
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
                self.perform(sender, sender.core.handle(ev.Resend(actor.interval), self.clock()))
        self._begin(actor)
        self._restarting.discard(actor.interval)

    def _ask_redrives(self) -> None:
        self._ask_page()
        self.later(REDRIVE_US, self._ask_redrives)

    def _ask_page(self) -> None:
        found = run(self.world.store.redrive_requests(self._redrives.start, limits.REDRIVE_REQUESTS))
        for interval, keys in self._redrives.read(found).items():
            self.handle(self.actors[interval], ev.RedriveAsked(keys))
        self.world.kernel.probes["more redrives than are read at once"] += self._redrives.more

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
        names, authority = self.graph.computations, self.watermarks.authority
        return (
            self.partitions.complete
            and all(authority.value(name) >= MAX_TIME for name in names)
            and not self.mail.queued
            and not self._restarting
            and all(a.core.quiet() for a in self.actors.values() if isinstance(a.core, InjectorCore))
        )

    def quiet(self) -> bool:
        """Nothing is under way."""
        return not self._commits.waiting and not self.calls.open and all(a.core.quiet() for a in self.actors.values())

    def flush(self) -> None:
        """Record the last acks and fold."""
        for actor in list(self.actors.values()):
            if isinstance(actor.core, IntervalCore) and not actor.core.quiet():
                self.perform(actor, actor.core.flush(self.clock()))


def _describe(event: ev.Event) -> str:
    match event:
        case ev.BundleArrived(b):
            ids = f"s{b.subscription} p{b.producer} {b.sequences} f{b.frontier}"
            return f"bundle from i{b.sender} n{b.number} {ids} {b.keys}"
        case ev.Invoked(outcome):
            if outcome.lacking:
                return f"waits for {outcome.lacking}"
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
        case ev.SlotsLoaded(rows):
            return f"loaded {[row[:3] for row in rows]}"
        case ev.QuarantineFetched(entries, more):
            return f"fetched {dict(Counter(entry.key for entry in entries))}{' and more' if more else ''}"
        case _:
            return repr(event)
