"""Another version says otherwise when a window gives panes, while windows are open: nothing stalls, no record is lost."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from millwheel import MAX_TIME, SECOND
from millwheel.library import (
    Aggregation,
    AtWatermark,
    Combiner,
    EveryRecords,
    EveryWall,
    Fixed,
    Global,
    Once,
    Repeat,
    Sessions,
    Sliding,
    collect,
    seconds,
)
from millwheel.testing import Stepper
from millwheel.testing.kit.view import tapped
from millwheel_injectors import IterableSource
from tests.effort import examples
from tests.unit.library.pipelines import Score, dropped, found, left, panes, scores, send, windowed

NAME = "panes.collect"
FIXED, SLIDING, SESSIONS = Fixed(seconds=10), Sliding(seconds=10, every=seconds(5)), Sessions(seconds=10)


class Versions(Stepper):
    """A pipeline of which another version may go on, with the same windows."""

    def __init__(self, windows: Any, **settings: Any) -> None:
        self._windows = windows
        super().__init__(self._version(settings))

    def _version(self, settings: dict[str, Any]) -> Any:
        points: Aggregation[Score, Any, Any] = collect(int, lambda score: score.points)
        return windowed(self._windows, points, dropped=dropped, **settings)

    def then(self, **settings: Any) -> None:
        """Go on with these settings."""
        self.graph = tapped(self._version(settings), self._sources)
        self.restart()

    def at(self, second: float) -> None:
        """Move the watermark."""
        self.advance_watermark(int(second * SECOND))

    def times(self) -> list[float]:
        """Event times of the panes, s."""
        return [out.timestamp / SECOND for out in self.outputs(panes)]

    def values(self) -> list[tuple[str, list[int]]]:
        """Timing and value of the panes."""
        return [(out.value.timing, out.value.value) for out in self.outputs(panes)]

    def ends(self) -> None:
        """Nothing keeps the watermark, and nothing is left."""
        self.finish()
        self.advance_clock(60 * SECOND)
        assert self.watermark(NAME) == MAX_TIME
        assert left(self, [name for name in self.graph.computations if name.startswith(NAME)]) == {}


# --- the event time of panes ------------------------------------------------------------------------------------

EARLY = AtWatermark(early=EveryRecords(100))
"""With it, sliding windows have an accumulator each, whatever their time."""
TIMES: dict[str, Any] = {"end": "end", "earliest": "earliest", "latest": "latest", "function": lambda time: time - 7}
CHANGES = [
    (before, after) for before, after in permutations(TIMES, 2) if "function" not in (before, after) or after == "end"
]


@pytest.mark.parametrize(
    ("windows", "trigger"),
    [(FIXED, AtWatermark()), (FIXED, EARLY), (SLIDING, EARLY), (SESSIONS, AtWatermark())],
    ids=["fixed", "fixed early", "sliding", "sessions"],
)
@pytest.mark.parametrize(("before", "after"), CHANGES)
@pytest.mark.parametrize("more", [True, False], ids=["a record more", "no record more"])
def test_another_time_holds_from_the_next_record_or_the_end_of_the_window(
    windows: Any, trigger: Any, before: str, after: str, more: bool
) -> None:
    stepper = Versions(windows, time=TIMES[before], trigger=trigger)
    send(stepper, "ann", 1, 2)
    send(stepper, "bob", 2, 3)
    stepper.at(4)
    stepper.then(time=TIMES[after], trigger=trigger)
    if more:
        send(stepper, "ann", 3, 6)
    stepper.at(40)
    assert stepper.watermark(NAME) == 40 * SECOND
    whole = [1, 3] if more else [1]
    assert [pane[3] for pane in found(stepper) if pane[0] == "ann" and pane[1] in (0, 2)] == [whole]
    assert [pane[3] for pane in found(stepper) if pane[0] == "bob" and pane[1] in (0, 3)] == [[2]]
    if after == "end":
        assert all(out.timestamp == out.value.window.last for out in stepper.outputs(panes))
    send(stepper, "ann", 4, 41)
    stepper.at(80)
    assert stepper.watermark(NAME) == 80 * SECOND
    stepper.ends()


@pytest.mark.parametrize("windows", [FIXED, SLIDING, SESSIONS], ids=["fixed", "sliding", "sessions"])
@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_another_time_comes_when_the_watermark_is_at_the_last_instant(windows: Any, before: str, after: str) -> None:
    stepper = Versions(windows, time=TIMES[before], trigger=EARLY)
    send(stepper, "ann", 1, 0)
    stepper.at(10 - 1 / SECOND)
    stepper.then(time=TIMES[after], trigger=EARLY)
    send(stepper, "ann", 2, 10 - 1 / SECOND)
    assert stepper.watermark(NAME) < 10 * SECOND
    assert found(stepper, 0)[1:] == []  # of sliding windows, one had its end before
    stepper.ends()
    assert [1, 2] in [value for _, value in stepper.values()]


@pytest.mark.parametrize("every", [EveryRecords(3), EveryWall(seconds=5)])
@pytest.mark.parametrize("lateness", [0, 20])
def test_what_a_repeated_trigger_has_not_given_keeps_the_watermark_no_longer(every: Any, lateness: int) -> None:
    stepper = Versions(FIXED, time="earliest", trigger=Repeat(every), lateness=seconds(lateness))
    send(stepper, "ann", 1, 2)
    if lateness:
        stepper.at(12)
    assert stepper.watermark(NAME) <= 2 * SECOND
    stepper.then(time="end", trigger=Repeat(every), lateness=seconds(lateness))
    send(stepper, "ann", 2, 3)
    stepper.advance_clock(5 * SECOND)
    stepper.at(14)
    if lateness:
        assert stepper.watermark(NAME) == 14 * SECOND
    stepper.at(60)
    assert stepper.watermark(NAME) == 60 * SECOND
    assert [n for _, value in stepper.values() for n in value] == [1, 2]
    assert {*stepper.times()} == {10 - 1 / SECOND}
    stepper.ends()


def test_another_trigger_does_not_keep_the_watermark_for_what_was_given_early() -> None:
    counting = AtWatermark(early=EveryRecords(1))
    stepper = Versions(FIXED, time="earliest", trigger=counting, lateness=seconds(100))
    send(stepper, "ann", 1, 2)
    stepper.then(time="earliest", trigger=Repeat(EveryRecords(1)), lateness=seconds(100))
    stepper.at(12)
    assert stepper.watermark(NAME) == 12 * SECOND
    stepper.ends()


@pytest.mark.parametrize("settings", [{"time": "earliest"}, {"trigger": EARLY}])
def test_what_is_stored_otherwise_is_refused(settings: dict[str, Any]) -> None:
    """Sliding windows are stored in slices, unless each has a time of its own or its records are counted."""

    def cells(**settings: Any) -> dict[str, str]:
        pipeline = windowed(SLIDING, **settings)
        pipeline.inject(IterableSource("source", []), into=scores)
        coders = pipeline.graph().shape().coders
        return {name: coder for name, coder in coders.items() if name.startswith("cell:") and "accumulators" in name}

    assert cells() != cells(**settings)
    assert cells() == cells(lateness=seconds(9), panes="discarding", trigger=AtWatermark(late=None))


# --- triggers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [FIXED, SESSIONS], ids=["fixed", "sessions"])
@pytest.mark.parametrize("after", [Repeat(EveryRecords(5)), Repeat(EveryRecords(1)), Once(EveryRecords(5))])
@pytest.mark.parametrize("lateness", [0, 5])
def test_what_was_gathered_without_a_count_is_given_by_a_trigger_that_counts(
    windows: Any, after: Any, lateness: int
) -> None:
    stepper = Versions(windows, lateness=seconds(lateness))
    send(stepper, "ann", 1, 2)
    stepper.then(trigger=after, lateness=seconds(lateness))
    stepper.at(60)
    assert [value for _, value in stepper.values()] == [[1]]
    stepper.ends()


@pytest.mark.parametrize("after", [AtWatermark(), EARLY])
@pytest.mark.parametrize("more", [True, False])
def test_a_window_that_has_given_its_one_pane_takes_records_again(after: Any, more: bool) -> None:
    stepper = Versions(FIXED, trigger=Once(EveryRecords(1)))
    send(stepper, "ann", 1, 2)
    stepper.then(trigger=after)
    if more:
        send(stepper, "ann", 2, 3)
    stepper.ends()
    assert stepper.values() == [("early", [1]), *([("on time", [2])] if more else [])]
    assert stepper.outputs(dropped) == []


@pytest.mark.parametrize("after", [None, EveryRecords(3)])
def test_a_trigger_of_wall_time_that_is_gone_gives_nothing_any_more(after: Any) -> None:
    stepper = Versions(FIXED, trigger=AtWatermark(early=EveryWall(seconds=5)))
    send(stepper, "ann", 1, 2)
    stepper.then(trigger=AtWatermark(early=after))
    send(stepper, "ann", 2, 3)
    stepper.advance_clock(6 * SECOND)
    assert stepper.values() == []
    stepper.then(trigger=AtWatermark(early=EveryWall(seconds=5)))
    send(stepper, "ann", 3, 4)
    stepper.advance_clock(6 * SECOND)
    assert stepper.values() == [("early", [1, 2, 3])]
    stepper.ends()
    assert stepper.values()[1:] == [("on time", [1, 2, 3])]


@pytest.mark.parametrize("every", [EveryRecords(3), EveryWall(seconds=5)])
@pytest.mark.parametrize("lateness", [0, 5])
def test_records_that_nothing_has_counted_are_in_the_last_pane(every: Any, lateness: int) -> None:
    """Without a pane at the watermark there is no other that would have them."""
    stepper = Versions(FIXED, lateness=seconds(lateness))
    send(stepper, "ann", 1, 2)
    stepper.then(trigger=Repeat(every), lateness=seconds(lateness))
    stepper.at(20)
    assert [values for _, values in stepper.values()] == [[1]]
    stepper.ends()


LATE = [EveryRecords(3), EveryWall(seconds=5)]
THEN: list[dict[str, Any]] = [
    {"trigger": AtWatermark(late=None)},
    {"trigger": AtWatermark(), "lateness": seconds(0)},
    {"trigger": AtWatermark(late=EveryWall(seconds=9)), "lateness": seconds(0)},
    {"trigger": AtWatermark(), "lateness": seconds(5)},
    {"trigger": AtWatermark(), "lateness": seconds(20)},
    {"trigger": AtWatermark(), "lateness": seconds(40)},
    {"trigger": Repeat(EveryRecords(1)), "lateness": seconds(20)},
]


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("after", THEN)
@pytest.mark.parametrize("kind", ["accumulating", "discarding"])
def test_late_records_that_were_gathered_are_given(late: Any, after: dict[str, Any], kind: Any) -> None:
    stepper = Versions(FIXED, trigger=AtWatermark(late=late), lateness=seconds(20), panes=kind)
    send(stepper, "ann", 1, 2)
    stepper.at(12)
    send(stepper, "ann", 2, 3)
    stepper.then(panes=kind, **after)
    stepper.advance_clock(20 * SECOND)
    stepper.at(70)
    assert stepper.values() == [("on time", [1]), ("late", [2] if kind == "discarding" else [1, 2])]
    assert {*stepper.times()} == {10 - 1 / SECOND}
    stepper.ends()


# --- lateness ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", [AtWatermark(), EARLY], ids=["plain", "early"])
@pytest.mark.parametrize("windows", [FIXED, SLIDING, SESSIONS], ids=["fixed", "sliding", "sessions"])
@pytest.mark.parametrize("before", [0, 5, 20])
@pytest.mark.parametrize("after", [0, 5, 20])
def test_another_lateness_holds_for_windows_that_are_not_over(
    windows: Any, trigger: Any, before: int, after: int
) -> None:
    stepper = Versions(windows, lateness=seconds(before), trigger=trigger)
    send(stepper, "ann", 1, 2)
    stepper.then(lateness=seconds(after), trigger=trigger)
    for second, points in ((14, 2), (27, 3), (45, 4)):
        stepper.at(second)
        send(stepper, "ann", points, 3)
    within = [points for points, last in ((1, 0), (2, 5), (3, 20)) if last <= after]
    first = [pane for pane in found(stepper) if pane[1] in (0, 2)]
    assert first[-1][3] == within
    assert len(first) == len(within)
    assert sorted(out.value.points for out in stepper.outputs(dropped)) == [2, 3, 4][len(within) - 1 :]
    stepper.ends()


@pytest.mark.parametrize("trigger", [AtWatermark(), EARLY], ids=["plain", "early"])
@pytest.mark.parametrize("windows", [FIXED, SLIDING, SESSIONS], ids=["fixed", "sliding", "sessions"])
@pytest.mark.parametrize("after", [0, 5, 40])
def test_another_lateness_holds_for_windows_that_have_had_their_end(windows: Any, trigger: Any, after: int) -> None:
    stepper = Versions(windows, lateness=seconds(20), trigger=trigger)
    send(stepper, "ann", 1, 2)
    stepper.at(14)
    stepper.then(lateness=seconds(after), trigger=trigger)
    for second, points in ((14, 2), (35, 3), (60, 4)):
        stepper.at(second)
        send(stepper, "ann", points, 3)
    within = [points for points, last in ((1, 0), (2, 5), (3, 40)) if last <= after]
    first = [pane for pane in found(stepper) if pane[1] in (0, 2)]
    assert first[-1][3] == within
    assert sorted(out.value.points for out in stepper.outputs(dropped)) == [2, 3, 4][len(within) - 1 :]
    stepper.ends()


def test_a_longer_lateness_leaves_no_slice_behind() -> None:
    stepper = Versions(SLIDING)
    send(stepper, "ann", 1, 2)
    send(stepper, "ann", 2, 8)
    stepper.at(9)
    stepper.then(lateness=seconds(10))
    stepper.at(22)
    send(stepper, "ann", 3, 7)
    stepper.at(100)
    assert left(stepper, [NAME]) == {}
    assert found(stepper)[-1] == ("ann", 5, 15, [3, 2], "late")


# --- what a pane holds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("windows", [FIXED, SLIDING], ids=["fixed", "sliding"])
def test_panes_that_discard_from_now_on_do_not_repeat_what_the_pane_at_the_watermark_had(windows: Any) -> None:
    stepper = Versions(windows, lateness=seconds(20))
    send(stepper, "ann", 1, 6)
    stepper.at(16)
    stepper.then(lateness=seconds(20), panes="discarding")
    before = len(stepper.values())
    send(stepper, "ann", 2, 7)
    send(stepper, "ann", 3, 8)
    assert {tuple(value) for _, value in stepper.values()[before:]} == {(2,), (3,)}
    stepper.then(lateness=seconds(20), panes="accumulating")
    send(stepper, "ann", 4, 9)
    assert stepper.values()[-1][1][-1] == 4
    stepper.ends()


def test_a_global_window_counts_what_an_earlier_version_had() -> None:
    stepper = Versions(Global(), trigger=Repeat(EveryRecords(2)), time="latest")
    for second in (1, 2, 3):
        send(stepper, "ann", second, second)
    stepper.then(trigger=Repeat(EveryRecords(1)))
    send(stepper, "ann", 4, 4)
    stepper.at(9)
    assert stepper.watermark(NAME) == 9 * SECOND
    assert [value for _, value in stepper.values()] == [[1, 2], [1, 2, 3, 4]]
    stepper.ends()


def test_a_session_whose_gap_changes_goes_on() -> None:
    stepper = Versions(Sessions(seconds=10), time="earliest")
    send(stepper, "ann", 1, 2)
    stepper._windows = Sessions(seconds=4)
    stepper.then(time="end")
    send(stepper, "ann", 2, 10)
    stepper.at(30)
    assert found(stepper) == [("ann", 2, 14, [1, 2], "on time")]
    assert stepper.watermark(NAME) == 30 * SECOND
    stepper.ends()


# --- all of it, by chance ---------------------------------------------------------------------------------------

ANY: dict[str, list[Any]] = {
    "trigger": [
        AtWatermark(early=EveryRecords(2)),
        AtWatermark(early=EveryRecords(2), late=EveryRecords(3)),
        AtWatermark(early=EveryWall(seconds=3), late=EveryWall(seconds=5)),
        AtWatermark(early=EveryRecords(100), late=None),
        Repeat(EveryRecords(2)),
        Repeat(EveryWall(seconds=4)),
    ],
    "time": [*TIMES.values()],
    "lateness": [seconds(0), seconds(3), seconds(9)],
    "panes": ["accumulating", "discarding"],
}
PLAIN: dict[str, list[Any]] = {
    **ANY,
    "trigger": [*ANY["trigger"], AtWatermark(), AtWatermark(late=None), AtWatermark(late=EveryRecords(2))],
}
SLICED: dict[str, list[Any]] = {
    "trigger": [AtWatermark(), AtWatermark(late=None)], "lateness": ANY["lateness"], "panes": ANY["panes"]
}  # fmt: skip


def with_shards(choice: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The same for an aggregation with a combiner."""
    triggers = [trigger for trigger in choice["trigger"] if isinstance(trigger, AtWatermark)]
    combiner = Combiner(3, by=lambda score: score.points)
    return {**choice, "time": ["end"], "trigger": triggers, "combiner": [combiner], "name": [NAME]}


