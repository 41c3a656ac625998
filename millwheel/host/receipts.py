"""Receipts for other workers that wait for a moment, so that several of them are one frame.

Lives here: the receipts that wait, by worker, and when they are told.  Never here: what is durable, or where a sender is
(`origins`).  A sender that waits for a receipt goes on with other work meanwhile, and what it has sent is in its memory.
Each frame costs both ends as much as a hook.  Invariants:

* a receipt waits `rest_us` at most, and never behind `together` others;
* the receipts of a worker are told in the order in which bundles became durable.
"""

from __future__ import annotations

from collections.abc import Callable

from millwheel.host.messages import Receipt
from millwheel.ids import IntervalId


class Receipts:
    """Those that wait.  Give `due` a look after each turn, and at `next`."""

    def __init__(self, rest_us: int, together: int) -> None:
        self._rest_us = rest_us
        self._together = together
        self._waiting: dict[str, list[Receipt]] = {}
        self._at: dict[str, int] = {}
        """By worker: when the first that waits is told, wall time, us."""

    def add(self, peer: str, receipt: Receipt, now: int) -> None:
        """One more for `peer`."""
        waiting = self._waiting.get(peer)
        if waiting is None:
            self._waiting[peer] = [receipt]
            self._at[peer] = now + self._rest_us
        else:
            waiting.append(receipt)

    def due(self, now: int, say: Callable[[str, Receipt], None]) -> None:
        """`say` what is told at wall time `now`, us."""
        for peer, waiting in [*self._waiting.items()]:
            if len(waiting) >= self._together or now >= self._at[peer]:
                self.tell(peer, say)

    def tell(self, peer: str, say: Callable[[str, Receipt], None]) -> None:
        """`say` all that waits for `peer`."""
        for receipt in self._waiting.pop(peer, ()):
            say(peer, receipt)

    def part(self, peer: str) -> None:
        """A worker is gone for good."""
        self._waiting.pop(peer, None)

    def drop(self, interval: IntervalId, say: Callable[[str, Receipt], None]) -> None:
        """Another worker has an interval: `say` what waits of it.  It is durable, so its next owner has it too."""
        for peer, waiting in [*self._waiting.items()]:
            left = []
            for receipt in waiting:
                if receipt.interval == interval:
                    say(peer, receipt)
                else:
                    left.append(receipt)
            if left:
                self._waiting[peer] = left
            else:
                del self._waiting[peer]

    def next(self) -> int | None:
        """When the first of those that wait is told at the latest, wall time, us; None when none waits."""
        return min((self._at[peer] for peer in self._waiting), default=None)
