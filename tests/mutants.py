"""Planted bugs: each is a known way to break a system like this one, and each must be noticed.

`python -m tests.mutants` prints a table: how many seeds, or crash points, until an invariant breaks, and adds it to
`build/reliability.json`.  A mutant replaces one piece of the shipping code; what is not noticed within the budget is a
hole in the tests.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import time
from functools import partial
from typing import Any

import msgspec

from millwheel.api.frame import Frame
from millwheel.bundles import Acked, QuarantineEntry, StateWrites, decode_checkpoint, encode_checkpoint
from millwheel.core.authority import Authority
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.checkpoint import Checkpointer
from millwheel.core.durability.inflight import Inflight
from millwheel.core.faults.quarantine import Quarantine
from millwheel.core.faults.refused import RefusedRows
from millwheel.core.faults.suspects import Suspects
from millwheel.core.ids.dedup import DeliveredIds, Seen
from millwheel.core.ids.outside import OutsideIds
from millwheel.core.ids.seen import SeenKeys
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals
from millwheel.core.interval.inbox import Inbox
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.interval.watermark import LowWatermark
from millwheel.core.keys.cache import StateCache
from millwheel.core.keys.timers import TimerQueue
from millwheel.core.source.feed import Feed
from millwheel.core.source.injector import InjectorCore
from millwheel.host.alone import Alone
from millwheel.host.marks import Marks
from millwheel.host.partitions import Partitions
from millwheel.host.routes import Routes
from millwheel.model import MAX_TIME
from millwheel.ports import FoldWrite
from millwheel.runtime.executor import Executor
from millwheel.search import sign
from millwheel.testing.world.kernel import Violation
from millwheel.work import QUARANTINE_HOLD
from millwheel_storage.memory import MemoryStore
from tests.planted import MUTANTS, UNIT_ONLY, Patches, mutant, only, planted, unit_test_notices
from tests.planted import host as host  # they register their own
from tests.planted import timers as timers
from tests.planted import weak as weak
from tests.sim import ci
from tests.sim.harness import simulate_seed
from tests.sim.scenarios import SCENARIOS


def seeds_to_detect(name: str, budget: int, first: int = 0) -> tuple[int, str] | None:
    """(seeds tried, what was noticed), or None when nothing was.

    Raises what Python says of a mutant that does not fit the code any more: it is not noticed, it is broken.
    """
    with planted(name):
        for seed in range(first, first + budget):
            try:
                simulate_seed(seed)
            except Violation as violation:
                if isinstance(violation.__cause__, AttributeError | IndexError | KeyError | NameError | TypeError):
                    raise violation.__cause__ from None
                return seed + 1 - first, violation.summary
    return None


def crash_points_to_detect(name: str) -> tuple[int, str] | None:
    """The same with the crash points."""
    from tests.sim.test_crash_points import breaks, run

    wanted = {scenario: run(scenario) for scenario in SCENARIOS}
    tried = 0
    with planted(name):
        for scenario, (undisturbed, left) in wanted.items():
            for at, action in breaks(undisturbed.steps):
                tried += 1
                try:
                    if run(scenario, at, action)[1] != left:
                        return tried, f"{scenario}: another end"
                except Violation as violation:
                    return tried, violation.summary
    return None


# --- the sender -------------------------------------------------------------------------------------------------


@mutant
def frontier_from_acks() -> Patches:
    """Frontier advertised from acks that are not durable."""

    def frontier(self: Outbox, subscription: int, producer: int) -> int:
        live = [
            b.sequences[0] for b in self.unacked.values() if (b.subscription, b.producer) == (subscription, producer)
        ]
        top = self._next_sequence.get(subscription, 0) + 1 if producer == self._producer else MAX_TIME
        return min(live, default=top)

    return {(Outbox, "frontier"): frontier}


@mutant
def strong_send_early() -> Patches:
    """Strong productions sent before their checkpoint is durable."""
    original = IntervalCore._invoked

    def invoked(self: IntervalCore, outcome: Any, now: int, effects: list[ev.Effect]) -> None:
        original(self, outcome, now, effects)
        entry = self._inflight._entries[-1]
        effects += [ev.Send(self._outbox.sendable(bundle)) for bundle in entry.sends]
        entry.sends = []

    return {(IntervalCore, "_invoked"): invoked}


@mutant
def no_productions() -> Patches:
    """Checkpoint with an input's id but without its unacked productions."""
    original = Inflight._still_unacked
    return {(Inflight, "_still_unacked"): lambda self, entry: original(self, entry)[:0]}


