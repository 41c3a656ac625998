"""What is wrong in a chain is said where it is written, in the words of what is expected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import millwheel.library
from millwheel import MsgpackCoder, Pipeline, Stream, TextCoder
from millwheel.errors import WiringError
from millwheel.library import Fixed, Flow, Pane, count, minutes
from millwheel.library.expected import check_aggregation, check_trigger, check_windows
from millwheel.testing import Stepper
from millwheel_injectors import IterableSource

words = Stream("words", TextCoder())
counts = Stream("counts", MsgpackCoder(Pane[int]))


def chain(pipeline: Pipeline) -> Any:
    return Flow(pipeline).inject(IterableSource("text", []), into=words)


def in_windows(words: Any) -> Any:
    return words.key_by(str).window(Fixed(minutes=1))


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda words: words.window(Fixed(minutes=1)), r"window\(...\) is a step of values by key: call .key_by\(...\)"),
        (lambda words: words.join(words, Fixed(minutes=1)), r"join\(...\) is a step of values by key"),
        (lambda words: words.key_by(str).window("1m"), r"needs windows, got '1m'; for example Fixed\(minutes=10\)"),
        (lambda words: words.key_by(str).window(Fixed(minutes=1), "early"), "needs a trigger, got 'early'"),
        (lambda words: words.key_by(str).window(Fixed(minutes=1)).aggregate(count), r"call it, count\(...\)"),
        (lambda words: words.key_by(str).running(len), r"call it, len\(...\)"),
        (
            lambda words: words.key_by(str).join_aggregate(words.key_by(str), lambda word: minutes(1), "count"),
            r"got 'count': for example count\(\)",
        ),
        (lambda words: in_windows(words).join(words.key_by(str), Fixed(minutes=1)), "give the windows to the join"),
        (lambda words: words.key_by(str).join(in_windows(words), Fixed(minutes=1)), "give the windows to the join"),
        (lambda words: in_windows(words).join_as_of(words.key_by(str)), "so there is no trigger"),
        (lambda words: words.flow.join_all([words.key_by(str), in_windows(words)], Fixed(minutes=1)), "give the windows"),
        (lambda words: words.key_by(str).join(words, Fixed(minutes=1)), r"call .key_by\(...\) on each chain that is"),
        (lambda words: words.key_by(str).join(words.key_by(str), "1m"), "a join needs windows or an Interval, got '1m'"),
        (lambda words: in_windows(words).throttle(1, minutes(1)), r"throttle\(...\) is a step of values by key"),
        (lambda words: words.key_by(str).window(Fixed(minutes=1), time="start"), "time='start': use 'end', 'earliest'"),
        (lambda words: words.to("counts"), r"to\(...\) needs a Stream, got 'counts'"),
    ],
)  # fmt: skip
def test_it_says_what_is_expected(write: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(WiringError, match=says):
        write(chain(Pipeline("p")))


library: Any = millwheel.library
"""Without its types, which refuse these mistakes as well."""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: library.Repeat(5), r"Repeat\(every=5\): give EveryRecords\(...\) or EveryWall\(...\)"),
        (lambda: library.Once(library.AtWatermark()), r"Once\(every=AtWatermark\(.*: give EveryRecords"),
        (
            lambda: library.AtWatermark(early=5),
            r"AtWatermark\(early=5\): give EveryRecords\(...\), EveryWall\(...\) or None",
        ),
        (lambda: library.AtWatermark(early=library.EveryRecords), r"AtWatermark\(early=<class .*: give EveryRecords"),
        (lambda: library.AtWatermark(late=True), r"AtWatermark\(late=True\): give EveryRecords"),
        (lambda: library.minutes("5"), r"minutes\('5'\): give a number"),
        (lambda: library.seconds(float("nan")), r"seconds\(nan\): give a number"),
        (lambda: Fixed(minutes=float("inf")), r"minutes\(inf\): give a number"),
        (lambda: library.Calendar("day", 5), "time zone 5: give its name, such as 'Europe/Berlin'"),
        (lambda: Flow("p"), "a flow needs a Pipeline, got 'p'"),  # type: ignore[arg-type]
    ],
)
def test_a_trigger_or_a_length_that_is_none_is_refused_where_it_is_made(make: Callable[[], Any], says: str) -> None:
    # Repeat(5) gave no pane, and the run ended with status 0.
    with pytest.raises(WiringError, match=says):
        make()


def test_what_no_chain_has_is_missing_as_ever() -> None:
    words = chain(Pipeline("p"))
    with pytest.raises(AttributeError, match="a chain has no 'windwo'"):
        _ = words.windwo
    assert not hasattr(words, "__length_hint__")
    with pytest.raises(AttributeError, match=r"values in windows have no 'map': call .aggregate\(...\) first"):
        _ = in_windows(words).map
    assert not hasattr(in_windows(words), "__length_hint__")


def test_a_keyed_step_that_goes_nowhere_is_refused() -> None:
    """Nothing of it would run, and nobody would be told."""
    pipeline = Pipeline("p")
    panes = chain(pipeline).key_by(str).window(Fixed(minutes=1)).aggregate(count())
    for use in (pipeline.graph, lambda: Stepper(pipeline)):
        with pytest.raises(WiringError, match="the results of 'count' go nowhere: end its chain in a stream"):
            use()
    panes.to(counts).key_by(lambda pane: pane.key).append_to("panes", {}, lambda pane: {})
    pipeline.graph()
    Flow(pipeline).read(words).key_by(str).window(Fixed(minutes=5)).aggregate(count(), name="five")
    with pytest.raises(WiringError, match="the results of 'five' go nowhere"):
        pipeline.graph()


def test_what_is_expected_passes() -> None:
    check_windows(Fixed(minutes=1))
    check_trigger(None)
    check_aggregation(count())
