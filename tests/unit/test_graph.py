"""A wiring mistake is an error at start whose message names the culprit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from millwheel import Computation, JsonCoder, Pipeline, Stream, Table, TextCoder, ValueCell, subscribe
from millwheel.errors import WiringError
from millwheel.graph import subscription_names
from millwheel.intervals import Ranges
from millwheel_injectors import IterableSource

a, b, c = (Stream(name, TextCoder()) for name in "abc")


class Pass(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)


def source(name: str = "text") -> IterableSource:
    return IterableSource(name, [(1, "x")])


def wired() -> Pipeline:
    pipeline = Pipeline("p")
    pipeline.inject(source(), into=a)
    pipeline.add(Pass, [subscribe(a, str)], [b], name="first")
    pipeline.add(Pass, [subscribe(b, str), subscribe(a, str), subscribe(b, str)], name="second")
    return pipeline


def test_a_graph_knows_who_sends_to_whom() -> None:
    graph = wired().graph()
    assert graph.senders("first") == {"source:text"}
    assert graph.senders("second") == {"source:text", "first"}
    assert graph.order() == ["first", "second"]
    assert [s.name for s in graph.subscriptions("b")] == ["second<b", "second<b#2"]


def test_its_shape_is_what_the_store_must_know() -> None:
    shape = wired().graph().shape()
    assert shape.computations == {"first": (), "second": ()}
    assert shape.subscriptions == {"first<a": "a", "second<b": "b", "second<a": "a", "second<b#2": "b"}
    assert shape.coders["stream:a"] == "text/1"
    assert shape.coders["cell:first.seen"].startswith("value:json/1:int")
    assert shape.sources == ("text",)


def test_subscription_names_of_repeats_are_stable() -> None:
    assert subscription_names("x", ["s", "s", "t"]) == ["x<s", "x<s#2", "x<t"]


def unfed(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(c, str)], name="lonely")


def unheard(pipeline: Pipeline) -> None:
    pipeline.inject(source("loud"), into=c)


def cycle(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(b, str)], [c], name="there")
    pipeline.add(Pass, [subscribe(c, str)], [b], name="back")


def no_input(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [], [b], name="deaf")


def twice(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(a, str)], name="first")


def source_twice(pipeline: Pipeline) -> None:
    pipeline.inject(source(), into=a)


def other_coder(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(Stream("a", JsonCoder(int)), str)], name="wrong")


def no_computation(pipeline: Pipeline) -> None:
    pipeline.add(dict, [subscribe(a, str)])  # type: ignore[arg-type]


def descending(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(a, str)], name="split", split_keys=["m", "f"])


def empty_split(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(a, str)], name="split", split_keys=[""])


def never_alive(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(a, str)], name="mayfly", expire_after=0)


def bad_name(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(a, str)], name="two words")


def bad_stream(pipeline: Pipeline) -> None:
    pipeline.inject(source("other"), into=Stream("a<b", TextCoder()))


def table_twice(pipeline: Pipeline) -> None:
    for _ in range(2):
        pipeline.sink(Table("out", {"k": "text"}, ("k",)))


def no_key(pipeline: Pipeline) -> None:
    pipeline.sink(Table("out", {"k": "text"}, ()))


def foreign_key(pipeline: Pipeline) -> None:
    pipeline.sink(Table("out", {"k": "text"}, ("q",)))


MISTAKES: list[tuple[Callable[[Pipeline], None], list[str]]] = [
    (unfed, ["'lonely'", "'c'", "['a', 'b']"]),
    (unheard, ["'loud'", "'c'", "nobody subscribes"]),
    (cycle, ["'back'", "'there'", "cycle"]),
    (no_input, ["'deaf'", "no stream"]),
    (twice, ["'first'", "twice"]),
    (source_twice, ["'text'", "twice"]),
    (other_coder, ["'a'", "'wrong'", "text/1", "json/1:int"]),
    (no_computation, ["dict", "not a Computation"]),
    (descending, ["'split'", "'f' follows 'm'"]),
    (empty_split, ["'split'", "non-empty"]),
    (never_alive, ["'mayfly'", "expire_after"]),
    (bad_name, ["computation name 'two words'"]),
    (bad_stream, ["stream name 'a<b'"]),
    (table_twice, ["'out'", "twice"]),
    (no_key, ["'out'", "key columns"]),
    (foreign_key, ["'out'", "['q']"]),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES])
def test_a_mistake_names_its_culprit(mistake: Callable[[Pipeline], None], words: list[str]) -> None:
    def wire() -> None:
        pipeline = wired()
        mistake(pipeline)
        pipeline.graph()

    with pytest.raises(WiringError) as caught:
        wire()
    for word in words:
        assert word in str(caught.value)


def test_an_empty_pipeline_says_what_to_do() -> None:
    with pytest.raises(WiringError, match=r"'empty' has no computation: call pipeline.add"):
        Pipeline("empty").graph()


@pytest.mark.parametrize("name", ["", "x" * 101, "a b", "a/b", "a:b", "a#b", "a\0b"])
def test_a_name_that_cannot_stand_in_tables_is_refused(name: str) -> None:
    with pytest.raises(WiringError, match="pipeline name"):
        Pipeline(name)


def test_a_cell_without_a_coder_is_refused() -> None:
    wrong: Any = int
    with pytest.raises(WiringError, match="needs a coder"):
        ValueCell(wrong, default=0)


def test_ranges_cover_the_keys_once() -> None:
    ranges = Ranges([("m", 2), ("", 1), ("t", 3)])
    assert [ranges.owner(key) for key in ("", "a", "lzzz", "m", "s", "t", "\U0010ffff")] == [1, 1, 1, 2, 2, 3, 3]
    assert ranges.group(["z", "a", "n", "b"]) == {3: [0], 1: [1, 3], 2: [2]}
    for lows in ([], [("a", 1)], [("", 1), ("a", 2), ("a", 3)]):
        with pytest.raises(ValueError, match="exactly once"):
            Ranges(lows)


def identified(name: str, **options: Any) -> IterableSource:
    return IterableSource(name, [(1, "x")], record_id=str, **options)


def test_a_subscription_knows_how_long_ids_of_outside_clients_are_remembered() -> None:
    pipeline = wired()
    pipeline.inject(identified("clients", id_slack=77), into=a)
    graph = pipeline.graph()
    assert (graph.slack("a"), graph.slack("b")) == (77, None)
    assert graph.slacks("second", {"first<a": 1, "second<b": 2, "second<a": 3, "second<b#2": 4}) == {3: 77}


def test_ids_of_two_sources_must_not_meet_in_one_stream() -> None:
    pipeline = wired()
    pipeline.inject(identified("one"), into=a)
    pipeline.inject(identified("two"), into=a)
    with pytest.raises(WiringError, match="'one' and 'two' both give record ids to stream 'a'"):
        pipeline.graph()


def test_a_slack_must_be_positive() -> None:
    pipeline = wired()
    pipeline.inject(identified("one", id_slack=0), into=a)
    with pytest.raises(WiringError, match="'one': id_slack must be a positive number"):
        pipeline.graph()
