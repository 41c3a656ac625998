"""A worker under observation: each answer that reaches a core is compared with what that core has asked for (I25).

Lives here: the questions of each core that are not answered yet.  Never here: what the answers say (`truth`).  Invariants:

* a core is told of a commit, a fold, a load or the end of its hooks only if it has asked for just that, and once;
* a core is told of refused rows only of a commit that is on its way, or of a part of an epoch that it has written;
* a core is told that it is fenced only while a write of its own is on its way.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final
from weakref import WeakKeyDictionary

from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.host.actors import Actor
from millwheel.host.worker import WorkerHost
from millwheel.testing.checks.truth import Truth

Question = tuple[Any, ...]

WRITES: Final = ("commit", "fold", "mark", "page", "position", "unmark")
"""What ends with an answer, or with a fence."""


class WatchedWorker(WorkerHost):
    """A worker that looks at what it tells its cores; `truth` is set before it starts."""

    truth: Truth

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._open: WeakKeyDictionary[IntervalCore | InjectorCore, Counter[Question]] = WeakKeyDictionary()
        """By core: how often it has asked for what it was not told yet."""

    def perform(self, actor: Actor, effects: list[ev.Effect]) -> None:
        """See `WorkerHost`."""
        for effect in effects:
            question = _question(effect)
            if question is not None:
                self._unanswered(actor)[question] += 1
        super().perform(actor, effects)

    def _unanswered(self, actor: Actor) -> Counter[Question]:
        asked = self._open.get(actor.core)
        if asked is None:
            asked = self._open[actor.core] = Counter()
        return asked

    def handle_core(self, actor: Actor, event: ev.Event) -> None:
        """See `WorkerHost`."""
        self._check(actor, event)
        super().handle_core(actor, event)

    def _check(self, actor: Actor, event: ev.Event) -> None:
        asked = self._unanswered(actor)
        answered = _answered(event)
        match event:
            case ev.Refused(seq):
                fits = asked["commit", seq] > 0 or asked["part", seq] > 0
            case ev.WriteFenced():
                fits = any(asked[it] for it in asked if it[0] in WRITES)
            case _:
                fits = answered is None or asked[answered] > 0
        if not fits:
            self.truth.fail(
                f"I25: owner {actor.sequencer} of interval {actor.interval} is told what it has not asked for: {event!r:.80}"
            )
        if answered is not None:
            asked[answered] -= 1


def _question(effect: ev.Effect) -> Question | None:
    match effect:
        case ev.Load():
            return ("load",)
        case ev.LoadSlots():
            return ("slots",)
        case ev.LoadTimers(kind):
            return ("page", kind)
        case ev.LookupIds(sender):
            return ("ids", sender)
        case ev.ReadOutsideIds(subscription, expires):
            return ("bucket", subscription, expires)
        case ev.FetchQuarantine():
            return ("quarantine",)
        case ev.Invoke():
            return ("invoke",)
        case ev.Mark():
            return ("mark",)
        case ev.Unmark():
            return ("unmark",)
        case ev.Commit(write):
            return ("commit", write.seq)
        case ev.PartWritten(_, sinks):
            return ("part", sinks)
        case ev.Fold(upto):
            return ("fold", upto)
        case ev.Advance(position) | ev.PositionNoted(position):
            return ("position", position)
        case _:
            return None


def _answered(event: ev.Event) -> Question | None:
    match event:
        case ev.Loaded():
            return ("load",)
        case ev.SlotsLoaded():
            return ("slots",)
        case ev.TimersLoaded(kind):
            return ("page", kind)
        case ev.IdsFound(sender):
            return ("ids", sender)
        case ev.OutsideIdsRead(subscription, expires):
            return ("bucket", subscription, expires)
        case ev.QuarantineFetched():
            return ("quarantine",)
        case ev.Invoked():
            return ("invoke",)
        case ev.Marked():
            return ("mark",)
        case ev.CommitDone(seq):
            return ("commit", seq)
        case ev.FoldDone(upto):
            return ("fold", upto)
        case ev.Advanced(position):
            return ("position", position)
        case _:
            return None
