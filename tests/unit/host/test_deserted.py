"""Whether the run of a cluster without workers is over."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from millwheel import limits
from millwheel.cluster import ClusterMap, Member, PlacedInterval, PlacedSource
from millwheel.host.deserted import Deserted, is_finished
from millwheel.host.requests import ListUnfinished, ReadWatermarks
from millwheel.ids import IntervalId, Sequencer
from millwheel.model import MAX_TIME

WORKER = Member(2, "w", "worker", "here:2")
DEAD = Member(3, "w", "worker", "here:3", alive=False)
END = {"count": MAX_TIME, "source:text": MAX_TIME}


def seen(*members: Member) -> ClusterMap:
    interval = PlacedInterval(IntervalId(1), "count", "", None, None, Sequencer(7))
    return ClusterMap(1, None, members, (interval,), (PlacedSource("text", None),))


def ask(
    deserted: Deserted, found: ClusterMap, now: int, watermarks: Mapping[str, int] = END, open_: Sequence[Any] = ()
) -> bool:
    """What it says of a map, on a store that says this."""
    steps = deserted.over(found, now)
    answer: Any = None
    try:
        while True:
            wish = steps.send(answer)
            answer = {ReadWatermarks: dict(watermarks), ListUnfinished: [*open_]}[type(wish)]  # type: ignore[index]
    except StopIteration as end:
        return bool(end.value)


def test_a_finished_run_is_over_when_nobody_came_for_long() -> None:
    deserted = Deserted()
    assert not ask(deserted, seen(DEAD), 0)
    assert not ask(deserted, seen(DEAD), limits.DESERTED_US - 1)
    assert not ask(deserted, seen(DEAD), limits.DESERTED_US)  # it asks; the next map decides
    assert ask(deserted, seen(DEAD), limits.DESERTED_US + 1)


def test_a_worker_that_comes_while_the_store_is_asked_is_waited_for() -> None:
    deserted = Deserted()
    for now in (0, limits.DESERTED_US):
        assert not ask(deserted, seen(), now)
    assert not ask(deserted, seen(WORKER), limits.DESERTED_US + 1)
    assert not ask(deserted, seen(), limits.DESERTED_US + 2)  # its time counts from here
    assert not ask(deserted, seen(), 2 * limits.DESERTED_US + 1)


@pytest.mark.parametrize(
    ("watermarks", "open_"),
    [({}, ()), ({**END, "count": MAX_TIME - 1}, ()), ({"count": MAX_TIME}, ()), (END, (("text", None),))],
)
def test_a_run_with_something_left_waits_for_its_workers(watermarks: Mapping[str, int], open_: Sequence[Any]) -> None:
    deserted = Deserted()
    for turn in range(5):
        assert not ask(deserted, seen(), turn * limits.DESERTED_US, watermarks, open_)
    # A worker that nobody knew finished it meanwhile.
    assert not ask(deserted, seen(), 5 * limits.DESERTED_US)
    assert ask(deserted, seen(), 5 * limits.DESERTED_US + 1)


def test_the_store_is_asked_once_in_a_while_and_not_with_every_map() -> None:
    deserted, asked = Deserted(), 0
    for step in range(21):
        steps = deserted.over(seen(), step * limits.DESERTED_US // 10)
        with contextlib.suppress(StopIteration):
            assert isinstance(next(steps), ReadWatermarks)
            asked += 1
            steps.send({})
            steps.send([])
    assert asked == 2


def test_a_clock_that_was_put_back_makes_it_wait_longer_and_not_for_ever() -> None:
    deserted = Deserted()
    assert not ask(deserted, seen(), 10 * limits.DESERTED_US)
    assert not ask(deserted, seen(), 0)
    assert not ask(deserted, seen(), limits.DESERTED_US)
    assert ask(deserted, seen(), limits.DESERTED_US + 1)


def test_a_map_of_nothing_is_not_finished() -> None:
    assert not is_finished(ClusterMap(0, None, (), (), ()), {})
