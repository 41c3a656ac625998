"""Producers that will never send again, as runs of their numbers.

Lives here: membership alone.  A producer's number is a sequencer, and a run of the program gives out dense ones, so
producers that end one after the other are one run; the worst case is two numbers, 16 bytes, for each of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId
from millwheel.model import MAX_TIME

ENDED: Final = SequenceNumber(MAX_TIME)
"""The frontier of a producer that will never send again."""


class EndedProducers:
    """(subscription, producer) pairs; nothing is ever taken out."""

    def __init__(self) -> None:
        self._bounds: dict[SubscriptionId, array[int]] = {}
        """By subscription: where a run begins, where it has ended, where the next begins, and so on, ascending."""

    def add(self, subscription: SubscriptionId, producer: ProducerId) -> None:
        """The producer will never send on this subscription again."""
        bounds = self._bounds.setdefault(subscription, array("q"))
        at = bisect_right(bounds, producer)
        if at % 2:
            return
        begins, ends = at < len(bounds) and bounds[at] == producer + 1, at > 0 and bounds[at - 1] == producer
        if begins and ends:
            del bounds[at - 1 : at + 1]
        elif begins:
            bounds[at] = producer
        elif ends:
            bounds[at - 1] = producer + 1
        else:
            bounds[at:at] = array("q", (producer, producer + 1))

    def __contains__(self, channel: tuple[SubscriptionId, ProducerId]) -> bool:
        bounds = self._bounds.get(channel[0])
        return bounds is not None and bisect_right(bounds, channel[1]) % 2 == 1

    def runs(self) -> int:
        """Runs in memory."""
        return sum(len(bounds) // 2 for bounds in self._bounds.values())
