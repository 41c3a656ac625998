"""Packed ids come back as they were, and rows of productions become bundles of one channel each."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel_storage.productions import ProductionRow, bundles, pack_ids, unpack_ids

IDS = st.lists(st.integers(0, 2**62), min_size=1, max_size=50, unique=True).map(sorted)
CHANNELS = st.tuples(st.integers(1, 3).map(SubscriptionId), st.integers(1, 3).map(ProducerId))


@given(IDS)
def test_packed_ids_come_back(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(sequence_numbers(ids))) == ids


def test_dense_ids_take_a_byte_each() -> None:
    assert len(pack_ids(sequence_numbers(range(1_000_000, 1_001_000)))) < 1_010


@given(
    st.lists(st.tuples(CHANNELS, st.integers(0, 99).map(SequenceNumber)), max_size=30, unique=True), st.integers(1, 5)
)
def test_rows_become_bundles_of_one_channel(
    ids: list[tuple[tuple[SubscriptionId, ProducerId], SequenceNumber]], limit: int
) -> None:
    rows: list[ProductionRow] = [(*channel, n, f"k{n}", b"%d" % n, 10 * n) for channel, n in sorted(ids)]
    made = bundles(rows, limit)
    back = [
        (b.subscription, b.producer, *row)
        for b in made
        for row in zip(b.sequences, b.keys, b.values, b.timestamps, strict=True)
    ]
    assert back == rows
    assert all(1 <= len(b.keys) <= limit for b in made)
    followed = [a for a, b in pairwise(made) if (a.subscription, a.producer) == (b.subscription, b.producer)]
    assert all(len(b.keys) == limit for b in followed), "only the last one may have room"
