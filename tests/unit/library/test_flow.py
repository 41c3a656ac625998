"""Chains become named computations; stateless steps become none."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from millwheel import SECOND, JsonCoder, MsgpackCoder, Pipeline, Stream, Table, TextCoder
from millwheel.errors import WiringError
from millwheel.library import Chain, Combiner, Fixed, Flow, Match, Operation, Operator, Pane, collect, count, sum_of
from millwheel.library.wiring import Inputs, Port
from millwheel.testing import HookFailed, RowRejected, Stepper
from millwheel_injectors import IterableSource

numbers = Stream("numbers", JsonCoder(int))
others = Stream("others", JsonCoder(int))
results = Stream("results", MsgpackCoder(Pane[Any]))
texts = Stream("texts", TextCoder())
words = Stream("words", TextCoder())
MINUTELY = Fixed(minutes=1)


def itself(value: Any) -> Any:
    return value


def begin() -> tuple[Pipeline, Flow]:
    pipeline = Pipeline("p")
    return pipeline, Flow(pipeline)


def values(stepper: Stepper, stream: Stream = results) -> list[Any]:
    stepper.finish()
    return [out.value.value if isinstance(out.value, Pane) else out.value for out in stepper.outputs(stream)]


def test_a_chain_is_one_computation_and_its_steps_run_inside() -> None:
    pipeline, flow = begin()
    chain = flow.read(numbers).filter(lambda n: n > 0).map(lambda n: n * 10).filter(lambda n: n != 30)
    chain.key_by(lambda n: "all").window(MINUTELY).aggregate(collect(int)).to(results)
    stepper = Stepper(pipeline)
    assert [name for name in stepper.graph.computations if "tap" not in name] == ["results.collect"]
    for n in (1, -2, 3, 4):
        stepper.send(numbers, n, n + 10)
    assert values(stepper) == [[10, 40]]


def test_steps_behind_an_aggregation_run_before_its_results_are_produced() -> None:
    pipeline, flow = begin()
    counts = flow.read(numbers).key_by(str).window(MINUTELY).aggregate(count())
    counts.filter(lambda pane: pane.value > 1).map(lambda pane: pane.key).to(texts)
    stepper = Stepper(pipeline)
    assert [name for name in stepper.graph.computations if "tap" not in name] == ["texts.count"]
    for n in (1, 2, 1):
        stepper.send(numbers, n, 1)
    assert values(stepper, texts) == ["1"]


def test_results_go_on_to_another_step_under_the_name_of_theirs() -> None:
    pipeline, flow = begin()
    counts = flow.read(numbers).key_by(str).window(MINUTELY).aggregate(count(), name="per-number")
    (counts.map(lambda pane: pane.value).key_by(lambda n: "all").window(MINUTELY).aggregate(sum_of(itself)).to(results))
    stepper = Stepper(pipeline)
    assert [name for name in stepper.graph.computations if "tap" not in name] == ["per-number", "results.sum"]
    for n in (1, 2, 1):
        stepper.send(numbers, n, 1)
    assert values(stepper) == [3]
    assert stepper.outputs(results)[0].timestamp == 60 * SECOND - 1


def test_several_steps_may_read_the_results_of_one() -> None:
    pipeline, flow = begin()
    counts = flow.read(numbers).key_by(str).window(MINUTELY).aggregate(count(), name="per-number")
    counts.filter(lambda pane: pane.value > 1).key_by(lambda pane: "many").window(MINUTELY).aggregate(count(), "a").to(
        results
    )
    counts.key_by(lambda pane: "all").window(MINUTELY).aggregate(count(), "b").to(results)
    counts.map(lambda pane: pane.key).to(texts)
    stepper = Stepper(pipeline)
    for n in (1, 2, 1):
        stepper.send(numbers, n, 1)
    assert sorted(values(stepper)) == [1, 2]
    assert sorted(values(stepper, texts)) == ["1", "2"]


def test_a_step_without_a_name_that_has_no_stream_of_its_own_is_refused() -> None:
    _, flow = begin()
    counts = flow.read(numbers).key_by(str).window(MINUTELY).aggregate(count())
    with pytest.raises(WiringError, match="count needs a name"):
        counts.key_by(lambda pane: pane.key)


def test_results_that_went_through_steps_to_a_stream_are_not_to_be_had_again() -> None:
    _, flow = begin()
    counts = flow.read(numbers).key_by(str).window(MINUTELY).aggregate(count(), "counts")
    counts.map(lambda pane: pane.key).to(texts)
    with pytest.raises(WiringError, match="end it in a stream of its own"):
        counts.key_by(lambda pane: pane.key)


def test_two_steps_that_would_have_one_name_are_refused() -> None:
    _, flow = begin()
    keyed = flow.read(numbers).key_by(str).window(MINUTELY)
    keyed.aggregate(count()).to(results)
    with pytest.raises(WiringError, match="added twice"):
        keyed.aggregate(count()).to(results)


def test_what_to_gives_reads_the_stream() -> None:
    pipeline, flow = begin()
    longs = flow.read(texts).flat_map(str.split).filter(lambda word: len(word) > 2).to(words)
    longs.key_by(itself).window(MINUTELY).aggregate(count()).to(results)
    stepper = Stepper(pipeline)
    assert [name for name in stepper.graph.computations if "tap" not in name] == ["words.steps", "results.count"]
    stepper.send(texts, "the cat and the dog", 1)
    stepper.send(texts, "no", 1)
    stepper.finish()
    assert {pane.value.key: pane.value.value for pane in stepper.outputs(results)} == {
        "the": 2,
        "cat": 1,
        "and": 1,
        "dog": 1,
    }


def test_a_stream_that_a_chain_reads_is_published_as_it_is() -> None:
    pipeline, flow = begin()
    keyed = flow.inject(IterableSource("ones", []), into=numbers).publish(numbers).key_by(str)
    counts = keyed.window(MINUTELY).aggregate(count())
    counts.to(results)
    counts.publish(results, keep=3)
    assert sorted(pipeline.graph().computations) == ["published:numbers", "published:results", "results.count"]
    stepper = Stepper(pipeline)
    stepper.send(numbers, 1, 1)
    assert values(stepper) == [1]


def test_values_that_would_come_back_for_ever_are_refused() -> None:
    _, flow = begin()
    chain = flow.read(numbers)
    for again in (chain, chain.filter(bool), flow.read(others).union(chain)):
        with pytest.raises(WiringError, match=r"to\('numbers'\): values of 'numbers' would come back to it for ever"):
            again.to(numbers)
    with pytest.raises(WiringError, match="for ever"):
        chain.filter(bool).publish(numbers)
    chain.filter(lambda n: n % 2 == 0).map(lambda n: n // 2).to(numbers)  # ends


def test_flat_map_cannot_be_keyed_before_it_is_a_stream() -> None:
    _, flow = begin()
    with pytest.raises(WiringError, match="flat_map"):
        flow.read(texts).flat_map(str.split).key_by(itself)


def test_a_union_has_the_values_of_all_each_through_its_own_steps() -> None:
    pipeline, flow = begin()
    small = flow.read(numbers).map(lambda n: n + 1)
    union = small.union(flow.read(others).filter(lambda n: n > 50), flow.read(numbers).filter(lambda n: n < 2))
    union.key_by(lambda n: "all").window(MINUTELY).aggregate(collect(int)).to(results)
    stepper = Stepper(pipeline)
    for stream, n in ((numbers, 1), (numbers, 5), (others, 100), (others, 7)):
        stepper.send(stream, n, n)
    assert sorted(values(stepper)[0]) == [1, 2, 6, 100]


def test_a_filter_that_only_calls_what_is_async_lets_nothing_through_in_silence() -> None:
    """Its coroutine is never false."""

    async def is_small(n: int) -> bool:
        raise AssertionError("nobody awaits it")

    given: Any = lambda n: is_small(n)  # noqa: E731
    for after in (False, True):
        pipeline, flow = begin()
        chain = flow.read(numbers)
        if after:
            chain = chain.key_by(str).deduplicate(SECOND, str, "unique")
        chain.filter(given).to(others)
        stepper = Stepper(pipeline)
        with pytest.raises((RowRejected, HookFailed), match="a filter returned a coroutine, whose code has not run"):
            stepper.send(numbers, 5, 5)


def test_a_union_that_ends_in_a_stream_keeps_every_branch() -> None:
    pipeline, flow = begin()
    odd = flow.read(numbers).filter(lambda n: n % 2 == 1)
    even = flow.read(numbers).filter(lambda n: n % 2 == 0)
    odd.map(str).union(even.map(lambda n: "even"), flow.read(others).map(lambda n: "other")).to(texts)
    stepper = Stepper(pipeline)
    for stream, n in ((numbers, 1), (numbers, 2), (others, 3)):
        stepper.send(stream, n, n)
    assert sorted(values(stepper, texts)) == ["1", "even", "other"]


def both(sides: list[Chain[int]]) -> list[Port]:
    left, right = sides
    return [*left.key_by(lambda n: str(n)[-1]).ports(0), *right.key_by(lambda n: str(n // 10 % 10)).ports(1)]


class Tagged(Operator[str]):
    """Says under which key and on which inputs a value came."""

    def ProcessRecord(self, context: Any, record: Any) -> None:
        """One text for each input."""
        for number, value in self.inputs.take(context.stream, record.key, record.value):
            self.emit(context, f"{record.key}:{number}:{value}", None)


def test_two_inputs_may_read_one_stream_under_different_keys() -> None:
    pipeline, flow = begin()
    source = flow.read(numbers)
    operation = Operation(kind="tag", make=Tagged, output=TextCoder())
    flow.apply(operation, both([source, source.filter(lambda n: n > 9)]), "tag").to(texts)
    stepper = Stepper(pipeline)
    for n in (5, 12, 33):
        stepper.send(numbers, n, 1)
    assert sorted(values(stepper, texts)) == ["1:1:12", "2:0:12", "3:0:33", "3:1:33", "5:0:5"]


def test_a_value_for_two_inputs_under_one_key_is_delivered_once() -> None:
    _, flow = begin()
    source = flow.read(numbers)
    subscriptions = Inputs(both([source, source])).subscriptions()
    assert [[s.key(n) for s in subscriptions] for n in (12, 33)] == [["2", "1"], ["3", None]]


def test_split_keys_that_come_with_a_key_cut_every_step_of_it() -> None:
    pipeline = Pipeline("words")
    table = Table("lengths", {"word": "text", "length": "bigint"}, ("word",))
    keyed = Flow(pipeline).read(words).key_by(lambda word: word, split_keys=("h", "q"))
    keyed.window(Fixed(seconds=10)).aggregate(count(), name="plain").to(Stream("counts", MsgpackCoder(Pane[int])))
    keyed.window(Fixed(seconds=10)).aggregate(count(), name="shards", combiner=Combiner(shards=2)).to(
        Stream("sums", MsgpackCoder(Pane[int]))
    )
    keyed.join(keyed, Fixed(seconds=10), name="join").to(Stream("pairs", MsgpackCoder(Match[str, str])))
    keyed.upsert_to(table, lambda word: [{"word": word, "length": len(word)}])
    Flow(pipeline).read(words).key_by(lambda word: word).deduplicate(SECOND).to(Stream("once", TextCoder()))
    cuts = {name: spec.settings.split_keys for name, spec in pipeline._computations.items()}
    assert cuts.pop("once.deduplicate") == ()
    assert cuts == dict.fromkeys(["plain", "shards.parts", "shards", "join", "lengths.upsert"], ("h", "q"))


def test_a_source_is_injected_with_all_that_a_pipeline_takes() -> None:
    pipeline = Pipeline("p")
    Flow(pipeline).inject(IterableSource("text", []), into=words, percentile=0.99)
    assert pipeline._sources["text"].percentile == 0.99
    flows, pipelines = (inspect.signature(kind.inject).parameters for kind in (Flow, Pipeline))
    assert list(flows) == list(pipelines)
