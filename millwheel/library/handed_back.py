"""What the shards of a combiner had of open windows when it went: the operator that has lost it takes this over.

Lives here: at which watermark that is done.  Never here: which rows of a store these are, and when a combiner goes
(`millwheel_storage.schema.recalls`).  Invariant: it is added to its window as if the shard had given it before it went
(docs/adr/0048-a-combiner-of-the-library-comes-and-goes.md).
"""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from millwheel.api.context import Context
from millwheel.api.frame import Frame
from millwheel.library.aggregations import Aggregation
from millwheel.library.windows import Aligned, Fixed, Sliding
from millwheel.model import Timer
from millwheel.shape import HANDED_BACK

if TYPE_CHECKING:
    from millwheel.library.aggregate import WindowedAggregate

A = TypeVar("A")
R = TypeVar("R")


class _Then:
    """The context of a hook, at an earlier watermark."""

    def __init__(self, context: Context, watermark: int) -> None:
        self._context, self.watermark = context, watermark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def windows_of_parts(windows: Aligned) -> Aligned:
    """Those of the first of the two steps: a sliding window is gathered in slices."""
    if not isinstance(windows, Sliding):
        return windows
    size, offset = (timedelta(microseconds=us) for us in (windows.slice_us, windows.offset))
    return Fixed(size, offset=offset)


def of_accumulators(whole: Aggregation[Any, A, R]) -> Aggregation[A, A, R]:
    """The aggregation that adds accumulators, for an operator that does not look at their times."""
    found = copy(whole)
    found.__dict__.update(add=whole.merge, of_parts=True)
    return found


def take_back(operator: WindowedAggregate[Any], windows: Aligned, context: Context, timer: Timer) -> None:
    """Add what was handed back to its windows, as the operator of a second step adds what a shard gives.

    The timer is at the watermark that the shards had promised when the combiner went.  It fires before the end of each window
    that was open then.  The watermark may have passed such an end already, because it does not wait for what is handed back
    as it waits for a record.  So all of it is added at that of the timer.
    """
    second, of_parts = operator.of_accumulators(), windows_of_parts(windows)
    frame: Frame = operator.__dict__["_frame"]
    then: Any = _Then(context, timer.timestamp)
    for entry, part in [it for it in operator.accumulators.items() if HANDED_BACK in it[0]]:
        operator.accumulators.delete(entry)
        last = of_parts.end(int(entry.partition(HANDED_BACK)[0])) - 1
        frame.cause = min(
            timer.timestamp, last
        )  # as if it came in a record: what is late for its window gives a pane of then
        second.add(then, last, part)
    frame.cause = timer.timestamp
