"""Which partition waits because it is too far ahead, and how much of one that does not is read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, limits, subscribe
from millwheel.core.interval import events as ev
from millwheel.core.source.injector import InjectorCore
from millwheel.errors import WiringError
from millwheel.graph import Graph
from millwheel.host.actors import Actor
from millwheel.host.skews import Skews, too_far_ahead
from millwheel.ids import IntervalId, ProducerId, Sequencer
from millwheel.model import MAX_TIME, MIN_TIME, SECOND
from millwheel.ports import SourcePosition
from millwheel_injectors import IterableSource

words, others, found = Stream("words", TextCoder()), Stream("others", TextCoder()), Stream("found", TextCoder())
SLOW = IterableSource("slow", [])


class Split(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Count(Split):
    pass


def graph_of(max_ahead: Any = 10, of: Any = Count) -> Graph:
    pipeline = Pipeline("skewed")
    pipeline.inject(IterableSource("fast", []), into=words, max_ahead=max_ahead, of=of)
    pipeline.inject(SLOW, into=others)
    pipeline.add(Split, [subscribe(words, str)], [found])
    pipeline.add(Count, [subscribe(found, str), subscribe(others, str)])
    return pipeline.graph()


def partition(promise: int, owner: str = "source:fast", interval: int = 1) -> Actor:
    position = SourcePosition("p", IntervalId(interval), ProducerId(1), 0, False, b"")
    core = InjectorCore(IntervalId(interval), position, {})
    core.start(0, promise)
    return Actor(interval=IntervalId(interval), sequencer=Sequencer(1), owner=owner, core=core)


def read(actor: Actor, skews: Skews, rows: int, promise: int) -> None:
    before = skews.promise(actor)
    actor.core.handle(ev.RowsRead({}, rows, rows, b"", promise, False, True), 0)
    skews.arrived(actor, before, rows)


@pytest.mark.parametrize(("of", "marks"), [
    (Count, {"Count"}), ("Split", {"Split"}), (found, {"Split"}), (others, {"source:slow"}), (SLOW, {"source:slow"}),
])  # fmt: skip
def test_the_watermark_is_of_a_computation_of_all_that_sends_on_a_stream_or_of_another_source(
    of: Any, marks: set[str]
) -> None:
    graph = graph_of(of=of)
    skew = graph.sources["fast"].skew
    assert skew is not None
    assert graph.skew_marks(skew) == marks
    assert graph.sources["slow"].skew is None


def test_lengths_are_us_or_timedeltas() -> None:
    skew = graph_of(timedelta(hours=1)).sources["fast"].skew
    assert skew is not None
    assert skew.max_ahead_us == 3_600 * SECOND


@pytest.mark.parametrize(("given", "message"), [
    ({"max_ahead": 5}, "give both max_ahead=... and of=..."),
    ({"of": Count}, "give both max_ahead=... and of=..."),
    ({"max_ahead": -1, "of": Count}, "a length of time is not negative"),
    ({"max_ahead": 1, "of": 7}, "has no watermark"),
    ({"max_ahead": 1, "of": "Cuont"}, r"computation 'Cuont', which the pipeline does not have .* there are \['Count'"),
    ({"max_ahead": 1, "of": Stream("lost", TextCoder())}, "stream 'lost', which the pipeline does not have"),
    ({"max_ahead": 1, "of": IterableSource("fast", [])}, "must not run ahead of itself"),
])  # fmt: skip
def test_what_cannot_be_a_bound_is_refused(given: dict[str, Any], message: str) -> None:
    def wired() -> None:
        pipeline = Pipeline("skewed")
        pipeline.inject(IterableSource("fast", []), into=words, **given)
        pipeline.add(Count, [subscribe(words, str)])
        pipeline.graph()

    with pytest.raises(WiringError, match=message):
        wired()


def test_a_partition_waits_while_its_promise_is_further_ahead_than_the_bound() -> None:
    values: dict[str, int] = {}
    skews = Skews(graph_of(), values)
    assert skews.room(partition(-(10**6)), 100, 0) == 0, "nobody has a watermark yet"
    values["Count"] = 50
    assert skews.room(partition(60), 100, 0) == 100
    assert skews.room(partition(61), 100, 0) == 0
    assert skews.waits(partition(61), 0)
    assert skews.room(partition(61, "source:slow"), 100, 0) == 100, "it has no bound"
    values["Count"] = MAX_TIME
    assert skews.room(partition(61), 100, 0) == 100


def test_a_read_is_no_longer_than_what_is_left_of_the_bound_as_far_as_the_last_one_tells() -> None:
    skews = Skews(graph_of(1_000), {"Count": 0})
    actor = partition(100)
    read(actor, skews, 10, 200)  # 10 us a row
    assert skews.room(actor, 1_000, 0) == 80
    assert skews.room(actor, 30, 0) == 30
    read(actor, skews, 10, 995)
    assert skews.room(actor, 1_000, 0) == 1, "never none while it is not too far ahead"
    read(actor, skews, 10, 995)
    assert skews.room(actor, 1_000, 0) == 1_000, "it does not move"
    skews.forget(actor)


def test_the_first_promise_of_a_partition_says_nothing_of_how_far_a_row_takes_it() -> None:
    skews = Skews(graph_of(1_000), {"Count": 100})
    actor = partition(MIN_TIME)
    read(actor, skews, 10, 200)
    assert skews.room(actor, 1_000, 0) == 1_000


def test_what_everything_waits_for_goes_on_when_the_watermark_stands() -> None:
    values = {"Count": 50, "source:fast": 90, "source:slow": 100}
    skews, wait = Skews(graph_of(), values), limits.SKEW_PATIENCE_US
    assert skews.room(partition(90), 100, 0) == 0
    assert skews.room(partition(90), 100, wait - 1) == 0
    assert skews.room(partition(90), 100, wait) == 100
    assert skews.room(partition(91, interval=2), 100, wait) == 0, "another partition of it is further behind"
    values["source:slow"] = 80
    assert skews.room(partition(90), 100, wait) == 0, "now the watermark waits for the other source"
    values |= {"source:slow": 100, "Count": 51}
    assert skews.room(partition(90), 100, wait) == 0, "it has moved"
    assert skews.room(partition(90), 100, 2 * wait) == 100


def test_a_source_that_does_not_feed_what_it_must_not_run_ahead_of_waits_as_long_as_it_takes() -> None:
    values = {"source:slow": 50, "source:fast": 90}
    skews = Skews(graph_of(of=SLOW), values)
    assert skews.room(partition(90), 100, 0) == 0
    assert skews.room(partition(90), 100, 10 * limits.SKEW_PATIENCE_US) == 0


def test_those_that_wait_are_named_with_what_they_wait_for() -> None:
    graph = graph_of(10 * SECOND)
    values = {"Count": 50 * SECOND, "source:fast": 61 * SECOND}
    assert too_far_ahead(graph, values) == {
        "fast": "source fast is paused: it is more than 10 s ahead of Count at 1970-01-01T00:00:50+00:00"
    }
    assert too_far_ahead(graph, {**values, "Count": 51 * SECOND}) == {}
    assert too_far_ahead(graph, {**values, "source:fast": MAX_TIME}) == {}
    assert too_far_ahead(graph, {}) == {}


@pytest.mark.parametrize("percentile", [0.4, 1.0, 99, "0.9"])
def test_a_percentile_of_partitions_is_a_share(percentile: Any) -> None:
    with pytest.raises(WiringError, match=r"percentile is .*; give a share of at least 0.5 and below 1"):
        Pipeline("shares").inject(SLOW, into=words, percentile=percentile)


def test_of_several_senders_the_one_that_is_behind_says_how_far_ahead_a_source_may_be() -> None:
    pipeline = Pipeline("skewed")
    pipeline.inject(IterableSource("fast", []), into=words, max_ahead=10, of=others)
    pipeline.inject(SLOW, into=others)
    pipeline.inject(IterableSource("slower", []), into=others)
    pipeline.add(Count, [subscribe(words, str), subscribe(others, str)])
    values = {"source:slow": 100, "source:slower": 50}
    skews = Skews(pipeline.graph(), values)
    assert skews.room(partition(61), 7, 0) == 0
    values["source:slower"] = 60
    assert skews.room(partition(61), 7, 0) == 7
