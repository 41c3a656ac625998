"""What a master decides, map by map: each decision is carried out by hand, and the next one is asked for."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millwheel import limits
from millwheel.cluster import ClusterMap, MapOrder, Member, PlacedInterval, PlacedSource
from millwheel.host.master import Assign, Bury, Cut, Decision, Finish, LetGo, MapView, Master, Move, Propose, Settle
from millwheel.host.messages import IntervalLoad
from millwheel.ids import IntervalId, Sequencer

LOWS = ("", "b", "d", "f", "h", "k", "m", "p")


def ids(*numbers: int) -> tuple[IntervalId, ...]:
    return tuple(IntervalId(number) for number in numbers)


class Hand:
    """A cluster on paper: workers by incarnation, intervals 1, 2, ... of one computation, and sources."""

    def __init__(self, workers: int, intervals: int, sources: int = 0) -> None:
        self.master = Master()
        self.now = 0
        members = tuple(Member(number, f"worker {number}", "worker", "") for number in range(1, workers + 1))
        highs = (*LOWS[1:intervals], None)
        placed = tuple(
            PlacedInterval(IntervalId(i + 1), "c", LOWS[i], highs[i], None, Sequencer(0)) for i in range(intervals)
        )
        self.map = ClusterMap(1, None, members, placed, tuple(PlacedSource(f"s{i}", None) for i in range(sources)))

    def change(self, **fields: object) -> None:
        self.map = msgspec.structs.replace(self.map, version=self.map.version + 1, **fields)

    def die(self, incarnation: int) -> None:
        members = [msgspec.structs.replace(m, alive=m.alive and m.incarnation != incarnation) for m in self.map.members]
        self.map = msgspec.structs.replace(self.map, members=tuple(members))

    def join(self, incarnation: int, name: str = "") -> None:
        member = Member(incarnation, name or f"worker {incarnation}", "worker", "")
        self.map = msgspec.structs.replace(self.map, members=(*self.map.members, member))

    def decide(self) -> Decision | None:
        return self.master.decide(self.map, self.now)

    def carry_out(self, decision: Decision) -> None:
        match decision:
            case LetGo(owner, intervals, sources):
                self.master.handed_over(owner, (*intervals, *sources))
            case Assign(intervals, sources):
                placed = [msgspec.structs.replace(i, owner=intervals.get(i.id, i.owner)) for i in self.map.intervals]
                known = [msgspec.structs.replace(s, owner=sources.get(s.name, s.owner)) for s in self.map.sources]
                self.change(intervals=tuple(placed), sources=tuple(known))
            case Bury(incarnations):
                self.change(members=tuple(m for m in self.map.members if m.incarnation not in incarnations))
            case _:
                raise AssertionError(decision)

    def settle(self) -> list[Decision]:
        """Until nothing is left to be done."""
        done: list[Decision] = []
        for _ in range(100):
            decision = self.decide()
            if decision is None:
                return done
            done.append(decision)
            self.carry_out(decision)
        raise AssertionError(done)

    def alive(self) -> set[int | None]:
        return {member.incarnation for member in self.map.members if member.alive}

    def owners(self) -> dict[int, int | None]:
        return {int(placed.id): placed.owner for placed in self.map.intervals}

    def counts(self) -> Counter[int | None]:
        return Counter([*self.owners().values(), *(source.owner for source in self.map.sources)])


def test_nothing_is_decided_without_a_worker() -> None:
    assert Hand(0, 3).decide() is None


def test_what_nobody_owns_is_shared_out_at_once() -> None:
    hand = Hand(3, 7, 2)
    assert len(hand.settle()) == 1
    assert hand.counts() == {1: 3, 2: 3, 3: 3}


def test_what_a_dead_worker_had_goes_to_others_and_nothing_else_moves() -> None:
    hand = Hand(3, 6)
    hand.settle()
    before = hand.owners()
    hand.die(2)
    done = hand.settle()
    assert [type(decision) for decision in done] == [Assign, Bury]
    after = hand.owners()
    assert {i for i in before if before[i] != after[i]} == {i for i in before if before[i] == 2}
    assert hand.counts() == {1: 3, 3: 3}


def test_a_worker_that_joins_gets_its_share_after_others_have_let_go() -> None:
    hand = Hand(2, 6)
    hand.settle()
    before = hand.owners()
    hand.join(3)
    done = hand.settle()
    assert {type(decision) for decision in done} == {LetGo, Assign}
    assert isinstance(done[0], LetGo)
    assert hand.counts() == {1: 2, 2: 2, 3: 2}
    assert len([i for i, owner in hand.owners().items() if before[i] != owner]) == 2, "as little as possible moves"


def test_an_owner_that_does_not_answer_is_not_waited_for_without_end() -> None:
    hand = Hand(1, 2)
    hand.settle()
    hand.join(2)
    assert isinstance(hand.decide(), LetGo)
    assert hand.decide() is None
    hand.now += limits.HAND_OVER_LIMIT_US
    assert isinstance(hand.decide(), Assign)


def test_an_owner_that_may_not_have_heard_is_asked_again_for_what_it_still_has() -> None:
    hand = Hand(workers=1, intervals=4)
    hand.settle()
    hand.join(2)
    asked = hand.decide()
    assert isinstance(asked, LetGo)
    assert hand.decide() is None
    assert not hand.master.reached(2)
    assert hand.decide() is None
    first, *rest = asked.intervals
    hand.master.handed_over(1, (first,))
    assert hand.master.reached(1) is bool(rest)
    again = hand.decide()
    assert isinstance(again, LetGo)
    assert again.intervals == tuple(rest)
    assert again.acked == asked.acked


def test_what_was_going_to_a_worker_that_died_goes_to_another_one() -> None:
    hand = Hand(1, 4)
    hand.settle()
    hand.join(2)
    asked = hand.decide()
    assert isinstance(asked, LetGo)
    hand.die(2)
    hand.carry_out(asked)
    hand.settle()
    assert hand.counts() == {1: 4}


def test_a_new_leader_goes_on_from_the_map() -> None:
    hand = Hand(2, 4)
    hand.settle()
    hand.join(3)
    assert isinstance(hand.decide(), LetGo)
    hand.master = Master()
    hand.settle()
    assert sorted(hand.counts().values()) == [1, 1, 2]


def test_a_move_is_carried_out_and_then_settled() -> None:
    hand = Hand(2, 2)
    hand.settle()
    owner = hand.owners()[1]
    other = 3 - (owner or 0)
    hand.master.ordered({1: MapOrder("move", ids(1), to=f"worker {other}")})
    for _ in range(2):
        decision = hand.decide()
        assert decision is not None
        hand.carry_out(decision)
    assert hand.owners()[1] == other
    assert hand.decide() == Settle(1, "")


def test_a_split_waits_for_the_owner_and_its_acks() -> None:
    hand = Hand(1, 1)
    hand.settle()
    hand.master.ordered({4: MapOrder("split", ids(1), split_keys=("g",))})
    asked = hand.decide()
    assert asked == LetGo(1, ids(1), (), acked=True)
    hand.carry_out(asked)
    taken = hand.decide()
    assert taken == Assign({IntervalId(1): None}, {})
    hand.carry_out(taken)
    assert hand.decide() == Cut(ids(1), ("g",), 4)


def test_an_interval_whose_owner_does_not_let_go_is_not_split() -> None:
    hand = Hand(1, 1)
    hand.settle()
    hand.master.ordered({4: MapOrder("split", ids(1), split_keys=("g",))})
    hand.decide()
    hand.now += limits.HAND_OVER_LIMIT_US
    refused = hand.decide()
    assert isinstance(refused, Settle)
    assert "has not let go" in refused.refusal
    assert hand.owners() == {1: 1}


@pytest.mark.parametrize("slow", [1, 2, 3])
@pytest.mark.parametrize("after", range(8))
def test_nothing_is_merged_while_anybody_owns_a_part_of_it(slow: int, after: int) -> None:
    """One of three owners does not answer, and dies after so many steps: its part has another owner then."""
    hand = Hand(3, 3)
    hand.settle()
    assert {*hand.owners().values()} == {1, 2, 3}
    hand.master.ordered({4: MapOrder("merge", ids(1, 2, 3))})
    for step in range(30):
        if step == after:
            hand.die(slow)
        decision = hand.decide()
        if isinstance(decision, Cut):
            assert hand.owners() == dict.fromkeys((1, 2, 3))
            assert (decision, step > after) == (Cut(ids(1, 2, 3), (), 4), True)
            return
        if decision is not None and not (isinstance(decision, LetGo) and decision.owner == slow):
            hand.carry_out(decision)
    raise AssertionError("the intervals are never merged")


def test_a_new_leader_does_not_split_what_it_has_not_taken_itself() -> None:
    # The last one may have taken it from an owner that had not folded everything.
    hand = Hand(1, 1)
    hand.master.ordered({4: MapOrder("split", ids(1), split_keys=("g",))})
    assert isinstance(hand.decide(), Assign)


@pytest.mark.parametrize(
    ("order", "says"),
    [
        (MapOrder("move", ids(9), to="worker 1"), "no intervals"),
        (MapOrder("move", ids(1), to="worker 9"), "no live worker 'worker 9'; there are"),
        (MapOrder("merge", ids(1, 3)), "neighbours"),
        (MapOrder("merge", ids(1)), "neighbours"),
        (MapOrder("split", ids(2), split_keys=("a",)), "inside of the interval, 'b' to 'd'"),
        (MapOrder("split", ids(2), split_keys=("c", "bb")), "ascend"),
        (MapOrder("split", ids(2)), "ascend"),
        (MapOrder("split", ids(1, 2), split_keys=("c",)), "a split of one interval"),
        (MapOrder("spilt", ids(2), split_keys=("c",)), "not 'spilt' of 1 intervals"),
    ],
)
def test_an_order_that_cannot_be_carried_out_is_refused_with_a_reason(order: MapOrder, says: str) -> None:
    hand = Hand(2, 4)
    hand.settle()
    hand.master.ordered({1: order})
    refused = hand.decide()
    assert isinstance(refused, Settle)
    assert says in refused.refusal


def test_loads_that_differ_for_long_give_an_order_and_number_counts_less() -> None:
    hand = Hand(2, 4)
    hand.settle()
    mine = [i for i, owner in hand.owners().items() if owner == 1]
    loads = [IntervalLoad(IntervalId(i), 300, "") for i in mine]
    for _ in range(limits.LOAD_REPORTS + 1):
        hand.master.relief.loaded(1, loads)
        hand.master.relief.loaded(2, [])
    assert hand.decide() == Propose(MapOrder("move", ids(mine[0]), to="w2"))
    hand.master.ordered({1: MapOrder("move", ids(mine[0]), to="w2")})
    while (decision := hand.decide()) != Settle(1, ""):
        assert decision is not None
        hand.carry_out(decision)
    hand.master.ordered({})
    assert hand.counts() == {1: 1, 2: 3}
    assert hand.decide() is None, "it is not given back because of the number"


def test_a_run_ends_when_all_have_said_twice_that_nothing_is_left() -> None:
    hand = Hand(2, 2)
    hand.settle()
    for worker in (1, 2):
        assert hand.decide() is None
        hand.master.drained(worker, hand.map.version)
    assert hand.decide() is None
    hand.master.drained(1, hand.map.version)
    hand.master.drained(1, hand.map.version)
    assert hand.decide() is None
    hand.master.drained(2, hand.map.version)
    assert hand.decide() == Finish()


def test_what_was_said_of_an_earlier_map_ends_nothing() -> None:
    hand = Hand(2, 2)
    hand.settle()
    for worker in (1, 2, 1, 2):
        hand.master.drained(worker, hand.map.version - 1)
        assert hand.decide() is None


@given(st.lists(st.sampled_from(["die", "join", "leader"]), max_size=12), st.integers(1, 8), st.integers(0, 3))
def test_whatever_happens_everything_gets_a_live_owner_and_all_have_about_as_much(
    events: list[str], intervals: int, sources: int
) -> None:
    hand = Hand(2, intervals, sources)
    newest = 2
    for event in events:
        hand.settle()
        live = [member.incarnation for member in hand.map.members if member.alive]
        if event == "leader":
            hand.master = Master()
        elif event == "die" and len(live) > 1:
            hand.die(live[0])
        elif event == "join":
            newest += 1
            hand.join(newest)
    hand.settle()
    live = [member.incarnation for member in hand.map.members if member.alive]
    counts = hand.counts()
    assert set(counts) <= {*live}
    assert max(counts[worker] for worker in live) - min(counts[worker] for worker in live) <= 1


EVENTS = st.one_of(
    st.just(("join", 0, 0)),
    st.just(("wait", 0, 0)),
    st.tuples(st.just("die"), st.integers(1, 2), st.just(0)),
    st.tuples(st.just("say"), st.integers(1, 3), st.integers(1, 4)),
    st.tuples(st.just("split"), st.integers(1, 2), st.integers(1, 4)),
)


@given(st.lists(EVENTS, max_size=12))
@example([("join", 0, 0), ("die", 1, 0), ("wait", 0, 0), ("wait", 0, 0)])
def test_nothing_is_taken_from_a_live_owner_that_has_neither_let_go_of_it_nor_had_its_time(
    events: list[tuple[str, int, int]],
) -> None:
    hand = Hand(2, 4)
    hand.settle()
    newest = 2
    asked: dict[tuple[int | None, int], int] = {}
    said: set[tuple[int | None, int]] = set()
    for event, worker, interval in events:
        if event == "say":  # also one that has had the interval before, and whose word comes late
            hand.master.handed_over(worker, ids(interval))
            said.add((worker, interval))
        elif event == "join":
            newest += 1
            hand.join(newest)
        elif event == "die" and hand.alive() - {worker}:
            hand.die(worker)
        elif event == "wait":
            hand.now += limits.HAND_OVER_LIMIT_US // 2
        elif event == "split":
            hand.master.ordered({worker: MapOrder("split", ids(interval), split_keys=(LOWS[interval - 1] + "a",))})
        while decision := hand.decide():
            if isinstance(decision, LetGo):
                for place in map(int, decision.intervals):
                    asked[decision.owner, place] = hand.now
                    said.discard((decision.owner, place))
            elif isinstance(decision, Assign):
                for place in map(int, decision.intervals):
                    owner = hand.owners()[place]
                    late = (owner, place) in asked and hand.now - asked[owner, place] >= limits.HAND_OVER_LIMIT_US
                    assert owner not in hand.alive() or late or (owner, place) in said
                    said = {(by, other) for by, other in said if other != place}
                    asked = {(of, other): at for (of, other), at in asked.items() if other != place}
                hand.carry_out(decision)
            elif isinstance(decision, Bury):
                hand.carry_out(decision)
            else:
                hand.master.ordered({})


def test_what_was_confirmed_of_an_earlier_map_does_not_end_the_run_of_a_later_one() -> None:
    hand = Hand(2, 2)
    hand.settle()
    for _ in range(2):
        for worker in (1, 2):
            hand.master.drained(worker, hand.map.version)
        assert hand.decide() is None, "all have said it once"
        hand.master.drained(1, hand.map.version)
        hand.master.drained(2, hand.map.version)
        hand.change()  # before it was looked at
        assert hand.decide() is None
    for worker in (1, 2):
        hand.master.drained(worker, hand.map.version)
    assert hand.decide() is None
    for worker in (1, 2):
        hand.master.drained(worker, hand.map.version)
    assert hand.decide() == Finish()


def test_what_was_to_be_split_is_given_to_somebody_when_its_owner_goes_before_it_was_taken_from_it() -> None:
    # Its log may not be empty, and only an owner folds it.
    hand = Hand(2, 2)
    hand.settle()
    hand.master.ordered({4: MapOrder("split", ids(1), split_keys=("a",))})
    ask = hand.decide()
    assert isinstance(ask, LetGo)
    hand.carry_out(ask)
    assert hand.decide() == Assign({IntervalId(1): None}, {})
    hand.master.refused()
    gone = hand.owners()[1]
    hand.change(
        intervals=tuple(msgspec.structs.replace(i, owner=None if i.id == 1 else i.owner) for i in hand.map.intervals),
        members=tuple(m for m in hand.map.members if m.incarnation != gone),
    )
    decision = hand.decide()
    assert isinstance(decision, Assign)
    assert decision.intervals[IntervalId(1)] is not None


def test_a_move_is_begun_once_also_when_its_target_has_come_again_under_another_number() -> None:
    hand = Hand(3, 3)
    hand.settle()
    place = next(interval for interval, owner in hand.owners().items() if owner == 1)
    hand.master.ordered({1: MapOrder("move", ids(place), to="worker 3")})
    asked = hand.decide()
    assert isinstance(asked, LetGo)
    hand.die(3)
    hand.carry_out(asked)
    while place in hand.master._moves:
        decision = hand.decide()
        assert decision is not None
        hand.carry_out(decision)
    assert hand.owners()[place] in (1, 2)
    hand.join(4, "worker 3")
    assert hand.decide() == Settle(1, f"the intervals [{place}] were given to other workers, because worker 3 was gone")


def test_who_has_nothing_gets_something_although_others_are_busy() -> None:
    """Loads say what is moved between those that have something: of who has nothing they say nothing."""
    hand = Hand(1, 4)
    hand.settle()
    hand.master.relief.loaded(1, [IntervalLoad(IntervalId(i), limits.LOAD_GAP_PERMILLE, "") for i in hand.owners()])
    hand.join(2)
    hand.settle()
    assert hand.counts() == {1: 3, 2: 1}, "the rest is for loads to say"


def test_a_source_that_is_to_be_let_go_is_named_as_a_source_and_as_nothing_else() -> None:
    hand = Hand(1, 0, 2)
    hand.settle()
    hand.join(2)
    assert hand.decide() == LetGo(1, (), ("s0",), acked=False)


@pytest.mark.parametrize("why", ["number", "load"])
def test_nothing_moves_any_more_when_all_have_said_that_nothing_is_left(why: str) -> None:
    """A worker that takes something then has to begin, and the end of the run would wait for it."""
    hand = Hand(2, 4)
    hand.settle()
    if why == "number":
        hand.join(3)
        hand.master.drained(3, hand.map.version)
    for _ in range(limits.LOAD_REPORTS + 1):
        mine = [i for i, owner in hand.owners().items() if owner == 1 and why == "load"]
        hand.master.relief.loaded(1, [IntervalLoad(IntervalId(i), limits.LOAD_GAP_PERMILLE, "") for i in mine])
        hand.master.relief.loaded(2, [])
    for worker in (1, 2):
        hand.master.drained(worker, hand.map.version)
    assert hand.decide() is None
    hand.master.drained(1, hand.map.version - 1)
    assert hand.decide() is not None, "one of them has something to do"


def test_what_is_on_its_way_to_a_third_one_does_not_count_as_what_the_second_one_has() -> None:
    kinds = {1: "c", 2: "c", 3: "c", 4: "d", 5: "d"}
    placed = [PlacedInterval(IntervalId(i), kind, f"{i}", None, 1, Sequencer(1)) for i, kind in kinds.items()]
    members = tuple(Member(number, f"worker {number}", "worker", "") for number in (1, 2, 3))
    view = MapView(ClusterMap(1, None, members, tuple(placed), ()))
    assert view.spare(1, 2, {IntervalId(1): Move(1, 3, 0)}) == 2
    assert view.spare(1, 2, {IntervalId(1): Move(1, 2, 0)}) == 4, "the second one gets one of these already"


def test_what_its_owner_has_let_go_of_is_split_although_its_time_is_over_by_then() -> None:
    hand = Hand(1, 1)
    hand.settle()
    hand.master.ordered({4: MapOrder("split", ids(1), split_keys=("g",))})
    asked = hand.decide()
    assert asked is not None
    hand.carry_out(asked)
    hand.now += limits.HAND_OVER_LIMIT_US
    assert hand.decide() == Assign({IntervalId(1): None}, {})
