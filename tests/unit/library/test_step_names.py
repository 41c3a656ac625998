"""State never moves to another operator in silence: names do not depend on the rest, and cells say what they hold."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel import JsonCoder, MsgpackCoder, Pipeline, Stream
from millwheel.library import (
    AtWatermark,
    Calendar,
    Chain,
    EveryRecords,
    Fixed,
    Flow,
    Global,
    Interval,
    Sessions,
    Sliding,
    Validity,
    Wall,
    collect,
    count,
    distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    minutes,
    seconds,
    sum_of,
    top,
)
from millwheel.ports import PipelineShape
from millwheel_injectors import IterableSource
from millwheel_storage.schema.evolution import plan


class Seen(msgspec.Struct, frozen=True):
    user: str
    number: int


inputs = Stream("inputs", MsgpackCoder(Seen))
others = Stream("others", MsgpackCoder(Seen))

Step = Callable[[Any, Any], Chain[Any]]

AGGREGATIONS: dict[str, Any] = {
    "count": count(), "sum": sum_of(lambda seen: seen.number), "mean": mean(lambda seen: seen.number),
    "min": minimum(lambda seen: seen.number), "max": maximum(lambda seen: seen.number), "first": first(Seen),
    "last": last(Seen), "top": top(3, lambda seen: seen.number, Seen), "top 4": top(4, lambda seen: seen.number, Seen),
    "distinct": distinct(lambda seen: seen.number, int), "collect": collect(Seen),
}  # fmt: skip
WINDOWS: dict[str, Any] = {
    "fixed": Fixed(minutes=1), "wider": Fixed(minutes=2), "shifted": Fixed(minutes=1, offset=seconds(1)),
    "sliding": Sliding(minutes=2, every=minutes(1)), "denser": Sliding(minutes=2, every=seconds(30)),
    "sessions": Sessions(minutes=1), "days": Calendar("day"), "weeks": Calendar("week"),
    "days there": Calendar("day", "Europe/Berlin"), "all": Global(), "validity": Validity(), "wall": Wall(minutes=1),
}  # fmt: skip


def aggregated(windows: Any, of: Any) -> Step:
    return lambda one, other: one.window(windows).aggregate(of)


STEPS: dict[str, Step] = {
    **{name: aggregated(WINDOWS["fixed"], of) for name, of in AGGREGATIONS.items()},
    **{f"count of {name}": aggregated(windows, count()) for name, windows in list(WINDOWS.items())[1:]},
    "counted sliding": lambda a, b: a.window(
        Sliding(minutes=2, every=minutes(1)), AtWatermark(early=EveryRecords(3))
    ).aggregate(count()),
    "join of a minute": lambda a, b: a.join(b, Fixed(minutes=1)),
    "join of sessions": lambda a, b: a.join(b, Sessions(minutes=1)),
    "join of an interval": lambda a, b: a.join(b, Interval(after=minutes(1))),
    "join of another": lambda a, b: a.join(b, Interval(after=minutes(2))),
    "join as of": lambda a, b: a.join_as_of(b),
    "join one": lambda a, b: a.join_one(b),
    "join aggregate": lambda a, b: a.join_aggregate(b, Interval(after=minutes(1)), count()),
    "join aggregate before": lambda a, b: a.join_aggregate(b, Interval(before=minutes(1)), count()),
    "join aggregate of spans": lambda a, b: a.join_aggregate(b, lambda seen: minutes(1), count()),
    "join mean": lambda a, b: a.join_aggregate(b, Interval(after=minutes(1)), mean(lambda seen: seen.number)),
    "running": lambda a, b: a.running(maximum(lambda seen: seen.number)),
    "running top": lambda a, b: a.running(top(3, lambda seen: seen.number, Seen)),
    "running of 3": lambda a, b: a.running(maximum(lambda seen: seen.number), last=3),
    "running of 4": lambda a, b: a.running(maximum(lambda seen: seen.number), last=4),
    "deduplicate": lambda a, b: a.deduplicate(minutes(1), lambda seen: str(seen.number)),
    "throttle": lambda a, b: a.throttle(3, minutes(1)),
    "changed": lambda a, b: a.distinct_until_changed(),
}  # fmt: skip


def cells(pipeline: Pipeline) -> dict[str, dict[str, str]]:
    """Fingerprints of the cells of each computation."""
    found: dict[str, dict[str, str]] = {}
    for name, fingerprint in pipeline.graph().shape().coders.items():
        kind, _, rest = name.partition(":")
        if kind == "cell" and not rest.startswith("published:"):
            computation, _, cell = rest.rpartition(".")
            found.setdefault(computation, {})[cell] = fingerprint
    return found


def added(flow: Flow, number: int, step: str, filtered: bool, mapped: bool) -> None:
    def keyed(stream: Stream[Seen]) -> Any:
        chain = flow.read(stream)
        chain = chain.filter(lambda seen: seen.number > 1) if filtered else chain
        return (chain.map(lambda seen: seen, MsgpackCoder(Seen)) if mapped else chain).key_by(lambda seen: seen.user)

    STEPS[step](keyed(inputs), keyed(others)).map(str).to(Stream(f"out{number}", JsonCoder(str)))


def wired(steps: list[tuple[int, str, bool, bool]]) -> Pipeline:
    pipeline = Pipeline("names")
    flow = Flow(pipeline)
    flow.inject(IterableSource("one", []), into=inputs)
    flow.inject(IterableSource("two", []), into=others)
    pipeline.publish(inputs)
    pipeline.publish(others)
    for step in steps:
        added(flow, *step)
    return pipeline


def computations_of(number: int, step: str) -> dict[str, dict[str, str]]:
    return cells(wired([(number, step, False, False)]))


EDITED = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(sorted(STEPS)), st.booleans(), st.booleans()),
    min_size=1, max_size=5, unique_by=lambda step: step[0],
)  # fmt: skip


@given(EDITED)
def test_a_step_keeps_its_name_and_its_cells_whatever_stands_around_it(
    steps: list[tuple[int, str, bool, bool]],
) -> None:
    expected: dict[str, dict[str, str]] = {}
    for number, step, _, _ in steps:
        expected |= computations_of(number, step)
    assert cells(wired(steps)) == expected


def silent(old: PipelineShape, new: PipelineShape) -> bool:
    """Whether a store that holds state of `old` goes on with `new`: it refuses other meanings, and cells that are gone."""
    found = plan(old, new)
    return not found.refusals and not found.missing


def test_no_step_reads_the_state_of_another_kind_under_one_name() -> None:
    under_one_name = {step: wired([(0, step, False, False)]).graph().shape() for step in STEPS}
    assert all(cells(wired([(0, step, False, False)])) for step in STEPS)
    assert [pair for pair in permutations(STEPS, 2) if silent(*(under_one_name[step] for step in pair))] == []


class SeenMore(msgspec.Struct, frozen=True):
    user: str
    number: int
    page: str = "/"


class SeenOtherwise(msgspec.Struct, frozen=True):
    user: str
    number: list[str]


KEEPS_VALUES = {step for step in STEPS if step.startswith(("join", "running", "changed"))}
"""The others keep aggregates, whose own coders say what they are of, or nothing of a value."""


@pytest.mark.parametrize("step", sorted(STEPS))
def test_a_value_may_gain_a_field_where_a_step_keeps_values(step: str) -> None:
    """What a step means is not what its values look like."""

    def shape(type_: type[Any]) -> PipelineShape:
        pipeline = Pipeline("names")
        streams = [Stream(name, MsgpackCoder(type_)) for name in ("one", "two")]
        keyed = [
            Flow(pipeline).inject(IterableSource(stream.name, []), stream).key_by(lambda seen: seen.user)
            for stream in streams
        ]
        for stream in streams:
            pipeline.publish(stream)
        STEPS[step](*keyed).map(str).to(Stream("out", JsonCoder(str)))
        return pipeline.graph().shape()

    assert plan(shape(Seen), shape(SeenMore)).refusals == []


@pytest.mark.parametrize("step", sorted(STEPS))
def test_values_of_another_type_are_never_read_as_those_of_before(step: str) -> None:
    """The streams are the same; what a step of the chain makes of their values is not."""

    def shape(type_: type[Any]) -> PipelineShape:
        pipeline = Pipeline("names")
        flow = Flow(pipeline)
        keyed = [
            flow.inject(IterableSource(stream.name, []), stream)
            .map(lambda seen: seen, MsgpackCoder(type_))
            .key_by(lambda seen: seen.user)
            for stream in (inputs, others)
        ]
        pipeline.publish(inputs)
        pipeline.publish(others)
        STEPS[step](*keyed).map(str).to(Stream("out", JsonCoder(str)))
        return pipeline.graph().shape()

    assert silent(shape(Seen), shape(SeenOtherwise)) == (step not in KEEPS_VALUES)


@pytest.mark.parametrize(
    "join",
    [
        lambda flow, one, two: one.join(two, Fixed(minutes=1), name="join"),
        lambda flow, one, two: flow.join_all([one, two], Fixed(minutes=1), name="join"),
    ],
)
def test_a_value_may_gain_a_field_where_rows_go_on_without_a_stream_of_the_user(join: Any) -> None:
    def shape(type_: type[Any]) -> PipelineShape:
        pipeline = Pipeline("names")
        flow = Flow(pipeline)
        streams = [Stream(name, MsgpackCoder(type_)) for name in ("one", "two")]
        keyed = [
            flow.inject(IterableSource(stream.name, []), stream).key_by(lambda seen: seen.user) for stream in streams
        ]
        rows = join(flow, *keyed).key_by(lambda row: row.key)
        rows.window(Fixed(minutes=1)).aggregate(count()).map(str).to(Stream("out", JsonCoder(str)))
        return pipeline.graph().shape()

    found = plan(shape(Seen), shape(SeenMore))
    assert found.refusals == []
    told = [change for change in found.changes if change.startswith("stream:join.out")]
    assert len(told) == 2
    assert all("page' was added" in change for change in told)
    assert plan(shape(SeenMore), shape(Seen)).refusals != []