@mutant
def reused_ids() -> Patches:
    """Sequencer, and with it record ids, used again after a restart."""

    def next_sequencer(self: MemoryStore) -> int:
        self._sequencer += 1
        return 1 + self._sequencer % 40

    return {(MemoryStore, "_next_sequencer"): next_sequencer}


@mutant
def forgets_to_resend() -> Patches:
    """Unacked productions are not sent again after a restart."""
    original = IntervalCore.start

    def start(self: IntervalCore, now: int, live: Any = None) -> list[ev.Effect]:
        assert self._recovered is not None
        self._recovered.productions = []
        return original(self, now, live)

    return {(IntervalCore, "start"): start}


@mutant
def sent_before_durable_again() -> Patches:
    """What is sent again to an interval that restarts includes what is not durable yet."""
    original = Outbox.resend
    return {(Outbox, "resend"): lambda self, target, kept_back: original(self, target, ())}


@mutant
def injector_position_ahead() -> Patches:
    """An injector's position counts rows that are read, not rows that are acked."""

    def pop(self: InjectorCore) -> None:
        if self._reads:
            self._acked_position = (self._reads[-1].next_position, self._reads[-1].state)
        while self._reads and not self._reads[0].waiting:
            self._reads.popleft()

    return {(InjectorCore, "_pop_acked"): pop}


# --- the receiver -----------------------------------------------------------------------------------------------


@mutant
def duplicate_acked_early() -> Patches:
    """Duplicate acked before its original is durable."""
    original = IntervalCore._enter

    def enter(self: IntervalCore, items: Any, effects: list[ev.Effect]) -> None:
        effects += [ev.Ack(item.sender, item.number) for item in items if item.part is None]
        original(self, [item for item in items if item.part is not None], effects)

    return {(IntervalCore, "_enter"): enter}


@mutant
def ack_on_run() -> Patches:
    """Input acked when it has run, not when it is durable."""
    original = IntervalCore._invoked

    def invoked(self: IntervalCore, outcome: Any, now: int, effects: list[ev.Effect]) -> None:
        original(self, outcome, now, effects)
        entry = self._inflight._entries[-1]
        effects += [ev.Ack(sender, number) for sender, number in entry.acks]
        entry.acks = []

    return {(IntervalCore, "_invoked"): invoked}


@mutant
def ids_collected_early() -> Patches:
    """Delivered ids collected before the sender's frontier passes them."""
    original = DeliveredIds.add

    def add(self: DeliveredIds, subscription: int, producer: int, sequences: Any) -> None:
        original(self, subscription, producer, sequences)
        seen = self._channels.get((subscription, producer))
        if seen is not None and seen.added % 3 == 0:
            seen.runs.clear()

    return {(DeliveredIds, "add"): add}


@mutant
def ids_not_restored() -> Patches:
    """Delivered ids not loaded at recovery."""
    return {(DeliveredIds, "restore"): lambda self, *ids: None}


@mutant
def split_bundle_acked_at_its_head() -> Patches:
    """A bundle that is run in two parts is acked after the first."""
    original = Inbox._take_first

    def take(self: Inbox, records: int, size_bytes: int) -> Any:
        bundle = self._items[0]
        item = original(self, records, size_bytes)
        if item is not bundle:
            item.number, self._items[0].number = self._items[0].number, 0
        return item

    return {(Inbox, "_take_first"): take}


@mutant
def dead_producers_kept() -> Patches:
    """Ids of producers that will never send again are kept for ever."""
    original = IntervalCore.start
    return {(IntervalCore, "start"): lambda self, now, live=None: original(self, now)}


# --- quarantine -------------------------------------------------------------------------------------------------


@mutant
def timers_of_the_quarantined() -> Patches:
    """Timers of a quarantined key fire."""
    return {(TimerQueue, "sleep"): lambda self, key: None}


@mutant
def released_with_one_in_hand() -> Patches:
    """A quarantine is released while a record is on its way into it."""
    original = Quarantine._emptied

    def emptied(self: Quarantine, key: str) -> None:
        diverted, self._diverted = self._diverted, []
        self._redriving[key] = self._written.get(key, 0)
        original(self, key)
        self._diverted = diverted

    return {(Quarantine, "_emptied"): emptied}


@mutant
def redriven_again() -> Patches:
    """A line is read again before what was redriven of it is folded."""
    return {(Quarantine, "_in_tables"): lambda self, key: True}


@mutant
def part_for_the_whole() -> Patches:
    """A key is released after the first read of its line, however long that is."""
    original = Quarantine._plan
    return {
        (Quarantine, "_plan"): lambda self, key, entries, whole: original(self, key, entries, whole=True),
    }


