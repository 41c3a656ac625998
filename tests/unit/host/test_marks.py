"""Marks: written one group at a time, and what runs alone has the process for itself."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import pytest

from millwheel.core.interval import events as ev
from millwheel.host.actors import Actor
from millwheel.host.marks import Marks, mark_writes
from millwheel.host.procedures import Steps
from millwheel.host.requests import WriteMarks
from millwheel.ids import IntervalId, Sequencer
from millwheel.ports import MarkWrite
from millwheel.work import Work
from tests.unit.core.bench import Bench

NOTHING = Work([], [], {}, {}, {}, 0, 0)


def actor(interval: IntervalId) -> Actor:
    return Actor(interval=interval, sequencer=Sequencer(100 + interval), owner="c", core=Bench().core)


class Host:
    """What marks ask of a host, and do to it."""

    def __init__(self) -> None:
        self.marks = Marks(
            self._begin, lambda a, event: self.told.append((a.interval, type(event).__name__)), self._invoke
        )
        self.steps: list[Steps] = []
        self.written: list[list[int]] = []
        self.told: list[tuple[int, str]] = []
        self.invoked: list[int] = []

    def _begin(self, steps: Steps) -> None:
        self.steps.append(steps)
        self._note(next(steps, None))

    def _invoke(self, a: Actor, work: Work) -> None:
        self.invoked.append(a.interval)

    def _note(self, wish: Any) -> None:
        if wish is not None:
            self.written.append([write.interval for write in cast(WriteMarks, wish).writes])

    def answer(self, *kept: int) -> None:
        """The store has written those of the intervals `kept`."""
        with suppress(StopIteration):
            self._note(self.steps[-1].send({*kept}))


def test_marks_that_come_while_one_group_is_written_go_together() -> None:
    host, (a, b, c) = Host(), map(actor, (IntervalId(1), IntervalId(2), IntervalId(3)))
    host.marks.perform(a, ev.Mark(b"a", False))
    host.marks.flush()
    for other in (b, c):
        host.marks.perform(other, ev.Mark(b"x", False))
        host.marks.flush()
    assert host.written == [[1]], "one group at a time"
    host.answer(1)
    assert host.written == [[1], [2, 3]]
    assert not host.marks.idle()
    host.answer(2, 3)
    assert host.told == [(1, "Marked"), (2, "Marked"), (3, "Marked")]
    assert host.marks.idle()


def test_a_mark_that_is_not_kept_was_of_an_earlier_owner() -> None:
    host = Host()
    host.marks.perform(actor(IntervalId(1)), ev.Mark(b"a", False))
    host.marks.flush()
    host.answer()
    assert host.told == [(1, "WriteFenced")]


def test_others_wait_while_a_suspect_runs_alone() -> None:
    host, suspect, other = Host(), actor(IntervalId(1)), actor(IntervalId(2))
    host.marks.perform(suspect, ev.Mark(b"a", True))
    host.marks.flush()
    assert host.marks.keeps(other, NOTHING)
    host.answer(1)
    host.marks.perform(suspect, ev.Unmark(b""))
    host.marks.flush()
    assert host.invoked == [], "what it did is not unmarked yet"
    host.answer(1)
    assert host.invoked == [2]
    assert not host.marks.keeps(other, NOTHING)


def test_a_second_suspect_is_marked_when_the_first_one_is_done() -> None:
    host, first, second = Host(), actor(IntervalId(1)), actor(IntervalId(2))
    host.marks.perform(first, ev.Mark(b"a", True))
    host.marks.perform(second, ev.Mark(b"b", True))
    host.marks.flush()
    assert host.written == [[1]]
    host.answer(1)
    host.marks.leave(first)
    host.marks.flush()
    assert host.written == [[1], [2]]


def test_a_mark_of_a_void_core_is_not_written_for_the_next_one_to_find() -> None:
    host, void, other = Host(), actor(IntervalId(1)), actor(IntervalId(2))
    for one in (void, other):
        host.marks.perform(one, ev.Mark(b"a", False))
    void.core.halted = True
    host.marks.flush()
    assert host.written == [[2]]
    host.answer(2)
    host.marks.perform(void, ev.Mark(b"b", False))
    host.marks.flush()
    assert host.written == [[2]], "there is nothing to write"
    assert host.marks.idle()


@pytest.mark.parametrize(
    ("marks", "written"),
    [
        ([ev.Mark(b"a", False), ev.Mark(b"b", False)], MarkWrite(IntervalId(1), Sequencer(9), b"b", None)),
        ([ev.Unmark(b"a", trusted=True), ev.Mark(b"b", False)], MarkWrite(IntervalId(1), Sequencer(9), b"b", 1)),
        ([ev.Mark(b"a", False), ev.Unmark(b"b", trusted=False)], MarkWrite(IntervalId(1), Sequencer(9), b"b", None)),
        ([ev.Mark(b"a", False), ev.Unmark(b"b", trusted=True)], MarkWrite(IntervalId(1), Sequencer(9), b"b", 1)),
    ],
)
def test_the_newest_mark_of_an_interval_is_written_and_trust_is_kept(
    marks: list[ev.Mark | ev.Unmark], written: MarkWrite
) -> None:
    assert mark_writes((IntervalId(1), Sequencer(9), mark) for mark in marks) == [written]
