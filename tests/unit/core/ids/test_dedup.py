"""Dedup against a set: an id is new exactly once, and never below the frontier, whatever was sealed or restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from millwheel import limits
from millwheel.bundles import Ids
from millwheel.core.ids import dedup
from millwheel.core.ids.dedup import Channel, DeliveredIds
from millwheel.core.ids.ended import ENDED
from millwheel.ids import ProducerId, SequenceNumber, SubscriptionId, sequence_numbers
from millwheel.model import MAX_TIME

CHANNELS = [(SubscriptionId(1), ProducerId(5)), (SubscriptionId(2), ProducerId(5))]
TOP = 60
NUMBERS = st.integers(0, TOP).map(SequenceNumber)


@contextmanager
def shrunk(error_rate: float = 0.01) -> Iterator[None]:
    """Blocks of 4 ids, lists of 8, runs of at most 4 blocks in a filter: a few ids meet every case."""
    with (
        patch.multiple(dedup, BLOCK_BITS=2, LIST_LIMIT_IDS=8, SHORT_RUN_IDS=3, LONG_RUN_BLOCKS=4),
        patch.multiple(limits, ID_FILTER_ERROR_RATE=error_rate),
    ):
        yield


channels = st.sampled_from(CHANNELS)
batches = st.one_of(
    st.lists(NUMBERS, min_size=1, max_size=12, unique=True).map(sorted),
    st.tuples(st.integers(0, TOP), st.integers(1, 40)).map(
        lambda run: sequence_numbers(range(run[0], run[0] + run[1]))
    ),
)


class Model(RuleBasedStateMachine):
    """What an interval does with its ids, beside plain sets: `seen` is all of them, `store` what is folded."""

    def __init__(self) -> None:
        super().__init__()
        self._context = shrunk(0.5)
        self._context.__enter__()
        self.ids = DeliveredIds()
        self.seen: dict[Channel, set[SequenceNumber]] = {channel: set() for channel in CHANNELS}
        self.store: dict[Channel, set[SequenceNumber]] = {channel: set() for channel in CHANNELS}
        self.frontiers = dict.fromkeys(CHANNELS, 0)
        self.unfolded: list[Ids] = []
        self.minute = 0

    def teardown(self) -> None:
        self._context.__exit__(None, None, None)

    @rule(channel=channels, sequences=batches)
    def arrive(self, channel: Channel, sequences: list[SequenceNumber]) -> None:
        fresh = self.ids.fresh(*channel, sequences)
        if fresh:
            asked = self.ids.unsure(*channel, [sequences[i] for i in fresh])
            if asked:
                fresh = self.ids.fresh(*channel, sequences, self.store[channel].intersection(asked))
        kept = sequences if fresh is None else [sequences[i] for i in fresh]
        known, frontier = self.seen[channel], self.frontiers[channel]
        assert kept == [sequence for sequence in sequences if sequence >= frontier and sequence not in known]
        self.ids.add(*channel, kept)
        known.update(kept)
        if kept:
            self.unfolded.append(Ids(*channel, SequenceNumber(frontier), kept))

    @rule(channel=channels, by=st.integers(1, 4))
    def advance(self, channel: Channel, by: int) -> None:
        at = self.frontiers[channel]
        frontier = at + by if at < TOP else MAX_TIME
        self.ids.advance(*channel, SequenceNumber(frontier))
        self.frontiers[channel] = max(self.frontiers[channel], frontier)
        assert self.ids.frontier(*channel) == self.frontiers[channel]

    @rule(checkpoints=st.integers(0, 2), minutes=st.sampled_from([0, 1, 1, -1]))
    def fold(self, checkpoints: int, minutes: int) -> None:
        folded, self.unfolded = self.unfolded[:checkpoints], self.unfolded[checkpoints:]
        for ids in folded:
            self.store[ids.subscription, ids.producer].update(ids.sequences)
        self.ids.folded(folded)
        self.minute += minutes
        self.ids.seal(self.minute * limits.ID_BUCKET_US)

    @precondition(lambda self: len(self.unfolded) > 3)
    @rule()
    def restart(self) -> None:
        """Everything that was committed is folded first; the frontiers are those of the last checkpoint."""
        for ids in self.unfolded:
            self.store[ids.subscription, ids.producer].update(ids.sequences)
        self.unfolded = []
        self.ids = DeliveredIds()
        for channel, stored in self.store.items():
            kept = {sequence for sequence in stored if sequence >= self.frontiers[channel]}
            self.ids.restore(*channel, SequenceNumber(self.frontiers[channel]), SequenceNumber(max(kept, default=-1)))


TestModel = Model.TestCase
TestModel.settings = settings(stateful_step_count=80)


def fold(delivered: DeliveredIds, now: int, *checkpointed: Ids) -> None:
    delivered.folded(checkpointed)
    delivered.seal(now)


def test_channels_are_apart() -> None:
    delivered = DeliveredIds()
    delivered.add(SubscriptionId(1), ProducerId(2), sequence_numbers([5]))
    assert delivered.fresh(SubscriptionId(1), ProducerId(3), sequence_numbers([5])) is None
    assert delivered.fresh(SubscriptionId(2), ProducerId(2), sequence_numbers([5])) is None
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([5])) == []


def test_what_an_earlier_owner_consumed_is_asked_for() -> None:
    delivered = DeliveredIds()
    delivered.restore(SubscriptionId(1), ProducerId(2), SequenceNumber(3), SequenceNumber(6))
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([2, 3, 4, 5, 6, 7])) == [1, 2, 3, 4, 5]
    assert delivered.unsure(SubscriptionId(1), ProducerId(2), sequence_numbers([3, 4, 5, 6, 7])) == [3, 4, 5, 6]
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([2, 3, 4, 5, 6, 7]), {4, 6}) == [1, 3, 5]
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([7, 8])) is None


def test_a_channel_that_is_not_live_is_refused_from_its_first_record_on() -> None:
    live = {CHANNELS[0]}
    delivered = DeliveredIds(live, horizon=10)
    assert delivered.fresh(SubscriptionId(1), ProducerId(5), sequence_numbers([0])) is None
    assert delivered.fresh(SubscriptionId(2), ProducerId(5), sequence_numbers([0])) == []
    assert delivered.fresh(SubscriptionId(1), ProducerId(10), sequence_numbers([0])) is None
    delivered.expect([(SubscriptionId(3), ProducerId(7))])
    assert delivered.fresh(SubscriptionId(3), ProducerId(7), sequence_numbers([0])) is None


def test_of_a_producer_that_has_ended_only_its_number_is_kept_and_nothing_of_it_is_new() -> None:
    delivered = DeliveredIds({(SubscriptionId(1), ProducerId(5))}, horizon=10)
    for producer in (5, 10, 11):
        assert delivered.fresh(SubscriptionId(1), ProducerId(producer), sequence_numbers([0, 1])) is None
        delivered.add(SubscriptionId(1), ProducerId(producer), sequence_numbers([0, 1]))
        delivered.advance(SubscriptionId(1), ProducerId(producer), ENDED)
    assert delivered._channels == {}
    assert delivered._ended.runs() == 2
    assert delivered._live == set()
    delivered.folded(
        [Ids(SubscriptionId(1), ProducerId(10), ENDED, sequence_numbers([0, 1]))]
    )  # of a checkpoint from before the end
    delivered.expect([(SubscriptionId(1), ProducerId(5))])  # told again, as after a restart
    for producer in (5, 10, 11):
        assert delivered.frontier(SubscriptionId(1), ProducerId(producer)) == MAX_TIME
        assert delivered.fresh(SubscriptionId(1), ProducerId(producer), sequence_numbers([0, 1, 2])) == []
        assert delivered.unsure(SubscriptionId(1), ProducerId(producer), sequence_numbers([0, 1, 2])) == []
        delivered.advance(SubscriptionId(1), ProducerId(producer), ENDED)
        delivered.restore(SubscriptionId(1), ProducerId(producer), SequenceNumber(3), SequenceNumber(7))
    assert delivered.fresh(SubscriptionId(2), ProducerId(10), sequence_numbers([0])) is None
    assert dedup.Seen(ENDED) == dedup.GONE


def test_what_is_refused_from_the_first_record_on_takes_no_memory() -> None:
    delivered = DeliveredIds((), horizon=10)
    for producer in range(10):
        assert delivered.fresh(SubscriptionId(1), ProducerId(producer), sequence_numbers([0])) == []
        assert delivered.frontier(SubscriptionId(1), ProducerId(producer)) == MAX_TIME
        delivered.advance(SubscriptionId(1), ProducerId(producer), ENDED)
    assert delivered._channels == {}
    assert delivered._ended.runs() == 0


@given(st.lists(st.lists(st.integers(0, 10_000), min_size=1, max_size=50, unique=True).map(sorted), max_size=20))
def test_runs_hold_what_was_added(batches: list[list[int]]) -> None:
    seen = dedup.Seen()
    for batch in batches:
        seen.add(sequence_numbers(batch))
    everything = sorted({sequence for batch in batches for sequence in batch})
    assert not everything or seen.exact(sequence_numbers(everything)) == set(everything)
    assert all(sequence in seen.exact(sequence_numbers([sequence])) for sequence in everything), "also alone"


def test_a_million_dense_ids_take_a_few_bytes_and_sparse_ones_eight_each() -> None:
    delivered = DeliveredIds()
    for first in range(0, 1_000_000, 1_000):
        delivered.add(SubscriptionId(1), ProducerId(2), sequence_numbers(range(first, first + 1_000)))
        delivered.add(SubscriptionId(1), ProducerId(3), sequence_numbers(range(8 * first, 8 * first + 8_000, 8)))
    assert len(delivered._channels[(SubscriptionId(1), ProducerId(2))].runs) == 1
    assert delivered.size() == 1_000_000
    assert (
        sum(
            run.ids.itemsize * len(run.ids)
            for run in delivered._channels[(SubscriptionId(1), ProducerId(3))].runs
            if run.ids
        )
        == 8_000_000
    )


def test_memory_follows_the_frontier() -> None:
    delivered = DeliveredIds()
    for first in range(0, 100_000, 100):
        delivered.add(SubscriptionId(1), ProducerId(2), sequence_numbers(range(first, first + 300, 3)))
        delivered.advance(SubscriptionId(1), ProducerId(2), SequenceNumber(first))
    assert delivered.size() <= 2_000


def test_an_id_is_sealed_when_the_bucket_has_turned_and_its_fold_has_answered() -> None:
    delivered = DeliveredIds()
    delivered.seal(0)
    delivered.add(SubscriptionId(1), ProducerId(2), sequence_numbers([10, 20, 30]))
    delivered.seal(limits.ID_BUCKET_US)  # not folded: only memory knows it
    assert delivered.filters() == 0
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([20])) == []
    fold(
        delivered,
        limits.ID_BUCKET_US,
        Ids(SubscriptionId(1), ProducerId(2), SequenceNumber(0), sequence_numbers([10, 20, 30])),
    )  # folded, in the bucket in which it came
    assert delivered.filters() == 0
    delivered.seal(2 * limits.ID_BUCKET_US)
    assert (delivered.filters(), delivered.size()) == (1, 0)
    assert delivered.unsure(SubscriptionId(1), ProducerId(2), sequence_numbers([20])) == [20]
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([20]), {20}) == []
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([40])) is None


@pytest.mark.parametrize("seed", range(50))
def test_only_what_is_folded_is_forgotten_whatever_shapes_came_before_and_after(seed: int) -> None:
    """Dense and listed ones, in order and not, and long runs that stay; some are folded when the bucket turns."""
    chosen, channel = random.Random(seed), CHANNELS[0]
    with shrunk():
        delivered, came, stored = DeliveredIds(), list[list[SequenceNumber]](), set[SequenceNumber]()
        places = [*range(12)]
        if seed % 2:
            chosen.shuffle(places)
        for place in places:
            numbers = sequence_numbers(range(40 * place, 40 * place + chosen.choice([1, 2, 5, 12, 30])))
            gaps, piece = chosen.choice([1, 1, 2]), chosen.choice([1, 3, 30])
            came += [[*numbers[at : at + piece : gaps]] for at in range(0, len(numbers), piece)]
        given, folded = list[list[SequenceNumber]](), 0
        for minute, numbers in enumerate(came):
            assert delivered.fresh(*channel, numbers) in (None, [*range(len(numbers))])
            delivered.add(*channel, numbers)
            given.append(numbers)
            upto = chosen.randint(folded, len(given))
            delivered.folded([Ids(*channel, SequenceNumber(0), numbers) for numbers in given[folded:upto]])
            stored.update(*given[folded:upto])
            folded = upto
            delivered.seal(minute * limits.ID_BUCKET_US)
            for again in [*given[-3:], *chosen.choices(given, k=3)]:
                fresh = delivered.fresh(*channel, again)
                asked = delivered.unsure(*channel, again if fresh is None else [again[i] for i in fresh])
                assert delivered.fresh(*channel, again, stored.intersection(asked)) == []
        delivered.folded([Ids(*channel, SequenceNumber(0), numbers) for numbers in given[folded:]])
        delivered.seal(len(came) * limits.ID_BUCKET_US)
        assert delivered.size() == 0, "nothing that the store has is listed for ever"


def test_a_filter_goes_when_all_it_holds_is_collected() -> None:
    delivered = DeliveredIds()
    delivered.seal(0)
    for producer in (2, 3):
        delivered.add(SubscriptionId(1), ProducerId(producer), sequence_numbers([10, 20]))
    fold(
        delivered,
        limits.ID_BUCKET_US,
        Ids(SubscriptionId(1), ProducerId(2), SequenceNumber(0), sequence_numbers([10, 20])),
        Ids(SubscriptionId(1), ProducerId(3), SequenceNumber(0), sequence_numbers([10, 20])),
    )
    delivered.advance(SubscriptionId(1), ProducerId(2), SequenceNumber(21))
    delivered.advance(SubscriptionId(1), ProducerId(3), SequenceNumber(20))
    assert delivered.filters() == 1
    assert delivered.unsure(SubscriptionId(1), ProducerId(3), sequence_numbers([20])) == [20]
    delivered.advance(SubscriptionId(1), ProducerId(3), SequenceNumber(21))
    assert delivered.filters() == 0


def test_a_long_dense_run_stays_as_it_is() -> None:
    delivered = DeliveredIds()
    delivered.seal(0)
    long = list(range(100_000))
    delivered.add(SubscriptionId(1), ProducerId(2), sequence_numbers(long))
    fold(
        delivered, limits.ID_BUCKET_US, Ids(SubscriptionId(1), ProducerId(2), SequenceNumber(0), sequence_numbers(long))
    )
    assert (delivered.filters(), delivered.size()) == (0, 0)
    assert delivered.fresh(SubscriptionId(1), ProducerId(2), sequence_numbers([99_999])) == []


def test_the_frontier_of_a_retired_producer_is_the_end_of_time_before_anything_of_it_comes() -> None:
    ids = DeliveredIds(live=[(SubscriptionId(1), ProducerId(8))], horizon=10)
    assert [ids.frontier(SubscriptionId(1), ProducerId(producer)) for producer in (8, 9, 10)] == [0, MAX_TIME, 0]


def test_what_comes_of_a_producer_that_is_as_new_as_its_receiver_is_not_doubted() -> None:
    ids = DeliveredIds((), horizon=10)
    assert [ids.doubts((SubscriptionId(1), ProducerId(producer))) for producer in (9, 10, 11)] == [True, False, False]
