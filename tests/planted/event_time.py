"""Bugs of event time: watermarks, sources that are late or silent, timers and holds."""

from __future__ import annotations

from typing import Any

from millwheel.bundles import decode_checkpoint, encode_checkpoint
from millwheel.core.authority import Authority
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability.checkpoint import Checkpointer
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.interval.watermark import LowWatermark
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.core.keys.timers import TimerQueue
from millwheel.core.source.feed import Feed
from millwheel.host.partitions import Partitions
from millwheel.host.skews import Skews
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME
from millwheel.runtime.shell import Shell
from millwheel.search import sign
from millwheel_storage.memory import MemoryStore
from tests.planted import Patches, mutant, only


@mutant
def forgets_timers() -> Patches:
    """Timers are forgotten at recovery."""
    return {(TimerQueue, "restore"): lambda self, timers, partial: None}


@mutant
def firing_not_recorded() -> Patches:
    """A checkpoint does not remove the timers that it fired."""
    original = KeyedState._apply_timers

    def apply(self: KeyedState, work: Any, *arguments: Any) -> Any:
        fired, work.timers = work.timers, []
        found = original(self, work, *arguments)
        work.timers = fired
        return found

    return {(KeyedState, "_apply_timers"): apply}


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

    async def load_timers(self: MemoryStore, interval: IntervalId, sequencer: Sequencer, *arguments: Any) -> Any:
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

    def opened(self: Feed, interval: IntervalId, now: int) -> bool:
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


@only("tests/unit/core/source/test_feed.py")
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


# --- skew control -------------------------------------------------------------------------------------------------

_SKEW = "tests/sim/test_skew.py"


@only(f"{_SKEW}::test_no_read_begins_beyond_the_bound_and_all_is_read_in_the_end")
def never_too_far_ahead() -> Patches:
    """A source with a bound on how far it may run ahead never waits."""
    return {(Skews, "room"): lambda self, actor, limit, now: limit}


@only(f"{_SKEW}::test_no_read_begins_beyond_the_bound_and_all_is_read_in_the_end")
def ahead_of_itself() -> Patches:
    """How far a source is ahead is judged by its own watermark."""
    original = Skews.room

    def room(self: Skews, actor: Any, limit: int, now: int) -> int:
        bound = self._bounds.get(actor.owner)
        if bound is not None:
            self._bounds[actor.owner] = (bound[0], {actor.owner})
        return original(self, actor, limit, now)

    return {(Skews, "room"): room}


@only(f"{_SKEW}::test_a_hold_that_is_longer_than_the_bound_does_not_stop_the_source_for_good")
def waits_for_itself() -> Patches:
    """A source waits for a watermark that waits for its own rows."""
    return {(Skews, "_goes_on"): lambda self, actor, mark, now: False}


@only(f"{_SKEW}::test_sources_that_wait_for_each_other_both_come_to_their_end")
def not_looked_at_again() -> Patches:
    """What was too far ahead is not looked at again when a watermark rises."""
    return {(Partitions, "watermarks_rose"): lambda self: None}


@only("tests/unit/host/test_skews.py")
def impatient() -> Patches:
    """A source goes on beyond its bound although another source keeps the watermark."""
    original = Skews._goes_on

    def goes_on(self: Skews, actor: Any, mark: int, now: int) -> bool:
        self._waited_for[actor.owner] = {actor.owner}
        return original(self, actor, mark, now)

    return {(Skews, "_goes_on"): goes_on}


# --- percentiles ----------------------------------------------------------------------------------------------------


@only("tests/unit/core/test_authority.py")
def share_at_its_end() -> Patches:
    """A source of which a share counts is at its end before its last partition is."""

    def percentile(self: Authority, name: str, millionths: int) -> int:
        found = sorted(self.intervals(name).values())
        return found[len(found) * (1_000_000 - millionths) // 1_000_000] if found else 0

    return {(Authority, "_percentile"): percentile}


@only("tests/unit/core/test_authority.py")
def share_beyond_the_bound() -> Patches:
    """Partitions to come do not hold a source of which a share counts."""
    original = Authority._computed

    def computed(self: Authority, name: str) -> int:
        share = self._shares.get(name)
        return original(self, name) if share is None else self._percentile(name, share)

    return {(Authority, "_computed"): computed}


# --- searches ---------------------------------------------------------------------------------------------------------


@only("tests/unit/runtime/test_searches.py")
def two_searches_at_once() -> Patches:
    """A source is searched again while its last search is in a thread."""

    async def at_once(self: Shell, host: Any, token: int, wish: Any) -> None:
        self._found(host, token, wish.source, self._user.discover(wish))

    return {(Shell, "_discover_later"): at_once}
