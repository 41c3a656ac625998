"""What a core asks of the folded tables.

Lives here: the questions about state, timers, ids and quarantined elements, and the fold.  Each of them ends in one event.
Never here: commits, which go to the log (`commits`).
"""

from __future__ import annotations

from collections.abc import Callable

from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor
from millwheel.host.procedures import Steps
from millwheel.host.requests import FindIds, FoldLog, LoadCells, LoadState, LoadTimerPage, ReadBucket, ReadQuarantine
from millwheel.ports import FoldWrite

TableEffect = (
    ev.Load | ev.LoadSlots | ev.LoadTimers | ev.LookupIds | ev.ReadOutsideIds | ev.Fold | ev.FetchQuarantine
)  # fmt: skip


def steps(actor: Actor, effect: TableEffect, tell: Callable[[Actor, ev.Event], None]) -> Steps:
    """Ask the store what `effect` wants to know, and give the core the answer through `tell`."""
    interval, sequencer = actor.interval, actor.sequencer
    match effect:
        case ev.Load():
            tell(actor, ev.Loaded((yield LoadState(interval, effect))))
        case ev.LoadSlots():
            tell(actor, ev.SlotsLoaded((yield LoadCells(interval, effect))))
        case ev.LoadTimers(kind, _, limit):
            rows = yield LoadTimerPage(interval, sequencer, effect)
            tell(actor, ev.WriteFenced() if rows is None else ev.TimersLoaded(kind, rows, len(rows.keys) >= limit))
        case ev.LookupIds(sender):
            found, outside = yield FindIds(interval, effect)
            tell(actor, ev.IdsFound(sender, found, outside))
        case ev.ReadOutsideIds(subscription, expires):
            tell(actor, ev.OutsideIdsRead(subscription, expires, (yield ReadBucket(interval, effect))))
        case ev.Fold(upto, images, acked, fresh, epoch):
            write = FoldWrite(interval, sequencer, upto, images, acked, fresh, epoch)
            tell(actor, ev.FoldDone(upto) if (yield FoldLog(write)) else ev.WriteFenced())
        case ev.FetchQuarantine(_, limit):
            entries = yield ReadQuarantine(interval, effect)
            tell(actor, ev.QuarantineFetched(entries, len(entries) >= limit))
