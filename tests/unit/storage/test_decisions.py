"""A decision that is asked for again is recognised, and no other one is."""

from __future__ import annotations

import msgspec
import pytest

from millwheel.cluster import Placement
from millwheel.ids import IntervalId
from millwheel_storage.decisions import digest

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
    ],
)
def test_another_decision_has_another_digest(change: dict[str, object]) -> None:
    assert digest(msgspec.structs.replace(PLACEMENT, **change)) != digest(PLACEMENT)
