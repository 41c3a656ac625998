"""Source partitions of a worker: found, opened, read in their order, and their positions made durable.

Lives here: which partition is read when.  Never here: reading, or what a row becomes.  Invariant: no partition is read
for an interval that has promised no more credit.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from typing import Any

from millwheel import limits
from millwheel.cluster import Standstill
from millwheel.core.ids.dedup import Channel
from millwheel.core.interval import events as ev
from millwheel.core.source.feed import Feed
from millwheel.core.source.injector import InjectorCore
from millwheel.core.source.short_reads import ShortReads
from millwheel.errors import InvariantError, SourceError
from millwheel.graph import Graph
from millwheel.host.actors import Actor
from millwheel.host.alphabet import Discovery, Pause, ReadRows, Resume, RowsArrived, Wish
from millwheel.host.credit import Account
from millwheel.host.messages import (
    Claimed,
    Concluded,
    Credit,
    Excused,
    Expected,
    Hello,
    Open,
    SourceBound,
)
from millwheel.host.paces import Paces
from millwheel.host.part_owner import PartOwner
from millwheel.host.procedures import Steps
from millwheel.host.requests import (
    AddSigns,
    AdvancePositions,
    FindPartitions,
    ListPartitions,
    OpenPartitions,
)
from millwheel.host.searching import search
from millwheel.host.skews import Skews, too_far_ahead
from millwheel.host.stalls import NOTHING_YET, Stalls, why_it_waits
from millwheel.host.standstills import standstill
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import PositionWrite, SourcePosition
from millwheel.source import announces


class SourceLost(Exception):
    """Another worker has the source."""


class Partitions:
    """All partitions of all sources of the graph."""

    def __init__(self, graph: Graph, owner: PartOwner) -> None:
        self._graph = graph
        self._owner = owner
        self._feeds: dict[str, Feed] = {}
        self._parked: dict[IntervalId, tuple[Actor, int]] = {}
        """Reads that wait: for credit of a receiver, for a short rest, or for the time at which rows are due."""
        self._tails: dict[IntervalId, ShortReads] = {}
        self._rested_until: dict[IntervalId, int] = {}
        """Wall time, us, before which partitions that say when they have rows are not read again."""
        self._resting: set[IntervalId] = set()
        """Partitions that rest: they are not read for a moment, because nothing more was there, or nothing is due."""
        self._accounts: dict[IntervalId, Account] = {}
        """Credit of the intervals that partitions feed."""
        self._advances: list[tuple[Actor, ev.Advance]] = []
        self._advancing = False
        self._bounds: dict[str, int] = {}
        """By source: the bound on the event time of partitions that are not there yet, us."""
        self._stalls = Stalls()
        self._paces = Paces(graph, owner)
        self._skews = Skews(graph, owner.values)
        self._patient: set[IntervalId] = set()
        """Partitions that are too far ahead, and are looked at again if no watermark moves."""
        self._positions: dict[IntervalId, SourcePosition] = {}
        """Of the partitions that were opened, as they stood then."""
        self._ending: list[Actor] = []
        """Partitions whose end is durable, and that have not told everybody."""
        self.complete = False
        """No source of this worker will have another partition."""
        self._exhausted: dict[str, bool] = {}
        """Sources that are taken one by one, and whether they will have no other partition."""

    # --- discovery --------------------------------------------------------------------------------------------

    def open(self, known: Mapping[str, list[SourcePosition]]) -> Steps:
        """Every partition that is there now, and then those that come later; `known` are those of earlier runs."""
        begun: dict[str, list[SourcePosition]] = {}
        for name in self._graph.sources:
            begun[name] = yield from self._begin(name, known[name])
        yield from self._discover_all(begun)
        yield from self._settle_missing([*self._feeds])
        began = self._owner.now
        while not self.complete:
            yield Pause(max(limits.DISCOVER_DELAY_US, limits.DISCOVER_REST * (self._owner.now - began)))
            began = self._owner.now
            yield from self._discover_all()

    def _begin(self, name: str, known: list[SourcePosition]) -> Generator[Wish, Any, list[SourcePosition]]:
        """Begin with what earlier owners of a source have opened.  Returns what of it is not finished."""
        source = self._graph.sources[name].source
        begun = [position for position in known if not position.finished]
        early = {position.interval: source.signs(position) for position in known if position.finished}
        if early:  # finished by a version that knew no signs
            yield AddSigns(name, early)
        self._feeds[name] = Feed(source.ordered, source.idle_after_us, source.disorder_us, begun)
        unowned = sorted(position.interval for position in begun)
        self._owner.inform(Claimed(tuple((f"source:{name}", interval, None) for interval in unowned)))
        return begun

    def _settle_missing(self, names: Iterable[str]) -> Steps:
        """What earlier owners have begun and is not there: it has ended, or the operator hears of it."""
        for name in names:
            yield from self._conclude_missing(name)
            for position in self._feeds[name].missing():
                gone = self._gone(name, position)
                self._owner.note(f"{gone}; the watermark waits for it: restore it, or drop it (millwheel source drop)")

    def _conclude_missing(self, name: str) -> Steps:
        """Some of what is missing may have ended."""
        missing = [position.partition for position in self._feeds[name].missing()]
        found: list[SourcePosition] = (yield FindPartitions(name, (), missing)) if missing else []
        ended = [position for position in found if position.finished]
        yield from self._conclude(name, self._graph.sources[name].stream, ended)

    def _discover_all(self, known: Mapping[str, list[SourcePosition]] | None = None) -> Steps:
        complete = True
        for name in self._graph.sources:
            exhausted = yield from self._discover_in(name, tuple(known[name]) if known is not None else None)
            complete = complete and exhausted
        self.complete = complete

    def _discover_in(self, name: str, known: tuple[SourcePosition, ...] | None) -> Generator[Wish, Any, bool]:
        """Look for partitions of one source, and open them.  Returns whether it will never have another one."""
        spec = self._graph.sources[name]
        discovery = yield from search(name, known, lambda: self._feeds[name].stir(self._owner.now))
        yield from self._meet(name, discovery)
        for first in range(0, len(discovery.found), limits.OPEN_PARTITIONS):
            found = dict(discovery.found[first : first + limits.OPEN_PARTITIONS])
            yield from self._open_partitions(name, spec.stream, found)
        if self._paces.gathered(name):
            self._retry([*self._parked])
        self._bounds[name] = self._feeds[name].bound(discovery.pending, discovery.asked_at)
        self._owner.inform(SourceBound(f"source:{name}", self._bounds[name]))
        self._tell_of_stall(name)
        return discovery.complete

    # --- sources one by one, in a cluster ---------------------------------------------------------------------

    def take(self, name: str) -> Steps:
        """One source is this worker's from now on, until `drop`, or until it is lost to another worker."""
        self._note_exhausted(name, False)
        try:
            known: list[SourcePosition] = yield ListPartitions(name)
            begun = yield from self._begin(name, known)
            # What an earlier owner has told the controller of partitions that have ended since is out of date.
            self._owner.inform(Open(f"source:{name}", tuple(position.interval for position in begun)))
            exhausted = yield from self._discover_in(name, tuple(begun))
            yield from self._settle_missing([name])
            began = self._owner.now  # the first search has opened much, and says little about the next one
            while not exhausted:
                yield Pause(max(limits.DISCOVER_DELAY_US, limits.DISCOVER_REST * (self._owner.now - began)))
                began = self._owner.now
                exhausted = yield from self._discover_in(name, None)
            self._note_exhausted(name, True)
        except SourceLost:
            self._owner.source_lost(name)

    def _note_exhausted(self, name: str, exhausted: bool) -> None:
        self._exhausted[name] = exhausted
        self.complete = all(self._exhausted.values())

    def drop(self, name: str) -> None:
        """A source is not this worker's any more.  What it has read and nobody has acked is read again by the next owner."""
        for actor in self._owner.actors.of(f"source:{name}"):
            actor.core.halted = True
            for kept in (self._parked, self._tails, self._rested_until, self._positions):
                kept.pop(actor.interval, None)
            self._paces.forget(actor)
            self._skews.forget(actor)
            self._owner.release(actor, finished=False)
        self._exhausted.pop(name, None)
        self.complete = all(self._exhausted.values())

    def pause(self, name: str) -> None:
        """Read no further: the source goes to another worker."""
        for actor in self._owner.actors.of(f"source:{name}"):
            if isinstance(actor.core, InjectorCore):
                actor.core.paused = True
                self._parked.pop(actor.interval, None)

    def _tell_of_stall(self, name: str) -> None:
        """A source that holds everything back says so, once."""
        watermark = self._owner.values.get(f"source:{name}", MIN_TIME)
        if self._stalls.stands(name, watermark, self._owner.now):
            why = self._why(name)
            if why:
                self._owner.note(self._stalls.text(name, watermark, why))

    def _why(self, name: str) -> str:
        """What the watermark of a source waits for; nothing while rows are under way."""
        source, owner = self._graph.sources[name].source, self._owner
        missing = self._feeds[name].missing()
        if missing:
            return f"{source.title(missing[0])} is gone"
        cores = [(actor.interval, core) for actor, core in owner.actors.partitions() if actor.owner == f"source:{name}"]
        ahead = [actor for actor in owner.actors.of(f"source:{name}") if self._skews.waits(actor, owner.now)]
        if ahead and len(ahead) == len(cores):
            return too_far_ahead(self._graph, owner.values).get(name, "")
        if any(core.under_way for _, core in cores) or self._paces.waits(name):
            return ""
        if not cores:
            return why_it_waits(source) if self._feeds[name].stirred() else NOTHING_YET
        watermark = owner.values.get(f"source:{name}", MIN_TIME)
        held = [(core.reported, at) for at, core in cores if not core.paused and core.reported >= watermark]
        oldest, interval = min(held, default=(MAX_TIME, IntervalId(0)))
        if not held or oldest > self._bounds[name]:
            return why_it_waits(source)
        return why_it_waits(source, source.title(self._positions[interval]))

    def held_by(self, name: str) -> list[Standstill]:
        """What keeps a source at its published watermark."""
        source, owner, who = self._graph.sources[name].source, self._owner, f"source:{name}"
        watermark = owner.values.get(who, MIN_TIME)
        if watermark >= MAX_TIME or name not in self._feeds:
            return []
        missing = self._feeds[name].missing()
        if missing:
            return [standstill(who, missing[0].interval, "partition", watermark, f"{source.title(missing[0])} is gone")]
        found = [(actor.interval, actor.core) for actor in owner.actors.of(who)]
        cores = [(core.reported, interval, core) for interval, core in found if isinstance(core, InjectorCore)]
        # One that the watermark has passed does not keep it: only a share of the partitions may count.
        held = [one for one in cores if not one[2].paused and one[0] >= watermark]
        oldest = min(held, default=None, key=lambda one: one[:2])
        if oldest is None or oldest[0] > self._bounds.get(name, MIN_TIME):
            why = why_it_waits(source) if self._feeds[name].stirred() else NOTHING_YET
            return [standstill(who, IntervalId(0), "source", watermark, why)]
        _, interval, core = oldest
        title = source.title(self._positions[interval]) if interval in self._positions else ""
        kind, timestamp, detail = core.blame()
        said = f"of {title}: {detail}" if detail else why_it_waits(source, title)
        return [standstill(who, interval, kind, min(timestamp, watermark), said)]

    def _meet(self, name: str, discovery: Discovery) -> Steps:
        """Check for missing partitions before anything is read.

        Rows of a partition that is gone for good may stand in another one under another name.  One that another owner has
        read to its end since this one began is not missing, and neither is one that somebody has given up.
        """
        feed = self._feeds[name]
        feed.meet(partition for partition, _ in discovery.found)
        yield from self._conclude_missing(name)
        for position in feed.missing() if discovery.complete else ():
            raise SourceError(f"{self._gone(name, position)}; restore it, or drop it (millwheel source drop)")

    def _gone(self, name: str, position: SourcePosition) -> str:
        what = self._graph.sources[name].source.title(position)
        return f"source {name}: {what} was read to row {position.position}, not to its end, and is gone"

    def _open_partitions(self, source: str, stream: str, states: dict[str, bytes]) -> Generator[Wish, Any, None]:
        positions: list[SourcePosition] = yield OpenPartitions(source, states)
        begun = [position for position in positions if not position.finished]
        yield from self._conclude(source, stream, [position for position in positions if position.finished])
        for position in begun:  # an earlier run may have numbered it, and have been seen to do so only now
            self._expect(self._owner.routes.channels(position.producer, stream))
        sequencers = yield from self._take(source, begun)
        for position in begun:
            watermark: int = yield Resume(source, position.partition, position)
            self._open(source, stream, position, sequencers[position.interval], watermark)

    def _conclude(self, source: str, stream: str, ended: list[SourcePosition]) -> Generator[Wish, Any, None]:
        """The last owner has ended these partitions while this process started.  Tell the receivers that expect them."""
        owner = self._owner
        self._feeds[source].meet(position.partition for position in ended)
        known = [p for p in ended if owner.routes.channels(p.producer, stream) & owner.routes.live]
        # What ended before receivers were told whom to expect is expected by nobody, and was claimed all the same.
        for position in ended:
            if position not in known:
                owner.inform(Concluded(f"source:{source}", position.interval))
        sequencers = yield from self._take(source, known)
        for position in known:
            routes, sequencer = owner.routes.of([stream]), sequencers[position.interval]
            core = InjectorCore(position.interval, position, routes, sequencer)
            actor = Actor(interval=position.interval, sequencer=sequencer, owner=f"source:{source}", core=core)
            owner.actors.put(actor)
            self._ending.append(actor)
            owner.perform(actor, core.start(owner.now, MIN_TIME, True))

    def _take(self, source: str, positions: list[SourcePosition]) -> Generator[Wish, Any, dict[IntervalId, Sequencer]]:
        if not positions:
            return {}
        taken = yield from self._owner.sequencers(source, [position.interval for position in positions])
        if taken is None:
            raise SourceLost(source)
        return taken

    def _open(self, source: str, stream: str, position: SourcePosition, sequencer: Sequencer, watermark: int) -> None:
        owner = self._owner
        self._positions[position.interval] = position
        routes = owner.routes.of([stream])
        it, label = self._graph.sources[source].source, owner.label()
        core = InjectorCore(
            position.interval, position, routes, sequencer, label=label, answers=it.served, announces=announces(it)
        )
        receivers = frozenset(interval for ranges in routes.values() for interval in ranges.ids)
        actor = Actor(
            interval=position.interval, sequencer=sequencer, owner=f"source:{source}", core=core, receivers=receivers
        )
        owner.actors.put(actor)
        owner.inform(Claimed(((actor.owner, actor.interval, actor.sequencer),)))
        if self._feeds[source].open(position.interval, owner.now):
            core.paused = True
            owner.inform(Excused(actor.owner, actor.interval))
        else:
            self._paces.open(actor)
        owner.perform(actor, core.start(owner.now, watermark, core.finished))

    def _expect(self, channels: set[Channel]) -> None:
        fresh = channels - self._owner.routes.live
        if fresh:
            self._owner.routes.live |= fresh
            self._owner.announce(Expected(tuple(sorted(fresh))))

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, actor: Actor, limit: int) -> None:
        """At most `limit` rows, now or when there is room for them."""
        wait, room = self._paces.wait(actor), self._skews.room(actor, limit, self._owner.now)
        if actor.interval in self._rested_until:
            wait = self._still_rests(actor.interval)
        held_back = wait != 0 or room == 0 or self._owner.pressed()
        if actor.interval in self._resting or held_back or not self._has_credit(actor):
            self._parked[actor.interval] = (actor, limit)
            if wait and actor.interval not in self._resting:
                self._let_rest(actor, wait)
            if not room and actor.interval not in self._patient:
                self._patient.add(actor.interval)
                self._owner.begin(self._be_patient(actor.interval))
        else:
            self._owner.read(ReadRows(actor.interval, actor.sequencer, room, self._paces.upto(actor)))

    def _be_patient(self, interval: IntervalId) -> Steps:
        yield Pause(limits.SKEW_PATIENCE_US)
        self._patient.discard(interval)
        self._retry([interval])

    def watermarks_rose(self) -> None:
        """Published watermarks are higher than before: what was too far ahead of them may not be any more."""
        if self._skews.any():
            self._retry([*self._parked])

    def go_on(self) -> None:
        """Try again what had to wait for the end of an epoch."""
        self._retry([*self._parked])

    def _has_credit(self, actor: Actor) -> bool:
        """Back-pressure: a partition is read only when all of its receivers take more."""
        accounts = self._accounts
        return all(target in accounts and accounts[target].left() for target in actor.receivers)

    def arrived(self, actor: Actor, arrived: RowsArrived, limit: int) -> None:
        """Rows were read."""
        rows, name = arrived.rows, actor.owner.removeprefix("source:")
        begins, before = self._paces.arrived(actor, rows), self._skews.promise(actor)
        if announces(self._graph.sources[name].source):
            if rows.progressed and not rows.full:
                self._rested_until[actor.interval] = self._owner.now + limits.ANNOUNCED_REST_US
        elif not self._paces.has(actor):
            tail = self._tails.setdefault(actor.interval, ShortReads())
            if tail.waits(limit, rows.count + rows.rejected):
                self._let_rest(actor, limits.READ_REST_US)
        rows, following = self._feeds[name].read(actor.interval, rows, arrived.asked_at, self._owner.now)
        effects = actor.core.handle(rows, self._owner.now)
        self._skews.arrived(actor, before, rows.count + rows.rejected)
        self._owner.perform(actor, effects)
        if following is not None:
            self._resume(self._owner.actors.all[following])
        if begins:
            self._retry([*self._parked])

    def _still_rests(self, interval: IntervalId) -> int:
        """How long a partition that says when it has rows has to wait with the next ones, us.

        A read for each row would cost a bundle for each.  The wall clock may have been set back meanwhile.
        """
        left = self._rested_until[interval] - self._owner.now
        if left > 0:
            return min(left, limits.ANNOUNCED_REST_US)
        del self._rested_until[interval]
        return 0

    def _let_rest(self, actor: Actor, rest_us: int) -> None:
        self._resting.add(actor.interval)
        self._owner.begin(self._rest(actor.interval, rest_us))

    def _rest(self, interval: IntervalId, rest_us: int) -> Steps:
        yield Pause(rest_us)
        self._resting.discard(interval)
        self._retry([interval])

    def _retry(self, intervals: list[IntervalId]) -> None:
        """Try again what had to wait."""
        for interval in intervals:
            actor, limit = self._parked.pop(interval, (None, 0))
            if actor is not None:
                self.read(actor, limit)

    def _resume(self, actor: Actor) -> None:
        """Read a partition whose turn has come: an ordered source has read the one before it to its end."""
        if not isinstance(actor.core, InjectorCore):
            raise InvariantError("actor.core is no InjectorCore")
        self._owner.inform(Claimed(((actor.owner, actor.interval, actor.sequencer),)))
        actor.core.paused = False
        self._paces.open(actor)
        self._owner.tell(actor, ev.AlarmRang())

    # --- credit -----------------------------------------------------------------------------------------------

    def hello(self, hello: Hello) -> None:
        """A receiver begins to count."""
        self._accounts[hello.interval] = Account(hello.sequencer, hello.round)

    def credit(self, credit: Credit) -> None:
        """A receiver takes more."""
        account = self._accounts.get(credit.interval)
        if account is not None:
            account.promise(credit.sequencer, credit.round, credit.upto_bytes)
            self._retry([*self._parked])

    def sent(self, target: IntervalId, size: int) -> None:
        """A partition has sent so many bytes to an interval."""
        self._accounts[target].sent += size

    # --- positions --------------------------------------------------------------------------------------------

    def advance(self, actor: Actor, advance: ev.Advance) -> None:
        """Make a position durable."""
        self._advances.append((actor, advance))

    def flush(self) -> None:
        """Write what waits, one batch at a time, and forget what has ended."""
        if self._ending:
            self._ending = [actor for actor in self._ending if not actor.core.halted and not self._forget(actor)]
        if self._advances and not self._advancing:
            self._advancing = True
            self._owner.begin(self._advance_all())

    def _advance_all(self) -> Steps:
        while self._advances:
            batch, self._advances = [(a, effect) for a, effect in self._advances if not a.core.halted], []
            writes = [self._write(actor, effect) for actor, effect in batch]
            kept = yield AdvancePositions(writes)
            for actor, effect in batch:
                ok = actor.interval in kept
                self._owner.tell(actor, ev.Advanced(effect.position, effect.finished) if ok else ev.WriteFenced())
                self._ending += [actor] if ok and effect.finished else []
        self._advancing = False

    def _write(self, actor: Actor, advance: ev.Advance) -> PositionWrite:
        """Write positions.  A partition that is finished by this gets the signs by which it is recognised later."""
        signs: list[bytes] = []
        if advance.finished:
            if not isinstance(actor.core, InjectorCore):
                raise InvariantError("actor.core is no InjectorCore")
            name, source = (
                self._positions[actor.interval].partition,
                self._graph.sources[actor.owner.removeprefix("source:")].source,
            )
            producer = actor.core.producer
            end = SourcePosition(
                name, actor.interval, producer, advance.position, True, advance.state, advance.rejected
            )
            signs = source.signs(end)
        return PositionWrite(
            actor.interval, actor.sequencer, advance.position, advance.finished, advance.state, signs, advance.rejected
        )  # fmt: skip

    def noted(self, actor: Actor, noted: ev.PositionNoted) -> PositionWrite:
        """A position that becomes durable with an epoch."""
        return self._write(actor, ev.Advance(noted.position, noted.state, noted.finished, noted.rejected))

    def advanced(self, actor: Actor, position: int, finished: bool) -> None:
        """The epoch with this position is declared."""
        self._owner.tell(actor, ev.Advanced(position, finished))
        self._ending += [actor] if finished else []

    def _forget(self, actor: Actor) -> bool:
        """Forget a partition whose end is durable, if all its receivers know of it.  Returns true if so."""
        core = actor.core
        if not isinstance(core, InjectorCore):
            raise InvariantError("core is no InjectorCore")
        if not (core.finished and core.quiet()):
            return False
        self._tails.pop(actor.interval, None)
        self._rested_until.pop(actor.interval, None)
        self._positions.pop(actor.interval, None)
        self._paces.forget(actor)
        self._skews.forget(actor)
        self._owner.routes.retire(core.producer)
        self._owner.inform(Concluded(actor.owner, actor.interval))
        self._owner.release(actor)
        return True


def positions_of(graph: Graph) -> Generator[Wish, Any, dict[str, list[SourcePosition]]]:
    """The partitions of earlier runs, by source."""
    known: dict[str, list[SourcePosition]] = {}
    for name in graph.sources:
        known[name] = yield ListPartitions(name)
    return known
