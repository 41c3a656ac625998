"""Dedup against a set: an id is new exactly once, and never below the frontier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.dedup import DeliveredIds

batches = st.lists(
    st.one_of(
        st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True).map(sorted),
        st.integers(0, 40),  # a frontier
    ),
    max_size=40,
)


@given(batches)
def test_fresh_is_what_a_set_says(steps: list[list[int] | int]) -> None:
    delivered, seen, frontier = DeliveredIds(), set[int](), 0
    for step in steps:
        if isinstance(step, int):
            delivered.advance(1, 2, step)
            frontier = max(frontier, step)
            assert delivered.frontier(1, 2) == frontier
            continue
        fresh = delivered.fresh(1, 2, step)
        kept = step if fresh is None else [step[i] for i in fresh]
        assert kept == [s for s in step if s >= frontier and s not in seen]
        delivered.add(1, 2, kept)
        seen.update(kept)


def test_channels_are_apart() -> None:
    delivered = DeliveredIds()
    delivered.add(1, 2, [5])
    assert delivered.fresh(1, 3, [5]) is None
    assert delivered.fresh(2, 2, [5]) is None
    assert delivered.fresh(1, 2, [5]) == []


def test_what_was_restored_is_a_duplicate() -> None:
    delivered = DeliveredIds()
    delivered.restore(1, 2, 3, [4, 6])
    assert delivered.fresh(1, 2, [2, 3, 4, 5, 6, 7]) == [1, 3, 5]


def test_memory_follows_the_frontier() -> None:
    delivered = DeliveredIds()
    for first in range(0, 100_000, 100):
        delivered.add(1, 2, list(range(first, first + 100)))
        delivered.advance(1, 2, first)
    assert delivered.size() <= 500
