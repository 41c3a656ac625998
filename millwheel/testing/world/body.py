"""What every simulated process has: time, hosts, a way to the store, and faults.

Lives here: performing the effects of all hosts, in virtual time, with every wait drawn from the nemesis.  Never here: user
code, which only a worker has (`process`); a decision.  Invariant: after `dead` is set nothing of this process happens any
more, except requests that were on their way to the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from millwheel.api.table import Table
from millwheel.core.interval import events as ev
from millwheel.errors import Fenced, InvariantError, RowRefused
from millwheel.graph import Graph
from millwheel.host import alphabet as he
from millwheel.host.barriers import WentBack
from millwheel.host.messages import Message
from millwheel.host.requests import StoreCall
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME
from millwheel.testing.checks.probes import describe
from millwheel.testing.checks.watched import WatchedStore
from millwheel.testing.faults.nemesis import Nemesis
from millwheel.testing.world.calls import Calls, Crash
from millwheel.testing.world.echoes import Echoes
from millwheel.testing.world.kernel import Kernel
from millwheel.testing.world.transport import step_of

TICK_US: Final = 20_000
RESTART_WEIGHT: Final = 200
"""Restarts of an interval are rare, and a process that is overtaken during one is what there is to see."""


class SimulatedHost(Protocol):
    """A host, as far as a simulation goes."""

    name: str

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        """React to one event at wall time `now`, us."""
        ...


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

    def crashed(self, process: Any) -> None:
        """The process died."""
        ...

    def overtaken(self, process: Any) -> None:
        """The process froze; another one may take over."""
        ...

    def ended(self, process: Any) -> None:
        """The process is done: all input is consumed and folded."""
        ...


class SimulatedTransport(Protocol):
    """The channels of one process."""

    queued: int
    """Messages that were sent and have not arrived yet, and events that a host has posted to itself."""

    @property
    def down(self) -> bool:
        """True while a channel is cut on which the process rests."""
        ...

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """See `ports.Transport`."""
        ...

    def again(self, sender: str, receiver: str, message: Message) -> None:
        """A second copy of what was sent."""
        ...

    def break_one(self, down_us: int) -> None:
        """Break one of the channels of the process, drawn by the dice, for so long."""
        ...


class Body:
    """A process without user code.  `hosts` are set by whoever makes it, before `start`."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.dead = False
        self.offset_us = 0
        self.frozen_until = 0
        self.hosts: tuple[SimulatedHost, ...] = ()
        self.transport: SimulatedTransport
        self.weights: Mapping[str, int] = {"restart": RESTART_WEIGHT}
        """By step: how many times as likely as elsewhere the process is stopped when it asks the store for that."""
        self.calls = Calls(self)
        self.left: Mapping[IntervalId, ev.Inherited] = {}
        """What its worker knows when all goes back to the last declared epoch: the process goes on, as another one."""
        self._wakes: dict[str, int] = {}
        """By host: wall time of its next tick, us.  As in a shell there is one at a time, which is the earliest."""
        self._turning: set[str] = set()
        """Hosts whose turn ends soon."""
        self._deaf: set[tuple[str, str]] = set()
        """Channels, (host, peer), that are open again, which the host has not heard yet."""

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
            self.check_alive()
            call(*arguments)
        except (Crash, Fenced):
            self.die()
            self.world.crashed(self)

    def check_alive(self) -> None:
        """Raises `Fenced` when this process knows by itself that it must not go on."""

    def step_clock(self, by_us: int) -> None:
        """The wall clock jumps."""
        self.offset_us += by_us
        self.world.kernel.trace(f"p{self.number} clock {by_us:+}")
        self._wakes.pop(self.hosts[0].name, None)  # it comes now, and asks for the next one by the new clock
        self.later(0, self.give, self.hosts[0], he.Tick())

    def _tick(self, host: SimulatedHost, at: int) -> None:
        """A timer rings, unless an earlier one was wanted since."""
        if self._wakes.get(host.name) == at:
            del self._wakes[host.name]
            self.give(host, he.Tick())

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self.world.kernel.trace(f"p{self.number} starts")
        for host in self.hosts:
            self.later(self.world.nemesis.delay_us("start"), self.give, host, he.Started())
        if self.rests():
            self.later(TICK_US, self._look)

    def die(self) -> None:
        """Lose everything that is soft; requests on the wire may still arrive at the store."""
        self.dead = True
        self.world.kernel.trace(f"p{self.number} dies")
        self.calls.abandon()

    def rests(self) -> bool:
        """Whether hosts are told when nothing is queued."""
        return True

    def _look(self) -> None:
        """Tell the hosts when nothing is queued in this process."""
        if not self.transport.queued and not self.transport.down:
            for host in self.hosts:
                self.give(host, he.Rested())
        self.later(TICK_US, self._look)

    # --- events -----------------------------------------------------------------------------------------------

    def give(self, host: SimulatedHost, event: he.HostEvent) -> None:
        """Give a host an event now, and perform what follows; the nemesis strikes before or after any effect."""
        kernel = self.world.kernel
        if kernel.telling and not isinstance(event, he.TurnEnded | he.Rested):
            kernel.trace(f"p{self.number} {describe(event)}")
        if type(event) is he.ChannelOpened:
            self._deaf.discard((host.name, event.peer))
        self.given(host, event)
        effects = host.handle(event, kernel.now + self.offset_us)
        self.gave(host, event)
        for effect in effects:
            self.saw(effect)
            self._strike(host, effect)
        if type(event) is not he.TurnEnded and host.name not in self._turning:
            self._turning.add(host.name)
            self.later(self.world.nemesis.delay_us("submit"), self._end_turn, host)

    def given(self, host: SimulatedHost, event: he.HostEvent) -> None:
        """A host is about to get an event."""

    def gave(self, host: SimulatedHost, event: he.HostEvent) -> None:
        """A host has had an event."""

    def saw(self, effect: he.HostEffect) -> None:
        """A host wants something."""

    def _end_turn(self, host: SimulatedHost) -> None:
        self._turning.discard(host.name)
        self.give(host, he.TurnEnded())

    def _strike(self, host: SimulatedHost, effect: he.HostEffect) -> None:
        weight = 1
        if type(effect) is he.Tell:
            self._strike_at_message(host, effect)
        else:
            self.perform(host, effect)
            if type(effect) is he.Ask and isinstance(effect.wish, StoreCall):
                weight = self.weights.get(effect.wish.step, 1)
        if not self.world.nemesis.calm:
            self._mishap(weight)

    def _strike_at_message(self, host: SimulatedHost, effect: he.Tell) -> None:
        action = self.calls.strike(step_of(effect.message))
        if action == "crash before":
            raise Crash
        self.perform(host, effect)
        if action == "duplicate" and (host.name, effect.peer) not in self._deaf:
            self.transport.again(host.name, effect.peer, effect.message)
        if action == "crash after":
            raise Crash

    def _mishap(self, weight: int) -> None:
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
            self.transport.break_one(down_us)

    def heard(self, host: SimulatedHost, sender: str, message: Message) -> None:
        """A message has arrived."""
        self.give(host, he.Received(sender, message))

    def reopened(self, host: SimulatedHost, peer: str) -> None:
        """A channel is open again."""
        self.give(host, he.ChannelOpened(peer))

    def reopen(self, host: SimulatedHost, peer: str) -> None:
        """A channel of another process is open again: until the host has heard it, nothing it says passes."""
        self._deaf.add((host.name, peer))
        self.later(0, self.reopened, host, peer)

    # --- effects ----------------------------------------------------------------------------------------------

    def perform(self, host: SimulatedHost, effect: he.HostEffect) -> None:
        """Do what a host wants."""
        match effect:
            case he.Tell(peer, message):
                if (host.name, peer) not in self._deaf:
                    self.told(message)
                    self.transport.tell(host.name, peer, message)
            case he.Post(event):
                self._post(host, event)
            case he.Ask(token, wish):
                self.ask(host, token, wish)
            case he.WakeAt(at):
                if at < self._wakes.get(host.name, MAX_TIME):
                    self._wakes[host.name] = at
                    self.later(max(0, at - self.clock()), self._tick, host, at)
            case he.Reach(addresses):
                self.reach(addresses)
            case he.Notice(text):
                self.world.kernel.trace(f"p{self.number} notes {text}")
            case he.Ended():
                self.finish()
                self.world.ended(self)
            case he.Failed(error):
                self.left = error.inherited if isinstance(error, WentBack) else {}
                raise Crash
            case _:
                self.run_code(host, effect)

    def told(self, message: Message) -> None:
        """A message leaves."""

    def reach(self, addresses: Mapping[str, str]) -> None:
        """A host knows of these other hosts."""

    def finish(self) -> None:
        """The run is over."""

    def run_code(self, host: SimulatedHost, effect: he.HostEffect) -> None:
        """Only a worker has user code."""
        raise InvariantError(f"{host.name} wants {type(effect).__name__}")

    def _post(self, host: SimulatedHost, event: he.HostEvent) -> None:
        step = "invoke" if isinstance(event, he.Due) else "post"
        self.transport.queued += 1
        self.later(self.world.nemesis.delay_us(step), self._posted, host, event)

    def _posted(self, host: SimulatedHost, event: he.HostEvent) -> None:
        self.transport.queued -= 1
        self.give(host, event)

    def ask(self, host: SimulatedHost, token: int, wish: he.Wish) -> None:
        """Answer a host in its time."""
        match wish:
            case StoreCall():
                self.asked(wish)
                self.calls.request(
                    wish,
                    lambda answer: self._answered(host, token, wish, answer),
                    lambda refusal: self.declined(host, token, refusal),
                )
            case he.Pause(pause_us):
                self.later(self.world.nemesis.rest_us(pause_us), self.give, host, he.Answered(token, None))
            case _:
                raise InvariantError(f"{host.name} asks for {type(wish).__name__}")

    def asked(self, request: StoreCall) -> None:
        """A question to the store leaves."""

    def answered(self, request: StoreCall, answer: Any) -> None:
        """The store has answered."""

    def _answered(self, host: SimulatedHost, token: int, request: StoreCall, answer: Any) -> None:
        self.answered(request, answer)
        self.give(host, he.Answered(token, answer))

    def declined(self, host: SimulatedHost, token: int, refusal: RowRefused) -> None:
        """The database has refused a row."""
        self.give(host, he.Declined(token, refusal))
