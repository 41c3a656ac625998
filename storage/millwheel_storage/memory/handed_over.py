"""What a computation of a store in memory hands over to the combiner that it gets (ADR 0043).

Lives here: the order of the steps: nobody writes any more, all logs are folded, and the combiner takes what was on its way.
Never here: what becomes of the rows of a table (`tables`), or which computations get a combiner (`schema.handovers`).
"""

from __future__ import annotations

from collections.abc import Sequence

from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.schema.handovers import Handover, watermarks


def hand_over(contents: MemoryContents, handovers: Sequence[Handover]) -> None:
    """What was on its way to computations that get combiners goes to these, and nobody who knows of the time before
    writes any more."""
    contents.fence(contents.ownership.keys())
    contents.agreements.disown_all()
    for interval in sorted({place[0] for place in contents.log}):
        contents.fold_log(contents.row(interval))
    for handover in handovers:
        computation, parts = handover.computation, handover.combiner.parts
        old, new = ([id_ for _, id_ in contents.by_low(name)] for name in (computation, parts))
        subscription = contents.subscriptions[handover.taken]
        contents.folded.hand_over(subscription, old, new, handover.combiner.prefix)
        contents.folded.requalify(computation, subscription, contents.subscriptions[handover.merged])
        for name, other in zip(watermarks(computation), watermarks(parts), strict=True):
            if name in contents.watermark:
                contents.watermark.setdefault(other, contents.watermark[name])
