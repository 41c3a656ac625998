"""A simulated process with user code: a worker, and in an embedded run its controller beside it.

Lives here: hooks and sources in virtual time, and what is checked around them.  `runtime.shell` does the same with asyncio.
Never here: a decision; those are in `millwheel.host`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Final

from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import InvariantError, RowRefused
from millwheel.graph import Graph
from millwheel.host import alphabet as he
from millwheel.host.controller import ControllerHost
from millwheel.host.messages import Message
from millwheel.host.owning import WholeOwnership
from millwheel.host.requests import StoreCall
from millwheel.ids import IntervalId, Seq
from millwheel.search import BlockingCall, Step
from millwheel.testing.checks.accounts import Owned, owned_of
from millwheel.testing.checks.ending import check_forgotten
from millwheel.testing.checks.hooks import WatchedUserCode
from millwheel.testing.checks.probes import Probes
from millwheel.testing.checks.replies import WatchedWorker
from millwheel.testing.kit.mutations import watch_values
from millwheel.testing.kit.scripted import with_own_sources
from millwheel.testing.world.body import Body, SimulatedHost, World
from millwheel.testing.world.calls import Crash, run
from millwheel.testing.world.transport import FaultyTransport
from millwheel.work import InvocationOutcome

WORKER: Final = "worker"
CONTROLLER: Final = "controller"

COUNTED: Final = frozenset({he.Received, he.Told, he.Returned, he.RowsArrived})
"""Events of a worker that reach a core."""


class CodeBody(Body):
    """A process with a worker, whose hooks and sources it runs."""

    def __init__(self, world: World, number: int, worker: WatchedWorker) -> None:
        super().__init__(world, number)
        self.worker = worker
        worker.truth = world.store.truth
        self.endless = False
        """The run never ends by itself (the stepper)."""
        prepared = watch_values if world.watches_values else None
        self._user = WatchedUserCode(
            graph=with_own_sources(worker.graph), tables=world.tables, clock=self.clock, prepared=prepared
        )
        self._probes = Probes(world.store.truth, worker)
        self._parked: list[he.ReadRows] = []
        """Reads of manual sources that have nothing to read."""
        self._restored: set[tuple[str, str]] = set()

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """See `Body`."""
        super().start()
        if self.world.echoes is not None:
            self.later(self.world.echoes.every_us, self._echo)

    def die(self) -> None:
        """See `Body`."""
        self._probes.ended()
        super().die()

    def finish(self) -> None:
        """See `Body`."""
        self._probes.ended()
        check_forgotten(self.world.store.truth, self.worker, self._user.partitions)

    def end_in_order(self) -> None:
        """Stop as on Ctrl-C: what is not committed is done again, and nothing is suspected."""
        self.world.kernel.trace(f"p{self.number} ends in order")
        self.dead = True
        self._probes.ended()
        run(self.worker.last_words().call(self.world.store))

    def condemned(self) -> bool:
        """Whether anything must not run here because it has killed processes."""
        return any(bool(core.suspects) for _, core in self.worker.actors.intervals())

    def rests(self) -> bool:
        """See `Body`."""
        return not self.endless

    def _echo(self) -> None:
        """A copy of a bundle comes that has been done for long, also in the name of a producer that is no more."""
        echoes = self.world.echoes
        if echoes is None:
            return
        delivery = echoes.next(self.worker) if self.worker.serving else None
        if delivery is not None:
            self.give(self.worker, he.Received(self.worker.name, delivery))
        self.later(echoes.every_us, self._echo)

    def join_again(self) -> None:
        """The worker says everything again to the controller, as after a cut."""
        self.give(self.worker, he.ChannelOpened(CONTROLLER))

    def unpark(self) -> None:
        """Read what was handed to manual sources."""
        parked, self._parked = self._parked, []
        for effect in parked:
            self._read(effect)

    # --- what is seen of events and effects -------------------------------------------------------------------

    def given(self, host: SimulatedHost, event: he.HostEvent) -> None:
        """See `Body`."""
        if host is not self.worker or type(event) not in COUNTED:
            return
        self._probes.given(event)
        if type(event) is he.Received:
            self.world.store.wire.heard(event.message, self.number)
        elif type(event) is he.Told and type(event.event) is ev.CommitDone:
            self.world.store.wire.told(event.interval, event.sequencer, event.event.seq)
        self.world.kernel.events += 1

    def gave(self, host: SimulatedHost, event: he.HostEvent) -> None:
        """See `Body`."""
        if host is self.worker:
            self._probes.gave(event)

    def saw(self, effect: he.HostEffect) -> None:
        """See `Body`."""
        self._probes.effect(effect)

    def told(self, message: Message) -> None:
        """See `Body`."""
        self.world.store.wire.saw(message, self.number)
        if self.world.echoes is not None:
            self.world.echoes.note(message)

    # --- effects ----------------------------------------------------------------------------------------------

    def run_code(self, host: SimulatedHost, effect: he.HostEffect) -> None:
        """See `Body`."""
        match effect:
            case he.RunHooks():
                self._run(host, effect)
            case he.ReadRows():
                self._read(effect)
            case he.Answer(interval, position):
                self._user.answer(interval, position)
            case he.Release(interval, finished):
                self._user.release(interval, finished)
            case he.Declare(computation, answers):
                self.world.kernel.trace(f"p{self.number} rows of {computation} are refused: {answers}")
            case _:
                super().run_code(host, effect)

    def _read(self, wanted: he.ReadRows) -> None:
        _, partition = self._user.partitions[wanted.interval]
        if not getattr(partition, "news", lambda: True)():
            self._parked.append(wanted)
            return
        self._post(self.worker, self._user.read(wanted))

    def _announce(self, interval: IntervalId) -> None:
        self.later(self.world.nemesis.delay_us("read"), self.give, self.worker, he.Announced(interval))

    def ask(self, host: SimulatedHost, token: int, wish: he.Wish) -> None:
        """See `Body`."""
        delay_us = self.world.nemesis.delay_us
        match wish:
            case he.Prepare():
                self._user.prepare(wish)
                self.later(delay_us("start"), self.give, host, he.Answered(token, None))
            case he.Discover():
                self._found(host, token, wish.source, self._user.discover(wish))
            case he.Seek():
                self._found(host, token, wish.source, self._user.seek(wish))
            case he.Resume():
                self.later(delay_us("read"), self.give, host, he.Answered(token, self._user.resume(wish)))
                self._user.listen(wish.position.interval, partial(self._announce, wish.position.interval))
            case _:
                super().ask(host, token, wish)

    def _found(self, host: SimulatedHost, token: int, source: str, step: he.Discovery | Step) -> None:
        while isinstance(step, BlockingCall):
            step = self._user.seek(he.Seek(source, step.call()))
        if isinstance(step, he.Discovery):
            self._probes.discovered(source, step)
        self.later(self.world.nemesis.delay_us("read"), self.give, host, he.Answered(token, step))

    def asked(self, request: StoreCall) -> None:
        """See `Body`."""
        self._probes.asked(request)
        self.world.store.wire.asked(request)

    def answered(self, request: StoreCall, answer: Any) -> None:
        """See `Body`."""
        self._probes.answered(request, answer)

    def declined(self, host: SimulatedHost, token: int, refusal: RowRefused) -> None:
        """See `Body`."""
        self._probes.declined()
        actor = self.worker.actors.all.get(refusal.interval)
        if actor is not None:
            self.world.store.wire.told(refusal.interval, actor.sequencer, Seq(refusal.seq - 1), all_before=True)
        self.world.kernel.trace(f"p{self.number} i{refusal.interval} row refused in #{refusal.seq} {refusal.rows}")
        super().declined(host, token, refusal)

    # --- user code --------------------------------------------------------------------------------------------

    def _run(self, host: SimulatedHost, wanted: he.RunHooks) -> None:
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
            core = self._core(wanted)
            owned.finish(Seq(core.newest_seq + 1), wanted.work, outcome, core.label, truth.fail if current else None)
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
            durable.bounded_by(self.worker.routes.bounds()[wanted.computation])
            ordered = config.settings.exactly_once
            owned = store.owned[place] = owned_of(*place, durable, config.low, config.high, ordered)
            self._restored.update((key, tag) for key, settings in owned.timers.items() for _, tag in settings)
        return store.owned[place]


class PatientOwnership(WholeOwnership):
    """A little waits for a little here too, so few processes meet all rules.  With `NAGLE_RECORDS` at 0 it is what ships."""

    gathers: ClassVar[bool] = True


class Process(CodeBody):
    """One embedded run: acquires every interval, recovers, serves until it dies, is fenced or is done."""

    def __init__(
        self, world: World, number: int, graph: Graph, left: Mapping[IntervalId, ev.Inherited] | None = None
    ) -> None:
        """`left` is what it knows of before all went back."""
        worker = WatchedWorker(
            graph=graph, name=WORKER, controller=CONTROLLER, inherited=left, ownership=PatientOwnership
        )
        super().__init__(world, number, worker)
        self.graph = graph
        """Its version of the pipeline; the world's is that of the run's end."""
        self.hosts = (self.worker, ControllerHost([WORKER], CONTROLLER, graph.snapshot_every_us, durable=graph.durable))
        self.transport = transport = FaultyTransport(self)
        for host in self.hosts:
            transport.attach(host.name, partial(self.heard, host), partial(self.reopened, host))

    def reach(self, addresses: Mapping[str, str]) -> None:
        """See `Body`."""
        raise InvariantError("an embedded process has no peers")
