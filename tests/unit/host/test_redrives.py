"""Requests to redrive: pages, round and round, and whose they are."""

from __future__ import annotations

import pytest

from millwheel import Computation, Pipeline, Stream, TextCoder, limits, subscribe
from millwheel.core.interval import events as ev
from millwheel.graph import Graph
from millwheel.host.actors import Actor, Actors
from millwheel.host.alphabet import Pause
from millwheel.host.redrives import Redrives
from millwheel.host.requests import ListRedrives
from millwheel.host.routes import Routes
from millwheel.ids import IntervalId, Sequencer, SubscriptionId
from millwheel.ports import IntervalRow, Opened
from millwheel_injectors import IterableSource
from tests.unit.core.bench import Bench

WORDS = Stream("words", TextCoder())
STORED = [("a", ""), ("a", "k"), ("a", "z"), ("b", "k"), ("gone", "k")]


class Nothing(Computation[str]):
    def ProcessRecord(self, context, record):  # type: ignore[no-untyped-def]
        pass


def graph() -> Graph:
    pipeline = Pipeline("demo")
    pipeline.inject(IterableSource("rows", []), into=WORDS)
    for name in ("a", "b"):
        pipeline.add(Nothing, [subscribe(WORDS, key=str)], name=name)
    return pipeline.graph()


@pytest.fixture
def redrives(monkeypatch: pytest.MonkeyPatch) -> Redrives:
    monkeypatch.setattr(limits, "REDRIVE_REQUESTS", 2)
    routes = Routes(graph())
    rows = [
        IntervalRow(IntervalId(1), "a", "", "m"),
        IntervalRow(IntervalId(2), "a", "m", None),
        IntervalRow(IntervalId(3), "b", "", None),
    ]
    subscriptions = {s.name: SubscriptionId(i) for i, s in enumerate(routes._graph.subscriptions("words"))}
    routes.open(Opened(tuple(rows), subscriptions))
    return Redrives(routes, Actors(), lambda actor, event: None)


def page(redrives: Redrives) -> dict[IntervalId, list[str]]:
    """What a store answers."""
    return redrives.read([place for place in STORED if place >= redrives.start][: limits.REDRIVE_REQUESTS])


def test_every_request_is_told_once_a_round_to_the_interval_that_has_its_key(redrives: Redrives) -> None:
    for _ in range(2):
        assert (page(redrives), redrives.more) == ({1: ["", "k"]}, True)
        assert (page(redrives), redrives.more) == ({2: ["z"], 3: ["k"]}, True)
        assert (page(redrives), redrives.more) == ({}, False)  # of a computation that this pipeline has not


def test_a_round_that_ends_with_a_full_page_begins_anew_after_an_empty_one(redrives: Redrives) -> None:
    assert redrives.read([("a", "k"), ("b", "")]) == {1: ["k"], 3: [""]}
    assert redrives.start == ("b", "\0")
    assert (redrives.read([]), redrives.more) == ({}, False)


@pytest.mark.parametrize("here", [(), (1,), (2, 3), (1, 2, 3)])
def test_of_the_requests_a_worker_tells_those_whose_intervals_it_has(
    redrives: Redrives, monkeypatch: pytest.MonkeyPatch, here: tuple[int, ...]
) -> None:
    """The others are told by the workers that have them."""
    told: list[tuple[int, list[str]]] = []

    def tell(actor: Actor, event: ev.Event) -> None:
        assert isinstance(event, ev.RedriveAsked)
        told.append((actor.interval, [*event.keys]))

    monkeypatch.setattr(redrives, "_tell", tell)
    for number in here:
        actor = Actor(interval=IntervalId(number), sequencer=Sequencer(1), owner="a", core=Bench().core)
        redrives._actors.put(actor)
    steps = redrives.steps()
    wish = next(steps)
    while isinstance(wish, ListRedrives):
        wish = steps.send([place for place in STORED if place >= wish.start][: wish.limit])
    assert isinstance(wish, Pause)
    assert sorted(told) == [one for one in [(1, ["", "k"]), (2, ["z"]), (3, ["k"])] if one[0] in here]