@mutant
def redrive_past_a_failure() -> Patches:
    """A redrive of many keys goes on behind an element that has failed again."""

    def redrives(self: Executor, entries: list[QuarantineEntry], work: Any, outcome: Any) -> None:
        for entry in entries:
            if entry.key in self._waiting_keys:
                self._waiting.append(entry)
            elif self._attempt(self._redrive, entry, work, outcome) is None and entry.key not in self._waiting_keys:
                outcome.redriven[entry.key] = outcome.redriven.get(entry.key, 0) + 1

    return {(Executor, "_redrives"): redrives}


@mutant
def hold_of_the_first() -> Patches:
    """A quarantine holds the watermark at its first element only, though an older one came later."""
    original = Quarantine._hold

    def hold(self: Quarantine, key: str, at: int, holds: Any) -> None:
        if key + QUARANTINE_HOLD not in self._holds.all:
            original(self, key, at, holds)

    return {(Quarantine, "_hold"): hold}


@mutant
def sealed_before_folded() -> Patches:
    """Ids sealed into a filter before the store can be asked for them."""

    def take_folded(self: Seen) -> set[int]:
        self.folded = self.added
        return original(self)

    original = Seen.take_folded
    return {(Seen, "take_folded"): take_folded}


@mutant
def filter_dropped_early() -> Patches:
    """A filter is dropped after the next fold, not when the frontiers have passed what it holds."""

    def seal(self: DeliveredIds, now: int) -> None:
        self._sealed.clear()
        original(self, now)

    original = DeliveredIds.seal
    return {(DeliveredIds, "seal"): seal}


@mutant
def answer_ignored() -> Patches:
    """What the store says of an id is ignored."""
    original = Arrivals.found

    def found(self: Arrivals, answer: ev.IdsFound, now: int, effects: list[ev.Effect]) -> Any:
        return original(self, ev.IdsFound(answer.sender, set(), answer.outside), now, effects)

    return {(Arrivals, "found"): found}


@mutant
def queue_overtaken() -> Patches:
    """Bundles that need no answer overtake one of their sender that waits for the store's."""
    original = Arrivals.arrive

    def arrive(self: Arrivals, bundle: Any, now: int, effects: list[ev.Effect]) -> Any:
        fresh = self.ids.fresh(bundle.subscription, bundle.producer, bundle.sequences)
        if bundle.sender in self._queues and bundle.sequences and fresh is None and not bundle.outside:
            return [self._accept(bundle, None, (), now)]
        return original(self, bundle, now, effects)

    return {(Arrivals, "arrive"): arrive}


@mutant
def outside_ids_forgotten() -> Patches:
    """Ids that outside clients chose are not asked for after a restart."""

    def init(self: OutsideIds, slacks: Any, stored: Any = ()) -> None:
        original(self, slacks)

    original = OutsideIds.__init__
    return {(OutsideIds, "__init__"): init}


@mutant
def outside_ids_leave_early() -> Patches:
    """An outside id is forgotten when it is folded, while an answer that does not know it is on its way."""

    def leave(self: OutsideIds) -> None:
        self._asked.clear()
        original(self)

    original = OutsideIds._leave
    return {(OutsideIds, "_leave"): leave}


@mutant
def outside_answer_ignored() -> Patches:
    """What the store says of an outside id is ignored."""
    original = OutsideIds.take

    def take(self: OutsideIds, subscription: int, ids: Any, stored: Any, now: int) -> Any:
        return original(self, subscription, ids, (), now)

    return {(OutsideIds, "take"): take}


@mutant
def dropped_not_recorded() -> Patches:
    """A record dropped by its outside id is not checkpointed as delivered."""
    original = Arrivals._without

    def without(self: Arrivals, *given: Any) -> Any:
        item = original(self, *given)
        item.dropped = []
        return item

    return {(Arrivals, "_without"): without}


@only("tests/unit/core/interval/test_machine.py")
def unfinished_redrive() -> Patches:
    """A request to redrive a key that is not in quarantine any more is forgotten."""

    def ask(self: Quarantine, keys: list[str], now: int) -> None:
        original(self, [key for key in keys if key in self.keys], now)

    original = Quarantine.ask
    return {(Quarantine, "ask"): ask}


# --- checkpoints ------------------------------------------------------------------------------------------------


