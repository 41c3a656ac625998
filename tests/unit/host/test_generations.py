"""When all goes back under snapshots, and who gets what then."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millwheel import limits
from millwheel.cluster import ClusterMap, Leader, MapOrder, Member, PlacedInterval, PlacedSource
from millwheel.host.generations import REFUSAL, WholeMaster, generation_of
from millwheel.host.master import Assign, Bury, Dismiss, Finish, Settle
from millwheel.ids import IntervalId, Sequencer

ONE, TWO, THREE = IntervalId(1), IntervalId(2), IntervalId(3)


def the_map(
    owners: Mapping[IntervalId, int | None], source: int | None, *alive: int, dead: tuple[int, ...] = ()
) -> ClusterMap:
    members = [Member(number, f"n{number}", "worker", "a:1") for number in alive]
    members += [Member(number, f"n{number}", "worker", "a:1", False) for number in dead]
    intervals = [PlacedInterval(i, "count", f"{i}", None, owner, Sequencer(i)) for i, owner in owners.items()]
    return ClusterMap(4, Leader(9, 1, "a:2"), tuple(members), tuple(intervals), (PlacedSource("text", source),))


@pytest.fixture
def master() -> WholeMaster:
    made = WholeMaster()
    made.resting = True
    return made


def test_a_generation_has_a_live_owner_for_everything() -> None:
    found = generation_of(the_map({ONE: 7, TWO: 8}, 7, 7, 8))
    assert found is not None
    assert found.members == {7, 8}
    assert generation_of(the_map({ONE: 7, TWO: None}, 7, 7, 8)) is None
    assert generation_of(the_map({ONE: 7, TWO: 8}, 8, 7, dead=(8,))) is None
    assert generation_of(the_map({ONE: 7}, None, 7)) is None


def test_the_first_placement_waits_for_workers_that_start_at_the_same_time(master: WholeMaster) -> None:
    found = the_map({ONE: None, TWO: None}, None, 7)
    assert master.decide(found, 0) is None
    decision = master.decide(the_map({ONE: None, TWO: None}, None, 7, 8), limits.GATHER_US)
    assert isinstance(decision, Assign)
    assert decision.back
    assert {*decision.intervals.values(), *decision.sources.values()} == {7, 8}
    assert {*decision.intervals} == {ONE, TWO}
    assert {*decision.sources} == {"text"}


def test_when_an_owner_is_dead_all_owners_are_dismissed_and_then_all_is_placed(master: WholeMaster) -> None:
    assert master.decide(the_map({ONE: 7, TWO: 8}, 7, 7, dead=(8,)), 0) == Dismiss((7, 8))
    nobody = {ONE: None, TWO: None}
    assert master.decide(the_map(nobody, None), 100) is None
    decision = master.decide(the_map(nobody, None, 9), 200)
    assert decision == Assign({ONE: 9, TWO: 9}, {"text": 9}, back=True)


def test_what_was_taken_away_sends_all_back_too(master: WholeMaster) -> None:
    assert master.decide(the_map({ONE: 7, TWO: None}, 7, 7, 8), 0) == Dismiss((7,))


def test_workers_that_were_dismissed_are_waited_for_but_not_for_ever(master: WholeMaster) -> None:
    master.decide(the_map({ONE: 7, TWO: 8}, None, 7, 8), 0)
    nobody = {ONE: None, TWO: None}
    assert master.decide(the_map(nobody, None, 9), limits.GATHER_US) is None
    assert isinstance(master.decide(the_map(nobody, None, 9), limits.RETURN_LIMIT_US), Assign)


def test_a_worker_with_nothing_gets_its_share_between_two_epochs(master: WholeMaster) -> None:
    found = the_map({ONE: 7, TWO: 7}, 7, 7, 8)
    master.resting = False
    assert master.decide(found, 0) is None
    master.resting = True
    assert master.decide(found, 0) == Dismiss((7,))
    # The one that is dismissed comes back.  It was not waited for once, and found that it had nothing, and so on for ever.
    nobody = {ONE: None, TWO: None}
    assert master.decide(the_map(nobody, None, 8), 100) is None
    decision = master.decide(the_map(nobody, None, 8, 9), 200)
    assert isinstance(decision, Assign)
    assert {*decision.intervals.values(), *decision.sources.values()} == {8, 9}


def test_more_workers_than_places_are_left_alone(master: WholeMaster) -> None:
    assert master.decide(the_map({ONE: 7}, 8, 7, 8, 9), 0) is None


def test_orders_are_refused_with_a_reason(master: WholeMaster) -> None:
    master.ordered({3: MapOrder("move", (ONE,), to="n8")})
    assert master.decide(the_map({ONE: 7}, 8, 7, 8), 0) == Settle(3, REFUSAL)


def test_a_dead_member_that_owns_nothing_is_buried(master: WholeMaster) -> None:
    assert master.decide(the_map({ONE: 7}, 7, 7, dead=(8,)), 0) == Bury((8,))


def test_the_run_ends_between_two_epochs_when_all_owners_have_said_so_twice(master: WholeMaster) -> None:
    found = the_map({ONE: 7}, 8, 7, 8, 9)  # 9 owns nothing, and hears of no watermark
    for _ in range(2):
        master.drained(7, 4)
        master.drained(8, 4)
        master.resting = False
        assert master.decide(found, 0) is None
        master.resting = True
        decision = master.decide(found, 0)
    assert decision == Finish()
