"""Where bundles came from: the worker to which their receipts go.

Lives here: the worker of the newest owner of each sender.  Never here: bundles, or acks.  Invariant: a receipt never goes to
an earlier owner of a sender once anything of a later one has come.
"""

from __future__ import annotations

from millwheel.bundles import Bundle
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME


class Origins:
    """By sending interval.  Only the newest owner counts, because nobody waits for the receipts of an earlier one."""

    def __init__(self) -> None:
        self._of: dict[IntervalId, tuple[int, str]] = {}
        self._ended: set[IntervalId] = set()
        """Partitions whose end has come, and has not been acked yet."""

    def note(self, peer: str, bundle: Bundle) -> None:
        """A bundle has come from `peer`."""
        owner = bundle.number >> 32  # a later owner of an interval has larger numbers
        known = self._of.get(bundle.sender)
        if known is None or owner >= known[0]:
            self._of[bundle.sender] = (owner, peer)
        if not bundle.sequences and bundle.number and bundle.frontier == MAX_TIME:
            self._ended.add(bundle.sender)

    def of(self, sender: IntervalId) -> str | None:
        """The worker to which a receipt for the sender goes; None when it is gone."""
        known = self._of.get(sender)
        if sender in self._ended:  # this is the receipt of its end, which is the last one
            self._ended.discard(sender)
            self._of.pop(sender, None)
        return known[1] if known is not None else None

    def forget(self, peer: str) -> None:
        """A worker is gone for good."""
        self._of = {sender: known for sender, known in self._of.items() if known[1] != peer}
