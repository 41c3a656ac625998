"""A worker: the intervals and source partitions that one process owns, and everything that is decided about them.

Lives here: what becomes of each effect of a core, the start, the restart of an interval, and the end of a run.  Never here:
I/O, clocks or user code.  Parts decide by themselves about groups (`commits`), the tables (`folded`), suspects (`marks`),
sources (`partitions`) and `routes`.  Invariants:

* cores of different intervals communicate by messages only, also within one process;
* nothing reaches a void core, and nothing that was meant for an earlier core of an interval reaches the next one.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, assert_never

import msgspec

from millwheel import limits
from millwheel.bundles import Bundle
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import Config, IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.errors import Fenced, InvariantError, RowRefused
from millwheel.graph import Graph
from millwheel.host import alphabet as he
from millwheel.host import folded
from millwheel.host.actors import Actor, Actors
from millwheel.host.alarms import Alarms
from millwheel.host.commits import CommitLanes, Group
from millwheel.host.credit import CreditWindow
from millwheel.host.marks import Marks
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Credit,
    Delivery,
    Disowned,
    Excused,
    Expected,
    Hello,
    IntervalSettled,
    Message,
    Open,
    Receipt,
    SourceBound,
    Unsettled,
    WatermarkReport,
    WatermarksRaised,
    WorkerJoined,
)
from millwheel.host.partitions import Partitions, positions_of
from millwheel.host.procedures import Procedures, Steps
from millwheel.host.receivers import Receivers
from millwheel.host.redrives import Redrives
from millwheel.host.requests import (
    Acquire,
    CommitGroup,
    ListRedrives,
    ListUnfinished,
    OpenPipeline,
    Reacquire,
    Recover,
    StillOwned,
    WriteMarks,
)
from millwheel.host.restated import Restated
from millwheel.host.routes import Routes
from millwheel.model import MAX_TIME, MIN_TIME, format_time
from millwheel.ports import MarkWrite, Opened
from millwheel.work import Work


class Tolerance(msgspec.Struct, frozen=True):
    """How many keys a run may put into quarantine, and how many rows its sources may reject, before it stops."""

    quarantined: int | None = None
    rejected: int | None = None


class WorkerHost:
    """One worker.  `name` is its own address, `controller` that of the controller."""

    def __init__(
        self,
        *,
        graph: Graph,
        name: str = "worker",
        controller: str = "controller",
        tolerance: Tolerance | None = None,
        first_records: int | None = None,
    ) -> None:
        self.graph = graph
        self.name = name
        self._controller = controller
        self._peers = (name,)
        """Workers, this one included."""
        self.now = 0
        self._out: list[he.HostEffect] = []
        self.actors = Actors()
        self.routes = Routes(graph)
        self.values: dict[str, int] = {}
        """Published watermarks, us, as far as this worker has heard."""
        self._inputs: dict[str, int] = {}
        self._heard = False
        """The controller has told what is stored."""
        self._receivers = Receivers()
        self._windows: dict[int, CreditWindow] = {}
        """Credit that this worker's intervals give to sources."""
        self._reads: dict[int, int] = {}
        """Rows that were asked for of each partition that is being read."""
        self._alarms = Alarms()
        self._procedures = Procedures(self._asked)
        self._lanes = CommitLanes()
        self._marks = Marks(self.begin, self.tell, self._invoke)
        self.partitions = Partitions(graph, self)
        self._restarting: set[int] = set()
        """Intervals whose core is void and not yet replaced."""
        self._restated = Restated()
        """What the controller must hear again after a cut."""
        self._unsettled: set[int] = set()
        """Intervals with productions of an earlier version of the pipeline, on streams that they no longer list."""
        self._tolerance = tolerance or Tolerance()
        self._first_records = first_records
        """At most so many records in the first invocation of a core, because hooks may be slow; None means no such limit."""
        self.stopped = ""
        """Why the run stops before its end."""
        self.serving = False
        self._redrives_read = False
        """All redrives that were asked for at the start are known.  A run does not end before that."""

    # --- the door ---------------------------------------------------------------------------------------------

    def handle(self, event: he.HostEvent, now: int) -> list[he.HostEffect]:
        """React to one event at wall time `now`, us."""
        self.now = now
        out = self._out = []
        match event:
            case he.Received(_, message):
                self._hear(message)
            case he.Due(interval, sequencer, work):
                self._due(interval, sequencer, work)
            case he.Returned(interval, sequencer, outcome, elapsed_us):
                self._give(interval, sequencer, ev.Invoked(outcome, elapsed_us))
            case he.Told(interval, sequencer, told):
                self._give(interval, sequencer, told)
            case he.Answered(token, answer):
                self._procedures.answered(token, answer)
            case he.TurnEnded():
                self._flush()
            case he.Tick():
                self._ring()
            case he.RowsArrived(interval, sequencer, _, _):
                actor = self.actors.current(interval, sequencer)
                if actor is not None:
                    self.partitions.arrived(actor, event, self._reads.pop(interval))
            case he.Rested():
                self._rest()
            case he.Declined(token, refusal):
                self._procedures.declined(token, refusal)
            case he.Started():
                self.begin(self._boot())
            case he.ChannelOpened(peer):
                self._reopened(peer)
            case _:
                assert_never(event)
        return out

    def _asked(self, ask: he.Ask) -> None:
        self._out.append(ask)

    # --- what parts call --------------------------------------------------------------------------------------

    def begin(self, steps: Steps) -> None:
        """Start a procedure."""
        self._procedures.start(steps)

    def tell(self, actor: Actor, event: ev.Event) -> None:
        """Give a core an event, after what is queued."""
        self._out.append(he.Post(he.Told(actor.interval, actor.sequencer, event)))

    def inform(self, message: Message) -> None:
        """Send a message to the controller."""
        self._restated.note(message)
        self._out.append(he.Tell(self._controller, message))

    def announce(self, message: Message) -> None:
        """Send a message to every worker."""
        self._out += [he.Tell(peer, message) for peer in self._peers]

    def read(self, effect: he.ReadRows) -> None:
        """Have rows read."""
        self._reads[effect.interval] = effect.limit
        self._out.append(effect)

    def release(self, actor: Actor) -> None:
        """Forget a partition that is finished."""
        self.actors.drop(actor)
        self._out.append(he.Release(actor.interval))

    def note(self, text: str) -> None:
        """Tell the operator."""
        self._out.append(he.Notice(text))

    # --- start ------------------------------------------------------------------------------------------------

    def _boot(self) -> Steps:
        opened: Opened = yield OpenPipeline(self.graph.shape())
        rows = self.routes.open(opened)
        sequencers = yield Acquire(tuple(row.id for row in rows))
        yield he.Prepare(opened.subscriptions, opened.places)
        adopted = []
        for row in rows:
            adopted.append((yield from self._adopt(self.routes.config(row, sequencers[row.id]))))
        self.inform(Claimed(tuple((row.computation, row.id, sequencers[row.id]) for row in rows)))
        # Now that all is claimed: the controller reads what is stored, and nobody is told more than this.
        self._join()
        known = yield from positions_of(self.graph)
        self.routes.expect_partitions((yield ListUnfinished()))
        for actor in adopted:
            self._start(actor)
        self.begin(self._redrive())
        self.begin(self._watch())
        self.serving = True
        yield from self.partitions.open(known)

    def _adopt(self, config: Config, inherited: ev.Inherited | None = None) -> Generator[he.Wish, Any, Actor]:
        """Recover one interval; its core is not started yet."""
        interval, owner = config.interval, config.computation
        recovered = yield Recover(interval, config.sequencer)
        if recovered is None:
            raise Fenced(f"interval {interval} of {owner!r}: another run owns this pipeline's store now")
        core = IntervalCore(config, recovered, inherited)
        if self._first_records is not None:
            core.begin_slowly(self._first_records)
        for note in core.suspects.notes() if inherited is None else ():
            self.note(f"{owner}: {note}")
        actor = Actor(interval=interval, sequencer=config.sequencer, owner=owner, core=core)
        self._settle(actor, self.routes.unsettled(config, recovered))
        self.routes.expect_of(config, recovered)
        return actor

    def _settle(self, actor: Actor, receivers: set[str]) -> None:
        """Productions of an earlier version of the pipeline are left, or not."""
        if receivers:
            self._unsettled.add(actor.interval)
            self.inform(Unsettled(actor.owner, actor.interval, tuple(sorted(receivers))))
        elif actor.interval in self._unsettled:
            self._unsettled.discard(actor.interval)
            self.inform(IntervalSettled(actor.interval))

    def _start(self, actor: Actor) -> None:
        """From now on it takes events."""
        if not isinstance(actor.core, IntervalCore):
            raise InvariantError("actor.core is no IntervalCore")
        self.actors.put(actor)
        self.perform(actor, actor.core.start(self.now, frozenset(self.routes.live)))
        self._say_hello(actor)
        self._give(actor.interval, actor.sequencer, ev.WatermarkMoved(self._inputs.get(actor.owner, MIN_TIME)))

    def _join(self) -> None:
        """After the takeover: nothing that an earlier owner committed is ahead of the watermarks that are stored now."""
        if self.routes.subscriptions:
            self.inform(WorkerJoined({name: tuple(sorted(of)) for name, of in self.routes.senders().items()}))

    def _say_hello(self, actor: Actor) -> None:
        before = self._windows.get(actor.interval)
        window = self._windows[actor.interval] = CreditWindow(before.round + 1 if before else 0)
        self.announce(Hello(actor.interval, actor.sequencer, window.round))
        self._grant(actor)

    def _reopened(self, peer: str) -> None:
        """A channel is open again after a cut.  Say again what the other end must know."""
        if peer == self._controller:
            self._out += [he.Tell(peer, message) for message in self._restated.all()]
            return
        self._receivers.cut()
        self._out.append(he.Tell(peer, Expected(tuple(sorted(self.routes.live)))))
        for actor, _ in self.actors.intervals():
            self._say_hello(actor)

    def input_of(self, computation: str) -> int:
        """Input low watermark of a computation, us, as far as this worker has heard."""
        return self._inputs.get(computation, MIN_TIME)

    # --- messages ---------------------------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        match message:
            case Delivery(bundle, sequencer, metered):
                actor = self.actors.current(bundle.target, sequencer)
                if actor is not None:
                    if metered:
                        self._windows[actor.interval].received += bundle.size()
                    self._handle(actor, ev.BundleArrived(bundle))
                    if bundle.frontier == MAX_TIME:
                        self.routes.ended((bundle.subscription, bundle.producer))
            case Receipt(_, sender, number):
                actor = self.actors.all.get(sender)
                if actor is not None:
                    self._handle(actor, ev.AckArrived(number))
            case Credit():
                self.partitions.credit(message)
            case WatermarksRaised(values, inputs):
                self._raised(values, inputs)
            case Hello():
                self._greeted(message)
            case Disowned(owners):
                self._check(dict(owners))
            case Expected(channels):
                self.routes.live |= {*channels}
                for actor, _ in self.actors.intervals():
                    self._handle(actor, ev.ChannelsExpected(channels))
            case (
                WorkerJoined() | Claimed() | Unsettled() | IntervalSettled() | Excused() | Concluded() | Open()
                | WatermarkReport() | SourceBound()
            ):  # fmt: skip
                raise AssertionError(f"a worker was told {type(message).__name__}")
            case _:
                assert_never(message)

    def _greeted(self, hello: Hello) -> None:
        """A receiver has said hello.  It has only what is durable, so senders send again what it has not acked."""
        if not self._receivers.greet(hello):
            return
        self.partitions.hello(hello)
        for actor in [*self.actors.all.values()]:
            self._handle(actor, ev.Resend(hello.interval))

    def _raised(self, values: dict[str, int], inputs: dict[str, int]) -> None:
        if not self._heard:
            self._heard = True
            self._warn_of_left_out(values)
        for name, value in values.items():
            self.values[name] = max(value, self.values.get(name, MIN_TIME))
        for computation, value in inputs.items():
            if value > self._inputs.get(computation, MIN_TIME):
                self._inputs[computation] = value
                for actor in self.actors.of(computation):
                    self.tell(actor, ev.WatermarkMoved(value))

    def _warn_of_left_out(self, values: dict[str, int]) -> None:
        for source in self.routes.left_out:
            reached = values.get(f"source:{source}", MIN_TIME)
            if reached < MAX_TIME:
                self.note(
                    f"source {source} is not in this pipeline and was not read to its end; what it feeds waits for it at "
                    f"{format_time(reached)}: put it back, or drop it for good (millwheel source drop)"
                )

    # --- cores ------------------------------------------------------------------------------------------------

    def _give(self, interval: int, sequencer: int, event: ev.Event) -> None:
        actor = self.actors.current(interval, sequencer)
        if actor is not None:
            self._handle(actor, event)

    def _handle(self, actor: Actor, event: ev.Event) -> None:
        self.perform(actor, actor.core.handle(event, self.now))
        if actor.interval in self._windows:
            self._grant(actor)

    def _grant(self, actor: Actor) -> None:
        if not isinstance(actor.core, IntervalCore):
            raise InvariantError("actor.core is no IntervalCore")
        window = self._windows[actor.interval]
        upto = window.grant(actor.core.inbox_bytes)
        if upto is not None:
            self.announce(Credit(actor.interval, actor.sequencer, window.round, upto))

    def _due(self, interval: int, sequencer: int, work: Work) -> None:
        actor = self.actors.current(interval, sequencer)
        if actor is not None and not self._marks.keeps(actor, work):
            self._out.append(he.RunHooks(actor.owner, interval, sequencer, work))

    def _invoke(self, actor: Actor, work: Work) -> None:
        self._out.append(he.Post(he.Due(actor.interval, actor.sequencer, work)))

    def perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        """Perform effects of a core, in order."""
        for effect in effects:
            match effect:
                case ev.Send(bundle):
                    self._send(actor, bundle)
                case ev.Ack(sender, number, epoch):
                    self._out.append(he.Tell(self.name, Receipt(actor.interval, sender, number, epoch)))
                case ev.Invoke(work):
                    self._invoke(actor, work)
                case ev.Commit(write):
                    self._lanes.submit(write)
                case ev.ReportWatermark(value):
                    self.inform(WatermarkReport(actor.owner, actor.interval, value))
                case ev.SetAlarm(at):
                    if self._alarms.set(at, actor.interval):
                        self._out.append(he.WakeAt(at))
                case ev.Read(limit):
                    self.partitions.read(actor, limit)
                case ev.Advance():
                    self.partitions.advance(actor, effect)
                case ev.Mark() | ev.Unmark():
                    self._marks.perform(actor, effect)
                case ev.RestartInterval(inherited):
                    self._restarting.add(actor.interval)
                    self.begin(self._restart(actor, inherited))
                case ev.Settled():
                    self._settle(actor, set())
                case ev.Halt(reason):
                    self._out.append(
                        he.Failed(Fenced(f"{reason}: another run owns this pipeline's store now; this run ends"))
                    )
                case (
                    ev.Load() | ev.LoadSlots() | ev.LoadTimers() | ev.LookupIds() | ev.ReadOutsideIds() | ev.Fold()
                    | ev.FetchQuarantine()
                ):  # fmt: skip
                    self.begin(folded.steps(actor, effect, self.tell))
                case _:
                    assert_never(effect)

    def _send(self, actor: Actor, bundle: Bundle) -> None:
        sequencer = self._receivers.sequencer(bundle.target)
        if sequencer is None:
            return  # it is kept until it is acked, and sent when its receiver says hello
        metered = isinstance(actor.core, InjectorCore)
        if metered:
            self.partitions.sent(bundle.target, bundle.size())
        self._out.append(he.Tell(self.name, Delivery(bundle, sequencer, metered)))

    def _ring(self) -> None:
        for interval in self._alarms.due(self.now):
            if interval in self.actors.all:  # else a partition that is finished, and forgotten
                self._handle(self.actors.all[interval], ev.AlarmRang())
        if self._alarms.next() < MAX_TIME:
            self._out.append(he.WakeAt(self._alarms.next()))

    # --- what goes to the store in groups ---------------------------------------------------------------------

    def _flush(self) -> None:
        self._stop_at_too_much()
        for group in self._lanes.ready():
            self.begin(self._commit(group))
        self._marks.flush()
        self.partitions.flush()

    def _commit(self, group: Group) -> Steps:
        left, durable = group.writes, set[tuple[int, int]]()
        while left:
            try:
                durable = yield CommitGroup(left)
                break
            except RowRefused as refusal:
                self._set_aside(refusal)
                left = [write for write in left if write.interval != refusal.interval]
        self._lanes.done(group)
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
        self._handle(actor, ev.Refused(refusal.seq, refusal.rows))
        self._marks.leave(actor)

    # --- another core for an interval of ours -----------------------------------------------------------------

    def _restart(self, old: Actor, inherited: ev.Inherited) -> Steps:
        """Replace the core of an interval whose soft state is void.  What was not durable comes again after its hello."""
        interval, core = old.interval, old.core
        if not isinstance(core, IntervalCore):
            raise InvariantError("core is no IntervalCore")
        sequencer = yield Reacquire(interval, old.sequencer)
        if sequencer is None:
            raise Fenced(f"interval {interval} of {old.owner!r}: another run owns this pipeline's store now")
        actor = yield from self._adopt(msgspec.structs.replace(core.config, sequencer=sequencer), inherited)
        self._expect_from(actor)
        self.inform(Claimed(((actor.owner, interval, sequencer),)))
        self._start(actor)
        self._restarting.discard(interval)

    def _expect_from(self, actor: Actor) -> None:
        """A receiver that has started anew meanwhile may have a newer sequencer, and refuses what it does not expect."""
        self.announce(Expected(tuple(sorted(self.routes.sends_on(actor.owner, actor.sequencer)))))

    # --- being superseded -------------------------------------------------------------------------------------

    def _watch(self) -> Steps:
        """Ask now and then whether this worker was superseded, because an idle worker meets no fence."""
        while True:
            yield he.Pause(limits.OWNER_CHECK_US)
            owners = {actor.interval: actor.sequencer for actor, _ in self.actors.intervals()}
            owned = yield StillOwned(owners)
            self._check({interval: sequencer for interval, sequencer in owners.items() if interval not in owned})

    def _check(self, disowned: dict[int, int]) -> None:
        """The store says that not all of these are owners.  Find out which, and end if this worker was superseded."""
        mine = {
            i: s for i, s in disowned.items() if i not in self._restarting and self.actors.current(i, s) is not None
        }
        if mine:
            self.begin(self._find_out(mine))

    def _find_out(self, mine: dict[int, int]) -> Steps:
        owned = yield StillOwned(mine)
        for interval, sequencer in mine.items():
            actor = self.actors.current(interval, sequencer)
            if interval not in owned and interval not in self._restarting and actor is not None:
                raise Fenced(
                    f"interval {interval} of {actor.owner!r}: another run owns this pipeline's store now; this run ends"
                )

    # --- redrive ----------------------------------------------------------------------------------------------

    def _redrive(self) -> Steps:
        redrives = Redrives(self.routes)
        while True:
            found = yield ListRedrives(redrives.start, limits.REDRIVE_REQUESTS)
            for interval, keys in redrives.read(found).items():
                self.tell(self.actors.all[interval], ev.RedriveAsked(keys))
            self._redrives_read = self._redrives_read or not redrives.more
            if self._redrives_read:
                yield he.Pause(limits.REDRIVE_DELAY_US)

    def _stop_at_too_much(self) -> None:
        allowed, rejected = self._tolerance, self.partitions.rejected
        if allowed.rejected is not None and rejected > allowed.rejected:
            self.stopped = f"{rejected:,} rows are rejected, {allowed.rejected:,} are allowed"
        if allowed.quarantined is not None:
            opened = sum(core.counters.quarantined for _, core in self.actors.intervals())
            if opened > allowed.quarantined:
                self.stopped = f"{opened:,} keys went into quarantine, {allowed.quarantined:,} are allowed"
        if self.stopped:
            self._out.append(he.Ended())

    # --- the end ----------------------------------------------------------------------------------------------

    def _rest(self) -> None:
        if not self.finished():
            return
        busy = [(actor, core) for actor, core in self.actors.intervals() if not core.quiet()]
        if not busy and self._lanes.idle():
            self._out.append(he.Ended())
            return
        # Everything has run.  Record the last acks and fold, so that the log is empty when the run ends.
        for actor, core in busy:
            self.perform(actor, core.flush(self.now))
        self._out.append(he.WakeAt(self.now + limits.END_DELAY_US))

    def finished(self) -> bool:
        """True when all input is consumed."""
        return (
            self.serving
            and self._redrives_read
            and self.partitions.complete
            and all(self.values.get(name, MIN_TIME) >= MAX_TIME for name in self.graph.computations)
            and not self._restarting
            and all(core.quiet() for _, core in self.actors.partitions())
        )

    def all_committed(self) -> bool:
        """True when no checkpoint waits for its commit."""
        return self._lanes.idle()

    def last_words(self) -> WriteMarks:
        """What to write when the run ends in order: no interval has anything under suspicion."""
        return WriteMarks([MarkWrite(actor.interval, actor.sequencer, b"", 0) for actor, _ in self.actors.intervals()])
