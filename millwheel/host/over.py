"""When a worker's run is over: all input is consumed, or too much has failed.

Lives here: both questions.  Never here: what happens to a process that ends.  Invariant: a run that ends in order leaves an
empty log behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.wording import counted, is_allowed

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
    if tolerance.quarantined is not None:
        opened = sum(counters.quarantined for _, counters in worker.actors.counted())
        if opened > tolerance.quarantined:
            return f"{counted(opened, 'key')} went into quarantine, {is_allowed(tolerance.quarantined)}"
    if tolerance.rejected is not None:
        rejected = worker.actors.rows().rejected
        if rejected > tolerance.rejected:
            return f"{counted(rejected, 'row is', 'rows are')} rejected, {is_allowed(tolerance.rejected)}"
    return ""


def consumed(worker: WorkerHost) -> bool:
    """Whether all input has come, has run, and is past every watermark, those of sources too."""
    values, graph = worker.values, worker.graph
    return (
        worker.serving
        and worker.redrives.read_all
        and worker.partitions.complete
        and all(values.get(f"source:{name}", MIN_TIME) >= MAX_TIME for name in graph.sources)
        and all(values.get(name, MIN_TIME) >= MAX_TIME for name in graph.computations)
        and not worker.restarts.under_way
        and worker.ownership.served()
        and all(core.quiet() for _, core in worker.actors.partitions())
    )
