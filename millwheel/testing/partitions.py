"""Source partitions of a simulated process: found, opened, read, and their positions, as `runtime.partitions` does it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from millwheel.core import events as ev
from millwheel.core.feed import Feed
from millwheel.core.injector import InjectorCore
from millwheel.errors import CommitUnknown, StoreUnavailable
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import PositionWrite, SourcePartition
from millwheel.runtime.sources import read_rows
from millwheel.testing.actor import Actor
from millwheel.testing.calls import Crash

if TYPE_CHECKING:
    from millwheel.testing.process import Process

DISCOVER_US: Final = 300_000


class Partitions:
    """All partitions of all sources of the graph."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._graph = process.graph
        self._store = process.world.store
        self._known: dict[str, set[str]] = {}
        self._feeds: dict[str, Feed] = {}
        self._parked: dict[int, Actor] = {}
        """Those of manual sources that have nothing to read."""
        self._advances: deque[tuple[Actor, ev.Advance]] = deque()
        self._advancing = False
        self.complete = False
        """No source will have another partition."""

    def open(self) -> None:
        """Every partition that is there now, and later those that come."""
        authority = self._process.watermarks.authority
        for name, spec in self._graph.sources.items():
            source = spec.source
            self._known[name] = set()
            positions = self._process.calls.call("source", lambda name=name: self._store.source_partitions(name))  # type: ignore[misc]
            self._feeds[name] = Feed(source.ordered, source.idle_after_us, source.disorder_us, positions)
            source.recall(positions)
            for position in positions:
                authority.expect(f"source:{name}", position.interval)
                if position.finished:
                    authority.report(f"source:{name}", position.interval, MAX_TIME)
        self._discover()
        missing = sum(len(feed.missing()) for feed in self._feeds.values())
        self._process.world.kernel.probes["partition missing after restart"] += missing

    def _discover(self) -> None:
        complete = True
        for name, spec in self._graph.sources.items():
            feed, asked_at = self._feeds[name], self._process.clock()
            found = spec.source.discover(self._known[name])
            feed.meet(partition.name for partition in found)
            for partition in found:
                self._open_partition(name, spec.stream, partition)
            complete = complete and spec.source.complete()
            pending = spec.source.pending_watermark()
            bound = feed.bound(pending, asked_at)
            self._process.world.kernel.probes["idle source follows the clock"] += bound > pending
            self._process.watermarks.authority.bound(f"source:{name}", bound)
        self.complete = complete
        self._process.watermarks.persist()
        if not complete:
            self._process.later(DISCOVER_US, self._discover)

    def _open_partition(self, source: str, stream: str, partition: SourcePartition) -> None:
        process, store, routes = self._process, self._store, self._process.routes
        self._known[source].add(partition.name)
        name, print_ = partition.name, partition.fingerprint()
        try:
            position = process.calls.call("source", lambda: store.open_source(source, name, print_))
            taken = process.calls.call("acquire", lambda: store.acquire([position.interval]))
        except (StoreUnavailable, CommitUnknown) as error:
            raise Crash from error
        if not position.finished:
            routes.expect(position.producer, stream)
            partition.resume(position.position, position.state)
        core = InjectorCore(position.interval, position, routes.of([stream]))
        output = routes.output(stream)
        actor = Actor(position.interval, taken[position.interval], f"source:{source}", core, None, partition, output)
        process.actors[position.interval] = actor
        process.watermarks.authority.expect(actor.owner, position.interval)
        if self._feeds[source].open(position.interval, position.finished, process.clock()):
            core.paused = True
            process.watermarks.authority.excuse(actor.owner, actor.interval)
            process.world.kernel.probes["partition waits for its turn"] += 1
        process.perform(actor, core.start(process.clock(), MIN_TIME if position.finished else partition.watermark()))

    def read(self, actor: Actor, limit: int) -> None:
        """At most `limit` rows."""
        assert actor.partition is not None
        assert actor.output is not None
        if not getattr(actor.partition, "news", lambda: True)():
            self._parked[actor.interval] = actor
            return
        name = actor.owner.removeprefix("source:")
        source, asked_at = self._graph.sources[name].source, self._process.clock()
        rows = read_rows(actor.partition, actor.output, limit, source.reject, source.record_id)
        promised = rows.watermark
        turn = self._feeds[name].read(actor.interval, rows, asked_at, self._process.clock())
        self._process.world.kernel.probes["silent partition follows the clock"] += rows.watermark > promised
        self._process.mail.post(actor, rows, "read")
        if turn is not None:
            self._resume(self._process.actors[turn])

    def _resume(self, actor: Actor) -> None:
        assert isinstance(actor.core, InjectorCore)
        self._process.watermarks.authority.expect(actor.owner, actor.interval)
        actor.core.paused = False
        self._process.mail.post(actor, ev.AlarmRang(), "read")

    def unpark(self) -> None:
        """Read what was handed to manual sources."""
        parked, self._parked = self._parked, {}
        for actor in parked.values():
            self.read(actor, 4_096)

    def advance(self, actor: Actor, advance: ev.Advance) -> None:
        """Make a position durable; one request at a time."""
        self._advances.append((actor, advance))
        self._advance()

    def _advance(self) -> None:
        if self._advancing or not self._advances:
            return
        self._advancing = True
        batch = list(self._advances)
        self._advances.clear()
        writes = [PositionWrite(a.interval, a.sequencer, e.position, e.finished, e.state) for a, e in batch]
        store = self._store
        self._process.calls.request("advance", lambda: store.advance(writes), lambda kept: self._advanced(batch, kept))

    def _advanced(self, batch: list[tuple[Actor, ev.Advance]], kept: set[int]) -> None:
        self._advancing = False
        for actor, effect in batch:
            ok = actor.interval in kept
            if not ok:
                self._process.world.kernel.probes["fenced position refused"] += 1
            self._process.handle(actor, ev.Advanced(effect.position, effect.finished) if ok else ev.Fenced())
        self._advance()
