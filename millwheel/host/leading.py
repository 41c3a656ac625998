"""A controller of a cluster: a standby, or the leader, who is the authority on watermarks and does what the master decides.

Lives here: when the controller tries to lead, what it asks of the store and tells workers.  Never here: the decisions
(`master`), the watermarks (`core.authority`), or who may speak for what (`standing`).  Invariants:

* every write carries the epoch of this leader, so one that was followed without knowing it changes nothing;
* nobody hears of a watermark before it is durable, except under snapshots (`controller`);
* what a leader knows it has read since it leads, or workers have said it since.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any, assert_never

from millwheel import limits
from millwheel.cluster import ClusterMap, Leader, Member, Placement, Reshaping, RunEnding
from millwheel.core.authority import Authority
from millwheel.errors import Fenced, InvariantError
from millwheel.host import alphabet as he
from millwheel.host.controller import heed
from millwheel.host.deserted import Deserted
from millwheel.host.generations import Generation, WholeMaster, generation_of
from millwheel.host.led_epochs import LedEpochs
from millwheel.host.left_overs import LeftOvers
from millwheel.host.master import Assign, Bury, Cut, Decision, Dismiss, Finish, Hasten, LetGo, Master, Propose, Settle
from millwheel.host.messages import (
    Claimed,
    Disowned,
    Drained,
    EpochDeclared,
    EpochOpened,
    EpochWanted,
    HandedOver,
    HandOver,
    ImageWritten,
    InQuarantine,
    IntervalSettled,
    Led,
    LoadReport,
    MapChanged,
    Message,
    RoundAnswered,
    RoundAsked,
    RunEnded,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.over import Tolerance
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.requests import (
    Expel,
    GiveOrder,
    Lead,
    Leave,
    PersistLedWatermarks,
    PlaceAnew,
    ReadMap,
    ReadOrders,
    ReadWatermarks,
    Reshape,
    SettleOrder,
)
from millwheel.host.rounds import Rounds
from millwheel.host.standing import Standing
from millwheel.ports import WatermarkWrite


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
        self._map: ClusterMap | None = None
        self._others: dict[str, Member] = {}
        """Live members by their names on channels."""
        self._acting = False
        self._again = False
        self._ended = False
        # Of the term.
        self._epoch: int | None = None
        """None: another one leads."""
        self._authority: Authority | None = None
        self._rounds: Rounds | None = None
        """Of loops, once there is an authority."""
        self._loading = False
        self._early: list[tuple[str, Message]] = []
        """What workers have said before the stored watermarks were read."""
        self._standing = Standing()
        self._every_us, self._durable = snapshot_every_us, durable
        self._master = self._new_master()
        self._generation: Generation | None = None
        """Under snapshots: the owners of which the authority and the epochs are."""
        self._epochs: LedEpochs | None = None
        self._joined: tuple[str, WorkerJoined] | None = None
        """The last worker that has said who sends to whom."""
        self._deserted = Deserted()
        self._tolerance = tolerance or Tolerance()
        self._left_overs = LeftOvers(self._tolerance)
        self._persisting: Authority | None = None
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
        if self._epochs is not None:
            self._epochs.now = now
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
                if self._epoch is not None and peer in self._workers():
                    self._welcome(peer)
                    if self._master.reached(_incarnation(peer)):
                        self._act()
            case he.TurnEnded() | he.Rested() | he.Tick():
                self._persist()
            case he.Told() | he.Due() | he.Returned() | he.RowsArrived():
                raise InvariantError(f"a controller got {type(event).__name__}")
            case _:
                assert_never(event)
        return out

    @property
    def leads(self) -> bool:
        """Whether it leads, as far as it knows."""
        return self._epoch is not None

    def _asked(self, ask: he.Ask) -> None:
        self._out.append(ask)

    def _tell(self, peers: Iterable[str], message: Message) -> None:
        self._out += [he.Tell(peer, message) for peer in peers]

    def _new_master(self) -> Master:
        return WholeMaster() if self._every_us else Master()

    def _serving(self) -> list[str]:
        """Workers that hear of watermarks.  Under snapshots one that owns nothing hears of none: when it gets something, all
        has gone back."""
        if not self._every_us:
            return self._workers()
        return [] if self._generation is None else [f"w{owner}" for owner in sorted(self._generation.members)]

    def _workers(self) -> list[str]:
        return [name for name, member in self._others.items() if member.role == "worker"]

    # --- terms ------------------------------------------------------------------------------------------------

    def _campaign(self) -> Steps:
        while not self._ended:
            leader: Leader | None = yield Lead(self._incarnation, self._lease_us)
            if leader is None:
                self._stand_down()
            elif leader.epoch != self._epoch:
                self._stand_down()
                self._epoch = leader.epoch
                self._tell(self._workers(), Led(leader.epoch))
            self._act()
            yield he.Pause(limits.LEAD_EVERY_US)

    def _stand_down(self) -> None:
        """Whatever was known in a term is void."""
        self._epoch, self._authority, self._loading = None, None, False
        self._generation, self._joined = None, None
        self._end_rounds()
        self._end_epochs()
        self._early, self._standing, self._master, self._fresh = [], Standing(), self._new_master(), set()
        self._deserted, self._left_overs = Deserted(), LeftOvers(self._tolerance)

    def _end_epochs(self) -> None:
        if self._epochs is not None:
            self._epochs.end()
        self._epochs = None

    def _end_rounds(self) -> None:
        """Their intervals have other owners, and the next ones may have lower numbers."""
        if self._rounds is not None:
            self._rounds.end()
        self._rounds = None

    def _renew(self, found: ClusterMap) -> None:
        """Under snapshots, what was known of watermarks is void when all goes back."""
        shown = generation_of(found)
        if shown == self._generation:
            return
        self._generation, self._authority, self._loading = shown, None, False
        self._end_rounds()
        self._end_epochs()
        self._standing = Standing()
        if self._joined is not None and self._joined not in self._early:
            self._early.insert(0, self._joined)

    # --- what is heard ----------------------------------------------------------------------------------------

    def _hear(self, peer: str, message: Message) -> None:
        if isinstance(message, RunEnded):
            if not self._finishing:
                self._finishing, self.ending = True, message.ending
                self._act()
        elif self._epoch is None:
            pass  # who leads says so, and is told everything
        elif isinstance(message, EpochOpened | ImageWritten | EpochWanted):
            self._hear_of_epochs(peer, message)
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
        elif self._authority is None:
            if isinstance(message, WorkerJoined):
                self._joined = (peer, message)
            self._early.append((peer, message))
            self._load_if_due()
        else:
            self._heed(self._authority, peer, message)

    def _heed(self, authority: Authority, peer: str, message: Message) -> None:
        if isinstance(message, WorkerJoined):
            self._joined = (peer, message)
            if peer in self._serving():
                self._tell([peer], self._raised(authority.values(), authority.inputs()))
        admitted = self._standing.admit(peer, message)
        if admitted is None or self._rounds is None:
            return
        if isinstance(admitted, WatermarkReport | RoundAnswered):
            self._passed(authority, admitted.label)
        if isinstance(admitted, RoundAnswered):
            self._rounds.answered(admitted)
            return
        risen = heed(authority, admitted)
        if risen:
            self._tell(self._serving(), self._raised({}, risen))
        if isinstance(admitted, Claimed | IntervalSettled):
            self._rounds.hurry()

    def _passed(self, authority: Authority, label: int) -> None:
        """What is heard comes from behind the barrier `label`: what was reached before is told, and stored with its epoch."""
        if self._epochs is not None and label > self._epochs.label:
            self._tell_changes(authority)
            self._epochs.reported(label)

    def _ask_round(self, question: RoundAsked) -> None:
        self._tell(self._serving(), question)

    def _load_if_due(self) -> None:
        """When the map is known, and a worker has said who sends to whom."""
        joined = [message for _, message in self._early if isinstance(message, WorkerJoined)]
        placed = not self._every_us or self._generation is not None
        if joined and placed and self._map is not None and not self._loading:
            self._loading = True
            self._procedures.start(self._load(joined[0], self._epoch))

    def _load(self, joined: WorkerJoined, epoch: int | None) -> Steps:
        generation = self._generation
        found: ClusterMap = yield ReadMap()  # read since this one leads: nobody else declares an epoch any more
        stored: dict[str, int] = yield ReadWatermarks()
        if self._epoch is None or epoch != self._epoch or self._map is None or generation != self._generation:
            return
        authority = self._authority = Authority(joined.senders, stored, joined.loops, joined.shares)
        # Workers know the numbers of earlier leaders' rounds: those of this one are larger.
        self._rounds = Rounds(authority, self._procedures.start, self._ask_round, self._epoch << 32)
        self._adjust(authority, self._map)
        if generation is not None:
            self._begin_epochs(generation, authority, found.declared, self._epoch)
        early, self._early = self._early, []
        for peer, message in early:
            self._heed(authority, peer, message)
        self._tell(self._serving(), self._raised(authority.values(), authority.inputs()))
        self._rounds.hurry()

    def _begin_epochs(self, generation: Generation, authority: Authority, declared: int, epoch: int) -> None:
        self._epochs = LedEpochs(
            workers=self._serving(), owners={interval: sequencer for interval, _, sequencer in generation.owners},
            term=epoch, every_us=self._every_us, begin=self._procedures.start,
            tell=self._tell_of_epochs, values=authority.values, durable=self._durable,
        )  # fmt: skip
        self._epochs.now = self.now
        self._epochs.based(declared)

    def _tell_of_epochs(self, message: Message) -> None:
        self._tell(self._serving(), message)
        if isinstance(message, EpochDeclared) and isinstance(self._master, WholeMaster) and self._master.waits:
            self._act()

    def _hear_of_epochs(self, peer: str, message: EpochOpened | ImageWritten | EpochWanted) -> None:
        """What comes before there are epochs is said again when one begins."""
        if self._epochs is None or peer not in self._serving():
            return
        match message:
            case EpochOpened():
                self._epochs.begun(peer, message)
            case ImageWritten():
                self._epochs.written(message)
            case EpochWanted():
                self._epochs.wanted(message)

    def _raised(self, values: Mapping[str, int], inputs: Mapping[str, int]) -> WatermarksRaised:
        return WatermarksRaised(dict(values), dict(inputs), 0 if self._epochs is None else self._epochs.label)

    def _tell_changes(self, authority: Authority) -> None:
        """Under snapshots a watermark is told when it is reached, and stored with an epoch."""
        changed = authority.changes()
        if changed:
            self._tell(self._serving(), self._raised(changed, authority.adopt(changed)))
            if self._rounds is not None:
                self._rounds.hurry()

    def _adjust(self, authority: Authority, found: ClusterMap) -> None:
        """Every interval of the map is expected, whoever owns it.  One with another owner holds until that has reported."""
        anew, gone = self._standing.follow(found)
        for name, interval, sequencer in anew:
            authority.expect(name, interval, sequencer)
            authority.hold(name, interval)
        for name, interval in gone:
            authority.retire(name, interval)
        if (anew or gone) and self._rounds is not None:
            self._rounds.hurry()

    def _welcome(self, peer: str) -> None:
        """A worker may not know what was told, and what it has said may be lost."""
        if self._epoch is not None:
            self._tell([peer], Led(self._epoch))
        if self._authority is not None and peer in self._serving():
            self._tell([peer], self._raised(self._authority.values(), self._authority.inputs()))
        for message in self._epochs.restate() if self._epochs is not None and peer in self._serving() else ():
            self._tell([peer], message)

    # --- the map ----------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Look at the map, and do what is to be done about it."""
        self._again = True
        if not self._acting:
            self._acting = True
            self._procedures.start(self._act_all())

    def _act_all(self) -> Steps:
        while self._again and not self._ended:
            self._again = False
            found: ClusterMap = yield ReadMap()
            if self._map is None or found.version >= self._map.version:
                self._follow(found)
                if self._finishing:
                    yield from self._finish()
                elif self._epoch is not None:
                    yield from self._lead_on(found, self._epoch)
        self._acting = False

    def _follow(self, found: ClusterMap) -> None:
        if not any(member.incarnation == self._incarnation and member.alive for member in found.members):
            raise Fenced(f"controller {self._incarnation} is not a member of this cluster any more; this process ends")
        self._map = found
        known = self._others
        self._others = {host_name(member): member for member in found.members if member.alive}
        del self._others[self.name]
        self._out.append(he.Reach({name: member.address for name, member in self._others.items()}))
        if self._epoch is None:
            return
        if self._every_us:
            self._renew(found)
        if self._authority is not None:
            self._adjust(self._authority, found)
        self._standing.resume()
        for peer in self._workers():
            if peer not in known or self._others[peer].incarnation in self._fresh:
                self._welcome(peer)
        self._fresh.clear()
        self._load_if_due()

    def _lead_on(self, found: ClusterMap, epoch: int) -> Generator[he.Wish, Any, None]:
        """One step, if there is one to be done."""
        ending = yield from self._left_overs.excess(found)
        if ending is None and (yield from self._deserted.over(found, self.now)):
            ending = yield from self._left_overs.judged(found)
        if ending is not None and self._epoch == epoch:
            self._finishing, self.ending = True, ending
            yield from self._finish()
            return
        orders = yield ReadOrders()
        if self._epoch != epoch:
            return
        self._master.ordered(dict(orders))
        if isinstance(self._master, WholeMaster):
            self._master.resting = self._epochs is not None and self._epochs.resting
            self._master.declared = found.declared if self._epochs is None else self._epochs.declared
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
                self._end_epochs()
                yield from self._dismiss(incarnations, found)
            case Hasten():
                if self._epochs is not None:
                    self._epochs.wanted(EpochWanted(self._epochs.declared))
                return False
            case Cut(intervals, split_keys, order, back):
                answer = yield Reshape(Reshaping(epoch, found.version, intervals, split_keys, back, order))
                if answer is None or self._epoch != epoch:
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
                if self._epoch != epoch or ending is None:
                    return False
                self._finishing, self.ending = True, ending
                self._end_epochs()
            case _:
                assert_never(decision)
        return True

    def _assign(self, decision: Assign, found: ClusterMap, epoch: int) -> Generator[he.Wish, Any, bool]:
        intervals, sources = decision.intervals, decision.sources
        dead = tuple(member.incarnation for member in found.members if not member.alive)
        if dead:
            yield Expel(dead)
        if self._epoch != epoch:
            return False
        self._standing.suspend(intervals, sources)
        version: int | None = yield PlaceAnew(Placement(epoch, found.version, intervals, sources, decision.back))
        if self._epoch != epoch:
            return False
        if version is None:  # the map has changed meanwhile, or somebody else leads; `_follow` resumes
            self._master.refused()
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

    # --- watermarks -------------------------------------------------------------------------------------------

    def _persist(self) -> None:
        authority = self._authority
        if self._every_us:
            if authority is not None and self._epoch is not None and self._epochs is not None:
                self._tell_changes(authority)
        elif authority is not None and self._epoch is not None and authority.changed() and self._persisting is None:
            self._persisting = authority
            self._procedures.start(self._persist_all(authority, self._epoch))

    def _persist_all(self, authority: Authority, epoch: int) -> Steps:
        while self._authority is authority and authority.changed():
            changed = authority.changes()
            if not changed:
                continue
            writes = [WatermarkWrite(name, value, authority.owners(name)) for name, value in changed.items()]
            kept: set[str] | None = yield PersistLedWatermarks(epoch, writes)
            if kept is None and self._epoch == epoch:
                self._stand_down()
            if kept is None or self._authority is not authority:
                break
            self._persisted(authority, writes, kept)
            yield he.Pause(limits.PERSIST_DELAY_US)
        self._persisting = None

    def _persisted(self, authority: Authority, writes: list[WatermarkWrite], kept: set[str]) -> None:
        for write in writes:
            if write.name not in kept:
                authority.refused(write.name)
                self._tell(self._workers(), Disowned(tuple(sorted(write.owners.items()))))
                self._act()
        durable = {write.name: write.value for write in writes if write.name in kept}
        self._tell(self._workers(), WatermarksRaised(durable, authority.adopt(durable)))
        if self._rounds is not None:
            self._rounds.hurry()

    # --- the end ----------------------------------------------------------------------------------------------

    def _finish(self) -> Generator[he.Wish, Any, None]:
        """Tell everybody until nobody is left.  A standby leaves before that, when it has told the leader often enough: this
        one may have begun to lead when no worker was left to say that the run is over."""
        self._tell(self._others, RunEnded(self.ending))
        self._farewells += not self._workers()
        if self._others and (self._epoch is not None or self._farewells < limits.FAREWELLS):
            return
        self._ended = True
        yield from self._leave()

    def _leave(self) -> Generator[he.Wish, Any, None]:
        yield Leave(self._incarnation)
        self._out.append(he.Ended())


def _incarnation(peer: str) -> int:
    """The number in a worker's name."""
    return int(peer.removeprefix("w"))
