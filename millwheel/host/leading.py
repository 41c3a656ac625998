"""A controller of a cluster: a standby, or the leader, who does what the master decides.

Lives here: when the controller tries to lead, how a decision is carried out, and how the run ends.  Never here: the decisions
(`master`), or what a leader knows of watermarks (`led_watermarks`).  Invariants:

* every write carries the epoch of this leader, so one that was followed without knowing it changes nothing;
* a decision is carried out on the map that it was made from, or not at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Set
from typing import Any, assert_never

from millwheel import limits
from millwheel.cluster import ClusterMap, Leader, Member, Placement, Reshaping, RunEnding
from millwheel.errors import Fenced, InvariantError
from millwheel.host import alphabet as he
from millwheel.host.deserted import Deserted
from millwheel.host.generations import WholeMaster
from millwheel.host.led_watermarks import LedWatermarks
from millwheel.host.left_overs import LeftOvers
from millwheel.host.master import Assign, Bury, Cut, Decision, Dismiss, Finish, Hasten, LetGo, Master, Propose, Settle
from millwheel.host.messages import (
    Drained,
    EpochOpened,
    EpochWanted,
    HandedOver,
    HandOver,
    ImageWritten,
    InQuarantine,
    Led,
    LoadReport,
    MapChanged,
    Message,
    RunEnded,
)
from millwheel.host.missing import NO_WORKER, Missing
from millwheel.host.over import Tolerance
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.requests import (
    Expel,
    GiveOrder,
    Lead,
    Leave,
    PlaceAnew,
    ReadMap,
    ReadOrders,
    Reshape,
    SettleOrder,
)
from millwheel.ids import IntervalId


def host_name(member: Member) -> str:
    """What a member is called on channels."""
    return f"{'w' if member.role == 'worker' else 'c'}{member.incarnation}"


class ClusterController:
    """The member `incarnation` of a cluster, as a controller.  A lease as leader is one of `lease_us`."""

    def __init__(
        self, incarnation: int, lease_us: int, snapshot_every_us: int = 0, tolerance: Tolerance | None = None,
        *, durable: bool = True,
    ) -> None:  # fmt: skip
        """Under snapshots there is one every `snapshot_every_us`, and the store hears of it if it is `durable`.  More than
        `tolerance` ends the run."""
        self.name = f"c{incarnation}"
        self.now = 0
        self._incarnation = incarnation
        self._lease_us = lease_us
        self._out: list[he.HostEffect] = []
        self._procedures = Procedures(self._asked)
        self._version = 0
        """Of the map that was followed last."""
        self._others: dict[str, Member] = {}
        """Live members by their names on channels."""
        self._acting = False
        self._again = False
        self._ended = False
        # Of the term.
        self._led = LedWatermarks(
            every_us=snapshot_every_us, durable=durable, begin=self._procedures.start, tell=self._tell,
            workers=self._workers, disowned=self._act, declared=self._act_if_waited, deposed=self._stand_down,
        )  # fmt: skip
        self._every_us = snapshot_every_us
        self._master = self._new_master()
        self._deserted = Deserted()
        self._tolerance = tolerance or Tolerance()
        self._left_overs = LeftOvers(self._tolerance)
        self._alone = Missing(NO_WORKER)
        self._fresh: set[int] = set()
        """Workers that were given something: they have to say what they know of it."""
        self._finishing = False
        """The run is over.  That stays so, whoever leads."""
        self.ending = RunEnding()
        """How it has ended, once it is over."""
        self._farewells = 0
        """How often others were told so since the last worker left."""

    # --- the door ---------------------------------------------------------------------------------------------

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        """React to one event at wall time `now`, us."""
        self.now = now
        out = self._out = []
        self._led.clock(now)
        match event:
            case he.Received(peer, message):
                self._hear(peer, message)
            case he.Answered(token, answer):
                self._procedures.answered(token, answer)
            case he.Declined(token, refusal):
                self._procedures.declined(token, refusal)
            case he.Started():
                self._procedures.start(self._campaign())
            case he.ChannelOpened(peer):
                if self.leads and peer in self._workers():
                    self._led.welcome(peer)
                    if self._master.reached(_incarnation(peer)):
                        self._act()
            case he.TurnEnded() | he.Rested() | he.Tick():
                self._led.persist()
            case he.Told() | he.Due() | he.Returned() | he.RowsArrived() | he.Announced():
                raise InvariantError(f"a controller got {type(event).__name__}")
            case _:
                assert_never(event)
        return out

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._led.term is not None

    def _asked(self, ask: he.Ask) -> None:
        self._out.append(ask)

    def _tell(self, peers: Iterable[str], message: Message) -> None:
        self._out += [he.Tell(peer, message) for peer in peers]

    def _new_master(self) -> Master:
        return WholeMaster() if self._every_us else Master()

    def _workers(self) -> list[str]:
        return [name for name, member in self._others.items() if member.role == "worker"]

    # --- terms ------------------------------------------------------------------------------------------------

    def _campaign(self) -> Steps:
        while not self._ended:
            leader: Leader | None = yield Lead(self._incarnation, self._lease_us)
            if leader is None:
                self._stand_down()
            elif leader.epoch != self._led.term:
                self._stand_down()
                self._led.lead(leader.epoch)
                self._tell(self._workers(), Led(leader.epoch))
            self._act()
            yield he.Pause(limits.LEAD_EVERY_US)

    def _stand_down(self) -> None:
        """Whatever was known in a term is void."""
        self._led.forget()
        self._master, self._fresh = self._new_master(), set()
        self._deserted, self._left_overs = Deserted(), LeftOvers(self._tolerance)

    # --- what is heard ----------------------------------------------------------------------------------------

    def _hear(self, peer: str, message: Message) -> None:
        if isinstance(message, RunEnded):
            if not self._finishing:
                self._finishing, self.ending = True, message.ending
                self._act()
        elif not self.leads:
            pass  # who leads says so, and is told everything
        elif isinstance(message, EpochOpened | ImageWritten | EpochWanted):
            self._led.hear_of_epochs(peer, message)
        elif isinstance(message, HandedOver):
            self._master.handed_over(_incarnation(peer), (*message.intervals, *message.sources))
            self._act()
        elif isinstance(message, LoadReport):
            self._master.relief.loaded(_incarnation(peer), message.loads)
        elif isinstance(message, InQuarantine):
            self._left_overs.said(message.incarnation, message.keys)
        elif isinstance(message, Drained):
            self._left_overs.said(message.incarnation, message.quarantined)
            self._master.drained(message.incarnation, message.version)
            self._act()
        else:
            self._led.hear(peer, message)

    # --- the map ----------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Look at the map, and do what is to be done about it."""
        self._again = True
        if not self._acting:
            self._acting = True
            self._procedures.start(self._act_all())

    def _act_if_waited(self) -> None:
        """An epoch is declared: a change of the map may have waited for its end."""
        if isinstance(self._master, WholeMaster) and self._master.waits:
            self._act()

    def _act_all(self) -> Steps:
        while self._again and not self._ended:
            self._again = False
            found: ClusterMap = yield ReadMap()
            if found.version >= self._version:
                self._follow(found)
                if self._finishing:
                    yield from self._finish()
                elif self._led.term is not None:
                    yield from self._lead_on(found, self._led.term)
        self._acting = False

    def _follow(self, found: ClusterMap) -> None:
        if not any(member.incarnation == self._incarnation and member.alive for member in found.members):
            raise Fenced(f"controller {self._incarnation} is not a member of this cluster any more; this process ends")
        self._version = found.version
        known = self._others
        self._others = {host_name(member): member for member in found.members if member.alive}
        del self._others[self.name]
        self._out.append(he.Reach({name: member.address for name, member in self._others.items()}))
        self._led.follow(found)
        if not self.leads:
            return
        for peer in self._workers():
            if peer not in known or self._others[peer].incarnation in self._fresh:
                self._led.welcome(peer)
        self._fresh.clear()
        self._led.load_if_due()

    def _lead_on(self, found: ClusterMap, epoch: int) -> Generator[he.Wish, Any, None]:
        """One step, if there is one to be done."""
        self._alone.look(not self._workers(), self.now, lambda text: self._out.append(he.Notice(text)))
        ending = yield from self._left_overs.excess(found)
        if ending is None and (yield from self._deserted.over(found, self.now)):
            ending = yield from self._left_overs.judged(found)
        if ending is not None and self._led.term == epoch:
            self._finishing, self.ending = True, ending
            yield from self._finish()
            return
        orders = yield ReadOrders()
        if self._led.term != epoch:
            return
        self._master.ordered(dict(orders))
        if isinstance(self._master, WholeMaster):
            self._master.resting = self._led.resting
            self._master.declared = self._led.declared(found)
        decision = self._master.decide(found, self.now)
        if decision is not None:
            self._again = (yield from self._carry_out(decision, found, epoch)) or self._again

    def _carry_out(self, decision: Decision, found: ClusterMap, epoch: int) -> Generator[he.Wish, Any, bool]:
        """Do what was decided; returns whether the map is to be looked at again at once."""
        match decision:
            case LetGo(owner, intervals, sources, acked):
                self._tell([f"w{owner}"], HandOver(intervals, sources, acked))
            case Assign():
                return (yield from self._assign(decision, found, epoch))
            case Dismiss(incarnations):
                self._led.end_epochs()
                yield from self._dismiss(incarnations, found)
            case Hasten():
                self._led.hasten()
                return False
            case Cut(intervals, split_keys, order, back):
                answer = yield Reshape(Reshaping(epoch, found.version, intervals, split_keys, back, order))
                if answer is None or self._led.term != epoch:
                    return False
                if isinstance(answer, str):  # else it is settled with the change: this leader may be dead by now
                    yield SettleOrder(epoch, order, answer)
                self._tell(self._workers(), MapChanged(found.version + 1))
            case Settle(order, refusal):
                yield SettleOrder(epoch, order, refusal)
            case Bury(incarnations):
                yield Expel(incarnations)
                for incarnation in incarnations:
                    yield Leave(incarnation)
            case Propose(wanted):
                yield GiveOrder(wanted)
                self._out.append(
                    he.Notice(f"load: {wanted.kind} of {[*wanted.intervals]} {wanted.to or wanted.split_keys}")
                )
            case Finish():
                ending = yield from self._left_overs.judged(found)
                if self._led.term != epoch or ending is None:
                    return False
                self._finishing, self.ending = True, ending
                self._led.end_epochs()
            case _:
                assert_never(decision)
        return True

    def _assign(self, decision: Assign, found: ClusterMap, epoch: int) -> Generator[he.Wish, Any, bool]:
        intervals, sources = decision.intervals, decision.sources
        dead = tuple(member.incarnation for member in found.members if not member.alive)
        if dead:
            yield Expel(dead)
        if self._led.term != epoch:
            return False
        self._led.suspend(intervals, sources)
        version: int | None = yield PlaceAnew(Placement(epoch, found.version, intervals, sources, decision.back))
        if self._led.term != epoch:
            return False
        if version is None:  # the map has changed meanwhile, or somebody else leads; `_follow` resumes
            self._master.refused()
            self._fresh |= _owners(found, {*intervals}, {*sources})  # nobody has listened to them meanwhile
            return False
        self._fresh |= {owner for owner in (*intervals.values(), *sources.values()) if owner is not None}
        self._tell(self._workers(), MapChanged(version))
        return True

    def _dismiss(self, incarnations: tuple[int, ...], found: ClusterMap) -> Steps:
        dead = tuple(member.incarnation for member in found.members if not member.alive)
        if dead:
            yield Expel(dead)
        for incarnation in incarnations:
            yield Leave(incarnation)
        self._tell(self._workers(), MapChanged(found.version + 1))

    # --- the end ----------------------------------------------------------------------------------------------

    def _finish(self) -> Generator[he.Wish, Any, None]:
        """Tell everybody until nobody is left.  A standby leaves before that, when it has told the leader often enough: this
        one may have begun to lead when no worker was left to say that the run is over."""
        self._tell(self._others, RunEnded(self.ending))
        self._farewells += not self._workers()
        if self._others and (self.leads or self._farewells < limits.FAREWELLS):
            return
        self._ended = True
        yield from self._leave()

    def _leave(self) -> Generator[he.Wish, Any, None]:
        yield Leave(self._incarnation)
        self._out.append(he.Ended())


def _owners(found: ClusterMap, intervals: Set[IntervalId], sources: Set[str]) -> set[int]:
    """Who has any of these."""
    owners = {placed.owner for placed in found.intervals if placed.id in intervals}
    owners |= {source.owner for source in found.sources if source.name in sources}
    return {owner for owner in owners if owner is not None}


def _incarnation(peer: str) -> int:
    """The number in a worker's name."""
    return int(peer.removeprefix("w"))