@mutant
def out_of_order_commits() -> Patches:
    """Checkpoint committed past a gap."""
    original = Inflight.submit

    def submit(self: Inflight, effects: list[ev.Effect], now: int) -> None:
        first = len(effects)
        original(self, effects, now)
        commits = [e for e in effects[first:] if isinstance(e, ev.Commit)]
        late = getattr(self, "_late", None)
        if late is not None and commits:
            self._late = None  # type: ignore[attr-defined]
            effects.append(late)
        elif commits and commits[-1].write.seq % 5 == 0:
            effects.remove(commits[-1])
            self._late = commits[-1]  # type: ignore[attr-defined]

    return {(Inflight, "submit"): submit}


@mutant
def no_fence() -> Patches:
    """The fence is skipped: a stale sequencer commits."""
    original = MemoryStore.commit

    async def commit(self: MemoryStore, writes: Any) -> set[tuple[int, int]]:
        owners = dict(self.ownership)
        self.ownership.update({write.interval: write.sequencer for write in writes})
        kept = await original(self, writes)
        self.ownership = owners
        return kept

    return {(MemoryStore, "commit"): commit}


@mutant
def sinks_of_the_fenced() -> Patches:
    """Sink rows are written though their checkpoint was fenced."""
    from millwheel_storage.sink_rows import coalesce

    original = MemoryStore.commit

    async def commit(self: MemoryStore, writes: Any) -> set[tuple[int, int]]:
        kept = await original(self, writes)
        for rows in coalesce(self._sink_tables, [w for w in writes if (w.interval, w.seq) not in kept]):
            self.sinks[rows.table.name].update(rows.rows)
            for key in rows.deleted:
                self.sinks[rows.table.name].pop(key, None)
        return kept

    return {(MemoryStore, "commit"): commit}


@mutant
def renamed_and_lost() -> Patches:
    """A cell that was renamed is looked for under its new name."""
    return {(Frame, "place"): lambda self, cell: cell}


@mutant
def deletions_first() -> Patches:
    """A row that a checkpoint writes and then deletes stays in its sink."""
    from millwheel_storage import sink_rows
    from millwheel_storage.memory import twin

    def coalesce(tables: Any, writes: Any) -> Any:
        turned = []
        for write in writes:
            rows = tuple(sorted(write.sinks, key=lambda row: not row.deleted))
            turned.append(msgspec.structs.replace(write, sinks=rows))
        return sink_rows.coalesce(tables, turned)

    return {(twin, "coalesce"): coalesce}


@mutant
def deletions_lost() -> Patches:
    """A row that is deleted in another checkpoint than the one that wrote it stays in its sink."""
    from millwheel_storage import sink_rows
    from millwheel_storage.memory import twin

    def coalesce(tables: Any, writes: Any) -> Any:
        return [msgspec.structs.replace(rows, deleted={}) for rows in sink_rows.coalesce(tables, writes)]

    return {(twin, "coalesce"): coalesce}


@mutant
def commit_twice() -> Patches:
    """A commit that is retried after its fold is applied a second time."""

    async def commit(self: MemoryStore, writes: Any) -> set[tuple[int, int]]:
        kept = await original(self, writes)
        if len(self.log) % 7 == 3:  # the log row is gone, as after a fold: a second insert succeeds
            for write in writes:
                self.log.pop((write.interval, write.sequencer, write.seq), None)
        return kept

    original = MemoryStore.commit
    return {(MemoryStore, "commit"): commit}


@mutant
def fold_from_cache() -> Patches:
    """A fold takes state from the cache, which is ahead of the log."""
    original = IntervalCore._maybe_fold

    def fold(self: IntervalCore, effects: list[ev.Effect]) -> None:
        first = len(effects)
        original(self, effects)
        for effect in effects[first:]:
            if isinstance(effect, ev.Fold):
                effect.images = [_from_cache(self._cache, image) for image in effect.images]

    return {(IntervalCore, "_maybe_fold"): fold}


def _from_cache(cache: StateCache, image: Any) -> Any:
    image = copy.copy(image)
    rows = []
    for key, cell, entry, value in image.state.rows():
        here = key in cache.last_read
        rows.append((key, cell, entry, cache.cells(key).get((cell, entry)) if here else value))
    image.state = StateWrites.of(rows)
    return image


@mutant
def stale_fold() -> Patches:
    """The fence is skipped: a stale sequencer folds."""
    original = MemoryStore.fold

    async def fold(self: MemoryStore, write: FoldWrite) -> bool:
        owner, self.ownership[write.interval] = self.ownership[write.interval], write.sequencer
        kept = await original(self, write)
        self.ownership[write.interval] = owner
        return kept

    return {(MemoryStore, "fold"): fold}


