"""One search by hand: each step of a source is put to the store, and its answer goes back."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel.host.alphabet import Discover, Discovery, Pause, Seek
from millwheel.host.requests import AddSigns, FindPartitions, UnknownSigns
from millwheel.host.searching import search
from millwheel.ids import IntervalId
from millwheel.model import MAX_TIME
from millwheel.search import BlockingCall, Find, GiveWay, MoreSigns, Step, Unknown

FOUND = Discovery((("a", b""),), True, MAX_TIME, 0)
SIGNS = {IntervalId(4): [b"s"]}


@pytest.mark.parametrize(
    ("step", "wish", "answer"),
    [
        (GiveWay(), Pause(0), None),
        (Unknown([b"s"]), UnknownSigns("text", [b"s"]), {b"s"}),
        (Find([b"s"], ["a"]), FindPartitions("text", [b"s"], ["a"]), []),
        (MoreSigns(SIGNS), AddSigns("text", SIGNS), None),
    ],
)
def test_a_step_is_answered_by_the_store(step: Step, wish: Any, answer: Any) -> None:
    steps = search("text", (), lambda: None)
    assert next(steps) == Discover("text", ())
    assert steps.send(step) == wish
    assert steps.send(answer) == Seek("text", answer)
    with pytest.raises(StopIteration) as end:
        steps.send(FOUND)
    assert end.value.value == FOUND


@pytest.mark.parametrize(("unknown", "stirs"), [({b"s", b"t"}, 0), ({b"t"}, 1), (set(), 1)])
def test_what_is_known_already_stirs_the_source(unknown: set[bytes], stirs: int) -> None:
    stirred: list[None] = []
    steps = search("text", None, lambda: stirred.append(None))
    next(steps)
    steps.send(Unknown([b"s", b"t", b"t"]))
    steps.send(unknown)
    assert len(stirred) == stirs


def test_a_call_that_may_take_long_is_the_shells() -> None:
    steps = search("text", None, lambda: None)
    next(steps)
    with pytest.raises(AssertionError, match="a shell left BlockingCall of a search to its host"):
        steps.send(BlockingCall(lambda: None))
