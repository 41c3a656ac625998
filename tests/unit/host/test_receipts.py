"""Receipts that wait for a moment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.host.messages import Receipt
from millwheel.host.receipts import Receipts
from millwheel.ids import IntervalId

REST_US, TOGETHER = 5_000, 3


def receipt(number: int, interval: int = 1) -> Receipt:
    return Receipt(IntervalId(interval), IntervalId(50), number)


def due(receipts: Receipts, now: int) -> list[tuple[str, int]]:
    """What is said: (worker, number)."""
    said: list[tuple[str, int]] = []
    receipts.due(now, lambda peer, one: said.append((peer, one.number)))
    return said


def test_a_receipt_waits_for_others_and_no_longer_than_its_rest() -> None:
    receipts = Receipts(REST_US, TOGETHER)
    receipts.add("w1", receipt(1), 1_000)
    receipts.add("w1", receipt(2), 3_000)
    receipts.add("w2", receipt(3), 4_000)
    assert due(receipts, 1_000 + REST_US - 1) == []
    assert receipts.next() == 1_000 + REST_US
    assert due(receipts, 1_000 + REST_US) == [("w1", 1), ("w1", 2)]
    assert receipts.next() == 4_000 + REST_US
    assert due(receipts, 4_000 + REST_US) == [("w2", 3)]
    assert receipts.next() is None


def test_enough_of_them_are_told_at_once() -> None:
    receipts = Receipts(REST_US, TOGETHER)
    for number in range(TOGETHER):
        assert due(receipts, 0) == []
        receipts.add("w1", receipt(number), 0)
    assert due(receipts, 0) == [("w1", 0), ("w1", 1), ("w1", 2)]


def test_the_rest_begins_anew_with_the_next_one() -> None:
    receipts = Receipts(REST_US, TOGETHER)
    receipts.add("w1", receipt(1), 0)
    assert due(receipts, REST_US) == [("w1", 1)]
    receipts.add("w1", receipt(2), 3 * REST_US)
    assert receipts.next() == 4 * REST_US
    assert due(receipts, 3 * REST_US) == []


def test_nothing_is_told_to_a_worker_that_is_gone() -> None:
    receipts = Receipts(REST_US, TOGETHER)
    receipts.add("w1", receipt(1), 0)
    receipts.add("w2", receipt(2), 0)
    receipts.part("w1")
    receipts.part("nobody")
    assert due(receipts, REST_US) == [("w2", 2)]


def test_what_waits_of_an_interval_that_goes_is_told_and_no_other() -> None:
    receipts, said = Receipts(REST_US, TOGETHER), list[tuple[str, int]]()
    for peer, number, interval in (("w1", 1, 1), ("w2", 2, 1), ("w2", 3, 2)):
        receipts.add(peer, receipt(number, interval), 0)
    receipts.drop(IntervalId(1), lambda peer, one: said.append((peer, one.number)))
    receipts.drop(IntervalId(9), lambda peer, one: said.append((peer, one.number)))
    assert said == [("w1", 1), ("w2", 2)]
    assert due(receipts, REST_US) == [("w2", 3)]
    assert receipts.next() is None


def test_what_waits_for_a_worker_is_told_when_it_is_asked_for() -> None:
    receipts, said = Receipts(REST_US, TOGETHER), list[str]()
    receipts.add("w1", receipt(1), 0)
    receipts.add("w2", receipt(2), 0)
    receipts.tell("w1", lambda peer, one: said.append(peer))
    receipts.tell("nobody", lambda peer, one: said.append(peer))
    assert said == ["w1"]
    assert due(receipts, REST_US) == [("w2", 2)]


@given(st.lists(st.tuples(st.sampled_from(["w1", "w2"]), st.integers(0, 4_000), st.booleans()), max_size=40))
def test_every_receipt_is_told_once_in_order_and_in_time(steps: list[tuple[str, int, bool]]) -> None:
    receipts, told, began, now = Receipts(REST_US, TOGETHER), list[tuple[str, int]](), dict[int, int](), 0
    for number, (peer, later, look) in enumerate(steps):
        began[number] = now
        receipts.add(peer, receipt(number), now)
        now += later
        if look:
            said = due(receipts, now)
            told += said
            late = [other for other in began if other not in dict.fromkeys(one for _, one in told)]
            assert all(now - began[other] < REST_US for other in late)
    told += due(receipts, now + REST_US)
    for worker in ("w1", "w2"):
        assert [number for peer, number in told if peer == worker] == [
            n for n, (p, _, _) in enumerate(steps) if p == worker
        ]
