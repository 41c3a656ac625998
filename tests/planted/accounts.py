"""Bugs that only a second account of keys, frontiers and tables sees: what hooks called for, and who knows what."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from millwheel.api.context import Context
from millwheel.bundles import Acked, Checkpoint, TimerWrites
from millwheel.core.channel.outbox import Outbox
from millwheel.core.durability import inflight
from millwheel.core.durability.inflight import Inflight
from millwheel.core.faults.quarantine import Quarantine, quarantine_hold
from millwheel.core.ids.dedup import DeliveredIds
from millwheel.core.interval import events as ev
from millwheel.core.keys.expiry import Expiry
from millwheel.core.keys.keyed_state import KeyedState
from millwheel.core.keys.timers import TimerQueue
from millwheel.core.source.injector import InjectorCore
from millwheel.ids import Seq
from millwheel.model import MIN_TIME
from millwheel_storage import fold
from tests.planted import Patches, mutant, only

# --- who knows that it is durable -----------------------------------------------------------------------------------


@mutant
def acks_past_the_prefix() -> Patches:
    """An ack leaves when its checkpoint is known to be durable, and one before it is not."""
    original = Inflight.committed

    def committed(self: Inflight, seq: Seq, effects: list[ev.Effect]) -> None:
        for entry in self._entries:
            if entry.seq == seq:
                effects += [ev.Ack(sender, number) for sender, number in entry.acks]
                entry.acks = []
        original(self, seq, effects)

    return {(Inflight, "committed"): committed}


@mutant
def frontier_when_handed_over() -> Patches:
    """A frontier passes what is acked when its ack is handed to the store, before that is durable."""
    original = Outbox.record_acks

    def record_acks(self: Outbox, seq: Seq) -> list[Acked]:
        found = original(self, seq)
        for bundle in self._recording.get(seq, ()):
            self._live[bundle.subscription, bundle.producer].pop(bundle.number, None)
            self.frontier_moved = True
        return found

    return {(Outbox, "record_acks"): record_acks, (Outbox, "recorded"): lambda self, seq: self._recording.pop(seq, ())}


@mutant
def frontier_of_the_acked_reads() -> Patches:
    """The frontier of a source is what its receivers have acked, before that position is durable."""
    original = InjectorCore._pop_acked

    def pop_acked(self: InjectorCore) -> None:
        original(self)
        self._durable = max(self._durable, self._acked_position[0] if self._acked_position else 0)

    return {(InjectorCore, "_pop_acked"): pop_acked}


# --- timers -----------------------------------------------------------------------------------------------------------


@mutant
def cancelled_stays_in_the_store() -> Patches:
    """A cancelled timer stays in the store."""

    def apply(self: KeyedState, work: Any, outcome: Any, writes: TimerWrites) -> None:
        original(self, work, outcome, TimerWrites())
        for timer in work.timers:
            writes.add(timer.key, timer.tag, timer.kind, None)
        for key, changes in outcome.timers.items():
            for (kind, tag), at in changes.items():
                if at is not None:
                    writes.add(key, tag, kind, at)

    original = KeyedState._apply_timers
    return {(KeyedState, "_apply_timers"): apply}


@mutant
def cancel_takes_back_its_own() -> Patches:
    """A hook that sets a timer and cancels it leaves the one that was set before."""

    def cancel(self: Context, tag: str, kind: Any = "watermark") -> None:
        timers = self._live("cancel_timer").timers
        mine = (kind, tag) in timers
        original(self, tag, kind)
        if mine:
            del timers[kind, tag]

    original = Context.cancel_timer
    return {(Context, "cancel_timer"): cancel}


@mutant
def cancelled_comes_back_awake() -> Patches:
    """A cancelled timer is pending again when its key leaves quarantine."""
    return {(TimerQueue, "remove"): lambda self, key, kind, tag: self._heaps[kind].remove((key, tag))}


@mutant
def timers_are_nothing() -> Patches:
    """A weak checkpoint with nothing but a timer in it is not written."""
    original = inflight.is_empty

    def empty(image: Checkpoint) -> bool:
        return original(msgspec.structs.replace(image, timers=TimerWrites()))

    return {(inflight, "is_empty"): empty}


# --- tables -----------------------------------------------------------------------------------------------------------


@only("tests/property/test_fold_law.py")
def acks_before_productions() -> Patches:
    """A fold merges the acks of a checkpoint before its productions."""
    original = fold.merge

    def merge(folded: Any, image: Checkpoint) -> None:
        for acked in image.acked:
            fold._merge_acked(folded, acked)
        original(folded, msgspec.structs.replace(image, acked=[]))

    return {(fold, "merge"): merge}


@only("tests/property/test_fold_law.py")
def timers_of_the_forgotten() -> Patches:
    """A key that is forgotten keeps the timers that the same fold had for it."""
    original = fold._forget

    def forget(folded: Any, key: str) -> None:
        kept = folded.timers.get(key)
        original(folded, key)
        if kept is not None:
            folded.timers[key] = kept

    return {(fold, "_forget"): forget}


@only("tests/property/test_fold_law.py")
def released_after_the_next_failure() -> Patches:
    """A release is merged behind the key's next failure."""
    original = fold._merge_quarantine

    def merge(folded: Any, image: Checkpoint) -> None:
        original(folded, msgspec.structs.replace(image, released=[]))
        for key in image.released:
            folded.quarantine[key] = fold.Fifo(cleared=True)

    return {(fold, "_merge_quarantine"): merge}


