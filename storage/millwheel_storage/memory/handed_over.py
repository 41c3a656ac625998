"""What moves between the intervals of a store in memory when a new version is opened, to a combiner or to other key ranges,
and what goes.

Lives here: the order of the steps: nobody writes any more, all logs are folded, and then it moves.  Never here: what becomes
of the rows of a table (`tables`), or which computations this is about (`schema.evolution`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millwheel.shape import PipelineShape
from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.schema.drops import Drop, heir
from millwheel_storage.schema.evolution import Plan
from millwheel_storage.schema.handovers import Handover, watermarks
from millwheel_storage.schema.recuts import Recut, steps


def rearrange(contents: MemoryContents, planned: Plan) -> None:
    """Nobody who knows of the time before writes any more; then move what is to be moved."""
    contents.fence(contents.ownership.keys())
    contents.agreements.disown_all()
    for interval in sorted({place[0] for place in contents.log}):
        contents.fold_log(contents.row(interval))
    if planned.drops:
        _drop(contents, planned.drops, planned.shape)
    for it in planned.recuts:
        _recut(contents, it)
    hand_over(contents, planned.handovers)


def _drop(contents: MemoryContents, drops: Sequence[Drop], shape: PipelineShape) -> None:
    """Delete what is declared to go; what it has sent goes to the first intervals of its receivers."""
    names = {number: name for name, number in contents.subscriptions.items()}
    gone = {contents.subscriptions[name] for it in drops for name in it.subscriptions}
    contents.folded.drop_subscriptions(gone)
    for it in drops:
        if not it.whole:
            contents.folded.drop_elements(it.computation, gone)
            continue
        old = [id_ for _, id_ in contents.by_low(it.computation)]
        for subscription in contents.folded.orphans(old):
            receiver = heir(names[subscription], shape)
            if receiver is not None:
                _, first = contents.by_low(receiver)[0]
                contents.folded.adopt(subscription, old, first)
        contents.folded.drop_computation(it.computation, old)
        for interval in old:
            contents.suspicions.pop(interval, None)
            del contents.intervals[interval], contents.ownership[interval]
        for name in watermarks(it.computation):
            contents.watermark.pop(name, None)
    for it in drops:
        for name in it.subscriptions:
            del contents.subscriptions[name]


def _recut(contents: MemoryContents, wanted: Recut) -> None:
    """Let the intervals of a computation begin at other keys."""
    for step in steps(contents.by_low(wanted.computation), wanted):
        rows = [contents.row(id_) for id_ in step.merged]
        if len(rows) > 1:
            contents.cut(rows, ())
        if step.cut:
            contents.cut([msgspec.structs.replace(rows[0], high=rows[-1].high)], step.cut)


def hand_over(contents: MemoryContents, handovers: Sequence[Handover]) -> None:
    """What was on its way to computations that get combiners goes to these."""
    for handover in handovers:
        computation, parts = handover.computation, handover.combiner.parts
        old, new = ([id_ for _, id_ in contents.by_low(name)] for name in (computation, parts))
        subscription = contents.subscriptions[handover.taken]
        contents.folded.hand_over(subscription, old, new, handover.combiner.prefix)
        contents.folded.requalify(computation, subscription, contents.subscriptions[handover.merged])
        for name, other in zip(watermarks(computation), watermarks(parts), strict=True):
            if name in contents.watermark:
                contents.watermark.setdefault(other, contents.watermark[name])
