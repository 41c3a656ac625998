"""The owned intervals of a worker: one core for each, the newest, and none that is void."""

from __future__ import annotations

from millwheel.bundles import HoldWrites, RecoveredInterval, TimerWrites
from millwheel.core.interval import events as ev
from millwheel.core.interval.config import Config
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.core.source.row_counts import RowCounts
from millwheel.graph import Settings
from millwheel.host.actors import Actor, Actors
from millwheel.ids import IntervalId, ProducerId, Sequencer
from millwheel.model import MIN_TIME
from millwheel.ports import SourcePosition


def interval(number: int, sequencer: int, owner: str = "c") -> Actor:
    config = Config(IntervalId(number), Sequencer(sequencer), owner, "1", Settings(), {})
    core = IntervalCore(config, RecoveredInterval([], [], TimerWrites(), HoldWrites(), [], MIN_TIME))
    core.start(0)
    return Actor(interval=IntervalId(number), sequencer=Sequencer(sequencer), owner=owner, core=core)


def partition(number: int, sequencer: int, source: str = "s") -> Actor:
    position = SourcePosition("p", IntervalId(number), ProducerId(sequencer), 0, False, b"")
    core = InjectorCore(IntervalId(number), position, {})
    return Actor(interval=IntervalId(number), sequencer=Sequencer(sequencer), owner=f"source:{source}", core=core)


def test_a_new_core_takes_the_place_of_the_one_before_it() -> None:
    actors, old, new = Actors(), interval(1, 7), interval(1, 8)
    actors.put(old)
    actors.put(new)
    assert actors.of("c") == [new]
    assert actors.current(IntervalId(1), Sequencer(7)) is None
    assert actors.current(IntervalId(1), Sequencer(8)) is new


def test_a_void_core_is_not_current_and_still_there() -> None:
    actors, actor = Actors(), interval(1, 7)
    actors.put(actor)
    actor.core.handle(ev.WriteFenced(), 0)
    assert actors.current(IntervalId(1), Sequencer(7)) is None
    assert actors.all == {1: actor}


def test_what_was_dropped_is_gone_from_every_list() -> None:
    actors, kept, gone = Actors(), partition(1, 7), partition(2, 8)
    for actor in (kept, gone):
        actors.put(actor)
    actors.drop(gone)
    assert actors.of("source:s") == [kept] == [actor for actor, _ in actors.partitions()]
    assert actors.current(IntervalId(2), Sequencer(8)) is None


def test_intervals_and_partitions_are_told_apart() -> None:
    actors, one, other, read = Actors(), interval(1, 7), interval(2, 7, "d"), partition(3, 9)
    for actor in (one, read, other):
        actors.put(actor)
    assert actors.intervals() == [(one, one.core), (other, other.core)]
    assert actors.partitions() == [(read, read.core)]
    assert (actors.of("d"), actors.of("nobody")) == ([other], [])


def test_rows_of_open_partitions_count_with_those_of_partitions_that_are_gone() -> None:
    actors, gone, other = Actors(), partition(1, 7), partition(3, 9, "t")
    for actor, given in ((gone, 2), (partition(2, 8), 3), (other, 5)):
        actors.put(actor)
        assert isinstance(actor.core, InjectorCore)
        actor.core.rows.add(RowCounts(given))
        actor.core.rows.note(RowCounts(given))  # its position is durable
    actors.drop(gone)
    assert actors.rows_by_source() == {"source:s": RowCounts(5), "source:t": RowCounts(5)}
    assert actors.rows() == RowCounts(10)
