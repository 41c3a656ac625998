"""The filter of names, with both kinds of hashes: what was added is found, and little else."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.ids.filters import Digests, Hashes, NameFilter, Sums, filter_of_ids, filter_of_keys

KINDS: list[Callable[[Sequence[str]], Hashes]] = [lambda names: Digests([name.encode() for name in names]), Sums]

kinds = pytest.mark.parametrize("hashed", KINDS, ids=["digests", "sums"])


@kinds
@given(
    batches=st.lists(st.sets(st.text(max_size=8), max_size=30).map(sorted), max_size=6),
    expected=st.integers(0, 20),
    growth=st.integers(1, 8),
)
def test_what_was_added_is_found(
    hashed: Callable[[Sequence[str]], Hashes], batches: list[list[str]], expected: int, growth: int
) -> None:
    filter_ = NameFilter(expected, 4, growth)
    for batch in batches:
        filter_.add(hashed(batch))
    for batch in batches:
        assert filter_.maybe(hashed(batch)) == [*range(len(batch))]


@kinds
def test_an_empty_filter_finds_nothing_and_takes_no_memory(hashed: Callable[[Sequence[str]], Hashes]) -> None:
    filter_ = NameFilter(1_000, 16, 2)
    assert filter_.maybe(hashed(["a", "b"])) == []
    assert filter_.size_bytes() == 0


@pytest.mark.parametrize(
    ("hashed", "filter_", "wrong", "bytes_a_name"),
    [(KINDS[0], filter_of_ids(), 1_000, 12), (KINDS[1], filter_of_keys(), 70, 12)],
    ids=["ids", "keys"],
)
def test_a_filter_is_seldom_wrong_and_grows_with_what_is_in_it(
    hashed: Callable[[Sequence[str]], Hashes], filter_: NameFilter, wrong: int, bytes_a_name: int
) -> None:
    count = 100_000
    for first in range(0, count, 2_000):
        filter_.add(hashed([f"in {n}" for n in range(first, first + 2_000)]))
    assert len(filter_.maybe(hashed([f"out {n}" for n in range(20_000)]))) <= 20_000 // wrong
    assert filter_.size_bytes() <= bytes_a_name * count


def test_what_is_expected_has_room_in_one_page() -> None:
    filter_ = filter_of_ids(100_000)
    for first in range(0, 100_000, 2_000):
        filter_.add(Digests([b"%d" % n for n in range(first, first + 2_000)]))
    assert filter_.pages() == 1
    assert filter_.size_bytes() <= 6 * 100_000


def test_a_page_that_is_full_is_followed_by_a_larger_one() -> None:
    filter_ = NameFilter(64, 16, 8)
    sizes = []
    for first in range(0, 576, 32):
        filter_.add(Sums([f"{n}" for n in range(first, first + 32)]))
        sizes.append(filter_.size_bytes())
    assert filter_.pages() == 2
    assert sizes[0] == 64 * 2
    assert sizes[-1] == 9 * sizes[0]
