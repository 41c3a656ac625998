"""What the tests of the library share: scores of players, and panes as short tuples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from millwheel import SECOND, MsgpackCoder, Pipeline, Stream
from millwheel.library import Aggregation, Flow, Pane, sum_of
from millwheel.testing import Results, Stepper

E = TypeVar("E")


def many(each: st.SearchStrategy[E], most: int) -> st.SearchStrategy[list[E]]:
    """Lists of one to `most`, of every length alike: those of `st.lists` are mostly so short that nothing in them meets."""
    return st.integers(1, most).flatmap(lambda size: st.lists(each, min_size=size, max_size=size))


class Score(msgspec.Struct, frozen=True):
    player: str
    points: int


scores = Stream("scores", MsgpackCoder(Score))
panes = Stream("panes", MsgpackCoder(Pane[Any]))
dropped = Stream("dropped", MsgpackCoder(Score))


def windowed(windows: Any, aggregation: Aggregation[Score, Any, Any] | None = None, **settings: Any) -> Pipeline:
    """Scores per player, by default summed; the settings of `window` and of `aggregate`."""
    pipeline = Pipeline("scores")
    of_step = {name: settings.pop(name) for name in ("name", "dropped", "combiner") if name in settings}
    keyed = Flow(pipeline).read(scores).key_by(lambda score: score.player)
    keyed.window(windows, **settings).aggregate(aggregation or sum_of(lambda s: s.points), **of_step).to(panes)
    return pipeline


def send(stepper: Stepper, player: str, points: int, second: float) -> None:
    """One score."""
    stepper.send(scores, Score(player, points), int(second * SECOND))


def found(results: Results, since: int = 0) -> list[tuple[Any, ...]]:
    """(player, start s, end s, value, timing) of panes, in order of arrival."""
    return [
        (out.value.key, out.value.start / SECOND, out.value.end / SECOND, out.value.value, out.value.timing)
        for out in results.outputs(panes)[since:]
    ]


def left(results: Results, names: Iterable[str]) -> dict[str, Any]:
    """State that is still there."""
    return {name: state for name in names if (state := results.states(name))}
