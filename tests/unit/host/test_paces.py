"""Replays: a partition of a paced source waits for its clock, and one of another source never waits."""

from __future__ import annotations

from typing import Any

import pytest

from millwheel import Computation, Context, Pipeline, Record, Stream, TextCoder, limits, subscribe
from millwheel.core.interval.events import RowsRead
from millwheel.core.source.injector import InjectorCore
from millwheel.host.actors import Actor, Actors
from millwheel.host.paces import Paces
from millwheel.ids import IntervalId, ProducerId, Sequencer
from millwheel.model import MIN_TIME
from millwheel.ports import SourcePosition
from millwheel.source import Ahead
from millwheel_injectors import IterableSource

lines = Stream("lines", TextCoder())
RATE = 10


class Keep(Computation[str]):
    def ProcessRecord(self, context: Context, record: Record[str]) -> None:
        pass


class Around:
    """A worker, as far as replays need it."""

    def __init__(self) -> None:
        self.actors, self.values, self.now = Actors(), dict[str, int](), 1_000
        pipeline = Pipeline("p")
        for name, pace in (("paced", RATE), ("live", None)):
            source: Any = IterableSource(name, [])
            source.pace = pace
            pipeline.inject(source, into=Stream(name, TextCoder()))
            pipeline.add(Keep, [subscribe(Stream(name, TextCoder()), str)], name=f"Keep-{name}")
        self.paces = Paces(pipeline.graph(), self)

    def partition(self, number: int, source: str = "paced") -> Actor:
        position = SourcePosition("p", IntervalId(number), ProducerId(number), 0, False, b"")
        core = InjectorCore(IntervalId(number), position, {})
        actor = Actor(interval=IntervalId(number), sequencer=Sequencer(1), owner=f"source:{source}", core=core)
        self.actors.put(actor)
        self.paces.open(actor)
        return actor

    def looked(self, actor: Actor, time: int | None, late: bool = False) -> bool:
        """A read of nothing that is due, which has shown what stands next."""
        ahead = None if time is None else Ahead(time, time, late)
        return self.paces.arrived(actor, RowsRead({}, 0, 0, b"", MIN_TIME, False, False, ahead=ahead))


def test_a_source_without_a_pace_never_waits() -> None:
    around = Around()
    live = around.partition(1, "live")
    assert not around.paces.has(live)
    assert not around.paces.gathered("live")
    assert not around.looked(live, 50_000)
    assert (around.paces.upto(live), around.paces.wait(live), around.paces.waits("live")) == (None, 0, False)


def test_the_clock_begins_when_every_first_row_is_known() -> None:
    around = Around()
    first, second = around.partition(1), around.partition(2)
    assert not around.looked(first, 5_000)
    assert not around.paces.gathered("paced"), "the second one was not looked at"
    assert around.paces.wait(first) is None
    assert around.looked(second, 7_000)
    assert (around.paces.upto(first), around.paces.wait(first)) == (5_000, 0)
    assert around.paces.wait(second) == max(limits.PACE_STEP_US, 2_000 // RATE)


def test_rows_that_were_not_to_be_given_are_no_word_about_the_first_row() -> None:
    """A partition whose rows were all left out has read on; one that had nothing to read keeps nobody waiting."""
    around = Around()
    first, second = around.partition(1), around.partition(2)
    around.paces.gathered("paced")
    assert not around.looked(first, 5_000)
    left_out = RowsRead({}, 0, 7, b"", MIN_TIME, False, True, ahead=None)
    assert not around.paces.arrived(second, left_out), "its first row may be older"
    assert around.paces.wait(first) is None
    nothing = RowsRead({}, 0, 7, b"", MIN_TIME, False, False, ahead=None)
    assert around.paces.arrived(second, nothing)
    assert around.paces.wait(first) == 0


def test_the_clock_begins_with_the_end_of_the_first_search_if_the_rows_are_known_by_then() -> None:
    around = Around()
    actor = around.partition(1)
    assert not around.looked(actor, 5_000)
    assert around.paces.gathered("paced")
    around.now += 100
    assert around.paces.upto(actor) == 5_000 + 100 * RATE


def test_rows_that_are_not_due_are_waited_for_until_the_partition_is_forgotten() -> None:
    around = Around()
    actor = around.partition(1)
    around.looked(actor, 5_000)
    assert around.paces.waits("paced")
    around.paces.forget(actor)
    assert not around.paces.waits("paced")
    assert not around.paces.waits("live")


def late_row() -> tuple[Around, Actor]:
    """The row that stands next, at 3,000, is behind the promise of its partition."""
    around = Around()
    actor = around.partition(1)
    around.looked(actor, 5_000)
    around.paces.gathered("paced")
    around.looked(actor, 3_000, late=True)
    return around, actor


def test_a_late_row_waits_until_the_watermark_has_passed_it() -> None:
    around, actor = late_row()
    assert around.paces.wait(actor) == limits.PACE_STEP_US
    around.values["source:paced"] = 3_000
    assert around.paces.wait(actor) == limits.PACE_STEP_US, "it has not passed yet"
    around.values["source:paced"] = 3_001
    assert around.paces.wait(actor) == 0


def test_a_late_row_does_not_wait_for_a_watermark_that_another_partition_keeps() -> None:
    around, actor = late_row()
    around.partition(2)
    assert around.paces.wait(actor) == 0


def test_another_partition_keeps_the_watermark_until_it_is_past_the_row() -> None:
    around, actor = late_row()
    core = around.partition(2).core
    assert isinstance(core, InjectorCore)
    core._reported = 3_000
    assert around.paces.wait(actor) == 0
    core._reported = 3_001
    assert around.paces.wait(actor) == limits.PACE_STEP_US


@pytest.mark.parametrize(("source", "paused"), [("live", False), ("paced", True)])
def test_partitions_of_another_source_or_that_wait_for_their_turn_keep_nothing(source: str, paused: bool) -> None:
    around, actor = late_row()
    other = around.partition(2, source)
    assert isinstance(other.core, InjectorCore)
    other.core.paused = paused
    assert around.paces.wait(actor) == limits.PACE_STEP_US


def test_a_late_row_waits_only_so_long() -> None:
    around, actor = late_row()
    around.now += limits.PACE_LATE_US
    assert around.paces.wait(actor) == 0
