"""What moves between the intervals of a store in memory when a new version is opened, to a combiner or to other key ranges,
and what goes.

Lives here: the order of the steps: nobody writes any more, all logs are folded, and then it moves.  Never here: what becomes
of the rows of a table (`tables`), or which computations this is about (`schema.evolution`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import msgspec

from millwheel.bundles import OF_TIMER
from millwheel.ids import ProducerId
from millwheel.shape import PipelineShape
from millwheel_storage.memory.contents import MemoryContents
from millwheel_storage.memory.regrouped import begin_promised, recall
from millwheel_storage.schema.drops import Drop, heir
from millwheel_storage.schema.evolution import Plan
from millwheel_storage.schema.handbacks import Handback, refusal
from millwheel_storage.schema.handovers import Handover, watermarks
from millwheel_storage.schema.recuts import Recut, steps


def rearrange(contents: MemoryContents, planned: Plan) -> None:
    """Nobody who knows of the time before writes any more; then move what is to be moved."""
    contents.fence(contents.ownership.keys())
    contents.agreements.disown_all()
    fold_all(contents)
    hand_back(contents, planned.handbacks)
    for back in planned.recalls:
        recall(contents, back)
    if planned.drops:
        _drop(contents, planned.drops, planned.shape)
    for it in planned.recuts:
        _recut(contents, it)
    hand_over(contents, planned.handovers)


def fold_all(contents: MemoryContents) -> None:
    """Bring the tables to the end of what counts."""
    for interval in sorted({place[0] for place in contents.log}):
        contents.fold_log(contents.row(interval))


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
        computation, combiner = handover.computation, handover.combiner
        old, new = ([id_ for _, id_ in contents.by_low(name)] for name in (computation, combiner.parts))
        subscription = contents.subscriptions[handover.taken]
        contents.folded.hand_over(subscription, old, new, combiner)
        if combiner.suffix:
            begin_promised(contents, computation, combiner, [it for it in handovers if it.computation == computation])
            continue
        contents.folded.requalify(computation, subscription, contents.subscriptions[handover.merged])
        for name, other in zip(watermarks(computation), watermarks(combiner.parts), strict=True):
            if name in contents.watermark:
                contents.watermark.setdefault(other, contents.watermark[name])


def hand_back(contents: MemoryContents, handbacks: Sequence[Handback]) -> None:
    """What combiners have goes back to their computations, which have none any more."""
    for it in handbacks:
        old, new = ([id_ for _, id_ in contents.by_low(name)] for name in (it.parts, it.computation))
        subscription, merged = contents.subscriptions[it.taken], contents.subscriptions[it.merged]
        contents.folded.hand_back(subscription, merged, old, new)
        contents.folded.give_gathered(it.parts, new[0], (subscription, ProducerId(contents.next_sequencer())))
        contents.folded.drop_elements(it.parts, {OF_TIMER})
        contents.folded.requalify(it.computation, merged, subscription)
        contents.folded.move_elements(it.parts, it.computation)


def refusals(contents: MemoryContents, handbacks: Sequence[Handback]) -> Iterator[str]:
    """Why combiners cannot go now, found out without a change; subscriptions have their old names."""
    trial = copy.deepcopy(contents)
    fold_all(trial)
    for it in handbacks:
        both = (trial.folded.producers(trial.subscriptions[name]) for name in (it.stored, it.merged))
        if set.intersection(*both):
            yield refusal(it)
