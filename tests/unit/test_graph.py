"""A wiring mistake is an error at start whose message names the culprit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millwheel import (
    Computation,
    Context,
    JsonCoder,
    Pipeline,
    Record,
    Snapshots,
    Stream,
    Table,
    TextCoder,
    ValueCell,
    subscribe,
)
from millwheel.errors import WiringError
from millwheel.graph import Settings, subscription_names
from millwheel.ids import IntervalId, SubscriptionId
from millwheel.intervals import Ranges
from millwheel.testing import Stepper, simulate
from millwheel_injectors import IterableSource

a, b, c = (Stream(name, TextCoder()) for name in "abc")


# For mistakes that a type checker would see first.
loose_subscribe: Any = subscribe
loose_stream: Any = Stream
loose_table: Any = Table


class Pass(Computation[str]):
    seen = ValueCell(JsonCoder(int), default=0)

    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        """Nothing."""


def source(name: str = "text") -> IterableSource:
    return IterableSource(name, [("x", 1)])


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


def test_a_loop_is_cut_where_it_begins_and_its_floor_takes_the_place_of_who_sends_back() -> None:
    pipeline = wired()
    pipeline.add(Pass, [subscribe(b, str)], [c], name="there")
    pipeline.add(Pass, [subscribe(c, str)], [b, c], name="back")
    graph = pipeline.graph()
    (loop,) = graph.loops
    assert (loop.name, loop.members) == ("loop:there", ("back", "there"))
    assert loop.back_edges == (("back", "back"), ("back", "there"))
    assert (graph.senders("there"), graph.bounds("there")) == ({"first", "back"}, {"first", "loop:there"})
    assert (graph.senders("back"), graph.bounds("back")) == ({"there", "back"}, {"there", "loop:there"})
    assert graph.bounds("second") == graph.senders("second")
    assert graph.senders("second") == {"source:text", "first", "back"}
    assert graph.order() == ["first", "there", "back", "second"]
    assert [s.name for s in graph.back_subscriptions("back")] == ["back<c", "there<b"]
    assert graph.back_subscriptions("there") == []
    assert graph.loop_of("first") is None


def test_its_shape_is_what_the_store_must_know() -> None:
    shape = wired().graph().shape()
    assert shape.computations == {"first": (), "second": ()}
    assert shape.subscriptions == {"first<a": "a", "second<b": "b", "second<a": "a", "second<b#2": "b"}
    assert shape.coders["stream:a"] == "text/1"
    assert shape.coders["cell:first.seen"].startswith("value:json/1:int")
    assert shape.sources == ("text",)


OTHER_SETTINGS: dict[str, Any] = {
    "productions": "weak", "exactly_once": False, "expire_after": 60, "split_keys": ("k", "m"), "cache_limit_bytes": 1_000,
    "strict_timestamps": False, "hook_attempts": 7, "quarantine_holds": True, "first_failures": None,
    "work_limit_records": 9, "straggler_delay_us": 11,
}  # fmt: skip
"""None is as it is without a word."""


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_a_setting_is_that_of_its_computation_alone(name: str) -> None:
    pipeline = wired()
    pipeline.add(Pass, [subscribe(a, str)], name="set", **{name: OTHER_SETTINGS[name]})
    computations = pipeline.graph().computations
    expected = msgspec.structs.replace(Settings(), **{name: OTHER_SETTINGS[name]})
    assert expected != Settings()
    assert [computations[of].settings for of in ("set", "first")] == [expected, Settings()]


def test_what_is_said_of_a_source_and_of_a_key_is_in_the_graph() -> None:
    pipeline = Pipeline("p", durability=Snapshots(every_ms=7_000))
    pipeline.inject(source(), into=a)
    pipeline.inject(source("behind"), into=b, percentile=0.75, max_ahead=5, of="Pass")
    pipeline.add(Pass, [subscribe(a, str, key_version="2"), subscribe(b, str)])
    pipeline.drop("Older")
    pipeline.drop("Pass", input=c)
    graph = pipeline.graph()
    assert [(of.name, of.stream, of.percentile, of.skew is None) for of in graph.sources.values()] == [
        ("text", "a", None, True), ("behind", "b", 0.75, False),
    ]  # fmt: skip
    assert [of.key_version for of in graph.computations["Pass"].inputs] == ["2", ""]
    assert graph.snapshot_every_us == 7_000_000
    assert graph.gone == ("Older", "Pass<c")


@pytest.mark.parametrize(
    "use",
    [
        lambda pipeline: [found.clear() for found in pipeline.declared()],
        lambda pipeline: pipeline.tables.clear(),
        lambda pipeline: Stepper(pipeline).finish(),
        lambda pipeline: simulate(pipeline, {"a": [("x", 1)]}),
    ],
)
def test_whoever_looks_at_a_pipeline_changes_nothing_of_it(use: Callable[[Pipeline], Any]) -> None:
    pipeline = wired()
    pipeline.sink(Table("out", {"k": "text"}, ("k",)))
    before = pipeline.graph().shape()
    use(pipeline)
    assert pipeline.graph().shape() == before
    assert [*pipeline.tables] == ["out"]


def test_what_is_declared_is_checked_first_by_whoever_has_asked_for_it() -> None:
    asked = []
    pipeline = wired()
    pipeline.check_before(lambda: asked.append("before"))
    pipeline.check_after(lambda graph: asked.append(f"after {len(graph.order())}"))
    pipeline.declared()
    assert asked == ["before"]
    pipeline.graph()
    assert asked == ["before", "before", "after 2"]
    Stepper(pipeline)
    assert {*asked[3:]} == {"before", "after 3"}, "the graph of a test has taps"


def test_subscription_names_of_repeats_are_stable() -> None:
    assert subscription_names("x", ["s", "s", "t"]) == ["x<s", "x<s#2", "x<t"]


def unfed(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(c, str)], name="lonely")


def unheard(pipeline: Pipeline) -> None:
    pipeline.inject(source("loud"), into=c)


def cycle_without_input(pipeline: Pipeline) -> None:
    d = Stream("d", TextCoder())
    pipeline.add(Pass, [subscribe(d, str)], [c], name="there")
    pipeline.add(Pass, [subscribe(c, str)], [d], name="back")


def weak_in_a_loop(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(b, str)], [c], name="there")
    pipeline.add(Pass, [subscribe(c, str)], [b], name="back", productions="weak")


def no_input(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [], [b], name="deaf")


def twice(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(a, str)], name="first")


def source_twice(pipeline: Pipeline) -> None:
    pipeline.inject(source(), into=a)


def other_coder(pipeline: Pipeline) -> None:
    pipeline.add(Pass, [subscribe(Stream("a", JsonCoder(int)), str)], name="wrong")  # type: ignore[list-item]


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


def settings(**given: Any) -> Callable[[Pipeline], None]:
    def mistake(pipeline: Pipeline) -> None:
        pipeline.add(Pass, [subscribe(a, str)], name="set", **given)

    mistake.__name__ = ",".join(f"{name}={value}" for name, value in given.items())
    return mistake


def wrong(name: str, call: Callable[[Any], Any]) -> Callable[[Pipeline], None]:
    def mistake(pipeline: Pipeline) -> None:
        call(pipeline)

    mistake.__name__ = name
    return mistake


class Waiting(Computation[str]):
    async def ProcessRecord(self, context: Context, record: Record[str]) -> None:  # type: ignore[override]
        pass


class Yielding(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> Any:
        yield 1


class Handless(Computation[str]):
    pass


class HalfACoder:
    def encode(self, value: str) -> bytes:
        return value.encode()


MISTAKES: list[tuple[Callable[[Pipeline], None], list[str]]] = [
    (unfed, ["'lonely'", "'c'", "['a', 'b']"]),
    (unheard, ["'loud'", "'c'", "nobody subscribes"]),
    (cycle_without_input, ["'back'", "'there'", "nothing from outside", "inject"]),
    (weak_in_a_loop, ["'back'", "'there'", "weak", "use strong"]),
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
    (settings(work_limit_records=0), ["'set'", "work_limit_records", ">= 1"]),
    (settings(productions="weeak"), ["'set'", "productions", "weeak", "use 'strong' or 'weak'"]),
    (settings(exactly_once="no"), ["'set'", "exactly_once", "`bool`, got `str`"]),
    (settings(hook_attempts=0), ["'set'", "hook_attempts", ">= 1"]),
    (settings(expire_after=1.5), ["'set'", "expire_after", "got `float`"]),
    (settings(straggler_delay_us=-1), ["'set'", "straggler_delay_us", ">= 0"]),
    (settings(split_keys="abc"), ["'set'", "split_keys", "'abc'"]),
    (settings(split_keys=[1, 2]), ["'set'", "split_keys", "got `int`"]),
    (wrong("stream as input", lambda p: p.add(Pass, [a], [b], name="c")), ["'c'", "subscribe(stream, key=function)"]),
    (wrong("no list", lambda p: p.add(Pass, subscribe(a, str), [b], name="c")), ["'c'", "inputs must be a list"]),
    (wrong("no list of outputs", lambda p: p.add(Pass, [subscribe(a, str)], b, name="c")), ["'c'", "outputs"]),
    (wrong("text as output", lambda p: p.add(Pass, [subscribe(a, str)], ["b"], name="c")), ["'c'", "Stream, got 'b'"]),
    (wrong("instance", lambda p: p.add(Pass(), [subscribe(a, str)])), ["add(Pass, ...)"]),
    (wrong("no class", lambda p: p.add(7, [subscribe(a, str)])), ["class or a factory, got 7"]),
    (wrong("text as stream", lambda p: p.inject(source("x"), into="b")), ["'x'", "Stream, got 'b'"]),
    (wrong("path as source", lambda p: p.inject("f.txt", into=b)), ["needs a source, got 'f.txt'"]),
    (wrong("class as source", lambda p: p.inject(type(source()), into=b)), ["needs a source"]),
    (wrong("key is no function", lambda _: loose_subscribe(a, "k")), ["'a'", "'k', not a function"]),
    (
        wrong("coder is a class", lambda _: subscribe(loose_stream("s", TextCoder), str)),
        ["'s' needs a coder", "the class TextCoder; give an object"],
    ),
    (
        wrong("half a coder", lambda _: subscribe(loose_stream("s", HalfACoder()), str)),
        ["HalfACoder", "has no fingerprint and no decode"],
    ),
    (wrong("no coder", lambda _: subscribe(loose_stream("s", str), str)), ["'s' needs a coder"]),
    (wrong("number as name", lambda p: p.add(Pass, [subscribe(a, str)], name=7)), ["name 7 is int"]),
    (wrong("async", lambda p: p.add(Waiting, [subscribe(a, str)])), ["Waiting.ProcessRecord is async"]),
    (wrong("yields", lambda p: p.add(Yielding, [subscribe(a, str)])), ["Yielding.ProcessRecord is async or yields"]),
    (wrong("no hook", lambda p: p.add(Handless, [subscribe(a, str)])), ["Handless must define ProcessRecord"]),
    (wrong("key as text", lambda p: p.sink(loose_table("out", {"k": "text"}, "k"))), ["'out'", "write key=('k',)"]),
    (wrong("no columns", lambda p: p.sink(loose_table("out", ["k"], ("k",)))), ["'out'", "columns"]),
    (wrong("no table", lambda p: p.sink("out")), ["needs a Table, got 'out'"]),
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
    ranges = Ranges([("m", IntervalId(2)), ("", IntervalId(1)), ("t", IntervalId(3))])
    assert [ranges.owner(key) for key in ("", "a", "lzzz", "m", "s", "t", "\U0010ffff")] == [1, 1, 1, 2, 2, 3, 3]
    assert ranges.group(["z", "a", "n", "b"]) == {3: [0], 1: [1, 3], 2: [2]}
    for lows in ([], ["a"], ["", "a", "a"]):
        with pytest.raises(ValueError, match="exactly once"):
            Ranges([(low, IntervalId(i)) for i, low in enumerate(lows)])


def identified(name: str, **options: Any) -> IterableSource:
    return IterableSource(name, [("x", 1)], record_id=str, **options)


def test_a_subscription_knows_how_long_ids_of_outside_clients_are_remembered() -> None:
    pipeline = wired()
    pipeline.inject(identified("clients", id_slack=77), into=a)
    graph = pipeline.graph()
    assert (graph.slack("a"), graph.slack("b")) == (77, None)
    assert graph.slacks(
        "second",
        {
            "first<a": SubscriptionId(1),
            "second<b": SubscriptionId(2),
            "second<a": SubscriptionId(3),
            "second<b#2": SubscriptionId(4),
        },
    ) == {3: 77}


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


def test_a_state_cell_cannot_be_assigned() -> None:
    class Count(Computation[str]):
        seen = ValueCell(JsonCoder(int), default=0)

    count = Count()
    count.cache = {}
    with pytest.raises(WiringError, match=r"Count\.seen is a state cell: write self\.seen\.set"):
        count.seen = 1  # type: ignore[assignment]
