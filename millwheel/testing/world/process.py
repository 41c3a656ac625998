"""One process of a simulation: a worker and a controller host in virtual time.

Lives here: performing what the hosts ask for against the memory store, with every wait drawn from the nemesis.
`runtime.shell` does the same with asyncio.  Never here: a decision; those are in `millwheel.host`.  Invariant: after
`dead` is set nothing of this process happens any more, except requests that were on their way to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol, assert_never

from millwheel.api.table import Table
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import Fenced, InvariantError, RowRefused
from millwheel.graph import Graph
from millwheel.host import alphabet as he
from millwheel.host.controller import ControllerHost
from millwheel.host.messages import Message
from millwheel.host.requests import StoreCall
from millwheel.host.worker import WorkerHost
from millwheel.ids import Seq
from millwheel.model import MAX_TIME
from millwheel.search import BlockingCall, Step
from millwheel.testing.checks.accounts import Owned, owned_of
from millwheel.testing.checks.ending import check_forgotten
from millwheel.testing.checks.hooks import WatchedUserCode
from millwheel.testing.checks.probes import Probes, describe
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Nemesis
from millwheel.testing.kit.mutations import watch_values
from millwheel.testing.kit.scripted import with_own_sources
from millwheel.testing.world.calls import Calls, Crash, run
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.transport import FaultyTransport, step_of
from millwheel.work import InvocationOutcome

TICK_US: Final = 20_000
RESTART_WEIGHT: Final = 200
"""Restarts of an interval are rare, and a process that is overtaken during one is what there is to see."""

WORKER: Final = "worker"
CONTROLLER: Final = "controller"

Host = WorkerHost | ControllerHost


class World(Protocol):
    """What a process needs of the simulation around it."""

    kernel: Kernel
    store: WatchedStore
    nemesis: Nemesis
    graph: Graph
    tables: Mapping[str, Table]
    echoes: Echoes | None
    watches_values: bool
    """Hooks that change a value which they have read, and do not set it, fail."""

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
        self.offset_us = 0
        self.frozen_until = 0
        self.endless = False
        """The run never ends by itself (the stepper)."""
        self.worker = WorkerHost(graph=graph, name=WORKER, controller=CONTROLLER)
        self._hosts: tuple[Host, ...] = (self.worker, ControllerHost([WORKER], CONTROLLER, graph.snapshot_every_us))
        self.calls = Calls(self)
        self.transport = FaultyTransport(self)
        for host in self._hosts:
            self.transport.attach(host.name, partial(self._heard, host), partial(self._reopened, host))
        prepared = watch_values if world.watches_values else None
        self._user = WatchedUserCode(
            graph=with_own_sources(graph), tables=world.tables, clock=self.clock, prepared=prepared
        )
        self._probes = Probes(world.store.truth, self.worker)
        self._parked: list[he.ReadRows] = []
        """Reads of manual sources that have nothing to read."""
        self._wakes: dict[str, int] = {}
        """By host: wall time of its next tick, us.  As in a shell there is one at a time, which is the earliest."""
        self._turning: set[str] = set()
        """Hosts whose turn ends soon."""
        self._restored: set[tuple[str, str]] = set()

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
        except (Crash, Fenced):
            self.die()
            self.world.crashed(self)

    def step_clock(self, by_us: int) -> None:
        """The wall clock jumps."""
        self.offset_us += by_us
        self.world.kernel.trace(f"p{self.number} clock {by_us:+}")
        self._wakes.pop(WORKER, None)  # it comes now, and asks for the next one by the new clock
        self.later(0, self.give, self.worker, he.Tick())

    def _wake(self, host: Host, at: int) -> None:
        self.later(max(0, at - self.clock()), self._tick, host, at)

    def _tick(self, host: Host, at: int) -> None:
        """A timer rings, unless an earlier one was wanted since."""
        if self._wakes.get(host.name) == at:
            del self._wakes[host.name]
            self.give(host, he.Tick())

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take over."""
        self.world.kernel.trace(f"p{self.number} starts")
        for host in self._hosts:
            self.later(self.world.nemesis.delay_us("start"), self.give, host, he.Started())
        self.later(TICK_US, self._look)
        if self.world.echoes is not None:
            self.later(self.world.echoes.every_us, self._echo)

    def die(self) -> None:
        """Lose everything that is soft; requests on the wire may still arrive at the store."""
        self.dead = True
        self._probes.ended()
        self.world.kernel.trace(f"p{self.number} dies")
        self.calls.abandon()

    def end_in_order(self) -> None:
        """Stop as on Ctrl-C: what is not committed is done again, and nothing is suspected."""
        self.world.kernel.trace(f"p{self.number} ends in order")
        self.dead = True
        self._probes.ended()
        run(self.worker.last_words().call(self.world.store))

    def condemned(self) -> bool:
        """Whether anything must not run here because it has killed processes."""
        return any(bool(core.suspects) for _, core in self.worker.actors.intervals())

    def _look(self) -> None:
        """Tell the hosts when nothing is queued in this process."""
        if not self.transport.queued and not self.transport.down and not self.endless:
            for host in self._hosts:
                self.give(host, he.Rested())
        self.later(TICK_US, self._look)

    def _echo(self) -> None:
        """A copy of a bundle comes that has been done for long, also in the name of a producer that is no more."""
        echoes = self.world.echoes
        if echoes is None:
            return
        delivery = echoes.next(self.worker) if self.worker.serving else None
        if delivery is not None:
            self.give(self.worker, he.Received(WORKER, delivery))
        self.later(echoes.every_us, self._echo)

    def unpark(self) -> None:
        """Read what was handed to manual sources."""
        parked, self._parked = self._parked, []
        for effect in parked:
            self._read(effect)

    # --- events -----------------------------------------------------------------------------------------------

    def give(self, host: Host, event: he.HostEvent) -> None:
        """Give a host an event now, and perform what follows; the nemesis strikes before or after any effect."""
        kernel = self.world.kernel
        if not isinstance(event, he.TurnEnded | he.Rested):
            kernel.trace(f"p{self.number} {describe(event)}")
        if host is self.worker:
            self._probes.given(event)
            match event:
                case he.Received(_, message):
                    self.world.store.wire.heard(message, self.number)
                case he.Told(interval, sequencer, ev.CommitDone(seq)):
                    self.world.store.wire.told(interval, sequencer, seq)
                case _:
                    pass
            kernel.events += isinstance(event, he.Received | he.Told | he.Returned | he.RowsArrived)
        effects = host.handle(event, self.clock())
        if host is self.worker:
            self._probes.gave(event)
        for effect in effects:
            self._probes.effect(effect)
            self._strike(host, effect)
        if not isinstance(event, he.TurnEnded) and host.name not in self._turning:
            self._turning.add(host.name)
            self.later(self.world.nemesis.delay_us("submit"), self._end_turn, host)

    def _end_turn(self, host: Host) -> None:
        self._turning.discard(host.name)
        self.give(host, he.TurnEnded())

    def _strike(self, host: Host, effect: he.HostEffect) -> None:
        step = step_of(effect.message) if isinstance(effect, he.Tell) else ""
        action = self.calls.strike(step) if step else ""
        if action == "crash before":
            raise Crash
        self._perform(host, effect)
        if action == "duplicate" and isinstance(effect, he.Tell):
            self.transport.again(host.name, effect.peer, effect.message)
        if action == "crash after":
            raise Crash
        self._mishap(RESTART_WEIGHT if isinstance(effect, he.Ask) and _is_restart(effect.wish) else 1)

    def _mishap(self, weight: int = 1) -> None:
        nemesis = self.world.nemesis
        by_us = nemesis.clock_step_us()
        if by_us:
            self.step_clock(by_us)
        frozen_us = nemesis.zombie_us(weight)
        if frozen_us:
            self.frozen_until = self.world.kernel.now + frozen_us
            self.world.overtaken(self)
        down_us = nemesis.cut_us()
        if down_us:
            self.transport.cut(WORKER, self.world.kernel.rng.choice((WORKER, CONTROLLER)), down_us)

    def _heard(self, host: Host, sender: str, message: Message) -> None:
        self.give(host, he.Received(sender, message))

    def _reopened(self, host: Host, peer: str) -> None:
        self.give(host, he.ChannelOpened(peer))

    # --- effects ----------------------------------------------------------------------------------------------

    def _perform(self, host: Host, effect: he.HostEffect) -> None:
        match effect:
            case he.Tell(peer, message):
                self.world.store.wire.saw(message, self.number)
                if self.world.echoes is not None:
                    self.world.echoes.note(message)
                self.transport.tell(host.name, peer, message)
            case he.Reach():
                raise InvariantError("an embedded process has no peers")
            case he.Post(event):
                self._post(host, event)
            case he.RunHooks():
                self._run(host, effect)
            case he.Ask(token, wish):
                self._ask(host, token, wish)
            case he.ReadRows():
                self._read(effect)
            case he.Answer(interval, position):
                self._user.answer(interval, position)
            case he.Release(interval):
                self._user.release(interval)
            case he.WakeAt(at):
                if at < self._wakes.get(host.name, MAX_TIME):
                    self._wakes[host.name] = at
                    self._wake(host, at)
            case he.Notice(text):
                self.world.kernel.trace(f"p{self.number} notes {text}")
            case he.Declare(computation, answers):
                self.world.kernel.trace(f"p{self.number} rows of {computation} are refused: {answers}")
            case he.Ended():
                self._probes.ended()
                check_forgotten(self.world.store.truth, self.worker, self._user.partitions)
                self.world.ended(self)
            case he.Failed():
                raise Crash
            case _:
                assert_never(effect)

    def _post(self, host: Host, event: he.HostEvent) -> None:
        step = "invoke" if isinstance(event, he.Due) else "post"
        self.transport.queued += 1
        self.later(self.world.nemesis.delay_us(step), self._posted, host, event)

    def _posted(self, host: Host, event: he.HostEvent) -> None:
        self.transport.queued -= 1
        self.give(host, event)

    def _read(self, wanted: he.ReadRows) -> None:
        _, partition = self._user.partitions[wanted.interval]
        if not getattr(partition, "news", lambda: True)():
            self._parked.append(wanted)
            return
        self._post(self.worker, self._user.read(wanted))

    def _ask(self, host: Host, token: int, wish: he.Wish) -> None:
        delay_us = self.world.nemesis.delay_us
        match wish:
            case StoreCall():
                self._probes.asked(wish)
                self.world.store.wire.asked(wish)
                self.calls.request(
                    wish,
                    lambda answer: self._answered(host, token, wish, answer),
                    lambda refusal: self._declined(host, token, refusal),
                )
            case he.Pause(pause_us):
                self.later(self.world.nemesis.rest_us(pause_us), self.give, host, he.Answered(token, None))
            case he.Prepare():
                self._user.prepare(wish)
                self.later(delay_us("start"), self.give, host, he.Answered(token, None))
            case he.Discover():
                self._found(host, token, wish.source, self._user.discover(wish))
            case he.Seek():
                self._found(host, token, wish.source, self._user.seek(wish))
            case he.Resume():
                self.later(delay_us("read"), self.give, host, he.Answered(token, self._user.resume(wish)))
            case _:
                assert_never(wish)

    def _found(self, host: Host, token: int, source: str, step: he.Discovery | Step) -> None:
        while isinstance(step, BlockingCall):
            step = self._user.seek(he.Seek(source, step.call()))
        if isinstance(step, he.Discovery):
            self._probes.discovered(source, step)
        self.later(self.world.nemesis.delay_us("read"), self.give, host, he.Answered(token, step))

    def _answered(self, host: Host, token: int, request: StoreCall, answer: Any) -> None:
        self._probes.answered(request, answer)
        self.give(host, he.Answered(token, answer))

    def _declined(self, host: Host, token: int, refusal: RowRefused) -> None:
        self._probes.declined()
        actor = self.worker.actors.all[refusal.interval]
        self.world.store.wire.told(refusal.interval, actor.sequencer, Seq(refusal.seq - 1), all_before=True)
        self.world.kernel.trace(f"p{self.number} i{refusal.interval} row refused in #{refusal.seq} {refusal.rows}")
        self.give(host, he.Declined(token, refusal))

    # --- user code --------------------------------------------------------------------------------------------

    def _run(self, host: Host, wanted: he.RunHooks) -> None:
        kernel = self.world.kernel
        owned, truth = self._owned_by(wanted), self.world.store.truth
        if not owned.ran_next(wanted.work, self._core(wanted).waits):
            truth.fail(
                f"I18: records of interval {wanted.interval} wait for {owned.timer_invocations} invocations of timers"
            )
        self._user.begin(wanted, self.number, truth, self._restored, owned)
        current = truth.owner[wanted.interval] == wanted.sequencer
        if current:  # a zombie may have loaded what its successor has stored
            owned.view(wanted.work, truth.fail)
        owned.keep(wanted.work)
        outcome = self._run_hooks(wanted)
        if outcome.fits:
            kernel.probes["invocation was put back"] += 1
            owned.undo()
        elif outcome.lacking:
            kernel.probes["hook waited for state"] += 1
        else:
            kernel.probes["late record"] += outcome.late
            owned.finish(Seq(self._core(wanted).newest_seq + 1), wanted.work, outcome)
            self.world.store.wire.saw_run(wanted, outcome, self.number)
        self.give(host, he.Returned(wanted.interval, wanted.sequencer, outcome, 0))

    def _run_hooks(self, wanted: he.RunHooks) -> InvocationOutcome:
        try:
            return self._user.run(wanted)
        except Crash:
            core = self._core(wanted)
            self.world.kernel.trace(f"p{self.number} i{wanted.interval} is killed by its hook")
            self.world.kernel.probes["hook killed the process"] += 1
            self.world.store.culprits.saw_kill(wanted.interval, wanted.sequencer, core.suspects.running)
            raise

    def _core(self, wanted: he.RunHooks) -> IntervalCore:
        core = self.worker.actors.all[wanted.interval].core
        if not isinstance(core, IntervalCore):
            raise InvariantError("core is no IntervalCore")
        return core

    def _owned_by(self, wanted: he.RunHooks) -> Owned:
        """An interval, with what its hooks have done."""
        store, place = self.world.store, (wanted.interval, wanted.sequencer)
        if place not in store.owned:
            config = self._core(wanted).config
            durable = store.truth.durable[wanted.computation]
            owned = store.owned[place] = owned_of(*place, durable, config.low, config.high)
            self._restored.update((key, tag) for key, settings in owned.timers.items() for _, tag in settings)
        return store.owned[place]


def _is_restart(wish: he.Wish) -> bool:
    return isinstance(wish, StoreCall) and wish.step == "restart"
