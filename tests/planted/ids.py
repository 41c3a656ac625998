"""Bugs of ids: what was taken before, as the sender or an outside client counts."""

from __future__ import annotations

from typing import Any

from millwheel.core.ids.dedup import DeliveredIds, Seen
from millwheel.core.ids.ended import EndedProducers
from millwheel.core.ids.outside import OutsideIds
from millwheel.core.interval import events as ev
from millwheel.core.interval.arrivals import Arrivals, Item
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId
from millwheel.model import MAX_TIME
from tests.planted import Patches, mutant, only


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
            return self._accept(bundle, None, (), now)
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

    def take(self: OutsideIds, subscription: SubscriptionId, ids: Any, stored: Any, now: int) -> Any:
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


@mutant
def ended_producer_forgotten() -> Patches:
    """A receiver forgets a producer that has said its last word, and takes its late copies for new."""
    original = DeliveredIds.advance

    def advance(
        self: DeliveredIds, subscription: SubscriptionId, producer: ProducerId, frontier: SequenceNumber
    ) -> None:
        live = (subscription, producer) in self._live
        original(self, subscription, producer, frontier)
        if live:
            self._live.add((subscription, producer))

    return {
        (EndedProducers, "add"): lambda self, subscription, producer: None,
        (DeliveredIds, "advance"): advance,
    }  # fmt: skip


@only("tests/unit/core/interval/test_arrivals.py")
def retired_acked() -> Patches:
    """Records on a retired channel are acked, though nobody may have consumed them."""
    original = Arrivals._accept

    def accept(self: Arrivals, bundle: Any, fresh: Any, stored: Any, now: int) -> list[Item]:
        items = original(self, bundle, fresh, stored, now)
        return items or [Item(None, bundle.sender, bundle.number, MAX_TIME, 0)]

    return {(Arrivals, "_accept"): accept}
