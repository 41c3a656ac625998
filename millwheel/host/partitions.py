"""Source partitions of a worker: found, opened, read in their order, and their positions made durable.

Lives here: which partition is read when.  Never here: reading, or what a row becomes.  Invariant: no partition is read
for an interval that has promised no more credit.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Protocol

from millwheel import limits
from millwheel.core import events as ev
from millwheel.core.dedup import Channel
from millwheel.core.feed import Feed
from millwheel.core.injector import InjectorCore
from millwheel.core.tail import Tail
from millwheel.errors import SourceError
from millwheel.graph import Graph
from millwheel.host.actors import Actor, Actors
from millwheel.host.credit import Account
from millwheel.host.events import Discover, Discovery, Pause, ReadRows, Resume, RowsArrived, Wish
from millwheel.host.messages import Claimed, Credit, Excused, Expected, Hello, Message, SourceBound, WatermarkReport
from millwheel.host.procedures import Steps
from millwheel.host.requests import Acquire, AdvancePositions, ListPartitions, OpenPartition
from millwheel.host.routes import Routes
from millwheel.host.stalls import NOTHING_YET, Stalls, why_it_waits
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import PositionWrite, SourcePosition


class Owner(Protocol):
    """The worker, as far as its partitions need it."""

    actors: Actors
    routes: Routes
    values: dict[str, int]
    """Published watermarks, us."""
    now: int

    def begin(self, steps: Steps) -> None:
        """Start a procedure."""
        ...

    def tell(self, actor: Actor, event: ev.Event) -> None:
        """Give a core an event, after what is queued."""
        ...

    def perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        """Perform effects of a core."""
        ...

    def inform(self, message: Message) -> None:
        """Send a message to the controller."""
        ...

    def announce(self, message: Message) -> None:
        """Send a message to every worker."""
        ...

    def read(self, effect: ReadRows) -> None:
        """Have rows read."""
        ...

    def note(self, text: str) -> None:
        """Tell the operator."""
        ...


class Partitions:
    """All partitions of all sources of the graph."""

    def __init__(self, graph: Graph, owner: Owner) -> None:
        self._graph = graph
        self._owner = owner
        self._feeds: dict[str, Feed] = {}
        self._parked: dict[int, tuple[Actor, int]] = {}
        """Reads that wait until their receivers have worked something off, or the partition has rested."""
        self._tails: dict[int, Tail] = {}
        self._resting: set[int] = set()
        """Partitions that are not read now: there was nothing left a moment ago."""
        self._accounts: dict[int, Account] = {}
        """Credit of the intervals that partitions feed."""
        self._advances: list[tuple[Actor, ev.Advance]] = []
        self._advancing = False
        self._bounds: dict[str, int] = {}
        self._stalls = Stalls()
        self._positions: dict[int, SourcePosition] = {}
        """Of the partitions that were opened, as they stood then."""
        self.complete = False
        """No source will have another partition."""
        self.rejected = 0
        """Rows."""

    # --- discovery --------------------------------------------------------------------------------------------

    def open(self, known: Mapping[str, list[SourcePosition]]) -> Steps:
        """Every partition that is there now, and then those that come later; `known` are those of earlier runs."""
        for name, spec in self._graph.sources.items():
            source = spec.source
            self._feeds[name] = Feed(source.ordered, source.idle_after_us, source.disorder_us, known[name])
            self._owner.inform(Claimed(tuple((f"source:{name}", position.interval, None) for position in known[name])))
            for position in known[name]:
                if position.finished:
                    self._owner.inform(WatermarkReport(f"source:{name}", position.interval, MAX_TIME))
        yield from self._discover_all(known)
        for name, feed in self._feeds.items():
            for position in feed.missing():
                gone = self._gone(name, position)
                self._owner.note(f"{gone}; the watermark waits for it: restore it, or drop it (millwheel source drop)")
        while not self.complete:
            yield Pause(limits.DISCOVER_DELAY_US)
            yield from self._discover_all()

    def _discover_all(self, known: Mapping[str, list[SourcePosition]] | None = None) -> Steps:
        complete = True
        for name, spec in self._graph.sources.items():
            discovery: Discovery = yield Discover(name, tuple(known[name]) if known is not None else None)
            self._meet(name, discovery)
            for partition, fingerprint in discovery.found:
                yield from self._open_partition(name, spec.stream, partition, fingerprint)
            complete = complete and discovery.complete
            self._bounds[name] = self._feeds[name].bound(discovery.pending, discovery.asked_at)
            self._owner.inform(SourceBound(f"source:{name}", self._bounds[name]))
            self._tell_of_stall(name)
        self.complete = complete

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
        if any(core.under_way for _, core in cores):
            return ""
        if not cores:
            return NOTHING_YET
        held = [(core.reported, interval) for interval, core in cores if not core.paused]
        oldest, interval = min(held, default=(MAX_TIME, 0))
        if not held or oldest > self._bounds[name]:
            return why_it_waits(source)
        return why_it_waits(source, source.title(self._positions[interval]))

    def _meet(self, name: str, discovery: Discovery) -> None:
        """Before anything else is read of it: what is gone for good may be in the others by another name."""
        feed = self._feeds[name]
        feed.meet(partition for partition, _ in discovery.found)
        for position in feed.missing() if discovery.complete else ():
            raise SourceError(f"{self._gone(name, position)}; restore it, or drop it (millwheel source drop)")

    def _gone(self, name: str, position: SourcePosition) -> str:
        what = self._graph.sources[name].source.title(position)
        return f"source {name}: {what} was read to row {position.position}, not to its end, and is gone"

    def _open_partition(
        self, source: str, stream: str, partition: str, fingerprint: bytes
    ) -> Generator[Wish, Any, None]:
        owner = self._owner
        position: SourcePosition = yield OpenPartition(source, partition, fingerprint)
        sequencer = (yield Acquire((position.interval,)))[position.interval]
        watermark: int = yield Resume(source, partition, position)
        expected = bool(owner.routes.channels(position.producer, stream) & owner.routes.live)
        if not position.finished:
            # An earlier run may have numbered it, and have been seen to do so only now.
            self._expect(owner.routes.channels(position.producer, stream))
        self._positions[position.interval] = position
        routes = owner.routes.of([stream])
        core = InjectorCore(position.interval, position, routes)
        receivers = frozenset(interval for ranges in routes.values() for interval in ranges.ids)
        actor = Actor(
            interval=position.interval, sequencer=sequencer, owner=f"source:{source}", core=core, receivers=receivers
        )
        owner.actors.put(actor)
        owner.inform(Claimed(((actor.owner, actor.interval, actor.sequencer),)))
        if self._feeds[source].open(position.interval, position.finished, owner.now):
            core.paused = True
            owner.inform(Excused(actor.owner, actor.interval))
        owner.perform(actor, core.start(owner.now, MIN_TIME if position.finished else watermark, expected))

    def _expect(self, channels: set[Channel]) -> None:
        fresh = channels - self._owner.routes.live
        if fresh:
            self._owner.routes.live |= fresh
            self._owner.announce(Expected(tuple(sorted(fresh))))

    def restate(self) -> None:
        """Tell the controller again what it must know of the sources."""
        for actor, core in self._owner.actors.partitions():
            self._owner.inform(Claimed(((actor.owner, actor.interval, actor.sequencer),)))
            if core.paused:
                self._owner.inform(Excused(actor.owner, actor.interval))
            self._owner.inform(WatermarkReport(actor.owner, actor.interval, core.reported))
        for name, bound in self._bounds.items():
            self._owner.inform(SourceBound(f"source:{name}", bound))

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, actor: Actor, limit: int) -> None:
        """At most `limit` rows, now or when there is room for them."""
        if actor.interval in self._resting or not self._has_credit(actor):
            self._parked[actor.interval] = (actor, limit)
        else:
            self._owner.read(ReadRows(actor.interval, actor.sequencer, limit))

    def _has_credit(self, actor: Actor) -> bool:
        """Back-pressure: while one of its receivers takes nothing, nothing is read for any of them."""
        accounts = self._accounts
        return all(target in accounts and accounts[target].left() for target in actor.receivers)

    def arrived(self, actor: Actor, arrived: RowsArrived, limit: int) -> None:
        """Rows were read."""
        rows, name = arrived.rows, actor.owner.removeprefix("source:")
        self.rejected += rows.rejected
        if self._tails.setdefault(actor.interval, Tail()).waits(limit, rows.count + rows.rejected):
            self._resting.add(actor.interval)
            self._owner.begin(self._rest(actor.interval))
        turn = self._feeds[name].read(actor.interval, rows, arrived.asked_at, self._owner.now)
        self._owner.perform(actor, actor.core.handle(rows, self._owner.now))
        if turn is not None:
            self._resume(self._owner.actors.all[turn])

    def _rest(self, interval: int) -> Steps:
        yield Pause(limits.READ_REST_US)
        self._resting.discard(interval)
        self._retry([interval])

    def _retry(self, intervals: list[int]) -> None:
        """Try again what had to wait."""
        for interval in intervals:
            actor, limit = self._parked.pop(interval, (None, 0))
            if actor is not None:
                self.read(actor, limit)

    def _resume(self, actor: Actor) -> None:
        """What was before it is read to its end: an ordered source goes on with the next file."""
        assert isinstance(actor.core, InjectorCore)
        self._owner.inform(Claimed(((actor.owner, actor.interval, actor.sequencer),)))
        actor.core.paused = False
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

    def sent(self, target: int, size: int) -> None:
        """A partition has sent so many bytes to an interval."""
        self._accounts[target].sent += size

    # --- positions --------------------------------------------------------------------------------------------

    def advance(self, actor: Actor, advance: ev.Advance) -> None:
        """Make a position durable."""
        self._advances.append((actor, advance))

    def flush(self) -> None:
        """Write what waits, one batch at a time."""
        if self._advances and not self._advancing:
            self._advancing = True
            self._owner.begin(self._advance_all())

    def _advance_all(self) -> Steps:
        while self._advances:
            batch, self._advances = self._advances, []
            writes = [PositionWrite(a.interval, a.sequencer, e.position, e.finished, e.state) for a, e in batch]
            kept = yield AdvancePositions(writes)
            for actor, effect in batch:
                ok = actor.interval in kept
                self._owner.tell(actor, ev.Advanced(effect.position, effect.finished) if ok else ev.Fenced())
        self._advancing = False


def positions_of(graph: Graph) -> Generator[Wish, Any, dict[str, list[SourcePosition]]]:
    """The partitions of earlier runs, by source."""
    known: dict[str, list[SourcePosition]] = {}
    for name in graph.sources:
        known[name] = yield ListPartitions(name)
    return known
