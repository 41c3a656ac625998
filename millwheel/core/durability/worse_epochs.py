"""What snapshots are compared with, as seen by one interval (docs/adr/0040-baselines-of-snapshots.md).

Lives here: epochs that halt, and epochs that write nothing.  Never here: epochs as they are (`durable_epochs`).  Both are for
graphs without loops.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millwheel.baselines import Baseline
from millwheel.core.durability.durable_epochs import NO_ROW, DurableEpochs
from millwheel.core.durability.inflight import Uncommitted
from millwheel.core.interval import events as ev
from millwheel.errors import InvariantError
from millwheel.ids import IntervalId


class HaltingEpochs(DurableEpochs):
    """Nothing runs from the cut until its epoch is declared."""

    def has_room(self) -> bool:
        """See `Durability`."""
        return self._written is None and super().has_room()


class ForgottenEpochs(DurableEpochs):
    """Nothing is written, and all state stays in memory, because only what is folded may leave it."""

    def put(self, entry: Uncommitted, effects: list[ev.Effect], now: int) -> None:
        """See `Durability`."""
        self._release(entry, effects)
        self._counters.add(entry.counts)

    def cut(
        self, epoch: int, receivers: Iterable[IntervalId], effects: list[ev.Effect], now: int, *, logs: bool = False
    ) -> None:
        """The barrier only goes on: partitions end with an epoch."""
        if logs:
            raise InvariantError("an interval that forgets is in a loop")
        self._keyed.cut(self.seq)
        effects += map(ev.Send, self._outbox.barriers(epoch, receivers))
        self.epoch = epoch
        effects.append(ev.PartWritten(epoch, NO_ROW))

    def pending(self) -> bool:
        """Nothing is."""
        return False


EPOCHS: Final[dict[Baseline, type[DurableEpochs]]] = {
    Baseline.NONE: DurableEpochs,
    Baseline.HALTS: HaltingEpochs,
    Baseline.FORGETS: ForgottenEpochs,
}
