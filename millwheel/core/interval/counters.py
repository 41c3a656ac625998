"""What an interval counts.  Lives here: the numbers and their sum.  Never here: who counts, or who shows them."""

from __future__ import annotations

from msgspec import Struct


class Counters(Struct):
    """What an interval has made durable since the run began.  Arrivals are counted at once."""

    records: int = 0
    duplicates: int = 0
    repeated: int = 0
    """Records with an outside id that was taken before."""
    late: int = 0
    backdated: int = 0
    timers: int = 0
    checkpoints: int = 0
    quarantined: int = 0
    redriven: int = 0
    expired: int = 0
    lookups: int = 0
    """Bundles for which the store was asked whether their ids are new."""
    queued: int = 0
    """Bundles that waited behind such a one."""

    def clear(self) -> None:
        """Begin again at 0, in every place that has this object."""
        for name in self.__struct_fields__:
            setattr(self, name, 0)

    def add(self, other: Counters) -> None:
        """Count what `other` has counted."""
        # One by one: this is done for every checkpoint, and a loop over names takes five times as long.
        self.records += other.records
        self.duplicates += other.duplicates
        self.repeated += other.repeated
        self.late += other.late
        self.backdated += other.backdated
        self.timers += other.timers
        self.checkpoints += other.checkpoints
        self.quarantined += other.quarantined
        self.redriven += other.redriven
        self.expired += other.expired
        self.lookups += other.lookups
        self.queued += other.queued
