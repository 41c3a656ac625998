"""Bugs of weak productions: a sender hears that its record is done, and its productions are nowhere but in memory."""

from __future__ import annotations

from millwheel.core.durability.inflight import Inflight, Uncommitted
from millwheel.core.interval import events as ev
from tests.planted import Patches, mutant


@mutant
def acked_before_downstream() -> Patches:
    """A weak interval without deduplication acks its inputs when its productions are sent."""
    original = Inflight.put

    def put(self: Inflight, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        original(self, entry, effects, now)
        if self._weak and not entry.image.ids:
            effects += [ev.Ack(sender, number) for sender, number in entry.acks]
            entry.acks = []

    return {(Inflight, "put"): put}
