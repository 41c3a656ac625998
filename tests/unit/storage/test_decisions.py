"""A decision that is asked for again is recognised, and no other one is."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.cluster import Member, Placement, Reshaping
from millwheel.errors import StoreError, StoreInUse
from millwheel.ids import IntervalId
from millwheel.ports import IntervalRow, PipelineShape
from millwheel_storage.decisions import Alive, check_named, check_same, check_unused, digest, reshaped, shape_digest

PLACEMENT = Placement(3, 7, {IntervalId(1): 5, IntervalId(2): None}, {"s": 5})


def test_the_order_of_a_decision_says_nothing() -> None:
    assert digest(PLACEMENT) == digest(Placement(3, 7, {IntervalId(2): None, IntervalId(1): 5}, {"s": 5}))


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": 4},
        {"version": 8},
        {"intervals": {1: 5}},
        {"intervals": {1: 6, 2: None}},
        {"intervals": {1: 5, 2: 5}},
        {"sources": {"s": None}},
        {"sources": {}},
        {"back": True},
    ],
)
def test_another_decision_has_another_digest(change: dict[str, object]) -> None:
    assert digest(msgspec.structs.replace(PLACEMENT, **change)) != digest(PLACEMENT)


def test_a_reshaping_is_recognised_too() -> None:
    one = Reshaping(3, 7, [IntervalId(1)], ["m"])
    assert digest(one) == digest(Reshaping(3, 7, (IntervalId(1),), ("m",)))
    others = [
        Reshaping(3, 8, one.intervals, ["m"]),
        Reshaping(3, 7, one.intervals, ["n"]),
        Reshaping(3, 7, [IntervalId(2)], ["m"]),
        Reshaping(3, 7, one.intervals, ["m"], back=True),
    ]
    assert len({digest(decision) for decision in (one, *others)}) == 5


def row(number: int, low: str, high: str | None, computation: str = "a") -> IntervalRow:
    return IntervalRow(IntervalId(number), computation, low, high)


def test_splits_and_merges_cover_what_was_there() -> None:
    assert reshaped([row(1, "", None)], ["b", "m"]) == [("", "b"), ("b", "m"), ("m", None)]
    assert reshaped([row(1, "b", "m")], ["ba"]) == [("b", "ba"), ("ba", "m")]
    assert reshaped([row(1, "b", "m"), row(9, "m", "x"), row(3, "x", None)], []) == [("b", None)]


@pytest.mark.parametrize("keys", [["b"], ["a"], ["m"], ["z"], ["d", "c"], ["c", "c"], [""]])
def test_keys_that_do_not_fit_are_refused(keys: list[str]) -> None:
    with pytest.raises(StoreError, match="not ascending and inside of interval 1, 'b' to 'm'"):
        reshaped([row(1, "b", "m")], keys)


@pytest.mark.parametrize(
    "rows",
    [
        [row(2, "m", None), row(1, "b", "m")],
        [row(1, "b", "m"), row(2, "n", None)],
        [row(1, "b", "m"), row(2, "m", None, "other")],
        [row(1, "b", None), row(2, "", "b")],
    ],
)
def test_what_is_not_adjacent_is_refused(rows: list[IntervalRow]) -> None:
    with pytest.raises(StoreError, match="are not neighbours in this order"):
        reshaped(rows, [])


@pytest.mark.parametrize("named", [[], [1], [1, 1]])
def test_neither_a_split_nor_a_merge_is_refused(named: list[int]) -> None:
    with pytest.raises(StoreError, match="a split names one interval and keys"):
        check_named(Reshaping(1, 1, [IntervalId(number) for number in named], []))
    with pytest.raises(StoreError, match="a split names one interval and keys"):
        check_named(Reshaping(1, 1, [IntervalId(1), IntervalId(2)], ["k"]))


def alive(count: int) -> list[Alive]:
    return [Alive(Member(n, f"w{n}", "worker", f"h:{n}"), (1_700_000_000 + n) * 1_000_000) for n in range(1, count + 1)]


def test_who_uses_a_store_is_named_with_what_to_do() -> None:
    check_unused("demo", [])
    check_same("demo", [], ["sink table 'x' is new"])
    check_same("demo", alive(5), [])
    with pytest.raises(StoreInUse) as one:
        check_unused("demo", alive(1))
    assert str(one.value) == (
        "1 live member of a cluster uses the store of 'demo': worker 'w1' (1) at h:1, whose lease lasts until 2023-11-14 "
        "22:13:21 UTC; stop it, or wait until its lease has run out, or start a worker of the cluster instead"
    )
    with pytest.raises(StoreInUse) as many:
        check_same("demo", alive(5), ["sink table 'x' is new", "cell 'c.y' is gone"])
    assert str(many.value) == (
        "this version cannot run beside the one that runs (sink table 'x' is new; cell 'c.y' is gone), and 5 live members "
        "of a cluster use the store of 'demo': worker 'w1' (1) at h:1, worker 'w2' (2) at h:2, worker 'w3' (3) at h:3 and 2 "
        "more, whose leases last until 2023-11-14 22:13:25 UTC; stop all processes of the earlier version, then start "
        "those of this one"
    )


def test_the_digest_of_a_shape_does_not_depend_on_the_order_of_its_names() -> None:
    one = PipelineShape("p", {"a": (), "b": ()}, {"a<s": "s", "b<s": "s"}, {}, (), ())
    assert shape_digest(one) == shape_digest(
        PipelineShape("p", {"b": (), "a": ()}, {"b<s": "s", "a<s": "s"}, {}, (), ())
    )
    assert shape_digest(one) != shape_digest(PipelineShape("p", {"a": ("m",), "b": ()}, one.subscriptions, {}, (), ()))