@mutant
def stale_position() -> Patches:
    """The fence is skipped: a stale injector moves its partition's position."""
    original = MemoryStore.advance

    async def advance(self: MemoryStore, writes: Any) -> set[int]:
        owners = dict(self.ownership)
        self.ownership.update({write.interval: write.sequencer for write in writes})
        kept = await original(self, writes)
        self.ownership = owners
        return kept

    return {(MemoryStore, "advance"): advance}


@mutant
def evicts_dirty() -> Patches:
    """Dirty keys are evicted."""
    original = StateCache.evict

    def evict(self: StateCache, busy: Any, next_timers: Any) -> list[str]:
        dirty, self._dirty = self._dirty, set()
        try:
            return original(self, busy, next_timers)
        finally:
            self._dirty = dirty

    return {(StateCache, "evict"): evict}


@mutant
def fresh_for_ever() -> Patches:
    """A key that a fold has inserted is inserted again."""
    return {(StateCache, "take_absent"): lambda self, upto: set().union(*(keys for _, keys in self._absent))}


@mutant
def never_seen() -> Patches:
    """The filter of keys says of each that no hook has had it."""
    original = SeenKeys.add

    def add(self: SeenKeys, keys: list[str]) -> list[str]:
        return original(self, keys) if self._filter is None else []

    return {(SeenKeys, "add"): add}


@mutant
def always_blank() -> Patches:
    """An owner takes the keys that another one has stored for new."""
    original = SeenKeys.__init__
    return {(SeenKeys, "__init__"): lambda self, blank: original(self, True)}


@mutant
def removed_comes_back() -> Patches:
    """What was removed from a key that is in memory in part is asked of the store again, which still has it."""
    return {(StateCache, "_removed"): lambda self, cell, slots: None}


@mutant
def thin_forgets_removals() -> Patches:
    """A hot key is thinned without a note of what was removed from it and is not folded."""
    original = StateCache._thin_key

    def thin(self: StateCache, key: str, dirty: Any) -> None:
        kept = {cell: {entry: value for entry, value in writes.items() if value} for cell, writes in dirty.items()}
        original(self, key, kept)

    return {(StateCache, "_thin_key"): thin}


@mutant
def thin_drops_dirty() -> Patches:
    """A hot key is thinned of entries that are not folded."""
    original = StateCache._thin_key
    return {(StateCache, "_thin_key"): lambda self, key, dirty: original(self, key, {})}


@mutant
def overtakes_who_waits() -> Patches:
    """A record runs before one of its key that waits for state."""
    original = Executor._waits

    def waits(self: Executor, it: Any) -> bool:
        waiting = original(self, it)
        self._waiting_keys.clear()
        return waiting

    return {(Executor, "_waits"): waits}


@mutant
def forgets_while_waiting() -> Patches:
    """What an invocation did before one of its hooks waited for state is lost."""
    original = Frame.suspend

    def suspend(self: Frame, outcome: Any, waiting: Any) -> Any:
        suspended = original(self, outcome, waiting)
        suspended.entries.clear()
        return suspended

    return {(Frame, "suspend"): suspend}


@mutant
def runs_all_again() -> Patches:
    """An invocation that waited for state begins from the start, and keeps what it did before."""
    original = Executor.run

    def run(self: Executor, work: Any) -> Any:
        if work.suspended is not None:
            again = [QuarantineEntry(k, p.subscription, p.producer, s, v, t) for p in work.parts
                     for k, s, v, t in zip(p.keys, p.sequences, p.values, p.timestamps, strict=True)]  # fmt: skip
            work.suspended.waiting = again or work.suspended.waiting
        return original(self, work)

    return {(Executor, "run"): run}


@mutant
def no_rollback() -> Patches:
    """State that a hook wrote before it raised is kept."""
    original = Frame.rollback

    def rollback(self: Frame, journal: int, pending: int) -> None:
        self.journal.clear()
        original(self, journal, pending)

    return {(Frame, "rollback"): rollback}


@mutant
def fold_skips_the_last() -> Patches:
    """Recovery folds the log but for its newest row."""
    original = MemoryStore.recover

    async def recover(self: MemoryStore, interval: int, sequencer: int) -> Any:
        places = sorted(place for place in self.log if place[0] == interval)
        if places and self.ownership[interval] == sequencer:
            del self.log[places[-1]]
        return await original(self, interval, sequencer)

    return {(MemoryStore, "recover"): recover}


@mutant
def productions_lost_in_fold() -> Patches:
    """A fold drops productions that are not acked."""
    original = MemoryStore.fold

    async def fold(self: MemoryStore, write: FoldWrite) -> bool:
        kept = await original(self, write)
        self.folded.productions.get(write.interval, {}).clear()
        return kept

    return {(MemoryStore, "fold"): fold}


