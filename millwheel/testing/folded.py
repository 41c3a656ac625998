"""The folded tables, as the cores of a simulated process ask for them; see `runtime.folded`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millwheel.bundles import QuarantineEntry, TimerWrites
from millwheel.core import events as ev
from millwheel.core.interval import IntervalCore
from millwheel.ports import FoldWrite
from millwheel.testing.actor import Actor

if TYPE_CHECKING:
    from millwheel.testing.process import Process


class FoldedTables:
    """One method for each effect of this kind, with the probes that say what was seen."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._store = process.world.store
        self._probes = process.world.kernel.probes
        self._loaded: dict[int, set[str]] = {}
        """Keys that each interval has loaded before."""

    def load(self, actor: Actor, load: ev.Load) -> None:
        """State of keys that are not in memory."""
        store, interval, keys, timers = self._store, actor.interval, load.keys, load.timers
        loaded = self._loaded.setdefault(interval, set())
        self._probes["key evicted"] += len(loaded.intersection(keys))
        loaded.update(keys)
        self._process.calls.request(
            "load",
            lambda: store.load(interval, keys, timers),
            lambda rows: self._process.handle(actor, ev.Loaded(rows)),
        )

    def load_slots(self, actor: Actor, load: ev.LoadSlots) -> None:
        """State that a hook has asked for."""
        store, wanted = self._store, load.wanted
        self._process.calls.request(
            "load",
            lambda: store.load_slots(actor.interval, wanted),
            lambda rows: self._process.handle(actor, ev.SlotsLoaded(rows)),
        )

    def load_timers(self, actor: Actor, load: ev.LoadTimers) -> None:
        """A page of timers."""
        store, kind, limit = self._store, load.kind, load.limit
        self._probes["page of timers read"] += 1

        def done(rows: TimerWrites | None) -> None:
            more = rows is not None and len(rows.keys) >= limit
            self._process.handle(actor, ev.Fenced() if rows is None else ev.TimersLoaded(kind, rows, more))

        self._process.calls.request(
            "page", lambda: store.load_timers(actor.interval, actor.sequencer, kind, load.after, limit), done
        )

    def lookup(self, actor: Actor, asked: ev.LookupIds) -> None:
        """Whether ids are consumed."""

        async def call() -> tuple[set[int], set[bytes]]:
            store, interval, subscription = self._store, actor.interval, asked.subscription
            found = await store.find_ids(interval, subscription, asked.producer, asked.sequences)
            return found, await store.find_opaque(interval, subscription, asked.now, asked.opaque)

        self._process.calls.request("lookup", call, lambda answer: self._found(actor, asked, *answer))

    def _found(self, actor: Actor, asked: ev.LookupIds, found: set[int], opaque: set[bytes]) -> None:
        assert isinstance(actor.core, IntervalCore)
        restored = actor.core._arrivals.ids.restored(asked.subscription, asked.producer)
        for sequence in asked.sequences:
            who = "earlier owner's id" if sequence <= restored else "Bloom hit"
            self._probes[f"{who} found {'present' if sequence in found else 'absent'}"] += 1
        unread = any(bucket.unread for bucket in actor.core._arrivals.opaque._buckets.values())
        for id_ in asked.opaque:
            who = "outside id" if unread else "outside id in a filter"
            self._probes[f"{who} found {'present' if id_ in opaque else 'absent'}"] += 1
        self._process.handle(actor, ev.IdsFound(asked.sender, found, opaque))

    def read_opaque(self, actor: Actor, asked: ev.ReadOpaque) -> None:
        """Ids of outside clients, for a filter."""
        store, bucket = self._store, (asked.subscription, asked.expires)
        self._process.calls.request(
            "lookup",
            lambda: store.read_opaque(actor.interval, *bucket, asked.after, asked.limit),
            lambda ids: self._process.handle(actor, ev.OpaqueRead(*bucket, ids)),
        )

    def fold(self, actor: Actor, fold: ev.Fold) -> None:
        """A prefix of the log becomes tables."""
        write = FoldWrite(actor.interval, actor.sequencer, fold.upto, fold.images, fold.acked, fold.fresh)
        self._probes["fold"] += 1
        self._probes["fold used later acks"] += bool(fold.acked)
        self._probes["fold of a fresh key"] += bool(fold.fresh)
        self._process.calls.request(
            "fold",
            lambda: self._store.fold(write),
            lambda kept: self._folded(actor, write.upto, kept),
        )

    def _folded(self, actor: Actor, upto: int, kept: bool) -> None:
        if not kept:
            self._probes["fenced fold refused"] += 1
        self._process.handle(actor, ev.Folded(upto) if kept else ev.Fenced())

    def fetch(self, actor: Actor, fetch: ev.FetchQuarantine) -> None:
        """What the quarantines of some keys begin with."""
        store, limit = self._store, fetch.limit

        async def read() -> list[QuarantineEntry]:
            entries = await store.quarantined(actor.interval, fetch.keys, limit)
            store.truth.saw_fifos(actor.interval, actor.sequencer, entries)
            return entries

        self._process.calls.request(
            "quarantine",
            read,
            lambda found: self._process.handle(actor, ev.QuarantineFetched(found, len(found) >= limit)),
        )
