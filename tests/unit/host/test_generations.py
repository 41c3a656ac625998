"""When all goes back under snapshots, and who gets what then."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from millwheel import limits
from millwheel.cluster import ClusterMap, Leader, MapOrder, Member, PlacedInterval, PlacedSource
from millwheel.host.generations import WholeMaster, generation_of
from millwheel.host.master import Assign, Bury, Cut, Decision, Dismiss, Finish, Hasten, Propose, Settle
from millwheel.host.messages import IntervalLoad
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
    assert generation_of(the_map({ONE: 7}, 8, 7, dead=(8,))) is None
    assert generation_of(the_map({ONE: 7}, None, 7)) is None


@pytest.mark.parametrize("source", [None, 7, 8])
@pytest.mark.parametrize("alive", [(), (7,), (7, 8)])
def test_a_map_of_no_intervals_has_no_generation_whoever_serves_sources(source: int | None, alive: tuple[int]) -> None:
    """The pipeline is not opened yet: an epoch would wait for nobody, and would be declared with nothing in it."""
    assert generation_of(the_map({}, source, *alive)) is None
    assert generation_of(msgspec.structs.replace(the_map({}, source, *alive), sources=())) is None


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


def at_the_end(master: WholeMaster, found: ClusterMap) -> Decision | None:
    """What is decided at the end of the epoch that the master lets begin."""
    assert master.decide(found, 0) == Hasten()
    assert master.waits
    assert master.decide(found, 0) is None  # it has not begun
    master.resting = False
    assert master.decide(found, 0) is None
    master.resting, master.declared = True, master.declared + 1
    return master.decide(found, 0)


def test_a_worker_with_nothing_gets_its_share_at_the_end_of_an_epoch(master: WholeMaster) -> None:
    assert at_the_end(master, the_map({ONE: 7, TWO: 7}, 7, 7, 8)) == Dismiss((7,))
    # The one that is dismissed comes back.  It was not waited for once, and found that it had nothing, and so on for ever.
    nobody = {ONE: None, TWO: None}
    assert master.decide(the_map(nobody, None, 8), 100) is None
    decision = master.decide(the_map(nobody, None, 8, 9), 200)
    assert isinstance(decision, Assign)
    assert {*decision.intervals.values(), *decision.sources.values()} == {8, 9}


def test_more_workers_than_places_are_left_alone(master: WholeMaster) -> None:
    assert master.decide(the_map({ONE: 7}, 8, 7, 8, 9), 0) is None


def test_what_cannot_be_ordered_is_refused_and_nothing_goes_back(master: WholeMaster) -> None:
    master.ordered({3: MapOrder("move", (ONE,), to="n9"), 4: MapOrder("move", (THREE,), to="n8")})
    found = the_map({ONE: 7}, 8, 7, 8)
    assert master.decide(found, 0) == Settle(3, "there is no live worker 'n9'; there are n7, n8, w7, w8")
    master.ordered({4: MapOrder("move", (THREE,), to="n8")})
    decision = master.decide(found, 0)
    assert isinstance(decision, Settle)
    assert decision.refusal.startswith(f"there are no intervals {[THREE]}")
    assert not master.waits


def test_what_an_order_wants_already_is_done(master: WholeMaster) -> None:
    master.ordered({3: MapOrder("move", (ONE,), to="w7")})
    assert master.decide(the_map({ONE: 7}, 8, 7, 8), 0) == Settle(3, "")


def test_a_move_is_made_at_the_end_of_an_epoch_to_a_worker_that_joins_again(master: WholeMaster) -> None:
    move = MapOrder("move", (ONE, TWO), to="w8")
    master.ordered({3: move})
    assert at_the_end(master, the_map({ONE: 7, TWO: 8, THREE: 7}, 7, 7, 8)) == Dismiss((7, 8))
    nobody = {ONE: None, TWO: None, THREE: None}
    assert master.decide(the_map(nobody, None), 100) is None
    joined = the_map(nobody, None, 9, 10)
    joined = msgspec.structs.replace(
        joined, members=(Member(9, "n8", "worker", "a:1"), Member(10, "n7", "worker", "a:1"))
    )
    decision = master.decide(joined, 200)
    assert decision == Assign({ONE: 9, TWO: 9, THREE: 10}, {"text": 10}, back=True)
    placed = msgspec.structs.replace(the_map({ONE: 9, TWO: 9, THREE: 10}, 10), members=joined.members)
    assert master.decide(placed, 300) == Settle(3, "")


@pytest.mark.parametrize(("first", "last"), [("n7", "n8"), ("n8", "n7")])
def test_of_two_moves_of_an_interval_the_later_order_counts(master: WholeMaster, first: str, last: str) -> None:
    orders = {5: MapOrder("move", (TWO, ONE), to=last), 3: MapOrder("move", (ONE, THREE), to=first)}
    master.ordered(orders)
    assert at_the_end(master, the_map({ONE: 9, TWO: 9, THREE: 9}, 9, 7, 8, 9)) == Dismiss((9,))
    nobody = the_map({ONE: None, TWO: None, THREE: None}, None, 7, 8, 9)
    decision = master.decide(nobody, 100)
    assert isinstance(decision, Assign)
    wanted = {"n7": 7, "n8": 8}
    assert decision.intervals == {ONE: wanted[last], TWO: wanted[last], THREE: wanted[first]}


def test_a_move_whose_target_has_not_come_again_is_refused_and_not_tried_for_ever(master: WholeMaster) -> None:
    master.ordered({3: MapOrder("move", (ONE,), to="n8")})
    at_the_end(master, the_map({ONE: 7, TWO: 8}, 7, 7, 8))
    assert master.decide(the_map({ONE: None, TWO: None}, None), 0) is None
    nobody = the_map({ONE: None, TWO: None}, None, 9)
    assert isinstance(master.decide(nobody, limits.RETURN_LIMIT_US), Assign)
    decision = master.decide(the_map({ONE: 9, TWO: 9}, 9, 9), limits.RETURN_LIMIT_US)
    assert decision == Settle(3, "there is no live worker 'n8'; there are n9, w9")
    master.ordered({})
    assert master.decide(the_map({ONE: 9, TWO: 9}, 9, 9), limits.RETURN_LIMIT_US) is None


def test_what_another_death_has_placed_elsewhere_is_told(master: WholeMaster) -> None:
    master.ordered({3: MapOrder("move", (ONE,), to="n8")})
    at_the_end(master, the_map({ONE: 7, TWO: 8}, 7, 7, 8))
    decision = master.decide(the_map({ONE: 7, TWO: 8}, 7, 7, 8), 0)
    assert decision == Settle(3, f"the intervals {[ONE]} were given to other workers, because n8 was gone")


def test_splits_and_merges_are_made_while_nobody_owns_anything(master: WholeMaster) -> None:
    split, merge = MapOrder("split", (ONE,), split_keys=("11",)), MapOrder("merge", (ONE, TWO))
    master.ordered({3: split, 4: merge})
    assert at_the_end(master, the_map({ONE: 7, TWO: 7}, 7, 7)) == Dismiss((7,))
    nobody = the_map({ONE: None, TWO: None}, None, 9)
    assert master.decide(nobody, 100) == Cut((ONE,), ("11",), 3, back=True)
    master.ordered({4: merge})
    decision = master.decide(nobody, 200)
    assert isinstance(decision, Settle)
    assert "neighbours" in decision.refusal
    master.ordered({})
    assert isinstance(master.decide(nobody, 300), Assign)


def test_what_only_dead_workers_own_is_taken_from_them_before_it_is_split(master: WholeMaster) -> None:
    master.ordered({3: MapOrder("split", (ONE,), split_keys=("11",))})
    left = the_map({ONE: 7, TWO: 8}, 8, 9, dead=(7, 8))
    assert master.decide(left, 0) == Dismiss((7, 8))
    assert master.decide(left, limits.RETURN_LIMIT_US) == Dismiss((7, 8)), "the store refuses to split what is owned"
    assert isinstance(master.decide(the_map({ONE: None, TWO: None}, None, 9), limits.RETURN_LIMIT_US), Cut)


def test_an_interval_that_is_merged_away_is_not_given_to_whom_an_order_has_named(master: WholeMaster) -> None:
    every: dict[IntervalId, int | None] = {ONE: 7, TWO: 7, THREE: 9}
    master.ordered({3: MapOrder("move", (TWO,), to="n8"), 4: MapOrder("merge", (ONE, TWO))})
    assert at_the_end(master, the_map(every, 8, 7, 8, 9)) == Dismiss((7, 8, 9))  # and n9 does not come again
    merged = msgspec.structs.replace(the_map({ONE: None, THREE: None}, None), members=joined_again(n7=9, n8=10))
    master.ordered({3: MapOrder("move", (TWO,), to="n8")})
    assert master.decide(merged, 0) is None
    decision = master.decide(merged, limits.RETURN_LIMIT_US)
    assert isinstance(decision, Assign)
    assert decision.intervals == {ONE: 9, THREE: 10}


def test_workers_that_left_by_themselves_are_not_waited_for(master: WholeMaster) -> None:
    every: dict[IntervalId, int | None] = {ONE: 7, TWO: 8}
    assert master.decide(the_map({**every, TWO: None}, 7, 7, 8), 0) == Dismiss((7,))
    nobody = the_map(dict.fromkeys(every), None, 9, 10)
    assert isinstance(master.decide(nobody, 100), Assign)
    assert master.decide(the_map({ONE: 9, TWO: 10}, 9, 9, 10), 200) is None
    alone = the_map(dict.fromkeys(every), None, 11)
    assert master.decide(alone, 300) is None
    assert isinstance(master.decide(alone, 300 + limits.GATHER_US), Assign)


def joined_again(**named: int) -> tuple[Member, ...]:
    return tuple(Member(number, name, "worker", "a:1") for name, number in named.items())


def test_loads_that_differ_for_long_give_an_order_that_waits_for_the_end_of_an_epoch(master: WholeMaster) -> None:
    found = the_map({ONE: 7, TWO: 7}, 8, 7, 8)
    master.resting = False
    for _ in range(limits.LOAD_REPORTS):
        assert master.decide(found, 0) is None
        master.relief.loaded(8, [])
        master.relief.loaded(7, [IntervalLoad(ONE, 300, ""), IntervalLoad(TWO, 300, "")])
    move = MapOrder("move", (ONE,), to="w8")
    assert master.decide(found, 0) == Propose(move)
    master.ordered({3: move})
    assert at_the_end(master, found) == Dismiss((7, 8))


def test_who_joins_again_has_what_it_had_and_what_was_moved_stays(master: WholeMaster) -> None:
    every = {ONE: 8, TWO: 8, THREE: 8}  # as orders wanted it
    assert master.decide(the_map(every, 7, 7, 8), 0) is None
    assert master.decide(the_map(every, 7, 7, dead=(8,)), 0) == Dismiss((7, 8))
    nobody = msgspec.structs.replace(the_map(dict.fromkeys(every), None), members=joined_again(n8=9, n7=10))
    decision = master.decide(nobody, 100)
    assert decision == Assign({ONE: 9, TWO: 9, THREE: 9}, {"text": 10}, back=True)


def test_what_a_dead_worker_had_is_shared_out_and_all_is_when_one_joins_that_has_nothing(master: WholeMaster) -> None:
    every = {ONE: 7, TWO: 8, THREE: 9}
    assert master.decide(the_map(every, 7, 7, 8, 9), 0) is None
    assert master.decide(the_map(every, 7, 7, 8, dead=(9,)), 0) == Dismiss((7, 8, 9))
    without = msgspec.structs.replace(the_map(dict.fromkeys(every), None), members=joined_again(n7=10, n8=11))
    assert master.decide(without, 100) == Assign({ONE: 10, TWO: 11, THREE: 11}, {"text": 10}, back=True)
    uneven = msgspec.structs.replace(
        the_map({ONE: 10, TWO: 11, THREE: 11}, 10), members=joined_again(n7=10, n8=11, n9=12)
    )
    assert at_the_end(master, uneven) == Dismiss((10, 11))
    again = msgspec.structs.replace(the_map(dict.fromkeys(every), None), members=joined_again(n7=13, n8=14, n9=15))
    decision = master.decide(again, 100)
    assert isinstance(decision, Assign)
    assert {*decision.intervals.values(), *decision.sources.values()} == {13, 14, 15}


def test_an_interval_that_was_merged_into_another_one_counts_for_nobody(master: WholeMaster) -> None:
    assert master.decide(the_map({ONE: 7, TWO: 7, THREE: 8}, 9, 7, 8, 9), 0) is None
    assert master.decide(the_map({ONE: 7, TWO: 7, THREE: 8}, 9, 7, 8, dead=(9,)), 0) == Dismiss((7, 8, 9))
    merged = the_map({ONE: None, THREE: None}, None)
    merged = msgspec.structs.replace(merged, members=joined_again(n7=10, n8=11))
    assert master.decide(merged, 100) == Assign({ONE: 10, THREE: 11}, {"text": 10}, back=True)


def test_a_name_that_two_workers_have_gives_neither_what_the_other_had(master: WholeMaster) -> None:
    every: dict[IntervalId, int | None] = {ONE: 7, TWO: 8}
    twins = (Member(7, "n", "worker", "a:1"), Member(8, "n", "worker", "a:1"))
    assert master.decide(msgspec.structs.replace(the_map(every, 7), members=twins), 0) is None
    master.decide(msgspec.structs.replace(the_map({**every, TWO: None}, 7), members=twins), 0)
    again = (Member(9, "n", "worker", "a:1"), Member(10, "n", "worker", "a:1"))
    nobody = msgspec.structs.replace(the_map(dict.fromkeys(every), None), members=again)
    decision = master.decide(nobody, 100)
    assert isinstance(decision, Assign)
    assert {*decision.intervals.values()} == {9, 10}


def test_an_order_that_is_taken_back_leaves_nothing_behind(master: WholeMaster) -> None:
    found = the_map({ONE: 7, TWO: 8}, 7, 7, 8)
    master.ordered({3: MapOrder("move", (ONE,), to="n8")})
    assert master.decide(found, 0) == Hasten()
    master.ordered({})
    assert master.decide(found, 0) is None
    assert not master.waits


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


@pytest.mark.parametrize("began", [0, 10 * limits.RETURN_LIMIT_US])
def test_the_wait_for_workers_counts_from_when_places_were_seen_without_an_owner(
    master: WholeMaster, began: int
) -> None:
    nobody = the_map({ONE: None, TWO: None}, None, 7)
    for now in (began, began + limits.GATHER_US - 1):
        assert master.decide(nobody, now) is None
    assert isinstance(master.decide(nobody, began + limits.GATHER_US), Assign)
