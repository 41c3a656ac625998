"""Bugs of a receiver: what was delivered before, and in which order."""

from __future__ import annotations

from typing import Any

from millwheel.core.ids.dedup import DeliveredIds
from millwheel.core.interval import events as ev
from millwheel.core.interval.inbox import Inbox
from millwheel.core.interval.machine import IntervalCore
from millwheel.ids import ProducerId, SubscriptionId
from tests.planted import Patches, mutant
from tests.planted.durability import newest


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
        entry = newest(self)
        effects += [ev.Ack(sender, number) for sender, number in entry.acks]
        entry.acks = []

    return {(IntervalCore, "_invoked"): invoked}


@mutant
def ids_collected_early() -> Patches:
    """Delivered ids collected before the sender's frontier passes them."""
    original = DeliveredIds.add

    def add(self: DeliveredIds, subscription: SubscriptionId, producer: ProducerId, sequences: Any) -> None:
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
        bundle = self[0]
        item = original(self, records, size_bytes)
        if item is not bundle:
            item.number, self[0].number = self[0].number, 0
        return item

    return {(Inbox, "_take_first"): take}


@mutant
def dead_producers_kept() -> Patches:
    """Ids of producers that will never send again are kept for ever."""
    original = IntervalCore.start
    return {(IntervalCore, "start"): lambda self, now, live=None, *told: original(self, now, None, *told)}