# --- expiry -----------------------------------------------------------------------------------------------------------


@mutant
def writes_do_not_extend() -> Patches:
    """A write does not extend the life of its key."""
    original = Expiry._extend

    def extend(self: Expiry, key: str, *arguments: Any) -> None:
        if self._keyed.timers.expiry(key) is None:
            original(self, key, *arguments)

    return {(Expiry, "_extend"): extend}


@mutant
def expires_with_a_hold() -> Patches:
    """A key expires though it has a hold."""
    return {(Expiry, "keeps"): lambda self, key: key in self._quarantine.keys or self._keyed.timers.pending(key)}


@mutant
def expires_in_quarantine() -> Patches:
    """A key expires though it is in quarantine."""
    return {(Expiry, "keeps"): lambda self, key: key in self._keyed.holds.all or self._keyed.timers.pending(key)}


@mutant
def lives_from_the_record() -> Patches:
    """The life of a key is counted from its record, also when the watermark is past that."""
    original = Expiry.renew

    def renew(self: Expiry, state: Any, work: Any, watermark: int, writes: TimerWrites) -> None:
        original(self, state, work, MIN_TIME if work.parts else watermark, writes)

    return {(Expiry, "renew"): renew}


@mutant
def the_end_is_time() -> Patches:
    """The end of the input expires what is left."""
    return {(Expiry, "until"): staticmethod(lambda watermark: watermark)}


@mutant
def only_the_first_cell() -> Patches:
    """A write to any but the first cell of a checkpoint does not extend the life of its key."""
    original = Expiry.renew

    def renew(self: Expiry, state: Any, *arguments: Any) -> None:
        original(self, msgspec.structs.replace(state, cells=state.cells[:1]), *arguments)

    return {(Expiry, "renew"): renew}


@only("tests/unit/core/keys/test_expiry.py")
def kept_once() -> Patches:
    """A key that is kept once, because it has a timer or a hold, is never looked at again."""
    return {(Expiry, "drop"): lambda self, due, seq, watermark, writes: _dropped(self, due, seq)}


def _dropped(expiry: Expiry, due: Any, seq: Seq) -> list[str]:
    expired = [key for key in due if not expiry.keeps(key)]
    expiry._keyed.forget(expired, seq)
    return expired


@only("tests/unit/core/keys/test_expiry.py")
def kept_and_clean() -> Patches:
    """A key that is kept may leave memory before its next expiry is in the tables."""
    return {(KeyedState, "keep"): lambda self, key, seq: None}


# --- culprits and quarantine ------------------------------------------------------------------------------------------


@only("tests/unit/core/durability/test_inflight.py")
def culprit_settled_when_handed_over() -> Patches:
    """A culprit is forgotten when its quarantine is handed over, before that is durable."""
    original = Inflight._hand_over

    def hand_over(self: Inflight, entry: Any, effects: list[ev.Effect]) -> None:
        original(self, entry, effects)
        self._refused.settled(entry.image.quarantined)

    return {(Inflight, "_hand_over"): hand_over}


@only("tests/unit/core/durability/test_checkpoint.py")
def put_before_it_is_released() -> Patches:
    """A key that is released and fails again in one checkpoint loses the hold of its new quarantine."""
    original = Quarantine.take_released

    def take_released(self: Quarantine, seq: Seq, holds: Any) -> list[str]:
        self._late = [*self._released]  # type: ignore[attr-defined]
        return original(self, seq, holds)

    def put(self: Quarantine, entries: Any, seq: Seq, work: Any, holds: Any) -> None:
        original_put(self, entries, seq, work, holds)
        for key in self._late:  # type: ignore[attr-defined]
            self._keyed.release(quarantine_hold(key), holds)

    original_put = Quarantine.put
    return {(Quarantine, "take_released"): take_released, (Quarantine, "put"): put}


@only("tests/unit/core/durability/test_inflight.py")
def releases_are_nothing() -> Patches:
    """A checkpoint with nothing in it but the release of a key is not written."""
    original = inflight.is_empty
    return {(inflight, "is_empty"): lambda image: original(msgspec.structs.replace(image, released=[]))}


@only("tests/unit/core/durability/test_inflight.py")
def forgotten_is_nothing() -> Patches:
    """A checkpoint with nothing in it but keys that expire is not written."""
    original = inflight.is_empty
    return {(inflight, "is_empty"): lambda image: original(msgspec.structs.replace(image, forgotten=[]))}


# --- producers that are no more -------------------------------------------------------------------------------------------


@mutant
def retired_are_accepted() -> Patches:
    """What comes in the name of a retired producer is taken for new."""
    return {(DeliveredIds, "_is_gone"): lambda self, channel: channel in self._ended}


@mutant
def all_are_live() -> Patches:
    """No producer of an earlier owner is retired: its frontier comes back to the store, for good."""
    original = DeliveredIds.__init__

    def init(self: DeliveredIds, live: Collection[Any] = (), horizon: int = 0) -> None:
        original(self, live, 0)

    return {(DeliveredIds, "__init__"): init}
