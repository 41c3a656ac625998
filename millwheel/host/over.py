"""When a worker's run is over: all input is consumed, or too much has failed.

Lives here: both questions.  Never here: what happens to a process that ends.  Invariant: a run that ends in order leaves an
empty log behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millwheel.model import MAX_TIME, MIN_TIME

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost


class Tolerance(msgspec.Struct, frozen=True):
    """How many keys a run may put into quarantine, and how many rows its sources may reject, before it stops."""

    quarantined: int | None = None
    rejected: int | None = None

    def options(self) -> list[str]:
        """As it is said to another process.

        >>> Tolerance(rejected=3).options()
        ['--allow-rejected', '3']
        """
        given = (("--allow-quarantine", self.quarantined), ("--allow-rejected", self.rejected))
        return [word for name, count in given if count is not None for word in (name, f"{count}")]


def too_much(worker: WorkerHost, tolerance: Tolerance) -> str:
    """Why the run stops before its end; empty while it does not."""
    rejected = worker.partitions.rejected
    if tolerance.quarantined is not None:
        opened = sum(core.counters.quarantined for _, core in worker.actors.intervals())
        if opened > tolerance.quarantined:
            return f"{opened:,} keys went into quarantine, {tolerance.quarantined:,} are allowed"
    if tolerance.rejected is not None and rejected > tolerance.rejected:
        return f"{rejected:,} rows are rejected, {tolerance.rejected:,} are allowed"
    return ""


def consumed(worker: WorkerHost) -> bool:
    """Whether all input has come, has run, and is past every watermark."""
    return (
        worker.serving
        and worker.redrives.read_all
        and worker.partitions.complete
        and all(worker.values.get(name, MIN_TIME) >= MAX_TIME for name in worker.graph.computations)
        and not worker.restarts.under_way
        and worker.ownership.served()
        and all(core.quiet() for _, core in worker.actors.partitions())
    )
