"""What cores have counted stays when they are gone, and counts once."""

from __future__ import annotations

from millwheel.core.interval.counters import Counters
from millwheel.core.interval.machine import IntervalCore
from millwheel.core.source.injector import InjectorCore
from millwheel.core.source.row_counts import RowCounts
from millwheel.host.actors import Actors
from millwheel.host.tally import Tally
from tests.unit.host.test_actors import interval, partition


def test_what_a_core_has_counted_is_in_the_tally_once_it_is_gone_and_no_more_in_the_core() -> None:
    tally = Tally()
    actors, actor = Actors(tally), interval(1, 7)
    assert isinstance(actor.core, IntervalCore)
    actors.put(actor)
    # All different, so that none is taken for another one, and none is left out.
    for number, name in enumerate(Counters.__struct_fields__):
        setattr(actor.core.counters, name, number + 1)
    kept = actor.core.give_up()
    actors.drop(actor)
    assert kept.counters == Counters(), "the next core of the interval in this process counts what it does itself"
    assert [*tally.by_computation] == ["c"]
    numbers = [getattr(tally.by_computation["c"], name) for name in Counters.__struct_fields__]
    assert numbers == [number + 1 for number in range(len(numbers))]


def test_rows_of_a_partition_that_is_gone_stay_and_the_next_member_has_the_same_tally() -> None:
    tally = Tally()
    for number, rows in ((1, 3), (2, 4)):
        actors, actor = Actors(tally), partition(number, 7)
        assert isinstance(actor.core, InjectorCore)
        actors.put(actor)
        actor.core.rows.add(RowCounts(rows, number, {"no key": number}))
        actor.core.rows.note(actor.core.rows.read)
        actors.add_up()
        actors.add_up()
    assert tally.by_source == {"source:s": RowCounts(7, 3, {"no key": 3})}


def test_who_has_done_nothing_has_counted_nothing() -> None:
    tally = Tally()
    assert (tally.by_source, tally.by_computation, tally.commits, tally.commit_us) == ({}, {}, 0, 0)
