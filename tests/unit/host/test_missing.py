"""A process of a cluster that waits for another one says for whom, and repeats it seldom."""

from __future__ import annotations

from millwheel import limits
from millwheel.host import alphabet as he
from millwheel.host.missing import NO_LEADER, NO_WORKER, Missing
from millwheel.testing.world.calls import run
from tests.unit.host.cluster_hand import ClusterHand
from tests.unit.host.room import Room

WAIT_US = limits.MISSING_US


def test_it_is_said_after_a_while_and_then_ever_more_seldom() -> None:
    missing, said = Missing("nobody"), list[tuple[int, str]]()
    for now in range(0, 8 * WAIT_US, WAIT_US // 10):
        missing.look(True, now, lambda text, now=now: said.append((now, text)))  # type: ignore[misc]
    assert said == [(WAIT_US, "nobody"), (2 * WAIT_US, "nobody"), (4 * WAIT_US, "nobody")]


def test_who_comes_and_goes_is_missed_anew() -> None:
    missing, said = Missing("nobody"), list[str]()
    for now, is_missing in ((0, True), (WAIT_US - 1, False), (WAIT_US, True), (2 * WAIT_US - 1, True)):
        missing.look(is_missing, now, said.append)
    assert said == []
    missing.look(True, 2 * WAIT_US, said.append)
    assert said == ["nobody"]


def test_a_worker_without_a_leader_says_so() -> None:
    hand = ClusterHand()
    hand.give(he.Started())
    for _ in range(2 * WAIT_US // limits.HAND_OVER_LOOK_US):
        hand.pass_time()
    assert hand.noted == []  # there is one
    run(hand.store.leave(hand.led.incarnation))
    for _ in range(WAIT_US // limits.HAND_OVER_LOOK_US + 2):
        hand.pass_time()
    assert hand.noted == [NO_LEADER]


def test_a_leader_without_workers_says_so_and_one_that_stands_by_does_not() -> None:
    room = Room()
    leader = room.join("controller")
    room.join("controller")
    room.let_pass(WAIT_US / 1e6 + 2)
    assert room.noted == [(leader, NO_WORKER)]
    room.join("worker")
    room.let_pass(WAIT_US / 1e6 * 3)
    assert room.noted == [(leader, NO_WORKER)]


def test_who_is_missed_when_the_clock_is_set_back_is_missed_from_then_on() -> None:
    """Else nothing would be said before the clock has caught up, which may take hours."""
    missing, said = Missing("nobody"), list[str]()
    for now in (100 * WAIT_US, 0, WAIT_US - 1):
        missing.look(True, now, said.append)
    assert said == []
    missing.look(True, WAIT_US, said.append)
    assert said == ["nobody"]
