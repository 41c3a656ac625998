"""A worker: the intervals and source partitions that one process owns, and everything that is decided about them.

Lives here: what becomes of each event and of each effect of a core, and the end of a run.  Never here: I/O, clocks or user
code.  Parts decide by themselves about groups (`commits`), the tables (`folded`), suspects (`marks`), sources (`partitions`),
channels (`links`), how a core begins (`adoption`, `restarts`), and `routes`.  Invariants:

* cores of different intervals communicate by messages only, also within one process;
* nothing reaches a void core, and nothing that was meant for an earlier core of an interval reaches the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, assert_never

from millwheel import limits
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import InvariantError, RowRefused
from millwheel.graph import Graph
from millwheel.host import alphabet as he
from millwheel.host import folded
from millwheel.host.actors import Actor, Actors
from millwheel.host.adoption import Adoption
from millwheel.host.alarms import Alarms
from millwheel.host.barriers import Epochs
from millwheel.host.cache_shares import CacheShares
from millwheel.host.commits import CommitLanes, Group
from millwheel.host.heard import Heard
from millwheel.host.links import Links
from millwheel.host.marks import Marks
from millwheel.host.messages import (
    BarriersNamed,
    Credit,
    Delivery,
    Disowned,
    EpochDeclared,
    EpochRefused,
    EpochStarted,
    Expected,
    ForController,
    HandOver,
    Hello,
    Led,
    MapChanged,
    Message,
    Receipt,
    RoundAnswered,
    RoundAsked,
    RunEnded,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.over import Tolerance, consumed, too_much
from millwheel.host.owning import Ownership, WholeOwnership
from millwheel.host.partitions import Partitions
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.redrives import Redrives
from millwheel.host.requests import CommitGroup, WriteMarks
from millwheel.host.restarts import Restarts
from millwheel.host.routes import Routes
from millwheel.host.tally import Tally
from millwheel.host.voice import Voice
from millwheel.ids import IntervalId, Seq, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME, format_time
from millwheel.ports import MarkWrite
from millwheel.work import Work

RareWish = (
    folded.TableEffect | ev.AnswerRound | ev.Advance | ev.RowsKept | ev.Mark | ev.Unmark | ev.RestartInterval | ev.Settled
    | ev.PartWritten | ev.PositionNoted | ev.Halt
)  # fmt: skip
"""What a core wants less often than with each record."""


class WorkerHost(Voice):
    """One worker.  `name` is its own address, `controller` that of the controller.

    `ownership` makes the part that decides which intervals and sources are its own.  `cache_bytes` is what intervals without
    a limit of their own have together for state of keys.
    """

    def __init__(
        self,
        *,
        graph: Graph,
        name: str = "worker",
        controller: str | None = "controller",
        tolerance: Tolerance | None = None,
        first_records: int | None = None,
        ownership: Callable[[WorkerHost], Ownership] = WholeOwnership,
        inherited: Mapping[IntervalId, ev.Inherited] | None = None,
        tally: Tally | None = None,
        cache_bytes: int = limits.CACHE_LEAST_BYTES,
    ) -> None:
        super().__init__(name, controller)
        self.graph = graph
        self.actors = Actors(tally)
        self.routes = Routes(graph)
        self.heard = Heard()
        self.links = Links(self)
        self._reads: dict[IntervalId, int] = {}
        """Rows that were asked for of each partition that is being read."""
        self.shares = CacheShares(self.actors, cache_bytes)
        self._alarms = Alarms()
        self._procedures = Procedures(self._asked)
        self._lanes = CommitLanes()
        self._marks = Marks(self.begin, self.tell, self._invoke)
        self.partitions = Partitions(graph, self)
        self.redrives = Redrives(self.routes, self.actors, self.tell)
        self.restarts = Restarts(self)
        self.adoption = Adoption(self, first_records, inherited or {})
        self.closed: set[IntervalId] = set()
        """Intervals that take nothing in any more, because they go to another worker."""
        self._tolerance = tolerance
        self.stopped = ""
        """Why the run stops before its end."""
        self.serving = False
        self.epochs = Epochs(self, graph.snapshot_every_us > 0)
        self.ownership = ownership(self)

    # --- the door ---------------------------------------------------------------------------------------------

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        """React to one event at wall time `now`, us."""
        self.now = now
        out = self._out = []
        if type(event) is he.TurnEnded:
            self._flush()
        elif type(event) is he.Received:
            self.hear(event.peer, event.message)
        elif type(event) is he.Answered:
            self._procedures.answered(event.token, event.answer)
        elif type(event) is he.Told:
            self._give(event.interval, event.sequencer, event.event)
        elif type(event) is he.RowsArrived:
            self._arrived(event)
        elif type(event) is he.Announced:
            self._announced(event.interval)
        elif type(event) is he.Due:
            self._due(event.interval, event.sequencer, event.work)
        elif type(event) is he.Returned:
            self.ownership.ran(event.interval, event.elapsed_us)
            self._give(event.interval, event.sequencer, ev.Invoked(event.outcome, event.elapsed_us))
        elif type(event) is he.Rested:
            self._rest()
        elif type(event) is he.Tick:
            self._ring()
        elif type(event) is he.Declined:
            self._procedures.declined(event.token, event.refusal)
        elif type(event) is he.Started:
            self.begin(self.ownership.boot())
        elif type(event) is he.ChannelOpened:
            self._reopened(event.peer)
        else:
            assert_never(event)
        return out

    @property
    def values(self) -> dict[str, int]:
        """Published watermarks, us, as far as this worker has heard."""
        return self.heard.values

    # --- what parts call --------------------------------------------------------------------------------------

    def begin(self, steps: Steps) -> None:
        """Start a procedure."""
        self._procedures.start(steps)

    def abandon(self, steps: Steps) -> None:
        """End a procedure where it waits."""
        self._procedures.abandon(steps)

    def sequencers(
        self, source: str, intervals: Sequence[IntervalId]
    ) -> Generator[he.Wish, Any, dict[IntervalId, Sequencer] | None]:
        """New sequencers for partitions of a source; None when another worker has the source."""
        return (yield from self.ownership.sequencers(source, intervals))

    def pressed(self) -> bool:
        """Whether no partition is read now, because an epoch must end first."""
        return self.epochs.pressed

    def label(self) -> int | None:
        """The last barrier that has passed here; None without snapshots."""
        return self.epochs.label

    def read(self, effect: he.ReadRows) -> None:
        """Have rows read."""
        self._reads[effect.interval] = effect.limit
        self._out.append(effect)

    def release(self, actor: Actor, finished: bool = True) -> None:
        """Forget a partition that is finished, or that another worker goes on with."""
        self.actors.drop(actor)
        self._out.append(he.Release(actor.interval, finished))

    # --- other processes --------------------------------------------------------------------------------------

    def meet(self, peer: str) -> None:
        """There is another worker: say hello, and hear what it has said already."""
        self._peers = (*self._peers, peer)
        for message in self.links.meet(peer):
            self.hear(peer, message)

    def part(self, peer: str) -> None:
        """A worker is gone for good."""
        self._peers = tuple(other for other in self._peers if other != peer)
        self.links.part(peer)

    def source_lost(self, name: str) -> None:
        """Another worker has a source, as the store says."""
        self.ownership.source_lost(name)

    def drop(self, actor: Actor) -> None:
        """An interval is not this worker's any more: nothing of it is said or written from now on."""
        actor.core.halted = True
        self.withdraw(actor)
        if self.actors.all.get(actor.interval) is actor:
            self.actors.drop(actor)
            self.shares.changed()
        self.links.drop(actor.interval)
        self.adoption.drop(actor.interval)
        self.restarts.drop(actor.interval)
        self.hush(actor.owner, actor.interval)
        self.closed.discard(actor.interval)

    def withdraw(self, actor: Actor) -> None:
        """Nothing of a core that is void waits to be written any more, and nobody waits for it."""
        self._lanes.drop(actor.interval)
        self._marks.leave(actor)

    # --- start ------------------------------------------------------------------------------------------------

    def start(self, actor: Actor) -> None:
        """From now on it takes events."""
        if not isinstance(actor.core, IntervalCore):
            raise InvariantError("actor.core is no IntervalCore")
        self.actors.put(actor)
        self.shares.changed()
        live, heard = frozenset(self.routes.live), self.heard.input_of(actor.owner)
        self.perform(actor, actor.core.start(self.now, live, heard))
        self.links.hello(actor)
        asked = self.heard.asked(actor.core.config.loop)
        if asked is not None:
            self._give(actor.interval, actor.sequencer, ev.RoundBegan(asked.round, asked.bound))

    def join(self) -> None:
        """After the takeover: nothing that an earlier owner committed is ahead of the watermarks that are stored now."""
        if self.routes.subscriptions:
            senders = {name: tuple(sorted(of)) for name, of in self.routes.bounds().items()}
            loops = {loop.name: loop.members for loop in self.graph.loops}
            sources = self.graph.sources.values()
            shares = {f"source:{spec.name}": round(spec.percentile * 1_000_000) for spec in sources if spec.percentile}
            self.inform(WorkerJoined(senders, loops, shares))

    def _reopened(self, peer: str) -> None:
        """A channel is open again after a cut.  Say again what the other end must know."""
        if peer == self._controller:
            self._restate(peer)
            return
        if peer in self._peers:  # else it will hear everything when they meet
            self.links.reopened(peer)

    # --- messages ---------------------------------------------------------------------------------------------

    def hear(self, peer: str, message: Message) -> None:
        """A message has come from a host."""
        if type(message) is Delivery:
            self._delivered(peer, message)
            return
        if type(message) is Receipt:
            actor = self.actors.all.get(message.sender)
            if actor is not None:
                self.handle_core(actor, ev.AckArrived(message.number, message.epoch))
            return
        match message:
            case Hello() | Credit() if peer not in self._peers:
                self.links.strangers.keep(peer, message)
                self.ownership.look()
            case Credit():
                self.partitions.credit(message)
            case WatermarksRaised(values, inputs, label):
                self._raised(values, inputs, label)
            case EpochStarted(epoch):
                self.epochs.begin(epoch)
            case BarriersNamed():
                self.epochs.named(message)
            case EpochDeclared(epoch):
                self.epochs.declared(epoch)
            case EpochRefused(_, interval, seq, rows):
                if interval in self.actors.all:  # else another worker has it: it leaves, and all goes back
                    self._set_aside(RowRefused("", interval, seq, rows))
            case Hello():
                self._greeted(peer, message)
            case Disowned(owners):
                self.ownership.disowned(dict(owners))
            case MapChanged() | HandOver() | RunEnded() | Led():
                self.ownership.hear(peer, message)
            case RoundAsked():
                self._round(message)
            case Expected(channels):
                channels = self.ownership.expects(channels)
                self.routes.live |= {*channels}
                for actor, _ in self.actors.intervals() if channels else ():
                    self.handle_core(actor, ev.ChannelsExpected(channels))
            case _:
                if not isinstance(message, ForController):
                    assert_never(message)
                raise AssertionError(f"a worker was told {type(message).__name__}")

    def _delivered(self, peer: str, delivery: Delivery) -> None:
        bundle = delivery.bundle
        actor = self.actors.current(bundle.target, delivery.sequencer)
        if actor is None or actor.interval in self.closed or peer not in self._peers:
            return  # it is kept by its sender, or by the sender's next owner
        if not self.ownership.doubts(actor, peer, delivery):
            self.links.came(peer, delivery)
            self.handle_core(actor, ev.BundleArrived(bundle))
            if bundle.frontier == MAX_TIME:
                self.routes.ended((bundle.subscription, bundle.producer))

    def _round(self, asked: RoundAsked) -> None:
        """The intervals of a loop are asked.  One that is not there yet answers when it starts."""
        self.heard.round(asked)
        for actor, core in self.actors.intervals():
            if core.config.loop == asked.loop:
                self.handle_core(actor, ev.RoundBegan(asked.round, asked.bound))

    def _greeted(self, peer: str, hello: Hello) -> None:
        """A receiver has said hello.  It has only what is durable, so senders send again what it has not acked."""
        if self.links.greeted(peer, hello):
            self.partitions.hello(hello)
            for actor in [*self.actors.all.values()]:
                self.handle_core(actor, ev.Resend(hello.interval))

    def _raised(self, values: dict[str, int], inputs: dict[str, int], label: int) -> None:
        if self.heard.published(values, label):
            self._warn_of_left_out(values)
        if values:
            self.partitions.watermarks_rose()
        for computation, value in self.heard.rose(inputs).items():
            for actor in self.actors.of(computation):
                if actor.interval not in self.closed:
                    self.tell(actor, ev.WatermarkMoved(value, label))

    def _warn_of_left_out(self, values: dict[str, int]) -> None:
        for source in self.routes.left_out:
            reached = values.get(f"source:{source}", MIN_TIME)
            if reached < MAX_TIME:
                self.note(
                    f"source {source} is not in this pipeline and was not read to its end; what it feeds waits for it at "
                    f"{format_time(reached)}: put it back, or drop it for good (millwheel source drop)"
                )

    # --- cores ------------------------------------------------------------------------------------------------

    def _give(self, interval: IntervalId, sequencer: Sequencer, event: ev.Event) -> None:
        actor = self.actors.current(interval, sequencer)
        if actor is not None:
            self.handle_core(actor, event)

    def handle_core(self, actor: Actor, event: ev.Event) -> None:
        """Give a core an event now."""
        effects = actor.core.handle(event, self.now)
        if effects:
            self.perform(actor, effects)
        self.links.grant(actor)

    def _arrived(self, rows: he.RowsArrived) -> None:
        actor = self.actors.current(rows.interval, rows.sequencer)
        if actor is not None:
            self.partitions.arrived(actor, rows, self._reads.pop(rows.interval))

    def _announced(self, interval: IntervalId) -> None:
        actor = self.actors.all.get(interval)
        if actor is not None:  # else it is not open yet, and is read when it is; or it is over
            self.handle_core(actor, ev.RowsAnnounced())

    def _due(self, interval: IntervalId, sequencer: Sequencer, work: Work) -> None:
        actor = self.actors.current(interval, sequencer)
        if actor is not None and not self._marks.keeps(actor, work):
            self._out.append(he.RunHooks(actor.owner, interval, sequencer, work))

    def _invoke(self, actor: Actor, work: Work) -> None:
        self._out.append(he.Post(he.Due(actor.interval, actor.sequencer, work)))

    def perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        """Perform effects of a core, in order."""
        for effect in effects:
            if type(effect) is ev.Ack:
                self.links.acknowledge(actor, effect.sender, effect.number, effect.epoch)
            elif type(effect) is ev.Send:
                self.links.send(actor, effect.bundle)
            elif type(effect) is ev.SetAlarm:
                if self._alarms.set(effect.at, actor.interval):
                    self._out.append(he.WakeAt(effect.at))
            elif type(effect) is ev.Invoke:
                self._invoke(actor, effect.work)
            elif type(effect) is ev.Commit:
                self._lanes.submit(effect.write)
            elif type(effect) is ev.ReportWatermark:
                core = actor.core
                self.report(WatermarkReport(actor.owner, actor.interval, effect.value, actor.sequencer, core.label))
            elif type(effect) is ev.Read:
                self.partitions.read(actor, effect.limit)
            else:
                self._perform_rare(actor, effect)

    def _perform_rare(self, actor: Actor, effect: RareWish) -> None:
        match effect:
            case ev.AnswerRound(round_, minimum):
                self.answer(RoundAnswered(actor.interval, actor.sequencer, round_, minimum, actor.core.label))
            case ev.Advance():
                self.partitions.advance(actor, effect)
            case ev.RowsKept(position):
                self._out.append(he.Answer(actor.interval, position))
            case ev.Mark() | ev.Unmark():
                self._marks.perform(actor, effect)
            case ev.RestartInterval(inherited) if self.epochs.enabled:
                self.epochs.go_back(actor, inherited)
            case ev.RestartInterval(inherited):
                self.restarts.begin(actor, inherited)
            case ev.Settled():
                self.adoption.settle(actor, set())
            case ev.PartWritten():
                self.epochs.written(actor, effect)
            case ev.PositionNoted():
                self.epochs.noted(actor, effect)
            case ev.Halt(reason):
                self.ownership.fenced(actor, reason)
            case (
                ev.Load() | ev.LoadSlots() | ev.LoadTimers() | ev.LookupIds() | ev.ReadOutsideIds() | ev.Fold()
                | ev.FetchQuarantine()
            ):  # fmt: skip
                self.begin(folded.steps(actor, effect, self.tell))
            case _:
                assert_never(effect)

    def _ring(self) -> None:
        for interval in self._alarms.due(self.now):
            if interval in self.actors.all:  # else a partition that is finished, and forgotten
                self.handle_core(self.actors.all[interval], ev.AlarmRang())
        if self._alarms.next() < MAX_TIME:
            self._out.append(he.WakeAt(self._alarms.next()))

    # --- what goes to the store in groups ---------------------------------------------------------------------

    def _flush(self) -> None:
        if self._tolerance is not None and (reason := too_much(self, self._tolerance)):
            self.stop_for(reason)
        for group in self._lanes.ready():
            self.begin(self._commit(group))
        self._marks.flush()
        if self.epochs.enabled:
            self.epochs.press()
        self.shares.look(self.now)
        self.partitions.flush()
        if (at := self.links.flush()) is not None:
            self._out.append(he.WakeAt(at))
        if self._reports is not None:
            self._report_when_due()

    def _commit(self, group: Group) -> Steps:
        left, durable, began = group.writes, set[tuple[IntervalId, Seq]](), self.now
        while left:
            try:
                durable = yield CommitGroup(left)
                break
            except RowRefused as refusal:
                (sequencer,) = {write.sequencer for write in left if write.interval == refusal.interval}
                if self.actors.current(refusal.interval, sequencer) is not None:  # else another core goes on by now
                    self._set_aside(refusal)
                left = [write for write in left if write.interval != refusal.interval]
        self._lanes.done(group)
        self.actors.tally.commits += 1
        self.actors.tally.commit_us += max(0, self.now - began)
        for write in group.writes:
            kept = (write.interval, write.seq) in durable
            actor = self.actors.current(write.interval, write.sequencer)
            if actor is not None:  # else it is what a void core had submitted
                self.tell(actor, ev.CommitDone(write.seq) if kept else ev.WriteFenced())

    def _set_aside(self, refusal: RowRefused) -> None:
        """From now on, only the next core of the interval may commit anything of it."""
        actor = self.actors.all[refusal.interval]
        self._out.append(he.Declare(actor.owner, tuple(answer for _, answer in refusal.rows)))
        self._lanes.drop(actor.interval)
        self.handle_core(actor, ev.Refused(refusal.seq, refusal.rows))
        self._marks.leave(actor)

    def stop_for(self, reason: str) -> None:
        """End before the input is consumed, because too much has failed."""
        self.stopped = reason
        self.end()

    # --- the end ----------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        if self.epochs.enabled:
            self.epochs.hurry()
        if not self.finished():
            return
        busy = [(actor, core) for actor, core in self.actors.intervals() if not core.quiet()]
        if self.epochs.settled() and not busy and self._lanes.idle():
            self.ownership.rested()
            return
        # Everything has run.  Record the last acks and fold, so that the log is empty when the run ends.
        for actor, core in busy:
            self.perform(actor, core.flush(self.now))
        self.wake(limits.END_DELAY_US)

    def finished(self) -> bool:
        """True when all input is consumed."""
        return consumed(self)

    def all_committed(self) -> bool:
        """True when no checkpoint waits for its commit."""
        return self._lanes.idle()

    def next_commit_waits(self) -> bool:
        """True when a checkpoint is ready, and leaves when this turn ends."""
        return self._lanes.waits()

    def last_words(self) -> WriteMarks:
        """What to write when the run ends in order: no interval has anything under suspicion."""
        return WriteMarks([MarkWrite(actor.interval, actor.sequencer, b"", 0) for actor, _ in self.actors.intervals()])
