"""What was meant for a core that is gone: no answer of the store, and no end of a hook, reaches the next core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel.bundles import BEFORE_TIMERS, LogWrite, TimerWrites
from millwheel.core.interval import events as ev
from millwheel.core.interval.machine import IntervalCore
from millwheel.errors import RowRefused
from millwheel.host import alphabet as he
from millwheel.host.actors import Actor
from millwheel.host.requests import StoreCall
from millwheel.ids import IntervalId, ProducerId, Seq, SubscriptionId
from millwheel.work import InvocationOutcome, Work
from tests.unit.host.test_worker import Hand

WORK = Work([], [], {}, {}, {}, 0, 0)
DURABLE = "durable"
"""The answer that says so of a commit, or of a mark."""

QUESTIONS: dict[str, tuple[Any, Any]] = {
    "load": (ev.Load(["k"]), []),
    "slots": (ev.LoadSlots([("k", "c", None)]), []),
    "page of timers": (ev.LoadTimers("wall", BEFORE_TIMERS, 2), TimerWrites()),
    "fenced page of timers": (ev.LoadTimers("wall", BEFORE_TIMERS, 2), None),
    "ids": (ev.LookupIds(IntervalId(9), SubscriptionId(1), ProducerId(2), []), (set(), set())),
    "outside ids": (ev.ReadOutsideIds(SubscriptionId(1), 50, b"", 10), []),
    "fold": (ev.Fold(Seq(3), [], [], set(), 0), True),
    "fenced fold": (ev.Fold(Seq(3), [], [], set(), 0), False),
    "quarantine": (ev.FetchQuarantine(["k"], 2), []),
    "mark": (ev.Mark(b"x", alone=False), DURABLE),
    "fenced mark": (ev.Mark(b"x", alone=False), set()),
    "fenced unmark": (ev.Unmark(b""), set()),
    "commit": (ev.Commit, DURABLE),
    "fenced commit": (ev.Commit, set()),
}


class Held(Hand):
    """A worker whose questions to the store wait while it is `holding`; what it posts arrives at once."""

    def __init__(self) -> None:
        super().__init__()
        self.holding = False
        self.given: list[ev.Event] = []
        """What the watched core was told."""

    def give(self, event: he.HostEvent) -> list[he.HostEffect]:
        effects = super().give(event)
        for effect in effects:
            if isinstance(effect, he.Post):
                self.give(effect.event)
        return effects

    def do(self, actor: Actor, effect: Callable[[], ev.Effect]) -> None:
        """A core wants something, for once."""
        handle = actor.core.handle
        actor.core.__dict__["handle"] = lambda event, now: [effect()]
        self.give(he.Told(actor.interval, actor.sequencer, ev.AlarmRang()))
        actor.core.__dict__["handle"] = handle
        self.give(he.TurnEnded())

    def replace(self, actor: Actor) -> None:
        """The interval gets another core."""
        core = actor.core
        assert isinstance(core, IntervalCore)
        self.do(actor, lambda: ev.RestartInterval(core.give_up()))

    def watch(self, actor: Actor) -> None:
        """Note all that its core is told."""

        def noting(event: ev.Event, now: int) -> list[ev.Effect]:
            self.given.append(event)
            return []

        actor.core.__dict__["handle"] = noting


def asked(effect: Any) -> tuple[Held, Actor, he.Ask]:
    """A worker, its only interval, and the question that `effect` became, not answered yet."""
    hand = Held()
    hand.give(he.Started())
    ((actor, _),) = hand.worker.actors.intervals()
    if effect is ev.Commit:
        effect = ev.Commit(LogWrite(actor.interval, actor.sequencer, Seq(1), 0, b"x"))
    before, hand._later = [*hand.waiting], StoreCall
    hand.do(actor, lambda: effect)
    hand._later = None
    (question,) = [ask for ask in hand.waiting if ask not in before]
    return hand, actor, question


def answer_of(actor: Actor, question: he.Ask, answer: Any) -> he.Answered:
    if answer == DURABLE:
        commits = type(question.wish).__name__ == "CommitGroup"
        answer = {(actor.interval, Seq(1))} if commits else {actor.interval}
    return he.Answered(question.token, answer)


@pytest.mark.parametrize("name", QUESTIONS)
def test_whoever_asked_is_told(name: str) -> None:
    effect, answer = QUESTIONS[name]
    hand, actor, question = asked(effect)
    hand.watch(actor)
    hand.give(answer_of(actor, question, answer))
    assert len(hand.given) == 1


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_next_core_is_not_told(name: str) -> None:
    effect, answer = QUESTIONS[name]
    hand, actor, question = asked(effect)
    hand.replace(actor)
    following = hand.worker.actors.all[actor.interval]
    assert following.sequencer > actor.sequencer
    hand.watch(following)
    hand.give(answer_of(actor, question, answer))
    assert hand.given == []


@pytest.mark.parametrize("halted", [False, True])
def test_hooks_of_a_void_core_neither_begin_nor_end_for_the_next_one(halted: bool) -> None:
    hand, actor, _ = asked(ev.Load(["k"]))
    if halted:
        actor.core.halted = True  # the next one is not there yet
        hand.watch(actor)
    else:
        hand.replace(actor)
        hand.watch(hand.worker.actors.all[actor.interval])
    began = hand.give(he.Due(actor.interval, actor.sequencer, WORK))
    assert not [effect for effect in began if isinstance(effect, he.RunHooks)]
    hand.give(he.Returned(actor.interval, actor.sequencer, InvocationOutcome(), 0))
    hand.give(he.Told(actor.interval, actor.sequencer, ev.CommitDone(Seq(1))))
    assert hand.given == []


REFUSAL = RowRefused("no", IntervalId(1), Seq(1), ((0, "no"),))


def test_a_refusal_of_a_void_cores_rows_is_not_the_next_cores() -> None:
    hand, actor, question = asked(ev.Commit)
    hand.replace(actor)
    hand.watch(hand.worker.actors.all[actor.interval])
    hand.give(he.Declined(question.token, REFUSAL))
    assert hand.given == []


def test_after_a_refusal_nothing_that_waits_of_the_interval_is_committed() -> None:
    hand, actor, question = asked(ev.Commit)
    later = LogWrite(actor.interval, actor.sequencer, Seq(2), 0, b"y")
    hand.do(actor, lambda: ev.Commit(later))
    hand.watch(actor)
    before = len(hand.waiting)
    hand.give(he.Declined(question.token, REFUSAL))
    assert [type(event) for event in hand.given] == [ev.Refused, ev.WriteFenced]
    hand.give(he.TurnEnded())
    assert len(hand.waiting) == before
    assert hand.worker.all_committed()


def test_an_interval_that_is_dropped_lets_others_run_that_waited_for_its_suspect() -> None:
    hand, actor, _ = asked(ev.Load(["k"]))
    hand.watch(actor)
    hand.do(actor, lambda: ev.Mark(b"x", alone=True))
    other = Actor(interval=IntervalId(9), sequencer=actor.sequencer, owner="c", core=actor.core)
    assert hand.worker._marks.keeps(other, WORK)
    hand.worker.drop(actor)
    assert not hand.worker._marks.keeps(other, WORK)