@mutant
def fold_by_soft_acks() -> Patches:
    """A fold leaves out productions whose acks are not durable."""
    original = IntervalCore._maybe_fold

    def fold(self: IntervalCore, effects: list[ev.Effect]) -> None:
        first = len(effects)
        original(self, effects)
        soft = self._outbox._unrecorded.values()
        for effect in effects[first:]:
            if isinstance(effect, ev.Fold):
                effect.acked += [Acked(bundle.subscription, bundle.producer, bundle.sequences) for bundle in soft]

    return {(IntervalCore, "_maybe_fold"): fold}


# --- time -------------------------------------------------------------------------------------------------------


@mutant
def forgets_timers() -> Patches:
    """Timers are forgotten at recovery."""
    return {(IntervalCore, "_restore_timers"): lambda self, recovered: None}


@mutant
def firing_not_recorded() -> Patches:
    """A checkpoint does not remove the timers that it fired."""
    original = Checkpointer._apply_timers

    def apply(self: Checkpointer, work: Any, *arguments: Any) -> Any:
        fired, work.timers = work.timers, []
        found = original(self, work, *arguments)
        work.timers = fired
        return found

    return {(Checkpointer, "_apply_timers"): apply}


@mutant
def wall_timers_by_the_watermark() -> Patches:
    """Wall timers fire as soon as they are set."""
    original = TimerQueue.pop_due

    def pop_due(self: TimerQueue, kind: str, until: int, limit: int, alone: Any = None) -> Any:
        return original(self, kind, MAX_TIME if kind == "wall" else until, limit, alone)

    return {(TimerQueue, "pop_due"): pop_due}


@mutant
def early_timers() -> Patches:
    """Timers fire a little before the watermark reaches them."""
    original = TimerQueue.pop_due

    def pop_due(self: TimerQueue, kind: str, until: int, limit: int, alone: Any = None) -> Any:
        return original(self, kind, until + (50_000 if until < MAX_TIME else 0), limit, alone)

    return {(TimerQueue, "pop_due"): pop_due}


@mutant
def timers_come_back() -> Patches:
    """A page of timers overwrites what is set in memory."""
    original = TimerQueue.add_page
    return {(TimerQueue, "add_page"): lambda self, kind, page, more, held: original(self, kind, page, more, ())}


@mutant
def far_timers_hold_nothing() -> Patches:
    """Watermark reported past timers that are not in memory."""
    return {(TimerQueue, "minimum"): lambda self, kind: self._heaps[kind].minimum()}


@mutant
def expires_with_far_timers() -> Patches:
    """A key expires though it has a timer that is not in memory."""
    original = TimerQueue.recall

    def recall(self: TimerQueue, key: str, kind: str, tag: str, timestamp: int) -> None:
        if kind not in ("watermark", "wall"):
            original(self, key, kind, tag, timestamp)

    return {(TimerQueue, "recall"): recall}


@mutant
def leaves_behind_a_page() -> Patches:
    """A key leaves memory while a page is on its way, which is outdated about it."""
    original = IntervalCore._fold_done

    def folded(self: IntervalCore, *arguments: Any) -> None:
        paging, self._schedule.paging = self._schedule.paging, False
        original(self, *arguments)
        self._schedule.paging = paging

    return {(IntervalCore, "_fold_done"): folded}


@mutant
def unfenced_page() -> Patches:
    """The fence is skipped: a stale sequencer reads a page of timers."""
    original = MemoryStore.load_timers

    async def load_timers(self: MemoryStore, interval: int, sequencer: int, *arguments: Any) -> Any:
        return await original(self, interval, self.ownership[interval], *arguments)

    return {(MemoryStore, "load_timers"): load_timers}


@mutant
def report_without_work() -> Patches:
    """Watermark reported without the oldest work."""
    return {(LowWatermark, "oldest_work"): lambda self: MAX_TIME}


@mutant
def report_without_productions() -> Patches:
    """Watermark reported without unacked productions."""
    return {(Outbox, "oldest"): lambda self: MAX_TIME}


@mutant
def authority_recombines() -> Patches:
    """The authority recombines upstream watermarks by itself."""
    original = Authority.changes

    def changes(self: Authority) -> dict[str, int]:
        changed = original(self)
        for name in self._senders:
            values = {**self._values, **changed}
            ahead = min((values.get(sender, -MAX_TIME) for sender in self._senders[name]), default=-MAX_TIME)
            if ahead > values.get(name, -MAX_TIME):
                changed[name] = ahead
        return changed

    return {(Authority, "changes"): changes}


