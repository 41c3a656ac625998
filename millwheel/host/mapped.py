"""What a worker of a cluster owns: what the map gives it (§7.1).

Lives here: how a worker follows the map.  The map says which intervals and sources it takes and lets go of, which other
workers there are, and who leads.  Never here: a decision about the map (`master`).  Invariants:

* no core is ever made twice under one sequencer, because it would give the same ids to other records;
* the map is the truth, and messages only make it faster (docs/adr/0031-the-map-is-the-truth.md).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from millwheel import limits
from millwheel.cluster import ClusterMap, HotKey, Leader, PlacedInterval, RunEnding
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.errors import Fenced
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import (
    Claimed,
    Delivery,
    Drained,
    HandedOver,
    HandOver,
    Led,
    MapChanged,
    RunEnded,
)
from millwheel.host.missing import NO_LEADER, Missing
from millwheel.host.news import News
from millwheel.host.procedures import Steps
from millwheel.host.requests import (
    Leave,
    OpenPipeline,
    Reacquire,
    ReadMap,
    StillOwned,
    TakePartitions,
    WriteMarks,
)
from millwheel.host.shared_epochs import SharedEpochs
from millwheel.host.still_sending import NEVER, StillSending
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import IntervalRow, MarkWrite, Opened

if TYPE_CHECKING:
    from millwheel.host.owning import ClusterMessage
    from millwheel.host.worker import WorkerHost


class MappedOwnership:
    """The member `incarnation` of a cluster, as a worker."""

    gathers: ClassVar[bool] = True

    def __init__(self, worker: WorkerHost, incarnation: int) -> None:
        self._worker = worker
        self._incarnation = incarnation
        self._map: ClusterMap | None = None
        self._looking = False
        self._again = False
        """The map has to be read once more after the answer that is on its way."""
        self._looks = 0
        self._leader: Leader | None = None
        self._leaderless = Missing(NO_LEADER)
        self._mine: dict[IntervalId, PlacedInterval] = {}
        """What the map gives to this worker."""
        self._starting: set[IntervalId] = set()
        self._used: dict[IntervalId, Sequencer] = {}
        """The newest sequencer under which this process has made a core, by interval."""
        self._sources: dict[str, Steps] = {}
        """Sources that are served, and what serves them."""
        self._handed: dict[IntervalId | str, tuple[int, int]] = {}
        """Intervals and sources that were handed over: their sequencer (0 for a source), and when, us."""
        self._kept: dict[IntervalId, ev.Inherited] = {}
        """What the next core in this process begins with, if an interval that was handed over is not placed elsewhere."""
        self._leaving: set[IntervalId | str] = set()
        """Those that are being handed over."""
        self._news = News(worker, incarnation)
        self._still_sending = StillSending(worker)
        self._drained: tuple[int, str | None, int] = (-1, None, 0)
        """The version of which the leader was told that all is done, the leader, and when, us."""
        self._ended = False
        self._ending: RunEnding | None = None
        worker.gather_reports(limits.REPORT_REST_US)
        enabled = worker.graph.snapshot_every_us > 0
        if not enabled:  # an epoch ends when receipts have come, so they do not wait
            worker.links.gather_receipts(limits.RECEIPT_REST_US, limits.RECEIPTS_TOGETHER)
        worker.epochs = self._epochs = SharedEpochs(worker, enabled, incarnation, self._serves)
        self._based = not enabled

    # --- the start --------------------------------------------------------------------------------------------

    def boot(self) -> Steps:
        """See `Ownership`."""
        worker = self._worker
        opened: Opened = yield OpenPipeline(worker.graph.shape())
        worker.routes.open(opened)
        yield he.Prepare(opened.subscriptions, opened.places)
        worker.obey(None)
        worker.join()
        worker.begin(worker.redrives.steps())
        worker.serving = True
        worker.partitions.complete = True  # of none; each source that is taken says otherwise
        while True:
            self.look()
            yield he.Pause(limits.CLUSTER_LOOK_US)

    # --- the map ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """See `Ownership`: read the map now."""
        self._again = self._looking
        if not self._looking and self._worker.serving:
            self._looking = True
            self._worker.begin(self._look())

    def _look(self) -> Steps:
        while not self._ended:
            found: ClusterMap = yield ReadMap()
            if self._map is None or found.version >= self._map.version:
                self._follow(found)
            if not self._again:
                break
            self._again = False
        self._looking = False

    def _follow(self, found: ClusterMap) -> None:
        if not any(member.incarnation == self._incarnation and member.alive for member in found.members):
            if self._epochs.enabled:  # all goes back, and this process begins anew as another member
                self._ended = True
                self._worker.fail(self._epochs.dismissed())
                return
            raise Fenced(f"worker {self._incarnation} is not a member of this cluster any more; this process ends")
        self._map = found
        self._base(found)
        self._meet(found)
        self._listen(found.leader)
        self._reroute(found)
        self._own(found)
        self._serve(found)
        self._news.tell(self._mine.values(), self._sources)
        if not self._starting:
            self._still_sending.sweep_once(found.version)

    def _base(self, found: ClusterMap) -> None:
        """Under snapshots a member gets all that it will ever own at once.  Nothing is declared then before it takes part."""
        owners = {*(placed.owner for placed in found.intervals), *(source.owner for source in found.sources)}
        if self._incarnation in owners and not self._based:
            self._based = True
            self._epochs.base(found.declared)

    def _serves(self) -> bool:
        """Whether the map gives it something, and all of that has its core.  Before, it may have read an old map."""
        actors = self._worker.actors.all
        return self._based and not self._starting and all(interval in actors for interval in self._mine)

    def _meet(self, found: ClusterMap) -> None:
        """Other workers: those that are new hear who is served here, and those that are gone are sent nothing."""
        worker = self._worker
        alive = {f"w{m.incarnation}": m.address for m in found.members if m.role == "worker" and m.alive}
        addresses = {name: address for name, address in alive.items() if name != worker.name}
        # Those that stand by, too: whoever leads next finds its channels open.
        addresses |= {f"c{m.incarnation}": m.address for m in found.members if m.role == "controller" and m.alive}
        if found.leader is not None:
            addresses[f"c{found.leader.incarnation}"] = found.leader.address
        worker.reach(addresses)
        for peer in worker.peers:
            if peer not in alive:
                worker.part(peer)
        for peer in alive:
            if peer not in worker.peers:
                worker.meet(peer)
        self._looks += 1
        if self._looks % limits.STRANGER_LOOKS == 0:
            worker.links.strangers.forget()

    def _listen(self, leader: Leader | None) -> None:
        known = self._leader
        self._leader = leader
        self._leaderless.look(leader is None, self._worker.now, self._worker.note)
        if leader is None:
            self._worker.obey(None)
        elif known is None or (known.incarnation, known.epoch) != (leader.incarnation, leader.epoch):
            self._worker.obey(f"c{leader.incarnation}")

    def _reroute(self, found: ClusterMap) -> None:
        """Intervals were split or merged: whoever sends to them starts anew, and groups what is unacked by the new ranges."""
        worker = self._worker
        changed = worker.routes.reshape(IntervalRow(i.id, i.computation, i.low, i.high) for i in found.intervals)
        if not changed:
            return
        names, subscriptions = worker.routes.senders_to(changed)
        for actor, core in worker.actors.intervals():
            sends = actor.owner in names or any(channel[0] in subscriptions for channel in core.channels())
            if sends and not core.halted and self._is_mine(actor):
                worker.restarts.give_up(actor)
        for name in [name for name in self._sources if f"source:{name}" in names]:
            self._drop_source(name)  # `_serve` takes it again

    def _is_mine(self, actor: Actor) -> bool:
        return self._map is not None and any(
            i.id == actor.interval and i.owner == self._incarnation and i.sequencer <= actor.sequencer
            for i in self._map.intervals
        )

    # --- intervals --------------------------------------------------------------------------------------------

    def _own(self, found: ClusterMap) -> None:
        worker = self._worker
        rows = worker.routes.rows
        self._mine = {i.id: i for i in found.intervals if i.owner == self._incarnation and i.id in rows}
        for actor, _ in worker.actors.intervals():
            placed = self._mine.get(actor.interval)
            lost = placed is None or placed.sequencer > actor.sequencer
            if lost and actor.interval not in worker.restarts.under_way:  # a restart finds out by itself
                self._drop(actor)
        self._handed = {p: given for p, given in self._handed.items() if isinstance(p, str) or p in self._mine}
        self._kept = {interval: kept for interval, kept in self._kept.items() if interval in self._mine}
        for interval, placed in self._mine.items():
            known = worker.actors.all.get(interval)
            if known is None and interval not in self._starting and not self._is_handed(interval, placed.sequencer):
                self._starting.add(interval)
                worker.begin(self._take(placed))

    def _drop(self, actor: Actor) -> None:
        self._worker.note(f"interval {actor.interval} of {actor.owner} is served here no more", actor, info=True)
        self._used[actor.interval] = max(self._used.get(actor.interval, NEVER), actor.sequencer)
        self._worker.drop(actor)

    def _is_handed(self, place: IntervalId | str, sequencer: Sequencer) -> bool:
        """Whether it was handed over, and the leader has not had its time to place it elsewhere."""
        given, at = self._handed.get(place, (-1, 0))
        if given >= sequencer and self._worker.now - at < limits.HAND_OVER_LIMIT_US:
            return True
        self._handed.pop(place, None)
        return False

    def _take(self, placed: PlacedInterval) -> Steps:
        """Recover an interval and start its core."""
        worker, interval, sequencer = self._worker, placed.id, placed.sequencer
        used = self._used.get(interval, NEVER)
        if used >= sequencer:  # a core has had it
            sequencer = yield Reacquire(interval, used)
        actor = None
        if sequencer is not None:
            yield from self.expecting()
            row = worker.routes.rows.get(interval, _row(placed))
            yield from worker.adoption.hears([row.computation], lambda: self._mine.get(interval) is not None)
            yield from worker.adoption.follows(interval, row.computation, lambda: self._mine.get(interval) is not None)
            actor = yield from worker.adoption.adopt(row, sequencer, self._kept.pop(interval, None))
        self._starting.discard(interval)
        now = self._mine.get(interval)
        if actor is None or now is None or now.sequencer > actor.sequencer or interval not in worker.routes.rows:
            if actor is not None:
                worker.drop(actor)
            self.look()
            return
        self._used[interval] = actor.sequencer
        worker.inform(Claimed(((actor.owner, interval, actor.sequencer),)))
        worker.adoption.say_settled(actor)
        if interval in self._leaving:  # under load it would never be done
            worker.closed.add(interval)
        else:  # a core that was handed over is gone, and this one has turned nothing away
            worker.closed.discard(interval)
        worker.start(actor)
        worker.note(f"interval {interval} of {actor.owner} is served here", actor, info=True)

    def expecting(self) -> Generator[he.Wish, Any, None]:
        """See `Ownership`: the store says who may send, whatever was known before."""
        yield from self._still_sending.read()

    def expects(self, channels: tuple[Channel, ...]) -> tuple[Channel, ...]:
        """See `Ownership`: none, because whoever says so may have been superseded."""
        return ()

    def doubts(self, actor: Actor, peer: str, delivery: Delivery) -> bool:
        """See `Ownership`: the store is asked, because the word of a worker may be out of date."""
        self._news.came(actor.interval, delivery.bundle.keys)
        return self._still_sending.doubts(actor, peer, delivery)

    def ran(self, interval: IntervalId, elapsed_us: int) -> None:
        """See `Ownership`."""
        self._news.ran(interval, elapsed_us)

    def fenced(self, actor: Actor, reason: str) -> None:
        """See `Ownership`: the interval is lost, and nothing else."""
        if isinstance(actor.core, InjectorCore):
            self.source_lost(actor.owner.removeprefix("source:"))
        else:
            self.lost(actor)

    def lost(self, actor: Actor) -> None:
        """See `Ownership`."""
        self._drop(actor)
        self.look()

    def disowned(self, owners: dict[IntervalId, Sequencer]) -> None:
        """See `Ownership`."""
        self.look()
        self._worker.begin(self._find_out(owners))

    def _find_out(self, owners: dict[IntervalId, Sequencer]) -> Steps:
        """The map says nothing of a partition that somebody has given up (`millwheel source drop`)."""
        actors = self._worker.actors
        mine = {a.interval: a.sequencer for a, _ in actors.partitions() if owners.get(a.interval) == a.sequencer}
        owned: set[IntervalId] = (yield StillOwned(mine)) if mine else set()
        for interval in sorted(mine.keys() - owned):
            actor = actors.current(interval, mine[interval])
            if actor is not None and self._epochs.enabled:
                self._epochs.lost()
            elif actor is not None:
                self.fenced(actor, "")

    # --- sources ----------------------------------------------------------------------------------------------

    def _serve(self, found: ClusterMap) -> None:
        graph = self._worker.graph
        wanted = [s.name for s in found.sources if s.owner == self._incarnation and s.name in graph.sources]
        for name in [name for name in self._sources if name not in wanted]:
            self._drop_source(name)
        self._handed = {p: given for p, given in self._handed.items() if isinstance(p, int) or p in wanted}
        for name in wanted:
            if name not in self._sources and not self._is_handed(name, Sequencer(0)):
                steps = self._sources[name] = self._worker.partitions.take(name)
                self._worker.begin(steps)

    def _drop_source(self, name: str) -> None:
        steps = self._sources.pop(name, None)
        if steps is not None:
            self._worker.abandon(steps)
            self._worker.partitions.drop(name)
            self._worker.forget_source(name)

    def sequencers(
        self, source: str, intervals: Sequence[IntervalId]
    ) -> Generator[he.Wish, Any, dict[IntervalId, Sequencer] | None]:
        """See `Ownership`."""
        taken: dict[IntervalId, Sequencer] | None = yield TakePartitions(source, self._incarnation, tuple(intervals))
        return taken

    def hot_keys(self) -> tuple[HotKey, ...]:
        """See `Ownership`: as of the last report of loads."""
        return self._news.hot_keys

    def ending(self) -> RunEnding | None:
        """See `Ownership`: as the leader has said."""
        return self._ending

    def source_lost(self, name: str) -> None:
        """See `Ownership`."""
        self._drop_source(name)
        self.look()

    # --- messages ---------------------------------------------------------------------------------------------

    def hear(self, peer: str, message: ClusterMessage) -> None:
        """See `Ownership`."""
        if peer != self._worker.controller:
            self.look()  # it may lead by now; before the start it is heard later
            return
        match message:
            case MapChanged(version):
                if self._map is None or version > self._map.version:
                    self.look()
            case Led():
                self._worker.obey(peer)
            case HandOver():
                self._worker.begin(self._hand_over(message))
            case RunEnded(ending) if not self._ended:
                self._ended, self._ending = True, ending
                if ending.stopped:
                    self._worker.stop_for(ending.stopped)
                else:
                    self._worker.begin(self._leave())
            case _:
                pass

    # --- giving up in order -----------------------------------------------------------------------------------

    def _hand_over(self, order: HandOver) -> Steps:
        """Let go of intervals and sources when nothing of them is under way, or go on with them if that takes too long."""
        worker, until = self._worker, self._worker.now + limits.HAND_OVER_LIMIT_US
        yield from self._hear_of_own(order)
        intervals = [i for i in order.intervals if i in self._mine and i not in self._leaving]
        sources = [name for name in order.sources if name in self._sources and name not in self._leaving]
        self._leaving |= {*intervals, *sources}
        worker.closed |= {*intervals}
        for name in sources:
            worker.partitions.pause(name)
        left = [*intervals]
        while worker.now < until:
            left = [i for i in left if i in self._mine]
            self._close(left)
            if not self._busy(left, sources, order.acked):
                yield from self._last_words(left)
                if not self._busy(left, sources, order.acked):
                    break
            yield he.Pause(limits.HAND_OVER_LOOK_US)
        self._leaving -= {*intervals, *sources}
        # A core that has turned something away never takes in what comes behind it: it is dropped, or starts anew.
        worker.closed -= {*intervals}
        if worker.now < until:
            self._let_go(left, sources)
        else:
            self._keep(left, sources)
        # These went, by the map, and are here: they were placed here again, or a core had the map's sequencer before the map.
        # Whatever core they have was closed, and has missed what came.
        self._keep([i for i in intervals if i not in left], [])
        gone = tuple(i for i in order.intervals if i not in worker.actors.all and i not in self._starting)
        worker.answer(HandedOver(gone, tuple(name for name in order.sources if name not in self._sources)))

    def _hear_of_own(self, order: HandOver) -> Steps:
        """Read the map if it may give what is ordered to this worker since it was read: else that would be taken later, when
        the leader counts on it that it was let go."""
        if self._mine.keys() >= {*order.intervals} and self._sources.keys() >= {*order.sources}:
            return
        found: ClusterMap = yield ReadMap()
        if not self._ended and (self._map is None or found.version >= self._map.version):
            self._follow(found)

    def _close(self, intervals: list[IntervalId]) -> None:
        """What is hot would have work for longer than the leader waits, and could never be split."""
        for interval in intervals:
            actor = self._worker.actors.all.get(interval)
            if actor is not None and isinstance(actor.core, IntervalCore):
                actor.core.close()

    def _let_go(self, intervals: list[IntervalId], sources: list[str]) -> None:
        for interval in intervals:
            actor = self._worker.actors.all.get(interval)
            if actor is not None and isinstance(actor.core, IntervalCore):
                self._handed[interval] = (actor.sequencer, self._worker.now)
                self._kept[interval] = actor.core.give_up()
                self._drop(actor)
        for name in sources:
            self._handed[name] = (0, self._worker.now)
            self._drop_source(name)

    def _keep(self, intervals: list[IntervalId], sources: list[str]) -> None:
        """Begin anew: what was not taken in meanwhile comes again after a hello."""
        for interval in intervals:
            actor = self._worker.actors.all.get(interval)
            if actor is not None and not actor.core.halted:
                self._worker.restarts.give_up(actor)
        for name in sources:
            self._drop_source(name)

    def _busy(self, intervals: list[IntervalId], sources: list[str], acked: bool) -> bool:
        """Whether something of these is under way; what can be done about it is done."""
        worker, busy = self._worker, False
        for interval in intervals:
            actor = worker.actors.all.get(interval)
            core = actor.core if actor is not None else None
            if interval in self._starting or interval in worker.restarts.under_way:
                busy = True
            elif actor is not None and isinstance(core, IntervalCore) and not core.settled(acked):
                worker.perform(actor, core.flush(worker.now))
                busy = True
        for name in sources:
            partitions = [core for actor, core in worker.actors.partitions() if actor.owner == f"source:{name}"]
            busy = busy or not all(core.settled() for core in partitions)
        return busy

    def _last_words(self, intervals: list[IntervalId]) -> Generator[he.Wish, Any, None]:
        """Nothing of these is under suspicion."""
        actors = [self._worker.actors.all[i] for i in intervals if i in self._worker.actors.all]
        writes = [MarkWrite(actor.interval, actor.sequencer, b"", 0) for actor in actors if not actor.core.halted]
        if writes:
            yield WriteMarks(writes)

    # --- the end ----------------------------------------------------------------------------------------------

    def served(self) -> bool:
        """See `Ownership`."""
        if self._map is None or self._leader is None or self._starting or self._leaving or self._handed:
            return False
        actors = self._worker.actors.all
        return self._still_sending.swept == self._map.version and all(interval in actors for interval in self._mine)

    def rested(self) -> None:
        """See `Ownership`: the leader is told now and then, because a message may be lost."""
        worker = self._worker
        if self._map is None or self._ended:
            return
        version, leader, at = self._drained
        if (version, leader) != (self._map.version, worker.controller) or worker.now - at >= limits.CLUSTER_LOOK_US:
            self._drained = (self._map.version, worker.controller, worker.now)
            worker.answer(Drained(self._incarnation, self._map.version, self._news.in_quarantine()))
            worker.wake(limits.CLUSTER_LOOK_US)

    def _leave(self) -> Steps:
        if not self._epochs.enabled:
            self._still_sending.retire_all()
        intervals = [actor.interval for actor, _ in self._worker.actors.intervals()]
        self._worker.closed |= {*intervals}
        # Under snapshots all is declared and folded.  An epoch that runs now holds nothing, and nobody needs its end.
        while not self._epochs.enabled:
            if not self._busy(intervals, [], acked=False):  # what came since it was drained: frontiers, and copies
                yield from self._last_words(intervals)
                if not self._busy(intervals, [], acked=False):  # a frontier may have been recorded meanwhile
                    break
            yield he.Pause(limits.HAND_OVER_LOOK_US)
        for actor, _ in self._worker.actors.intervals():
            self._drop(actor)
        yield Leave(self._incarnation)
        self._worker.end()


def _row(placed: PlacedInterval) -> IntervalRow:
    return IntervalRow(placed.id, placed.computation, placed.low, placed.high)
