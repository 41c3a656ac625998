"""How the core of an interval is made from what is stored.

Lives here: what a core begins with, and whether productions of an earlier version of the pipeline are left in it.  Never
here: which intervals a worker gets (`owning`), or what the core does then.  Invariants:

* what cores that went back have left is given to the next core of the same interval, and to no other one;
* no core starts before this worker has heard of the watermarks that earlier owners may have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from millwheel import limits
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.messages import IntervalSettled, Unsettled
from millwheel.host.procedures import Steps
from millwheel.host.requests import BehindOthers, ReadWatermarks, Recover
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME
from millwheel.ports import IntervalRow

if TYPE_CHECKING:
    from millwheel.host.worker import WorkerHost


class Adoption:
    """Of one worker.  `first_records` bounds the first invocation of a core, because hooks may be slow; None does not."""

    def __init__(
        self, worker: WorkerHost, first_records: int | None, inherited: Mapping[IntervalId, ev.Inherited]
    ) -> None:
        self._worker = worker
        self._first_records = first_records
        self.left = dict(inherited)
        """What the cores of a worker that went back have left to the first ones of this one.

        What is of intervals that this one does not get stays here: it may get them after the next going back.
        """
        self._behind_since: dict[IntervalId, int] = {}
        """When an interval was first found to be behind others, us."""
        self._unsettled: set[IntervalId] = set()
        """Intervals with productions of an earlier version of the pipeline, on streams that they no longer list."""

    def adopt(
        self, row: IntervalRow, sequencer: Sequencer, inherited: ev.Inherited | None = None
    ) -> Generator[he.Wish, Any, Actor | None]:
        """Recover one interval; its core is not started yet.  None when another one owns it."""
        worker, interval, owner = self._worker, row.id, row.computation
        inherited = inherited or self.left.pop(interval, None)
        recovered = yield Recover(interval, sequencer)
        if recovered is None:
            return None
        config = worker.routes.config(row, sequencer)
        if config.loop:  # nobody answers for an earlier owner any more: the floor stays until this one has answered
            watermarks = yield ReadWatermarks()
            promised = watermarks.get(config.loop, MIN_TIME)
            config = msgspec.structs.replace(worker.routes.config(row, sequencer), promised=promised)
        config = msgspec.structs.replace(
            config, label=worker.label(), baseline=worker.graph.baseline, gathers=worker.ownership.gathers
        )
        core = IntervalCore(config, recovered, inherited)
        if self._first_records is not None:
            core.begin_slowly(self._first_records)
        for note in core.suspects.notes() if inherited is None else ():
            worker.note(f"{owner}: {note}")
        actor = Actor(interval=interval, sequencer=config.sequencer, owner=owner, core=core)
        self.settle(actor, worker.routes.unsettled(config, recovered))
        worker.routes.expect_of(config, recovered)
        return actor

    def hears(self, computations: Collection[str], still: Callable[[], bool]) -> Steps:
        """Wait until a controller has told what bounds the inputs of the computations, as it is stored now.

        Call this when their intervals are this worker's.  A watermark is stored before it is told, so hooks of earlier
        owners have seen no later one.  A window that has ended would begin again under an earlier one.  It ends as well when
        `still` says no.
        """
        stored = yield ReadWatermarks()
        bounds = self._worker.routes.bounds()
        names = {name for computation in computations for name in bounds.get(computation, ())}
        needed = {name: value for name, value in stored.items() if name in names}
        while still() and not self._worker.heard.covers(needed):
            yield he.Pause(limits.HEARD_LOOK_US)

    def behind(self, places: Mapping[IntervalId, str]) -> Generator[he.Wish, Any, set[IntervalId]]:
        """Those that must not start yet (I17): they were cut off, and would overtake what was sent of their keys before.

        Not in loops, where a receiver may wait for them to take what it must take itself.  Not under snapshots either: acks
        are durable with an epoch, which needs all intervals.  `places` has the computation of each.
        """
        worker = self._worker
        asked = [interval for interval, name in places.items() if worker.graph.loop_of(name) is None]
        if worker.epochs.enabled or not asked:
            return set()
        found: set[IntervalId] = yield BehindOthers(tuple(asked))
        for interval in sorted(found):
            if worker.now - self._behind_since.setdefault(interval, worker.now) >= limits.BEHIND_NOTE_US:
                self._behind_since[interval] = MAX_TIME  # it is said once
                worker.note(
                    f"{places[interval]}: interval {interval}, which other split keys cut off, starts when receivers have "
                    "taken what was sent for its keys before; they are behind, or not served"
                )
        return found

    def follows(self, interval: IntervalId, computation: str, still: Callable[[], bool]) -> Steps:
        """Wait until the interval may start; it ends as well when `still` says no."""
        while still() and (yield from self.behind({interval: computation})):
            yield he.Pause(limits.BEHIND_LOOK_US)

    def settle(self, actor: Actor, receivers: set[str]) -> None:
        """Productions of an earlier version of the pipeline are left for these computations; for none, they are not."""
        if receivers:
            self._unsettled.add(actor.interval)
            self._worker.inform(Unsettled(actor.owner, actor.interval, tuple(sorted(receivers))))
        elif actor.interval in self._unsettled:
            self._unsettled.discard(actor.interval)
            self._worker.inform(IntervalSettled(actor.interval))

    def say_settled(self, actor: Actor) -> None:
        """An earlier owner may have said that productions of an earlier version of the pipeline are left."""
        if actor.interval not in self._unsettled:
            self._worker.inform(IntervalSettled(actor.interval))

    def drop(self, interval: IntervalId) -> None:
        """The interval is not this worker's any more."""
        self._unsettled.discard(interval)
