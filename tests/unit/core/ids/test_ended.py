"""Ended producers against a set, and in as few runs as there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millwheel.core.ids.dedup import Channel
from millwheel.core.ids.ended import EndedProducers
from millwheel.ids import ProducerId, SubscriptionId

channels = st.tuples(st.sampled_from([1, 2]).map(SubscriptionId), st.integers(0, 30).map(ProducerId))


@given(st.lists(channels, max_size=60))
def test_what_has_ended_is_what_was_added(added: list[Channel]) -> None:
    ended = EndedProducers()
    for channel in added:
        ended.add(*channel)
    everything = [
        (SubscriptionId(subscription), ProducerId(producer)) for subscription in (1, 2, 3) for producer in range(-1, 32)
    ]
    assert [channel for channel in everything if channel in ended] == sorted(set(added))
    assert ended.runs() == sum((s, p) in set(added) and (s, p - 1) not in set(added) for s, p in everything)


def test_producers_that_end_one_after_the_other_take_no_memory() -> None:
    ended = EndedProducers()
    for producer in range(100_000):
        ended.add(SubscriptionId(1), ProducerId(producer))
    assert ended.runs() == 1
