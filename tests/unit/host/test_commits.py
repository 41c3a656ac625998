"""Group commit: one interval's checkpoints in order, whatever lane they take; sinks keep nobody else waiting."""

from __future__ import annotations

import random

import pytest

from millwheel import limits
from millwheel.bundles import LogWrite, SinkRow
from millwheel.host.commits import CommitLanes, Group
from millwheel.ids import IntervalId, Seq, Sequencer


def write(interval: IntervalId, seq: Seq, sink: bool = False) -> LogWrite:
    return LogWrite(interval, Sequencer(1), seq, 0, b"", (SinkRow("t", b"{}"),) if sink else ())


class Slow:
    """A store that finishes a group when it is told to."""

    def __init__(self) -> None:
        self.lanes = CommitLanes()
        self.open: list[Group] = []
        self.durable: list[tuple[int, int]] = []

    def submit(self, *writes: LogWrite) -> None:
        for one in writes:
            self.lanes.submit(one)
        self.open += self.lanes.ready()

    def finish(self, place: int = 0) -> None:
        group = self.open.pop(place)
        self.durable += [(one.interval, one.seq) for one in group.writes]
        self.lanes.done(group)
        self.open += self.lanes.ready()

    def groups(self) -> list[list[tuple[int, int]]]:
        return [[(one.interval, one.seq) for one in group.writes] for group in self.open]


def test_what_is_ready_goes_together_and_the_next_group_waits() -> None:
    store = Slow()
    store.submit(write(IntervalId(1), Seq(1)), write(IntervalId(2), Seq(1)))
    store.submit(write(IntervalId(1), Seq(2)), write(IntervalId(2), Seq(2)))
    assert store.groups() == [[(1, 1), (2, 1)]]
    assert store.lanes.waits()
    store.finish()
    assert store.groups() == [[(1, 2), (2, 2)]]
    assert not store.lanes.waits()
    assert not store.lanes.idle()
    store.finish()
    assert store.lanes.idle()


def test_a_slow_sink_keeps_nobody_else_waiting() -> None:
    store = Slow()
    store.submit(write(IntervalId(1), Seq(1), sink=True))
    for seq in (1, 2, 3):
        store.submit(write(IntervalId(2), Seq(seq)))
        store.finish(1)
    assert store.durable == [(2, 1), (2, 2), (2, 3)]
    assert not store.lanes.waits()
    store.submit(write(IntervalId(1), Seq(2), sink=True))
    assert store.lanes.waits()  # for the sink
    assert store.groups() == [[(1, 1)]]


def test_an_interval_that_changes_lanes_waits_for_its_open_group() -> None:
    store = Slow()
    store.submit(write(IntervalId(1), Seq(1)))
    store.submit(write(IntervalId(1), Seq(2)), write(IntervalId(2), Seq(1)), write(IntervalId(1), Seq(3), sink=True))
    assert store.groups() == [[(1, 1)]]
    store.finish()
    assert sorted(store.groups()) == [[(1, 2), (1, 3)], [(2, 1)]]
    store.submit(write(IntervalId(1), Seq(4)))
    assert len(store.groups()) == 2, "it never changes back, or the fourth could overtake the third"


def test_others_in_the_lane_do_not_wait_for_one_that_has_just_changed_to_it() -> None:
    store = Slow()
    store.submit(write(IntervalId(1), Seq(1)))
    store.submit(write(IntervalId(1), Seq(2), sink=True), write(IntervalId(2), Seq(1), sink=True))
    assert store.groups() == [[(1, 1)], [(2, 1)]]
    store.finish()
    store.finish()
    assert store.groups() == [[(1, 2)]]


def test_what_waits_of_a_void_core_is_forgotten() -> None:
    store = Slow()
    store.submit(write(IntervalId(1), Seq(1)))
    store.submit(write(IntervalId(1), Seq(2)), write(IntervalId(2), Seq(1)))
    store.lanes.drop(IntervalId(1))
    store.finish()
    assert store.groups() == [[(2, 1)]]


@pytest.mark.parametrize("seed", range(20))
def test_every_interval_commits_in_order_whatever_finishes_first_and_nothing_that_was_dropped(seed: int) -> None:
    rng = random.Random(seed)
    store, seqs = Slow(), dict.fromkeys(range(4), 0)
    dropped: set[tuple[int, int]] = set()
    while sum(seqs.values()) < 200 or store.open:
        if rng.random() < 0.7 and sum(seqs.values()) < 200:
            interval = rng.randrange(4)
            seqs[interval] += 1
            store.submit(write(IntervalId(interval), Seq(seqs[interval]), sink=rng.random() < 0.05))
            if rng.random() < 0.1:
                begun = {*store.durable, *(place for group in store.groups() for place in group)}
                dropped |= {(interval, seq) for seq in range(1, seqs[interval] + 1)} - begun
                store.lanes.drop(IntervalId(interval))
        elif store.open:
            store.finish(rng.randrange(len(store.open)))
        busy = [one.interval for group in store.open for one in group.writes]
        assert len({*busy}) == sum(len({one.interval for one in group.writes}) for group in store.open)
    for interval, count in seqs.items():
        kept = [seq for seq in range(1, count + 1) if (interval, seq) not in dropped]
        assert [seq for one, seq in store.durable if one == interval] == kept
    assert dropped
    assert store.lanes.idle()


def test_a_group_is_no_larger_than_a_message_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GROUP_LIMIT_BYTES", 100)

    def large(interval: int, seq: int, size: int) -> LogWrite:
        return LogWrite(IntervalId(interval), Sequencer(1), Seq(seq), 0, bytes(size), ())

    store = Slow()
    store.submit(large(1, 1, 40), large(2, 1, 40), large(1, 2, 40), large(1, 3, 300), large(2, 2, 1))
    groups = []
    while store.open:
        groups += store.groups()
        store.finish()
    assert groups == [[(1, 1), (2, 1)], [(1, 2)], [(1, 3)], [(2, 2)]]
    assert store.lanes.idle()