@pytest.mark.parametrize(
    ("windows", "choice"),
    [
        *[(FIXED, PLAIN), (SLIDING, ANY), (SLIDING, SLICED), (SESSIONS, PLAIN)],
        *[(FIXED, with_shards(PLAIN)), (SLIDING, with_shards(ANY)), (SLIDING, with_shards(SLICED))],
    ],
    ids=["fixed", "sliding", "slices", "sessions", "fixed in shards", "sliding in shards", "slices in shards"],
)
@pytest.mark.parametrize("block", range(examples(2)))
def test_each_record_is_in_a_pane_or_dropped_whatever_changes_when(windows: Any, choice: Any, block: int) -> None:
    for seed in range(block * 8, block * 8 + 8):
        _by_chance(random.Random(seed), windows, choice)


def _by_chance(rng: random.Random, windows: Any, choice: dict[str, list[Any]]) -> None:
    pick: Callable[[], dict[str, Any]] = lambda: {name: rng.choice(of) for name, of in choice.items()}  # noqa: E731
    stepper = Versions(windows, **pick())
    now, sent = 0.0, []
    for number in range(40):
        what = rng.random()
        if what < 0.6:
            sent.append(number)
            stepper.send(scores, Score("ann", number), max(0, int((now + rng.uniform(-12, 8)) * SECOND)))
        elif what < 0.85:
            now = int(now) + rng.randrange(1, 6) - rng.choice([0, 0, 1 / SECOND])
            stepper.at(now)
        elif what < 0.95:
            stepper.advance_clock(rng.randrange(1, 7) * SECOND)
        elif number < 30:
            stepper.then(**pick())
    stepper.ends()
    given = {number for _, value in stepper.values() for number in value}
    gone = Counter(out.value.points for out in stepper.outputs(dropped))
    assert given.isdisjoint(gone)
    assert {*given, *gone} == {*sent}
    assert [*gone.values()] == [1] * len(gone)