@mutant
def first_discovery() -> Patches:
    """A source's watermark moves before all its partitions are known."""

    def changes(self: Authority) -> dict[str, int]:
        for name in self._dirty:
            if name.startswith("source:"):
                self._bounds.setdefault(name, MAX_TIME)
        return original(self)

    original = Authority.changes
    return {(Authority, "changes"): changes}


@mutant
def comes_back_last() -> Patches:
    """A partition that was missing comes back behind the younger ones of its source, and nobody waits for it"""
    real = Feed.open

    def opened(self: Feed, interval: int, now: int) -> bool:
        waits = real(self, interval, now)
        if self._ordered:
            waits = self._parts[interval].waits = len(self._parts) > 1
        return waits

    return {(Feed, "open"): opened}


@mutant
def kept_when_finished() -> Patches:
    """A process keeps a partition in memory that is read to its end"""
    return {(Partitions, "_forget"): lambda self, actor: None}


@mutant
def begun_is_finished() -> Patches:
    """A look for partitions takes what was begun for finished"""

    async def unknown_signs(self: MemoryStore, source: str, signs: Any) -> set[bytes]:
        begun = {sign("name", partition) for of, partition in self.sources if of == source}
        return {*signs} - begun

    return {(MemoryStore, "unknown_signs"): unknown_signs}


@mutant
def silence_without_disorder() -> Patches:
    """Silence raises a watermark to the wall clock, whatever disorder the source declares"""
    real = Feed.__init__

    def init(self: Feed, ordered: bool, idle_after_us: int | None, disorder_us: int, positions: Any) -> None:
        real(self, ordered, idle_after_us, 0, positions)

    return {(Feed, "__init__"): init}


@mutant
def undone_work() -> Patches:
    """A hold that was released, or a timer that was moved, no longer counts before that is durable."""
    return {(Checkpointer, "oldest_undone"): lambda self, work, outcome: MAX_TIME}


@mutant
def holds_forgotten() -> Patches:
    """Checkpoints do not carry holds."""
    original = encode_checkpoint

    def encode(checkpoint: Any) -> bytes:
        image = decode_checkpoint(original(checkpoint))
        image.holds.keys.clear()
        image.holds.timestamps.clear()
        return original(image)

    from millwheel.core.durability import inflight

    return {(inflight, "encode_checkpoint"): encode}


# --- versions of the pipeline ------------------------------------------------------------------------------------


@mutant
def left_out_retired() -> Patches:
    """Ids of a source that is left out of one run are collected: it sends the rows again when it is back."""
    original = Routes.expect_partitions

    def expect_partitions(self: Routes, unfinished: Any) -> None:
        original(self, [(source, position) for source, position in unfinished if source in self._graph.sources])

    return {(Routes, "expect_partitions"): expect_partitions}


@mutant
def left_out_not_waited_for() -> Patches:
    """The watermark passes a source that is left out of one run."""

    def senders(self: Routes) -> Any:
        return {name: self._graph.senders(name) for name in self._graph.computations}

    return {(Routes, "senders"): senders}


@mutant
def outputs_are_routes() -> Patches:
    """What is durable on a stream that the new version of a computation does not list is taken for delivered."""
    original = Routes.config

    def config(self: Routes, row: Any, sequencer: int) -> Any:
        made = original(self, row, sequencer)
        assert made.outputs is not None
        return msgspec.structs.replace(made, routes={number: made.routes[number] for number in made.outputs})

    return {(Routes, "config"): config}


@only("tests/unit/host/test_routes.py")
def unsettled_not_waited_for() -> Patches:
    """The watermark passes what an earlier version of a computation has sent, and its new version does not list."""
    return {(Routes, "unsettled"): lambda self, config, recovered: set()}


# --- who is superseded -------------------------------------------------------------------------------------------


@mutant
def watermark_without_fence() -> Patches:
    """The fence is skipped: a process that was superseded persists watermarks."""

    async def persist_watermarks(self: MemoryStore, writes: Any) -> set[str]:
        for write in writes:
            self.watermark[write.name] = max(write.value, self.watermark.get(write.name, write.value))
        return {write.name for write in writes}

    return {(MemoryStore, "persist_watermarks"): persist_watermarks}


@mutant
def source_rests_on_nothing() -> Patches:
    """The watermark of a source is fenced by its partitions only: one without any follows the clock for ever."""
    original = Authority.owners

    def owners(self: Authority, name: str) -> dict[int, int]:
        return dict(self._owners.get(name, {})) if name.startswith("source:") else original(self, name)

    return {(Authority, "owners"): owners}


