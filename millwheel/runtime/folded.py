"""The tables that the log is folded into, as an interval's core asks for them.

Lives here: the calls that read state, timers, ids and quarantined elements, and the fold; each ends in one event.
Never here: commits, which go to the log (`commits.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from millwheel.core import events as ev
from millwheel.ports import FoldWrite, Store
from millwheel.runtime.actor import Actor
from millwheel.runtime.retry import until_answered


class FoldedTables:
    """One coroutine for each effect of this kind; `post` takes the event that answers it."""

    def __init__(self, store: Store, post: Callable[[Actor, ev.Event], None]) -> None:
        self._store = store
        self._post = post

    async def load(self, actor: Actor, load: ev.Load) -> None:
        """State of keys that are not in memory."""
        rows = await until_answered("load", lambda: self._store.load(actor.interval, load.keys, load.timers))
        self._post(actor, ev.Loaded(rows))

    async def load_slots(self, actor: Actor, load: ev.LoadSlots) -> None:
        """State that a hook has asked for."""
        rows = await until_answered("load", lambda: self._store.load_slots(actor.interval, load.wanted))
        self._post(actor, ev.SlotsLoaded(rows))

    async def load_timers(self, actor: Actor, load: ev.LoadTimers) -> None:
        """A page of timers."""
        place, store = (actor.interval, actor.sequencer), self._store
        rows = await until_answered("timers", lambda: store.load_timers(*place, load.kind, load.after, load.limit))
        more = rows is not None and len(rows.keys) >= load.limit
        self._post(actor, ev.Fenced() if rows is None else ev.TimersLoaded(load.kind, rows, more))

    async def lookup(self, actor: Actor, asked: ev.LookupIds) -> None:
        """Whether ids are consumed."""
        store, interval, subscription = self._store, actor.interval, asked.subscription
        found: set[int] = set()
        opaque: set[bytes] = set()
        if asked.sequences:
            found = await until_answered(
                "ids", lambda: store.find_ids(interval, subscription, asked.producer, asked.sequences)
            )
        if asked.opaque:
            opaque = await until_answered(
                "ids", lambda: store.find_opaque(interval, subscription, asked.now, asked.opaque)
            )
        self._post(actor, ev.IdsFound(asked.sender, found, opaque))

    async def read_opaque(self, actor: Actor, asked: ev.ReadOpaque) -> None:
        """Ids of outside clients, for a filter."""
        store, bucket = self._store, (asked.subscription, asked.expires)
        ids = await until_answered("ids", lambda: store.read_opaque(actor.interval, *bucket, asked.after, asked.limit))
        self._post(actor, ev.OpaqueRead(*bucket, ids))

    async def fold(self, actor: Actor, fold: ev.Fold) -> None:
        """A prefix of the log becomes tables."""
        write = FoldWrite(actor.interval, actor.sequencer, fold.upto, fold.images, fold.acked, fold.fresh)
        kept = await until_answered("fold", lambda: self._store.fold(write))
        self._post(actor, ev.Folded(fold.upto) if kept else ev.Fenced())

    async def fetch(self, actor: Actor, fetch: ev.FetchQuarantine) -> None:
        """What the quarantines of some keys begin with."""
        place = (actor.interval, fetch.keys, fetch.limit)
        entries = await until_answered("quarantine", lambda: self._store.quarantined(*place))
        self._post(actor, ev.QuarantineFetched(entries, len(entries) >= fetch.limit))
