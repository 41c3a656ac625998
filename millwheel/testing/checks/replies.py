"""A worker under observation: each answer that reaches a core is compared with what that core has asked for (I25).

Lives here: the questions of each core that are not answered yet.  Never here: what the answers say (`truth`).  Invariants:

* a core is told of a commit, a fold, a load or the end of its hooks only if it has asked for just that, and once;
* a core is told of refused rows only of a commit that is on its way, or of a part of an epoch that it has written;
* a core is told that it is fenced only while a write of its own is on its way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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


REFUSALS: Final = frozenset({ev.Refused, ev.WriteFenced})
"""What a core is told of a write that has failed for good."""


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
            asks = ASKS.get(type(effect))
            if asks is not None:
                self._unanswered(actor)[asks(effect)] += 1
        super().perform(actor, effects)

    def _unanswered(self, actor: Actor) -> Counter[Question]:
        asked = self._open.get(actor.core)
        if asked is None:
            asked = self._open[actor.core] = Counter()
        return asked

    def handle_core(self, actor: Actor, event: ev.Event) -> None:
        """See `WorkerHost`."""
        if type(event) in ANSWERS or type(event) in REFUSALS:
            self._check(actor, event)
        super().handle_core(actor, event)

    def _check(self, actor: Actor, event: ev.Event) -> None:
        asked = self._unanswered(actor)
        answers = ANSWERS.get(type(event))
        answered = answers(event) if answers is not None else None
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


ASKS: Final[dict[type, Callable[[Any], Question]]] = {
    ev.Load: lambda effect: ("load",),
    ev.LoadSlots: lambda effect: ("slots",),
    ev.LoadTimers: lambda effect: ("page", effect.kind),
    ev.LookupIds: lambda effect: ("ids", effect.sender),
    ev.ReadOutsideIds: lambda effect: ("bucket", effect.subscription, effect.expires),
    ev.FetchQuarantine: lambda effect: ("quarantine",),
    ev.Invoke: lambda effect: ("invoke",),
    ev.Mark: lambda effect: ("mark",),
    ev.Unmark: lambda effect: ("unmark",),
    ev.Commit: lambda effect: ("commit", effect.write.seq),
    ev.PartWritten: lambda effect: ("part", effect.sinks),
    ev.Fold: lambda effect: ("fold", effect.upto),
    ev.Advance: lambda effect: ("position", effect.position),
    ev.PositionNoted: lambda effect: ("position", effect.position),
}
"""What the effects of a core ask for."""

ANSWERS: Final[dict[type, Callable[[Any], Question]]] = {
    ev.Loaded: lambda event: ("load",),
    ev.SlotsLoaded: lambda event: ("slots",),
    ev.TimersLoaded: lambda event: ("page", event.kind),
    ev.IdsFound: lambda event: ("ids", event.sender),
    ev.OutsideIdsRead: lambda event: ("bucket", event.subscription, event.expires),
    ev.QuarantineFetched: lambda event: ("quarantine",),
    ev.Invoked: lambda event: ("invoke",),
    ev.Marked: lambda event: ("mark",),
    ev.CommitDone: lambda event: ("commit", event.seq),
    ev.FoldDone: lambda event: ("fold", event.upto),
    ev.Advanced: lambda event: ("position", event.position),
}
"""What the events of a core answer."""