# --- refused rows -----------------------------------------------------------------------------------------------


@mutant
def no_resend() -> Patches:
    """A restarted interval is not sent again what it has lost."""
    patches: Patches = {}
    for core in (IntervalCore, InjectorCore):

        def handle(self: Any, event: ev.Event, now: int, original: Any = core.handle) -> list[ev.Effect]:
            return [] if isinstance(event, ev.Resend) else original(self, event, now)

        patches[core, "handle"] = handle
    return patches


@mutant
def culprit_forgotten() -> Patches:
    """The culprit of a refused row is run again, and again."""
    return {(RefusedRows, "answer"): lambda self, cause: None}


@mutant
def culprits_key_goes_on() -> Patches:
    """Only the culprit is quarantined, its key's later records run before it."""
    original = Checkpointer.image

    def image(self: Checkpointer, *arguments: Any) -> Any:
        refused = {entry.key for entry in self._quarantine._diverted if entry.error}
        made = original(self, *arguments)
        self._quarantine.keys -= refused
        return made

    return {(Checkpointer, "image"): image}


@mutant
def numbers_from_one() -> Patches:
    """Every owner of an interval numbers its bundles from one: an ack for the last owner acks the next one's."""
    original = Outbox.__init__

    def init(self: Outbox, sender: int, producer: int, routes: Any) -> None:
        original(self, sender, producer, routes)
        self._next_number = 1

    return {(Outbox, "__init__"): init}


@mutant
def restart_steals() -> Patches:
    """An interval with a refused row is taken back from whoever has taken it over meanwhile."""

    async def reacquire(self: MemoryStore, interval: int, sequencer: int) -> int | None:
        return (await self.acquire([interval]))[interval]

    return {(MemoryStore, "reacquire"): reacquire}


# --- what kills the process -------------------------------------------------------------------------------------


@mutant
def nothing_is_marked() -> Patches:
    """What runs after a death is not marked: the same record kills every process."""
    return {(Suspects, "begin"): lambda self, work: None}


@mutant
def marked_too_late() -> Patches:
    """A hook runs while its mark is still on the way."""

    class Early(ev.Marked):
        pass

    def perform(self: Marks, actor: Any, mark: Any) -> None:
        self._submit(actor, mark)
        if isinstance(mark, ev.Mark):
            self._tell(actor, Early())

    original = IntervalCore.handle

    def handle(self: IntervalCore, event: ev.Event, now: int) -> list[ev.Effect]:
        return [] if type(event) is ev.Marked else original(self, event, now)

    return {(Marks, "perform"): perform, (IntervalCore, "handle"): handle}


@mutant
def deaths_not_counted() -> Patches:
    """What was alone when the process died stays a suspect, however often."""
    original = Suspects._suspect

    def suspect(self: Suspects, found: Any) -> None:
        found.alone = False
        original(self, found)

    return {(Suspects, "_suspect"): suspect}


@mutant
def not_alone() -> Patches:
    """Other invocations run beside a suspect."""
    return {(Alone, "keeps"): lambda self, actor, work: False}


@mutant
def condemned_runs() -> Patches:
    """What has killed often enough is run again."""
    return {(Suspects, "answer"): lambda self, entry: None}


def _detect(budget: int, name: str) -> tuple[str, str, tuple[int, str] | None, float]:
    """(name, what was tried, how many and what was noticed, seconds)."""
    began = time.monotonic()
    if name in UNIT_ONLY:
        seen = (1, UNIT_ONLY[name]) if unit_test_notices(name) else None
        return name, "unit test", seen, time.monotonic() - began
    found = seeds_to_detect(name, budget)
    kind = "seeds" if found else "crash points"
    return name, kind, found or crash_points_to_detect(name), time.monotonic() - began


def main() -> int:
    """The table; the exit code says whether every mutant was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=int, default=350, help="seeds per mutant")
    parser.add_argument("--only", default="", help="part of a mutant's name")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    names = [name for name in MUTANTS if arguments.only in name]
    with multiprocessing.Pool() as pool:
        for name, kind, found, took in pool.imap(partial(_detect, arguments.budget), names):
            figures[name] = {"tried": found[0], "kind": kind, "by": found[1].split(":")[0]} if found else {}
            told = f"{found[0]:4} {kind:12} {found[1][:90]}" if found else "NOT NOTICED"
            print(f"{name[:75]:76} {told} ({took:.1f} s)", flush=True)
    ci.publish("mutants", figures, more=bool(arguments.only))
    return 0 if all(figures.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
